/* test_autocast.c: which operations cast under autocast, what their results and gradients are
 * worth, and what is remembered. The lists are those of torch.autocast("cuda"). */
#include <math.h>

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/function.h"
#include "evenkeel/ops.h"
#include "evenkeel/precision.h"
#include "ops/autocast.h"
#include "unit.h"

/* Uniform in [low, high), f32, the same in each call. */
static ek_tensor *uniform(ek_shape shape, double low, double high)
{
    ek_tensor *x = ek_empty(shape, EK_F32, .device = test_home());
    ek_manual_seed((uint64_t)shape.ndim + (low < 0 ? 5 : 0));
    assert_ok(ek_uniform_(x, low, high, NULL));
    return x;
}

/* A parameter of its own, as a module's. */
static ek_tensor *parameter(ek_shape shape)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    ek_tensor *w = uniform(shape, -0.5, 0.5);
    ek_memory_set_category(before);
    assert_ok(ek_tensor_set_requires_grad(w, true));
    return w;
}

static bool close_in_norm(ek_tensor *a, ek_tensor *b, double relative)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < ek_count(b); i++) {
        difference += pow(element(a, i) - element(b, i), 2);
        size += pow(element(b, i), 2);
    }
    return sqrt(difference) <= relative * sqrt(size);
}

/* ---- the lists ---- */

/* x is (2, 4, 6, 6), of values in [0.2, 1); what else it takes is made of x's dtype and device. */
typedef ek_tensor *operation(ek_tensor *x);

static ek_tensor *weight_like(const ek_tensor *x, ek_shape shape)
{
    return ek_to_dtype(uniform(shape, -0.5, 0.5), x->dtype);
}

static ek_tensor *conv1d(ek_tensor *x)
{
    return ek_f_conv1d(ek_flatten(x, 2, 3), weight_like(x, EK_SHAPE(3, 4, 3)),
                       weight_like(x, EK_SHAPE(3)));
}

static ek_tensor *conv2d(ek_tensor *x)
{
    return ek_f_conv2d(x, weight_like(x, EK_SHAPE(8, 4, 3, 3)), weight_like(x, EK_SHAPE(8)));
}

static ek_tensor *conv3d(ek_tensor *x)
{
    return ek_f_conv3d(ek_unsqueeze(x, 2), weight_like(x, EK_SHAPE(3, 4, 1, 3, 3)), NULL);
}

static ek_tensor *conv_transpose1d(ek_tensor *x)
{
    return ek_f_conv_transpose1d(ek_flatten(x, 2, 3), weight_like(x, EK_SHAPE(4, 3, 3)), NULL);
}

static ek_tensor *conv_transpose2d(ek_tensor *x)
{
    return ek_f_conv_transpose2d(x, weight_like(x, EK_SHAPE(4, 3, 2, 2)),
                                 weight_like(x, EK_SHAPE(3)), .stride = 2);
}

static ek_tensor *conv_transpose3d(ek_tensor *x)
{
    return ek_f_conv_transpose3d(ek_unsqueeze(x, 2), weight_like(x, EK_SHAPE(4, 3, 2, 2, 2)), NULL);
}

static ek_tensor *matmul(ek_tensor *x)
{
    return ek_matmul(x, weight_like(x, EK_SHAPE(6, 5)));
}

static ek_tensor *matmul_batched(ek_tensor *x)
{
    return ek_matmul(x, ek_transpose(x, 2, 3));
}

static ek_tensor *linear(ek_tensor *x)
{
    return ek_f_linear(x, weight_like(x, EK_SHAPE(5, 6)), weight_like(x, EK_SHAPE(5)));
}

static ek_tensor *linear_rows(ek_tensor *x)
{
    return ek_f_linear(ek_flatten(x, 1, 3), weight_like(x, EK_SHAPE(5, 144)), NULL);
}

static ek_tensor *softmax(ek_tensor *x)
{
    return ek_f_softmax(x, 1);
}

