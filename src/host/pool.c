/* pool.c: maxima and averages over windows, their gradients, and the adjoint of the maxima's. */
#ifndef EK_REAL
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "kernels/pool.h"
#include "kernels/stage.h"

/* Channels are computed in blocks that fit the registers and the stack. */
enum { BLOCK = 64 };

/* One call, over planes of up to three dimensions. Dimensions that are missing come first and have
 * size 1. x (N, in, C) and y (N, out, C) are channels-last. */
typedef struct pool {
    int64_t samples, channels;
    int64_t in[3], out[3];
    int64_t in_plane, out_plane;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    bool adaptive; /* windows follow from the sizes alone */
    bool count_include_pad;
    void *x, *y;              /* x and y, or their gradients */
    int64_t *index;           /* (N, out, C), for maxima; else NULL */
    atomic_bool out_of_range; /* set by kernels that read a position outside of the plane */
} pool;

/* One dimension of a window: `count` positions inside the plane, from `first` on, `step` apart. A
 * mean divides by the product of its three divisors. */
typedef struct window {
    int64_t first, count, step, divisor;
} window;

/* The type of a maximum's position in the plane: an integer of the element's size. */
typedef int32_t position_f32;
typedef int64_t position_f64;

/* Returns true if the position is inside the plane. Otherwise sets the pool's out_of_range. */
static inline bool pool_holds(pool *p, int64_t position)
{
    if (position >= 0 && position < p->in_plane)
        return true;
    atomic_store_explicit(&p->out_of_range, true, memory_order_relaxed);
    return false;
}

static inline int64_t pool_blocks(const pool *p)
{
    return (p->channels + BLOCK - 1) / BLOCK;
}

/* params is NULL for adaptive pooling. */
static pool pool_of(const ek_tensor *x, const ek_tensor *y, const ek_pool_params *params)
{
    pool p = {.samples = x->shape[0],
              .channels = x->shape[1],
              .in_plane = 1,
              .out_plane = 1,
              .adaptive = !params,
              .count_include_pad = params && params->count_include_pad};
    int dims = x->ndim - 2;
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - dims);
        bool real = d >= 0 && params;
        p.in[i] = d < 0 ? 1 : x->shape[2 + d];
        p.out[i] = d < 0 ? 1 : y->shape[2 + d];
        p.in_plane *= p.in[i];
        p.out_plane *= p.out[i];
        p.kernel[i] = real ? params->kernel[d] : 1;
        p.stride[i] = real ? params->stride[d] : 1;
        p.padding[i] = real ? params->padding[d] : 0;
        p.dilation[i] = real && params->dilation[d] > 1 ? params->dilation[d] : 1;
    }
    return p;
}

static window pool_window_along(const pool *p, int dim, int64_t i)
{
    int64_t size = p->in[dim];
    window w = {.step = p->dilation[dim]};
    if (p->adaptive) {
        int64_t n = p->out[dim];
        w.first = ek_adaptive_first(i, size, n);
        w.count = ek_adaptive_length(i, size, n);
        w.divisor = w.count;
        return w;
    }
    int64_t begin = i * p->stride[dim] - p->padding[dim];
    int64_t end = begin + p->kernel[dim] * w.step; /* after the last tap's step */
    int64_t padded = size + p->padding[dim];
    w.divisor = (end < padded ? end : padded) - begin;
    w.first = begin < 0 ? begin + (-begin + w.step - 1) / w.step * w.step : begin;
    int64_t last = ek_smaller(end, size);
    w.count = last > w.first ? (last - w.first + w.step - 1) / w.step : 0;
    if (!p->count_include_pad)
        w.divisor = w.count;
    return w;
}

/* Computes an output position of the plane, and its window, in all three dimensions. */
static void pool_window(const pool *p, int64_t position, int64_t at[3], window w[3])
{
    for (int dim = 2; dim >= 0; dim--) {
        at[dim] = position % p->out[dim];
        w[dim] = pool_window_along(p, dim, at[dim]);
        position /= p->out[dim];
    }
}

