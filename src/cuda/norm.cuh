/* norm.cuh: what the kernels of normalisation share: vectors, tasks, parameters, moments. */
#ifndef EK_CUDA_NORM_CUH
#define EK_CUDA_NORM_CUH

#include "cuda/launch.cuh"
#include "cuda/norm.h"

/* ---- vectors ---- */

/* Loads U vectors of V elements that are `stride` apart. */
template <typename T, typename R, int U, int V>
EK_DEVICE void ek_norm_load(R (&to)[U][V], const T *from, int64_t stride)
{
    EK_EACH(u, U)
        ek_load_elements(to[u], from + u * stride);
}

/* Sets dy to 0 if the ReLU's output isn't positive. If the output is NaN, dy stays. */
template <typename T, typename R, int U, int V>
EK_DEVICE void ek_norm_cut_off(R (&dy)[U][V], const T *mask, int64_t stride)
{
    R y[U][V];
    ek_norm_load(y, mask, stride);
    EK_EACH(u, U)
        EK_EACH(v, V)
            dy[u][v] = y[u][v] <= 0 ? R(0) : dy[u][v];
}

/* Stores 16 bytes at once; in some loops the compiler makes several stores of a plain
 * assignment. */
template <typename P> EK_DEVICE void ek_norm_put(void *to, P pack)
{
#ifdef __CUDA_ARCH__
    __stwb((P *)to, pack);
#else
    *(P *)to = pack;
#endif
}

EK_DEVICE void ek_norm_store(float *to, const float (&from)[4])
{
    ek_norm_put(to, make_float4(from[0], from[1], from[2], from[3]));
}
EK_DEVICE void ek_norm_store(double *to, const double (&from)[2])
{
    ek_norm_put(to, make_double2(from[0], from[1]));
}
EK_DEVICE unsigned ek_norm_bits(float low, float high)
{
    return (unsigned)ek_bf16_of(low) | (unsigned)ek_bf16_of(high) << 16;
}
EK_DEVICE void ek_norm_store(ek_bf16 *to, const float (&from)[8])
{
    ek_norm_put(to, make_uint4(ek_norm_bits(from[0], from[1]), ek_norm_bits(from[2], from[3]),
                               ek_norm_bits(from[4], from[5]), ek_norm_bits(from[6], from[7])));
}
EK_DEVICE unsigned ek_norm_halves(float low, float high)
{
    return (unsigned)ek_f16_of(low) | (unsigned)ek_f16_of(high) << 16;
}
EK_DEVICE void ek_norm_store(ek_f16 *to, const float (&from)[8])
{
    ek_norm_put(to, make_uint4(ek_norm_halves(from[0], from[1]), ek_norm_halves(from[2], from[3]),
                               ek_norm_halves(from[4], from[5]), ek_norm_halves(from[6], from[7])));
}
template <typename T, typename R> EK_DEVICE void ek_norm_store(T *to, const R (&from)[1])
{
    ek_store(to, from[0]);
}

/* ---- tasks ---- */

#define EK_TASK_LOOP(task, cut) \
    for (int64_t task = blockIdx.x; task < (cut).tasks; task += gridDim.x)

static inline unsigned ek_norm_grid(const ek_cuda_norm *norm)
{
    const int64_t most = 1 << 24;
    return (unsigned)(norm->cut.tasks < most ? norm->cut.tasks : most);
}

/* Launches kernels of <T, V> over rows or planes, for vectors of 16 bytes or single elements. */
#define EK_NORM_LAUNCH(stream, norm, by_rows, by_planes)                                   \
    EK_FLOATING((norm)->dtype, T, enum {V = 16 / sizeof(T)};                               \
                return ek_launch(stream, ek_norm_grid(norm),                               \
                                 (norm)->cut.vector == 1                                   \
                                     ? ((norm)->planes ? by_planes<T, 1> : by_rows<T, 1>)  \
                                     : ((norm)->planes ? by_planes<T, V> : by_rows<T, V>), \
                                 *(norm)))

/* A thread's share of a task over rows: its columns, and the rows [begin, end) in steps. */
struct ek_norm_rows {
    int64_t sample, part, column, begin, end;
    int step, team; /* teams of the block, and this thread's team */
};

EK_DEVICE ek_norm_rows ek_norm_rows_of(const ek_cuda_norm &a, int64_t task)
{
    ek_norm_rows own;
    const int lane = (int)threadIdx.x % a.cut.team;
    own.team = (int)threadIdx.x / a.cut.team;
    own.step = EK_BLOCK / a.cut.team;
    own.column = (task % a.cut.blocks * a.cut.team + lane) * a.cut.vector;
    task /= a.cut.blocks;
    own.part = task % a.cut.spans;
    own.sample = task / a.cut.spans;
    own.begin = own.part * a.cut.span;
    own.end = own.begin + a.cut.span < a.rows ? own.begin + a.cut.span : a.rows;
    own.begin += own.team;
    return own;
}