static ek_tensor *log_softmax(ek_tensor *x)
{
    return ek_f_log_softmax(x, -1);
}

static ek_tensor *power(ek_tensor *x)
{
    return ek_pow_scalar(x, 1.5);
}

static ek_tensor *power_two(ek_tensor *x)
{
    return ek_pow_scalar(x, 2);
}

static ek_tensor *sum(ek_tensor *x)
{
    return ek_sum(x);
}

static ek_tensor *sum_dim(ek_tensor *x)
{
    return ek_sum(x, .dims = {2}, .dim_count = 1, .keepdim = true);
}

static ek_tensor *norm(ek_tensor *x)
{
    return ek_norm(x, .dims = {1, 2}, .dim_count = 2);
}

static ek_tensor *layer_norm(ek_tensor *x)
{
    return ek_f_layer_norm(x, 2, NULL, NULL, 0);
}

static ek_tensor *group_norm(ek_tensor *x)
{
    return ek_f_group_norm(x, 2, NULL, NULL, 0);
}

static ek_tensor *other_of(ek_tensor *x)
{
    return weight_like(x, ek_tensor_shape(x));
}

static ek_tensor *mse(ek_tensor *x)
{
    return ek_f_mse_loss(x, other_of(x));
}

static ek_tensor *l1(ek_tensor *x)
{
    return ek_f_l1_loss(x, other_of(x), .reduction = EK_NONE);
}

static ek_tensor *bce(ek_tensor *x)
{
    return ek_f_bce_with_logits(x, ek_abs(other_of(x)), .pos_weight = weight_like(x, EK_SHAPE(6)),
                                .weight = weight_like(x, EK_SHAPE(6)));
}

static ek_tensor *classes_of(const ek_tensor *x)
{
    return ek_to_device(ek_zeros(EK_SHAPE(2, 6, 6), EK_I64), ek_tensor_device(x));
}

static ek_tensor *cross_entropy(ek_tensor *x)
{
    return ek_f_cross_entropy(x, classes_of(x), .weight = ek_abs(weight_like(x, EK_SHAPE(4))));
}

static ek_tensor *nll(ek_tensor *x)
{
    return ek_f_nll_loss(x, classes_of(x), .reduction = EK_SUM);
}

static ek_tensor *mean(ek_tensor *x)
{
    return ek_mean(x);
}

static ek_tensor *variance(ek_tensor *x)
{
    return ek_var(x, .dims = {1}, .dim_count = 1);
}

static ek_tensor *max_pool(ek_tensor *x)
{
    return ek_f_max_pool2d(x, 2);
}

static ek_tensor *avg_pool(ek_tensor *x)
{
    return ek_f_avg_pool2d(x, 2);
}

static ek_tensor *upsample(ek_tensor *x)
{
    return ek_f_upsample(x, 12, 12, EK_BILINEAR, false);
}

static ek_tensor *instance_norm(ek_tensor *x)
{
    return ek_f_instance_norm(x, NULL, NULL, 0);
}

static ek_tensor *batch_norm(ek_tensor *x)
{
    return ek_f_batch_norm(x, .training = true);
}

static ek_tensor *add_same(ek_tensor *x)
{
    return ek_add(x, other_of(x));
}

static ek_tensor *scaled(ek_tensor *x)
{
    return ek_mul_scalar(ek_add_scalar(x, 1), 3);
}

typedef enum cast_rule { NARROW, WIDE, AS_IT_IS } cast_rule;

