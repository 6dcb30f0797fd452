/* mathematics.c: mathematical functions of one tensor and of two, element by element. */
#include "ops/autocast.h"
#include "ops/unary.h"

/* ---- functions of one tensor ---- */

/* Angles and hyperbolic functions. Under autocast, functions that grow fast are computed in f32;
 * PyTorch's list tells which. */
UNARY_OPERATION(ek_sin, "sin", SIN, x, ek_mul(g, ek_cos(x)), .wide = false)
UNARY_OPERATION(ek_cos, "cos", COS, x, ek_neg(ek_mul(g, ek_sin(x))), .wide = false)
UNARY_OPERATION(ek_tan, "tan", TAN, y, ek_mul(g, ek_add_scalar(ek_square(y), 1)), .wide = true)
UNARY_OPERATION(ek_asin, "asin", ASIN, x, ek_mul(g, ek_rsqrt(ek_affine(ek_square(x), -1, 1))),
                .wide = true)
UNARY_OPERATION(ek_acos, "acos", ACOS, x,
                ek_neg(ek_mul(g, ek_rsqrt(ek_affine(ek_square(x), -1, 1)))), .wide = true)
UNARY_OPERATION(ek_atan, "atan", ATAN, x, ek_div(g, ek_add_scalar(ek_square(x), 1)), .wide = false)
UNARY_OPERATION(ek_sinh, "sinh", SINH, x, ek_mul(g, ek_cosh(x)), .wide = true)
UNARY_OPERATION(ek_cosh, "cosh", COSH, x, ek_mul(g, ek_sinh(x)), .wide = true)
UNARY_OPERATION(ek_asinh, "asinh", ASINH, x, ek_mul(g, ek_rsqrt(ek_add_scalar(ek_square(x), 1))),
                .wide = false)
UNARY_OPERATION(ek_acosh, "acosh", ACOSH, x, ek_mul(g, ek_rsqrt(ek_add_scalar(ek_square(x), -1))),
                .wide = false)
UNARY_OPERATION(ek_atanh, "atanh", ATANH, x, ek_div(g, ek_affine(ek_square(x), -1, 1)),
                .wide = false)

/* 2 / sqrt(pi) e^(-x^2) times g */
static ek_tensor *mathematics_erf_gradient(ek_tensor *g, ek_tensor *x)
{
    return ek_mul(g, ek_mul_scalar(ek_exp(ek_neg(ek_square(x))), 1.1283791670955126));
}

UNARY_OPERATION(ek_erf, "erf", ERF, x, mathematics_erf_gradient(g, x), .wide = false)
UNARY_OPERATION(ek_erfc, "erfc", ERFC, x, ek_neg(mathematics_erf_gradient(g, x)), .wide = false)
UNARY_OPERATION(ek_log1p, "log1p", LOG1P, x, ek_div(g, ek_add_scalar(x, 1)), .wide = true)
UNARY_OPERATION(ek_expm1, "expm1", EXPM1, y, ek_mul(g, ek_add_scalar(y, 1)), .wide = true)
UNARY_OPERATION(ek_log2, "log2", LOG2, x, ek_div(g, ek_mul_scalar(x, 0.69314718055994531)),
                .wide = true)
UNARY_OPERATION(ek_log10, "log10", LOG10, x, ek_div(g, ek_mul_scalar(x, 2.3025850929940457)),
                .wide = true)
UNARY_OPERATION(ek_exp2, "exp2", EXP2, y, ek_mul(g, ek_mul_scalar(y, 0.69314718055994531)),
                .wide = false)
UNARY_OPERATION(ek_rsqrt, "rsqrt", RSQRT, y,
                ek_mul(g, ek_mul_scalar(ek_mul(y, ek_square(y)), -0.5)), .wide = true)
UNARY_OPERATION(ek_frac, "frac", FRAC, nothing, g, .wide = false)

/* Whole numbers stay as they are. */
#define WHOLE_OPERATION(function, title, NAME)                                                  \
    UNARY_ROW(function, title, NAME, nothing, ek_zeros_like(g), .wide = false)                  \
    ek_tensor *function(ek_tensor *x)                                                           \
    {                                                                                           \
        return x && !ek_dtype_is_floating(x->dtype) ? ek_clone(x)                               \
                                                    : ek_unary_apply(&function##_row, x, 0, 0); \
    }
WHOLE_OPERATION(ek_floor, "floor", FLOOR)
WHOLE_OPERATION(ek_ceil, "ceil", CEIL)
WHOLE_OPERATION(ek_round, "round", ROUND)
WHOLE_OPERATION(ek_trunc, "trunc", TRUNC)

/* ---- functions of two tensors ---- */

/* Broadcasts, computes and records; saves x, y and the result. */
static ek_tensor *mathematics_binary(const ek_operation *operation, ek_binary formula, ek_tensor *x,
                                     ek_tensor *y)
{
    if (!ek_broadcast_operands(operation->name, &x, &y))
        return NULL;
    ek_tensor *z = ek_run_binary(formula, x, y, 0);
    return EK_RECORD(z, operation, EK_INPUTS(x, y), EK_SAVED(x, y, z));
}

/* dx = g y x^(y - 1), 0 if y is 0; dy = g x^y log(x), 0 if x is 0 and y is not below 0. Logarithms
 * of 0 are not formed, because their own gradients would be NaN. */
static int power_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *g = gradients[0], *x = ek_node_saved(node, 0), *y = ek_node_saved(node, 1);
    ek_tensor *z = ek_node_saved(node, 2);
    if (!x || !y || !z)
        return ek_error_pending();
    ek_tensor *zero = ek_number_like(x, 0);
    if (ek_node_needs(node, 0)) {
        ek_tensor *slope = ek_mul(y, ek_pow(x, ek_add_scalar(y, -1)));
        results[0] = ek_where(ek_eq(y, zero), zero, ek_mul(g, slope));
    }
    if (ek_node_needs(node, 1)) {
        ek_tensor *flat = ek_logical_and(ek_eq(x, zero), ek_ge(y, zero));
        ek_tensor *logarithm = ek_log(ek_where(flat, ek_number_like(x, 1), x));
        results[1] = ek_where(flat, zero, ek_mul(g, ek_mul(z, logarithm)));
    }
    return 0;
}
EK_OPERATION(power, "pow", power_backward);

