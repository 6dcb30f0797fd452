/* norm_reduce.cu: sums of dy and of dy (x - mean) by column. */
#include "cuda/norm.cuh"

enum { GROUP = 4 }; /* vectors of a thread that are on their way at once, of each tensor */

/* U vectors of V elements. */
template <typename T, typename R, int U, int V>
static __device__ __forceinline__ void load(R (&to)[U][V], const T *from, int64_t stride)
{
#pragma unroll
    for (int u = 0; u < U; u++)
        ek_norm_load(to[u], from + u * stride);
}

/* dy where the ReLU let it pass; a NaN hides nothing. */
template <typename T, typename R, int U, int V>
static __device__ __forceinline__ void cut_off(R (&dy)[U][V], const T *mask, int64_t stride)
{
    R y[U][V];
    load(y, mask, stride);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int v = 0; v < V; v++)
            dy[u][v] = y[u][v] <= 0 ? R(0) : dy[u][v];
}

template <typename R>
static __device__ __forceinline__ void put(const ek_cuda_norm &a, int64_t sample, int64_t part,
                                           int64_t column, R sum, R product)
{
    if (a.first != nullptr) {
        const int64_t at = ek_norm_partial(a, sample, part, column);
        a.first[at] = (double)sum;
        a.second[at] = (double)product;
    } else {
        const int64_t at = sample * a.channels + column;
        const R invstd = ek_norm_value(a.invstd, at, R(1));
        ((R *)a.by_group[0])[at] = sum;
        ((R *)a.by_group[1])[at] = product * invstd;
        ek_norm_put_line(a.line, at, sum, product, invstd);
    }
}

/* ---- rows: V columns of a thread ---- */

/* The teams' sums into those of team 0. */
template <typename R, int V>
static __device__ __forceinline__ void join_teams(R (&sum)[V], R (&product)[V], int team, int teams)
{
    __shared__ R sums[V][EK_BLOCK], products[V][EK_BLOCK];
    const int me = (int)threadIdx.x, lanes = EK_BLOCK / teams;
    for (int half = teams / 2; half > 0; half /= 2) {
        __syncthreads();
        if (team >= half && team < 2 * half)
#pragma unroll
            for (int v = 0; v < V; v++) {
                sums[v][me] = sum[v];
                products[v][me] = product[v];
            }
        __syncthreads();
        if (team < half)
#pragma unroll
            for (int v = 0; v < V; v++) {
                sum[v] += sums[v][me + half * lanes];
                product[v] += products[v][me + half * lanes];
            }
    }
}

/* A thread's rows: x, dy and mask at the first of them. */
template <typename T, typename R, int U, int V>
static __device__ __forceinline__ void
add_rows(R (&sum)[V], R (&product)[V], const T *x, const T *dy, const T *mask, int64_t x_stride,
         int64_t dy_stride, int64_t mask_stride, const R (&center)[V])
{
    R value[U][V], slope[U][V];
    load(slope, dy, dy_stride);
    load(value, x, x_stride);
    if (mask != nullptr)
        cut_off(slope, mask, mask_stride);
#pragma unroll
    for (int v = 0; v < V; v++) {
        R first = 0, second = 0;
#pragma unroll
        for (int u = 0; u < U; u++) {
            first += slope[u][v];
            second += slope[u][v] * (value[u][v] - center[v]);
        }
        sum[v] += first;
        product[v] += second;
    }
}

