/* test_ops_moments.c: the 2-norm, variance and standard deviation beside the table: zeros,
 * NaN, large means, errors. */
#include "home.h"

/* Gradients of orders 1 to 3 of f(x), x given, each summed with weights; the last in `gradients`.
 */
static void differentiate(ek_tensor *y, ek_tensor *x, ek_tensor *gradients[3])
{
    for (int order = 0; order < 3; order++) {
        ek_tensor *sum = ek_sum(ek_square(ek_add_scalar(y, 0.5)));
        assert_made(sum);
        assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &gradients[order], .create_graph = true,
                          .allow_unused = true));
        assert_made(gradients[order]);
        y = gradients[order];
    }
}

TEST(norm_of_zeros_has_zero_gradients)
{
    const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};
    /* Sample 0 is zeros, sample 1 is not. */
    const double values[] = {0, 0, 0, 3, 4, 0};
    for (int i = 0; i < 3; i++) {
        ek_tensor *x = tensor_of(values, EK_SHAPE(2, 3), dtypes[i], test_home());
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_tensor *y = ek_norm(x, EK_DIMS(1));
        ck_assert_double_eq(element(y, 0), 0);
        ck_assert_double_eq(element(y, 1), 5);
        ek_tensor *gradients[3];
        differentiate(y, x, gradients);
        ck_assert_double_eq_tol(element(gradients[0], 3), 2 * 5.5 * 3 / 5, 0.05);
        for (int order = 0; order < 3; order++) {
            for (int k = 0; k < 3; k++)
                ck_assert_double_eq(element(gradients[order], k), 0);
            for (int k = 3; k < 6; k++)
                ck_assert(isfinite(element(gradients[order], k)));
        }
    }
}

TEST(penalty_on_a_vanishing_gradient)
{
    /* A critic that ignores its input: the penalty (norm - 1)^2 is 1 and moves nothing, as long as
     * no NaN appears. */
    ek_tensor *x = ek_ones(EK_SHAPE(4, 3), EK_F32, .requires_grad = true);
    ek_tensor *w = ek_zeros(EK_SHAPE(1, 3), EK_F32, .requires_grad = true);
    ek_tensor *score = ek_f_linear(x, w, NULL), *gradient, *ones = ek_ones(EK_SHAPE(4, 1));
    assert_ok(ek_grad(.outputs = &score, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .grad_outputs = &ones, .create_graph = true));
    ek_tensor *norms = ek_norm(gradient, EK_DIMS(1));
    ek_tensor *penalty = ek_mean(ek_square(ek_add_scalar(norms, -1)));
    ck_assert_double_eq(element(penalty, 0), 1);
    assert_ok(ek_backward(penalty));
    assert_close(ek_tensor_grad(w), ek_zeros(EK_SHAPE(1, 3)), 0, 0);
}

TEST(norm_lets_nan_through)
{
    const double values[] = {NAN, 1};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2), EK_F64, test_home());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_norm(x);
    ck_assert(isnan(element(y, 0)));
    assert_ok(ek_backward(y));
    ck_assert(isnan(element(ek_tensor_grad(x), 1)));
}

TEST(variance_of_a_large_mean)
{
    const int64_t count = 4096;
    ek_tensor *x = ek_mul_scalar(ek_arange(count, EK_F32, test_home()), 1.0 / 4096);
    double far, near;
    assert_ok(ek_item(ek_var(ek_add_scalar(x, 1e3)), &far));
    assert_ok(ek_item(ek_var(x), &near));
    ck_assert_double_eq_tol(near, 4097.0 / 12 / 4096, 1e-6);
    ck_assert_double_eq_tol(far, near, 1e-4);
}

TEST(variance_of_bf16)
{
    /* Neighbours in bf16: 100.25 between them is none, so that a mean in bf16 is one of the two. */
    ek_tensor *halves = ek_mul_scalar(ek_arange(2, EK_F32, test_home()), 0.5);
    ek_tensor *wide = ek_expand(ek_add_scalar(halves, 100), EK_SHAPE(8, 2));
    ek_tensor *x = ek_detach(ek_to_dtype(wide, EK_BF16)), *y = ek_var(x);
    assert_made(y);
    ck_assert_int_eq(ek_tensor_dtype(y), EK_BF16);
    ck_assert_double_eq_tol(element(y, 0), 1.0 / 15, 3e-4);
    ck_assert_double_eq_tol(element(ek_std(x), 0), 0.2582, 1e-3);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_backward(ek_var(x)));
    ck_assert_int_eq(ek_tensor_dtype(ek_tensor_grad(x)), EK_BF16);
    ck_assert_double_eq_tol(element(ek_tensor_grad(x), 0), -0.5 / 15, 2e-4);
    ck_assert_double_eq_tol(element(ek_tensor_grad(x), 1), 0.5 / 15, 2e-4);
}