static const struct {
    const char *name;
    operation *function;
    cast_rule rule;
} operations[] = {
    {"conv1d", conv1d, NARROW},
    {"conv2d", conv2d, NARROW},
    {"conv3d", conv3d, NARROW},
    {"conv_transpose1d", conv_transpose1d, NARROW},
    {"conv_transpose2d", conv_transpose2d, NARROW},
    {"conv_transpose3d", conv_transpose3d, NARROW},
    {"matmul", matmul, NARROW},
    {"matmul batched", matmul_batched, NARROW},
    {"linear", linear, NARROW},
    {"linear of rows", linear_rows, NARROW},
    {"softmax", softmax, WIDE},
    {"log_softmax", log_softmax, WIDE},
    {"softplus", ek_f_softplus, WIDE},
    {"exp", ek_exp, WIDE},
    {"log", ek_log, WIDE},
    {"reciprocal", ek_reciprocal, WIDE},
    {"square", ek_square, WIDE},
    {"pow", power, WIDE},
    {"pow 2", power_two, WIDE},
    {"sum", sum, WIDE},
    {"sum of a dimension", sum_dim, WIDE},
    {"norm", norm, WIDE},
    {"layer_norm", layer_norm, WIDE},
    {"group_norm", group_norm, WIDE},
    {"mse_loss", mse, WIDE},
    {"l1_loss", l1, WIDE},
    {"bce_with_logits", bce, WIDE},
    {"cross_entropy", cross_entropy, WIDE},
    {"nll_loss", nll, WIDE},
    {"relu", ek_f_relu, AS_IT_IS},
    {"sigmoid", ek_f_sigmoid, AS_IT_IS},
    {"tanh", ek_f_tanh, AS_IT_IS},
    {"sqrt", ek_sqrt, AS_IT_IS},
    {"abs", ek_abs, AS_IT_IS},
    {"mean", mean, AS_IT_IS},
    {"var", variance, AS_IT_IS},
    {"max_pool2d", max_pool, AS_IT_IS},
    {"avg_pool2d", avg_pool, AS_IT_IS},
    {"upsample", upsample, AS_IT_IS},
    {"instance_norm", instance_norm, AS_IT_IS},
    {"batch_norm", batch_norm, AS_IT_IS},
    {"add", add_same, AS_IT_IS},
    {"add_scalar", scaled, AS_IT_IS},
};

enum { OPERATIONS = sizeof operations / sizeof *operations };

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

START_TEST(dtypes_and_numbers)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_BF16, EK_F64};
    ek_tensor *gradient, *exact_gradient;
    ek_scope scope = ek_scope_begin();
    ek_tensor *exact = value_and_gradient(operations[_i].function, EK_F64, false, &exact_gradient);
    for (int d = 0; d < 3; d++) {
        const char *name = operations[_i].name;
        ek_tensor *y = value_and_gradient(operations[_i].function, dtypes[d], true, &gradient);
        ck_assert_msg(y->dtype == expected_dtype(operations[_i].rule, dtypes[d]),
                      "%s of %s gives %s", name, ek_dtype_name(dtypes[d]), ek_dtype_name(y->dtype));
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
END_TEST

/* Nothing happens outside of a region, and inside of one that switches autocast off. */
START_TEST(without)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(2, 4, 6, 6), 0.2, 1);
    ek_tensor *narrow = ek_to_dtype(x, EK_BF16);
    ck_assert_int_eq(operations[_i].function(x)->dtype, EK_F32);
    ck_assert_int_eq(operations[_i].function(narrow)->dtype, EK_BF16);
    ek_autocast on = ek_autocast_begin(EK_BF16);
    ek_autocast off = ek_autocast_begin(EK_F32);
    ck_assert_int_eq(operations[_i].function(x)->dtype, EK_F32);
    ck_assert_int_eq(operations[_i].function(narrow)->dtype, EK_BF16);
    ek_autocast_end(&off);
    ek_autocast_end(&on);
    ck_assert_int_eq(operations[_i].function(x)->dtype, EK_F32);
    ek_scope_end(&scope);
}
END_TEST

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

