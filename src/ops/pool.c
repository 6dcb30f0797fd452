/* pool.c: maximum, average and adaptive average pooling over one, two and three dimensions.
 *
 * An average is linear, and so is a maximum once its positions are chosen. So each is a pair of
 * operations, a map and its adjoint, and each of the two is the other's derivative. Results keep
 * the input's memory order. One dimension is computed as two with a height of 1. */
#include <string.h>

#include "ops/attributes.h"
#include "ops/ops.h"

/* The operations under one public name, as errors show them. */
typedef struct pool_family {
    const char *name;
    int dims; /* x's dimensions behind (N, C) */
    ek_operation forward, gradient;
    ek_operation gather; /* the adjoint of `gradient`, for maxima only */
} pool_family;

static ek_tensor *pool_new_image(const ek_tensor *like, const ek_shape *shape,
                                 ek_memory_format format)
{
    return ek_tensor_new(ek_tensor_dev(like), like->dtype, shape, format);
}

/* ---- maximum: given positions, a gather, whose adjoint is a scatter ---- */

static ek_tensor *max_pool_scatter(ek_tensor *dy, ek_tensor *index, const ek_pool_attributes *a)
{
    if (!dy || !index)
        return NULL;
    ek_tensor *dx = pool_new_image(dy, &a->x, a->format);
    return EK_RECORD(EK_RUN(dx, max_pool_gradient, dy, index, &a->params), &a->family->gradient,
                     EK_INPUTS(dy), EK_SAVED(index), EK_ATTRIBUTES(*a));
}

static ek_tensor *max_pool_gather(ek_tensor *x, ek_tensor *index, const ek_pool_attributes *a)
{
    if (!x || !index)
        return NULL;
    ek_tensor *y = pool_new_image(x, &a->y, a->format);
    return EK_RECORD(EK_RUN(y, max_pool_gather, x, index), &a->family->gather, EK_INPUTS(x),
                     EK_SAVED(index), EK_ATTRIBUTES(*a));
}

/* The backward of the pool itself and of max_pool_gather: input x, saved index. */
EK_BACKWARD(max_pool, ek_pool_attributes, max_pool_scatter(g, ek_node_saved(node, 0), a))

EK_BACKWARD(max_pool_scatter, void, max_pool_gather(g, ek_node_saved(node, 0), a))