/* A thread's share of a task over planes: elements [begin, end) in steps, of planes [row, last). A
 * team without a column has no elements. */
struct ek_norm_planes {
    int64_t sample, part, column, begin, end, row, last;
    int step, lane;
};

EK_DEVICE ek_norm_planes ek_norm_planes_of(const ek_cuda_norm &a, int64_t task)
{
    ek_norm_planes own;
    const int teams = EK_BLOCK / a.cut.team;
    own.lane = (int)threadIdx.x % a.cut.team;
    own.part = task % a.cut.parts;
    task /= a.cut.parts;
    const int64_t column = task * teams + (int)threadIdx.x / a.cut.team;
    const bool any = column < a.samples * a.channels;
    own.sample = any ? column / a.channels : 0;
    own.column = any ? column % a.channels : 0;
    own.begin = own.part % a.cut.spans * a.cut.span;
    own.end = own.begin + a.cut.span < a.inner ? own.begin + a.cut.span : a.inner;
    own.begin += own.lane * a.cut.vector;
    own.step = a.cut.team * a.cut.vector;
    own.row = own.part / a.cut.spans * a.cut.rows;
    own.last = own.row + a.cut.rows < a.rows ? own.row + a.cut.rows : a.rows;
    if (!any)
        own.lane = -1, own.last = own.row;
    return own;
}

EK_DEVICE int64_t ek_norm_partial(const ek_cuda_norm &a, int64_t sample, int64_t part,
                                  int64_t column)
{
    return (sample * a.cut.parts + part) * a.channels + column;
}

template <typename T>
EK_DEVICE T *ek_norm_at(const ek_norm_operand &operand, int64_t sample, int64_t row, int64_t column,
                        bool planes)
{
    return (T *)operand.data + sample * operand.sample + row * operand.row +
           column * (planes ? operand.channel : 1);
}

/* A thread's first elements in the tensors of a gradient, and the steps to the next. */
template <typename T> struct ek_norm_cursor {
    const T *x, *dy, *mask;
    T *dx;
    int64_t x_step, dy_step, mask_step, dx_step;

    __device__ __forceinline__ ek_norm_cursor(const ek_cuda_norm &a, int64_t sample, int64_t row,
                                              int64_t column, int64_t step)
        : x(ek_norm_at<T>(a.x, sample, row, column, a.planes)),
          dy(ek_norm_at<T>(a.dy, sample, row, column, a.planes)), mask(nullptr),
          dx(ek_norm_at<T>(a.y, sample, row, column, a.planes)), x_step(step * a.x.row),
          dy_step(step * a.dy.row), mask_step(step * a.mask.row), dx_step(step * a.y.row)
    {
        if (a.mask.data != nullptr)
            mask = ek_norm_at<T>(a.mask, sample, row, column, a.planes);
    }
    __device__ __forceinline__ void advance(int steps)
    {
        x += steps * x_step;
        dy += steps * dy_step;
        mask = mask == nullptr ? nullptr : mask + steps * mask_step;
        dx += steps * dx_step;
    }
};

/* ---- parameters ---- */

/* The number of the statistic that a column has. */
EK_DEVICE int64_t ek_norm_group(const ek_cuda_norm &a, int64_t sample, int64_t column)
{
    if (a.each == 1)
        return sample * a.channels + column;
    return sample * (a.channels / a.each) + column / a.each;
}

template <typename R> EK_DEVICE R ek_norm_value(const void *values, int64_t i, R otherwise)
{
    return values != nullptr ? ((const R *)values)[i] : otherwise;
}

/* ---- pairs: two sums; or moments: mean and sum of squared deviations of `count` values ---- */

template <typename R> struct ek_norm_pair {
    R first, second;
};

/* The factors of a merge of moments of a and b values: `part` is that of the difference of their
 * means, `both` that of its square. Sums have none. */
template <typename R> struct ek_norm_weights {
    R part, both;
};

template <bool moments, typename R> EK_DEVICE ek_norm_weights<R> ek_norm_weigh(R a, R b)
{
    if (!moments)
        return {0, 0};
    const R part = b > 0 ? b / (a + b) : R(0);
    return {part, a * part};
}

