/* norm_moments.cu: mean and variance of columns, and the joins of partial results.
 *
 * Values are taken relative to the column's first one, so that a mean that is large against the
 * deviation costs no digits. A thread takes a few values at a time: two passes over registers give
 * their mean and deviations, which are merged (Chan et al. 1983). Threads' and blocks' moments are
 * merged in the same way. */
#include "cuda/norm.cuh"

enum { GROUP = 4 }; /* loads of a thread that are on their way at once */

/* ---- rows: V columns of a thread ---- */

/* Merges U rows into V columns of `count` values. */
template <typename R, int U, int V>
EK_DEVICE void moments_add_rows(ek_norm_pair<R> (&own)[V], int *count, const R (&x)[U][V])
{
    const ek_norm_weights<R> weights = ek_norm_weigh<true>((R)*count, (R)U);
    EK_EACH(v, V) {
        R sum = 0, squares = 0;
        EK_EACH(u, U)
            sum += x[u][v];
        const R mean = sum * ((R)1 / (R)U);
        EK_EACH(u, U)
            squares += (x[u][v] - mean) * (x[u][v] - mean);
        ek_norm_merge<true>(&own[v], {mean, squares}, weights);
    }
    *count += U;
}

template <typename T, typename R, int U, int V>
EK_DEVICE void moments_load_rows(R (&x)[U][V], const T *from, int64_t stride, const R (&base)[V])
{
    EK_EACH(u, U)
        ek_load_elements(x[u], from + u * stride);
    EK_EACH(u, U)
        EK_EACH(v, V)
            x[u][v] -= base[v];
}

/* Stores the moments of a column's part, or what is computed from them. */
template <typename R>
EK_DEVICE void moments_put(const ek_cuda_norm &a, int64_t sample, int64_t part, int64_t column,
                           R base, ek_norm_pair<R> own, int count)
{
    const double mean = (double)base + (double)own.first;
    if (a.first != nullptr) {
        const int64_t at = ek_norm_partial(a, sample, part, column);
        a.first[at] = mean;
        a.second[at] = (double)own.second;
    } else {
        const int64_t at = sample * a.channels + column;
        const R var = own.second / (R)count;
        ((R *)a.by_group[0])[at] = (R)mean;
        ((R *)a.by_group[1])[at] = ek_norm_updated(a.update, at, (R)mean, var);
    }
}

template <typename T, int V> EK_KERNEL moments_rows(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_rows own = ek_norm_rows_of(a, task);
        const bool any = own.column < a.channels;
        const int64_t stride = own.step * a.x.row;
        R base[V] = {};
        ek_norm_pair<R> moments[V] = {};
        int count = 0;
        if (any) {
            const T *x = ek_norm_at<T>(a.x, own.sample, 0, own.column, false);
            int64_t r = own.begin;
            ek_load_elements(base, x);
            x += r * a.x.row;
            for (; r + (GROUP - 1) * own.step < own.end; r += GROUP * own.step) {
                R rows[GROUP][V];
                moments_load_rows(rows, x, stride, base);
                moments_add_rows(moments, &count, rows);
                x += GROUP * stride;
            }
            for (; r < own.end; r += own.step) {
                R rows[1][V];
                moments_load_rows(rows, x, stride, base);
                moments_add_rows(moments, &count, rows);
                x += stride;
            }
        }
        ek_norm_join_teams<true>(moments, &count, own.team, own.step);
        if (any && own.team == 0)
            EK_EACH(v, V)
                moments_put(a, own.sample, own.part, own.column + v, base[v], moments[v], count);
    }
}

/* ---- planes: one column of a team ---- */

/* Merges n values. */
template <typename R, int N>
EK_DEVICE void moments_add_values(ek_norm_pair<R> *own, int *count, const R (&x)[N])
{
    R sum = 0, squares = 0;
    EK_EACH(i, N)
        sum += x[i];
    const R mean = sum * ((R)1 / (R)N);
    EK_EACH(i, N)
        squares += (x[i] - mean) * (x[i] - mean);
    ek_norm_add<true>(own, count, {mean, squares}, N);
}

template <typename T, typename R, int U, int V>
EK_DEVICE void moments_add_run(ek_norm_pair<R> *own, int *count, const T *x, int step, R base)
{
    R values[U * V];
    EK_EACH(u, U)
        ek_load_elements(*(R(*)[V]) & values[u * V], x + (int64_t)u * step);
    EK_EACH(i, U * V)
        values[i] -= base;
    moments_add_values(own, count, values);
}

