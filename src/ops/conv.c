/* conv.c: two-dimensional convolution and its two gradients.
 *
 * y = c(x, w) is linear in each operand, so the gradients are its adjoints: x' = input_gradient(y',
 * w) and w' = weight_gradient(x, y'). Each is an operation of its own, and the derivatives of all
 * three are the three again:
 *
 *     c(x, w)                 d/dx = input_gradient(g, w)    d/dw  = weight_gradient(x, g)
 *     input_gradient(dy, w)   d/ddy = c(g, w)                d/dw  = weight_gradient(g, dy)
 *     weight_gradient(x, dy)  d/dx = input_gradient(dy, g)   d/ddy = c(x, g)
 *
 * Activations and weights are channels-last inside. An operand is saved only if another's gradient
 * needs it. */
#include "ops/ops.h"
#include "ops/spatial.h"

typedef struct conv_attributes {
    ek_conv_params params;
    ek_shape x, w, y;
} conv_attributes;

static ek_tensor *run_forward(ek_tensor *x, ek_tensor *w, ek_tensor *bias,
                              const conv_attributes *attributes);
static ek_tensor *run_input_gradient(ek_tensor *dy, ek_tensor *w,
                                     const conv_attributes *attributes);
static int run_weight_gradient(ek_tensor *x, ek_tensor *dy, const conv_attributes *attributes,
                               ek_tensor *dw, ek_tensor **dbias, ek_tensor **result);

/* The gradient of a bias: the sum over batch and space. */
static ek_tensor *sum_to_channels(ek_tensor *dy)
{
    return ek_sum(dy, .dims = {0, 2, 3}, .dim_count = 3);
}

static int conv_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const conv_attributes *attributes = ek_node_attributes(node);
    ek_tensor *dy = gradients[0];
    if (ek_node_needs(node, 1)) {
        results[2] = ek_node_destination(node, 2);
        EK_TRY(run_weight_gradient(ek_node_saved(node, 0), dy, attributes,
                                   ek_node_destination(node, 1),
                                   ek_node_needs(node, 2) ? &results[2] : NULL, &results[1]));
    } else if (ek_node_needs(node, 2)) {
        results[2] = sum_to_channels(dy);
    }
    if (ek_node_needs(node, 0))
        results[0] = run_input_gradient(dy, ek_node_saved(node, 1), attributes);
    return 0;
}

/* Inputs dy, w. */
static int input_gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const conv_attributes *attributes = ek_node_attributes(node);
    if (ek_node_needs(node, 0))
        results[0] = run_forward(gradients[0], ek_node_saved(node, 1), NULL, attributes);
    if (ek_node_needs(node, 1))
        EK_TRY(run_weight_gradient(gradients[0], ek_node_saved(node, 0), attributes,
                                   ek_node_destination(node, 1), NULL, &results[1]));
    return 0;
}

/* Inputs x, dy; outputs dw, dbias. */
static int weight_gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const conv_attributes *attributes = ek_node_attributes(node);
    ek_tensor *ddw = gradients[0];
    ek_tensor *ddbias = gradients[1];
    if (ek_node_needs(node, 0) && ddw)
        results[0] = run_input_gradient(ek_node_saved(node, 1), ddw, attributes);
    if (ek_node_needs(node, 1) && ddw)
        results[1] = run_forward(ek_node_saved(node, 0), ddw, ddbias, attributes);
    else if (ek_node_needs(node, 1) && ddbias)
        results[1] = ek_expand(ek_reshape(ddbias, EK_SHAPE(1, -1, 1, 1)), attributes->y);
    return 0;
}

static const ek_operation conv_operation = {.name = "conv2d", .backward = conv_backward};
static const ek_operation input_gradient_operation = {.name = "conv2d_input_gradient",
                                                      .backward = input_gradient_backward};
static const ek_operation weight_gradient_operation = {.name = "conv2d_weight_gradient",
                                                       .backward = weight_gradient_backward};

static ek_tensor *channels_last(ek_tensor *x)
{
    return ek_contiguous(x, EK_CHANNELS_LAST);
}

static ek_tensor *run_forward(ek_tensor *x, ek_tensor *w, ek_tensor *bias,
                              const conv_attributes *attributes)
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
    return EK_RECORD(y, &conv_operation, EK_INPUTS(x, w, bias),
                     EK_SAVED(ek_wants(w) ? x : NULL, ek_wants(x) ? w : NULL),
                     EK_ATTRIBUTES(*attributes));
}

static ek_tensor *run_input_gradient(ek_tensor *dy, ek_tensor *w, const conv_attributes *attributes)
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
        ek_kernels_of(dy)->conv_input_gradient(dev, dx, dy, w, &attributes->params) < 0)
        return NULL;
    return EK_RECORD(dx, &input_gradient_operation, EK_INPUTS(dy, w),
                     EK_SAVED(ek_wants(w) ? dy : NULL, ek_wants(dy) ? w : NULL),
                     EK_ATTRIBUTES(*attributes));
}

