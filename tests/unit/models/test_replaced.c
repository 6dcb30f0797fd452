/* Networks of which a part was replaced: a new last layer, a first convolution of one channel, and
 * parts that don't fit, which are errors, no more. */
#include "unit.h"

TEST(another_last_layer_and_another_first_one)
{
    ek_manual_seed(4);
    ek_module *net = ek_resnet18();
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ek_module_train(net, false);
    ek_tensor *gray = ek_rand(EK_SHAPE(2, 1, 32, 32), EK_F64), *colors[] = {gray, gray, gray};
    ek_tensor *features = ek_detach(ek_apply(net, ek_cat(colors, 3, 1)));
    /* The sum of the weights of three channels gives gray pictures what three channels gave. */
    ek_tensor *weight = ek_detach(ek_module_tensor(net, "conv1.weight"));
    assert_ok(ek_module_set_tensor(net, "conv1.weight", ek_sum(weight, .dim = 1, .keepdim = true)));
    assert_close_norm(ek_detach(ek_apply(net, gray)), features, 1e-12);
    assert_refused(ek_apply(net, ek_cat(colors, 3, 1)), EK_E_SHAPE, "conv1 (conv2d)");
    ek_module *fc = ek_linear(512, 10);
    assert_ok(ek_module_to_dtype(fc, EK_F64));
    assert_ok(ek_module_set(net, "fc", fc));
    ek_tensor *y = ek_apply(net, gray);
    assert_made(y);
    ck_assert_int_eq(ek_tensor_size(y, 1), 10);
    ek_optimizer *optimizer = ek_sgd(net, .lr = 0.1);
    assert_ok(ek_backward(ek_sum(ek_square(y))));
    assert_ok(ek_step(optimizer));
    ck_assert_int_eq(ek_optimizer_steps(optimizer, ek_module_tensor(net, "fc.weight")), 1);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

typedef struct walk {
    char paths[100][40];
    int count;
} walk;

static int list_child(const char *path, ek_module *module, void *user)
{
    walk *w = user;
    if (*path)
        snprintf(w->paths[w->count++], sizeof w->paths[0], "%s", path);
    return 0;
}

/* Every part in turn is another module. */
TEST_LOOP(parts_that_do_not_fit, 0, 2)
{
    static walk w;
    ek_module *net =
        _i ? ek_gpt2(5, .context = 3, .width = 4, .layers = 1, .heads = 2) : ek_resnet18(3);
    ek_tensor *x = _i ? ek_zeros(EK_SHAPE(2, 3), EK_I64) : ek_ones(EK_SHAPE(2, 3, 32, 32));
    int errors = 0;
    w.count = 0;
    assert_ok(ek_module_modules(net, list_child, &w));
    for (int i = 0; i < w.count; i++) {
        ek_module *copy = ek_module_copy(net);
        ek_scope scope = ek_scope_begin();
        assert_ok(ek_module_set(copy, w.paths[i], i % 2 ? ek_identity() : ek_linear(7, 2)));
        errors += !ek_apply(copy, x);
        ck_assert(ek_error_status() == 0 || *ek_error_message());
        ek_error_clear();
        ek_scope_end(&scope);
        ek_module_free(copy);
    }
    ck_assert_int_gt(errors, w.count / 2);
    ek_module_free(net);
}
