/* max_pool.cu: max pooling. The memory's speed limits every kernel here. The forward reads each
 * input from memory once; if windows overlap, further reads of it come from the caches. The forward
 * writes a maximum and its position, which takes 8 bytes. The gradient reads the positions and the
 * gradients of the maxima, and writes the gradient of each input once.
 *
 * If channels are innermost, a thread of the forward or of the gradient computes V neighbouring
 * channels. V is at most 4: the thread's V positions then take at most 32 bytes, which is one
 * sector of memory. */
#include "cuda/pool.cuh"

/* ---- forward ---- */

/* For each of V channels, the largest value so far and its position. */
template <typename T, typename I, int V> struct maximum {
    typedef typename ek_compute<T>::type R;
    R best[V];
    I at[V];

    __device__ __forceinline__ explicit maximum(I first)
    {
        EK_EACH(v, V) {
            best[v] = -(R)INFINITY;
            at[v] = first;
        }
    }
    __device__ __forceinline__ void take(const ek_vector<T, V> &values, I position)
    {
        EK_EACH(v, V) {
            R value = ek_load(&values.element[v]);
            if (value > best[v] || value != value) { /* NaN wins */
                best[v] = value;
                at[v] = position;
            }
        }
    }
};

/* Takes the maximum of a window of at most K x K, with all loads issued at once. Taps beyond the
 * window's last row or column repeat that row or column, which doesn't change the maximum. */
template <int K, typename T, typename I, int V>
EK_DEVICE void max_take_small(maximum<T, I, V> &found, const T *plane, I first, I width,
                              const ek_window<I> &w1, const ek_window<I> &w2, I row_step, I step)
{
    ek_vector<T, V> taps[K][K];
    const T *from = plane + w1.first * row_step + w2.first * step;
    if (w1.count <= 0 || w2.count <= 0)
        return;
    EK_EACH(a, K) {
        EK_EACH(b, K) {
            I row = a < w1.count ? a : w1.count - 1, column = b < w2.count ? b : w2.count - 1;
            taps[a][b] = *(const ek_vector<T, V> *)(from + row * row_step + column * step);
        }
    }
    EK_EACH(a, K) {
        EK_EACH(b, K) {
            I row = a < w1.count ? a : w1.count - 1, column = b < w2.count ? b : w2.count - 1;
            found.take(taps[a][b], first + row * width + column);
        }
    }
}

/* One thread per output. If K > 0, windows have at most K x K positions (max_take_small); if K is
 * 0, any number. */
template <typename T, typename I, int V, int K> EK_KERNEL max_forward(ek_cuda_pool pool)
{
    I height = (I)pool.x.size[1], width = (I)pool.x.size[2];
    EK_GRID_LOOP(i, pool.y.count) {
        ek_index<I> index = ek_index_of(pool.y, (I)i);
        ek_window<I> w0 = ek_window_of(pool, 0, index.at[0]);
        ek_window<I> w1 = ek_window_of(pool, 1, index.at[1]);
        ek_window<I> w2 = ek_window_of(pool, 2, index.at[2]);
        const T *plane =
            (const T *)pool.x.data + ek_plane_offset(pool.x, index.sample, index.channel);
        I first = (w0.first * height + w1.first) * width + w2.first;
        maximum<T, I, V> found(first);
        if constexpr (K > 0) {
            max_take_small<K, T, I, V>(found, plane, first, width, w1, w2, (I)pool.x.step[1],
                                       (I)pool.x.step[2]);
        } else {
            for (I a = 0; a < w0.count; a++) {
                for (I b = 0; b < w1.count; b++) {
                    I at[3] = {w0.first + a * w0.step, w1.first + b * w1.step, w2.first};
                    const T *row = plane + ek_offset_within(pool.x, at);
                    I position = (at[0] * height + at[1]) * width + at[2];
                    for (I c = 0; c < w2.count; c++)
                        found.take(*(const ek_vector<T, V> *)(row +
                                                              c * w2.step * (I)pool.x.step[2]),
                                   position + c * w2.step);
                }
            }
        }
        ek_store_elements<T, V>((T *)pool.y.data + ek_offset_of(pool.y, index), found.best);
        ek_vector<int64_t, V> positions;
        EK_EACH(v, V)
            positions.element[v] = found.at[v];
        *(ek_vector<int64_t, V> *)((int64_t *)pool.index.data + ek_offset_of(pool.index, index)) =
            positions;
    }
}

/* ---- the gradient: each input gathers from the windows that reach it ---- */

