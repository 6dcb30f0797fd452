/* norm.cuh: the kernel of normalisation, ek_norm_pass, and what its bodies share: vectors,
 * parameters, joins. */
#ifndef EK_CUDA_NORM_CUH
#define EK_CUDA_NORM_CUH

#include "cuda/norm.h"
#include "cuda/strides.cuh"

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

/* Stores a vector at once. In some loops the compiler makes several stores of an assignment of 16
 * bytes. */
template <typename T, typename R, int V> EK_DEVICE void ek_norm_store(T *to, const R (&from)[V])
{
    ek_vector<T, V> vector;
    EK_EACH(v, V)
        ek_store(&vector.element[v], from[v]);
#ifdef __CUDA_ARCH__
    if constexpr (sizeof vector == sizeof(uint4)) {
        __stwb((uint4 *)to, *(const uint4 *)&vector);
        return;
    }
#endif
    *(ek_vector<T, V> *)to = vector;
}

/* ---- passes ---- */

/* A thread's share of a task. In rows, it is the columns from `column` on, of the rows [begin, end)
 * in steps; these rows count as one plane. In planes, it is one column: the elements [begin, end)
 * in steps, of the planes [row, last). A thread without a column has no planes. */
struct ek_norm_share {
    int64_t sample, part, column, begin, end, row, last;
    int step, team;
    bool puts; /* this thread has the result when the column's threads are joined */
};

template <bool planes> EK_DEVICE ek_norm_share ek_norm_share_of(const ek_cuda_norm &a, int64_t task)
{
    ek_norm_share own;
    const int lane = (int)threadIdx.x % a.cut.team, team = (int)threadIdx.x / a.cut.team;
    const int teams = EK_BLOCK / a.cut.team;
    own.team = team;
    if (planes) {
        own.part = task % a.cut.parts;
        const int64_t column = task / a.cut.parts * teams + team;
        const bool any = column < a.samples * a.channels;
        own.sample = any ? column / a.channels : 0;
        own.column = any ? column % a.channels : 0;
        own.begin = own.part % a.cut.spans * a.cut.span;
        own.end = own.begin + a.cut.span < a.inner ? own.begin + a.cut.span : a.inner;
        own.begin += lane * a.cut.vector;
        own.step = a.cut.team * a.cut.vector;
        own.row = own.part / a.cut.spans * a.cut.rows;
        own.last = own.row + a.cut.rows < a.rows ? own.row + a.cut.rows : a.rows;
        own.last = any ? own.last : own.row;
        own.puts = any && lane == 0;
    } else {
        own.column = (task % a.cut.blocks * a.cut.team + lane) * a.cut.vector;
        task /= a.cut.blocks;
        own.part = task % a.cut.spans;
        own.sample = task / a.cut.spans;
        own.begin = own.part * a.cut.span;
        own.end = own.begin + a.cut.span < a.rows ? own.begin + a.cut.span : a.rows;
        own.begin += team;
        own.step = teams;
        own.row = 0;
        own.last = own.column < a.channels;
        own.puts = own.last > 0 && team == 0;
    }
    return own;
}

/* A thread's place in each tensor, and the steps to the next vector. Weight and bias are NULL if
 * they are absent or per channel. */
template <bool planes, typename T> struct ek_norm_cursor {
    typedef typename ek_compute<T>::type R;
    const T *x, *dy, *mask;
    T *y;
    const R *weight, *bias;
    int64_t x_step, dy_step, mask_step, y_step;

    template <typename P>
    __device__ __forceinline__ void place(P *&at, int64_t *step, const ek_norm_operand &operand,
                                          const ek_norm_share &own, int64_t row)
    {
        at = (P *)operand.data + own.sample * operand.sample;
        at += planes ? row * operand.row + own.column * operand.channel + own.begin
                     : own.begin * operand.row + own.column;
        *step = planes ? own.step : own.step * operand.row;
    }
    __device__ __forceinline__ ek_norm_cursor(const ek_cuda_norm &a, const ek_norm_share &own,
                                              int64_t row)
        : mask(nullptr), weight(nullptr), bias(nullptr)
    {
        place(x, &x_step, a.x, own, row);
        place(dy, &dy_step, a.dy, own, row);
        place(y, &y_step, a.y, own, row);
        if (a.mask.data != nullptr)
            place(mask, &mask_step, a.mask, own, row);
        if (planes && a.element && a.weight != nullptr)
            weight = (const R *)a.weight + own.column * a.inner + own.begin;
        if (planes && a.element && a.bias != nullptr)
            bias = (const R *)a.bias + own.column * a.inner + own.begin;
    }
    __device__ __forceinline__ void advance(int steps)
    {
        x += steps * x_step;
        dy += steps * dy_step;
        mask = mask == nullptr ? nullptr : mask + steps * mask_step;
        y += steps * y_step;
        weight = weight == nullptr ? nullptr : weight + steps * x_step;
        bias = bias == nullptr ? nullptr : bias + steps * x_step;
    }
};

