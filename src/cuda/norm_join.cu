/* norm_join.cu: joins partial sums and moments of blocks into results, in f64 and in a fixed order.
 */
#include "cuda/norm.cuh"

enum {
    COLUMNS = 8,              /* columns that a block joins side by side */
    ROWS = EK_BLOCK / COLUMNS /* threads of each column */
};

/* Returns the number of elements in a part of a column. */
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

/* Joins the pairs of `threads` threads (a power of 2), which are `stride` apart, into that of the
 * first one. */
template <bool moments>
EK_DEVICE void join_threads(ek_norm_pair<double> *own, double *count, int stride, int threads)
{
    __shared__ double first[EK_BLOCK], second[EK_BLOCK], counts[EK_BLOCK];
    const int me = (int)threadIdx.x, place = me / stride % threads;
    for (int half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        first[me] = own->first;
        second[me] = own->second;
        counts[me] = *count;
        __syncthreads();
        const int other = me + half * stride;
        if (place < half)
            ek_norm_add<moments>(own, count, {first[other], second[other]}, counts[other]);
    }
}

/* Stores the pair of statistic i, and what follows from it; if `all`, the pair of column i over all
 * samples. Sums of a statistic are multiplied by `weight`. */
template <bool moments, typename R>
EK_DEVICE void join_put(const ek_cuda_norm &a, bool all, int64_t i, const ek_norm_pair<double> &own,
                        double count, double weight)
{
    void *const *const into = all ? a.by_column : a.by_group;
    R first = (R)own.first, second = (R)own.second;
    if (moments) {
        second = ek_norm_updated(a.update, i, first, (R)(own.second / count));
    } else if (!all) {
        const R invstd = ek_norm_value(a.invstd, i, R(1));
        ek_norm_put_line(a.line, i, first, second, invstd);
        first = (R)(weight * own.first);
        second = (R)(own.second * (weight * (double)invstd));
    }
    ((R *)into[0])[i] = first;
    ((R *)into[1])[i] = second;
}

/* ---- a column: groups of one channel, or a channel of all samples ---- */

/* Joins rows of partial sums: the parts of one sample, or of all samples if `all`. */
template <bool moments, typename R> EK_KERNEL join_columns(const ek_cuda_norm a, const bool all)
{
    const int64_t blocks = (a.channels + COLUMNS - 1) / COLUMNS;
    const int64_t tasks = (all ? 1 : a.samples) * blocks, groups = a.channels / a.each;
    const int64_t rows = all ? a.samples * a.cut.parts : a.cut.parts;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const int64_t sample = task / blocks;
        const int64_t column = task % blocks * COLUMNS + threadIdx.x % COLUMNS;
        ek_norm_pair<double> own = {0, 0};
        double count = 0;
        if (column < a.channels)
#pragma unroll 4
            for (int64_t row = threadIdx.x / COLUMNS; row < rows; row += ROWS) {
                const int64_t at = (sample * a.cut.parts + row) * a.channels + column;
                double second = a.second[at];
                if (all)
                    second *=
                        (double)ek_norm_value(a.invstd,
                                              row / a.cut.parts * groups + column / a.each, R(1));
                ek_norm_add<moments>(&own, &count, {a.first[at], second},
                                     moments ? join_part_count(a, row) : 0.);
            }
        join_threads<moments>(&own, &count, COLUMNS, ROWS);
        if (column >= a.channels || threadIdx.x / COLUMNS != 0)
            continue;
        const R weight = a.element ? R(1) : ek_norm_value(a.weight, column, R(1));
        join_put<moments, R>(a, all, all ? column : sample * a.channels + column, own, count,
                             (double)weight);
    }
}

/* ---- a group of several channels: one block ---- */

template <bool moments, typename R> EK_KERNEL join_groups(const ek_cuda_norm a)
{
    const int64_t groups = a.channels / a.each, entries = a.cut.parts * a.each;
    for (int64_t task = blockIdx.x; task < a.samples * groups; task += gridDim.x) {
        const int64_t sample = task / groups, channel = task % groups * a.each;
        ek_norm_pair<double> own = {0, 0};
        double count = 0;
        for (int64_t i = threadIdx.x; i < entries; i += EK_BLOCK) {
            const int64_t part = i / a.each, column = channel + i % a.each;
            const int64_t at = ek_norm_partial(a, sample, part, column);
            const double weight = moments ? 1 : (double)ek_norm_value(a.weight, column, R(1));
            ek_norm_add<moments>(&own, &count, {weight * a.first[at], weight * a.second[at]},
                                 moments ? join_part_count(a, part) : 0.);
        }
        join_threads<moments>(&own, &count, 1, EK_BLOCK);
        if (threadIdx.x == 0)
            join_put<moments, R>(a, false, task, own, count, 1);
    }
}

template <bool moments, typename R>
static int join_launch(const ek_cuda_stream *stream, const ek_cuda_norm *a, bool all)
{
    const int64_t blocks = (a->channels + COLUMNS - 1) / COLUMNS;
    if (all || a->each == 1)
        return ek_launch(stream, ek_norm_grid(all ? blocks : a->samples * blocks),
                         join_columns<moments, R>, *a, all);
    return ek_launch(stream, ek_norm_grid(a->samples * (a->channels / a->each)),
                     join_groups<moments, R>, *a);
}

int ek_cuda_launch_norm_join_moments(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return norm->dtype == EK_F64 ? join_launch<true, double>(stream, norm, false)
                                 : join_launch<true, float>(stream, norm, false);
}

int ek_cuda_launch_norm_join_groups(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return norm->dtype == EK_F64 ? join_launch<false, double>(stream, norm, false)
                                 : join_launch<false, float>(stream, norm, false);
}

int ek_cuda_launch_norm_join_columns(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return norm->dtype == EK_F64 ? join_launch<false, double>(stream, norm, true)
                                 : join_launch<false, float>(stream, norm, true);
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
