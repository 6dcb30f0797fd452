/* unary.c: functions of one tensor, element by element. */
#include <math.h>

#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- a x + b ---- */

EK_BACKWARD(affine, double, *a == 1 ? g : ek_mul_scalar(g, *a))
EK_OPERATION(add_scalar, "add_scalar", affine_backward);
EK_OPERATION(mul_scalar, "mul_scalar", affine_backward);

ek_tensor *ek_add_scalar(ek_tensor *x, double c)
{
    if (!ek_given("add_scalar", "x", x) || !ek_holds("add_scalar", "c", x->dtype, c))
        return NULL;
    double a = 1;
    ek_tensor *y = ek_run_unary(EK_UNARY_AFFINE, x, a, c);
    return EK_RECORD(y, &add_scalar_operation, EK_INPUTS(x), EK_ATTRIBUTES(a));
}

ek_tensor *ek_mul_scalar(ek_tensor *x, double c)
{
    if (!ek_given("mul_scalar", "x", x) || !ek_holds("mul_scalar", "c", x->dtype, c))
        return NULL;
    ek_tensor *y = ek_run_unary(EK_UNARY_AFFINE, x, c, 0);
    return EK_RECORD(y, &mul_scalar_operation, EK_INPUTS(x), EK_ATTRIBUTES(c));
}

/* x / c is not x (1 / c) in floating point: a mean of 49 ones must be 1. */
EK_BACKWARD(div_scalar, double, ek_div_scalar(g, *a))
EK_OPERATION(div_scalar, "div_scalar", div_scalar_backward);

ek_tensor *ek_div_scalar(ek_tensor *x, double c)
{
    if (!ek_floating("div_scalar", "x", x))
        return NULL;
    ek_tensor *y;
    int exponent;
    if (x->dtype == EK_BF16 || fabs(frexp(c, &exponent)) == 0.5) {
        /* 1 / c is exact, or its error vanishes in bf16, which could not hold c itself. */
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

/* ---- x^p ---- */

static int pow_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    double p = *(const double *)ek_node_attributes(node);
    if (p == 0)
        results[0] = ek_zeros_like(gradients[0]);
    else
        results[0] =
            ek_mul(gradients[0], ek_mul_scalar(ek_pow_scalar(ek_node_saved(node, 0), p - 1), p));
    return 0;
}

EK_OPERATION(pow, "pow_scalar", pow_backward);

ek_tensor *ek_pow_scalar(ek_tensor *x, double exponent)
{
    if (!ek_floating("pow_scalar", "x", x) || !(x = ek_autocast_wide(x)))
        return NULL;
    ek_tensor *y = exponent == 2 ? ek_run_unary(EK_UNARY_SQUARE, x, 0, 0)
                                 : ek_run_unary(EK_UNARY_POW, x, exponent, 0);
    return EK_RECORD(y, &pow_operation, EK_INPUTS(x), EK_SAVED(exponent == 0 ? NULL : x),
                     EK_ATTRIBUTES(exponent));
}

/* ---- functions of the elements alone ---- */

ek_tensor *ek_unary_apply(const ek_operation *operation, const ek_unary_rules *rules, ek_tensor *x)
{
    if (rules->wide && ek_autocast_widens(x)) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *wide = ek_autocast_wide(x);
        return ek_scope_return(&scope, wide ? ek_unary_apply(operation, rules, wide) : NULL);
    }
    if (!(rules->integers ? ek_given : ek_floating)(operation->name, "x", x))
        return NULL;
    ek_tensor *y = ek_run_unary(rules->formula, x, 0, 0);
    ek_tensor *saved = rules->saved == EK_SAVED_x ? x : rules->saved == EK_SAVED_y ? y : NULL;
    return EK_RECORD(y, operation, EK_INPUTS(x), EK_SAVED(saved));
}

EK_UNARY_OPERATION(ek_neg, "neg", NEG, nothing, ek_neg(g), .integers = true)
EK_UNARY_OPERATION(ek_abs, "abs", ABS, x, ek_sign_mul(g, x), .integers = true)
EK_UNARY_OPERATION(ek_sign, "sign", SIGN, nothing, ek_zeros_like(g), .integers = true)
EK_UNARY_OPERATION(ek_sqrt, "sqrt", SQRT, y, ek_div(g, ek_mul_scalar(y, 2)), .wide = false)
EK_UNARY_OPERATION(ek_square, "square", SQUARE, x, ek_mul(g, ek_mul_scalar(x, 2)), .integers = true,
                   .wide = true)
EK_UNARY_OPERATION(ek_reciprocal, "reciprocal", RECIPROCAL, y, ek_neg(ek_mul(g, ek_square(y))),
                   .wide = true)
EK_UNARY_OPERATION(ek_exp, "exp", EXP, y, ek_mul(g, y), .wide = true)
EK_UNARY_OPERATION(ek_log, "log", LOG, x, ek_div(g, x), .wide = true)
EK_UNARY_OPERATION(ek_f_sigmoid, "sigmoid", SIGMOID, y, ek_sigmoid_gradient(g, y), .wide = false)
EK_UNARY_OPERATION(ek_f_tanh, "tanh", TANH, y, ek_tanh_gradient(g, y), .wide = false)
EK_UNARY_OPERATION(ek_f_softplus, "softplus", SOFTPLUS, x, ek_mul(g, ek_f_sigmoid(x)), .wide = true)

/* ---- x sign(y) ---- */

EK_BACKWARD(sign_mul, void, ek_sign_mul(g, ek_node_saved(node, 0)))
EK_OPERATION(sign_mul, "sign_mul", sign_mul_backward);

ek_tensor *ek_sign_mul(ek_tensor *x, ek_tensor *y)
{
    if (!ek_given("sign_mul", "x", x) || !ek_given("sign_mul", "y", y))
        return NULL;
    return EK_RECORD(ek_run_binary(EK_BINARY_SIGN_MUL, x, y, 0), &sign_mul_operation, EK_INPUTS(x),
                     EK_SAVED(y));
}

/* ---- clamp ---- */

typedef struct clamp_attributes {
    double low, high;
} clamp_attributes;

static int clamp_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const clamp_attributes *attributes = ek_node_attributes(node);
    ek_tensor *x = ek_node_saved(node, 0);
    if (!x)
        return ek_error_pending();
    ek_tensor *inside = ek_run_unary(EK_UNARY_INSIDE, x, attributes->low, attributes->high);
    results[0] = ek_relu_gradient(gradients[0], inside, 0);
    return 0;
}

EK_OPERATION(clamp, "clamp", clamp_backward);

ek_tensor *ek_clamp(ek_tensor *x, double low, double high)
{
    if (!ek_given("clamp", "x", x) || !ek_holds_low("clamp", "low", x->dtype, low) ||
        !ek_holds_high("clamp", "high", x->dtype, high))
        return NULL;
    clamp_attributes attributes = {low, high};
    return EK_RECORD(ek_run_unary(EK_UNARY_CLAMP, x, low, high), &clamp_operation, EK_INPUTS(x),
                     EK_SAVED(x), EK_ATTRIBUTES(attributes));
}
