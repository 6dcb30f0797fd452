/* norm_reduce.cu: sums of dy and of dy * (x - mean) by column. */
#include "cuda/norm.cuh"

enum { GROUP = 4 }; /* vectors of each tensor that a thread has on their way at once */

template <typename R>
EK_DEVICE void reduce_put(const ek_cuda_norm &a, int64_t sample, int64_t part, int64_t column,
                          ek_norm_pair<R> own)
{
    if (a.first != nullptr) {
        const int64_t at = ek_norm_partial(a, sample, part, column);
        a.first[at] = (double)own.first;
        a.second[at] = (double)own.second;
    } else {
        const int64_t at = sample * a.channels + column;
        const R invstd = ek_norm_value(a.invstd, at, R(1));
        ((R *)a.by_group[0])[at] = own.first;
        ((R *)a.by_group[1])[at] = own.second * invstd;
        ek_norm_put_line(a.line, at, own.first, own.second, invstd);
    }
}

/* ---- rows: V columns of a thread ---- */

template <int U, typename T, typename R, int V>
EK_DEVICE void reduce_add_rows(ek_norm_pair<R> (&own)[V], const ek_norm_cursor<T> &at,
                               const R (&center)[V])
{
    R value[U][V], slope[U][V];
    ek_norm_load(slope, at.dy, at.dy_step);
    ek_norm_load(value, at.x, at.x_step);
    if (at.mask != nullptr)
        ek_norm_cut_off(slope, at.mask, at.mask_step);
    EK_EACH(v, V) {
        R first = 0, second = 0;
        EK_EACH(u, U) {
            first += slope[u][v];
            second += slope[u][v] * (value[u][v] - center[v]);
        }
        own[v].first += first;
        own[v].second += second;
    }
}

template <typename T, int V> EK_KERNEL reduce_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        const bool any = own.column < a.channels;
        ek_norm_pair<R> sums[V] = {};
        int count = 0;
        if (any) {
            ek_norm_cursor<T> at(a, own.sample, own.begin, own.column, own.step);
            int64_t r = own.begin;
            R center[V];
            EK_EACH(v, V)
                center[v] =
                    ek_norm_value(a.mean, ek_norm_group(a, own.sample, own.column + v), R(0));
            for (; r + (GROUP - 1) * own.step < own.end; r += GROUP * own.step) {
                reduce_add_rows<GROUP>(sums, at, center);
                at.advance(GROUP);
            }
            for (; r < own.end; r += own.step) {
                reduce_add_rows<1>(sums, at, center);
                at.advance(1);
            }
        }
        ek_norm_join_teams<false>(sums, &count, own.team, own.step);
        if (any && own.team == 0)
            EK_EACH(v, V)
                reduce_put(a, own.sample, own.part, own.column + v, sums[v]);
    }
}

/* Adds columns of elements. Each row has its own statistics, which a vector's elements share. */
template <typename T, int U, typename R, int V>
EK_DEVICE void reduce_add_elements(ek_norm_pair<R> (&own)[V], const ek_cuda_norm &a, int64_t row,
                                   int step, int64_t column)
{
    const int64_t groups = a.channels / a.each, group = column / a.each;
    R value[U][V], slope[U][V], center[U], scale[U];
    ek_norm_load(slope, ek_norm_at<T>(a.dy, 0, row, column, false), step * a.dy.row);
    ek_norm_load(value, ek_norm_at<T>(a.x, 0, row, column, false), step * a.x.row);
    EK_EACH(u, U) {
        center[u] = ek_norm_value(a.mean, (row + u * step) * groups + group, R(0));
        scale[u] = ((const R *)a.invstd)[(row + u * step) * groups + group];
    }
    EK_EACH(v, V) {
        R first = 0, second = 0;
        EK_EACH(u, U) {
            first += slope[u][v];
            second += slope[u][v] * ((value[u][v] - center[u]) * scale[u]);
        }
        own[v].first += first;
        own[v].second += second;
    }
}

template <typename T, int V> EK_KERNEL reduce_elements(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        const bool any = own.column < a.channels;
        ek_norm_pair<R> sums[V] = {};
        int count = 0;
        int64_t r = own.begin;
        for (; any && r + (GROUP - 1) * own.step < own.end; r += GROUP * own.step)
            reduce_add_elements<T, GROUP>(sums, a, r, own.step, own.column);
        for (; any && r < own.end; r += own.step)
            reduce_add_elements<T, 1>(sums, a, r, own.step, own.column);
        ek_norm_join_teams<false>(sums, &count, own.team, own.step);
        if (any && own.team == 0)
            EK_EACH(v, V) {
                const int64_t at = ek_norm_partial(a, 0, own.part, own.column + v);
                if (a.first != nullptr) {
                    a.first[at] = (double)sums[v].first;
                    a.second[at] = (double)sums[v].second;
                } else {
                    ((R *)a.by_column[0])[at] = sums[v].first;
                    ((R *)a.by_column[1])[at] = sums[v].second;
                }
            }
    }
}

/* ---- planes: one column of a team ---- */

template <typename T, int U, int V, typename R>
EK_DEVICE void reduce_add_run(ek_norm_pair<R> *own, const ek_norm_cursor<T> &at, int64_t i,
                              const R *weight, int step, R center)
{
    R value[U][V], slope[U][V];
    ek_norm_load(slope, at.dy + i, step);
    ek_norm_load(value, at.x + i, step);
    if (at.mask != nullptr)
        ek_norm_cut_off(slope, at.mask + i, step);
    R first = 0, second = 0;
    EK_EACH(u, U) {
        if (weight != nullptr) {
            R factor[V];
            ek_load_elements(factor, weight + i + u * step);
            EK_EACH(v, V)
                slope[u][v] *= factor[v];
        }
        EK_EACH(v, V) {
            first += slope[u][v];
            second += slope[u][v] * (value[u][v] - center);
        }
    }
    own->first += first;
    own->second += second;
}

template <typename T, int V> EK_KERNEL reduce_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const R center = ek_norm_value(a.mean, ek_norm_group(a, own.sample, own.column), R(0));
        const R *weight =
            a.element && a.weight != nullptr ? (const R *)a.weight + own.column * a.inner : nullptr;
        ek_norm_pair<R> sums = {0, 0};
        int count = 0;
        for (int64_t o = own.row; o < own.last; o++) {
            const ek_norm_cursor<T> at(a, own.sample, o, own.column, 0);
            int64_t i = own.begin;
            for (; i + (GROUP / 2 - 1) * own.step < own.end; i += GROUP / 2 * own.step)
                reduce_add_run<T, GROUP / 2, V>(&sums, at, i, weight, own.step, center);
            for (; i < own.end; i += own.step)
                reduce_add_run<T, 1, V>(&sums, at, i, weight, own.step, center);
        }
        ek_norm_join_lanes<false>(&sums, &count, a.cut.team);
        if (own.lane == 0)
            reduce_put(a, own.sample, own.part, own.column, sums);
    }
}

int ek_cuda_launch_norm_reduce(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    EK_NORM_LAUNCH(stream, norm, reduce_rows, reduce_planes)
}

int ek_cuda_launch_norm_elements(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    EK_NORM_LAUNCH(stream, norm, reduce_elements, reduce_elements)
}
