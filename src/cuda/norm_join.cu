/* norm_join.cu: partial sums of blocks into results, in f64 and in a fixed order. */
#include "cuda/norm.cuh"

enum {
    COLUMNS = 8,              /* that a block joins side by side */
    ROWS = EK_BLOCK / COLUMNS /* threads of each */
};

static __device__ __forceinline__ double value_of(const void *values, bool wide, int64_t i,
                                                  double otherwise)
{
    if (values == nullptr)
        return otherwise;
    return wide ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

template <typename R>
static __device__ __forceinline__ void put_pair(void *const (&into)[2], int64_t i, double first,
                                                double second)
{
    ((R *)into[0])[i] = (R)first;
    ((R *)into[1])[i] = (R)second;
}

static __device__ __forceinline__ void put(void *const (&into)[2], bool wide, int64_t i,
                                           double first, double second)
{
    if (wide)
        put_pair<double>(into, i, first, second);
    else
        put_pair<float>(into, i, first, second);
}

/* Moments of a group are what they were made for. */
static __device__ __forceinline__ void put_moments(const ek_cuda_norm &a, bool wide, int64_t i,
                                                   double mean, double var)
{
    if (wide)
        put_pair<double>(a.by_group, i, mean, ek_norm_updated(a.update, i, mean, var));
    else
        put_pair<float>(a.by_group, i, mean, ek_norm_updated(a.update, i, (float)mean, (float)var));
}

/* Elements of a part: what its blocks saw. */
static __device__ __forceinline__ double part_count(const ek_cuda_norm &a, int64_t part)
{
    const int64_t length = a.planes ? a.inner : a.rows;
    const int64_t begin = part % a.cut.spans * a.cut.span;
    const int64_t count = length - begin < a.cut.span ? length - begin : a.cut.span;
    if (!a.planes)
        return (double)count;
    const int64_t row = part / a.cut.spans * a.cut.rows;
    return (double)(count * (a.rows - row < a.cut.rows ? a.rows - row : a.cut.rows));
}

/* Two sums, or moments, and what they are of. */
struct join_pair {
    double first, second, count;
};

template <bool moments> static __device__ __forceinline__ void add(join_pair *own, join_pair other)
{
    if (moments) {
        ek_norm_moments<double> sum = {own->first, own->second};
        ek_norm_merge(&sum, {other.first, other.second}, ek_norm_weigh(own->count, other.count));
        own->first = sum.mean;
        own->second = sum.deviation;
    } else {
        own->first += other.first;
        own->second += other.second;
    }
    own->count += other.count;
}

/* Every thread's into those of the first of `count` (a power of 2) with `stride` between them. */
template <bool moments>
static __device__ __forceinline__ void join_threads(join_pair *own, int stride, int count)
{
    __shared__ double first[EK_BLOCK], second[EK_BLOCK], counts[EK_BLOCK];
    const int me = (int)threadIdx.x, place = me / stride % count;
    for (int half = count / 2; half > 0; half /= 2) {
        __syncthreads();
        first[me] = own->first;
        second[me] = own->second;
        counts[me] = own->count;
        __syncthreads();
        if (place < half) {
            const int other = me + half * stride;
            add<moments>(own, {first[other], second[other], counts[other]});
        }
    }
}

/* ---- a column: groups of one channel, or a channel of all samples ---- */

/* Rows of partial sums: parts of one sample, or of all. */
template <bool moments> EK_KERNEL join_columns(const ek_cuda_norm a, const bool all)
{
    const bool wide = a.dtype == EK_F64;
    const int64_t blocks = (a.channels + COLUMNS - 1) / COLUMNS;
    const int64_t tasks = (all ? 1 : a.samples) * blocks, groups = a.channels / a.each;
    const int64_t rows = all ? a.samples * a.cut.parts : a.cut.parts;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const int64_t sample = task / blocks;
        const int64_t column = task % blocks * COLUMNS + threadIdx.x % COLUMNS;
        join_pair own = {0, 0, 0};
        if (column < a.channels)
#pragma unroll 4
            for (int64_t row = threadIdx.x / COLUMNS; row < rows; row += ROWS) {
                const int64_t at = (sample * a.cut.parts + row) * a.channels + column;
                double second = a.second[at];
                if (all && a.invstd != nullptr)
                    second *=
                        value_of(a.invstd, wide, row / a.cut.parts * groups + column / a.each, 1);
                add<moments>(&own, {a.first[at], second, moments ? part_count(a, row) : 0});
            }
        join_threads<moments>(&own, COLUMNS, ROWS);
        if (column >= a.channels || threadIdx.x / COLUMNS != 0)
            continue;
        const int64_t at = all ? column : sample * a.channels + column;
        if (moments) {
            put_moments(a, wide, at, own.first, own.second / own.count);
        } else if (all) {
            put(a.by_column, wide, at, own.first, own.second);
        } else {
            const double weight = value_of(a.element ? nullptr : a.weight, wide, column, 1);
            const double invstd = value_of(a.invstd, wide, at, 1);
            put(a.by_group, wide, at, weight * own.first, own.second * (weight * invstd));
            if (wide)
                ek_norm_put_line(a.line, at, own.first, own.second, invstd);
            else
                ek_norm_put_line(a.line, at, (float)own.first, (float)own.second, (float)invstd);
        }
    }
}

