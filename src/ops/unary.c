/* unary.c: elementwise functions of one tensor, dropout and rrelu. A gradient that is one fused
 * kernel is an operation, so that it can be differentiated again. */
#include <math.h>

#include "core/draw.h"
#include "core/generator.h"
#include "ops/autocast.h"
#include "ops/dropout.h"
#include "ops/unary.h"

/* ---- rows ---- */

ek_tensor *ek_unary_apply(const ek_unary_row *row, ek_tensor *x, double a, double b)
{
    if (row->wide && ek_autocast_widens(x)) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *wide = ek_autocast_wide(x);
        return ek_scope_return(&scope, wide ? ek_unary_apply(row, wide, a, b) : NULL);
    }
    if (!(row->integers ? ek_no_bool : ek_floating)(row->operation.name, "x", x))
        return NULL;
    int formula = (int)row->formula + (row->choices ? (int)a : 0);
    ek_tensor *y = ek_run_unary((ek_unary)formula, x, a, b);
    ek_tensor *saved = row->saved == SAVED_x ? x : row->saved == SAVED_y ? y : NULL;
    unary_numbers numbers = {a, b};
    return EK_RECORD(y, &row->operation, EK_INPUTS(x), EK_SAVED(saved), EK_ATTRIBUTES(numbers));
}

ek_tensor *ek_composed_gradient(ek_tensor *g, ek_composition *composition, ek_tensor *x, double a)
{
    unsigned *flags = &ek_thread_self()->modes.flags, before = *flags;
    bool differentiable = ek_grad_enabled();
    if (!differentiable) {
        x = ek_tensor_alias(x);
        if (!x)
            return NULL;
        x->requires_grad = true;
    }
    *flags = (before & ~(unsigned)EK_MODE_NO_GRAD) | EK_MODE_ALONE; /* no cast outlives the call */
    ek_tensor *y = composition(x, a), *dx = NULL;
    *flags = before;
    if (!y || ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .grad_outputs = &g, .create_graph = differentiable) < 0)
        return NULL;
    return dx;
}

ek_tensor *ek_fused_gradient(ek_tensor *g, ek_binary formula, ek_composition *composition,
                             ek_tensor *x, double a)
{
    if (!g || !x)
        return NULL;
    return ek_grad_enabled() ? ek_composed_gradient(g, composition, x, a)
                             : ek_run_binary(formula, g, x, a);
}

/* ---- functions of the elements alone ---- */

UNARY_OPERATION(ek_neg, "neg", NEG, nothing, ek_neg(g), .integers = true)
UNARY_OPERATION(ek_abs, "abs", ABS, x, ek_sign_mul(g, x), .integers = true)
UNARY_OPERATION(ek_sign, "sign", SIGN, nothing, ek_zeros_like(g), .integers = true)
UNARY_OPERATION(ek_sqrt, "sqrt", SQRT, y, ek_div(g, ek_mul_scalar(y, 2)), .wide = false)
UNARY_OPERATION(ek_square, "square", SQUARE, x, ek_mul(g, ek_mul_scalar(x, 2)), .integers = true,
                .wide = true)
UNARY_OPERATION(ek_reciprocal, "reciprocal", RECIPROCAL, y, ek_neg(ek_mul(g, ek_square(y))),
                .wide = true)
UNARY_OPERATION(ek_exp, "exp", EXP, y, ek_mul(g, y), .wide = true)
UNARY_OPERATION(ek_log, "log", LOG, x, ek_div(g, x), .wide = true)
UNARY_OPERATION(ek_ndtr, "ndtr", NDTR, x, ek_mul(g, ek_normal_density(x)), .wide = false)
UNARY_OPERATION(ek_normal_density, "normal_density", NORMAL_DENSITY, x,
                ek_neg(ek_mul(ek_mul(g, x), ek_normal_density(x))), .wide = false)

/* ---- functions with numbers ---- */

