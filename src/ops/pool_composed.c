/* pool_composed.c: pooling that is composed of other operations: adaptive maxima, the reverse of
 * max pooling, and powers (LP pooling). */
#include <math.h>

#include "kernels/pool.h"
#include "ops/ops.h"

/* y in channels-last memory if x is. */
static ek_tensor *pool_ordered(ek_tensor *y, const ek_tensor *x)
{
    bool channels_last = x->ndim == 4 && !ek_tensor_is_contiguous(x, EK_CONTIGUOUS) &&
                         ek_spatial_format(x) == EK_CHANNELS_LAST;
    return channels_last ? ek_contiguous(y, EK_CHANNELS_LAST) : y;
}

/* ---- adaptive maxima: positions are found along one dimension after the other ---- */

/* Returns x with its windows along `dim` in a new dimension after `dim`. Shorter windows repeat
 * their last element. */
static ek_tensor *pool_adaptive_windows(ek_tensor *x, int dim, int64_t count)
{
    const int64_t size = x->shape[dim];
    int64_t longest = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t length = ek_adaptive_length(i, size, count);
        longest = length > longest ? length : longest;
    }
    if (size % count != 0) {
        ek_tensor *index = ek_empty(EK_SHAPE(count * longest), EK_I64);
        int64_t *at = index ? ek_tensor_address(index) : NULL;
        for (int64_t i = 0; at && i < count; i++) {
            const int64_t last = ek_adaptive_length(i, size, count) - 1;
            for (int64_t k = 0; k < longest; k++)
                *at++ = ek_adaptive_first(i, size, count) + (k < last ? k : last);
        }
        x = ek_index_select(x, dim, ek_to_device(index, ek_tensor_device(x)));
    }
    return ek_f_unflatten(x, dim, EK_SHAPE(count, longest));
}

/* Returns the positions of the maxima of the `count` windows along `dim`. */
static ek_tensor *pool_adaptive_positions(ek_tensor *x, int dim, int64_t count)
{
    ek_shape shape = {.ndim = x->ndim - dim, .dims = {count, 1, 1}};
    ek_tensor *first = ek_empty(shape, EK_I64);
    int64_t *at = first ? ek_tensor_address(first) : NULL;
    for (int64_t i = 0; at && i < count; i++)
        at[i] = ek_adaptive_first(i, x->shape[dim], count);
    ek_tensor *within = ek_argmax(pool_adaptive_windows(x, dim, count), dim + 1, false);
    return ek_add(within, ek_to_device(first, ek_tensor_device(x)));
}

/* The positions in planes. */
static ek_tensor *pool_adaptive_index(ek_tensor *x, int dims, const int64_t *size)
{
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_tensor *index = NULL;
    int64_t step = 1;
    for (int d = dims - 1; d >= 0 && x; d--) {
        const int64_t length = x->shape[2 + d];
        ek_tensor *position = pool_adaptive_positions(x, 2 + d, size[d]);
        ek_tensor *offset = ek_mul_scalar(position, (double)step);
        index = index ? ek_add(ek_gather_dim(index, 2 + d, position), offset) : offset;
        x = index ? ek_gather_dim(x, 2 + d, position) : NULL;
        step *= length;
    }
    ek_set_grad_enabled(grad_enabled);
    return x ? index : NULL;
}

static ek_tensor *pool_adaptive_gather(ek_tensor *x, int dims, const int64_t *size,
                                       ek_tensor **indices)
{
    ek_tensor *index = pool_adaptive_index(x, dims, size);
    if (!index)
        return NULL;
    ek_tensor *y = ek_gather_dim(ek_f_flatten(x, 2, -1), 2, ek_f_flatten(index, 2, -1));
    if (y && indices)
        *indices = ek_keep(index);
    return ek_reshape(y, ek_tensor_shape(index));
}

static ek_tensor *pool_adaptive_max(const char *name, int dims, ek_tensor *x, const int64_t *size,
                                    ek_tensor **indices)
{
    bool single;
    ek_tensor *index = NULL;
    if (indices)
        *indices = NULL;
    x = ek_spatial_batched(x, dims, &single);
    if (!ek_given(name, "x", x) || ek_spatial_check(name, x, dims) < 0 ||
        ek_spatial_least(name, "the output", dims, size, 1) < 0)
        return NULL;
    for (int i = 0; i < dims; i++)
        if (x->shape[2 + i] < 1 || x->shape[2 + i] > INT32_MAX || size[i] > INT32_MAX)
            return EK_REFUSE(EK_E_SHAPE, "%s: x must have a %s from 1 to %d, got %s", name,
                             ek_spatial_direction(dims, i), INT32_MAX, EK_TENSOR_TEXT(x));
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = pool_adaptive_gather(x, dims, size, indices ? &index : NULL);
    y = ek_scope_return(&scope, y ? pool_ordered(y, x) : NULL);
    index = ek_scope_adopt(index);
    if (indices && y)
        *indices = single ? ek_squeeze(index, 0) : index;
    return single ? ek_squeeze(y, 0) : y;
}

ek_tensor *ek_f_adaptive_max_pool1d(ek_tensor *x, int64_t length, ek_tensor **indices)
{
    return pool_adaptive_max("adaptive_max_pool1d", 1, x, &length, indices);
}

ek_tensor *ek_f_adaptive_max_pool2d(ek_tensor *x, int64_t height, int64_t width,
                                    ek_tensor **indices)
{
    return pool_adaptive_max("adaptive_max_pool2d", 2, x, (const int64_t[]){height, width},
                             indices);
}

