/* test_autocast.c: which operations cast under autocast, and what their results and gradients are
 * worth. The lists are those of torch.autocast("cuda"). */
#include "autocast_setup.h"

/* ---- the lists ---- */

/* The dtype of the regions: bf16, then f16. */
static ek_dtype narrow_dtype = EK_BF16;

/* What becomes of x under autocast. */
typedef enum cast_rule { NARROW, WIDE, AS_IT_IS } cast_rule;

/* x is (2, 4, 6, 6), of values in [0.2, 1); what else it takes is made of x's dtype and device. */
typedef ek_tensor *operation(ek_tensor *x);

static void check_cast(const char *name, operation *function, cast_rule rule);

/* A test of its own. */
#define CAST(name, rule, ...)                 \
    static ek_tensor *name##_of(ek_tensor *x) \
    {                                         \
        return __VA_ARGS__;                   \
    }                                         \
    TEST(name##_is_cast)                      \
    {                                         \
        check_cast(#name, name##_of, (rule)); \
    }

static ek_tensor *weight_like(const ek_tensor *x, ek_shape shape)
{
    return ek_to_dtype(uniform(shape, -0.5, 0.5), x->dtype);
}

static ek_tensor *other_of(ek_tensor *x)
{
    return weight_like(x, ek_tensor_shape(x));
}

static ek_tensor *classes_of(const ek_tensor *x)
{
    return ek_to_device(ek_zeros(EK_SHAPE(2, 6, 6), EK_I64), ek_tensor_device(x));
}

#define WEIGHT(...) weight_like(x, EK_SHAPE(__VA_ARGS__))
CAST(conv1d, NARROW, ek_f_conv1d(ek_f_flatten(x, 2, 3), WEIGHT(3, 4, 3), WEIGHT(3)))
CAST(conv2d, NARROW, ek_f_conv2d(x, WEIGHT(8, 4, 3, 3), WEIGHT(8)))
CAST(conv3d, NARROW, ek_f_conv3d(ek_unsqueeze(x, 2), WEIGHT(3, 4, 1, 3, 3), NULL))
CAST(conv_transpose1d, NARROW, ek_f_conv_transpose1d(ek_f_flatten(x, 2, 3), WEIGHT(4, 3, 3), NULL))
CAST(conv_transpose2d, NARROW, ek_f_conv_transpose2d(x, WEIGHT(4, 3, 2, 2), WEIGHT(3), .stride = 2))
CAST(conv_transpose3d, NARROW,
     ek_f_conv_transpose3d(ek_unsqueeze(x, 2), WEIGHT(4, 3, 2, 2, 2), NULL))
CAST(matmul_rows, NARROW, ek_matmul(x, WEIGHT(6, 5)))
CAST(matmul_batched, NARROW, ek_matmul(x, ek_transpose(x, 2, 3)))
CAST(linear, NARROW, ek_f_linear(x, WEIGHT(5, 6), WEIGHT(5)))
CAST(linear_of_rows, NARROW, ek_f_linear(ek_f_flatten(x, 1, 3), WEIGHT(5, 144), NULL))
CAST(softmax, WIDE, ek_f_softmax(x, 1))
CAST(log_softmax, WIDE, ek_f_log_softmax(x, -1))
CAST(softplus, WIDE, ek_f_softplus(x))
CAST(exp, WIDE, ek_exp(x))
CAST(log, WIDE, ek_log(x))
CAST(reciprocal, WIDE, ek_reciprocal(x))
CAST(square, WIDE, ek_square(x))
CAST(power, WIDE, ek_pow_scalar(x, 1.5))
CAST(pow_2, WIDE, ek_pow_scalar(x, 2))
CAST(tan, WIDE, ek_tan(x))
CAST(sinh, WIDE, ek_sinh(x))
CAST(cosh, WIDE, ek_cosh(x))
CAST(expm1, WIDE, ek_expm1(x))
CAST(log1p, WIDE, ek_log1p(x))
CAST(log2, WIDE, ek_log2(x))
CAST(log10, WIDE, ek_log10(x))
CAST(rsqrt, WIDE, ek_rsqrt(x))
CAST(asin, WIDE, ek_asin(ek_mul_scalar(x, 0.5)))
CAST(acos, WIDE, ek_acos(ek_mul_scalar(x, 0.5)))
CAST(pow_of_tensors, WIDE, ek_pow(x, other_of(x)))
CAST(prod, WIDE, ek_prod(x, EK_DIMS(1)))
CAST(cumsum, WIDE, ek_cumsum(x, 1))
CAST(cumprod, WIDE, ek_cumprod(x, 1))
CAST(softmin, WIDE, ek_f_softmin(x, 1))
CAST(norm_1, WIDE, ek_norm(x, .p = 1))
CAST(sum, WIDE, ek_sum(x))
CAST(sum_of_a_dimension, WIDE, ek_sum(x, EK_DIMS(2), .keepdim = true))
CAST(norm, WIDE, ek_norm(x, EK_DIMS(1, 2)))
CAST(layer_norm, WIDE, ek_f_layer_norm(x, 2, NULL, NULL, 1e-5))
CAST(group_norm, WIDE, ek_f_group_norm(x, 2, NULL, NULL, 1e-5))
CAST(mse_loss, WIDE, ek_f_mse_loss(x, other_of(x)))
CAST(l1_loss, WIDE, ek_f_l1_loss(x, other_of(x), .reduction = EK_NONE))
CAST(bce_with_logits, WIDE,
     ek_f_bce_with_logits(x, ek_abs(other_of(x)), .pos_weight = WEIGHT(6), .weight = WEIGHT(6)))
CAST(cross_entropy, WIDE, ek_f_cross_entropy(x, classes_of(x), .weight = ek_abs(WEIGHT(4))))
CAST(nll_loss, WIDE, ek_f_nll_loss(x, classes_of(x), .reduction = EK_SUM))
CAST(relu, AS_IT_IS, ek_f_relu(x))
CAST(sigmoid, AS_IT_IS, ek_f_sigmoid(x))
CAST(tanh, AS_IT_IS, ek_f_tanh(x))
CAST(sqrt, AS_IT_IS, ek_sqrt(x))
CAST(abs, AS_IT_IS, ek_abs(x))
CAST(sin, AS_IT_IS, ek_sin(x))
CAST(cos, AS_IT_IS, ek_cos(x))
CAST(atan, AS_IT_IS, ek_atan(x))
CAST(asinh, AS_IT_IS, ek_asinh(x))
CAST(atanh, AS_IT_IS, ek_atanh(ek_mul_scalar(x, 0.5)))
CAST(erf, AS_IT_IS, ek_erf(x))
CAST(erfc, AS_IT_IS, ek_erfc(x))
CAST(exp2, AS_IT_IS, ek_exp2(x))
CAST(floor, AS_IT_IS, ek_floor(x))
CAST(frac, AS_IT_IS, ek_frac(x))
CAST(silu, AS_IT_IS, ek_f_silu(x))
CAST(mish, AS_IT_IS, ek_f_mish(x))
CAST(selu, AS_IT_IS, ek_f_selu(x))
CAST(relu6, AS_IT_IS, ek_f_relu6(x))
CAST(hardswish, AS_IT_IS, ek_f_hardswish(x))
CAST(log_sigmoid, AS_IT_IS, ek_f_log_sigmoid(x))
CAST(gelu, AS_IT_IS, ek_f_gelu(x, EK_GELU_NONE))
CAST(elu, AS_IT_IS, ek_f_elu(x, 1))
CAST(atan2, AS_IT_IS, ek_atan2(x, other_of(x)))
CAST(lerp_scalar, AS_IT_IS, ek_lerp_scalar(x, other_of(x), 0.3))
CAST(amax, AS_IT_IS, ek_amax(x, EK_DIMS(1)))
CAST(mean, AS_IT_IS, ek_mean(x))
CAST(var, AS_IT_IS, ek_var(x, EK_DIMS(1)))
CAST(max_pool2d, AS_IT_IS, ek_f_max_pool2d(x, 2))
CAST(avg_pool2d, AS_IT_IS, ek_f_avg_pool2d(x, 2))
CAST(upsample, AS_IT_IS, ek_f_upsample(x, 12, 12, EK_BILINEAR, false))
CAST(instance_norm, AS_IT_IS, ek_f_instance_norm(x, NULL, NULL, 1e-5))
CAST(batch_norm, AS_IT_IS, ek_f_batch_norm(x, .training = true))
CAST(add, AS_IT_IS, ek_add(x, other_of(x)))
CAST(add_scalar, AS_IT_IS, ek_mul_scalar(ek_add_scalar(x, 1), 3))

static ek_dtype expected_dtype(cast_rule rule, ek_dtype given)
{
    if (given == EK_F64 || rule == AS_IT_IS)
        return given;
    return rule == NARROW ? narrow_dtype : EK_F32;
}

/* y, and x's gradient for a weighted sum of y. */
static ek_tensor *value_and_gradient(operation *function, ek_dtype dtype, bool autocast,
                                     ek_tensor **gradient)
{
    /* Values that bf16 holds: what differs afterwards is the operation's doing. */
    ek_tensor *x =
        ek_to_dtype(ek_to_dtype(uniform(EK_SHAPE(2, 4, 6, 6), 0.2, 1), narrow_dtype), dtype);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(autocast ? narrow_dtype : EK_F32);
    ek_tensor *y = function(x);
    assert_made(y);
    ek_autocast_end(&region);
    ek_tensor *factors = ek_to_dtype(uniform(ek_tensor_shape(y), -1, 1), EK_F64);
    assert_ok(ek_backward(ek_sum(ek_mul(ek_to_dtype(y, EK_F64), factors))));
    *gradient = ek_tensor_grad(x);
    assert_made(*gradient);
    return y;
}

static void check_numbers(const char *name, operation *function, cast_rule rule)
{
    const ek_dtype dtypes[] = {EK_F32, narrow_dtype, EK_F64};
    ek_tensor *gradient, *exact_gradient;
    ek_scope scope = ek_scope_begin();
    ek_tensor *exact = value_and_gradient(function, EK_F64, false, &exact_gradient);
    for (int d = 0; d < 3; d++) {
        ek_tensor *y = value_and_gradient(function, dtypes[d], true, &gradient);
        ck_assert_msg(y->dtype == expected_dtype(rule, dtypes[d]), "%s of %s gives %s", name,
                      ek_dtype_name(dtypes[d]), ek_dtype_name(y->dtype));
        ck_assert_msg(gradient->dtype == dtypes[d], "%s: the gradient of %s is %s", name,
                      ek_dtype_name(dtypes[d]), ek_dtype_name(gradient->dtype));
        /* x is exact; weights, results and gradients are rounded once each, to 2^-9 (f16: 2^-12) at
         * most; where a gradient is a small difference of such (normalisations), more of it is
         * lost. */
        double rounding = dtypes[d] == EK_F64      ? 1e-12
                          : narrow_dtype == EK_F16 ? 0.0117 / 4
                                                   : 0.0117;
        ck_assert_msg(close_in_norm(y, exact, rounding), "%s of %s: other values", name,
                      ek_dtype_name(dtypes[d]));
        ck_assert_msg(close_in_norm(gradient, exact_gradient, 2 * rounding + 1e-9),
                      "%s of %s: another gradient", name, ek_dtype_name(dtypes[d]));
    }
    ek_scope_end(&scope);
}

/* Nothing happens outside of a region, and inside of one that switches autocast off. */
static void check_without(operation *function)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(2, 4, 6, 6), 0.2, 1);
    ek_tensor *narrow = ek_to_dtype(x, narrow_dtype);
    ck_assert_int_eq(function(x)->dtype, EK_F32);
    ck_assert_int_eq(function(narrow)->dtype, narrow_dtype);
    ek_autocast on = ek_autocast_begin(narrow_dtype);
    ek_autocast off = ek_autocast_begin(EK_F32);
    ck_assert_int_eq(function(x)->dtype, EK_F32);
    ck_assert_int_eq(function(narrow)->dtype, narrow_dtype);
    ek_autocast_end(&off);
    ek_autocast_end(&on);
    ck_assert_int_eq(function(x)->dtype, EK_F32);
    ek_scope_end(&scope);
}

