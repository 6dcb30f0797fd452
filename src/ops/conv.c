/* conv.c: convolution and transposed convolution over one, two and three dimensions.
 *
 * y = c(x, w) is linear in each operand, so the gradients are its adjoints: x' = input_gradient(y',
 * w) and w' = weight_gradient(x, y'). All three are operations, and their derivatives are these
 * three again:
 *
 *     c(x, w)                 d/dx = input_gradient(g, w)    d/dw  = weight_gradient(x, g)
 *     input_gradient(dy, w)   d/ddy = c(g, w)                d/dw  = weight_gradient(g, dy)
 *     weight_gradient(x, dy)  d/dx = input_gradient(dy, g)   d/ddy = c(x, g)
 *
 * A transposed convolution is the input gradient, applied as a forward: the three operations in
 * other roles. Internally images have the order of memory that the device prefers, their weights
 * are channels-last, and volumes are row-major. An operand is saved only if another operand's
 * gradient needs it. */
#include <string.h>

#include "ops/attributes.h"
#include "ops/autocast.h"
#include "ops/ops.h"
#include "ops/spatial.h"

/* The operations under one public name, as errors show them. */
typedef struct conv_family {
    const char *name;
    int dims; /* x's dimensions behind (N, C) */
    bool transposed;
    ek_operation forward, input_gradient, weight_gradient;
} conv_family;

/* ---- the three operations ---- */

/* Returns the order of memory that the device prefers for images. */
static ek_memory_format conv_format(const ek_tensor *x)
{
    return ek_kernels_of(x)->conv_format(ek_tensor_dev(x), x->dtype);
}

/* Returns images in the order of memory that the device prefers, and volumes row-major. */
static ek_tensor *conv_ordered(ek_tensor *x)
{
    return x ? ek_contiguous(x, conv_format(x)) : NULL;
}

/* The order of memory of images' weights on every device. Modules' parameters have it, too, so that
 * a parameter and its gradient are never copied. If a device prefers another order, its kernels
 * convert what they read and write. */
static const ek_memory_format conv_weight_format = EK_CHANNELS_LAST;

/* y from x and w. bias (O) may be NULL. */
static ek_tensor *conv_forward(ek_tensor *x, ek_tensor *w, ek_tensor *bias,
                               const ek_conv_attributes *attributes)
{
    x = conv_ordered(x);
    w = ek_contiguous(w, conv_weight_format);
    if (!x || !w)
        return NULL;
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(x), x->dtype, &attributes->y, conv_format(x));
    y = EK_RUN(y, conv_forward, x, w, bias, &attributes->params);
    return EK_RECORD(y, &attributes->family->forward, EK_INPUTS(x, w, bias),
                     EK_SAVED(ek_wants(w) ? x : NULL, ek_wants(x) ? w : NULL),
                     EK_ATTRIBUTES(*attributes));
}

/* Adds the bias to the channels of x, without history, because no graph holds the new tensor x. */
static int conv_add_to_channels(ek_tensor *x, const ek_tensor *bias)
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

/* Computes x from dy and w. bias (C), which is added to x, may be NULL. */
static ek_tensor *conv_input_gradient(ek_tensor *dy, ek_tensor *w, ek_tensor *bias,
                                      const ek_conv_attributes *attributes)
{
    dy = conv_ordered(dy);
    w = ek_contiguous(w, conv_weight_format);
    if (!dy || !w)
        return NULL;
    ek_tensor *dx = ek_tensor_new(ek_tensor_dev(dy), dy->dtype, &attributes->x, conv_format(dy));
    dx = EK_RUN(dx, conv_input_gradient, dy, w, &attributes->params);
    if (dx && bias && ek_count(dx) > 0 && conv_add_to_channels(dx, bias) < 0)
        return NULL;
    return EK_RECORD(dx, &attributes->family->input_gradient, EK_INPUTS(dy, w, bias),
                     EK_SAVED(ek_wants(w) ? dy : NULL, ek_wants(dy) ? w : NULL),
                     EK_ATTRIBUTES(*attributes));
}

/* *result is the gradient of the weight, in `dw`, or in a new tensor if dw is NULL. If `dbias` is
 * given, the bias's gradient is computed in the same pass, into *dbias, or into a new tensor if
 * *dbias is NULL. */
