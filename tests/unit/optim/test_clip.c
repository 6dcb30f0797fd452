/* Gradient clipping against PyTorch's, over devices and dtypes. */
#include "unit.h"

enum { COUNT = 3 };

static ek_tensor *part(int i, const char *what)
{
    char name[32];
    snprintf(name, sizeof name, "clip/%d/%s", i, what);
    return golden("optim.golden", name);
}

/* Leaves with the golden gradients. */
static ek_optimizer *make(ek_tensor **leaves, ek_device *devices)
{
    ek_optimizer *optimizer = ek_sgd();
    for (int i = 0; i < COUNT; i++) {
        ek_tensor *gradient = ek_to_device(ek_clone(part(i, "gradient")), devices[i]);
        leaves[i] = ek_zeros(ek_tensor_shape(gradient), .dtype = EK_F64, .device = devices[i],
                             .requires_grad = true);
        assert_ok(ek_tensor_set_grad(leaves[i], gradient));
    }
    assert_ok(ek_optimizer_add_group(optimizer, leaves, COUNT));
    return optimizer;
}

static void assert_gradients(ek_tensor **leaves, const char *what)
{
    for (int i = 0; i < COUNT; i++)
        assert_close(ek_to_device(ek_tensor_grad(leaves[i]), ek_cpu()), part(i, what), 1e-14,
                     1e-14);
}

TEST(norm_follows_pytorch)
{
    assert_ok(test_devices_configure("2"));
    ek_device devices[COUNT] = {test_device(0), ek_cpu(), test_device(1)};
    ek_tensor *leaves[COUNT];
    ek_optimizer *optimizer = make(leaves, devices);
    uint64_t version = ek_tensor_version(ek_tensor_grad(leaves[1]));
    double norm = 0;
    assert_ok(ek_clip_grad_norm(optimizer, 150, &norm));
    assert_gradients(leaves, "gradient");
    ck_assert_uint_eq(ek_tensor_version(ek_tensor_grad(leaves[1])), version);
    assert_ok(ek_clip_grad_norm(optimizer, 1.5, NULL));
    assert_gradients(leaves, "norm");
    ck_assert_double_eq_tol(norm, element(golden("optim.golden", "clip/norm"), 0), 1e-12);
    ck_assert_uint_gt(ek_tensor_version(ek_tensor_grad(leaves[1])), version);
    ek_optimizer_free(optimizer);
}

/* Gradients with gaps in memory, and of two dtypes, which are scaled where they lie. */
TEST(gradients_with_gaps)
{
    ek_tensor *wide = ek_full(3, EK_SHAPE(4, 6), .device = test_home());
    ek_tensor *leaves[] = {ek_ones(EK_SHAPE(4, 2), .device = test_home()),
                           ek_ones(EK_SHAPE(2, 4), EK_F64, .device = test_home()),
                           ek_ones(EK_SHAPE(3), .device = test_home())};
    ek_tensor *gradients[] = {
        ek_narrow(wide, 1, 1, 2),
        ek_transpose(ek_full(2, EK_SHAPE(4, 2), EK_F64, .device = test_home()), 0, 1),
        ek_expand(ek_full(1, EK_SHAPE(1), .device = test_home()), EK_SHAPE(3))};
    double norm = 0;
    for (int i = 0; i < 3; i++) {
        assert_ok(ek_tensor_set_requires_grad(leaves[i], true));
        assert_ok(ek_tensor_set_grad(leaves[i], gradients[i]));
    }
    assert_ok(ek_clip_grad_norm(.max_norm = 1, .norm = &norm, .tensors = leaves, .count = 3));
    ck_assert_double_eq_tol(norm, sqrt(8 * 9 + 8 * 4 + 3), 1e-6);
    for (int i = 0; i < 24; i++)
        ck_assert_double_eq_tol(element(wide, i), i % 6 == 1 || i % 6 == 2 ? 3 / norm : 3, 1e-6);
    for (int i = 0; i < 8; i++)
        ck_assert_double_eq_tol(element(gradients[1], i), 2 / norm, 1e-6);
    ck_assert_double_eq_tol(element(gradients[2], 2), 1 / norm, 1e-6);
}

TEST(tensors_that_are_listed_twice_count_once)
{
    ek_tensor *leaf = ek_zeros(EK_SHAPE(4), .device = test_home(), .requires_grad = true);
    double norm = 0;
    assert_ok(ek_tensor_set_grad(leaf, ek_full(2, EK_SHAPE(4), .device = test_home())));
    assert_ok(ek_clip_grad_norm(.max_norm = 1, .norm = &norm,
                                .tensors = (ek_tensor *[]){leaf, leaf}, .count = 2));
    ck_assert_double_eq(norm, 4);
    ck_assert_double_eq_tol(element(ek_tensor_grad(leaf), 3), 0.5, 1e-6);
}

TEST(value_follows_pytorch)
{
    ek_device devices[COUNT] = {ek_cpu(), ek_cpu(), ek_cpu()};
    ek_tensor *leaves[COUNT];
    ek_optimizer *optimizer = make(leaves, devices);
    assert_ok(ek_clip_grad_value(optimizer, 0.4));
    assert_gradients(leaves, "value");
    ek_optimizer_free(optimizer);
}