/* Passes the vectors of each thread's share to a Body, Body::LOADS at once and the rest one by one.
 * Body::PLANES tells whether memory has planes. Threads with columns call begin(norm, share) and
 * then add<U>(cursor); all threads call end(norm, share). */
template <typename Body, typename T> EK_KERNEL ek_norm_pass(const ek_cuda_norm a)
{
    enum { U = Body::LOADS };
    constexpr bool planes = Body::PLANES;
    for (int64_t task = blockIdx.x; task < a.cut.tasks; task += gridDim.x) {
        const ek_norm_share own = ek_norm_share_of<planes>(a, task);
        Body body;
        if (own.row < own.last)
            body.begin(a, own);
        for (int64_t row = own.row; row < own.last; row++) {
            ek_norm_cursor<planes, T> at(a, own, row);
            int64_t i = own.begin;
            for (; i + (U - 1) * own.step < own.end; i += U * own.step) {
                body.template add<U>(at);
                at.advance(U);
            }
            for (; i < own.end; i += own.step) {
                body.template add<1>(at);
                at.advance(1);
            }
        }
        body.end(a, own);
    }
}

/* Returns the number of blocks for tasks that blocks take in turn. */
static inline unsigned ek_norm_grid(int64_t tasks)
{
    const int64_t most = 1 << 24;
    return (unsigned)(tasks < most ? tasks : most);
}

/* Launches a pass over rows or planes, for vectors of 16 bytes or single elements. */
template <template <bool planes, typename T, int V> class Body>
static int ek_norm_launch(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    EK_FLOATING(norm->dtype, T, enum {V = 16 / sizeof(T)};
                return ek_launch(stream, ek_norm_grid(norm->cut.tasks),
                                 norm->cut.vector == 1
                                     ? (norm->planes ? ek_norm_pass<Body<true, T, 1>, T>
                                                     : ek_norm_pass<Body<false, T, 1>, T>)
                                     : (norm->planes ? ek_norm_pass<Body<true, T, V>, T>
                                                     : ek_norm_pass<Body<false, T, V>, T>),
                                 *norm))
}

EK_DEVICE int64_t ek_norm_partial(const ek_cuda_norm &a, int64_t sample, int64_t part,
                                  int64_t column)
{
    return (sample * a.cut.parts + part) * a.channels + column;
}

/* ---- parameters ---- */

/* Returns the index of a column's statistic. */
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

/* The factors of a merge of moments of a and b values: `part` multiplies the difference of their
 * means, `both` the difference's square. For sums both are 0. */
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

template <bool moments, typename R, typename Count>
EK_DEVICE void ek_norm_add(ek_norm_pair<R> *own, Count *count, ek_norm_pair<R> other, Count others)
{
    ek_norm_merge<moments>(own, other, ek_norm_weigh<moments>((R)*count, (R)others));
    *count += others;
}

/* ---- joins of a block's threads ---- */

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

/* A thread's pair, and the number of its values. */
template <typename R> struct ek_norm_counted {
    ek_norm_pair<R> pair;
    int count;
};

template <typename R> EK_DEVICE ek_norm_counted<R> ek_exchange(ek_norm_counted<R> own, int step)
{
    return {{ek_exchange(own.pair.first, step), ek_exchange(own.pair.second, step)},
            ek_exchange(own.count, step)};
}

template <bool moments, typename R> struct ek_norm_joining {
    __device__ __forceinline__ ek_norm_counted<R> operator()(ek_norm_counted<R> a,
                                                             ek_norm_counted<R> b) const
    {
        ek_norm_add<moments>(&a.pair, &a.count, b.pair, b.count);
        return a;
    }
};

/* Joins the pairs of a column's threads into that of the thread for which share.puts is true. */
template <bool moments, bool planes, typename R, int N>
EK_DEVICE void ek_norm_join(const ek_cuda_norm &a, const ek_norm_share &own,
                            ek_norm_pair<R> (&pairs)[N], int *count)
{
    if constexpr (planes) {
        const ek_norm_counted<R> all =
            ek_team_join(ek_team_of({a.cut.team, false}), ek_norm_counted<R>{pairs[0], *count},
                         ek_norm_joining<moments, R>());
        pairs[0] = all.pair;
        *count = all.count;
    } else {
        ek_norm_join_teams<moments>(pairs, count, own.team, own.step);
    }
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

/* Stores the line that follows from a channel's sums of dy and of dy * (x - mean). */
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
