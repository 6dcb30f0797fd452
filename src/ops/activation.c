/* activation.c: relu, gradients of activations, and dropout. A gradient that is one fused kernel is
 * an operation of its own, so that it can be differentiated again. */
#include "core/generator.h"
#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- relu, leaky relu: dx = slope g where y <= 0, else g ---- */

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
    /* The output has the input's sign unless the slope is negative, and the next layer saves it
     * too. */
    ek_tensor *saved = negative_slope >= 0 ? y : x;
    return EK_RECORD(y, &leaky_relu_operation, EK_INPUTS(x), EK_SAVED(saved),
                     EK_ATTRIBUTES(negative_slope));
}

/* ---- of sigmoid: dx = g y (1 - y) ---- */

/* Of z = x y (1 - y): dx = h y (1 - y), dy = h x (1 - 2 y). */
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
    if (!ek_floating("sigmoid_gradient", "x", x) || !ek_given("sigmoid_gradient", "y", y))
        return NULL;
    return EK_RECORD(ek_run_binary(EK_BINARY_SIGMOID_GRADIENT, x, y, 0),
                     &sigmoid_gradient_operation, EK_INPUTS(x, y),
                     EK_SAVED(ek_wants(y) ? x : NULL, y));
}

/* ---- of tanh: dx = g (1 - y^2) ---- */

/* Of z = x (1 - y^2): dx = h (1 - y^2), dy = -2 h x y. */
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
    if (!ek_floating("tanh_gradient", "x", x) || !ek_given("tanh_gradient", "y", y))
        return NULL;
    return EK_RECORD(ek_run_binary(EK_BINARY_TANH_GRADIENT, x, y, 0), &tanh_gradient_operation,
                     EK_INPUTS(x, y), EK_SAVED(ek_wants(y) ? x : NULL, y));
}

/* ---- dropout ---- */

/* 0 with probability p, else 1 / (1 - p): drawn in row-major order on the CPU, laid out like x.
 * Those of f64 are PyTorch's. */
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
        /* A product, since the processor cannot guess which way a coin falls. */
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
