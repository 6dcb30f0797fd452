/* test_archive_python.c: checkpoints of PyTorch's, written by Python's safetensors library, and
 * files for it (tests/golden/make_archive.py). */
#include "archive_setup.h"
#include "kit/models.h"

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

/* Saves and frees the archive, which must be the golden file to the byte. */
static void assert_golden_file(ek_archive *archive, const char *golden_file)
{
    static unsigned char ours[1 << 15], wanted[1 << 15];
    const char *write_to = getenv("EVENKEEL_GOLDEN_WRITE");
    assert_ok(ek_archive_save(archive, file_path));
    if (write_to)
        assert_ok(ek_archive_save(archive, write_to));
    ek_archive_free(archive);
    size_t nbytes = read_file(file_path, ours, sizeof ours);
    ck_assert_uint_eq(nbytes, read_file(golden_file, wanted, sizeof wanted));
    ck_assert_mem_eq(ours, wanted, nbytes);
}

TEST(files_for_python_are_the_same)
{
    assert_golden_file(made(), EK_GOLDEN_DIR "/evenkeel_archive.safetensors");
}

/* ---- tied weights and new layers, both ways (tests/golden/make_tied.py) ---- */

typedef struct tied {
    ek_module module;
    ek_module *stem, *encoder, *body, *again, *decoder;
} tied;

static ek_value tied_forward(ek_module *module, const ek_args *args)
{
    const tied *self = (tied *)module;
    ek_tensor *x = ek_mean(ek_apply(self->stem, ek_arg_tensor(args, 0)), EK_DIMS(2, 3));
    x = ek_add(x, ek_apply(self->encoder, ek_arg_tensor(args, 1)));
    return ek_value_of_tensor(
        ek_apply(self->decoder, ek_apply(self->again, ek_apply(self->body, x))));
}

MODULE_TYPE(tied, tied)

/* Decoder and encoder have one weight, the body is in two places with a new last layer, and the
 * first convolution has one channel. */
static ek_module *tied_new(void)
{
    tied *self = new_module(&tied_type);
    ek_module *net = &self->module,
              *body = ek_sequential(ek_linear(6, 6), ek_tanh(), ek_linear(6, 3));
    assert_ok(
        ek_register_module(net, "stem", &self->stem,
                           ek_sequential(ek_conv2d(3, 6, 3, .bias = false), ek_batch_norm2d(6))));
    assert_ok(ek_register_module(net, "encoder", &self->encoder, ek_embedding(11, 6)));
    assert_ok(ek_register_module(net, "body", &self->body, body));
    assert_ok(ek_register_module(net, "again", &self->again, body));
    assert_ok(ek_register_module(net, "decoder", &self->decoder, ek_linear(6, 11)));
    assert_ok(ek_module_set_tensor(net, "decoder.weight", ek_module_tensor(net, "encoder.weight")));
    assert_ok(ek_module_set(net, "body.2", ek_linear(6, 6)));
    assert_ok(ek_module_set_tensor(net, "stem.0.weight", ek_randn(EK_SHAPE(6, 1, 3, 3))));
    return net;
}

static ek_tensor *tied_golden(const char *name)
{
    return ek_to_device(golden("tied.golden", name), test_device(0));
}

typedef struct named {
    const char *rest;
} named;

/* Names come in PyTorch's order, and gradients are its gradients. */
static int tied_check(const char *path, ek_tensor *parameter, void *user)
{
    named *names = user;
    char entry[60];
    const size_t length = strlen(path);
    ck_assert(strncmp(names->rest, path, length) == 0);
    names->rest += length + 1;
    snprintf(entry, sizeof entry, "gradient/%s", path);
    assert_close_norm(ek_tensor_grad(parameter), tied_golden(entry), 1e-12);
    return 0;
}

TEST(tied_weights_of_pytorch_go_both_ways)
{
    ek_load_report report;
    ek_module *net = tied_new();
    ek_archive *a = ek_archive_open(EK_GOLDEN_DIR "/pth/tied.pth");
    assert_made(a);
    assert_ok(ek_archive_load_module(a, "", net, .report = &report));
    ck_assert_int_eq(report.loaded, 12);
    ek_archive_free(a);
    a = ek_archive_new();
    assert_ok(ek_archive_put_module(a, "", net));
    assert_golden_file(a, EK_GOLDEN_DIR "/evenkeel_tied.safetensors");

    assert_ok(ek_module_to_dtype(net, EK_F64));
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_tensor *picture = tied_golden("picture"), *byte = tied_golden("byte");
    ek_tensor *target = tied_golden("target"), *losses = golden("tied.golden", "losses");
    ek_module_train(net, false);
    assert_close_norm(ek_detach(ek_value_tensor(ek_forward(net, picture, byte))), tied_golden("y"),
                      1e-12);
    ek_module_train(net, true);
    ek_optimizer *optimizer = ek_adamw(net, .lr = 0.01);
    for (int step = 0; step < 10; step++) {
        double value;
        ek_scope scope = ek_scope_begin();
        ek_zero_grad(optimizer);
        ek_tensor *y = ek_value_tensor(ek_forward(net, picture, byte));
        ek_tensor *loss = ek_f_cross_entropy(y, target);
        assert_ok(ek_backward(loss));
        if (step == 0) {
            ek_tensor *names = golden("tied.golden", "names");
            named n = {ek_tensor_data(names)};
            assert_ok(ek_module_parameters(net, tied_check, &n));
            ck_assert_int_eq(n.rest - (char *)ek_tensor_data(names), ek_tensor_count(names) + 1);
        }
        assert_ok(ek_step(optimizer));
        assert_ok(ek_item(loss, &value));
        ek_scope_end(&scope);
        ck_assert_double_eq_tol(value, element(losses, step), 1e-10);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}
