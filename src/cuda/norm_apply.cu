/* norm_apply.cu: normalised values, and the gradient of x. */
#include "cuda/norm.cuh"

/* y = (x - center) * scale + shift */
template <typename R> struct line {
    R center, scale, shift;
};

template <typename R>
EK_DEVICE line<R> apply_line_of(const ek_cuda_norm &a, int64_t sample, int64_t column)
{
    const int64_t group = ek_norm_group(a, sample, column);
    const bool channel = !a.element;
    const R weight = channel ? ek_norm_value(a.weight, column, R(1)) : R(1);
    return {ek_norm_value(a.mean, group, R(0)), ek_norm_value(a.invstd, group, R(1)) * weight,
            channel ? ek_norm_value(a.bias, column, R(0)) : R(0)};
}

/* dx = scale * dy - shift - (x - center) * slope */
template <typename R> struct plane {
    R center, scale, shift, slope;
};

template <typename R>
EK_DEVICE plane<R> gradient_plane_of(const ek_cuda_norm &a, int64_t sample, int64_t column)
{
    const int64_t group = ek_norm_group(a, sample, column);
    const R invstd = ek_norm_value(a.invstd, group, R(1));
    const R scale = a.element ? invstd : invstd * ek_norm_value(a.weight, column, R(1));
    const R factor = a.weighted ? scale : invstd;
    return {ek_norm_value(a.mean, group, R(0)), scale,
            factor * (R)a.share * ek_norm_value(a.sum, group, R(0)),
            factor * (R)a.share * ek_norm_value(a.sum_xhat, group, R(0)) * invstd};
}

/* ---- U vectors of V elements: all loads before the first store ---- */

/* Vectors that a thread loads at once. */
enum { LOADS = 4 };

template <typename T, typename R, int U, int V>
EK_DEVICE void apply_store(T *to, int64_t stride, const R (&from)[U][V])
{
    EK_EACH(u, U)
        ek_norm_store(to + u * stride, from[u]);
}

template <typename R> EK_DEVICE R apply_placed(R x, line<R> to, bool relu)
{
    const R y = (x - to.center) * to.scale + to.shift;
    return relu && y <= 0 ? R(0) : y;
}

/* ---- rows: a line for each of a thread's columns ---- */

template <typename T, int U, typename R, int V>
EK_DEVICE void apply_row(T *y, int64_t y_stride, const T *x, int64_t x_stride,
                         const line<R> (&to)[V], bool relu)
{
    R value[U][V];
    ek_norm_load(value, x, x_stride);
    EK_EACH(u, U)
        EK_EACH(v, V)
            value[u][v] = apply_placed(value[u][v], to[v], relu);
    apply_store(y, y_stride, value);
}

template <typename T, int V> EK_KERNEL apply_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        if (own.column >= a.channels)
            continue;
        const T *x = ek_norm_at<T>(a.x, own.sample, own.begin, own.column, false);
        T *y = ek_norm_at<T>(a.y, own.sample, own.begin, own.column, false);
        const int64_t x_stride = own.step * a.x.row, y_stride = own.step * a.y.row;
        int64_t r = own.begin;
        line<R> to[V];
        EK_EACH(v, V)
            to[v] = apply_line_of<R>(a, own.sample, own.column + v);
        for (; r + (LOADS - 1) * own.step < own.end; r += LOADS * own.step) {
            apply_row<T, LOADS>(y, y_stride, x, x_stride, to, a.relu);
            x += LOADS * x_stride;
            y += LOADS * y_stride;
        }
        for (; r < own.end; r += own.step) {
            apply_row<T, 1>(y, y_stride, x, x_stride, to, a.relu);
            x += x_stride;
            y += y_stride;
        }
    }
}

template <typename T, int U, typename R, int V>
EK_DEVICE void gradient_row(const ek_norm_cursor<T> &at, const plane<R> (&to)[V], bool sums)
{
    R x[U][V] = {}, dy[U][V];
    ek_norm_load(dy, at.dy, at.dy_step);
    if (sums)
        ek_norm_load(x, at.x, at.x_step);
    if (at.mask != nullptr)
        ek_norm_cut_off(dy, at.mask, at.mask_step);
    EK_EACH(u, U)
        EK_EACH(v, V) {
            dy[u][v] *= to[v].scale;
            if (sums)
                dy[u][v] = dy[u][v] - to[v].shift - (x[u][v] - to[v].center) * to[v].slope;
        }
    apply_store(at.dx, at.dx_step, dy);
}