static int conv_weight_gradient(ek_tensor *x, ek_tensor *dy, const ek_conv_attributes *attributes,
                                ek_tensor *dw, ek_tensor **dbias, ek_tensor **result)
{
    x = conv_ordered(x);
    dy = conv_ordered(dy);
    if (!x || !dy)
        return ek_error_pending();
    ek_dev *dev = ek_tensor_dev(x);
    if (!dw)
        dw = ek_tensor_new(dev, x->dtype, &attributes->w, conv_weight_format);
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

/* ---- backwards, which every family has ---- */

/* Returns the gradient of a bias: y summed over batch and space. */
static ek_tensor *conv_sum_to_channels(ek_tensor *y)
{
    return ek_sum_mask(y, ~2U, ~2U);
}

/* The adjoint of conv_sum_to_channels. */
static ek_tensor *conv_spread_channels(ek_tensor *bias, const ek_shape *shape)
{
    ek_shape channels = {.ndim = shape->ndim};
    for (int i = 0; i < shape->ndim; i++)
        channels.dims[i] = i == 1 ? -1 : 1;
    return ek_expand(ek_reshape(bias, channels), *shape);
}

static int conv_forward_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_conv_attributes *attributes = ek_node_attributes(node);
    ek_tensor *dy = gradients[0];
    if (ek_node_needs(node, 0) && ek_node_needs(node, 1)) /* once for both */
        dy = conv_ordered(dy);
    if (!dy)
        return ek_error_pending();
    if (ek_node_needs(node, 1)) {
        results[2] = ek_node_destination(node, 2);
        EK_TRY(conv_weight_gradient(ek_node_saved(node, 0), dy, attributes,
                                    ek_node_destination(node, 1),
                                    ek_node_needs(node, 2) ? &results[2] : NULL, &results[1]));
    } else if (ek_node_needs(node, 2)) {
        results[2] = conv_sum_to_channels(dy);
    }
    if (ek_node_needs(node, 0))
        results[0] = conv_input_gradient(dy, ek_node_saved(node, 1), NULL, attributes);
    return 0;
}

/* Inputs dy, w, bias. */
static int conv_input_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                        ek_tensor **results)
{
    const ek_conv_attributes *attributes = ek_node_attributes(node);
    ek_tensor *g = gradients[0];
    if (ek_node_needs(node, 0) && ek_node_needs(node, 1))
        g = conv_ordered(g);
    if (!g)
        return ek_error_pending();
    if (ek_node_needs(node, 0))
        results[0] = conv_forward(g, ek_node_saved(node, 1), NULL, attributes);
    if (ek_node_needs(node, 1))
        EK_TRY(conv_weight_gradient(g, ek_node_saved(node, 0), attributes,
                                    ek_node_destination(node, 1), NULL, &results[1]));
    if (ek_node_needs(node, 2))
        results[2] = conv_sum_to_channels(gradients[0]);
    return 0;
}

/* Inputs x, dy; outputs dw, dbias. */
static int conv_weight_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                         ek_tensor **results)
{
    const ek_conv_attributes *attributes = ek_node_attributes(node);
    ek_tensor *ddw = gradients[0];
    ek_tensor *ddbias = gradients[1];
    if (ek_node_needs(node, 0) && ddw)
        results[0] = conv_input_gradient(ek_node_saved(node, 1), ddw, NULL, attributes);
    if (ek_node_needs(node, 1) && ddw)
        results[1] = conv_forward(ek_node_saved(node, 0), ddw, ddbias, attributes);
    else if (ek_node_needs(node, 1) && ddbias)
        results[1] = conv_spread_channels(ddbias, &attributes->y);
    return 0;
}

/* ---- options ---- */

static int conv_read_params(const conv_family *family, ek_conv_params *params,
                            const ek_conv_transpose_options *o, int64_t output_padding[3])
{
    const char *name = family->name;
    params->dims = family->dims;
    EK_TRY(
        ek_spatial_option(name, "stride", params->dims, o->strides, o->stride, 1, params->stride));
    EK_TRY(ek_spatial_option(name, "padding", params->dims, o->paddings, o->padding, 0,
                             params->padding));
    EK_TRY(ek_spatial_option(name, "dilation", params->dims, o->dilations, o->dilation, 1,
                             params->dilation));
    EK_TRY(ek_spatial_option(name, "output_padding", params->dims, o->output_paddings,
                             o->output_padding, 0, output_padding));
    params->groups = o->groups;
    if (params->groups < 1)
        return EK_FAIL(EK_E_INVALID, "%s: groups must be at least 1, got %lld", name,
                       (long long)params->groups);
    for (int i = 0; i < params->dims; i++) {
        if (output_padding[i] == 0)
            continue;
        if (output_padding[i] >= params->stride[i] && output_padding[i] >= params->dilation[i])
            return EK_FAIL(
                EK_E_INVALID,
                "%s: output_padding must be smaller than the stride or the dilation, got "
                "output_padding %lld, stride %lld and dilation %lld",
                name, (long long)output_padding[i], (long long)params->stride[i],
                (long long)params->dilation[i]);
    }
    return 0;
}