/* Steps to the next output position, without divisions. Returns true if it is the first of the next
 * sample. */
static inline bool pool_step(const pool *p, int64_t at[3], window w[3])
{
    for (int dim = 2; dim >= 0; dim--) {
        const bool next = ++at[dim] < p->out[dim];
        at[dim] = next ? at[dim] : 0;
        w[dim] = pool_window_along(p, dim, at[dim]);
        if (next)
            return false;
    }
    return true;
}

#define EK_FOR_REALS "host/pool.c"
#include "kernels/for_reals.h"

/* Fails with the first position out of range, in the row-major order of `index`. */
static int pool_fail_position(const ek_tensor *index, int64_t plane)
{
    int64_t at, value;
    if (!ek_find_outside(index, plane, NULL, &at, &value))
        return EK_FAIL(EK_E_INVALID, "positions of maxima changed while they were read");
    return EK_FAIL(EK_E_INVALID,
                   "position %lld of maximum %lld is out of range for a plane of %lld; it must be "
                   "from 0 to %lld",
                   (long long)value, (long long)at, (long long)plane, (long long)plane - 1);
}

/* The output of a kernel. The items of a kernel that computes x are (sample, block of channels), of
 * other kernels (sample, output position). */
typedef enum pool_output { COMPUTES_X, COMPUTES_Y, COMPUTES_Y_INDEX } pool_output;

/* Stages x, y and index (may be NULL) as channels-last, with bf16 as f32; runs the kernel over all
 * items; copies the output back. */
static int pool_run(ek_dev *dev, pool_output output, ek_parallel_body *f32, ek_parallel_body *f64,
                    const ek_tensor *x, const ek_tensor *y, const ek_tensor *index,
                    const ek_pool_params *params)
{
    ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    bool computes_x = output == COMPUTES_X, computes_index = output == COMPUTES_Y_INDEX;
    ek_stage sx = {.nbytes = 0}, sy = sx, si = sx;
    pool p = pool_of(x, y, params);
    if (p.in_plane > INT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "pooling over planes of %lld positions; at most %d are possible",
                       (long long)p.in_plane, INT32_MAX);
    int rc;
    EK_TRY_GOTO(ek_stage_image(&sx, dev, x, dtype, !computes_x), rc, end);
    EK_TRY_GOTO(ek_stage_image(&sy, dev, y, dtype, computes_x), rc, end);
    EK_TRY_GOTO(ek_stage_image(&si, dev, index, EK_I64, !computes_index), rc, end);
    p.x = ek_tensor_address(sx.tensor);
    p.y = ek_tensor_address(sy.tensor);
    p.index = index ? ek_tensor_address(si.tensor) : NULL;

    /* About 20000 elements are worth another thread. */
    int64_t elements = p.in_plane * p.channels, count = p.samples * p.out_plane;
    int64_t item = elements / (p.out_plane > 0 ? p.out_plane : 1) + p.channels;
    if (computes_x) {
        count = p.samples * pool_blocks(&p);
        item = elements < BLOCK * p.in_plane ? elements : BLOCK * p.in_plane;
    }
    if (p.channels > 0)
        ek_parallel_for(dev, count, 1 + 20000 / (item + 1), dtype == EK_F64 ? f64 : f32, &p);
    if (atomic_load_explicit(&p.out_of_range, memory_order_relaxed))
        rc = pool_fail_position(index, p.in_plane);
end:
    rc = ek_stage_end(&sx, dev, computes_x, rc);
    rc = ek_stage_end(&sy, dev, !computes_x, rc);
    return ek_stage_end(&si, dev, computes_index, rc);
}

int ek_host_max_pool_forward(ek_dev *dev, ek_tensor *y, ek_tensor *index, const ek_tensor *x,
                             const ek_pool_params *params)
{
    return pool_run(dev, COMPUTES_Y_INDEX, pool_forward_f32, pool_forward_f64, x, y, index, params);
}