UNARY_ROW(add_scalar, "add_scalar", AFFINE, nothing, g, .integers = true)
UNARY_ROW(sub_scalar, "sub_scalar", AFFINE, nothing, g, .integers = true)
UNARY_ROW(mul_scalar, "mul_scalar", AFFINE, nothing, a == 1 ? g : ek_mul_scalar(g, a),
          .integers = true)

ek_tensor *ek_affine(ek_tensor *x, double a, double b)
{
    return ek_unary_apply(&mul_scalar_row, x, a, b);
}

ek_tensor *ek_add_scalar(ek_tensor *x, double c)
{
    return ek_given("add_scalar", "x", x) && ek_holds("add_scalar", "c", x->dtype, c)
               ? ek_unary_apply(&add_scalar_row, x, 1, c)
               : NULL;
}

ek_tensor *ek_sub_scalar(ek_tensor *x, double c)
{
    return ek_given("sub_scalar", "x", x) && ek_holds("sub_scalar", "c", x->dtype, c)
               ? ek_unary_apply(&sub_scalar_row, x, 1, -c)
               : NULL;
}

UNARY_ROW(rsub_scalar, "rsub_scalar", AFFINE, nothing, ek_neg(g), .integers = true)

ek_tensor *ek_rsub_scalar(ek_tensor *x, double c)
{
    return ek_given("rsub_scalar", "x", x) && ek_holds("rsub_scalar", "c", x->dtype, c)
               ? ek_unary_apply(&rsub_scalar_row, x, -1, c)
               : NULL;
}

ek_tensor *ek_mul_scalar(ek_tensor *x, double c)
{
    return ek_given("mul_scalar", "x", x) && ek_holds("mul_scalar", "c", x->dtype, c)
               ? ek_affine(x, c, 0)
               : NULL;
}

UNARY_ROW(pow, "pow_scalar", POW, x,
          a == 0 ? ek_zeros_like(g) : ek_mul(g, ek_mul_scalar(ek_pow_scalar(x, a - 1), a)),
          .wide = true)

ek_tensor *ek_pow_scalar(ek_tensor *x, double exponent)
{
    return ek_unary_apply(&pow_row, x, exponent, 0);
}

UNARY_ROW(clamp, "clamp", CLAMP, x, ek_relu_gradient(g, ek_run_unary(EK_UNARY_INSIDE, x, a, b), 0),
          .integers = true)

ek_tensor *ek_clamp(ek_tensor *x, double low, double high)
{
    if (!ek_given("clamp", "x", x) || !ek_holds_low("clamp", "low", x->dtype, low) ||
        !ek_holds_high("clamp", "high", x->dtype, high))
        return NULL;
    return ek_unary_apply(&clamp_row, x, low, high);
}

/* ---- x / c ---- */

/* x / c is not x * (1 / c) in floating point: a mean of 49 ones must be 1. */
EK_BACKWARD(div_scalar, double, ek_div_scalar(g, *a))
EK_OPERATION(div_scalar, "div_scalar", div_scalar_backward);

ek_tensor *ek_div_scalar(ek_tensor *x, double c)
{
    if (!ek_floating("div_scalar", "x", x))
        return NULL;
    ek_tensor *y;
    int exponent;
    if (ek_dtype_is_narrow(x->dtype) || fabs(frexp(c, &exponent)) == 0.5) {
        /* 1 / c is exact, or its error vanishes in 16 bits, which could not hold c itself. */
        y = ek_run_unary(EK_UNARY_AFFINE, x, 1 / c, 0);
    } else {
        ek_tensor *divisor = ek_number_like(x, c), repeated;
        if (!divisor)
            return NULL;
        ek_shape shape = ek_tensor_shape(x);
        ek_borrow_expanded(&repeated, divisor, &shape);
        y = ek_run_binary(EK_BINARY_DIV, x, &repeated, 0);
    }
    return EK_RECORD(y, &div_scalar_operation, EK_INPUTS(x), EK_ATTRIBUTES(c));
}

/* ---- x * sign(y) ---- */

