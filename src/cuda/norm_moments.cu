/* norm_moments.cu: mean and variance of columns.
 *
 * Values are taken relative to the column's first one, so that a mean that is large against the
 * deviation costs no digits, in groups of a few, whose mean and deviations are made in two passes
 * over registers and merged (Chan et al. 1983), as threads' and blocks' are. */
#include "cuda/norm.cuh"

enum { GROUP = 4 }; /* loads of a thread that are on their way at once */

/* ---- rows: V columns of a thread ---- */

/* Merges U rows into V columns of `count` values. */
template <typename R, int U, int V>
static __device__ __forceinline__ void add_rows(ek_norm_moments<R> (&own)[V], int *count,
                                                const R (&x)[U][V])
{
    const ek_norm_weights<R> weights = ek_norm_weigh((R)*count, (R)U);
#pragma unroll
    for (int v = 0; v < V; v++) {
        R sum = 0, squares = 0;
#pragma unroll
        for (int u = 0; u < U; u++)
            sum += x[u][v];
        const R mean = sum * ((R)1 / (R)U);
#pragma unroll
        for (int u = 0; u < U; u++)
            squares += (x[u][v] - mean) * (x[u][v] - mean);
        ek_norm_merge(&own[v], {mean, squares}, weights);
    }
    *count += U;
}

template <typename T, typename R, int U, int V>
static __device__ __forceinline__ void load_rows(R (&x)[U][V], const T *from, int64_t stride,
                                                 const R (&base)[V])
{
#pragma unroll
    for (int u = 0; u < U; u++)
        ek_norm_load(x[u], from + u * stride);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int v = 0; v < V; v++)
            x[u][v] -= base[v];
}

/* The teams' moments into those of team 0. */
template <typename R, int V>
static __device__ __forceinline__ void join_teams(ek_norm_moments<R> (&own)[V], int *count,
                                                  int team, int teams)
{
    __shared__ R means[V][EK_BLOCK], deviations[V][EK_BLOCK];
    __shared__ int counts[EK_BLOCK];
    const int me = (int)threadIdx.x, lanes = EK_BLOCK / teams;
    for (int half = teams / 2; half > 0; half /= 2) {
        __syncthreads();
        if (team >= half && team < 2 * half) {
            counts[me] = *count;
#pragma unroll
            for (int v = 0; v < V; v++) {
                means[v][me] = own[v].mean;
                deviations[v][me] = own[v].deviation;
            }
        }
        __syncthreads();
        if (team >= half)
            continue;
        const int other = me + half * lanes;
        const ek_norm_weights<R> weights = ek_norm_weigh((R)*count, (R)counts[other]);
#pragma unroll
        for (int v = 0; v < V; v++)
            ek_norm_merge(&own[v], {means[v][other], deviations[v][other]}, weights);
        *count += counts[other];
    }
}

/* Column `column` of a part: the moments, or what becomes of them. */
template <typename R>
static __device__ __forceinline__ void put(const ek_cuda_norm &a, int64_t sample, int64_t part,
                                           int64_t column, R base, ek_norm_moments<R> own,
                                           int count)
{
    const double mean = (double)base + (double)own.mean;
    if (a.first != nullptr) {
        const int64_t at = ek_norm_partial(a, sample, part, column);
        a.first[at] = mean;
        a.second[at] = (double)own.deviation;
    } else {
        const int64_t at = sample * a.channels + column;
        const R var = own.deviation / (R)count;
        ((R *)a.by_group[0])[at] = (R)mean;
        ((R *)a.by_group[1])[at] = ek_norm_updated(a.update, at, (R)mean, var);
    }
}

template <typename T, int V> EK_KERNEL moments_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        const bool any = own.column < a.channels;
        const int64_t stride = own.step * a.x.row;
        R base[V] = {};
        ek_norm_moments<R> moments[V] = {};
        int count = 0;
        if (any) {
            const T *x = ek_norm_at<T>(a.x, own.sample, 0, own.column, false);
            int64_t r = own.begin;
            ek_norm_load(base, x);
            x += r * a.x.row;
            for (; r + (GROUP - 1) * own.step < own.end; r += GROUP * own.step) {
                R rows[GROUP][V];
                load_rows(rows, x, stride, base);
                add_rows(moments, &count, rows);
                x += GROUP * stride;
            }
            for (; r < own.end; r += own.step) {
                R rows[1][V];
                load_rows(rows, x, stride, base);
                add_rows(moments, &count, rows);
                x += stride;
            }
        }
        join_teams(moments, &count, own.team, own.step);
        if (any && own.team == 0)