/* ---- a group of several channels: a block's ---- */

template <bool moments> EK_KERNEL join_groups(const ek_cuda_norm a)
{
    const bool wide = a.dtype == EK_F64;
    const int64_t groups = a.channels / a.each, entries = a.cut.parts * a.each;
    for (int64_t task = blockIdx.x; task < a.samples * groups; task += gridDim.x) {
        const int64_t sample = task / groups, channel = task % groups * a.each;
        join_pair own = {0, 0, 0};
        for (int64_t i = threadIdx.x; i < entries; i += EK_BLOCK) {
            const int64_t part = i / a.each, column = channel + i % a.each;
            const int64_t at = ek_norm_partial(a, sample, part, column);
            const double weight = moments ? 1 : value_of(a.weight, wide, column, 1);
            add<moments>(&own, {weight * a.first[at], weight * a.second[at],
                                moments ? part_count(a, part) : 0});
        }
        join_threads<moments>(&own, 1, EK_BLOCK);
        if (threadIdx.x != 0)
            continue;
        if (moments)
            put_moments(a, wide, task, own.first, own.second / own.count);
        else
            put(a.by_group, wide, task, own.first, own.second * value_of(a.invstd, wide, task, 1));
    }
}

/* ---- moments of chunks: a thread has a channel, in f64 and in the chunks' order ---- */

template <typename R> EK_KERNEL merge_chunks(const ek_norm_merging m)
{
    EK_GRID_LOOP(c, m.channels)
    {
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

int ek_cuda_launch_norm_merge(const ek_cuda_queue *queue, bool wide, const ek_norm_merging *merging)
{
    return ek_launch(queue, dim3(ek_grid(queue, merging->channels)), dim3(EK_BLOCK),
                     wide ? merge_chunks<double> : merge_chunks<float>, *merging);
}

/* ---- launching ---- */

static dim3 grid_of(int64_t tasks)
{
    const int64_t most = 1 << 20;
    return dim3((unsigned)(tasks < most ? tasks : most));
}

template <bool moments> static int groups(const ek_cuda_queue *queue, const ek_cuda_norm *a)
{
    const int64_t blocks = (a->channels + COLUMNS - 1) / COLUMNS;
    if (a->each == 1)
        return ek_launch(queue, grid_of(a->samples * blocks), dim3(EK_BLOCK), join_columns<moments>,
                         *a, false);
    return ek_launch(queue, grid_of(a->samples * (a->channels / a->each)), dim3(EK_BLOCK),
                     join_groups<moments>, *a);
}

int ek_cuda_launch_norm_join_moments(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    return groups<true>(queue, norm);
}

int ek_cuda_launch_norm_join_groups(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    return groups<false>(queue, norm);
}

int ek_cuda_launch_norm_join_columns(const ek_cuda_queue *queue, const ek_cuda_norm *norm)
{
    return ek_launch(queue, grid_of((norm->channels + COLUMNS - 1) / COLUMNS), dim3(EK_BLOCK),
                     join_columns<false>, *norm, true);
}