/* Other norms, of the optimizer's parameters, a list, or a module's. */
TEST_LOOP(other_norms_follow_pytorch, 0, 6)
{
    static const char *const names[] = {"one", "three", "most"};
    static const double types[] = {1, 3, INFINITY}, limits[] = {1.5, 1.5, 0.7};
    const int kind = _i % 3;
    assert_ok(test_devices_configure("2"));
    ek_device devices[COUNT] = {test_device(0), ek_cpu(), test_device(1)};
    ek_tensor *leaves[COUNT];
    ek_optimizer *optimizer = make(leaves, devices);
    double norm = 0;
    if (_i < 3)
        assert_ok(ek_clip_grad_norm(optimizer, limits[kind], &norm, .norm_type = types[kind]));
    else
        assert_ok(ek_clip_grad_norm(.max_norm = limits[kind], .norm = &norm,
                                    .norm_type = types[kind], .tensors = leaves, .count = COUNT));
    char path[32];
    snprintf(path, sizeof path, "clip/%s", names[kind]);
    ck_assert_double_eq_tol(norm, element(golden("optim.golden", path), 0), 1e-12);
    assert_gradients(leaves, names[kind]);
    /* A NaN is the largest. */
    ek_fill_(ek_narrow(ek_tensor_grad(leaves[1]), 0, 1, 1), NAN);
    assert_ok(ek_clip_grad_norm(optimizer, 1, &norm, .norm_type = types[kind]));
    ck_assert(isnan(norm));
    ek_optimizer_free(optimizer);
}

TEST(lists_and_modules_are_clipped)
{
    ek_device devices[COUNT] = {ek_cpu(), ek_cpu(), ek_cpu()};
    ek_tensor *leaves[COUNT];
    ek_optimizer *optimizer = make(leaves, devices);
    assert_ok(ek_clip_grad_value_of(leaves, COUNT, 0.4));
    assert_gradients(leaves, "value");
    assert_ok(ek_clip_grad_value_of(NULL, 0, 0.4));
    ek_module *module = ek_linear(3, 2);
    ek_tensor *weight = ek_module_tensor(module, "weight");
    assert_ok(ek_tensor_set_grad(weight, ek_full(2, ek_tensor_shape(weight))));
    double norm = 0;
    assert_ok(ek_clip_grad_norm(.module = module, .max_norm = 3, .norm = &norm, .norm_type = 1));
    ck_assert_double_eq(norm, 12);
    ck_assert_double_eq_tol(element(ek_tensor_grad(weight), 5), 0.5, 1e-6);
    assert_refused(ek_clip_grad_norm(optimizer, 1, .module = module), EK_E_INVALID, "not several");
    assert_refused(ek_clip_grad_norm(optimizer, 1, .norm_type = -1), EK_E_INVALID,
                   "norm_type has to be more than 0, not -1");
    assert_refused(ek_clip_grad_norm(optimizer, 1, .norm_type = 0), EK_E_INVALID, "not 0");
    assert_refused(ek_clip_grad_value_of(leaves, -1, 1), EK_E_INVALID, "-1 tensors");
    ek_tensor *none[] = {NULL};
    assert_refused(ek_clip_grad_value_of(none, 1, 1), EK_E_INVALID, "tensor 0 is NULL");
    ek_module_free(module);
    ek_optimizer_free(optimizer);
}

/* 0 times infinity is NaN, 0 times the rest is 0; with a NaN all are. */
TEST_LOOP(what_is_not_finite_is_scaled_as_pytorch_does, 0, 3)
{
    static const double worst[] = {INFINITY, -INFINITY, NAN};
    static const char *const names[] = {"inf", "minus_inf", "nan"};
    ek_device devices[COUNT] = {ek_cpu(), ek_cpu(), ek_cpu()};
    ek_tensor *leaves[COUNT];
    ek_optimizer *optimizer = make(leaves, devices);
    double norm = 0;
    ek_fill_(ek_narrow(ek_tensor_grad(leaves[1]), 0, 1, 1), worst[_i]);
    assert_ok(ek_clip_grad_norm(optimizer, 1.5, &norm));
    ck_assert(_i == 2 ? isnan(norm) : isinf(norm));
    for (int i = 0; i < COUNT; i++) {
        ek_tensor *gradient = ek_tensor_grad(leaves[i]), *wanted = part(i, names[_i]);
        ck_assert_int_eq(ek_tensor_count(gradient), ek_tensor_count(wanted));
        for (int64_t k = 0; k < ek_tensor_count(wanted); k++) {
            double x = element(gradient, k), y = element(wanted, k);
            ck_assert(x == y || (isnan(x) && isnan(y)));
        }
    }
    ek_optimizer_free(optimizer);
}

TEST(norm_must_be_finite)
{
    ek_device devices[COUNT] = {ek_cpu(), ek_cpu(), ek_cpu()};
    ek_tensor *leaves[COUNT];
    ek_optimizer *optimizer = make(leaves, devices);
    ek_tensor_set_grad(leaves[1], ek_full(NAN, ek_tensor_shape(leaves[1]), .dtype = EK_F64));
    double norm = 0;
    assert_refused(ek_clip_grad_norm(optimizer, 1, &norm, .error_if_nonfinite = true), EK_E_INVALID,
                   "nan");
    ck_assert(isnan(norm));
    assert_close(ek_tensor_grad(leaves[0]), part(0, "gradient"), 0, 0);

    /* Without any gradient the norm is 0. */
    ek_zero_grad(optimizer);
    assert_ok(ek_clip_grad_norm(optimizer, 1, &norm));
    ck_assert_double_eq(norm, 0);
    assert_refused(ek_clip_grad_norm(optimizer, -1, NULL), EK_E_INVALID, "max_norm");
    assert_refused(ek_clip_grad_value(optimizer, NAN), EK_E_INVALID, "max_value");
    assert_refused(ek_clip_grad_value(NULL, 1), EK_E_INVALID, "NULL");
    ek_optimizer_free(optimizer);
}