ek_tensor *ek_f_adaptive_max_pool3d(ek_tensor *x, int64_t depth, int64_t height, int64_t width,
                                    ek_tensor **indices)
{
    return pool_adaptive_max("adaptive_max_pool3d", 3, x, (const int64_t[]){depth, height, width},
                             indices);
}

/* ---- the reverse of max pooling: a scatter, whose gradient is a gather ---- */

static int pool_unpooled_sizes(const char *name, int dims, const ek_unpool_options *o,
                               const ek_tensor *x, ek_shape *y)
{
    int64_t kernel[3], stride[3], padding[3];
    EK_TRY(ek_spatial_option(name, "kernel", dims, o->kernels, o->kernel, 1, kernel));
    EK_TRY(ek_spatial_stride(name, dims, o->strides, o->stride, kernel, stride));
    EK_TRY(ek_spatial_option(name, "padding", dims, o->paddings, o->padding, 0, padding));
    *y = ek_tensor_shape(x);
    for (int i = 0; i < dims; i++) {
        const int64_t size = x->shape[2 + i] < INT32_MAX ? x->shape[2 + i] : INT32_MAX;
        const int64_t whole = (size - 1) * stride[i] - 2 * padding[i] + kernel[i];
        const int64_t given = o->sizes[i] ? o->sizes[i] : whole;
        if (given < 1 || given <= whole - stride[i] || given >= whole + stride[i])
            return EK_FAIL(EK_E_INVALID,
                           "%s: the result's %s is %lld; it must be positive, and differ from "
                           "%lld by less than the stride, %lld",
                           name, ek_spatial_direction(dims, i), (long long)given, (long long)whole,
                           (long long)stride[i]);
        y->dims[2 + i] = given;
    }
    return 0;
}

static ek_tensor *pool_unpool(const char *name, int dims, const ek_unpool_options *o)
{
    bool single, ignored;
    ek_shape shape;
    if (!ek_given(name, "x", o->x) || !ek_given(name, "indices", o->indices) ||
        !ek_same_device(name, o->x, o->indices))
        return NULL;
    ek_shape own = ek_tensor_shape(o->x);
    if (!ek_of_shape(name, "indices", o->indices, &own))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_spatial_batched(o->x, dims, &single);
    ek_tensor *index = ek_spatial_batched(o->indices, dims, &ignored), *y = NULL;
    if (x && index && ek_spatial_check(name, x, dims) >= 0 &&
        pool_unpooled_sizes(name, dims, o, x, &shape) >= 0) {
        const int before = ek_error_status();
        /* Made with all dimensions, so that sizes with too large a product are refused. */
        ek_tensor *zeros = ek_zeros(shape, x->dtype, .device = ek_tensor_device(x));
        if (!zeros)
            ek_error_prefix(before, name);
        y = ek_scatter_dim(ek_f_flatten(zeros, 2, -1), 2, ek_f_flatten(index, 2, -1),
                           ek_f_flatten(x, 2, -1));
        y = y ? pool_ordered(ek_reshape(y, shape), x) : NULL;
    }
    return ek_scope_return(&scope, single ? ek_squeeze(y, 0) : y);
}

/* ---- powers ---- */

typedef ek_tensor *pool_averages(ek_avg_pool_options options);

static ek_tensor *pool_powers(const char *name, int dims, pool_averages *average,
                              const ek_lp_pool_options *o)
{
    int64_t kernel[3], stride[3];
    ek_avg_pool_options options = EK_DEFAULTS(ek_avg_pool_options);
    double area = 1;
    if (!ek_given(name, "x", o->x) ||
        ek_spatial_option(name, "kernel", dims, o->kernels, o->kernel, 1, kernel) < 0 ||
        ek_spatial_stride(name, dims, o->strides, o->stride, kernel, stride) < 0)
        return NULL;
    if (!isfinite(o->norm_type) || o->norm_type == 0)
        return EK_REFUSE(EK_E_INVALID, "%s: norm_type is %g; it must be a number other than 0",
                         name, o->norm_type);
    options.ceil_mode = o->ceil_mode;
    for (int i = 0; i < dims; i++) {
        options.kernels[i] = (int)kernel[i];
        options.strides[i] = (int)stride[i];
        area *= (double)kernel[i];
    }
    ek_scope scope = ek_scope_begin();
    options.x = ek_pow_scalar(o->x, o->norm_type);
    ek_tensor *mean = options.x ? average(options) : NULL;
    /* The root's gradient at 0 is infinite. Choosing a constant 0 there keeps it from x. */
    ek_tensor *zero = mean ? ek_number_like(mean, 0) : NULL;
    mean = zero ? ek_where(ek_ne_scalar(mean, 0), mean, zero) : NULL;
    ek_tensor *y = ek_pow_scalar(ek_mul_scalar(mean, area), 1 / o->norm_type);
    return ek_scope_return(&scope, y);
}

#define PUBLIC_POOLS(DIMS)                                                                    \
    ek_tensor *ek_f_max_unpool##DIMS##d_with(ek_unpool_options options)                       \
    {                                                                                         \
        return pool_unpool("max_unpool" #DIMS "d", DIMS, &options);                           \
    }                                                                                         \
    ek_tensor *ek_f_lp_pool##DIMS##d_with(ek_lp_pool_options options)                         \
    {                                                                                         \
        return pool_powers("lp_pool" #DIMS "d", DIMS, ek_f_avg_pool##DIMS##d_with, &options); \
    }

PUBLIC_POOLS(1)
PUBLIC_POOLS(2)
PUBLIC_POOLS(3)
