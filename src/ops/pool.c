/* pool.c: maximum, average and adaptive average pooling.
 *
 * Pooling is linear: the average always, the maximum once its positions are chosen. So each is a
 * pair of operations, a map and its adjoint, and each of a pair is the other's derivative. Results
 * keep the input's memory order. */
#include "ops/ops.h"
#include "ops/spatial.h"

/* A pool maps images of `x` to images of `y`. */
typedef struct pool_attributes {
    ek_pool_params params;
    ek_shape x, y;
    ek_memory_format format;
} pool_attributes;

static ek_tensor *new_image(const ek_tensor *like, const ek_shape *shape, ek_memory_format format)
{
    return ek_tensor_new(ek_tensor_dev(like), like->dtype, shape, format);
}

/* ---- maximum: given positions, a gather, whose adjoint is a scatter ---- */

static ek_tensor *max_pool_scatter(ek_tensor *dy, ek_tensor *index,
                                   const pool_attributes *attributes);
static ek_tensor *max_pool_gather(ek_tensor *x, ek_tensor *index,
                                  const pool_attributes *attributes);

/* Of the pool itself and of max_pool_gather: input x, saved index. */
static int max_pool_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = max_pool_scatter(gradients[0], ek_node_saved(node, 0), ek_node_attributes(node));
    return 0;
}

static int max_pool_scatter_backward(ek_node *node, ek_tensor *const *gradients,
                                     ek_tensor **results)
{
    results[0] = max_pool_gather(gradients[0], ek_node_saved(node, 0), ek_node_attributes(node));
    return 0;
}

static const ek_operation max_pool_operation = {.name = "max_pool2d",
                                                .backward = max_pool_backward};
static const ek_operation max_pool_gather_operation = {.name = "max_pool2d_gather",
                                                       .backward = max_pool_backward};
static const ek_operation max_pool_scatter_operation = {.name = "max_pool2d_gradient",
                                                        .backward = max_pool_scatter_backward};

static ek_tensor *max_pool_scatter(ek_tensor *dy, ek_tensor *index,
                                   const pool_attributes *attributes)
{
    if (!dy || !index)
        return NULL;
    ek_tensor *dx = new_image(dy, &attributes->x, attributes->format);
    if (!dx || (ek_count(dx) > 0 &&
                ek_kernels_of(dy)->max_pool_gradient(ek_tensor_dev(dy), dx, dy, index) < 0))
        return NULL;
    return EK_RECORD(dx, &max_pool_scatter_operation, EK_INPUTS(dy), EK_SAVED(index),
                     EK_ATTRIBUTES(*attributes));
}

static ek_tensor *max_pool_gather(ek_tensor *x, ek_tensor *index, const pool_attributes *attributes)
{
    if (!x || !index)
        return NULL;
    ek_tensor *y = new_image(x, &attributes->y, attributes->format);
    if (!y ||
        (ek_count(y) > 0 && ek_kernels_of(x)->max_pool_gather(ek_tensor_dev(x), y, x, index) < 0))
        return NULL;
    return EK_RECORD(y, &max_pool_gather_operation, EK_INPUTS(x), EK_SAVED(index),
                     EK_ATTRIBUTES(*attributes));
}

/* ---- averages: the windows of `params`, or adaptive ones where params.dims is 0 ---- */

static ek_tensor *average(ek_tensor *x, const pool_attributes *attributes);
static ek_tensor *average_gradient(ek_tensor *dy, const pool_attributes *attributes);

static int average_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = average_gradient(gradients[0], ek_node_attributes(node));
    return 0;
}

static int average_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                     ek_tensor **results)
{
    results[0] = average(gradients[0], ek_node_attributes(node));
    return 0;
}

static const ek_operation average_operation = {.name = "avg_pool2d", .backward = average_backward};
static const ek_operation average_gradient_operation = {.name = "avg_pool2d_gradient",
                                                        .backward = average_gradient_backward};