START_TEST(mixed_give_f32)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(3, 4), 0.2, 1);
    ek_tensor *y = ek_to_dtype(ek_mul_scalar(x, -0.5), EK_BF16);
    ek_tensor *wide = ek_to_dtype(y, EK_F32);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(y, true));
    ck_assert_ptr_null(pairs[_i](x, y));
    assert_error(EK_E_DTYPE, "operands of dtype");
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
    ck_assert_ptr_null(pairs[_i](ek_to_dtype(x, EK_F64), y));
    assert_error(EK_E_DTYPE, "operands of dtype");
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}
END_TEST

START_TEST(in_place_keeps_the_dtype)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *wide = uniform(EK_SHAPE(3, 4), 0.2, 1), *narrow = ek_to_dtype(wide, EK_BF16);
    ck_assert_ptr_null(ek_add_(wide, narrow));
    assert_error(EK_E_DTYPE, "operands of dtype");
    ek_autocast region = ek_autocast_begin(EK_BF16);
    assert_made(ek_add_(wide, narrow));
    assert_made(ek_mul_(narrow, wide));
    ck_assert_int_eq(wide->dtype, EK_F32);
    ck_assert_int_eq(narrow->dtype, EK_BF16);
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}
END_TEST

START_TEST(losses_of_mixed)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(3, 4), 0.2, 1), *target = ek_mul_scalar(x, 0.5);
    ek_tensor *narrow = ek_to_dtype(x, EK_BF16);
    ck_assert_ptr_null(ek_f_mse_loss(narrow, target));
    assert_error(EK_E_DTYPE, "mse_loss");
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ck_assert_int_eq(ek_f_mse_loss(narrow, target)->dtype, EK_F32);
    ck_assert_int_eq(ek_f_l1_loss(target, narrow)->dtype, EK_F32);
    ck_assert_int_eq(ek_f_bce_with_logits(narrow, target, .weight = ek_to_dtype(x, EK_BF16))->dtype,
                     EK_F32);
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}
END_TEST

/* ---- regions ---- */

START_TEST(regions_nest)
{
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
    ek_autocast outer = ek_autocast_begin(EK_BF16);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast inner = ek_autocast_begin(EK_F32);
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
    ek_autocast innermost = ek_autocast_begin(EK_BF16);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast_end(&innermost);
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
    ek_autocast_end(&inner);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast wrong = ek_autocast_begin(EK_I64);
    assert_error(EK_E_DTYPE, "i64");
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast_end(&wrong);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast_end(&outer);
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
}
END_TEST

/* Backward runs on the forward's dtypes, whether the region has ended or not. */
START_TEST(backward_in_the_region)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(6, 4), -1, 1), *gradients[2];
    for (int inside = 0; inside < 2; inside++) {
        ek_tensor *w = parameter(EK_SHAPE(3, 4));
        ek_autocast region = ek_autocast_begin(EK_BF16);
        ek_tensor *y = ek_f_tanh(ek_f_linear(x, w, NULL));
        ek_tensor *loss = ek_mean(ek_square(ek_f_softmax(ek_matmul(y, w), 1)));
        if (!inside)
            ek_autocast_end(&region);
        assert_ok(ek_backward(loss));
        if (inside)
            ek_autocast_end(&region);
        gradients[inside] = ek_tensor_grad(w);
        ck_assert_int_eq(w->dtype, EK_F32);
        ck_assert_int_eq(gradients[inside]->dtype, EK_F32);
        ck_assert_int_eq(gradients[inside]->storage->category, EK_MEMORY_GRADIENT);
    }
    assert_close(gradients[0], gradients[1], 0, 0);
    ek_scope_end(&scope);
}
END_TEST