static void check_cast(const char *name, operation *function, cast_rule rule)
{
    for (int f16 = 0; f16 < 2; f16++) {
        narrow_dtype = f16 ? EK_F16 : EK_BF16;
        check_numbers(name, function, rule);
        check_without(function);
    }
}

/* ---- mixed dtypes ---- */

static ek_tensor *first_where(ek_tensor *x, ek_tensor *y)
{
    return ek_where(ek_gt(x, y), x, y);
}

static ek_tensor *joined(ek_tensor *x, ek_tensor *y)
{
    return ek_cat((ek_tensor *const[]){x, y}, 2, 0);
}

static ek_tensor *stacked(ek_tensor *x, ek_tensor *y)
{
    return ek_stack((ek_tensor *const[]){y, x}, 2, 1);
}

typedef ek_tensor *operation_of_two(ek_tensor *, ek_tensor *);
static operation_of_two *const pairs[] = {ek_add,     ek_sub,      ek_mul, ek_div, ek_maximum,
                                          ek_minimum, first_where, joined, stacked};

TEST_LOOP(mixed_give_f32, 0, 2 * (sizeof pairs / sizeof *pairs))
{
    operation_of_two *function = pairs[_i / 2];
    narrow_dtype = _i % 2 ? EK_F16 : EK_BF16;
    ek_tensor *x = uniform(EK_SHAPE(3, 4), 0.2, 1);
    ek_tensor *y = ek_to_dtype(ek_mul_scalar(x, -0.5), narrow_dtype);
    ek_tensor *wide = ek_to_dtype(y, EK_F32);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(y, true));
    assert_refused(function(x, y), EK_E_DTYPE, "operands of dtype");
    ek_autocast region = ek_autocast_begin(narrow_dtype);
    for (int order = 0; order < 2; order++) {
        ek_tensor *z = order ? function(x, y) : function(y, x);
        ek_tensor *exact = order ? function(x, wide) : function(wide, x);
        assert_made(z);
        ck_assert_int_eq(z->dtype, EK_F32);
        assert_close(z, exact, 0, 0);
        assert_ok(ek_backward(ek_sum(z)));
    }
    ck_assert_int_eq(ek_tensor_grad(x)->dtype, EK_F32);
    ck_assert_int_eq(ek_tensor_grad(y)->dtype, narrow_dtype);
    /* f64 stays refused. */
    assert_refused(function(ek_to_dtype(x, EK_F64), y), EK_E_DTYPE, "operands of dtype");
    ek_autocast_end(&region);
}

