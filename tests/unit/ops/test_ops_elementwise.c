/* Mathematical functions, activations, reductions and cumulative operations, a row each (table.h);
 * comparisons and logic against PyTorch's; what is refused. */
#include "table.h"

FIXTURE(two_devices, NULL)

FROM(.file = "elementwise.golden", .inputs = {"x0", "x1", "x2"}, .dy = "g", .tolerance = 2e-6)

enum { PLAIN = BF16 | INTEGERS, AT_KINK = KINKED | BF16 };

/* ---- functions ---- */

ROW(sin, BF16 | THIRD(0) | EMPTY, ek_sin(x[0]))
ROW(cos, BF16, ek_cos(x[0]))
ROW(tan, BF16 | THIRD(0), ek_tan(x[0]))
ROW(asin, BF16, ek_asin(x[0]))
ROW(acos, BF16 | THIRD(0), ek_acos(x[0]))
ROW(atan, BF16, ek_atan(x[0]))
ROW(sinh, BF16, ek_sinh(x[0]))
ROW(cosh, BF16, ek_cosh(x[0]))
ROW(asinh, BF16, ek_asinh(x[0]))
ROW(acosh, BF16, ek_acosh(x[0]))
ROW(atanh, BF16, ek_atanh(x[0]))
ROW(erf, BF16 | THIRD(0), ek_erf(x[0]))
ROW(erfc, BF16, ek_erfc(x[0]))
ROW(log1p, BF16, ek_log1p(x[0]))
ROW(expm1, BF16, ek_expm1(x[0]))
ROW(log2, BF16, ek_log2(x[0]))
ROW(log10, BF16, ek_log10(x[0]))
ROW(exp2, BF16, ek_exp2(x[0]))
ROW(rsqrt, BF16 | THIRD(0), ek_rsqrt(x[0]))
ROW(floor, PLAIN, ek_floor(x[0]))
ROW(ceil, PLAIN, ek_ceil(x[0]))
ROW(round, PLAIN, ek_round(x[0]))
ROW(round_halves, AT_KINK, ek_round(x[0]))
ROW(trunc, PLAIN, ek_trunc(x[0]))
ROW(frac, BF16, ek_frac(x[0]))
ROW(sub_scalar, BF16, ek_sub_scalar(x[0], 1.5))
ROW(rsub_scalar, BF16, ek_rsub_scalar(x[0], 1.5))
ROW(fmod_scalar, PLAIN, ek_fmod_scalar(x[0], -2))
ROW(remainder_scalar, PLAIN, ek_remainder_scalar(x[0], -2))
ROW(div_scalar, BF16, ek_div_scalar(x[0], 3))
ROW(pow, BF16 | THIRD(0), ek_pow(x[0], x[1]))
ROW(pow_edges, AT_KINK, ek_pow(x[0], x[1]))
ROW(atan2, BF16 | THIRD(0), ek_atan2(x[0], x[1]))
ROW(fmod, PLAIN, ek_fmod(x[0], x[1]))
ROW(remainder, PLAIN, ek_remainder(x[0], x[1]))
ROW(lerp, BF16, ek_lerp(x[0], x[1], x[2]))
ROW(lerp_scalar, BF16, ek_lerp_scalar(x[0], x[1], 0.3))
ROW(lerp_far, BF16, ek_lerp_scalar(x[0], x[1], 0.8))
ROW(addcmul, BF16, ek_addcmul(x[0], x[1], x[2], -0.5))
ROW(addcdiv, BF16, ek_addcdiv(x[0], x[1], x[2], 2))
ROW(clamp_tensors, BF16, ek_clamp_tensors(x[0], x[1], x[2]))
ROW(clamp_crossed, AT_KINK | INTEGERS, ek_clamp_tensors(x[0], x[1], x[2]))
ROW(clamp_low, AT_KINK | INTEGERS, ek_clamp_tensors(x[0], x[1], NULL))
ROW(clamp_high, AT_KINK | INTEGERS, ek_clamp_tensors(x[0], NULL, x[1]))
ROW(nan_to_num, AT_KINK, ek_nan_to_num(x[0], .nan = 2, .posinf = 4, .neginf = -3))