#define MAX_POOL(DIMS)                                                            \
    {                                                                             \
        .name = "max_pool" #DIMS "d", .dims = DIMS,                               \
        .forward = {.name = "max_pool" #DIMS "d", .backward = max_pool_backward}, \
        .gradient = {.name = "max_pool" #DIMS "d_gradient",                       \
                     .backward = max_pool_scatter_backward},                      \
        .gather =                                                                 \
        {.name = "max_pool" #DIMS "d_gather",                                     \
         .backward = max_pool_backward }                                          \
    }

/* ---- averages: the windows of `params`, or adaptive ones if params.dims is 0 ---- */

static ek_tensor *pool_average(ek_tensor *x, const ek_pool_attributes *a)
{
    ek_tensor *y = x ? pool_new_image(x, &a->y, a->format) : NULL;
    y = a->params.dims > 0 ? EK_RUN(y, avg_pool_forward, x, &a->params)
                           : EK_RUN(y, adaptive_avg_pool_forward, x);
    return EK_RECORD(y, &a->family->forward, EK_INPUTS(x), EK_ATTRIBUTES(*a));
}

static ek_tensor *pool_average_gradient(ek_tensor *dy, const ek_pool_attributes *a)
{
    ek_tensor *dx = dy ? pool_new_image(dy, &a->x, a->format) : NULL;
    dx = a->params.dims > 0 ? EK_RUN(dx, avg_pool_gradient, dy, &a->params)
                            : EK_RUN(dx, adaptive_avg_pool_gradient, dy);
    return EK_RECORD(dx, &a->family->gradient, EK_INPUTS(dy), EK_ATTRIBUTES(*a));
}

EK_BACKWARD(average, void, pool_average_gradient(g, a))

EK_BACKWARD(average_gradient, void, pool_average(g, a))

#define AVERAGE_POOL(NAME, DIMS)                                                             \
    {                                                                                        \
        .name = NAME, .dims = DIMS, .forward = {.name = NAME, .backward = average_backward}, \
        .gradient =                                                                          \
        {.name = NAME "_gradient",                                                           \
         .backward = average_gradient_backward }                                             \
    }

/* ---- options and shapes ---- */

static int pool_read_params(const pool_family *family, ek_pool_params *params,
                            const ek_max_pool_options *o)
{
    const char *name = family->name;
    int dims = params->dims = family->dims;
    EK_TRY(ek_spatial_option(name, "kernel", dims, o->kernels, o->kernel, 1, params->kernel));
    EK_TRY(ek_spatial_stride(name, dims, o->strides, o->stride, params->kernel, params->stride));
    EK_TRY(ek_spatial_option(name, "padding", dims, o->paddings, o->padding, 0, params->padding));
    EK_TRY(
        ek_spatial_option(name, "dilation", dims, o->dilations, o->dilation, 1, params->dilation));
    for (int i = 0; i < dims; i++)
        if (params->padding[i] > params->kernel[i] / 2)
            return EK_FAIL(EK_E_INVALID,
                           "%s: padding must be at most half of the kernel's size, got padding "
                           "%lld for kernel %lld",
                           name, (long long)params->padding[i], (long long)params->kernel[i]);
    return 0;
}

/* Returns how many windows a dimension has. In ceil mode the last window may reach beyond the
 * padding, but starts inside the input or its left padding. */
static int64_t pool_window_count(int64_t size, const ek_pool_params *params, int i, bool ceil_mode)
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

/* Returns true if a window reads only padding, and so has no maximum and no average. A window that
 * starts inside the input reads an element. A window that starts in the padding reads an element
 * if its first position after the padding is inside. */
static bool pool_has_empty_window(int64_t size, int64_t count, const ek_pool_params *params, int i)
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

static int pool_output_size(ek_pool_attributes *a, int i, bool ceil_mode)
{
    const pool_family *family = a->family;
    const ek_pool_params *params = &a->params;
    int64_t size = a->x.dims[2 + i], count = pool_window_count(size, params, i, ceil_mode);
    bool fits = count > 0;
    if (!fits || pool_has_empty_window(size, count, params, i))
        return EK_FAIL(EK_E_SHAPE,
                       "%s: a window of %lld with padding %lld and dilation %lld %s %s %lld",
                       family->name, (long long)params->kernel[i], (long long)params->padding[i],
                       (long long)params->dilation[i],
                       fits ? "has only padding in" : "does not fit",
                       ek_spatial_direction(family->dims, i), (long long)size);
    a->y.dims[2 + i] = count;
    return 0;
}

static int pool_read(ek_pool_attributes *a, const ek_max_pool_options *options)
{
    if (!ek_given(a->family->name, "x", options->x))
        return ek_error_pending();
    EK_TRY(ek_spatial_check(a->family->name, options->x, a->family->dims));
    EK_TRY(pool_read_params(a->family, &a->params, options));
    a->x = a->y = ek_tensor_shape(options->x);
    for (int i = 0; i < a->family->dims; i++)
        EK_TRY(pool_output_size(a, i, options->ceil_mode));
    return 0;
}

/* ---- calls ---- */

/* Computes a pool. If `index` isn't NULL, *index becomes the positions of maxima. */
typedef ek_tensor *pool_function(ek_tensor *x, const ek_pool_attributes *attributes,
                                 ek_tensor **index);

static void pool_lift_shape(ek_shape *shape)
{
    ek_spatial_lift(shape->dims + 2, 1);
    shape->ndim = 4;
}

static ek_tensor *pool_run(pool_function *function, ek_pool_attributes *a, ek_tensor *x,
                           ek_tensor **index)
{
    ek_tensor *position = NULL;
    ek_scope scope = ek_scope_begin();
    bool lifted = a->family->dims == 1;
    if (lifted) {
        ek_spatial_lift(a->params.kernel, 1);
        ek_spatial_lift(a->params.stride, 1);
        ek_spatial_lift(a->params.padding, 0);
        ek_spatial_lift(a->params.dilation, 1);
        if (a->params.dims > 0)
            a->params.dims = 2;
        pool_lift_shape(&a->x);
        pool_lift_shape(&a->y);
        x = ek_unsqueeze(x, 2);
    }
    if (x)
        a->format = ek_spatial_format(x);
    ek_tensor *y = x ? function(x, a, &position) : NULL;
    if (lifted)
        y = ek_squeeze(y, 2);
    if (index) {
        position = lifted && y ? ek_squeeze(position, 2) : position;
        *index = position && y ? ek_keep(position) : NULL;
        y = *index ? y : NULL;
    }
    y = ek_scope_return(&scope, y);
    if (index && *index)
        *index = ek_scope_adopt(*index);
    return y;
}

/* Calls pool_run for the caller's x, which may be a single sample. */
static ek_tensor *pool_call(pool_function *function, ek_pool_attributes *a, ek_tensor *x,
                            bool single, ek_tensor **index)
{
    ek_tensor *y = pool_run(function, a, x, index);
    if (single && y && index)
        *index = ek_squeeze(*index, 0);
    return single ? ek_squeeze(y, 0) : y;
}

static ek_tensor *pool_averages(ek_tensor *x, const ek_pool_attributes *a, ek_tensor **index)
{
    (void)index;
    return pool_average(x, a);
}

static ek_tensor *pool_maximum(ek_tensor *x, const ek_pool_attributes *a, ek_tensor **index)
{
    ek_tensor *y = pool_new_image(x, &a->y, a->format);
    *index = ek_tensor_new(ek_tensor_dev(x), EK_I64, &a->y, a->format);
    if (!*index)
        return NULL;
    return EK_RECORD(EK_RUN(y, max_pool_forward, *index, x, &a->params), &a->family->forward,
                     EK_INPUTS(x), EK_SAVED(*index), EK_ATTRIBUTES(*a));
}

static ek_tensor *max_pool(const pool_family *family, ek_max_pool_options *options)
{
    bool single;
    ek_pool_attributes attributes = {.family = family};
    if (options->indices)
        *options->indices = NULL;
    options->x = ek_spatial_batched(options->x, family->dims, &single);
    if (pool_read(&attributes, options) < 0)
        return NULL;
    return pool_call(pool_maximum, &attributes, options->x, single, options->indices);
}

static ek_tensor *avg_pool(const pool_family *family, const ek_avg_pool_options *o)
{
    bool single;
    ek_pool_attributes attributes = {.family = family,
                                     .params.count_include_pad = o->count_include_pad};
    ek_max_pool_options windows = {.x = ek_spatial_batched(o->x, family->dims, &single),
                                   .kernel = o->kernel,
                                   .stride = o->stride,
                                   .padding = o->padding,
                                   .dilation = 1,
                                   .ceil_mode = o->ceil_mode};
    memcpy(windows.kernels, o->kernels, sizeof windows.kernels);
    memcpy(windows.strides, o->strides, sizeof windows.strides);
    memcpy(windows.paddings, o->paddings, sizeof windows.paddings);
    if (pool_read(&attributes, &windows) < 0)
        return NULL;
    return pool_call(pool_averages, &attributes, windows.x, single, NULL);
}

static ek_tensor *adaptive_avg_pool(const pool_family *family, ek_tensor *x, const int64_t *size)
{
    const char *name = family->name;
    bool single;
    x = ek_spatial_batched(x, family->dims, &single);
    if (!ek_given(name, "x", x) || ek_spatial_check(name, x, family->dims) < 0 ||
        ek_spatial_least(name, "the output", family->dims, size, 1) < 0)
        return NULL;
    ek_pool_attributes attributes = {.family = family, .x = ek_tensor_shape(x)};
    attributes.y = attributes.x;
    for (int i = 0; i < family->dims; i++) {
        if (x->shape[2 + i] < 1)
            return EK_REFUSE(EK_E_SHAPE, "%s: x must not have a %s of 0, got %s", name,
                             ek_spatial_direction(family->dims, i), EK_TENSOR_TEXT(x));
        attributes.y.dims[2 + i] = size[i];
    }
    return pool_call(pool_averages, &attributes, x, single, NULL);
}

/* ---- the public operations ---- */

#define PUBLIC_POOLS(DIMS)                                                                 \
    static const pool_family max_pool##DIMS##d = MAX_POOL(DIMS);                           \
    static const pool_family avg_pool##DIMS##d = AVERAGE_POOL("avg_pool" #DIMS "d", DIMS); \
    static const pool_family adaptive_avg_pool##DIMS##d =                                  \
        AVERAGE_POOL("adaptive_avg_pool" #DIMS "d", DIMS);                                 \
    ek_tensor *ek_f_max_pool##DIMS##d_with(ek_max_pool_options options)                    \
    {                                                                                      \
        return max_pool(&max_pool##DIMS##d, &options);                                     \
    }                                                                                      \
    ek_tensor *ek_f_avg_pool##DIMS##d_with(ek_avg_pool_options options)                    \
    {                                                                                      \
        return avg_pool(&avg_pool##DIMS##d, &options);                                     \
    }
PUBLIC_POOLS(1)
PUBLIC_POOLS(2)
PUBLIC_POOLS(3)

ek_tensor *ek_f_adaptive_avg_pool1d(ek_tensor *x, int64_t length)
{
    return adaptive_avg_pool(&adaptive_avg_pool1d, x, &length);
}

ek_tensor *ek_f_adaptive_avg_pool2d(ek_tensor *x, int64_t height, int64_t width)
{
    return adaptive_avg_pool(&adaptive_avg_pool2d, x, (const int64_t[]){height, width});
}

ek_tensor *ek_f_adaptive_avg_pool3d(ek_tensor *x, int64_t depth, int64_t height, int64_t width)
{
    return adaptive_avg_pool(&adaptive_avg_pool3d, x, (const int64_t[]){depth, height, width});
}
