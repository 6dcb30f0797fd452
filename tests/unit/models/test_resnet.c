/* test_resnet.c: residual networks beside torchvision's (tests/golden/make_models.py): from the
 * same seed the same parameters, outputs and losses. */
#include "unit.h"

NAMES_DEVICES

static ek_module *make(int which)
{
    switch (which) {
    case 0:
        return ek_resnet18(10);
    case 1:
        return ek_resnet34(10);
    case 2:
        return ek_resnet50(10, .zero_init_residual = true);
    default:
        return ek_resnet50(10, .groups = 32, .width_per_group = 4);
    }
}

static const char *const nets[] = {"resnet18", "resnet34", "resnet50", "resnext50"};

static ek_tensor *golden_of(int which, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s", nets[which], what);
    return golden("models.golden", name);
}

/* ---- names and initial values ---- */

typedef struct listing {
    char text[1 << 15];
    size_t length;
    ek_tensor *sums;
    int count;
} listing;

static int list_tensor(const char *path, ek_tensor *tensor, void *user)
{
    listing *l = user;
    l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, "%s%s",
                                  l->length ? "\n" : "", path);
    for (int i = 0; i < ek_tensor_ndim(tensor); i++)
        l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, " %lld",
                                      (long long)ek_tensor_size(tensor, i));
    return 0;
}

static int check_sum(const char *path, ek_tensor *tensor, void *user)
{
    listing *l = user;
    double sum = 0, wanted = element(l->sums, l->count++);
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_item(ek_sum(ek_abs(ek_to_dtype(ek_detach(tensor), EK_F64))), &sum));
    ek_scope_end(&scope);
    ck_assert_msg(fabs(sum - wanted) <= 1e-9 * fabs(wanted), "%s: %.17g, not %.17g", path, sum,
                  wanted);
    return 0;
}

TEST_LOOP(names_and_initial_values, 0, 4)
{
    static listing l;
    l = (listing){.sums = golden_of(_i, "sums")};
    ek_manual_seed(7);
    ek_module *net = make(_i);
    assert_made(net);
    assert_ok(ek_module_parameters(net, list_tensor, &l));
    assert_ok(ek_module_buffers(net, list_tensor, &l));
    ek_tensor *names = golden_of(_i, "names");
    ck_assert_int_eq((int)l.length, (int)ek_tensor_count(names));
    ck_assert_mem_eq(l.text, ek_tensor_data(names), l.length);
    assert_ok(ek_module_parameters(net, check_sum, &l));
    ck_assert_int_eq(l.count, (int)ek_tensor_count(l.sums));
    ek_module_free(net);
}

/* ---- outputs ---- */

TEST_LOOP(outputs, 0, 4)
{
    ek_manual_seed(7);
    ek_module *net = make(_i);
    assert_made(net);
    ek_tensor *x = ek_randn(EK_SHAPE(1, 3, 32, 32), .dtype = EK_F64);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ek_module_train(net, false);
    assert_close_norm(ek_detach(ek_apply(net, x)), golden_of(_i, "y"), 1e-10);
    ek_module_free(net);
}

/* Without classes there is no `fc`, and the output is what it would take. */
TEST(features)
{
    ek_manual_seed(1);
    ek_module *net = ek_resnet18(.classes = 0, .channels = 1, .last_stride = 1);
    assert_made(net);
    ek_tensor *y = ek_apply(net, ek_randn(EK_SHAPE(1, 1, 32, 32)));
    assert_made(y);
    ck_assert_int_eq((int)ek_tensor_size(y, 1), 512);
    ck_assert_ptr_null(ek_module_tensor(net, "fc.weight"));
    assert_error(EK_E_INVALID, "fc.weight");
    ek_module_free(net);
}

TEST(options_that_make_no_sense_are_refused)
{
    ck_assert_ptr_null(ek_resnet50(-1));
    assert_error(EK_E_INVALID, "-1 classes");
    ck_assert_ptr_null(ek_resnet50(10, .last_stride = 3));
    assert_error(EK_E_INVALID, "last stride 3");
    ck_assert_ptr_null(ek_resnet50(10, .groups = INT64_MAX));
    assert_error(EK_E_INVALID, "9223372036854775807 groups");
    ck_assert_ptr_null(ek_resnet50(10, .width_per_group = INT64_MAX));
    assert_error(EK_E_INVALID, "groups of width 9223372036854775807");
}

/* ---- training ---- */

TEST(losses_of_twenty_steps)
{
    ek_tensor *losses = golden("models.golden", "losses");
    ek_manual_seed(8);
    ek_module *net = ek_resnet18(10);
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ek_optimizer *sgd = ek_sgd(net, .lr = 0.002, .momentum = 0.9);
    for (int step = 0; step < 20; step++) {
        double value = 0;
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = ek_randn(EK_SHAPE(8, 3, 32, 32), .dtype = EK_F64);
        ek_tensor *y = ek_randint(0, 10, EK_SHAPE(8));
        ek_zero_grad(sgd);
        ek_tensor *loss = ek_f_cross_entropy(ek_apply(net, x), y);
        assert_ok(ek_backward(loss));
        assert_ok(ek_step(sgd));
        assert_ok(ek_item(loss, &value));
        ek_scope_end(&scope);
        ck_assert_msg(fabs(value - element(losses, step)) <= 1e-10 * fabs(value),
                      "step %d: %.17g, not %.17g", step, value, element(losses, step));
    }
    ek_optimizer_free(sgd);
    ek_module_free(net);
}