template <typename T, int V> EK_KERNEL gradient_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    enum { U = LOADS / 2 };
    const bool sums = a.sum_xhat != nullptr;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        if (own.column >= a.channels)
            continue;
        ek_norm_cursor<T> at(a, own.sample, own.begin, own.column, own.step);
        int64_t r = own.begin;
        plane<R> to[V];
        EK_EACH(v, V)
            to[v] = gradient_plane_of<R>(a, own.sample, own.column + v);
        for (; r + (U - 1) * own.step < own.end; r += U * own.step) {
            gradient_row<T, U>(at, to, sums);
            at.advance(U);
        }
        for (; r < own.end; r += own.step) {
            gradient_row<T, 1>(at, to, sums);
            at.advance(1);
        }
    }
}

/* ---- planes: one line for all, perhaps with parameters per element ---- */

template <typename T, int U, int V, typename R>
EK_DEVICE void apply_run(T *y, const T *x, int step, const line<R> &to, const R *weight,
                         const R *bias, bool relu)
{
    R value[U][V];
    ek_norm_load(value, x, step);
    EK_EACH(u, U) {
        if (weight == nullptr && bias == nullptr) {
            EK_EACH(v, V)
                value[u][v] = apply_placed(value[u][v], to, relu);
            continue;
        }
        R factor[V], term[V];
        EK_EACH(v, V)
            factor[v] = 1, term[v] = 0;
        if (weight != nullptr)
            ek_load_elements(factor, weight + u * step);
        if (bias != nullptr)
            ek_load_elements(term, bias + u * step);
        EK_EACH(v, V)
            value[u][v] = (value[u][v] - to.center) * to.scale * factor[v] + term[v];
    }
    apply_store(y, step, value);
}

template <typename T, int V> EK_KERNEL apply_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const line<R> to = apply_line_of<R>(a, own.sample, own.column);
        const R *weight = nullptr, *bias = nullptr;
        if (a.element && a.weight != nullptr)
            weight = (const R *)a.weight + own.column * a.inner;
        if (a.element && a.bias != nullptr)
            bias = (const R *)a.bias + own.column * a.inner;
        for (int64_t o = own.row; o < own.last; o++) {
            const T *x = ek_norm_at<T>(a.x, own.sample, o, own.column, true);
            T *y = ek_norm_at<T>(a.y, own.sample, o, own.column, true);
            int64_t i = own.begin;
            for (; i + (LOADS - 1) * own.step < own.end; i += LOADS * own.step)
                apply_run<T, LOADS, V>(y + i, x + i, own.step, to,
                                       weight == nullptr ? nullptr : weight + i,
                                       bias == nullptr ? nullptr : bias + i, a.relu);
            for (; i < own.end; i += own.step)
                apply_run<T, 1, V>(y + i, x + i, own.step, to,
                                   weight == nullptr ? nullptr : weight + i,
                                   bias == nullptr ? nullptr : bias + i, a.relu);
        }
    }
}

template <typename T, int U, int V, typename R>
EK_DEVICE void gradient_run(const ek_norm_cursor<T> &at, int64_t i, int step, const plane<R> &to,
                            const R *weight, bool sums)
{
    R x[U][V] = {}, dy[U][V];
    ek_norm_load(dy, at.dy + i, step);
    if (sums)
        ek_norm_load(x, at.x + i, step);
    if (at.mask != nullptr)
        ek_norm_cut_off(dy, at.mask + i, step);
    EK_EACH(u, U) {
        if (weight != nullptr) {
            R factor[V];
            ek_load_elements(factor, weight + i + u * step);
            EK_EACH(v, V)
                dy[u][v] *= factor[v];
        }
        EK_EACH(v, V) {
            dy[u][v] *= to.scale;
            if (sums)
                dy[u][v] = dy[u][v] - to.shift - (x[u][v] - to.center) * to.slope;
        }
    }
    apply_store(at.dx + i, step, dy);
}

template <typename T, int V> EK_KERNEL gradient_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    enum { U = LOADS / 2 };
    const bool sums = a.sum_xhat != nullptr;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const plane<R> to = gradient_plane_of<R>(a, own.sample, own.column);
        const R *weight = nullptr;
        if (a.element && a.weight != nullptr)
            weight = (const R *)a.weight + own.column * a.inner;
        for (int64_t o = own.row; o < own.last; o++) {
            const ek_norm_cursor<T> at(a, own.sample, o, own.column, 0);
            int64_t i = own.begin;
            for (; i + (U - 1) * own.step < own.end; i += U * own.step)
                gradient_run<T, U, V>(at, i, own.step, to, weight, sums);
            for (; i < own.end; i += own.step)
                gradient_run<T, 1, V>(at, i, own.step, to, weight, sums);
        }
    }
}

int ek_cuda_launch_norm_apply(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    EK_NORM_LAUNCH(stream, norm, apply_rows, apply_planes)
}

int ek_cuda_launch_norm_gradient(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    EK_NORM_LAUNCH(stream, norm, gradient_rows, gradient_planes)
}
