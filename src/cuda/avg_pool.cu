/* avg_pool.cu: average pooling. Its kernels are bound by memory; where windows overlap, the caches
 * serve repeated reads. Forward and gradient gather in the host's order, so that sums are equal
 * from run to run. If channels are innermost, a thread has V neighbouring channels of one index. */
#include "cuda/pool.cuh"

template <typename I> struct box {
    ek_window<I> d[3];
};

template <typename I> EK_DEVICE box<I> avg_box_of(const ek_cuda_pool &pool, const I at[3])
{
    return {
        {ek_window_of(pool, 0, at[0]), ek_window_of(pool, 1, at[1]), ek_window_of(pool, 2, at[2])}};
}

template <typename R, typename I> EK_DEVICE R avg_divisor_of(const box<I> &b)
{
    return (R)((int64_t)b.d[0].divisor * b.d[1].divisor * b.d[2].divisor);
}

/* sum += the V elements at `from`. */
template <typename T, int V>
EK_DEVICE void avg_add_elements(typename ek_compute<T>::type (&sum)[V], const T *from)
{
    typename ek_compute<T>::type values[V];
    ek_load_elements<T, V>(values, from);
    EK_EACH(v, V)
        sum[v] += values[v];
}

/* One thread per output. */
template <typename T, typename I, int V> EK_KERNEL avg_forward(ek_cuda_pool pool)
{
    typedef typename ek_compute<T>::type R;
    I step = (I)pool.x.step[2];
    EK_GRID_LOOP(i, pool.y.count) {
        ek_index<I> index = ek_index_of(pool.y, (I)i);
        box<I> b = avg_box_of(pool, index.at);
        const T *plane =
            (const T *)pool.x.data + ek_plane_offset(pool.x, index.sample, index.channel);
        R sum[V] = {};
        for (I j = 0; j < b.d[0].count; j++) {
            for (I k = 0; k < b.d[1].count; k++) {
                I at[3] = {b.d[0].first + j, b.d[1].first + k, b.d[2].first};
                const T *row = plane + ek_offset_within(pool.x, at);
#pragma unroll 4
                for (I l = 0; l < b.d[2].count; l++)
                    avg_add_elements<T, V>(sum, row + l * step);
            }
        }
        R divisor = avg_divisor_of<R>(b);
        EK_EACH(v, V)
            sum[v] /= divisor;
        ek_store_elements<T, V>((T *)pool.y.data + ek_offset_of(pool.y, index), sum);
    }
}

/* Returns the offset in the plane of position p of a window. If `whole`, the window is the plane.
 */
template <typename I>
EK_DEVICE I avg_offset_in(const ek_cuda_pool &pool, const box<I> &b, I p, bool whole)
{
    if (whole)
        return p * (I)pool.x.step[2];
    I row = p / b.d[2].count;
    I at[3] = {b.d[0].first + row / b.d[1].count, b.d[1].first + row % b.d[1].count,
               b.d[2].first + p % b.d[2].count};
    return ek_offset_within(pool.x, at);
}

/* Computes few outputs of large windows, for example the means of whole planes. A block computes
 * `lanes` neighbouring outputs of V channels. Its threads form n rows of `lanes` threads. Row r
 * sums the positions r, r + n, ... of the windows; then the rows are added pairwise. If channels
 * are innermost, the lanes read neighbours. Otherwise `lanes` is 1, and neighbouring threads read
 * neighbouring positions. */