EK_BACKWARD(sign_mul, void, ek_sign_mul(g, ek_node_saved(node, 0)))
EK_OPERATION(sign_mul, "sign_mul", sign_mul_backward);

ek_tensor *ek_sign_mul(ek_tensor *x, ek_tensor *y)
{
    if (!ek_given("sign_mul", "x", x) || !ek_given("sign_mul", "y", y))
        return NULL;
    return EK_RECORD(ek_run_binary(EK_BINARY_SIGN_MUL, x, y, 0), &sign_mul_operation, EK_INPUTS(x),
                     EK_SAVED(y));
}

/* ---- dropout ---- */

/* Draws a mask, 0 with probability p, else 1 / (1 - p), in row-major order on the CPU, with x's
 * layout. PyTorch draws f64 numbers for every dtype, and divides in the tensor's dtype. */
static ek_tensor *dropout_mask(const ek_tensor *x, double p)
{
    ek_shape shape = ek_tensor_shape(x);
    ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    if (p == 1)
        return ek_zeros(shape, x->dtype, x->storage->dev->id);
    ek_tensor *mask = ek_empty(shape, dtype);
    if (!mask)
        return NULL;
    float *narrow = ek_tensor_data(mask), narrow_scale = 1 / (float)(1 - p);
    double *wide = ek_tensor_data(mask), scale = 1 / (1 - p);
    int64_t count = ek_count(mask);
    ek_generator *generator = ek_generator_lock(NULL);
    for (int64_t i = 0; i < count; i++) {
        /* A product instead of a branch, because processors cannot predict random branches. */
        bool kept = ek_generator_f64(generator) < 1 - p;
        if (dtype == EK_F64)
            wide[i] = scale * kept;
        else
            narrow[i] = narrow_scale * (float)kept;
    }
    ek_generator_unlock(generator);
    mask = ek_to_dtype(mask, x->dtype);
    if (mask && ek_is_dense(x) && !ek_same_layout(mask, x)) {
        ek_tensor *ordered = ek_tensor_new_strided(mask->storage->dev, x->dtype, &shape, x->stride);
        if (!ordered || ek_transfer(ordered, mask) < 0)
            return NULL;
        mask = ordered;
    }
    return mask ? ek_to_device(mask, x->storage->dev->id) : NULL;
}

typedef struct dropout_attributes {
    ek_draw draw;
    ek_dtype from; /* x's dtype */
} dropout_attributes;

/* Applies dropout whose mask Philox draws in the kernel, in forward and again in backward. Dropout
 * is linear in x: its gradient is dropout with this mask and, if forward casts, the opposite cast.
 * Adds the result to `residual`, which may be NULL. */
static ek_tensor *dropout_apply(ek_tensor *x, ek_tensor *residual, ek_dtype dtype,
                                const ek_draw *draw);

static int dropout_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const dropout_attributes *attributes = ek_node_attributes(node);
    if (ek_node_needs(node, 0))
        results[0] = dropout_apply(gradients[0], NULL, attributes->from, &attributes->draw);
    if (ek_node_input_count(node) > 1)
        results[1] = gradients[0];
    return 0;
}

EK_OPERATION(dropout, "dropout", dropout_backward);

static ek_tensor *dropout_apply(ek_tensor *x, ek_tensor *residual, ek_dtype dtype,
                                const ek_draw *draw)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = x ? ek_result(residual ? residual : x, residual ? x : NULL, NULL, dtype) : NULL;
    const dropout_attributes attributes = {*draw, x ? x->dtype : dtype};
    if (y && ek_draw_run(&(ek_drawn){y, x, residual}, draw) < 0)
        y = NULL;
    if (residual)
        y = EK_RECORD(y, &dropout_operation, EK_INPUTS(x, residual), EK_ATTRIBUTES(attributes));
    else
        y = EK_RECORD(y, &dropout_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
    return ek_scope_return(&scope, y);
}