template <typename T, int V> EK_KERNEL reduce_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        const bool any = own.column < a.channels;
        R center[V], sum[V] = {}, product[V] = {};
        if (any) {
            const T *x = ek_norm_at<T>(a.x, own.sample, own.begin, own.column, false);
            const T *dy = ek_norm_at<T>(a.dy, own.sample, own.begin, own.column, false);
            const T *mask = a.mask.data == nullptr
                                ? nullptr
                                : ek_norm_at<T>(a.mask, own.sample, own.begin, own.column, false);
            const int64_t dx = own.step * a.x.row, ddy = own.step * a.dy.row;
            const int64_t dmask = own.step * a.mask.row;
            int64_t r = own.begin;
#pragma unroll
            for (int v = 0; v < V; v++)
                center[v] = ((const R *)a.mean)[ek_norm_group(a, own.sample, own.column + v)];
            for (; r + (GROUP - 1) * own.step < own.end; r += GROUP * own.step) {
                add_rows<T, R, GROUP, V>(sum, product, x, dy, mask, dx, ddy, dmask, center);
                x += GROUP * dx;
                dy += GROUP * ddy;
                mask = mask == nullptr ? nullptr : mask + GROUP * dmask;
            }
            for (; r < own.end; r += own.step) {
                add_rows<T, R, 1, V>(sum, product, x, dy, mask, dx, ddy, dmask, center);
                x += dx;
                dy += ddy;
                mask = mask == nullptr ? nullptr : mask + dmask;
            }
        }
        join_teams(sum, product, own.team, own.step);
        if (any && own.team == 0)
#pragma unroll
            for (int v = 0; v < V; v++)
                put(a, own.sample, own.part, own.column + v, sum[v], product[v]);
    }
}

/* Columns of elements: each row has its own statistics. A vector's elements share them. */
template <typename T, typename R, int U, int V>
static __device__ __forceinline__ void add_elements(R (&sum)[V], R (&product)[V],
                                                    const ek_cuda_norm &a, int64_t row, int step,
                                                    int64_t column)
{
    const int64_t groups = a.channels / a.each, group = column / a.each;
    R value[U][V], slope[U][V], center[U], scale[U];
    load(slope, ek_norm_at<T>(a.dy, 0, row, column, false), step * a.dy.row);
    load(value, ek_norm_at<T>(a.x, 0, row, column, false), step * a.x.row);
#pragma unroll
    for (int u = 0; u < U; u++) {
        center[u] = ((const R *)a.mean)[(row + u * step) * groups + group];
        scale[u] = ((const R *)a.invstd)[(row + u * step) * groups + group];
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        R first = 0, second = 0;
#pragma unroll
        for (int u = 0; u < U; u++) {
            first += slope[u][v];
            second += slope[u][v] * ((value[u][v] - center[u]) * scale[u]);
        }
        sum[v] += first;
        product[v] += second;
    }
}

template <typename T, int V> EK_KERNEL reduce_elements(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        const bool any = own.column < a.channels;
        R sum[V] = {}, product[V] = {};
        int64_t r = own.begin;
        for (; any && r + (GROUP - 1) * own.step < own.end; r += GROUP * own.step)
            add_elements<T, R, GROUP, V>(sum, product, a, r, own.step, own.column);
        for (; any && r < own.end; r += own.step)
            add_elements<T, R, 1, V>(sum, product, a, r, own.step, own.column);
        join_teams(sum, product, own.team, own.step);
        if (any && own.team == 0)
#pragma unroll
            for (int v = 0; v < V; v++) {
                const int64_t at = ek_norm_partial(a, 0, own.part, own.column + v);
                if (a.first != nullptr) {
                    a.first[at] = (double)sum[v];
                    a.second[at] = (double)product[v];
                } else {
                    ((R *)a.by_column[0])[at] = sum[v];
                    ((R *)a.by_column[1])[at] = product[v];
                }
            }
    }
}

/* ---- planes: one column of a team ---- */

/* The threads' sums into those of the team's first. */
template <typename R>
static __device__ __forceinline__ void join_lanes(R *sum, R *product, int team)
{
    __shared__ R sums[EK_BLOCK / EK_WARP], products[EK_BLOCK / EK_WARP];
    const int me = (int)threadIdx.x, warp = me / EK_WARP;
    for (int step = (team < EK_WARP ? team : EK_WARP) / 2; step > 0; step /= 2) {
        *sum += __shfl_xor_sync(0xffffffffu, *sum, step);
        *product += __shfl_xor_sync(0xffffffffu, *product, step);
    }
    if (team <= EK_WARP)
        return;
    __syncthreads();
    if (me % EK_WARP == 0) {
        sums[warp] = *sum;
        products[warp] = *product;
    }
    __syncthreads();
    if (me % team == 0)
        for (int other = warp + 1; other < warp + team / EK_WARP; other++) {
            *sum += sums[other];
            *product += products[other];
        }
}

