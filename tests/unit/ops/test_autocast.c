/* test_autocast.c: which operations cast under autocast, and what their results and gradients are
 * worth. The lists are those of torch.autocast("cuda"). */
#include "autocast_setup.h"

/* ---- the lists ---- */

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
CAST(sum, WIDE, ek_sum(x))
CAST(sum_of_a_dimension, WIDE, ek_sum(x, EK_DIMS(2), .keepdim = true))
CAST(norm, WIDE, ek_norm(x, EK_DIMS(1, 2)))
CAST(layer_norm, WIDE, ek_f_layer_norm(x, 2, NULL, NULL, 0))
CAST(group_norm, WIDE, ek_f_group_norm(x, 2, NULL, NULL, 0))
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
CAST(mean, AS_IT_IS, ek_mean(x))
CAST(var, AS_IT_IS, ek_var(x, EK_DIMS(1)))
CAST(max_pool2d, AS_IT_IS, ek_f_max_pool2d(x, 2))
CAST(avg_pool2d, AS_IT_IS, ek_f_avg_pool2d(x, 2))
CAST(upsample, AS_IT_IS, ek_f_upsample(x, 12, 12, EK_BILINEAR, false))
CAST(instance_norm, AS_IT_IS, ek_f_instance_norm(x, NULL, NULL, 0))
CAST(batch_norm, AS_IT_IS, ek_f_batch_norm(x, .training = true))
CAST(add, AS_IT_IS, ek_add(x, other_of(x)))
CAST(add_scalar, AS_IT_IS, ek_mul_scalar(ek_add_scalar(x, 1), 3))

static ek_dtype expected_dtype(cast_rule rule, ek_dtype given)
{
    if (given == EK_F64 || rule == AS_IT_IS)
        return given;
    return rule == NARROW ? EK_BF16 : EK_F32;
}

/* y, and x's gradient for a weighted sum of y. */
static ek_tensor *value_and_gradient(operation *function, ek_dtype dtype, bool autocast,
                                     ek_tensor **gradient)
{
    /* Values that bf16 holds: what differs afterwards is the operation's doing. */
    ek_tensor *x = ek_to_dtype(ek_to_dtype(uniform(EK_SHAPE(2, 4, 6, 6), 0.2, 1), EK_BF16), dtype);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
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
    static const ek_dtype dtypes[] = {EK_F32, EK_BF16, EK_F64};
    ek_tensor *gradient, *exact_gradient;
    ek_scope scope = ek_scope_begin();
    ek_tensor *exact = value_and_gradient(function, EK_F64, false, &exact_gradient);
    for (int d = 0; d < 3; d++) {
        ek_tensor *y = value_and_gradient(function, dtypes[d], true, &gradient);
        ck_assert_msg(y->dtype == expected_dtype(rule, dtypes[d]), "%s of %s gives %s", name,
                      ek_dtype_name(dtypes[d]), ek_dtype_name(y->dtype));
        ck_assert_msg(gradient->dtype == dtypes[d], "%s: the gradient of %s is %s", name,
                      ek_dtype_name(dtypes[d]), ek_dtype_name(gradient->dtype));
        /* x is exact; weights, results and gradients are rounded once each, to 2^-9 at most; where
         * a gradient is a small difference of such (normalisations), more of it is lost. */
        double rounding = dtypes[d] == EK_F64 ? 1e-12 : 0.0117;
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
    ek_tensor *narrow = ek_to_dtype(x, EK_BF16);
    ck_assert_int_eq(function(x)->dtype, EK_F32);
    ck_assert_int_eq(function(narrow)->dtype, EK_BF16);
    ek_autocast on = ek_autocast_begin(EK_BF16);
    ek_autocast off = ek_autocast_begin(EK_F32);
    ck_assert_int_eq(function(x)->dtype, EK_F32);
    ck_assert_int_eq(function(narrow)->dtype, EK_BF16);
    ek_autocast_end(&off);
    ek_autocast_end(&on);
    ck_assert_int_eq(function(x)->dtype, EK_F32);
    ek_scope_end(&scope);
}

static void check_cast(const char *name, operation *function, cast_rule rule)
{
    check_numbers(name, function, rule);
    check_without(function);
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

static ek_tensor *(*const pairs[])(ek_tensor *, ek_tensor *) = {ek_add,      ek_sub,     ek_mul,
                                                                ek_div,      ek_maximum, ek_minimum,
                                                                first_where, joined,     stacked};

TEST_LOOP(mixed_give_f32, 0, sizeof pairs / sizeof *pairs)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(3, 4), 0.2, 1);
    ek_tensor *y = ek_to_dtype(ek_mul_scalar(x, -0.5), EK_BF16);
    ek_tensor *wide = ek_to_dtype(y, EK_F32);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(y, true));
    assert_refused(pairs[_i](x, y), EK_E_DTYPE, "operands of dtype");
    ek_autocast region = ek_autocast_begin(EK_BF16);
    for (int order = 0; order < 2; order++) {
        ek_tensor *z = order ? pairs[_i](x, y) : pairs[_i](y, x);
        ek_tensor *exact = order ? pairs[_i](x, wide) : pairs[_i](wide, x);
        assert_made(z);
        ck_assert_int_eq(z->dtype, EK_F32);
        assert_close(z, exact, 0, 0);
        assert_ok(ek_backward(ek_sum(z)));
    }
    ck_assert_int_eq(ek_tensor_grad(x)->dtype, EK_F32);
    ck_assert_int_eq(ek_tensor_grad(y)->dtype, EK_BF16);
    /* f64 stays refused. */
    assert_refused(pairs[_i](ek_to_dtype(x, EK_F64), y), EK_E_DTYPE, "operands of dtype");
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}

TEST(in_place_keeps_the_dtype)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *wide = uniform(EK_SHAPE(3, 4), 0.2, 1), *narrow = ek_to_dtype(wide, EK_BF16);
    assert_refused(ek_add_(wide, narrow), EK_E_DTYPE, "operands of dtype");
    ek_autocast region = ek_autocast_begin(EK_BF16);
    assert_made(ek_add_(wide, narrow));
    assert_made(ek_mul_(narrow, wide));
    ck_assert_int_eq(wide->dtype, EK_F32);
    ck_assert_int_eq(narrow->dtype, EK_BF16);
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}

TEST(losses_of_mixed)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(3, 4), 0.2, 1), *target = ek_mul_scalar(x, 0.5);
    ek_tensor *narrow = ek_to_dtype(x, EK_BF16);
    assert_refused(ek_f_mse_loss(narrow, target), EK_E_DTYPE, "mse_loss");
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ck_assert_int_eq(ek_f_mse_loss(narrow, target)->dtype, EK_F32);
    ck_assert_int_eq(ek_f_l1_loss(target, narrow)->dtype, EK_F32);
    ck_assert_int_eq(ek_f_bce_with_logits(narrow, target, .weight = ek_to_dtype(x, EK_BF16))->dtype,
                     EK_F32);
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}
