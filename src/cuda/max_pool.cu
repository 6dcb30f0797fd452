/* max_pool.cu: max pooling. All kernels are bound by memory: forward reads each input of a 3x3 or
 * 2x2 window from the caches but once, and writes 8 bytes of position with each maximum. */
#include "cuda/pool.cuh"

#include "cuda/max_pool.h"

/* One thread per output. */
template <typename T, typename I>
static __global__ void __launch_bounds__(EK_BLOCK) max_forward(ek_cuda_pool pool)
{
    typedef typename ek_compute<T>::type R;
    I height = (I)pool.x.size[1], width = (I)pool.x.size[2];
    EK_GRID_LOOP(i, pool.y.count)
    {
        ek_place<I> place = ek_place_of(pool.y, (I)i);
        ek_window<I> w0 = ek_window_of(pool, 0, place.at[0]);
        ek_window<I> w1 = ek_window_of(pool, 1, place.at[1]);
        ek_window<I> w2 = ek_window_of(pool, 2, place.at[2]);
        const T *plane =
            (const T *)pool.x.data + ek_plane_offset(pool.x, place.sample, place.channel);
        I first = (w0.first * height + w1.first) * width + w2.first, best_at = first;
        R best = -(R)INFINITY;
        for (I a = 0; a < w0.count; a++) {
            for (I b = 0; b < w1.count; b++) {
                I at[3] = {w0.first + a * w0.step, w1.first + b * w1.step, w2.first};
                const T *row = plane + ek_offset_within(pool.x, at);
                I position = (at[0] * height + at[1]) * width + at[2];
                for (I c = 0; c < w2.count; c++) {
                    R value = ek_load(row + c * w2.step * (I)pool.x.step[2]);
                    if (value > best || value != value) { /* NaN wins */
                        best = value;
                        best_at = position + c * w2.step;
                    }
                }
            }
        }
        ek_store((T *)pool.y.data + ek_offset_of(pool.y, place), best);
        ((int64_t *)pool.index.data)[ek_offset_of(pool.index, place)] = best_at;
    }
}

/* The position of one output, checked; -1 where it is none. */
template <typename I>
static __device__ __forceinline__ int32_t position_at(const ek_cuda_pool &pool, I offset,
                                                      ek_cuda_fault *fault, const char *operation)
{
    int64_t position = ((const int64_t *)pool.index.data)[offset];
    if (position >= 0 && position < pool.x.plane)
        return (int32_t)position;
    ek_fault_raise(fault, EK_CUDA_FAULT_POSITION, position, pool.x.plane, operation);
    return -1;
}

template <typename T, typename I>
static __global__ void __launch_bounds__(EK_BLOCK)
    max_gather(ek_cuda_pool pool, ek_cuda_fault *fault, const char *operation)
{
    typedef typename ek_compute<T>::type R;
    EK_GRID_LOOP(i, pool.y.count)
    {
        ek_place<I> place = ek_place_of(pool.y, (I)i);
        int32_t position = position_at(pool, ek_offset_of(pool.index, place), fault, operation);
        R value = 0;
        if (position >= 0)
            value = ek_load((const T *)pool.x.data +
                            ek_plane_offset(pool.x, place.sample, place.channel) +
                            ek_position_offset(pool.x, (I)position));
        ek_store((T *)pool.y.data + ek_offset_of(pool.y, place), value);
    }
}

/* The gradient in a fixed order: a warp walks the outputs of one plane, 32 at a time. Those that
 * share a position are summed by the first of them, in order, so that no two lanes write the same
 * element. Neighbouring warps have neighbouring planes: with channels innermost, what one fetches
 * of a sector the others find in the cache. T is of y, R of x. */