ek_tensor *ek_pow(ek_tensor *x, ek_tensor *y)
{
    if (!ek_floating("pow", "x", x))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *z = mathematics_binary(&power_operation, EK_BINARY_POW, ek_autocast_wide(x),
                                      ek_autocast_wide(y));
    return ek_scope_return(&scope, z);
}

/* dx = g y / (x^2 + y^2), dy = -g x / (x^2 + y^2) */
static int atan2_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *g = gradients[0], *x = ek_node_saved(node, 0), *y = ek_node_saved(node, 1);
    ek_tensor *scaled = ek_mul(g, ek_reciprocal(ek_add(ek_square(x), ek_square(y))));
    if (ek_node_needs(node, 0))
        results[0] = ek_mul(scaled, y);
    if (ek_node_needs(node, 1))
        results[1] = ek_neg(ek_mul(scaled, x));
    return 0;
}
EK_OPERATION(atan2, "atan2", atan2_backward);

ek_tensor *ek_atan2(ek_tensor *x, ek_tensor *y)
{
    return ek_floating("atan2", "x", x)
               ? mathematics_binary(&atan2_operation, EK_BINARY_ATAN2, x, y)
               : NULL;
}

/* The quotient is constant almost everywhere: dx = g, dy = -g times the whole quotient. */
static int rest_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results,
                         ek_tensor *(*whole)(ek_tensor *))
{
    if (ek_node_needs(node, 0))
        results[0] = gradients[0];
    if (ek_node_needs(node, 1)) {
        ek_tensor *quotient = whole(ek_div(ek_node_saved(node, 0), ek_node_saved(node, 1)));
        results[1] = ek_neg(ek_mul(gradients[0], quotient));
    }
    return 0;
}

#define REST_OPERATION(name, NAME, whole)                                                       \
    static int name##_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results) \
    {                                                                                           \
        return rest_backward(node, gradients, results, whole);                                  \
    }                                                                                           \
    EK_OPERATION(name, #name, name##_backward);                                                 \
    ek_tensor *ek_##name(ek_tensor *x, ek_tensor *y)                                            \
    {                                                                                           \
        return mathematics_binary(&name##_operation, EK_BINARY_##NAME, x, y);                   \
    }
REST_OPERATION(fmod, FMOD, ek_trunc)
REST_OPERATION(remainder, REMAINDER, ek_floor)

static ek_tensor *rest_of_number(const char *name, ek_tensor *(*rest)(ek_tensor *, ek_tensor *),
                                 ek_tensor *x, double c)
{
    if (!ek_given(name, "x", x) || !ek_holds(name, "c", x->dtype, c))
        return NULL;
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope, rest(x, ek_number_like(x, c)));
}

ek_tensor *ek_fmod_scalar(ek_tensor *x, double c)
{
    return rest_of_number("fmod_scalar", ek_fmod, x, c);
}

ek_tensor *ek_remainder_scalar(ek_tensor *x, double c)
{
    return rest_of_number("remainder_scalar", ek_remainder, x, c);
}

/* ---- between two tensors ---- */

int ek_lerp_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    double weight = *(const double *)ek_node_attributes(node);
    if (ek_node_needs(node, 0))
        results[0] = ek_mul_scalar(gradients[0], 1 - weight);
    if (ek_node_needs(node, 1))
        results[1] = ek_mul_scalar(gradients[0], weight);
    return 0;
}
EK_OPERATION(lerp, "lerp_scalar", ek_lerp_backward);

ek_tensor *ek_lerp_scalar(ek_tensor *x, ek_tensor *y, double weight)
{
    if (!ek_floating("lerp_scalar", "x", x) || !ek_broadcast_operands("lerp_scalar", &x, &y))
        return NULL;
    ek_tensor *z = ek_run_binary(EK_BINARY_LERP, x, y, weight);
    return EK_RECORD(z, &lerp_operation, EK_INPUTS(x, y), EK_ATTRIBUTES(weight));
}

/* Computed from the nearer end, so that a weight of 1 gives y exactly. */
ek_tensor *ek_lerp(ek_tensor *x, ek_tensor *y, ek_tensor *weight)
{
    if (!ek_floating("lerp", "x", x) || !ek_given("lerp", "y", y) ||
        !ek_floating("lerp", "weight", weight))
        return NULL;
    ek_tensor *step = ek_sub(y, x);
    ek_tensor *from_x = ek_add(x, ek_mul(weight, step));
    ek_tensor *from_y = ek_sub(y, ek_mul(ek_affine(weight, -1, 1), step));
    return ek_where(ek_lt_scalar(weight, 0.5), from_x, from_y);
}

ek_tensor *ek_addcmul(ek_tensor *x, ek_tensor *y, ek_tensor *z, double value)
{
    return ek_add_scaled(x, ek_mul(y, z), value);
}

ek_tensor *ek_addcdiv(ek_tensor *x, ek_tensor *y, ek_tensor *z, double value)
{
    return ek_add_scaled(x, ek_div(y, z), value);
}