template <typename T, typename I, int V> EK_KERNEL avg_forward_large(ek_cuda_pool pool, int lanes)
{
    typedef typename ek_compute<T>::type R;
    __shared__ R parts[V][EK_BLOCK];
    int thread = (int)threadIdx.x, lane = thread & (lanes - 1);
    I rows = EK_BLOCK / lanes, row = thread / lanes;
    for (int64_t first = (int64_t)blockIdx.x * lanes; first < pool.y.count;
         first += (int64_t)gridDim.x * lanes) {
        int64_t i = first + lane;
        bool real = i < pool.y.count;
        ek_index<I> index = ek_index_of(pool.y, (I)(real ? i : 0));
        box<I> b = avg_box_of(pool, index.at);
        const T *plane =
            (const T *)pool.x.data + ek_plane_offset(pool.x, index.sample, index.channel);
        I count = real ? b.d[0].count * b.d[1].count * b.d[2].count : 0;
        bool whole = pool.x.even && count == (I)pool.x.plane;
        R sum[V] = {};
#pragma unroll 4
        for (I p = row; p < count; p += rows)
            avg_add_elements<T, V>(sum, plane + avg_offset_in(pool, b, p, whole));
        __syncthreads(); /* other threads may still read `parts` of the round before */
        EK_EACH(v, V)
            parts[v][thread] = sum[v];
        for (int half = (int)rows / 2; half > 0; half /= 2) {
            __syncthreads();
            if (thread < half * lanes) {
                EK_EACH(v, V)
                    parts[v][thread] += parts[v][thread + half * lanes];
            }
        }
        if (thread >= lanes || !real)
            continue;
        R divisor = avg_divisor_of<R>(b);
        EK_EACH(v, V)
            sum[v] = parts[v][thread] / divisor;
        ek_store_elements<T, V>((T *)pool.y.data + ek_offset_of(pool.y, index), sum);
    }
}

/* One thread per input, which gathers from the windows that hold the input. */
template <typename T, typename I, int V> EK_KERNEL avg_gradient(ek_cuda_pool pool)
{
    typedef typename ek_compute<T>::type R;
    EK_GRID_LOOP(i, pool.x.count) {
        ek_index<I> index = ek_index_of(pool.x, (I)i);
        ek_cover<I> c0 = ek_cover_of(pool, 0, index.at[0]);
        ek_cover<I> c1 = ek_cover_of(pool, 1, index.at[1]);
        ek_cover<I> c2 = ek_cover_of(pool, 2, index.at[2]);
        const T *plane =
            (const T *)pool.y.data + ek_plane_offset(pool.y, index.sample, index.channel);
        R sum[V] = {};
        for (I j = c0.first; j < c0.end; j++) {
            for (I k = c1.first; k < c1.end; k++) {
                for (I l = c2.first; l < c2.end; l++) {
                    I at[3] = {j, k, l};
                    R values[V], divisor = avg_divisor_of<R>(avg_box_of(pool, at));
                    ek_load_elements<T, V>(values, plane + ek_offset_within(pool.y, at));
                    EK_EACH(v, V)
                        sum[v] += values[v] / divisor;
                }
            }
        }
        ek_store_elements<T, V>((T *)pool.x.data + ek_offset_of(pool.x, index), sum);
    }
}

/* ---- launching ---- */

enum { LARGE_WINDOW = 128, LANES = 32 };

/* Returns about how many positions a window has. */
static int64_t avg_window_size(const ek_cuda_pool *pool)
{
    if (pool->adaptive)
        return pool->y.plane > 0 ? pool->x.plane / pool->y.plane : 0;
    double size = 1;
    for (int d = 0; d < 3; d++)
        size *= (double)(pool->kernel[d] < pool->x.size[d] ? pool->kernel[d] : pool->x.size[d]);
    return (int64_t)size;
}

template <typename T>
static int launch_avg_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    bool large = avg_window_size(pool) >= LARGE_WINDOW;
    return ek_pool_by_kind<T, 16 / sizeof(T)>(*pool, false, [&](auto kind, const ek_cuda_pool &by) {
        typedef decltype(kind) K;
        if (!large || by.y.count >= (int64_t)stream->multiprocessors * 1024)
            return ek_launch(stream, ek_grid(stream, by.y.count),
                             avg_forward<T, typename K::I, K::V>, by);
        int lanes = by.x.last ? LANES / K::V : 1;
        return ek_launch(stream, ek_grid(stream, by.y.count, lanes),
                         avg_forward_large<T, typename K::I, K::V>, by, lanes);
    });
}

int ek_cuda_launch_avg_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    EK_FLOATING(pool->y.dtype, T, return launch_avg_forward<T>(stream, pool))
}

template <typename T>
static int launch_avg_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    return ek_pool_by_kind<T, 16 / sizeof(T)>(*pool, false, [&](auto kind, const ek_cuda_pool &by) {
        typedef decltype(kind) K;
        return ek_launch(stream, ek_grid(stream, by.x.count), avg_gradient<T, typename K::I, K::V>,
                         by);
    });
}

int ek_cuda_launch_avg_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    EK_FLOATING(pool->x.dtype, T, return launch_avg_gradient<T>(stream, pool))
}
