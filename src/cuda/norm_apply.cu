/* norm_apply.cu: normalised values, and the gradient of x. */
#include "cuda/norm.cuh"

/* y = (x - center) scale + shift */
template <typename R> struct line {
    R center, scale, shift;
};

template <typename R>
static __device__ __forceinline__ line<R> line_of(const ek_cuda_norm &a, int64_t sample,
                                                  int64_t column)
{
    const int64_t group = ek_norm_group(a, sample, column);
    const bool channel = !a.element;
    const R weight = channel ? ek_norm_value(a.weight, column, R(1)) : R(1);
    return {((const R *)a.mean)[group], ((const R *)a.invstd)[group] * weight,
            channel ? ek_norm_value(a.bias, column, R(0)) : R(0)};
}

/* dx = scale dy - shift - (x - center) slope */
template <typename R> struct plane {
    R center, scale, shift, slope;
};

template <typename R>
static __device__ __forceinline__ plane<R> plane_of(const ek_cuda_norm &a, int64_t sample,
                                                    int64_t column)
{
    const int64_t group = ek_norm_group(a, sample, column);
    const R invstd = ((const R *)a.invstd)[group];
    const R scale = a.element ? invstd : invstd * ek_norm_value(a.weight, column, R(1));
    const R share = (a.weighted ? scale : invstd) * (R)a.share;
    return {((const R *)a.mean)[group], scale, share * ek_norm_value(a.sum, group, R(0)),
            share * ek_norm_value(a.sum_xhat, group, R(0)) * invstd};
}

/* ---- rows ---- */

template <typename T, int V> EK_KERNEL apply_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        if (own.column >= a.channels)
            continue;
        const T *__restrict__ x = ek_norm_at<T>(a.x, own.sample, own.begin, own.column, false);
        T *__restrict__ y = ek_norm_at<T>(a.y, own.sample, own.begin, own.column, false);
        line<R> to[V];
#pragma unroll
        for (int v = 0; v < V; v++)
            to[v] = line_of<R>(a, own.sample, own.column + v);
#pragma unroll 4
        for (int64_t r = own.begin; r < own.end; r += own.step) {
            R value[V];
            ek_norm_load(value, x);
#pragma unroll
            for (int v = 0; v < V; v++) {
                value[v] = (value[v] - to[v].center) * to[v].scale + to[v].shift;
                value[v] = a.relu && value[v] <= 0 ? R(0) : value[v];
            }
            ek_norm_store(y, value);
            x += own.step * a.x.row;
            y += own.step * a.y.row;
        }
    }
}

/* V gradients; x is read with `sums` only. */
template <typename T, typename R, int V>
static __device__ __forceinline__ void slope_of(R (&dy)[V], const T *from, const T *mask)
{
    ek_norm_load(dy, from);
    if (mask == nullptr)
        return;
    R y[V];
    ek_norm_load(y, mask);
#pragma unroll
    for (int v = 0; v < V; v++)
        dy[v] = y[v] <= 0 ? R(0) : dy[v];
}

template <typename T, int V> EK_KERNEL gradient_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    const bool masked = a.mask.data != nullptr, sums = a.sum != nullptr;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        if (own.column >= a.channels)
            continue;
        const T *__restrict__ x = ek_norm_at<T>(a.x, own.sample, own.begin, own.column, false);
        const T *__restrict__ dy = ek_norm_at<T>(a.dy, own.sample, own.begin, own.column, false);
        const T *__restrict__ mask =
            masked ? ek_norm_at<T>(a.mask, own.sample, own.begin, own.column, false) : nullptr;
        T *__restrict__ dx = ek_norm_at<T>(a.y, own.sample, own.begin, own.column, false);
        plane<R> to[V];
#pragma unroll
        for (int v = 0; v < V; v++)
            to[v] = plane_of<R>(a, own.sample, own.column + v);
#pragma unroll 4
        for (int64_t r = own.begin; r < own.end; r += own.step) {
            R slope[V];
            slope_of(slope, dy, mask);
#pragma unroll
            for (int v = 0; v < V; v++)
                slope[v] *= to[v].scale;
            if (sums) {
                R value[V];
                ek_norm_load(value, x);
#pragma unroll
                for (int v = 0; v < V; v++)
                    slope[v] = slope[v] - to[v].shift - (value[v] - to[v].center) * to[v].slope;
            }
            ek_norm_store(dx, slope);
            x += own.step * a.x.row;
            dy += own.step * a.dy.row;
            mask = masked ? mask + own.step * a.mask.row : nullptr;
            dx += own.step * a.y.row;
        }
    }
}

