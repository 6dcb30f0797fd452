/* conv.c: convolution and its two gradients.
 *
 * y = c(x, w) is linear in each operand, so the gradients are its adjoints: x' = input_gradient(y',
 * w) and w' = weight_gradient(x, y'). Each is an operation of its own, and the derivatives of all
 * three are the three again:
 *
 *     c(x, w)                 d/dx = input_gradient(g, w)    d/dw  = weight_gradient(x, g)
 *     input_gradient(dy, w)   d/ddy = c(g, w)                d/dw  = weight_gradient(g, dy)
 *     weight_gradient(x, dy)  d/dx = input_gradient(dy, g)   d/ddy = c(x, g)
 *
 * A transposed convolution is the input gradient, applied as a forward: the same three in other
 * roles. Images and their weights are channels-last inside, volumes row-major. An operand is saved
 * only if another's gradient needs it. */
#include "ops/conv.h"

#include "ops/ops.h"

/* The gradient of a bias: the sum over batch and space. */
static ek_tensor *sum_to_channels(ek_tensor *y)
{
    if (!y)
        return NULL;
    ek_reduce_options options = {.x = y, .dims = {0}, .dim_count = 1};
    for (int i = 2; i < y->ndim; i++)
        options.dims[options.dim_count++] = i;
    return ek_sum_with(options);
}

/* Its adjoint. */
static ek_tensor *spread_channels(ek_tensor *bias, const ek_shape *shape)
{
    ek_shape channels = {.ndim = shape->ndim};
    for (int i = 0; i < shape->ndim; i++)
        channels.dims[i] = i == 1 ? -1 : 1;
    return ek_expand(ek_reshape(bias, channels), *shape);
}

int ek_conv_forward_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_conv_attributes *attributes = ek_node_attributes(node);
    ek_tensor *dy = gradients[0];
    if (ek_node_needs(node, 1)) {
        results[2] = ek_node_destination(node, 2);
        EK_TRY(ek_conv_weight_gradient(ek_node_saved(node, 0), dy, attributes,
                                       ek_node_destination(node, 1),
                                       ek_node_needs(node, 2) ? &results[2] : NULL, &results[1]));
    } else if (ek_node_needs(node, 2)) {
        results[2] = sum_to_channels(dy);
    }
    if (ek_node_needs(node, 0))
        results[0] = ek_conv_input_gradient(dy, ek_node_saved(node, 1), NULL, attributes);
    return 0;
}

/* Inputs dy, w, bias. */
int ek_conv_input_gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_conv_attributes *attributes = ek_node_attributes(node);
    if (ek_node_needs(node, 0))
        results[0] = ek_conv_forward(gradients[0], ek_node_saved(node, 1), NULL, attributes);
    if (ek_node_needs(node, 1))
        EK_TRY(ek_conv_weight_gradient(gradients[0], ek_node_saved(node, 0), attributes,
                                       ek_node_destination(node, 1), NULL, &results[1]));
    if (ek_node_needs(node, 2))
        results[2] = sum_to_channels(gradients[0]);
    return 0;
}

/* Inputs x, dy; outputs dw, dbias. */
int ek_conv_weight_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                     ek_tensor **results)
{
    const ek_conv_attributes *attributes = ek_node_attributes(node);
    ek_tensor *ddw = gradients[0];
    ek_tensor *ddbias = gradients[1];
    if (ek_node_needs(node, 0) && ddw)
        results[0] = ek_conv_input_gradient(ek_node_saved(node, 1), ddw, NULL, attributes);
    if (ek_node_needs(node, 1) && ddw)
        results[1] = ek_conv_forward(ek_node_saved(node, 0), ddw, ddbias, attributes);
    else if (ek_node_needs(node, 1) && ddbias)
        results[1] = spread_channels(ddbias, &attributes->y);
    return 0;
}

/* As far as there is such an order: for images and their weights. */
static ek_tensor *channels_last(ek_tensor *x)
{
    return ek_contiguous(x, EK_CHANNELS_LAST);
}