START_TEST(errors_end_the_scopes)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(2, 3, 5, 5), 0.2, 1);
    const size_t owned = ek_thread_self()->owned_count;
    const unsigned depth = ek_thread_self()->scope_depth;
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ck_assert_ptr_null(ek_f_conv2d(x, uniform(EK_SHAPE(4, 2, 3, 3), -1, 1), NULL));
    assert_error(EK_E_SHAPE, "channels");
    ck_assert_ptr_null(ek_matmul(x, uniform(EK_SHAPE(4, 2), -1, 1)));
    assert_error(EK_E_SHAPE, "inner sizes");
    ck_assert_ptr_null(ek_f_linear(x, NULL, NULL));
    assert_error(EK_E_INVALID, "weight is NULL");
    ck_assert_ptr_null(ek_f_mse_loss(x, uniform(EK_SHAPE(3), 0, 1)));
    assert_error(EK_E_SHAPE, "mse_loss");
    ck_assert_ptr_null(ek_f_conv2d(ek_zeros(EK_SHAPE(2, 3, 5, 5), EK_I64, .device = test_home()),
                                   uniform(EK_SHAPE(4, 3, 3, 3), -1, 1), NULL));
    assert_error(EK_E_DTYPE, "i64");
    ck_assert_ptr_null(ek_sum(NULL));
    assert_error(EK_E_INVALID, "NULL");
    ek_autocast_end(&region);
    ck_assert_uint_eq(ek_thread_self()->scope_depth, depth);
    ck_assert_uint_le(ek_thread_self()->owned_count, owned + 5); /* the weights made above */
    ek_scope_end(&scope);
}
END_TEST

/* ---- what is remembered ---- */

START_TEST(parameters_are_cast_once)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *w = parameter(EK_SHAPE(3, 4));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ek_tensor *first = ek_autocast_narrow(w);
    ck_assert_int_eq(first->dtype, EK_BF16);
    ck_assert(first->requires_grad);
    ck_assert_ptr_eq(ek_autocast_narrow(w), first);

    /* Another one without gradients, which doesn't replace it. */
    bool before = ek_set_grad_enabled(false);
    ek_tensor *constant = ek_autocast_narrow(w);
    ck_assert_ptr_ne(constant, first);
    ck_assert(!constant->requires_grad);
    ck_assert_ptr_eq(ek_autocast_narrow(w), constant);
    /* A change. */
    assert_made(ek_mul_scalar_(w, 2));
    ek_tensor *changed = ek_autocast_narrow(w);
    ck_assert_ptr_ne(changed, constant);
    assert_close(changed, ek_to_dtype(w, EK_BF16), 0, 0);
    ek_set_grad_enabled(before);
    ek_tensor *second = ek_autocast_narrow(w);
    ck_assert_ptr_ne(second, first);
    ck_assert(second->requires_grad);
    assert_close(second, changed, 0, 0);

    /* Inner regions don't end it. */
    ek_autocast inner = ek_autocast_begin(EK_F32);
    ck_assert_ptr_eq(ek_autocast_narrow(w), w);
    ek_autocast_end(&inner);
    ck_assert_ptr_eq(ek_autocast_narrow(w), second);

    /* Another handle on the same memory: as good without history, and no place for its gradient. */
    ek_tensor *alias = ek_detach(w);
    ck_assert_ptr_eq(ek_autocast_narrow(alias), changed);
    assert_ok(ek_tensor_set_requires_grad(alias, true));
    ck_assert_ptr_ne(ek_autocast_narrow(alias), second);
    ek_autocast_end(&region);
    ck_assert_ptr_null(ek_thread_self()->casts);
    ek_autocast_end(&region); /* one too many does nothing */
    ck_assert_ptr_eq(ek_autocast_narrow(w), w);
    ek_scope_end(&scope);
}
END_TEST

/* Inputs are many; they are not kept. */
START_TEST(only_parameters_are_remembered)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(3, 4), -1, 1);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *w = parameter(EK_SHAPE(3, 4));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ck_assert_ptr_ne(ek_autocast_narrow(x), ek_autocast_narrow(x));
    ck_assert_ptr_ne(ek_autocast_narrow(ek_mul_scalar(w, 2)), ek_autocast_narrow(w));
    assert_made(ek_thread_self()->casts);
    bool before = ek_set_grad_enabled(false);
    ek_tensor *view = ek_transpose(w, 0, 1);
    assert_close(ek_autocast_narrow(view), ek_transpose(ek_autocast_narrow(w), 0, 1), 0, 0);
    ck_assert_ptr_ne(ek_autocast_narrow(view), ek_autocast_narrow(view));
    ek_set_grad_enabled(before);
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}
END_TEST