/* ---- planes ---- */

template <typename T, int V> EK_KERNEL apply_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const line<R> to = line_of<R>(a, own.sample, own.column);
        const R *weight = nullptr, *bias = nullptr;
        if (a.element && a.weight != nullptr)
            weight = (const R *)a.weight + own.column * a.inner;
        if (a.element && a.bias != nullptr)
            bias = (const R *)a.bias + own.column * a.inner;
        for (int64_t o = own.row; o < own.last; o++) {
            const T *__restrict__ x = ek_norm_at<T>(a.x, own.sample, o, own.column, true);
            T *__restrict__ y = ek_norm_at<T>(a.y, own.sample, o, own.column, true);
#pragma unroll 4
            for (int64_t i = own.begin; i < own.end; i += own.step) {
                R value[V], factor[V], term[V];
                ek_norm_load(value, x + i);
#pragma unroll
                for (int v = 0; v < V; v++)
                    factor[v] = 1, term[v] = to.shift;
                if (weight != nullptr)
                    ek_norm_load(factor, weight + i);
                if (bias != nullptr)
                    ek_norm_load(term, bias + i);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    value[v] = (value[v] - to.center) * to.scale * factor[v] + term[v];
                    value[v] = a.relu && value[v] <= 0 ? R(0) : value[v];
                }
                ek_norm_store(y + i, value);
            }
        }
    }
}

template <typename T, int V> EK_KERNEL gradient_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    const bool masked = a.mask.data != nullptr, sums = a.sum != nullptr;
    EK_TASK_LOOP(task, a.cut)
    {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const plane<R> to = plane_of<R>(a, own.sample, own.column);
        const R *weight = nullptr;
        if (a.element && a.weight != nullptr)
            weight = (const R *)a.weight + own.column * a.inner;
        for (int64_t o = own.row; o < own.last; o++) {
            const T *__restrict__ x = ek_norm_at<T>(a.x, own.sample, o, own.column, true);
            const T *__restrict__ dy = ek_norm_at<T>(a.dy, own.sample, o, own.column, true);
            const T *__restrict__ mask =
                masked ? ek_norm_at<T>(a.mask, own.sample, o, own.column, true) : nullptr;
            T *__restrict__ dx = ek_norm_at<T>(a.y, own.sample, o, own.column, true);
#pragma unroll 4
            for (int64_t i = own.begin; i < own.end; i += own.step) {
                R slope[V];
                slope_of(slope, dy + i, masked ? mask + i : nullptr);
                if (weight != nullptr) {
                    R factor[V];
                    ek_norm_load(factor, weight + i);
#pragma unroll
                    for (int v = 0; v < V; v++)
                        slope[v] *= factor[v];
                }
#pragma unroll
                for (int v = 0; v < V; v++)
                    slope[v] *= to.scale;
                if (sums) {
                    R value[V];
                    ek_norm_load(value, x + i);
#pragma unroll
                    for (int v = 0; v < V; v++)
                        slope[v] = slope[v] - to.shift - (value[v] - to.center) * to.slope;
                }
                ek_norm_store(dx + i, slope);
            }
        }
    }
}

/* ---- launching ---- */

template <typename T, int V> static int apply(const ek_cuda_queue *queue, const ek_cuda_norm *a)
{
    return ek_launch(queue, ek_norm_grid(a), dim3(EK_BLOCK),
                     a->planes ? apply_planes<T, V> : apply_rows<T, V>, *a);
}

template <typename T, int V> static int gradient(const ek_cuda_queue *queue, const ek_cuda_norm *a)
{
    return ek_launch(queue, ek_norm_grid(a), dim3(EK_BLOCK),
                     a->planes ? gradient_planes<T, V> : gradient_rows<T, V>, *a);
}

int ek_cuda_launch_norm_apply(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    EK_FLOATING(norm->dtype, T, enum {V = ek_norm_width<T>::value};
                return norm->cut.vector > 1 ? apply<T, V>(queue, norm) : apply<T, 1>(queue, norm))
    return (int)cudaErrorInvalidValue;
}

int ek_cuda_launch_norm_gradient(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    EK_FLOATING(norm->dtype, T, enum {V = ek_norm_width<T>::value};
                return norm->cut.vector > 1 ? gradient<T, V>(queue, norm)
                                            : gradient<T, 1>(queue, norm))
    return (int)cudaErrorInvalidValue;
}