ek_tensor *ek_conv_forward(ek_tensor *x, ek_tensor *w, ek_tensor *bias,
                           const ek_conv_attributes *attributes)
{
    x = channels_last(x);
    w = channels_last(w);
    if (!x || !w)
        return NULL;
    ek_dev *dev = ek_tensor_dev(x);
    ek_tensor *y = ek_tensor_new(dev, x->dtype, &attributes->y, EK_CHANNELS_LAST);
    if (!y)
        return NULL;
    if (ek_count(y) > 0 &&
        ek_kernels_of(x)->conv_forward(dev, y, x, w, bias, &attributes->params) < 0)
        return NULL;
    return EK_RECORD(y, &attributes->family->forward, EK_INPUTS(x, w, bias),
                     EK_SAVED(ek_wants(w) ? x : NULL, ek_wants(x) ? w : NULL),
                     EK_ATTRIBUTES(*attributes));
}

/* x += bias, one pass more over fresh memory. */
static int add_to_channels(ek_tensor *x, const ek_tensor *bias)
{
    ek_tensor view;
    ek_borrow(&view, bias);
    view.ndim = x->ndim;
    for (int i = 0; i < x->ndim; i++) {
        view.shape[i] = x->shape[i];
        view.stride[i] = i == 1 ? bias->stride[0] : 0;
    }
    return ek_kernels_of(x)->binary(ek_tensor_dev(x), EK_BINARY_ADD, x, x, &view, 1);
}

ek_tensor *ek_conv_input_gradient(ek_tensor *dy, ek_tensor *w, ek_tensor *bias,
                                  const ek_conv_attributes *attributes)
{
    dy = channels_last(dy);
    w = channels_last(w);
    if (!dy || !w)
        return NULL;
    ek_dev *dev = ek_tensor_dev(dy);
    ek_tensor *dx = ek_tensor_new(dev, dy->dtype, &attributes->x, EK_CHANNELS_LAST);
    if (!dx)
        return NULL;
    if (ek_count(dx) > 0 &&
        (ek_kernels_of(dy)->conv_input_gradient(dev, dx, dy, w, &attributes->params) < 0 ||
         (bias && add_to_channels(dx, bias) < 0)))
        return NULL;
    return EK_RECORD(dx, &attributes->family->input_gradient, EK_INPUTS(dy, w, bias),
                     EK_SAVED(ek_wants(w) ? dy : NULL, ek_wants(dy) ? w : NULL),
                     EK_ATTRIBUTES(*attributes));
}

int ek_conv_weight_gradient(ek_tensor *x, ek_tensor *dy, const ek_conv_attributes *attributes,
                            ek_tensor *dw, ek_tensor **dbias, ek_tensor **result)
{
    x = channels_last(x);
    dy = channels_last(dy);
    if (!x || !dy)
        return ek_error_pending();
    ek_dev *dev = ek_tensor_dev(x);
    if (!dw)
        dw = ek_tensor_new(dev, x->dtype, &attributes->w, EK_CHANNELS_LAST);
    ek_tensor *db = NULL;
    if (dbias)
        db = *dbias ? *dbias
                    : ek_tensor_new(dev, x->dtype, &EK_SHAPE(attributes->w.dims[0]), EK_CONTIGUOUS);
    if (!dw || (dbias && !db))
        return ek_error_pending();
    const ek_kernels *kernels = ek_kernels_of(x);
    if (ek_count(dy) > 0) {
        EK_TRY(kernels->conv_weight_gradient(dev, dw, db, x, dy, &attributes->params));
    } else {
        EK_TRY(kernels->fill(dev, dw, 0));
        if (db)
            EK_TRY(kernels->fill(dev, db, 0));
    }
    *result = dw;
    if (dbias)
        *dbias = db;
    return ek_record_outputs((ek_tensor *const[]){dw, db}, 2, &attributes->family->weight_gradient,
                             &(const ek_record_options){EK_INPUTS(x, dy),
                                                        EK_SAVED(ek_wants(dy) ? x : NULL,
                                                                 ek_wants(x) ? dy : NULL),
                                                        EK_ATTRIBUTES(*attributes)});
}