TEST_LOOP(in_place_keeps_the_dtype, 0, 2)
{
    narrow_dtype = _i ? EK_F16 : EK_BF16;
    ek_tensor *wide = uniform(EK_SHAPE(3, 4), 0.2, 1), *narrow = ek_to_dtype(wide, narrow_dtype);
    assert_refused(ek_add_(wide, narrow), EK_E_DTYPE, "operands of dtype");
    ek_autocast region = ek_autocast_begin(narrow_dtype);
    assert_made(ek_add_(wide, narrow));
    assert_made(ek_mul_(narrow, wide));
    ck_assert_int_eq(wide->dtype, EK_F32);
    ck_assert_int_eq(narrow->dtype, narrow_dtype);
    ek_autocast_end(&region);
}

TEST_LOOP(losses_of_mixed, 0, 2)
{
    narrow_dtype = _i ? EK_F16 : EK_BF16;
    ek_tensor *x = uniform(EK_SHAPE(3, 4), 0.2, 1), *target = ek_mul_scalar(x, 0.5);
    ek_tensor *narrow = ek_to_dtype(x, narrow_dtype);
    assert_refused(ek_f_mse_loss(narrow, target), EK_E_DTYPE, "mse_loss");
    ek_autocast region = ek_autocast_begin(narrow_dtype);
    ck_assert_int_eq(ek_f_mse_loss(narrow, target)->dtype, EK_F32);
    ck_assert_int_eq(ek_f_l1_loss(target, narrow)->dtype, EK_F32);
    ck_assert_int_eq(
        ek_f_bce_with_logits(narrow, target, .weight = ek_to_dtype(x, narrow_dtype))->dtype,
        EK_F32);
    ek_autocast_end(&region);
}