int ek_host_max_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_tensor *index, const ek_pool_params *params)
{
    (void)params; /* the gradient needs the positions only */
    return pool_run(dev, COMPUTES_X, pool_gradient_f32, pool_gradient_f64, dx, dy, index, NULL);
}

int ek_host_max_pool_gather(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *index)
{
    return pool_run(dev, COMPUTES_Y, pool_gather_f32, pool_gather_f64, x, y, index, NULL);
}

int ek_host_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                             const ek_pool_params *params)
{
    return pool_run(dev, COMPUTES_Y, pool_forward_f32, pool_forward_f64, x, y, NULL, params);
}

int ek_host_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_pool_params *params)
{
    return pool_run(dev, COMPUTES_X, pool_gradient_f32, pool_gradient_f64, dx, dy, NULL, params);
}

int ek_host_adaptive_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x)
{
    return ek_host_avg_pool_forward(dev, y, x, NULL);
}

int ek_host_adaptive_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy)
{
    return ek_host_avg_pool_gradient(dev, dx, dy, NULL);
}

#else /* for each EK_REAL */

/* Computes the maximum and its index over one window, for each of `channels` <= BLOCK channels. */
static inline void EK_NAME(pool_max_window)(const pool *p, const window w[3], const EK_REAL *x,
                                            int64_t channels, EK_REAL *y, int64_t *index)
{
    EK_REAL best[BLOCK];
    EK_NAME(position) at[BLOCK];
    int64_t first = (w[0].first * p->in[1] + w[1].first) * p->in[2] + w[2].first;
    for (int64_t c = 0; c < channels; c++) {
        best[c] = -(EK_REAL)INFINITY;
        at[c] = (EK_NAME(position))first;
    }
    for (int64_t i = 0; i < w[0].count; i++) {
        for (int64_t j = 0; j < w[1].count; j++) {
            for (int64_t k = 0; k < w[2].count; k++) {
                int64_t position =
                    first + (i * w[0].step * p->in[1] + j * w[1].step) * p->in[2] + k * w[2].step;
                const EK_REAL *from = x + position * p->channels;
                EK_NAME(position) here = (EK_NAME(position))position;
                for (int64_t c = 0; c < channels; c++) {
                    EK_REAL value = from[c];
                    bool better = (value > best[c]) | (value != value); /* a NaN wins */
                    best[c] = better ? value : best[c];
                    at[c] = better ? here : at[c];
                }
            }
        }
    }
    for (int64_t c = 0; c < channels; c++)
        y[c] = best[c];
    for (int64_t c = 0; c < channels; c++)
        index[c] = at[c];
}

static inline void EK_NAME(pool_avg_window)(const pool *p, const window w[3], const EK_REAL *x,
                                            int64_t channels, EK_REAL *y)
{
    EK_REAL sum[BLOCK];
    for (int64_t c = 0; c < channels; c++)
        sum[c] = 0;
    for (int64_t i = 0; i < w[0].count; i++) {
        for (int64_t j = 0; j < w[1].count; j++) {
            const EK_REAL *from =
                x + (((w[0].first + i) * p->in[1] + w[1].first + j) * p->in[2] + w[2].first) *
                        p->channels;
            for (int64_t k = 0; k < w[2].count; k++, from += p->channels)
                for (int64_t c = 0; c < channels; c++)
                    sum[c] += from[c];
        }
    }
    EK_REAL divisor = (EK_REAL)(w[0].divisor * w[1].divisor * w[2].divisor);
    for (int64_t c = 0; c < channels; c++)
        y[c] = sum[c] / divisor;
}

