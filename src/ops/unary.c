/* unary.c: functions of one tensor, element by element, and dropout. A gradient that is one fused
 * kernel is an operation of its own, so that it can be differentiated again. */
#include <math.h>

#include "core/generator.h"
#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- a x + b ---- */

EK_BACKWARD(affine, double, *a == 1 ? g : ek_mul_scalar(g, *a))
EK_OPERATION(add_scalar, "add_scalar", affine_backward);
EK_OPERATION(mul_scalar, "mul_scalar", affine_backward);

/* a x + b. c is the user's number, which x's dtype must hold. */
static ek_tensor *unary_affine(const ek_operation *operation, ek_tensor *x, double c, double a,
                               double b)
{
    if (!ek_given(operation->name, "x", x) || !ek_holds(operation->name, "c", x->dtype, c))
        return NULL;
    return EK_RECORD(ek_run_unary(EK_UNARY_AFFINE, x, a, b), operation, EK_INPUTS(x),
                     EK_ATTRIBUTES(a));
}

ek_tensor *ek_add_scalar(ek_tensor *x, double c)
{
    return unary_affine(&add_scalar_operation, x, c, 1, c);
}

ek_tensor *ek_mul_scalar(ek_tensor *x, double c)
{
    return unary_affine(&mul_scalar_operation, x, c, c, 0);
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

/* ---- gelu: x ndtr(x), or x sigmoid(2 u) for 2 u = k x + c x^3, k = sqrt(8 / pi) ---- */

/* k x + c x^3 */
static ek_tensor *gelu_cubic(ek_tensor *x, double c)
{
    return ek_mul(x, ek_add_scalar(ek_mul_scalar(ek_square(x), c), 1.5957691216057308));
}
#define NORMAL_DENSITY ek_mul_scalar(ek_exp(ek_mul_scalar(ek_square(x), -0.5)), 0.3989422804014327)
#define GATE ek_f_sigmoid(gelu_cubic(x, 0.07135481627260025))

EK_UNARY_OPERATION(ek_ndtr, "ndtr", NDTR, x, ek_mul(g, NORMAL_DENSITY), .wide = false)
EK_UNARY_RULES(gelu, "gelu", GELU, x, ek_mul(g, ek_add(ek_ndtr(x), ek_mul(x, NORMAL_DENSITY))),
               .wide = false)
EK_UNARY_RULES(gelu_tanh, "gelu", GELU_TANH, x,
               ek_mul(g,
                      ek_add(GATE, ek_sigmoid_gradient(gelu_cubic(x, 0.21406444881780076), GATE))),
               .wide = false)

ek_tensor *ek_f_gelu(ek_tensor *x, ek_gelu_approximate approximate)
{
    if (approximate != EK_GELU_NONE && approximate != EK_GELU_TANH)
        return EK_REFUSE(EK_E_INVALID,
                         "gelu: approximate must be EK_GELU_NONE or EK_GELU_TANH, got %d",
                         (int)approximate);
    return approximate == EK_GELU_TANH ? ek_unary_apply(&gelu_tanh_operation, &gelu_tanh_rules, x)
                                       : ek_unary_apply(&gelu_operation, &gelu_rules, x);
}

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

/* ---- relu, leaky relu: dx = slope g if y <= 0, else g ---- */

EK_BACKWARD(relu_gradient, double, ek_relu_gradient(g, ek_node_saved(node, 0), *a))
EK_OPERATION(relu_gradient, "relu_gradient", relu_gradient_backward);
EK_OPERATION(relu, "relu", relu_gradient_backward);
EK_OPERATION(leaky_relu, "leaky_relu", relu_gradient_backward);

ek_tensor *ek_relu_gradient(ek_tensor *x, ek_tensor *y, double slope)
{
    if (!ek_floating("relu_gradient", "x", x) || !ek_given("relu_gradient", "y", y))
        return NULL;
    ek_tensor *z = ek_run_binary(EK_BINARY_RELU_GRADIENT, x, y, slope);
    return EK_RECORD(z, &relu_gradient_operation, EK_INPUTS(x), EK_SAVED(y), EK_ATTRIBUTES(slope));
}

ek_tensor *ek_f_relu(ek_tensor *x)
{
    if (!ek_floating("relu", "x", x))
        return NULL;
    double slope = 0;
    ek_tensor *y = ek_run_unary(EK_UNARY_RELU, x, 0, 0);
    return EK_RECORD(y, &relu_operation, EK_INPUTS(x), EK_SAVED(y), EK_ATTRIBUTES(slope));
}

ek_tensor *ek_f_leaky_relu(ek_tensor *x, double negative_slope)
{
    if (!ek_floating("leaky_relu", "x", x))
        return NULL;
    ek_tensor *y = ek_run_unary(EK_UNARY_LEAKY_RELU, x, negative_slope, 0);
    /* The output has the input's sign unless the slope is negative. The output is better to save,
     * because the next layer saves it, too. */
    ek_tensor *saved = negative_slope >= 0 ? y : x;
    return EK_RECORD(y, &leaky_relu_operation, EK_INPUTS(x), EK_SAVED(saved),
                     EK_ATTRIBUTES(negative_slope));
}

/* ---- gradients of sigmoid and tanh: operations of x and y, with x saved if y wants a gradient
 * ---- */

static ek_tensor *unary_gradient_of(const ek_operation *operation, ek_binary formula, ek_tensor *x,
                                    ek_tensor *y)
{
    if (!ek_floating(operation->name, "x", x) || !ek_given(operation->name, "y", y))
        return NULL;
    return EK_RECORD(ek_run_binary(formula, x, y, 0), operation, EK_INPUTS(x, y),
                     EK_SAVED(ek_wants(y) ? x : NULL, y));
}

/* The backward of z = x y (1 - y): dx = h y (1 - y), dy = h x (1 - 2 y). */
static int sigmoid_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                     ek_tensor **results)
{
    ek_tensor *h = gradients[0], *y = ek_node_saved(node, 1);
    if (ek_node_needs(node, 0))
        results[0] = ek_sigmoid_gradient(h, y);
    if (ek_node_needs(node, 1))
        results[1] =
            ek_mul(ek_mul(h, ek_node_saved(node, 0)), ek_add_scalar(ek_mul_scalar(y, -2), 1));
    return 0;
}
EK_OPERATION(sigmoid_gradient, "sigmoid_gradient", sigmoid_gradient_backward);