#define TWICE ek_mul_scalar(x[0], 2)
ROW(sub_, BF16, ek_sub_(TWICE, x[1]))
ROW(div_, BF16, ek_div_(TWICE, x[1]))
ROW(clamp_, BF16, ek_clamp_(TWICE, -1.5, 1.7))
ROW(lerp_, BF16, ek_lerp_(TWICE, x[1], 0.1))
ROW(addcmul_, BF16, ek_addcmul_(TWICE, x[1], x[2], 0.5))

/* ---- activations ---- */

/* Away from kinks, and at them; and far out, if that may go wrong. */
#define ACTIVATION(name, flags, ...)         \
    ROW(name, BF16 | (flags), (__VA_ARGS__)) \
    ROW(name##_kinks, AT_KINK, (__VA_ARGS__))
#define STEEP_ACTIVATION(name, flags, ...) \
    ACTIVATION(name, flags, __VA_ARGS__)   \
    ROW(name##_steep, AT_KINK, (__VA_ARGS__))
STEEP_ACTIVATION(silu, THIRD(0) | EMPTY, ek_f_silu(x[0]))
STEEP_ACTIVATION(mish, THIRD(0), ek_f_mish(x[0]))
STEEP_ACTIVATION(elu, THIRD(0), ek_f_elu(x[0], 0.7))
STEEP_ACTIVATION(celu, 0, ek_f_celu(x[0], 1.5))
STEEP_ACTIVATION(selu, 0, ek_f_selu(x[0]))
STEEP_ACTIVATION(hardswish, 0, ek_f_hardswish(x[0]))
STEEP_ACTIVATION(softsign, 0, ek_f_softsign(x[0]))
STEEP_ACTIVATION(log_sigmoid, THIRD(0), ek_f_log_sigmoid(x[0]))
STEEP_ACTIVATION(softplus_beta, THIRD(0), ek_f_softplus(x[0], .beta = 2, .threshold = 6))
ACTIVATION(relu6, 0, ek_f_relu6(x[0]))
ACTIVATION(hardtanh, 0, ek_f_hardtanh(x[0], -1, 3))
ACTIVATION(hardsigmoid, 0, ek_f_hardsigmoid(x[0]))
ACTIVATION(hardshrink, 0, ek_f_hardshrink(x[0], 0.5))
ACTIVATION(softshrink, 0, ek_f_softshrink(x[0], 0.5))
ACTIVATION(tanhshrink, 0, ek_f_tanhshrink(x[0]))
ACTIVATION(threshold, 0, ek_f_threshold(x[0], 1, -2))
ROW(prelu, BF16, ek_f_prelu(x[0], x[1]))
ROW(prelu_one, BF16, ek_f_prelu(x[0], x[1]))
ROW(prelu_at_0, AT_KINK, ek_f_prelu(x[0], x[1]))
ROW(glu, BF16, ek_f_glu(x[0], 1))
ROW(softmin, BF16, ek_f_softmin(x[0], 1))

/* ---- reductions ---- */

ROW(max, PLAIN, ek_max(x[0]))
ROW(min, PLAIN, ek_min(x[0]))
ROW(max_ties, AT_KINK | INTEGERS, ek_max(x[0]))
ROW(min_ties, AT_KINK | INTEGERS, ek_min(x[0]))
ROW(amax, PLAIN, ek_amax(x[0], EK_DIMS(0, 2)))
ROW(amin, PLAIN, ek_amin(x[0], EK_DIMS(1), .keepdim = true))
ROW(amax_ties, AT_KINK, ek_amax(x[0], EK_DIMS(1)))
ROW(amin_ties, AT_KINK, ek_amin(x[0], EK_DIMS(0)))
ROW(prod, PLAIN | THIRD(0), ek_prod(x[0]))
ROW(prod_dim, PLAIN, ek_prod(x[0], EK_DIMS(1)))
ROW(prod_keepdim, PLAIN, ek_prod(x[0], EK_DIMS(-1), .keepdim = true))
ROW(prod_zeros, BF16 | THIRD(0), ek_prod(x[0], EK_DIMS(1)))
ROW(prod_of_all_zeros, BF16, ek_prod(x[0]))
ROW(prod_one_zero, BF16, ek_prod(x[0]))
ROW(cumsum, PLAIN, ek_cumsum(x[0], 0))
ROW(cumsum_last, PLAIN, ek_cumsum(x[0], -1))
ROW(cumprod, PLAIN | THIRD(0), ek_cumprod(x[0], 0))
ROW(cumprod_last, PLAIN, ek_cumprod(x[0], -1))
ROW(cumprod_zeros, BF16 | THIRD(0), ek_cumprod(x[0], 1))
ROW(var_biased, BF16, ek_var(x[0], EK_DIMS(1), .correction = 0))
ROW(std_biased, BF16, ek_std(x[0], .correction = 0))
ROW(var_2, BF16, ek_var(x[0], .correction = 2, .keepdim = true))
ROW(nansum, AT_KINK, ek_nansum(x[0], EK_DIMS(1)))
#define NORM(name, number)                                           \
    ROW(norm_##name, BF16, ek_norm(x[0], EK_DIMS(1), .p = (number))) \
    ROW(norm_at_0_##name, AT_KINK, ek_norm(x[0], EK_DIMS(1), .p = (number)))
ROW(norm_0, BF16, ek_norm(x[0], EK_DIMS(1), .p = 0))
ROW(norm_minus_inf, BF16, ek_norm(x[0], EK_DIMS(1), .p = -(double)INFINITY))
NORM(1, 1)
NORM(half, 0.5)
NORM(one_and_half, 1.5)
NORM(3, 3)
NORM(inf, (double)INFINITY)

FROM(.shapes = {{EK_SHAPE(2, 3, 2)}})
ROW(prod_two_dims, 0, ek_prod(x[0], EK_DIMS(0, 2)))
ROW(cumsum_of_squares, 0, ek_square(ek_cumsum(ek_square(x[0]), 1)))
ROW(cumprod_of_squares, 0, ek_square(ek_cumprod(ek_square(x[0]), -1)))
ROW(prelu_gradient, 0, ek_f_prelu(x[0], ek_amax(x[0], EK_DIMS(0, 2))))

static ek_tensor *var_and_mean(ek_tensor *x)
{
    ek_tensor *mean, *var = ek_var_mean(&mean, x, EK_DIMS(1), .keepdim = true);
    return var ? ek_mul(var, mean) : NULL;
}
ROW(var_mean, 0, var_and_mean(x[0]))

/* ---- comparisons and logic, which carry no gradient ---- */

#define RESULT(name, ...)                                \
    static ek_tensor *name##_result(ek_tensor *const *x) \
    {                                                    \
        return __VA_ARGS__;                              \
    }                                                    \
    TEST(name##_is_pytorchs)                             \
    {                                                    \
        check_result(#name, name##_result);              \
    }

static void check_result(const char *name, ek_tensor *(*function)(ek_tensor *const *x))
{
    static const ek_dtype dtypes[] = {EK_F64, EK_F32, EK_BF16};
    char key[64];
    snprintf(key, sizeof key, "%s/y", name);
    ek_tensor *wanted = golden("elementwise.golden", key);
    for (int i = 0; i < 3; i++) {
        ek_tensor *x[2] = {NULL};
        for (int k = 0; k < 2; k++) {
            snprintf(key, sizeof key, "%s/x%d", name, k);
            if (golden_has("elementwise.golden", key))
                x[k] = ek_to_dtype(ek_to_device(golden("elementwise.golden", key), test_device(0)),
                                   dtypes[i]);
        }
        ek_tensor *y = function(x);
        assert_made(y);
        if (ek_tensor_dtype(wanted) != EK_I64)
            ck_assert_int_eq(ek_tensor_dtype(y), ek_tensor_dtype(ek_eq(x[0], x[0])));
        assert_close(ek_to_dtype(y, EK_F64), ek_to_dtype(wanted, EK_F64), 0, 0);
    }
}

RESULT(eq_scalar, ek_eq_scalar(x[0], 0.5))
RESULT(ne_scalar, ek_ne_scalar(x[0], 0.5))
RESULT(lt_scalar, ek_lt_scalar(x[0], 0.5))
RESULT(le_scalar, ek_le_scalar(x[0], 0.5))
RESULT(gt_scalar, ek_gt_scalar(x[0], 0.5))
RESULT(ge_scalar, ek_ge_scalar(x[0], 0.5))
RESULT(logical_not, ek_logical_not(x[0]))
RESULT(logical_and, ek_logical_and(x[0], x[1]))
RESULT(logical_or, ek_logical_or(x[0], x[1]))
RESULT(logical_xor, ek_logical_xor(x[0], x[1]))
RESULT(isnan, ek_isnan(x[0]))
RESULT(isinf, ek_isinf(x[0]))
RESULT(isfinite, ek_isfinite(x[0]))
RESULT(any, ek_any(x[0]))
RESULT(all, ek_all(x[0]))
RESULT(any_dim, ek_any(x[0], EK_DIMS(1)))
RESULT(all_dim, ek_all(x[0], EK_DIMS(0), .keepdim = true))
RESULT(argmin, ek_argmin(x[0], 1, false))
RESULT(argmin_nan, ek_argmin(x[0], 0, true))

/* ---- what golden files don't say ---- */

static double number(ek_tensor *x)
{
    double value;
    assert_ok(ek_item(x, &value));
    return value;
}

TEST(truths_of_integers_and_of_nothing)
{
    ek_tensor *x =
        ek_to_device(ek_from_data(((const int64_t[]){0, 7}), EK_SHAPE(2), EK_I64), test_device(0));
    ek_tensor *none = ek_zeros(EK_SHAPE(0, 2), .device = test_device(0));
    ck_assert(number(ek_any(x)) == 1 && number(ek_all(x)) == 0);
    ck_assert(number(ek_any(ek_isnan(x))) == 0 && number(ek_any(ek_isinf(x))) == 0);
    ck_assert(number(ek_all(ek_isfinite(x))) == 1);
    ck_assert(number(ek_any(none)) == 0 && number(ek_all(none)) == 1);
    assert_close(ek_all(none, EK_DIMS(0)), ek_all(ek_ones(EK_SHAPE(1, 2)), EK_DIMS(0)), 0, 0);
    ck_assert(number(ek_prod(none)) == 1 && number(ek_norm(none, .p = 3)) == 0);
    ck_assert_int_eq(ek_tensor_count(ek_cumsum(none, 0)), 0);
    ck_assert_int_eq(ek_tensor_dtype(ek_cumsum(x, 0)), EK_I64);
    ck_assert(number(ek_cumsum(ek_max(x), 0)) == 7);
    assert_close(ek_nan_to_num(x), x, 0, 0);
}

TEST(extremes_with_nan_are_nan)
{
    const double values[] = {1, NAN, 3, NAN};
    ek_tensor *x = tensor_of(values, EK_SHAPE(4), EK_F64, test_device(0)), *dx;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ck_assert(isnan(number(ek_max(x))) && isnan(number(ek_amin(x))));
    /* The gradient goes to what is NaN. */
    ek_tensor *y = ek_min(x);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx));
    const double shares[] = {0, 0.5, 0, 0.5};
    assert_close(dx, tensor_of(shares, EK_SHAPE(4), EK_F64, test_home()), 0, 0);
}

TEST(largest_numbers_stand_in_for_infinities)
{
    const double values[] = {INFINITY, -INFINITY, NAN};
    for (ek_dtype dtype = EK_F32; dtype <= EK_BF16; dtype++) {
        ek_tensor *x = tensor_of(values, EK_SHAPE(3), dtype, test_device(0));
        ek_tensor *y = ek_nan_to_num(x);
        ck_assert(number(ek_all(ek_isfinite(y))) == 1);
        ck_assert(isinf(number(ek_max(ek_mul_scalar(y, 1.01)))));
        ck_assert(number(ek_select(ek_nan_to_num(x, .posinf = 0), 0, 0)) == 0);
    }
}

/* A line longer than a block of threads, in both directions of a gradient. */
TEST(long_lines_are_scanned)
{
    enum { LONG = 3000 };
    ek_tensor *x = ek_empty(EK_SHAPE(2, LONG), .device = test_device(0));
    assert_ok(ek_uniform_(x, 0.999, 1.001, NULL));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *sums = ek_cumsum(x, 1), *products = ek_cumprod(ek_to_dtype(x, EK_F64), 1), *dx;
    for (int64_t i = 1; i <= LONG; i += 1499) {
        ek_tensor *part = ek_to_dtype(ek_narrow(x, 1, 0, i), EK_F64);
        assert_close(ek_select(sums, 1, (int)i - 1), ek_to_dtype(ek_sum(part, EK_DIMS(1)), EK_F32),
                     1e-6, 0);
        assert_close(ek_select(products, 1, (int)i - 1), ek_prod(part, EK_DIMS(1)), 1e-12, 0);
    }
    assert_ok(ek_grad(.outputs = &sums, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx,
                      .grad_outputs = (ek_tensor *const[]){
                          ek_ones(EK_SHAPE(2, LONG), .device = test_device(0))}));
    ck_assert(number(ek_max(dx)) == LONG && number(ek_min(dx)) == 1);
}

static bool equal_or_both_nan(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* A product of factors that the line never forms may be 0 * inf. The third line has a zero after
 * its infinity: the gradient of the elements before both is infinite. */
TEST_LOOP(long_products_with_zeros_and_infinities_are_the_hosts, 0, 3)
{
    enum { LONG = 3000 };
    const bool overflows = _i == 1;
    double values[LONG];
    ek_tensor *products[2], *gradients[2];
    for (int i = 0; i < LONG; i++)
        values[i] = overflows ? (i == 0 ? 0 : 2) : (i == 100 ? INFINITY : 0.5);
    if (_i == 2)
        values[200] = 0;
    for (int d = 0; d < 2; d++) {
        ek_device device = d ? ek_cpu() : test_device(0);
        ek_tensor *x = tensor_of(values, EK_SHAPE(LONG), EK_F32, device);
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_tensor *y = ek_cumprod(x, 0), *ones = ek_to_device(ek_ones(EK_SHAPE(LONG)), device);
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &gradients[d], .grad_outputs = &ones));
        products[d] = ek_to_device(y, ek_cpu());
        gradients[d] = ek_to_device(gradients[d], ek_cpu());
    }
    for (int i = 0; i < LONG; i++) {
        const double product = element(products[0], i), slope = element(gradients[0], i);
        ck_assert_msg(equal_or_both_nan(product, element(products[1], i)), "product %d: %g, %g", i,
                      product, element(products[1], i));
        ck_assert_msg(equal_or_both_nan(slope, element(gradients[1], i)), "gradient %d: %g, %g", i,
                      slope, element(gradients[1], i));
    }
}

/* Signs, zeros and infinities, in both types. */
TEST(powers_and_angles_are_those_of_the_c_library)
{
    static const double numbers[] = {0,   -0.0, 1, -1,       2,         -2,  0.5,  -0.5,
                                     3.5, -3,   4, INFINITY, -INFINITY, NAN, 1e30, -1e-30};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    for (ek_dtype dtype = EK_F32; dtype <= EK_F64; dtype++) {
        ek_tensor *x = tensor_of(numbers, EK_SHAPE(COUNT, 1), dtype, test_device(0));
        ek_tensor *y = ek_reshape(x, EK_SHAPE(1, COUNT));
        ek_tensor *power = ek_pow(x, y), *angle = ek_atan2(x, y);
        for (int i = 0; i < COUNT * COUNT; i++) {
            double a = numbers[i / COUNT], b = numbers[i % COUNT];
            a = dtype == EK_F32 ? (float)a : a;
            b = dtype == EK_F32 ? (float)b : b;
            double wanted[] = {pow(a, b), atan2(a, b)};
            for (int k = 0; k < 2; k++) {
                double found = element(k ? angle : power, i);
                double rounded = dtype == EK_F32 ? (float)wanted[k] : wanted[k];
                if (isnan(rounded))
                    ck_assert(isnan(found));
                else if (rounded == 0 || isinf(rounded))
                    ck_assert(found == rounded && signbit(found) == signbit(rounded));
                else
                    ck_assert_double_eq_tol(found / rounded, 1, dtype == EK_F32 ? 2e-7 : 1e-14);
            }
        }
    }
}

/* What a thread takes must not matter, far angles among near ones included. */
TEST(far_angles_are_those_of_the_c_library)
{
    const double values[] = {1e9, 2e9, -1e20, 3e38, 0.5, -7, 1073741888.0, INFINITY};
    ek_tensor *x = tensor_of(values, EK_SHAPE(8), EK_F32, test_device(0));
    ek_tensor *y[] = {ek_sin(x), ek_cos(x), ek_tan(x)};
    for (int i = 0; i < 8; i++) {
        double angle = (float)values[i];
        double wanted[] = {sin(angle), cos(angle), tan(angle)};
        for (int k = 0; k < 3; k++)
            if (isinf(angle))
                ck_assert(isnan(element(y[k], i)));
            else
                ck_assert_double_eq_tol(element(y[k], i), wanted[k],
                                        3e-7 * fmax(1, fabs(wanted[k])));
    }
}

TEST(elementwise_refusals)
{
    ek_tensor *mean = NULL;
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *whole = ek_ones(EK_SHAPE(2), EK_I64);
    assert_refused(ek_sin(whole), EK_E_DTYPE, "sin:");
    assert_refused(ek_pow(whole, whole), EK_E_DTYPE, "pow:");
    assert_refused(ek_div_(whole, whole), EK_E_DTYPE, "div_:");
    assert_refused(ek_lerp_(whole, whole, 0.5), EK_E_DTYPE, "lerp_:");
    assert_refused(ek_eq_scalar(whole, 0.5), EK_E_DTYPE, "eq_scalar:");
    assert_refused(ek_clamp_(whole, 0.5, 2), EK_E_DTYPE, "clamp_: low");
    assert_refused(ek_clamp_tensors(x, NULL, NULL), EK_E_INVALID, "both NULL");
    assert_refused(ek_f_glu(x, 1), EK_E_SHAPE, "even number");
    assert_refused(ek_f_celu(x, 0), EK_E_INVALID, "alpha is 0");
    assert_refused(ek_f_softshrink(x, -1), EK_E_INVALID, "lambda is -1");
    assert_refused(ek_f_prelu(x, ek_ones(EK_SHAPE(2))), EK_E_SHAPE, "as many as channels: 3");
    assert_refused(ek_max(ek_zeros(EK_SHAPE(0))), EK_E_SHAPE, "no elements");
    assert_refused(ek_amin(ek_zeros(EK_SHAPE(2, 0)), EK_DIMS(1)), EK_E_SHAPE, "no elements");
    assert_refused(ek_norm(x, .p = (double)NAN), EK_E_INVALID, "p is not a number");
    assert_made(ek_var_mean(&mean, x, .correction = 0));
    assert_made(mean);
    assert_made(ek_sum(ek_norm(x, EK_DIMS(1), .p = 3)));
    assert_refused(ek_cumsum(x, 2), EK_E_SHAPE, "cumsum: dimension 2");
    assert_refused(ek_isnan(NULL), EK_E_INVALID, "isnan: x is NULL");
}