static ek_tensor *average(ek_tensor *x, const pool_attributes *attributes)
{
    if (!x)
        return NULL;
    ek_tensor *y = new_image(x, &attributes->y, attributes->format);
    if (!y)
        return NULL;
    ek_dev *dev = ek_tensor_dev(x);
    const ek_kernels *kernels = ek_kernels_of(x);
    if (ek_count(y) > 0 &&
        (attributes->params.dims > 0 ? kernels->avg_pool_forward(dev, y, x, &attributes->params)
                                     : kernels->adaptive_avg_pool_forward(dev, y, x)) < 0)
        return NULL;
    return EK_RECORD(y, &average_operation, EK_INPUTS(x), EK_ATTRIBUTES(*attributes));
}

static ek_tensor *average_gradient(ek_tensor *dy, const pool_attributes *attributes)
{
    if (!dy)
        return NULL;
    ek_tensor *dx = new_image(dy, &attributes->x, attributes->format);
    if (!dx)
        return NULL;
    ek_dev *dev = ek_tensor_dev(dy);
    const ek_kernels *kernels = ek_kernels_of(dy);
    if (ek_count(dx) > 0 &&
        (attributes->params.dims > 0 ? kernels->avg_pool_gradient(dev, dx, dy, &attributes->params)
                                     : kernels->adaptive_avg_pool_gradient(dev, dx, dy)) < 0)
        return NULL;
    return EK_RECORD(dx, &average_gradient_operation, EK_INPUTS(dy), EK_ATTRIBUTES(*attributes));
}

/* ---- the public operations ---- */

static int read_params(const char *name, ek_pool_params *params, const ek_pool_options *options)
{
    params->dims = 2;
    EK_TRY(ek_spatial_option(name, "kernel", 2, options->kernels, options->kernel, ek_spatial_zeros,
                             1, params->kernel));
    EK_TRY(ek_spatial_option(name, "stride", 2, options->strides, options->stride, params->kernel,
                             1, params->stride));
    EK_TRY(ek_spatial_option(name, "padding", 2, options->paddings, options->padding,
                             ek_spatial_zeros, 0, params->padding));
    EK_TRY(ek_spatial_option(name, "dilation", 2, options->dilations, options->dilation,
                             ek_spatial_ones, 1, params->dilation));
    for (int i = 0; i < 2; i++)
        if (params->padding[i] > params->kernel[i] / 2)
            return EK_FAIL(EK_E_INVALID,
                           "%s: padding must be at most half of the kernel's size, got padding "
                           "%lld for kernel %lld",
                           name, (long long)params->padding[i], (long long)params->kernel[i]);
    params->count_include_pad = options->count_include_pad != EK_OFF;
    return 0;
}

/* How many windows a dimension has. In ceil mode the last may reach beyond the padding, but starts
 * inside the input or its left padding. */
static int64_t window_count(int64_t size, const ek_pool_params *params, int i, bool ceil_mode)
{
    int64_t extent = params->dilation[i] * (params->kernel[i] - 1) + 1;
    int64_t room = size + 2 * params->padding[i] - extent;
    if (room < 0 && !(ceil_mode && room > -params->stride[i]))
        return 0;
    int64_t count = (room + (ceil_mode ? params->stride[i] - 1 : 0)) / params->stride[i] + 1;
    if (ceil_mode && (count - 1) * params->stride[i] >= size + params->padding[i])
        count--;
    return count;
}

/* A window that meets only padding has no maximum and no average. One that starts inside meets an
 * element; one that starts in the padding does with its first tap inside, if that is in reach. */
static bool has_empty_window(int64_t size, int64_t count, const ek_pool_params *params, int i)
{
    const int64_t dilation = params->dilation[i];
    if (dilation <= size)
        return false;
    int64_t start = -params->padding[i];
    for (int64_t window = 0; window < count && start < 0; window++, start += params->stride[i])
        if ((start % dilation + dilation) % dilation >= size)
            return true;
    return size == 0;
}

