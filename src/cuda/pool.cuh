/* pool.cuh: windows of pooling, in one dimension at a time. */
#ifndef EK_CUDA_POOL_CUH
#define EK_CUDA_POOL_CUH

#include "cuda/image.cuh"
#include "cuda/launches.h"

/* Calls f(kind, pool) with vectors of V channels if all images have such vectors, else with single
 * channels. If `index`, the image of positions must have such vectors, too. kind::I is the type of
 * positions and offsets; kind::V is the number of elements of a vector. */
template <typename Index, int Count> struct ek_pool_kind {
    typedef Index I;
    enum { V = Count };
};
template <typename T, int V, typename F>
static int ek_pool_by_kind(const ek_cuda_pool &pool, bool index, F f)
{
    if (pool.wide)
        return f(ek_pool_kind<int64_t, 1>(), pool);
    if (!ek_image_has_vectors(pool.x, V, sizeof(T)) ||
        !ek_image_has_vectors(pool.y, V, sizeof(T)) ||
        (index && !ek_image_has_vectors(pool.index, V, sizeof(int64_t))))
        return f(ek_pool_kind<int32_t, 1>(), pool);
    ek_cuda_pool vectors = pool;
    vectors.x = ek_image_by_vectors(pool.x, V);
    vectors.y = ek_image_by_vectors(pool.y, V);
    if (index)
        vectors.index = ek_image_by_vectors(pool.index, V);
    return f(ek_pool_kind<int32_t, V>(), vectors);
}

/* A window: its first position inside the plane, the number of positions, the step between them,
 * and the divisor of the mean. */
template <typename I> struct ek_window {
    I first, count, step, divisor;
};

/* Returns the window of output i in dimension d. */
template <typename I> EK_DEVICE ek_window<I> ek_window_of(const ek_cuda_pool &pool, int d, I i)
{
    I size = (I)pool.x.size[d];
    ek_window<I> w;
    w.step = (I)pool.dilation[d];
    if (pool.adaptive) { /* floor(i * size / n) to ceil((i + 1) * size / n) */
        I n = (I)pool.y.size[d];
        w.first = ek_divide(i * size, pool.y.per_size[d]);
        w.count = ek_divide((i + 1) * size + n - 1, pool.y.per_size[d]) - w.first;
        w.divisor = w.count;
        return w;
    }
    I padding = (I)pool.padding[d];
    I begin = i * (I)pool.stride[d] - padding;
    I end = begin + (I)pool.kernel[d] * w.step; /* one step after the last tap */
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

/* The outputs [first, end) whose windows reach over an input. A dilated window may have no tap on
 * the input. */
template <typename I> struct ek_cover {
    I first, end;
};

template <typename I> EK_DEVICE ek_cover<I> ek_cover_of(const ek_cuda_pool &pool, int d, I p)
{
    I n = (I)pool.y.size[d];
    ek_cover<I> cover;
    if (pool.adaptive) { /* all i with i * size < (p + 1) * n and (i + 1) * size > p * n */
        I size = (I)pool.x.size[d];
        cover.first = ek_divide(p * n, pool.x.per_size[d]);
        cover.end = ek_divide((p + 1) * n + size - 1, pool.x.per_size[d]);
        return cover;
    }
    I reach = p + (I)pool.padding[d], extent = ((I)pool.kernel[d] - 1) * (I)pool.dilation[d] + 1;
    cover.first = reach < extent ? 0 : ek_divide(reach - extent, pool.per_stride[d]) + 1;
    cover.end = ek_divide(reach, pool.per_stride[d]) + 1;
    cover.end = cover.end < n ? cover.end : n;
    return cover;
}

#endif