/* ---- shapes ---- */

static int conv_check_weight(const conv_family *family, const ek_tensor *w)
{
    static const char *const windows[] = {"", "k", "kh, kw", "kd, kh, kw"};
    if (w->ndim != family->dims + 2)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: expected a weight of %d dimensions (%s / groups, %s), got %s",
                       family->name, family->dims + 2, family->transposed ? "C, O" : "O, C",
                       windows[family->dims], EK_TENSOR_TEXT(w));
    for (int i = 1; i < w->ndim; i++)
        if (w->shape[i] < 1)
            return EK_FAIL(EK_E_SHAPE, "%s: the weight must have no dimension of size 0, got %s",
                           family->name, EK_TENSOR_TEXT(w));
    return 0;
}

static int conv_check_channels(const conv_family *family, const ek_tensor *x, const ek_tensor *w,
                               int64_t groups)
{
    int64_t channels = family->transposed ? w->shape[0] : w->shape[1] * groups;
    if (x->shape[1] != channels)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: with groups %lld, weight %s expects x to have %lld channels, got %s",
                       family->name, (long long)groups, EK_TENSOR_TEXT(w), (long long)channels,
                       EK_TENSOR_TEXT(x));
    if (w->shape[0] < 1 || w->shape[0] % groups != 0)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: the weight's %s channels must be a positive multiple of groups %lld, "
                       "got %s",
                       family->name, family->transposed ? "input" : "output", (long long)groups,
                       EK_TENSOR_TEXT(w));
    return 0;
}

/* Refuses sizes for which products of sizes and options could overflow. */
static int conv_check_sizes(const conv_family *family, const ek_tensor *x, const ek_tensor *w)
{
    if (w->shape[0] > INT32_MAX || w->shape[1] > INT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "%s: a weight of %lld x %lld channels is too large",
                       family->name, (long long)w->shape[0], (long long)w->shape[1]);
    for (int i = 2; i < x->ndim; i++)
        if (x->shape[i] > INT32_MAX || w->shape[i] > INT32_MAX)
            return EK_FAIL(EK_E_SHAPE, "%s: a %s of %lld is too large", family->name,
                           ek_spatial_direction(family->dims, i - 2),
                           (long long)(x->shape[i] > INT32_MAX ? x->shape[i] : w->shape[i]));
    return 0;
}

/* Sets the size of a convolution's result in direction i. */
static int conv_output_size(const ek_conv_attributes *a, int i, int64_t size, int64_t kernel,
                            int64_t *result)
{
    const ek_conv_params *params = &a->params;
    int64_t padded = size + 2 * params->padding[i];
    int64_t extent = params->dilation[i] * (kernel - 1) + 1;
    if (padded < extent)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: a kernel of size %lld with dilation %lld does not fit a padded %s of "
                       "%lld",
                       a->family->name, (long long)kernel, (long long)params->dilation[i],
                       ek_spatial_direction(params->dims, i), (long long)padded);
    *result = (padded - extent) / params->stride[i] + 1;
    return 0;
}

/* Sets the size of a transposed convolution's result in direction i. */
static int conv_transposed_size(const ek_conv_attributes *a, int i, int64_t size, int64_t kernel,
                                int64_t output_padding, int64_t *result)
{
    const ek_conv_params *params = &a->params;
    const char *direction = ek_spatial_direction(params->dims, i);
    if (size < 1)
        return EK_FAIL(EK_E_SHAPE, "%s: x has a %s of 0", a->family->name, direction);
    int64_t full =
        (size - 1) * params->stride[i] + params->dilation[i] * (kernel - 1) + output_padding + 1;
    *result = full - 2 * params->padding[i];
    if (*result < 1)
        return EK_FAIL(EK_E_SHAPE, "%s: padding %lld on both sides leaves nothing of a %s of %lld",
                       a->family->name, (long long)params->padding[i], direction, (long long)full);
    return 0;
}