#pragma unroll
            for (int v = 0; v < V; v++)
                put(a, own.sample, own.part, own.column + v, base[v], moments[v], count);
    }
}

/* ---- planes: one column of a team ---- */

/* Merges n values. */
template <typename R, int N>
static __device__ __forceinline__ void add_values(ek_norm_moments<R> *own, int *count,
                                                  const R (&x)[N])
{
    R sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += x[i];
    const R mean = sum * ((R)1 / (R)N);
#pragma unroll
    for (int i = 0; i < N; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    ek_norm_merge(own, {mean, squares}, ek_norm_weigh((R)*count, (R)N));
    *count += N;
}

template <typename T, typename R, int U, int V>
static __device__ __forceinline__ void add_run(ek_norm_moments<R> *own, int *count, const T *x,
                                               int step, R base)
{
    R values[U * V];
#pragma unroll
    for (int u = 0; u < U; u++)
        ek_norm_load(*(R(*)[V]) & values[u * V], x + (int64_t)u * step);
#pragma unroll
    for (int i = 0; i < U * V; i++)
        values[i] -= base;
    add_values(own, count, values);
}

template <typename R>
static __device__ __forceinline__ void merge(ek_norm_moments<R> *own, int *count,
                                             ek_norm_moments<R> other, int others)
{
    ek_norm_merge(own, other, ek_norm_weigh((R)*count, (R)others));
    *count += others;
}

/* The threads' moments into those of the team's first. */
template <typename R>
static __device__ __forceinline__ void join_lanes(ek_norm_moments<R> *own, int *count, int team)
{
    __shared__ R means[EK_BLOCK / EK_WARP], deviations[EK_BLOCK / EK_WARP];
    __shared__ int counts[EK_BLOCK / EK_WARP];
    const int me = (int)threadIdx.x, warp = me / EK_WARP;
    for (int step = (team < EK_WARP ? team : EK_WARP) / 2; step > 0; step /= 2) {
        const R mean = __shfl_xor_sync(0xffffffffu, own->mean, step);
        const R deviation = __shfl_xor_sync(0xffffffffu, own->deviation, step);
        merge(own, count, {mean, deviation}, __shfl_xor_sync(0xffffffffu, *count, step));
    }
    if (team <= EK_WARP)
        return;
    __syncthreads();
    if (me % EK_WARP == 0) {
        means[warp] = own->mean;
        deviations[warp] = own->deviation;
        counts[warp] = *count;
    }
    __syncthreads();
    if (me % team == 0)
        for (int other = warp + 1; other < warp + team / EK_WARP; other++)
            merge(own, count, {means[other], deviations[other]}, counts[other]);
}

template <typename T, int V> EK_KERNEL moments_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const T *plane = ek_norm_at<T>(a.x, own.sample, 0, own.column, true);
        const R base = ek_load(plane);
        ek_norm_moments<R> moments = {0, 0};
        int count = 0;
        for (int64_t o = own.row; o < own.last; o++) {
            const T *x = plane + o * a.x.row;
            int64_t i = own.begin;
            for (; i + (GROUP - 1) * own.step < own.end; i += GROUP * own.step)
                add_run<T, R, GROUP, V>(&moments, &count, x + i, own.step, base);
            for (; i < own.end; i += own.step)
                add_run<T, R, 1, V>(&moments, &count, x + i, own.step, base);
        }
        join_lanes(&moments, &count, a.cut.team);
        if (own.lane == 0)
            put(a, own.sample, own.part, own.column, base, moments, count);
    }
}

/* ---- launching ---- */

template <typename T, int V> static int moments(const ek_cuda_queue *queue, const ek_cuda_norm *a)
{
    return ek_launch(queue, ek_norm_grid(a), dim3(EK_BLOCK),
                     a->planes ? moments_planes<T, V> : moments_rows<T, V>, *a);
}

int ek_cuda_launch_norm_moments(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    EK_FLOATING(norm->dtype, T, enum {V = ek_norm_width<T>::value};
                return norm->cut.vector > 1 ? moments<T, V>(queue, norm)
                                            : moments<T, 1>(queue, norm))
    return (int)cudaErrorInvalidValue;
}