/* V channels of one output: their positions, and the gradients that arrive there. */
template <typename T, int V> struct arriving {
    ek_vector<int64_t, V> index;
    ek_vector<T, V> dy;

    __device__ __forceinline__ void load(const ek_cuda_pool &pool, int64_t index_at, int64_t y_at)
    {
        index = *(const ek_vector<int64_t, V> *)((const int64_t *)pool.index.data + index_at);
        dy = *(const ek_vector<T, V> *)((const T *)pool.y.data + y_at);
    }
    __device__ __forceinline__ void clear() /* -1 is no position */
    {
        EK_EACH(v, V) {
            index.element[v] = -1;
            ek_store(&dy.element[v], (typename ek_compute<T>::type)0);
        }
    }
};

/* The sums of V channels at one position, and a position out of range if one was met. */
template <typename T, int V> struct arrived {
    typename ek_compute<T>::type sum[V];
    int64_t position, plane, bad;
    bool is_bad;

    __device__ __forceinline__ arrived(int64_t position_, int64_t plane_)
        : position(position_), plane(plane_), bad(0), is_bad(false)
    {
        EK_EACH(v, V)
            sum[v] = 0;
    }
    __device__ __forceinline__ void add(const arriving<T, V> &from)
    {
        EK_EACH(v, V) {
            if (from.index.element[v] == position)
                sum[v] += ek_load(&from.dy.element[v]);
            if ((uint64_t)from.index.element[v] >= (uint64_t)plane) {
                bad = from.index.element[v];
                is_bad = true;
            }
        }
    }
};

/* One thread per input, which gathers in the order of the outputs. If M > 0, at most M x M windows
 * reach an input, and their loads are issued at once; if M is 0, any number. */
template <typename T, typename I, int V, int M>
EK_KERNEL max_gradient(ek_cuda_pool pool, ek_cuda_fault *fault)
{
    I height = (I)pool.x.size[1], width = (I)pool.x.size[2];
    EK_GRID_LOOP(i, pool.x.count) {
        ek_index<I> index = ek_index_of(pool.x, (I)i);
        ek_cover<I> c0 = ek_cover_of(pool, 0, index.at[0]);
        ek_cover<I> c1 = ek_cover_of(pool, 1, index.at[1]);
        ek_cover<I> c2 = ek_cover_of(pool, 2, index.at[2]);
        I index_plane = ek_plane_offset(pool.index, index.sample, index.channel);
        I y_plane = ek_plane_offset(pool.y, index.sample, index.channel);
        arrived<T, V> all((index.at[0] * height + index.at[1]) * width + index.at[2], pool.x.plane);
        if constexpr (M > 0) {
            arriving<T, V> parts[M][M];
            EK_EACH(a, M) {
                EK_EACH(b, M) {
                    I at[3] = {0, c1.first + a, c2.first + b};
                    if (at[1] < c1.end && at[2] < c2.end)
                        parts[a][b].load(pool, index_plane + ek_offset_within(pool.index, at),
                                         y_plane + ek_offset_within(pool.y, at));
                    else
                        parts[a][b].clear();
                }
            }
            EK_EACH(a, M) {
                EK_EACH(b, M)
                    if (c1.first + a < c1.end && c2.first + b < c2.end)
                        all.add(parts[a][b]);
            }
        } else {
            for (I j = c0.first; j < c0.end; j++) {
                for (I k = c1.first; k < c1.end; k++) {
                    for (I l = c2.first; l < c2.end; l++) {
                        I at[3] = {j, k, l};
                        arriving<T, V> part;
                        part.load(pool, index_plane + ek_offset_within(pool.index, at),
                                  y_plane + ek_offset_within(pool.y, at));
                        all.add(part);
                    }
                }
            }
        }
        if (all.is_bad)
            ek_fault_raise(fault, EK_CUDA_FAULT_POSITION, all.bad, all.plane, pool.operation);
        ek_store_elements<T, V>((T *)pool.x.data + ek_offset_of(pool.x, index), all.sum);
    }
}

/* ---- the gradient's adjoint ---- */

/* Returns the position of one output's maximum; -1 with a fault if it is out of range. */
template <typename I>
EK_DEVICE int32_t max_position_at(const ek_cuda_pool &pool, I offset, ek_cuda_fault *fault)
{
    int64_t position = ((const int64_t *)pool.index.data)[offset];
    if (position >= 0 && position < pool.x.plane)
        return (int32_t)position;
    ek_fault_raise(fault, EK_CUDA_FAULT_POSITION, position, pool.x.plane, pool.operation);
    return -1;
}