TEST(constants_have_no_deviation)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3), EK_F64, .requires_grad = true);
    ek_tensor *y = ek_std(x, EK_DIMS(1));
    ck_assert_double_eq(element(y, 1), 0);
    assert_ok(ek_backward(ek_sum(y)));
    assert_close(ek_tensor_grad(x), ek_zeros(EK_SHAPE(2, 3), EK_F64), 0, 0);
    /* One value has none, nor have none. */
    ck_assert(isnan(element(ek_var(ek_ones(EK_SHAPE(1), EK_F64)), 0)));
    ck_assert(isnan(element(ek_std(ek_ones(EK_SHAPE(2, 1)), EK_DIMS(1)), 0)));
    ek_tensor *none = ek_zeros(EK_SHAPE(0, 3), .requires_grad = true);
    y = ek_var(none, EK_DIMS(0));
    ck_assert(isnan(element(y, 2)));
    ck_assert(isnan(element(ek_std(none), 0)));
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_int_eq(ek_tensor_count(ek_tensor_grad(none)), 0);
    /* No variance of none. */
    ck_assert_int_eq(ek_tensor_count(ek_var(none, EK_DIMS(1))), 0);
}

/* 3000^2 is no number of f16; in bf16 a sum of squares that is rounded before its root is off. */
TEST(norms_of_sixteen_bits_are_rounded_once)
{
    const double ps[] = {2, 3, 1, 0, 0.5};
    ek_tensor *large = ek_full(3000, EK_SHAPE(16), EK_F16);
    ck_assert_double_eq(element(ek_norm(large), 0), 12000);
    for (int i = 0; i < 10; i++) {
        const ek_dtype dtype = i % 2 ? EK_F16 : EK_BF16;
        ek_manual_seed(1);
        ek_tensor *x = ek_to_dtype(ek_randn(EK_SHAPE(40, 7)), dtype);
        ek_tensor *y = ek_norm(x, EK_DIMS(1), .p = ps[i / 2]);
        ek_tensor *wide = ek_norm(ek_to_dtype(x, EK_F32), EK_DIMS(1), .p = ps[i / 2]);
        ck_assert_int_eq(ek_tensor_dtype(y), dtype);
        assert_close(y, ek_to_dtype(wide, dtype), 0, 0);
    }
}

/* As in PyTorch: 0 as soon as an element is 0, with gradients of 0. */
TEST(norms_of_negative_p)
{
    const double values[] = {0, 1, 0, 0, 2, 3}, wanted[] = {0, 0, 0, 0, 0.36, 0.16};
    ek_tensor *x = tensor_of(values, EK_SHAPE(3, 2), EK_F64, test_home());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_norm(x, EK_DIMS(1), .p = -1);
    const double norms[] = {0, 0, 1.2};
    assert_close(y, tensor_of(norms, EK_SHAPE(3), EK_F64, test_home()), 1e-15, 0);
    assert_ok(ek_backward(ek_sum(y)));
    assert_close(ek_tensor_grad(x), tensor_of(wanted, EK_SHAPE(3, 2), EK_F64, test_home()), 1e-15,
                 0);
    ck_assert_double_eq(element(ek_norm(ek_zeros(EK_SHAPE(0)), .p = -1), 0), 0);
}

TEST(refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *whole = ek_ones(EK_SHAPE(2), EK_I64);
    assert_refused(ek_norm(NULL), EK_E_INVALID, "norm: x is NULL");
    assert_refused(ek_var(whole), EK_E_DTYPE, "var: x has dtype i64");
    assert_refused(ek_std(x, EK_DIMS(2)), EK_E_SHAPE, "std: dimension 2 is not in [-2, 1]");
    assert_refused(ek_norm(x, EK_DIMS(1, -1)), EK_E_INVALID, "norm: dimension 1 is named twice");
    assert_refused(ek_norm(ek_zeros(EK_SHAPE(0)), .p = (double)INFINITY), EK_E_SHAPE,
                   "norm: a dimension that is reduced has no elements");
}