template <typename T, int V> EK_KERNEL moments_planes(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    EK_TASK_LOOP(task, a.cut) {
        const ek_norm_planes own = ek_norm_planes_of(a, task);
        const T *plane = ek_norm_at<T>(a.x, own.sample, 0, own.column, true);
        const R base = ek_load(plane);
        ek_norm_pair<R> moments = {0, 0};
        int count = 0;
        for (int64_t o = own.row; o < own.last; o++) {
            const T *x = plane + o * a.x.row;
            int64_t i = own.begin;
            for (; i + (GROUP - 1) * own.step < own.end; i += GROUP * own.step)
                moments_add_run<T, R, GROUP, V>(&moments, &count, x + i, own.step, base);
            for (; i < own.end; i += own.step)
                moments_add_run<T, R, 1, V>(&moments, &count, x + i, own.step, base);
        }
        ek_norm_join_lanes<true>(&moments, &count, a.cut.team);
        if (own.lane == 0)
            moments_put(a, own.sample, own.part, own.column, base, moments, count);
    }
}

/* ---- partial sums and moments of blocks into results, in f64 and in a fixed order ---- */

enum {
    COLUMNS = 8,              /* columns that a block joins side by side */
    ROWS = EK_BLOCK / COLUMNS /* threads of each column */
};

EK_DEVICE double merge_value_of(const void *values, bool wide, int64_t i, double otherwise)
{
    if (values == nullptr)
        return otherwise;
    return wide ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

template <typename R>
EK_DEVICE void join_put_pair(void *const (&into)[2], int64_t i, double first, double second)
{
    ((R *)into[0])[i] = (R)first;
    ((R *)into[1])[i] = (R)second;
}

EK_DEVICE void join_put(void *const (&into)[2], bool wide, int64_t i, double first, double second)
{
    if (wide)
        join_put_pair<double>(into, i, first, second);
    else
        join_put_pair<float>(into, i, first, second);
}

/* Stores the mean of a group, and what `update` makes of its variance. */
EK_DEVICE void join_put_moments(const ek_cuda_norm &a, bool wide, int64_t i, double mean,
                                double var)
{
    if (wide)
        join_put_pair<double>(a.by_group, i, mean, ek_norm_updated(a.update, i, mean, var));
    else
        join_put_pair<float>(a.by_group, i, mean,
                             ek_norm_updated(a.update, i, (float)mean, (float)var));
}

/* The number of elements in a part of a column. */
EK_DEVICE double join_part_count(const ek_cuda_norm &a, int64_t part)
{
    const int64_t length = a.planes ? a.inner : a.rows;
    const int64_t begin = part % a.cut.spans * a.cut.span;
    const int64_t count = length - begin < a.cut.span ? length - begin : a.cut.span;
    if (!a.planes)
        return (double)count;
    const int64_t row = part / a.cut.spans * a.cut.rows;
    return (double)(count * (a.rows - row < a.cut.rows ? a.rows - row : a.cut.rows));
}

/* A pair, and the number of its values. */
struct join_pair {
    ek_norm_pair<double> pair;
    double count;
};

template <bool moments> EK_DEVICE void join_add(join_pair *own, join_pair other)
{
    ek_norm_merge<moments>(&own->pair, other.pair, ek_norm_weigh<moments>(own->count, other.count));
    own->count += other.count;
}

/* Joins the pairs of `count` threads (a power of 2), `stride` apart, into that of the first one. */
template <bool moments> EK_DEVICE void join_threads(join_pair *own, int stride, int count)
{
    __shared__ double first[EK_BLOCK], second[EK_BLOCK], counts[EK_BLOCK];
    const int me = (int)threadIdx.x, place = me / stride % count;
    for (int half = count / 2; half > 0; half /= 2) {
        __syncthreads();
        first[me] = own->pair.first;
        second[me] = own->pair.second;
        counts[me] = own->count;
        __syncthreads();
        if (place < half) {
            const int other = me + half * stride;
            join_add<moments>(own, {{first[other], second[other]}, counts[other]});
        }
    }
}

/* ---- a column: groups of one channel, or a channel of all samples ---- */

/* Joins rows of partial sums: the parts of one sample, or of all. */
template <bool moments> EK_KERNEL join_columns(const ek_cuda_norm a, const bool all)
{
    const bool wide = a.dtype == EK_F64;
    const int64_t blocks = (a.channels + COLUMNS - 1) / COLUMNS;
    const int64_t tasks = (all ? 1 : a.samples) * blocks, groups = a.channels / a.each;
    const int64_t rows = all ? a.samples * a.cut.parts : a.cut.parts;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const int64_t sample = task / blocks;
        const int64_t column = task % blocks * COLUMNS + threadIdx.x % COLUMNS;
        join_pair own = {{0, 0}, 0};
        if (column < a.channels)
#pragma unroll 4
            for (int64_t row = threadIdx.x / COLUMNS; row < rows; row += ROWS) {
                const int64_t at = (sample * a.cut.parts + row) * a.channels + column;
                double second = a.second[at];
                if (all && a.invstd != nullptr)
                    second *= merge_value_of(a.invstd, wide,
                                             row / a.cut.parts * groups + column / a.each, 1);
                join_add<moments>(&own,
                                  {{a.first[at], second}, moments ? join_part_count(a, row) : 0});
            }
        join_threads<moments>(&own, COLUMNS, ROWS);
        if (column >= a.channels || threadIdx.x / COLUMNS != 0)
            continue;
        const int64_t at = all ? column : sample * a.channels + column;
        if (moments) {
            join_put_moments(a, wide, at, own.pair.first, own.pair.second / own.count);
        } else if (all) {
            join_put(a.by_column, wide, at, own.pair.first, own.pair.second);
        } else {
            const double weight = merge_value_of(a.element ? nullptr : a.weight, wide, column, 1);
            const double invstd = merge_value_of(a.invstd, wide, at, 1);
            join_put(a.by_group, wide, at, weight * own.pair.first,
                     own.pair.second * (weight * invstd));
            if (wide)
                ek_norm_put_line(a.line, at, own.pair.first, own.pair.second, invstd);
            else
                ek_norm_put_line(a.line, at, (float)own.pair.first, (float)own.pair.second,
                                 (float)invstd);
        }
    }
}