template <typename T, typename I> EK_KERNEL max_gather(ek_cuda_pool pool, ek_cuda_fault *fault)
{
    typedef typename ek_compute<T>::type R;
    EK_GRID_LOOP(i, pool.y.count) {
        ek_index<I> index = ek_index_of(pool.y, (I)i);
        int32_t position = max_position_at(pool, ek_offset_of(pool.index, index), fault);
        R value = 0;
        if (position >= 0)
            value = ek_load((const T *)pool.x.data +
                            ek_plane_offset(pool.x, index.sample, index.channel) +
                            ek_position_offset(pool.x, (I)position));
        ek_store((T *)pool.y.data + ek_offset_of(pool.y, index), value);
    }
}

/* ---- launching ---- */

/* Channels of a thread: 16 bytes of f32 and f64, 8 of bf16 and f16. */
template <typename T> struct channels_of {
    enum { count = sizeof(T) == 8 ? 2 : 4 };
};

static int max_larger(int64_t a, int64_t b)
{
    int64_t most = a > b ? a : b;
    return most > 100 ? 100 : (int)most;
}

/* Returns the larger side of the windows, for which there may be a kernel without loops. Returns 0
 * if the windows have depth or dilation, or if indices need 64 bits. */
static int max_window_side(const ek_cuda_pool *pool)
{
    bool plain = pool->x.size[0] == 1 && pool->kernel[0] == 1 && pool->padding[0] == 0 &&
                 pool->dilation[1] == 1 && pool->dilation[2] == 1 && !pool->wide;
    return plain ? max_larger(pool->kernel[1], pool->kernel[2]) : 0;
}

/* Returns how many windows along a side reach one input at most; 0 if only kernels with loops can
 * be used. */
static int max_windows_side(const ek_cuda_pool *pool)
{
    int64_t most[3];
    for (int d = 0; d < 3; d++) {
        int64_t extent = (pool->kernel[d] - 1) * pool->dilation[d] + 1;
        most[d] = (extent + pool->stride[d] - 1) / pool->stride[d];
    }
    bool plain = pool->x.size[0] == 1 && pool->y.size[0] == 1 && !pool->wide;
    return plain ? max_larger(most[1], most[2]) : 0;
}

template <typename T>
static int launch_max_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    int side = max_window_side(pool);
    return ek_pool_by_kind<T, channels_of<T>::count>(
        *pool, true, [&](auto kind, const ek_cuda_pool &by) {
            typedef decltype(kind) K;
            void (*kernel)(ek_cuda_pool) = max_forward<T, typename K::I, K::V, 0>;
            if constexpr (sizeof(typename K::I) == sizeof(int32_t))
                kernel = side == 2   ? max_forward<T, int32_t, K::V, 2>
                         : side == 3 ? max_forward<T, int32_t, K::V, 3>
                                     : kernel;
            return ek_launch(stream, ek_grid(stream, by.y.count), kernel, by);
        });
}

int ek_cuda_launch_max_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    EK_FLOATING(pool->y.dtype, T, return launch_max_forward<T>(stream, pool))
}

template <typename T>
static int launch_max_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    int side = max_windows_side(pool);
    return ek_pool_by_kind<T, channels_of<T>::count>(
        *pool, true, [&](auto kind, const ek_cuda_pool &by) {
            typedef decltype(kind) K;
            void (*kernel)(ek_cuda_pool, ek_cuda_fault *) = max_gradient<T, typename K::I, K::V, 0>;
            if constexpr (sizeof(typename K::I) == sizeof(int32_t))
                kernel = side == 1   ? max_gradient<T, int32_t, K::V, 1>
                         : side == 2 ? max_gradient<T, int32_t, K::V, 2>
                                     : kernel;
            return ek_launch(stream, ek_grid(stream, by.x.count), kernel, by, stream->fault);
        });
}

int ek_cuda_launch_max_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    EK_FLOATING(pool->x.dtype, T, return launch_max_gradient<T>(stream, pool))
}

int ek_cuda_launch_max_gather(const ek_cuda_stream *stream, const ek_cuda_pool *pool)
{
    EK_FLOATING(pool->y.dtype, T,
                return ek_launch(stream, ek_grid(stream, pool->y.count),
                                 pool->wide ? max_gather<T, int64_t> : max_gather<T, int32_t>,
                                 *pool, stream->fault))
}
