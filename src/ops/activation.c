/* activation.c: activation functions. A gradient that is one fused kernel is an operation, so that
 * it can be differentiated again. */
#include <math.h>

#include "ops/autocast.h"
#include "ops/linear.h"
#include "ops/unary.h"

/* ---- sigmoid, tanh and functions of them ---- */

UNARY_OPERATION(ek_f_sigmoid, "sigmoid", SIGMOID, y, ek_sigmoid_gradient(g, y), .wide = false)
UNARY_OPERATION(ek_f_tanh, "tanh", TANH, y, ek_tanh_gradient(g, y), .wide = false)
UNARY_FUSED_OPERATION(ek_f_silu, "silu", SILU, .wide = false, ek_mul(x, ek_f_sigmoid(x)))
UNARY_FUSED_OPERATION(ek_f_mish, "mish", MISH, .wide = false, ek_mul(x, ek_f_tanh(ek_log1p_exp(x))))
UNARY_FUSED_OPERATION(ek_f_log_sigmoid, "log_sigmoid", LOG_SIGMOID, .wide = false,
                      ek_neg(ek_log1p_exp(ek_neg(x))))
UNARY_FUSED(ek_f_gelu, "gelu", GELU, .choices = 2,
            ek_mul(x, a ? ek_f_sigmoid(ek_mul(x, ek_affine(ek_square(x), 0.07135481627260025,
                                                           1.5957691216057308)))
                        : ek_ndtr(x)))
UNARY_CHOICE(ek_f_gelu, ek_gelu_approximate, approximate, "EK_GELU_NONE or EK_GELU_TANH")

ek_tensor *ek_gelu_recorded(ek_tensor *y, ek_tensor *x, ek_gelu_approximate approximate)
{
    const unary_numbers numbers = {approximate, 0};
    return EK_RECORD(y, &ek_f_gelu_row.operation, EK_INPUTS(x), EK_SAVED(x),
                     EK_ATTRIBUTES(numbers));
}

ek_tensor *ek_f_tanhshrink(ek_tensor *x)
{
    return ek_sub(x, ek_f_tanh(x));
}

ek_tensor *ek_f_softmin(ek_tensor *x, int dim)
{
    return ek_floating("softmin", "x", x) ? ek_f_softmax(ek_neg(x), dim) : NULL;
}

ek_tensor *ek_f_glu(ek_tensor *x, int dim)
{
    if (!ek_floating("glu", "x", x) || (dim = ek_dimension("glu", x, dim)) < 0)
        return NULL;
    int64_t half = x->shape[dim] / 2;
    if (x->shape[dim] % 2) {
        return EK_REFUSE(EK_E_SHAPE,
                         "glu: dimension %d has %lld elements, and must have an even number", dim,
                         (long long)x->shape[dim]);
    }
    return ek_mul(ek_narrow(x, dim, 0, half), ek_f_sigmoid(ek_narrow(x, dim, half, half)));
}

/* ---- softplus: the slope s has the slope a s (1 - s), also where it is 1 ---- */

UNARY_ROW(softplus_slope, "softplus_slope", SOFTPLUS_SLOPE, y,
          ek_mul_scalar(ek_sigmoid_gradient(g, y), a), .wide = true)
UNARY_ROW(softplus, "softplus", SOFTPLUS, x,
          ek_mul(g, ek_unary_apply(&softplus_slope_row, x, a, b)), .wide = true)

ek_tensor *ek_log1p_exp(ek_tensor *x)
{
    return ek_unary_apply(&softplus_row, x, 1, (double)INFINITY);
}

ek_tensor *ek_f_softplus_with(ek_softplus_options options)
{
    return ek_unary_apply(&softplus_row, options.x, options.beta, options.threshold);
}

/* ---- exponential below 0 ---- */

/* x, or below 0 `factor` (e^(x / scale) - 1) */
static ek_tensor *elu_below_0(ek_tensor *x, double factor, double scale)
{
    if (!x)
        return NULL;
    ek_tensor *zero = ek_number_like(x, 0);
    ek_tensor *is_positive = ek_gt(x, zero);
    ek_tensor *below = ek_expm1(ek_mul_scalar(ek_where(is_positive, zero, x), 1 / scale));
    return ek_where(is_positive, x, ek_mul_scalar(below, factor));
}

UNARY_FUSED(elu, "elu", ELU, .wide = false, elu_below_0(x, a, 1))
UNARY_FUSED(celu, "celu", CELU, .wide = false, elu_below_0(x, a, a))
UNARY_FUSED_OPERATION(ek_f_selu, "selu", SELU, .wide = false,
                      ek_mul_scalar(elu_below_0(x, 1.6732632423543772, 1), 1.0507009873554805))

ek_tensor *ek_f_elu(ek_tensor *x, double alpha)
{
    return ek_unary_apply(&elu_row, x, alpha, 0);
}

ek_tensor *ek_f_celu(ek_tensor *x, double alpha)
{
    if (alpha == 0)
        return EK_REFUSE(EK_E_INVALID, "celu: alpha is 0, and x / alpha is needed");
    return ek_unary_apply(&celu_row, x, alpha, 0);
}

/* ---- linear in pieces: a gradient passes, or is multiplied, where a mask is not above 0 ---- */

UNARY_OPERATION(ek_f_relu, "relu", RELU, y, ek_relu_gradient(g, y, 0), .wide = false)