/* ---- a group of several channels: one block ---- */

template <bool moments> EK_KERNEL join_groups(const ek_cuda_norm a)
{
    const bool wide = a.dtype == EK_F64;
    const int64_t groups = a.channels / a.each, entries = a.cut.parts * a.each;
    for (int64_t task = blockIdx.x; task < a.samples * groups; task += gridDim.x) {
        const int64_t sample = task / groups, channel = task % groups * a.each;
        join_pair own = {{0, 0}, 0};
        for (int64_t i = threadIdx.x; i < entries; i += EK_BLOCK) {
            const int64_t part = i / a.each, column = channel + i % a.each;
            const int64_t at = ek_norm_partial(a, sample, part, column);
            const double weight = moments ? 1 : merge_value_of(a.weight, wide, column, 1);
            join_add<moments>(&own, {{weight * a.first[at], weight * a.second[at]},
                                     moments ? join_part_count(a, part) : 0});
        }
        join_threads<moments>(&own, 1, EK_BLOCK);
        if (threadIdx.x != 0)
            continue;
        if (moments)
            join_put_moments(a, wide, task, own.pair.first, own.pair.second / own.count);
        else
            join_put(a.by_group, wide, task, own.pair.first,
                     own.pair.second * merge_value_of(a.invstd, wide, task, 1));
    }
}

/* ---- moments of chunks: one thread per channel, in f64 and in the chunks' order ---- */

template <typename R> EK_KERNEL merge_chunks(const ek_norm_merging m)
{
    EK_GRID_LOOP(c, m.channels) {
        const R *const means = (const R *)m.means + c, *const vars = (const R *)m.vars + c;
        double mean = 0, var = 0;
        for (int k = 0; k < m.chunks; k++)
            mean += m.shares[k] * (double)means[k * m.means_step];
        for (int k = 0; k < m.chunks; k++) {
            const double apart = (double)means[k * m.means_step] - mean;
            var += m.shares[k] * ((double)vars[k * m.vars_step] + apart * apart);
        }
        ((R *)m.mean)[c] = (R)mean;
        ((R *)m.invstd)[c] = ek_norm_updated(m.update, c, (R)mean, (R)var);
    }
}

int ek_cuda_launch_norm_merge(const ek_cuda_stream *stream, bool wide,
                              const ek_norm_merging *merging)
{
    return ek_launch(stream, ek_grid(stream, merging->channels),
                     wide ? merge_chunks<double> : merge_chunks<float>, *merging);
}

static unsigned join_grid_of(int64_t tasks)
{
    const int64_t most = 1 << 20;
    return (unsigned)(tasks < most ? tasks : most);
}

template <bool moments> static int launch_join(const ek_cuda_stream *stream, const ek_cuda_norm *a)
{
    const int64_t blocks = (a->channels + COLUMNS - 1) / COLUMNS;
    if (a->each == 1)
        return ek_launch(stream, join_grid_of(a->samples * blocks), join_columns<moments>, *a,
                         false);
    return ek_launch(stream, join_grid_of(a->samples * (a->channels / a->each)),
                     join_groups<moments>, *a);
}

static int launch_blocks(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    EK_NORM_LAUNCH(stream, norm, moments_rows, moments_planes)
}

int ek_cuda_launch_norm_moments(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    int rc = launch_blocks(stream, norm);
    return rc == 0 && norm->first ? launch_join<true>(stream, norm) : rc;
}

int ek_cuda_launch_norm_join_groups(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return launch_join<false>(stream, norm);
}

int ek_cuda_launch_norm_join_columns(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return ek_launch(stream, join_grid_of((norm->channels + COLUMNS - 1) / COLUMNS),
                     join_columns<false>, *norm, true);
}