static int read_pool(const char *name, pool_attributes *attributes, const ek_pool_options *options)
{
    if (!ek_given(name, "x", options->x))
        return ek_error_pending();
    EK_TRY(ek_spatial_check(name, options->x, 2));
    ek_pool_params *params = &attributes->params;
    EK_TRY(read_params(name, params, options));
    attributes->x = ek_tensor_shape(options->x);
    attributes->format = ek_spatial_format(options->x);
    attributes->y = attributes->x;
    for (int i = 0; i < 2; i++) {
        int64_t size = attributes->x.dims[2 + i];
        attributes->y.dims[2 + i] = window_count(size, params, i, options->ceil_mode);
        if (attributes->y.dims[2 + i] < 1)
            return EK_FAIL(EK_E_SHAPE,
                           "%s: a window of %lld with padding %lld and dilation %lld does not fit "
                           "%s %lld",
                           name, (long long)params->kernel[i], (long long)params->padding[i],
                           (long long)params->dilation[i], i == 0 ? "height" : "width",
                           (long long)size);
        if (has_empty_window(size, attributes->y.dims[2 + i], params, i))
            return EK_FAIL(EK_E_SHAPE,
                           "%s: a window of %lld with padding %lld and dilation %lld has only "
                           "padding in %s %lld",
                           name, (long long)params->kernel[i], (long long)params->padding[i],
                           (long long)params->dilation[i], i == 0 ? "height" : "width",
                           (long long)size);
    }
    return 0;
}

ek_tensor *ek_f_max_pool2d_with(ek_pool_options options)
{
    pool_attributes attributes = {.x.ndim = 0};
    if (read_pool("max_pool2d", &attributes, &options) < 0)
        return NULL;
    ek_tensor *x = options.x;
    ek_dev *dev = ek_tensor_dev(x);
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = new_image(x, &attributes.y, attributes.format);
    ek_tensor *index = ek_tensor_new(dev, EK_I64, &attributes.y, attributes.format);
    if (y && index && ek_count(y) > 0 &&
        ek_kernels_of(x)->max_pool_forward(dev, y, index, x, &attributes.params) < 0)
        y = NULL;
    if (!index)
        y = NULL;
    y = EK_RECORD(y, &max_pool_operation, EK_INPUTS(x), EK_SAVED(index), EK_ATTRIBUTES(attributes));
    return ek_scope_end_with(&scope, y);
}

ek_tensor *ek_f_avg_pool2d_with(ek_pool_options options)
{
    pool_attributes attributes = {.x.ndim = 0};
    if (options.dilation != 0 && options.dilation != 1) {
        EK_FAIL(EK_E_INVALID, "avg_pool2d: dilation is for max_pool2d only, got %d",
                options.dilation);
        return NULL;
    }
    if (read_pool("avg_pool2d", &attributes, &options) < 0)
        return NULL;
    return average(options.x, &attributes);
}

ek_tensor *ek_f_adaptive_avg_pool2d(ek_tensor *x, int64_t height, int64_t width)
{
    const char *name = "adaptive_avg_pool2d";
    if (!ek_given(name, "x", x) || ek_spatial_check(name, x, 2) < 0 ||
        ek_spatial_least(name, "the output", 2, (const int64_t[]){height, width}, 1) < 0)
        return NULL;
    if (x->shape[2] < 1 || x->shape[3] < 1) {
        char text[200];
        EK_FAIL(EK_E_SHAPE, "%s: x must have at least one pixel, got %s", name,
                ek_tensor_text(x, text));
        return NULL;
    }
    pool_attributes attributes = {.x = ek_tensor_shape(x),
                                  .y = EK_SHAPE(x->shape[0], x->shape[1], height, width),
                                  .format = ek_spatial_format(x)};
    return average(x, &attributes);
}