ek_tensor *ek_sigmoid_gradient(ek_tensor *x, ek_tensor *y)
{
    return unary_gradient_of(&sigmoid_gradient_operation, EK_BINARY_SIGMOID_GRADIENT, x, y);
}

/* The backward of z = x (1 - y^2): dx = h (1 - y^2), dy = -2 h x y. */
static int tanh_gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *h = gradients[0], *y = ek_node_saved(node, 1);
    if (ek_node_needs(node, 0))
        results[0] = ek_tanh_gradient(h, y);
    if (ek_node_needs(node, 1))
        results[1] = ek_mul(ek_mul(h, ek_node_saved(node, 0)), ek_mul_scalar(y, -2));
    return 0;
}
EK_OPERATION(tanh_gradient, "tanh_gradient", tanh_gradient_backward);

ek_tensor *ek_tanh_gradient(ek_tensor *x, ek_tensor *y)
{
    return unary_gradient_of(&tanh_gradient_operation, EK_BINARY_TANH_GRADIENT, x, y);
}

/* ---- dropout ---- */

/* A mask of 0 with probability p, else 1 / (1 - p), drawn in row-major order on the CPU and laid
 * out like x. f64 draws PyTorch's numbers. */
static ek_tensor *dropout_mask(const ek_tensor *x, double p)
{
    ek_shape shape = ek_tensor_shape(x);
    ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    if (p == 1)
        return ek_zeros(shape, x->dtype, x->storage->dev->id);
    ek_tensor *mask = ek_empty(shape, dtype);
    if (!mask)
        return NULL;
    float *narrow = ek_tensor_data(mask);
    double *wide = ek_tensor_data(mask), scale = 1 / (1 - p);
    int64_t count = ek_count(mask);
    ek_generator *generator = ek_generator_lock(NULL);
    for (int64_t i = 0; i < count; i++) {
        /* A product instead of a branch, because the processor cannot predict a coin. */
        if (dtype == EK_F64)
            wide[i] = scale * (ek_generator_f64(generator) < 1 - p);
        else
            narrow[i] = (float)(scale * ((double)ek_generator_f32(generator) >= p));
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

ek_tensor *ek_f_dropout(ek_tensor *x, double p, bool training)
{
    if (!ek_floating("dropout", "x", x))
        return NULL;
    if (!(p >= 0 && p <= 1))
        return EK_REFUSE(EK_E_INVALID, "dropout: p is %g; it must lie between 0 and 1", p);
    if (!training || p == 0 || ek_count(x) == 0)
        return ek_itself(x);
    return ek_mul(x, dropout_mask(x, p));
}