/* Fills x, w and y; x and y change places for a transposed convolution. */
static int conv_read_shapes(ek_conv_attributes *a, const ek_tensor *x, const ek_tensor *w,
                            const int64_t output_padding[3])
{
    EK_TRY(ek_spatial_check(a->family->name, x, a->family->dims));
    EK_TRY(conv_check_weight(a->family, w));
    EK_TRY(conv_check_sizes(a->family, x, w));
    EK_TRY(conv_check_channels(a->family, x, w, a->params.groups));
    a->w = ek_tensor_shape(w);
    a->x = a->y = ek_tensor_shape(x);
    bool transposed = a->family->transposed;
    ek_shape *from = transposed ? &a->y : &a->x, *to = transposed ? &a->x : &a->y;
    to->dims[1] = transposed ? w->shape[1] * a->params.groups : w->shape[0];
    for (int i = 0; i < a->params.dims; i++) {
        int64_t size = from->dims[2 + i], kernel = a->w.dims[2 + i], *result = &to->dims[2 + i];
        EK_TRY(transposed ? conv_transposed_size(a, i, size, kernel, output_padding[i], result)
                          : conv_output_size(a, i, size, kernel, result));
    }
    return 0;
}

/* ---- calls ---- */

/* Lifts a convolution of one dimension to two. */
static void conv_lift(ek_conv_attributes *a)
{
    ek_spatial_lift(a->params.stride, 1);
    ek_spatial_lift(a->params.padding, 0);
    ek_spatial_lift(a->params.dilation, 1);
    a->params.dims = 2;
    ek_shape *const shapes[] = {&a->x, &a->w, &a->y};
    for (int i = 0; i < 3; i++) {
        ek_spatial_lift(shapes[i]->dims + 2, 1);
        shapes[i]->ndim = 4;
    }
}

static ek_tensor *conv_run(ek_conv_attributes *a, ek_tensor *x, ek_tensor *w, ek_tensor *bias)
{
    ek_scope scope = ek_scope_begin();
    bool lifted = a->params.dims == 1;
    if (lifted) {
        conv_lift(a);
        x = ek_unsqueeze(x, 2);
        w = ek_unsqueeze(w, 2);
    }
    ek_tensor *y =
        a->family->transposed ? conv_input_gradient(x, w, bias, a) : conv_forward(x, w, bias, a);
    return ek_scope_return(&scope, lifted ? ek_squeeze(y, 2) : y);
}

static ek_tensor *conv_checked(const conv_family *family, const ek_conv_transpose_options *options)
{
    const char *name = family->name;
    ek_tensor *x = options->x, *w = options->weight, *bias = options->bias;
    if (!ek_given(name, "x", x) || !ek_given(name, "weight", w) || !ek_optional(bias) ||
        !ek_alike(name, x, w) || (bias && !ek_alike(name, x, bias)))
        return NULL;
    ek_conv_attributes attributes = {.family = family};
    int64_t output_padding[3];
    if (conv_read_params(family, &attributes.params, options, output_padding) < 0 ||
        conv_read_shapes(&attributes, x, w, output_padding) < 0)
        return NULL;
    int64_t outputs = family->transposed ? attributes.x.dims[1] : attributes.y.dims[1];
    if (bias && !ek_of_shape(name, "bias", bias, &EK_SHAPE(outputs)))
        return NULL;
    return conv_run(&attributes, x, w, bias);
}

/* Replaces EK_SAME by numbers. If the padding of a direction is odd, the larger half comes after
 * the last element, as in PyTorch. */