/* A weight used twice: one cast, whose gradient is the sum; again after a backward. */
START_TEST(one_cast_several_uses)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = uniform(EK_SHAPE(6, 4), -1, 1), *w = parameter(EK_SHAPE(4, 4)), *gradient[2];
    ek_autocast region = ek_autocast_begin(EK_BF16);
    for (int step = 0; step < 2; step++) {
        ek_tensor *y = ek_f_linear(ek_f_tanh(ek_f_linear(x, w, NULL)), w, NULL);
        assert_ok(ek_backward(ek_sum(ek_square(y))));
        gradient[step] = ek_clone(ek_tensor_grad(w));
        assert_ok(ek_tensor_set_grad(w, NULL));
    }
    ek_autocast_end(&region);
    assert_close(gradient[0], gradient[1], 0, 0);
    ek_tensor *y = ek_f_linear(ek_f_tanh(ek_f_linear(x, w, NULL)), w, NULL);
    assert_ok(ek_backward(ek_sum(ek_square(y))));
    ck_assert(close_in_norm(gradient[0], ek_tensor_grad(w), 0.02));
    ek_scope_end(&scope);
}
END_TEST

/* Everything is given back, also when the library ends within a region. */
START_TEST(nothing_is_left)
{
    ek_memory_stats stats;
    ek_scope scope = ek_scope_begin();
    ek_tensor *w = parameter(EK_SHAPE(16, 4));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    assert_made(ek_f_linear(uniform(EK_SHAPE(3, 4), 0, 1), w, NULL));
    ek_scope_end(&scope);
    if (_i == 0)
        ek_autocast_end(&region);
    else
        assert_ok(ek_shutdown());
    assert_ok(ek_memory_get(test_home(), &stats));
    ck_assert_uint_eq(stats.now[EK_MEMORY_PARAMETER], 0);
    ck_assert_uint_eq(stats.now[EK_MEMORY_ACTIVATION], 0);
}
END_TEST

/* ---- second order ---- */

/* The norm of the input's gradient, minimised: as a gradient penalty. */
static ek_tensor *penalty_gradient(bool autocast)
{
    ek_tensor *x = uniform(EK_SHAPE(2, 3, 6, 6), -1, 1);
    ek_tensor *w = parameter(EK_SHAPE(4, 3, 3, 3)), *v = parameter(EK_SHAPE(1, 64)), *dx;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
    ek_tensor *hidden = ek_f_tanh(ek_f_conv2d(x, w, NULL));
    ek_tensor *d = ek_f_linear(ek_flatten(hidden, 1, 3), v, NULL);
    ek_tensor *ones = ek_to_dtype(ek_add_scalar(ek_mul_scalar(ek_detach(d), 0), 1), d->dtype);
    assert_ok(ek_grad(.outputs = &d, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .grad_outputs = &ones, .create_graph = true));
    ck_assert_int_eq(dx->dtype, EK_F32);
    ek_tensor *norms = ek_norm(dx, .dims = {1, 2, 3}, .dim_count = 3);
    assert_ok(ek_backward(ek_mean(ek_square(ek_add_scalar(norms, -1)))));
    ek_autocast_end(&region);
    ck_assert_int_eq(ek_tensor_grad(w)->dtype, EK_F32);
    ck_assert_int_eq(ek_tensor_grad(v)->dtype, EK_F32);
    return ek_tensor_grad(w);
}