ek_tensor *ek_f_dropout(ek_tensor *x, double p, bool training)
{
    ek_draw draw = {.kind = EK_DRAW_DROPOUT, .a = 1 - p, .b = 1 / (1 - p)};
    if (!ek_floating("dropout", "x", x))
        return NULL;
    if (!(p >= 0 && p <= 1))
        return EK_REFUSE(EK_E_INVALID, "dropout: p is %g; it must lie between 0 and 1", p);
    if (!training || p == 0)
        return ek_itself(x);
    if (p < 1 && ek_draw_begin(&draw, NULL, x))
        return dropout_apply(x, NULL, x->dtype, &draw);
    if (ek_count(x) == 0)
        return ek_itself(x);
    return ek_mul(x, dropout_mask(x, p));
}

ek_tensor *ek_dropout_added(ek_tensor *residual, ek_tensor *x, double p, bool training)
{
    ek_draw draw = {.kind = EK_DRAW_DROPOUT, .a = 1 - p, .b = 1 / (1 - p)};
    if (!residual || !x)
        return NULL;
    ek_tensor *const both[] = {residual, x};
    const bool widens = residual->dtype == EK_F32 && ek_autocast_mixes(both, 2);
    if (training && p > 0 && p < 1 && ek_same_shape(residual, x) &&
        ek_dtype_is_floating(x->dtype) && ek_tensor_dev(residual) == ek_tensor_dev(x) &&
        (residual->dtype == x->dtype || widens) && ek_draw_begin(&draw, NULL, x))
        return dropout_apply(x, residual, residual->dtype, &draw);
    return ek_add(residual, ek_f_dropout(x, p, training));
}

/* ---- rrelu ---- */

/* Returns slopes of x's shape and dtype: uniform from [lower, upper) for elements up to 0, else 1.
 * As in PyTorch, a Mersenne Twister draws f64 numbers for elements up to 0 only, in row-major order
 * on the CPU; the bounds are rounded to f32 if x isn't f64. */
static ek_tensor *rrelu_slopes(ek_tensor *x, double lower, double upper)
{
    ek_draw draw = {.kind = EK_DRAW_UNIFORM, .a = lower, .b = upper};
    x = ek_detach(x);
    if (x && ek_draw_begin(&draw, NULL, x)) {
        ek_tensor *slopes = ek_result(x, NULL, NULL, x->dtype);
        if (!slopes || ek_draw_run(&(ek_drawn){.out = slopes}, &draw) < 0)
            return NULL;
        return ek_where(ek_le_scalar(x, 0), slopes, ek_number_like(x, 1));
    }
    ek_tensor *on_cpu = ek_to_dtype(ek_to_device(x, ek_cpu()), EK_F64);
    ek_tensor *slopes = on_cpu ? ek_clone(ek_contiguous(on_cpu, EK_CONTIGUOUS)) : NULL;
    if (!slopes)
        return NULL;
    const double low = x->dtype == EK_F64 ? lower : (double)(float)lower;
    const double high = x->dtype == EK_F64 ? upper : (double)(float)upper;
    double *slope = ek_tensor_data(slopes);
    const int64_t count = ek_count(slopes);
    ek_generator *generator = ek_generator_lock(NULL);
    for (int64_t i = 0; i < count; i++)
        slope[i] = slope[i] <= 0 ? ek_generator_f64(generator) * (high - low) + low : 1;
    ek_generator_unlock(generator);
    return ek_to_device(ek_to_dtype(slopes, x->dtype), ek_tensor_device(x));
}

ek_tensor *ek_f_rrelu(ek_tensor *x, double lower, double upper, bool training)
{
    if (!ek_floating("rrelu", "x", x))
        return NULL;
    if (!(lower <= upper) || isinf(lower) || isinf(upper))
        return EK_REFUSE(EK_E_INVALID,
                         "rrelu: lower is %g and upper %g; lower must not be above upper, and both "
                         "finite",
                         lower, upper);
    if (!training)
        return ek_f_leaky_relu(x, (lower + upper) / 2);
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope, ek_mul(x, rrelu_slopes(x, lower, upper)));
}
