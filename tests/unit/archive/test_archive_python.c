/* test_archive_python.c: checkpoints of PyTorch's, written by Python's safetensors library, and
 * files for it (tests/golden/make_archive.py). */
#include "archive_setup.h"

/* ---- theirs ---- */

static double train_step(ek_module *net, ek_optimizer *optimizer, ek_tensor *x)
{
    double value = 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = ek_apply(net, x), *loss = ek_mean(ek_mul(y, y));
    ek_zero_grad(optimizer);
    assert_ok(ek_backward(loss));
    assert_ok(ek_step(optimizer));
    assert_ok(ek_item(loss, &value));
    ek_scope_end(&scope);
    return value;
}

/* Loaded strictly, the network gives PyTorch's output, and Adam goes on with its losses. */
TEST(checkpoints_of_pytorch_go_on)
{
    ek_load_report report;
    ek_module *net = ek_sequential(ek_conv2d(2, 4, 3, .padding = 1), ek_batch_norm2d(4), ek_relu(),
                                   ek_conv2d(4, 3, 1));
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_optimizer *optimizer = ek_adam(net, .lr = 0.5);
    ek_archive *a = ek_archive_open(EK_GOLDEN_DIR "/python_archive.safetensors");
    assert_made(a);
    assert_ok(ek_archive_load_module(a, "model", net, .report = &report));
    ck_assert_int_eq(report.loaded, 9);
    assert_ok(ek_archive_load_optimizer(a, "optimizer", optimizer, net));
    ck_assert_str_eq(ek_archive_get_text(a, "format"), "pt");
    ek_archive_free(a);
    ck_assert(ek_optimizer_lr(optimizer, 0) == 0.01);
    ck_assert_int_eq(ek_optimizer_steps(optimizer, ek_module_tensor(net, "3.bias")), 3);
    ck_assert(element(ek_module_tensor(net, "1.num_batches_tracked"), 0) == 3);
    ek_tensor *x = ek_to_device(golden("archive.golden", "x"), test_device(0));
    ek_module_train(net, false);
    assert_close_norm(ek_to_device(ek_apply(net, x), ek_cpu()), golden("archive.golden", "y"),
                      1e-6);
    ek_module_train(net, true);
    ek_tensor *losses = golden("archive.golden", "losses");
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(train_step(net, optimizer, x), element(losses, i), 1e-6);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

/* ---- ours ---- */

/* Numbers that are the same everywhere: from the generator alone. */
static ek_archive *made(void)
{
    ek_archive *a = ek_archive_new();
    ek_generator *own = ek_generator_new(21);
    ek_manual_seed(11);
    ek_module *net = ek_sequential(ek_conv2d(2, 4, 3), ek_batch_norm2d(4));
    ek_optimizer *optimizer = ek_sgd(net, .lr = 0.1, .momentum = 0.9);
    ek_tensor *bias = ek_module_tensor(net, "0.bias");
    assert_ok(ek_optimizer_set_state(optimizer, bias, 7, (const char *[]){"momentum_buffer"},
                                     (ek_tensor *[]){ek_arange(4, EK_F32, ek_cpu())}, 1));
    assert_ok(ek_archive_put_module(a, "model", net));
    assert_ok(ek_archive_put_optimizer(a, "optimizer", optimizer, net));
    assert_ok(ek_archive_put_generator(a, "own", own));
    assert_ok(ek_archive_put(a, "drawn", ek_value_of_int(ek_random_u32(own) % 0x80000000u)));
    assert_ok(ek_archive_put(a, "step", ek_value_of_int(((int64_t)1 << 53) + 1)));
    assert_ok(ek_archive_put(a, "list", EK_LIST(ek_value_of_float(0.1), ek_zeros(EK_SHAPE(0, 2)))));
    assert_ok(ek_archive_put_text(a, "note", "made by Evenkeel"));
    ek_optimizer_free(optimizer);
    ek_module_free(net);
    ek_generator_free(own);
    return a;
}

TEST(files_for_python_are_the_same)
{
    static unsigned char ours[1 << 15], wanted[1 << 15];
    ek_archive *a = made();
    assert_ok(ek_archive_save(a, file_path));
    const char *golden_path = getenv("EVENKEEL_GOLDEN_WRITE");
    if (golden_path)
        assert_ok(ek_archive_save(a, golden_path));
    ek_archive_free(a);
    size_t nbytes = read_file(file_path, ours, sizeof ours);
    ck_assert_uint_eq(nbytes, read_file(EK_GOLDEN_DIR "/evenkeel_archive.safetensors", wanted,
                                        sizeof wanted));
    ck_assert_mem_eq(ours, wanted, nbytes);
}