/* *result is the weight's gradient, written to `dw` if that is given, else to a new tensor. If
 * `dbias` is given, the bias's is made in the same pass: in *dbias, or a new tensor where that is
 * NULL. */
static int run_weight_gradient(ek_tensor *x, ek_tensor *dy, const conv_attributes *attributes,
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
    return ek_record_outputs((ek_tensor *const[]){dw, db}, 2, &weight_gradient_operation,
                             &(const ek_record_options){EK_INPUTS(x, dy),
                                                        EK_SAVED(ek_wants(dy) ? x : NULL,
                                                                 ek_wants(x) ? dy : NULL),
                                                        EK_ATTRIBUTES(*attributes)});
}

/* ---- the public operation ---- */

static int read_params(ek_conv_params *params, const ek_conv_options *options)
{
    params->dims = 2;
    ek_spatial_pair(params->stride, options->strides, options->stride, 1);
    ek_spatial_pair(params->padding, options->paddings, options->padding, 0);
    ek_spatial_pair(params->dilation, options->dilations, options->dilation, 1);
    params->groups = options->groups ? options->groups : 1;
    EK_TRY(ek_spatial_least("conv2d", "stride", params->stride, 1));
    EK_TRY(ek_spatial_least("conv2d", "padding", params->padding, 0));
    EK_TRY(ek_spatial_least("conv2d", "dilation", params->dilation, 1));
    if (params->groups < 1)
        return EK_FAIL(EK_E_INVALID, "conv2d: groups must be at least 1, got %d", options->groups);
    return 0;
}

static int check_shapes(const ek_tensor *x, const ek_tensor *w, int64_t groups)
{
    char x_text[200], w_text[200];
    EK_TRY(ek_spatial_check("conv2d", x));
    if (w->ndim != 4)
        return EK_FAIL(EK_E_SHAPE,
                       "conv2d: expected a weight of 4 dimensions (O, C / groups, kh, kw), got %s",
                       ek_tensor_text(w, w_text));
    if (x->shape[1] != w->shape[1] * groups)
        return EK_FAIL(
            EK_E_SHAPE,
            "conv2d: with groups %lld, weight %s expects x to have %lld channels, got %s",
            (long long)groups, ek_tensor_text(w, w_text), (long long)(w->shape[1] * groups),
            ek_tensor_text(x, x_text));
    if (w->shape[0] < 1 || w->shape[0] % groups != 0)
        return EK_FAIL(EK_E_SHAPE,
                       "conv2d: the weight's output channels must be a positive multiple of groups "
                       "%lld, got %s",
                       (long long)groups, ek_tensor_text(w, w_text));
    if (w->shape[1] < 1 || w->shape[2] < 1 || w->shape[3] < 1)
        return EK_FAIL(EK_E_SHAPE, "conv2d: the weight must have no dimension of size 0, got %s",
                       ek_tensor_text(w, w_text));
    return 0;
}

/* Fills attributes->y. */
static int output_shape(conv_attributes *attributes)
{
    const ek_conv_params *params = &attributes->params;
    attributes->y = EK_SHAPE(attributes->x.dims[0], attributes->w.dims[0], 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t size = attributes->x.dims[2 + i] + 2 * params->padding[i];
        int64_t extent = params->dilation[i] * (attributes->w.dims[2 + i] - 1) + 1;
        if (size < extent)
            return EK_FAIL(EK_E_SHAPE,
                           "conv2d: a kernel of size %lld with dilation %lld does not fit a padded "
                           "%s of %lld",
                           (long long)attributes->w.dims[2 + i], (long long)params->dilation[i],
                           i == 0 ? "height" : "width", (long long)size);
        attributes->y.dims[2 + i] = (size - extent) / params->stride[i] + 1;
    }
    return 0;
}

ek_tensor *ek_f_conv2d_with(ek_conv_options options)
{
    ek_tensor *x = options.x, *w = options.weight, *bias = options.bias;
    if (!ek_given("conv2d", "x", x) || !ek_given("conv2d", "weight", w) || !ek_optional(bias) ||
        !ek_alike("conv2d", x, w) || (bias && !ek_alike("conv2d", x, bias)))
        return NULL;
    conv_attributes attributes = {.x = ek_tensor_shape(x), .w = ek_tensor_shape(w)};
    if (read_params(&attributes.params, &options) < 0 ||
        check_shapes(x, w, attributes.params.groups) < 0 || output_shape(&attributes) < 0 ||
        (bias && !ek_of_shape("conv2d", "bias", bias, &EK_SHAPE(w->shape[0]))))
        return NULL;
    ek_scope scope = ek_scope_begin();
    return ek_scope_end_with(&scope, run_forward(x, w, bias, &attributes));
}