/* Computes the maxima of windows and their indices if p->index is given, else the averages. */
EK_MULTIVERSION static void EK_NAME(pool_forward)(void *context, int64_t begin, int64_t end)
{
    const pool *p = context;
    const EK_REAL *x = (const EK_REAL *)p->x + begin / p->out_plane * p->in_plane * p->channels;
    int64_t at[3];
    window w[3];
    pool_window(p, begin % p->out_plane, at, w);
    for (int64_t item = begin; item < end; item++) {
        EK_REAL *y = (EK_REAL *)p->y + item * p->channels;
        int64_t *index = p->index ? p->index + item * p->channels : NULL, c = 0;
        for (; c + BLOCK <= p->channels; c += BLOCK)
            if (index)
                EK_NAME(pool_max_window)(p, w, x + c, BLOCK, y + c, index + c);
            else
                EK_NAME(pool_avg_window)(p, w, x + c, BLOCK, y + c);
        if (c < p->channels && index)
            EK_NAME(pool_max_window)(p, w, x + c, p->channels - c, y + c, index + c);
        else if (c < p->channels)
            EK_NAME(pool_avg_window)(p, w, x + c, p->channels - c, y + c);
        if (pool_step(p, at, w))
            x += p->in_plane * p->channels;
    }
}

static void EK_NAME(pool_gather)(void *context, int64_t begin, int64_t end)
{
    pool *p = context;
    for (int64_t item = begin; item < end; item++) {
        const EK_REAL *x = (const EK_REAL *)p->x + item / p->out_plane * p->in_plane * p->channels;
        EK_REAL *y = (EK_REAL *)p->y + item * p->channels;
        const int64_t *index = p->index + item * p->channels;
        for (int64_t c = 0; c < p->channels; c++)
            y[c] = pool_holds(p, index[c]) ? x[index[c] * p->channels + c] : 0;
    }
}

static inline void EK_NAME(pool_avg_spread)(const pool *p, const window w[3], const EK_REAL *dy,
                                            int64_t channels, EK_REAL *dx)
{
    EK_REAL share[BLOCK];
    EK_REAL divisor = (EK_REAL)(w[0].divisor * w[1].divisor * w[2].divisor);
    for (int64_t c = 0; c < channels; c++)
        share[c] = dy[c] / divisor;
    for (int64_t i = 0; i < w[0].count; i++) {
        for (int64_t j = 0; j < w[1].count; j++) {
            EK_REAL *to =
                dx + (((w[0].first + i) * p->in[1] + w[1].first + j) * p->in[2] + w[2].first) *
                         p->channels;
            for (int64_t k = 0; k < w[2].count; k++, to += p->channels)
                for (int64_t c = 0; c < channels; c++)
                    to[c] += share[c];
        }
    }
}

/* Computes the gradient of maxima if p->index is given, else that of averages. Items are (sample,
 * block of channels): no two items write the same element. */
EK_MULTIVERSION static void EK_NAME(pool_gradient)(void *context, int64_t begin, int64_t end)
{
    pool *p = context;
    const int64_t blocks = pool_blocks(p), channels = p->channels;
    for (int64_t item = begin; item < end; item++) {
        const int64_t sample = item / blocks, first = item % blocks * BLOCK,
                      count = ek_smaller(channels - first, BLOCK),
                      from = sample * p->out_plane * channels + first;
        EK_REAL *dx = (EK_REAL *)p->x + sample * p->in_plane * channels + first;
        const EK_REAL *dy = (const EK_REAL *)p->y + from;
        const int64_t *index = p->index ? p->index + from : NULL;
        for (int64_t i = 0; i < p->in_plane; i++)
            memset(dx + i * channels, 0, (size_t)count * sizeof *dx);
        for (int64_t i = 0; i < p->out_plane; i++, dy += channels) {
            int64_t at[3];
            window w[3];
            for (int64_t c = 0; index && c < count; c++)
                if (pool_holds(p, index[i * channels + c]))
                    dx[index[i * channels + c] * channels + c] += dy[c];
            if (index)
                continue;
            pool_window(p, i, at, w);
            if (count == BLOCK)
                EK_NAME(pool_avg_spread)(p, w, dy, BLOCK, dx);
            else
                EK_NAME(pool_avg_spread)(p, w, dy, count, dx);
        }
    }
}

#endif