template <typename T, int U, int V, typename R>
static __device__ __forceinline__ void add_run(R *sum, R *product, const T *x, const T *dy,
                                               const T *mask, const R *weight, int step, R center)
{
    R value[U][V], slope[U][V];
    load(slope, dy, step);
    load(value, x, step);
    if (mask != nullptr)
        cut_off(slope, mask, step);
    R first = 0, second = 0;
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (weight != nullptr) {
            R factor[V];
            ek_norm_load(factor, weight + u * step);
#pragma unroll
            for (int v = 0; v < V; v++)
                slope[u][v] *= factor[v];
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            first += slope[u][v];
            second += slope[u][v] * (value[u][v] - center);
        }
    }
    *sum += first;
    *product += second;
}

template <typename T, int V> EK_KERNEL reduce_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const R center = ((const R *)a.mean)[ek_norm_group(a, own.sample, own.column)];
        const R *weight =
            a.element && a.weight != nullptr ? (const R *)a.weight + own.column * a.inner : nullptr;
        R sum = 0, product = 0;
        for (int64_t o = own.row; o < own.last; o++) {
            const T *x = ek_norm_at<T>(a.x, own.sample, o, own.column, true);
            const T *dy = ek_norm_at<T>(a.dy, own.sample, o, own.column, true);
            const T *mask = a.mask.data == nullptr
                                ? nullptr
                                : ek_norm_at<T>(a.mask, own.sample, o, own.column, true);
            int64_t i = own.begin;
            for (; i + (GROUP / 2 - 1) * own.step < own.end; i += GROUP / 2 * own.step)
                add_run<T, GROUP / 2, V>(&sum, &product, x + i, dy + i,
                                         mask == nullptr ? nullptr : mask + i,
                                         weight == nullptr ? nullptr : weight + i, own.step,
                                         center);
            for (; i < own.end; i += own.step)
                add_run<T, 1, V>(&sum, &product, x + i, dy + i,
                                 mask == nullptr ? nullptr : mask + i,
                                 weight == nullptr ? nullptr : weight + i, own.step, center);
        }
        join_lanes(&sum, &product, a.cut.team);
        if (own.lane == 0)
            put(a, own.sample, own.part, own.column, sum, product);
    }
}

/* ---- launching ---- */

template <typename T, int V> static int reduce(const ek_cuda_queue *queue, const ek_cuda_norm *a)
{
    return ek_launch(queue, ek_norm_grid(a), dim3(EK_BLOCK),
                     a->planes ? reduce_planes<T, V> : reduce_rows<T, V>, *a);
}

template <typename T, int V> static int elements(const ek_cuda_queue *queue, const ek_cuda_norm *a)
{
    return ek_launch(queue, ek_norm_grid(a), dim3(EK_BLOCK), reduce_elements<T, V>, *a);
}

int ek_cuda_launch_norm_reduce(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    EK_FLOATING(norm->dtype, T, enum {V = ek_norm_width<T>::value};
                return norm->cut.vector > 1 ? reduce<T, V>(queue, norm) : reduce<T, 1>(queue, norm))
    return (int)cudaErrorInvalidValue;
}

int ek_cuda_launch_norm_elements(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    EK_FLOATING(norm->dtype, T, enum {V = ek_norm_width<T>::value};
                return norm->cut.vector > 1 ? elements<T, V>(queue, norm)
                                            : elements<T, 1>(queue, norm))
    return (int)cudaErrorInvalidValue;
}