template <bool moments, typename R>
EK_DEVICE void ek_norm_merge(ek_norm_pair<R> *a, ek_norm_pair<R> b, ek_norm_weights<R> weights)
{
    if (moments) {
        const R delta = b.first - a->first;
        a->first += delta * weights.part;
        a->second += b.second + delta * delta * weights.both;
    } else {
        a->first += b.first;
        a->second += b.second;
    }
}

/* Joins the teams' pairs of V columns into those of team 0. */
template <bool moments, typename R, int V>
EK_DEVICE void ek_norm_join_teams(ek_norm_pair<R> (&own)[V], int *count, int team, int teams)
{
    __shared__ R first[V][EK_BLOCK], second[V][EK_BLOCK];
    __shared__ int counts[moments ? EK_BLOCK : 1];
    const int me = (int)threadIdx.x, lanes = EK_BLOCK / teams;
    for (int half = teams / 2; half > 0; half /= 2) {
        __syncthreads();
        if (team >= half && team < 2 * half) {
            if (moments)
                counts[me] = *count;
            EK_EACH(v, V) {
                first[v][me] = own[v].first;
                second[v][me] = own[v].second;
            }
        }
        __syncthreads();
        if (team >= half)
            continue;
        const int other = me + half * lanes, others = moments ? counts[other] : 0;
        const ek_norm_weights<R> weights = ek_norm_weigh<moments>((R)*count, (R)others);
        EK_EACH(v, V)
            ek_norm_merge<moments>(&own[v], {first[v][other], second[v][other]}, weights);
        *count += others;
    }
}

template <bool moments, typename R>
EK_DEVICE void ek_norm_add(ek_norm_pair<R> *own, int *count, ek_norm_pair<R> other, int others)
{
    ek_norm_merge<moments>(own, other, ek_norm_weigh<moments>((R)*count, (R)others));
    *count += others;
}

/* Joins the threads' pairs into that of the team's first thread. */
template <bool moments, typename R>
EK_DEVICE void ek_norm_join_lanes(ek_norm_pair<R> *own, int *count, int team)
{
    __shared__ R first[EK_BLOCK / EK_WARP], second[EK_BLOCK / EK_WARP];
    __shared__ int counts[EK_BLOCK / EK_WARP];
    const int me = (int)threadIdx.x, warp = me / EK_WARP;
    for (int step = (team < EK_WARP ? team : EK_WARP) / 2; step > 0; step /= 2) {
        const R a = __shfl_xor_sync(0xffffffffu, own->first, step);
        const R b = __shfl_xor_sync(0xffffffffu, own->second, step);
        const int others = moments ? __shfl_xor_sync(0xffffffffu, *count, step) : 0;
        ek_norm_add<moments>(own, count, {a, b}, others);
    }
    if (team <= EK_WARP)
        return;
    __syncthreads();
    if (me % EK_WARP == 0) {
        first[warp] = own->first;
        second[warp] = own->second;
        counts[warp] = *count;
    }
    __syncthreads();
    if (me % team == 0)
        for (int other = warp + 1; other < warp + team / EK_WARP; other++)
            ek_norm_add<moments>(own, count, {first[other], second[other]}, counts[other]);
}

/* ---- results that follow from moments and sums ---- */

/* Updates running statistics i by mean and variance. Returns the variance, or 1 / sqrt(variance +
 * eps) if u.inverts. Products are rounded explicitly, so that every kernel gives the same bits. */
template <typename R>
EK_DEVICE R ek_norm_updated(const ek_norm_updating &u, int64_t i, R mean, R var)
{
    if (u.running_mean != nullptr) {
        const double momentum = u.average != nullptr ? 1 / (double)*u.average : u.momentum;
        const R keep = (R)(1 - momentum);
        R *const means = (R *)u.running_mean + i, *const vars = (R *)u.running_var + i;
        *means = fma((R)momentum, mean, keep * *means);
        *vars = fma((R)(momentum * u.unbiased), var, keep * *vars);
    }
    if (u.batches != nullptr && i == 0)
        ++*u.batches;
    return u.inverts ? 1 / sqrt(var + (R)u.eps) : var;
}

/* Stores what follows from a channel's sums of dy and of dy * (x - mean). */
template <typename R>
EK_DEVICE void ek_norm_put_line(const ek_norm_line &line, int64_t i, R sum, R product, R invstd)
{
    if (line.scale == nullptr)
        return;
    const R scale = ek_norm_value(line.weight, i, R(1)) * invstd, share = scale * (R)line.share;
    ((R *)line.scale)[i] = scale;
    ((R *)line.shift)[i] = share * sum;
    ((R *)line.slope)[i] = share * invstd * (product * invstd);
}

#endif