START_TEST(second_order)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *exact = penalty_gradient(false);
    /* About ten roundings to 2^-9 in a row. */
    ck_assert(close_in_norm(penalty_gradient(true), exact, 0.02));
    ek_scope_end(&scope);
}
END_TEST

/* ---- functions of the user's own ---- */

/* x w' by hand, which saves what it was given. */
static int product_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_matmul(x[0], ek_transpose(x[1], 0, 1));
    return ek_function_save(call, x, 2);
}

static int product_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = ek_matmul(dy[0], ek_function_saved(call, 1));
    dx[1] = ek_matmul(ek_transpose(dy[0], 0, 1), ek_function_saved(call, 0));
    return 0;
}

static const ek_function product = {.name = "product",
                                    .forward = product_forward,
                                    .backward = product_backward};

/* Of the norm of x's gradient, by w. */
static ek_tensor *function_gradient(bool autocast)
{
    ek_tensor *x = uniform(EK_SHAPE(5, 4), -1, 1), *w = parameter(EK_SHAPE(3, 4)), *y, *dx;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
    assert_ok(ek_function_apply(&product, ((ek_tensor *[]){x, w}), 2, &y));
    ck_assert_int_eq(y->dtype, autocast ? EK_BF16 : EK_F32);
    ek_tensor *loss = ek_sum(ek_square(y));
    ek_autocast_end(&region);
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .create_graph = true));
    ck_assert_int_eq(dx->dtype, EK_F32);
    assert_ok(ek_backward(ek_sum(ek_square(dx))));
    return ek_tensor_grad(w);
}

START_TEST(functions_backward_as_forward)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *exact = function_gradient(false), *narrow = function_gradient(true);
    ck_assert_int_eq(narrow->dtype, EK_F32);
    ck_assert(close_in_norm(narrow, exact, 0.02));
    ck_assert(!close_in_norm(narrow, exact, 1e-6));
    ek_scope_end(&scope);
}
END_TEST

/* Views and handles on parameters that come and go, in forward and backward. */
START_TEST(remembered_once_per_parameter)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *w = parameter(EK_SHAPE(64, 4)), *x = uniform(EK_SHAPE(5, 4), -1, 1), *y;
    ek_memory_stats before = {0}, stats;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    for (int step = 0; step < 3; step++) {
        ek_scope inner = ek_scope_begin();
        assert_ok(ek_function_apply(&product, ((ek_tensor *[]){x, w}), 2, &y));
        assert_ok(ek_backward(ek_sum(ek_square(y))));
        assert_made(ek_matmul(ek_detach(w), ek_transpose(x, 0, 1)));
        ek_scope_end(&inner);
        assert_ok(ek_memory_get(test_home(), &stats));
        if (step > 0)
            ck_assert_uint_eq(stats.in_use, before.in_use);
        before = stats;
    }
    ek_autocast_end(&region);
    ek_scope_end(&scope);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("autocast");
    TCase *t = tcase_create("autocast");
    tcase_add_loop_test(t, dtypes_and_numbers, 0, OPERATIONS);
    tcase_add_loop_test(t, without, 0, OPERATIONS);
    tcase_add_loop_test(t, mixed_give_f32, 0, sizeof pairs / sizeof *pairs);
    tcase_add_test(t, in_place_keeps_the_dtype);
    tcase_add_test(t, losses_of_mixed);
    tcase_add_test(t, regions_nest);
    tcase_add_test(t, backward_in_the_region);
    tcase_add_test(t, errors_end_the_scopes);
    tcase_add_test(t, parameters_are_cast_once);
    tcase_add_test(t, only_parameters_are_remembered);
    tcase_add_test(t, one_cast_several_uses);
    tcase_add_loop_test(t, nothing_is_left, 0, 2);
    tcase_add_test(t, second_order);
    tcase_add_test(t, functions_backward_as_forward);
    tcase_add_test(t, remembered_once_per_parameter);
    suite_add_tcase(s, t);
    return s;
}