static int conv_pad_same(const conv_family *family, ek_conv_transpose_options *o)
{
    const char *name = family->name;
    int64_t stride[3], dilation[3], pad[6] = {0};
    bool uneven = false;
    if (family->transposed)
        return EK_FAIL(EK_E_INVALID, "%s: EK_SAME is not for transposed convolution", name);
    EK_TRY(ek_spatial_option(name, "stride", family->dims, o->strides, o->stride, 1, stride));
    EK_TRY(
        ek_spatial_option(name, "dilation", family->dims, o->dilations, o->dilation, 1, dilation));
    EK_TRY(conv_check_weight(family, o->weight));
    EK_TRY(ek_spatial_check(name, o->x, family->dims));
    EK_TRY(conv_check_sizes(family, o->x, o->weight));
    for (int i = 0; i < family->dims; i++) {
        const int64_t total = dilation[i] * (o->weight->shape[2 + i] - 1);
        if (stride[i] != 1 || o->paddings[i] != 0 || total > INT32_MAX)
            return EK_FAIL(EK_E_INVALID,
                           "%s: EK_SAME goes with a stride of 1, no other padding and windows of "
                           "at most %d elements",
                           name, INT32_MAX);
        o->paddings[i] = (int)(total / 2);
        pad[2 * (family->dims - 1 - i) + 1] = total % 2;
        uneven = uneven || total % 2;
    }
    o->padding = 0;
    if (uneven)
        o->x = ek_f_pad(o->x, pad, 2 * family->dims, EK_PAD_CONSTANT, 0);
    return o->x ? 0 : ek_error_pending();
}

static ek_tensor *conv_convolve(const conv_family *family, ek_conv_transpose_options *options)
{
    bool single;
    ek_scope scope = ek_scope_begin();
    options->x = ek_autocast_image(ek_spatial_batched(options->x, family->dims, &single));
    options->weight = ek_autocast_narrow(options->weight);
    options->bias = ek_autocast_narrow(options->bias);
    bool fits = options->padding != EK_SAME || !options->x || !options->weight ||
                conv_pad_same(family, options) >= 0;
    ek_tensor *y = fits ? conv_checked(family, options) : NULL;
    return ek_scope_return(&scope, single ? ek_squeeze(y, 0) : y);
}

/* Returns the options of a convolution as those of a transposed convolution, which has more. */
static ek_conv_transpose_options conv_options_of(const ek_conv_options *o)
{
    ek_conv_transpose_options all = {.x = o->x,
                                     .weight = o->weight,
                                     .bias = o->bias,
                                     .stride = o->stride,
                                     .padding = o->padding,
                                     .dilation = o->dilation,
                                     .groups = o->groups};
    memcpy(all.strides, o->strides, sizeof all.strides);
    memcpy(all.paddings, o->paddings, sizeof all.paddings);
    memcpy(all.dilations, o->dilations, sizeof all.dilations);
    return all;
}

/* Defines a public convolution. FORWARD and INPUT_GRADIENT are suffixes of these operations' names:
 * a transposed convolution's forward is an input gradient, and the other way round. */
#define CONV_FAMILY(id, DIMS, TRANSPOSED, FORWARD, INPUT_GRADIENT)                                \
    static const conv_family id = {                                                               \
        .name = #id,                                                                              \
        .dims = DIMS,                                                                             \
        .transposed = TRANSPOSED,                                                                 \
        .forward = {.name = #id FORWARD, .backward = conv_forward_backward},                      \
        .input_gradient = {.name = #id INPUT_GRADIENT, .backward = conv_input_gradient_backward}, \
        .weight_gradient = {.name = #id "_weight_gradient",                                       \
                            .backward = conv_weight_gradient_backward}};
#define PUBLIC_CONV(id, DIMS)                                      \
    CONV_FAMILY(id, DIMS, false, "", "_input_gradient")            \
    ek_tensor *ek_f_##id##_with(ek_conv_options options)           \
    {                                                              \
        ek_conv_transpose_options all = conv_options_of(&options); \
        return conv_convolve(&id, &all);                           \
    }
#define PUBLIC_CONV_TRANSPOSE(id, DIMS)                            \
    CONV_FAMILY(id, DIMS, true, "_input_gradient", "")             \
    ek_tensor *ek_f_##id##_with(ek_conv_transpose_options options) \
    {                                                              \
        return conv_convolve(&id, &options);                       \
    }
PUBLIC_CONV(conv1d, 1)
PUBLIC_CONV(conv2d, 2)
PUBLIC_CONV(conv3d, 3)
PUBLIC_CONV_TRANSPOSE(conv_transpose1d, 1)
PUBLIC_CONV_TRANSPOSE(conv_transpose2d, 2)
PUBLIC_CONV_TRANSPOSE(conv_transpose3d, 3)

ek_tensor *ek_convolve(int dims, bool transposed, ek_conv_transpose_options options)
{
    const conv_family *const families[2][3] = {{&conv1d, &conv2d, &conv3d},
                                               {&conv_transpose1d, &conv_transpose2d,
                                                &conv_transpose3d}};
    return conv_convolve(families[transposed][dims - 1], &options);
}
