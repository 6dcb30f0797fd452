/* test_archive_exchange.c: GPT-2's weights in files of torch.save and of Python's safetensors
 * library (tests/golden/make_gpt2.py): read, they give the twin's outputs; written, they are the
 * library's bytes. tests/golden/exchange.py does the same with the published sizes. */
#include "archive_setup.h"

FIXTURE(make_directory, remove_directory)

static ek_module *made(void)
{
    ek_module *net = ek_gpt2(19, .context = 10, .width = 12, .layers = 3, .heads = 2);
    assert_made(net);
    ek_module_train(net, false);
    return net;
}

/* Compares outputs in f64, and frees the module. */
static void assert_outputs(ek_module *net)
{
    assert_ok(ek_module_to_dtype(net, EK_F64));
    assert_close_norm(ek_detach(ek_apply(net, golden("gpt2.golden", "files/tokens"))),
                      golden("gpt2.golden", "files/y"), 1e-12);
    ek_module_free(net);
}

static ek_archive *opened(const char *path)
{
    ek_archive *a = ek_archive_open(path);
    assert_made(a);
    return a;
}

/* Every name in front of which "transformer" stands, and the head, and masks. */
TEST(an_old_file_of_a_model_with_a_head)
{
    ek_load_report report;
    ek_archive *a = opened(EK_GOLDEN_DIR "/pth/gpt2.pth");
    ek_module *net = made();
    ck_assert_int_lt(ek_archive_load_module(a, "transformer", net), 0);
    assert_error(EK_E_INVALID, "unexpected: \"h.0.attn.bias\", \"h.0.attn.masked_bias\"");
    assert_ok(ek_archive_load_module(a, "transformer", net, .strict = false, .report = &report));
    ck_assert_int_eq(report.loaded, 40);
    ck_assert_int_eq(report.missing, 0);
    ck_assert_int_eq(report.unexpected, 6);
    ek_archive_free(a);
    assert_outputs(net);
}

/* The head is a module of its own, tied to the embedding, as in such files; then another one. */
TEST(a_network_with_the_names_of_a_model_with_a_head)
{
    ek_load_report report;
    ek_archive *a = opened(EK_GOLDEN_DIR "/pth/gpt2.pth");
    ek_module *body =
        ek_gpt2(19, .context = 10, .width = 12, .layers = 3, .heads = 2, .head = false);
    ek_module *net =
        ek_sequential_named({"transformer", body}, {"lm_head", ek_linear(12, 19, .bias = false)});
    ek_tensor *embedding = ek_module_tensor(net, "transformer.wte.weight");
    assert_ok(ek_module_set_tensor(net, "lm_head.weight", embedding));
    assert_ok(ek_archive_load_module(a, "", net, .strict = false, .report = &report));
    ck_assert_int_eq(report.loaded, 40);
    ck_assert_int_eq(report.missing, 0);
    ck_assert_int_eq(report.unexpected, 6);
    ck_assert_str_eq(report.first_unexpected, "transformer.h.0.attn.bias");
    ek_archive_free(a);
    a = ek_archive_new();
    assert_ok(ek_archive_put_module(a, "", net));
    a = through_file(a);
    ck_assert(ek_archive_has(a, "lm_head.weight") && ek_archive_has(a, "transformer.wte.weight"));
    ek_archive_free(a);
    ek_module *classifier = ek_module_copy(net);
    assert_ok(ek_module_set(classifier, "lm_head", ek_linear(12, 2)));
    ek_tensor *y = ek_apply(classifier, golden("gpt2.golden", "files/tokens"));
    assert_made(y);
    ck_assert_int_eq(ek_tensor_size(y, -1), 2);
    ek_module_free(classifier);
    ek_module_train(net, false);
    assert_outputs(net);
}

TEST(a_new_file)
{
    ek_archive *a = opened(EK_GOLDEN_DIR "/gpt2.safetensors");
    ek_module *net = made();
    assert_ok(ek_archive_load_module(a, "", net));
    ek_archive_free(a);
    assert_outputs(net);
}

TEST(a_file_for_python)
{
    static unsigned char ours[1 << 15], wanted[1 << 15];
    ek_archive *a = opened(EK_GOLDEN_DIR "/pth/gpt2.pth");
    ek_module *net = made();
    assert_ok(ek_archive_load_module(a, "transformer", net, .strict = false));
    ek_archive_free(a);
    a = ek_archive_new();
    assert_ok(ek_archive_put_module(a, "", net));
    assert_ok(ek_archive_put_text(a, "format", "pt"));
    assert_ok(ek_archive_save(a, file_path));
    ek_archive_free(a);
    ek_module_free(net);
    size_t nbytes = read_file(file_path, ours, sizeof ours);
    ck_assert_uint_eq(nbytes, read_file(EK_GOLDEN_DIR "/gpt2.safetensors", wanted, sizeof wanted));
    ck_assert_mem_eq(ours, wanted, nbytes);
}
