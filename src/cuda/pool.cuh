/* pool.cuh: windows of pooling, in one dimension at a time. */
#ifndef EK_CUDA_POOL_CUH
#define EK_CUDA_POOL_CUH

#include "cuda/image.cuh"
#include "cuda/pool.h"

/* First position inside the plane, number of them and the step between them, and how many positions
 * count for the mean. */
template <typename I> struct ek_window {
    I first, count, step, divisor;
};

/* The window of output i. */
template <typename I>
static __device__ __forceinline__ ek_window<I> ek_window_of(const ek_cuda_pool &pool, int d, I i)
{
    I size = (I)pool.x.size[d];
    ek_window<I> w;
    w.step = (I)pool.dilation[d];
    if (pool.adaptive) { /* floor(i size / n) to ceil((i + 1) size / n) */
        I n = (I)pool.y.size[d];
        w.first = ek_divide(i * size, pool.y.per_size[d]);
        w.count = ek_divide((i + 1) * size + n - 1, pool.y.per_size[d]) - w.first;
        w.divisor = w.count;
        return w;
    }
    I padding = (I)pool.padding[d];
    I begin = i * (I)pool.stride[d] - padding;
    I end = begin + (I)pool.kernel[d] * w.step; /* after the last tap's step */
    I padded = size + padding, last = end < size ? end : size;
    w.divisor = (end < padded ? end : padded) - begin;
    if (w.step == 1) { /* without the divisions of the general case */
        w.first = begin < 0 ? 0 : begin;
        w.count = last > w.first ? last - w.first : 0;
    } else {
        w.first = begin < 0 ? begin + (-begin + w.step - 1) / w.step * w.step : begin;
        w.count = last > w.first ? (last - w.first + w.step - 1) / w.step : 0;
    }
    if (!pool.count_include_pad)
        w.divisor = w.count;
    return w;
}

/* The outputs [first, end) whose windows (without dilation) hold input p. */
template <typename I> struct ek_cover {
    I first, end;
};

template <typename I>
static __device__ __forceinline__ ek_cover<I> ek_cover_of(const ek_cuda_pool &pool, int d, I p)
{
    I n = (I)pool.y.size[d];
    ek_cover<I> cover;
    if (pool.adaptive) { /* of i: i size < (p + 1) n and (i + 1) size > p n */
        I size = (I)pool.x.size[d];
        cover.first = ek_divide(p * n, pool.x.per_size[d]);
        cover.end = ek_divide((p + 1) * n + size - 1, pool.x.per_size[d]);
        return cover;
    }
    I reach = p + (I)pool.padding[d], kernel = (I)pool.kernel[d];
    cover.first = reach < kernel ? 0 : ek_divide(reach - kernel, pool.per_stride[d]) + 1;
    cover.end = ek_divide(reach, pool.per_stride[d]) + 1;
    cover.end = cover.end < n ? cover.end : n;
    return cover;
}

#endif