/* Operands of bf16 and of f16 meet in f32; products take the region's dtype. */
TEST(both_narrow_dtypes)
{
    ek_tensor *x = uniform(EK_SHAPE(4, 4), 0.2, 1);
    ek_tensor *bf16 = ek_to_dtype(x, EK_BF16), *f16 = ek_to_dtype(x, EK_F16);
    assert_refused(ek_add(bf16, f16), EK_E_DTYPE, "operands of dtype");
    ek_autocast region = ek_autocast_begin(EK_F16);
    ck_assert_int_eq(ek_autocast_dtype(), EK_F16);
    assert_close(ek_add(bf16, f16), ek_add(ek_to_dtype(bf16, EK_F32), ek_to_dtype(f16, EK_F32)), 0,
                 0);
    ck_assert_int_eq(ek_cat((ek_tensor *const[]){bf16, f16}, 2, 0)->dtype, EK_F32);
    ck_assert_int_eq(ek_matmul(bf16, x)->dtype, EK_F16);
    ek_autocast_end(&region);
}

/* A parameter's casts are kept apart by dtype, also if regions nest. */
TEST(parameters_in_regions_of_both)
{
    ek_tensor *w = parameter(EK_SHAPE(4, 4)), *x = uniform(EK_SHAPE(3, 4), 0.2, 1);
    ek_autocast outer = ek_autocast_begin(EK_BF16);
    for (int i = 0; i < 3; i++) {
        ek_tensor *y = ek_matmul(x, w);
        ck_assert_int_eq(y->dtype, EK_BF16);
        ek_autocast inner = ek_autocast_begin(EK_F16);
        ek_tensor *z = ek_matmul(x, w);
        ck_assert_int_eq(z->dtype, EK_F16);
        ek_autocast_end(&inner);
        ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
        ek_tensor *exact = ek_matmul(ek_to_dtype(x, EK_F64), ek_to_dtype(w, EK_F64));
        ck_assert(close_in_norm(y, exact, 1e-2));
        ck_assert(close_in_norm(z, exact, 1e-3));
        assert_ok(ek_backward(ek_add(ek_sum(y), ek_sum(z))));
        ck_assert_int_eq(ek_tensor_grad(w)->dtype, EK_F32);
        if (i == 1)
            ek_tensor_touch(w);
    }
    ek_autocast_end(&outer);
    ek_autocast refused = ek_autocast_begin(EK_I32);
    assert_error(EK_E_DTYPE, "autocast to i32; bf16 and f16 are possible");
    ek_autocast_end(&refused);
}