template <typename T, typename R, typename I>
static __global__ void __launch_bounds__(EK_BLOCK)
    max_gradient(ek_cuda_pool pool, ek_cuda_fault *fault, const char *operation)
{
    const unsigned all = 0xffffffffu;
    int lane = (int)threadIdx.x % EK_WARP;
    int64_t planes = pool.y.samples * pool.y.channels;
    int64_t warps = (int64_t)gridDim.x * (EK_BLOCK / EK_WARP);
    I size = (I)pool.y.plane;
    for (int64_t p = (int64_t)blockIdx.x * (EK_BLOCK / EK_WARP) + threadIdx.x / EK_WARP; p < planes;
         p += warps) {
        I sample = (I)(p / pool.y.channels), channel = (I)(p % pool.y.channels);
        R *x = (R *)pool.x.data + ek_plane_offset(pool.x, sample, channel);
        const T *y = (const T *)pool.y.data + ek_plane_offset(pool.y, sample, channel);
        I index = ek_plane_offset(pool.index, sample, channel);
        for (I first = 0; first < size; first += EK_WARP) {
            I i = first + lane;
            int position = -1;
            R value = 0, sum = 0;
            if (i < size) {
                position =
                    position_at(pool, index + ek_position_offset(pool.index, i), fault, operation);
                value = ek_load(y + ek_position_offset(pool.y, i));
            }
            bool writes = position >= 0;
            for (int other = 0; other < EK_WARP; other++) {
                int their_position = __shfl_sync(all, position, other);
                R theirs = __shfl_sync(all, value, other);
                if (their_position != position)
                    continue;
                sum += theirs;
                writes = writes && other >= lane;
            }
            if (writes)
                x[ek_position_offset(pool.x, (I)position)] += sum;
            __syncwarp(); /* another lane may read what this one wrote */
        }
    }
}

/* The gradient in any order, for few planes. */
template <typename T, typename R, typename I>
static __global__ void __launch_bounds__(EK_BLOCK)
    max_gradient_atomic(ek_cuda_pool pool, ek_cuda_fault *fault, const char *operation)
{
    EK_GRID_LOOP(i, pool.y.count)
    {
        ek_place<I> place = ek_place_of(pool.y, (I)i);
        int32_t position = position_at(pool, ek_offset_of(pool.index, place), fault, operation);
        R value = ek_load((const T *)pool.y.data + ek_offset_of(pool.y, place));
        if (position >= 0)
            atomicAdd((R *)pool.x.data + ek_plane_offset(pool.x, place.sample, place.channel) +
                          ek_position_offset(pool.x, (I)position),
                      value);
    }
}

/* ---- launching ---- */

template <typename T>
static int launch_forward(const ek_cuda_queue *queue, const ek_cuda_pool *pool)
{
    return ek_launch(queue, dim3(ek_grid(queue, pool->y.count)), dim3(EK_BLOCK),
                     pool->wide ? max_forward<T, int64_t> : max_forward<T, int32_t>, *pool);
}

int ek_cuda_launch_max_forward(const ek_cuda_queue *queue, const ek_cuda_pool *pool)
{
    EK_FLOATING(pool->y.dtype, T, return launch_forward<T>(queue, pool))
    return (int)cudaErrorInvalidValue;
}

template <typename T>
static int launch_gather(const ek_cuda_queue *queue, const ek_cuda_pool *pool,
                         const char *operation)
{
    return ek_launch(queue, dim3(ek_grid(queue, pool->y.count)), dim3(EK_BLOCK),
                     pool->wide ? max_gather<T, int64_t> : max_gather<T, int32_t>, *pool,
                     queue->fault, operation);
}

int ek_cuda_launch_max_gather(const ek_cuda_queue *queue, const ek_cuda_pool *pool,
                              const char *operation)
{
    EK_FLOATING(pool->y.dtype, T, return launch_gather<T>(queue, pool, operation))
    return (int)cudaErrorInvalidValue;
}

template <typename T>
static int launch_gradient(const ek_cuda_queue *queue, const ek_cuda_pool *pool,
                           const char *operation)
{
    typedef typename ek_compute<T>::type R;
    int64_t planes = pool->y.samples * pool->y.channels;
    if (pool->y.count == 0)
        return 0;
    /* A warp takes about half a microsecond for 32 outputs, whatever the others do. */
    bool few = planes < (int64_t)queue->multiprocessors * 32 && pool->y.plane > 1024;
    if (few && !queue->deterministic)
        return ek_launch(queue, dim3(ek_grid(queue, pool->y.count)), dim3(EK_BLOCK),
                         pool->wide ? max_gradient_atomic<T, R, int64_t>
                                    : max_gradient_atomic<T, R, int32_t>,
                         *pool, queue->fault, operation);
    return ek_launch(queue, dim3(ek_grid(queue, planes, EK_BLOCK / EK_WARP)), dim3(EK_BLOCK),
                     pool->wide ? max_gradient<T, R, int64_t> : max_gradient<T, R, int32_t>, *pool,
                     queue->fault, operation);
}

int ek_cuda_launch_max_gradient(const ek_cuda_queue *queue, const ek_cuda_pool *pool,
                                const char *operation)
{
    EK_FLOATING(pool->y.dtype, T, return launch_gradient<T>(queue, pool, operation))
    return (int)cudaErrorInvalidValue;
}