/* leaky_relu saves the output, because the next layer saves it, too: with a slope that isn't
 * negative, the output has the input's sign. falling_relu, for negative slopes, saves the input. */
UNARY_ROW(leaky_relu, "leaky_relu", LEAKY_RELU, y, ek_relu_gradient(g, y, a), .wide = false)
UNARY_ROW(falling_relu, "leaky_relu", LEAKY_RELU, x, ek_relu_gradient(g, x, a), .wide = false)

ek_tensor *ek_f_leaky_relu(ek_tensor *x, double negative_slope)
{
    return ek_unary_apply(negative_slope >= 0 ? &leaky_relu_row : &falling_relu_row, x,
                          negative_slope, 0);
}

UNARY_ROW(hardtanh, "hardtanh", CLAMP, x,
          ek_relu_gradient(g, ek_run_unary(EK_UNARY_OPEN_INSIDE, x, a, b), 0), .wide = false)
UNARY_ROW(relu6, "relu6", CLAMP, x,
          ek_relu_gradient(g, ek_run_unary(EK_UNARY_OPEN_INSIDE, x, a, b), 0), .wide = false)
UNARY_OPERATION(ek_f_hardsigmoid, "hardsigmoid", HARDSIGMOID, x,
                ek_div_scalar(ek_relu_gradient(g, ek_run_unary(EK_UNARY_OPEN_INSIDE, x, -3, 3), 0),
                              6),
                .wide = false)
UNARY_ROW(hardshrink, "hardshrink", HARDSHRINK, x,
          ek_relu_gradient(g, ek_run_unary(EK_UNARY_OUTSIDE, x, -a, a), 0), .wide = false)
UNARY_ROW(softshrink, "softshrink", SOFTSHRINK, x,
          ek_relu_gradient(g, ek_run_unary(EK_UNARY_OUTSIDE, x, -a, a), 0), .wide = false)
UNARY_ROW(threshold, "threshold", THRESHOLD, x,
          ek_relu_gradient(g, ek_run_unary(EK_UNARY_AFFINE, x, 1, -a), 0), .wide = false)
UNARY_FUSED_OPERATION(ek_f_hardswish, "hardswish", HARDSWISH, .wide = false,
                      ek_mul(x, ek_f_hardsigmoid(x)))
UNARY_FUSED_OPERATION(ek_f_softsign, "softsign", SOFTSIGN, .wide = false,
                      ek_div(x, ek_add_scalar(ek_abs(x), 1)))

ek_tensor *ek_f_hardtanh(ek_tensor *x, double low, double high)
{
    return ek_unary_apply(&hardtanh_row, x, low, high);
}

ek_tensor *ek_f_relu6(ek_tensor *x)
{
    return ek_unary_apply(&relu6_row, x, 0, 6);
}

ek_tensor *ek_f_hardshrink(ek_tensor *x, double lambda)
{
    return ek_unary_apply(&hardshrink_row, x, lambda, 0);
}

ek_tensor *ek_f_softshrink(ek_tensor *x, double lambda)
{
    if (!(lambda >= 0))
        return EK_REFUSE(EK_E_INVALID, "softshrink: lambda is %g; it must be at least 0", lambda);
    return ek_unary_apply(&softshrink_row, x, lambda, 0);
}

ek_tensor *ek_f_threshold(ek_tensor *x, double threshold, double value)
{
    return ek_unary_apply(&threshold_row, x, threshold, value);
}

ek_tensor *ek_f_prelu(ek_tensor *x, ek_tensor *weight)
{
    if (!ek_floating("prelu", "x", x) || !ek_floating("prelu", "weight", weight))
        return NULL;
    int64_t channels = x->ndim > 1 ? x->shape[1] : 1, count = ek_count(weight);
    if (weight->ndim > 1 || (count != 1 && count != channels)) {
        return EK_REFUSE(EK_E_SHAPE,
                         "prelu: weight has shape %s; there must be 1 element, or as many as "
                         "channels: %lld",
                         EK_SIZE_TEXT(weight), (long long)channels);
    }
    ek_shape shape = {.ndim = x->ndim};
    for (int i = 0; i < shape.ndim; i++)
        shape.dims[i] = i == 1 ? count : 1;
    ek_tensor *slopes = ek_reshape(weight, count == 1 ? ek_scalar_shape() : shape);
    return ek_where(ek_gt_scalar(x, 0), x, ek_mul(x, slopes));
}

/* ---- slope * x if y <= 0, else x ---- */

EK_BACKWARD(relu_gradient, double, ek_relu_gradient(g, ek_node_saved(node, 0), *a))
EK_OPERATION(relu_gradient, "relu_gradient", relu_gradient_backward);

ek_tensor *ek_relu_gradient(ek_tensor *x, ek_tensor *y, double slope)
{
    if (!ek_floating("relu_gradient", "x", x) || !ek_given("relu_gradient", "y", y))
        return NULL;
    ek_tensor *z = ek_run_binary(EK_BINARY_RELU_GRADIENT, x, y, slope);
    return EK_RECORD(z, &relu_gradient_operation, EK_INPUTS(x), EK_SAVED(y), EK_ATTRIBUTES(slope));
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
        results[1] = ek_mul(ek_mul(h, ek_node_saved(node, 0)), ek_affine(y, -2, 1));
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
