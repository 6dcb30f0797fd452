/* norm.cuh: what the kernels of normalisation share: vectors, tasks, parameters, moments. */
#ifndef EK_CUDA_NORM_CUH
#define EK_CUDA_NORM_CUH

#include "cuda/launch.cuh"
#include "cuda/norm.h"

#define EK_KERNEL static __global__ void __launch_bounds__(EK_BLOCK)

/* ---- vectors ---- */

template <typename T, int V> struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) ek_norm_pack {
    T at[V];
};

template <typename R, typename T, int V>
static __device__ __forceinline__ void ek_norm_load(R (&to)[V], const T *from)
{
    const ek_norm_pack<T, V> pack = *(const ek_norm_pack<T, V> *)from;
#pragma unroll
    for (int v = 0; v < V; v++)
        to[v] = ek_load(&pack.at[v]);
}

/* One store of 16 bytes: a plain assignment is taken apart by the compiler in some loops. */
template <typename P> static __device__ __forceinline__ void ek_norm_put(void *to, P pack)
{
#ifdef __CUDA_ARCH__
    __stwb((P *)to, pack);
#else
    *(P *)to = pack;
#endif
}

static __device__ __forceinline__ void ek_norm_store(float *to, const float (&from)[4])
{
    ek_norm_put(to, make_float4(from[0], from[1], from[2], from[3]));
}
static __device__ __forceinline__ void ek_norm_store(double *to, const double (&from)[2])
{
    ek_norm_put(to, make_double2(from[0], from[1]));
}
static __device__ __forceinline__ unsigned ek_norm_pair(float low, float high)
{
    return (unsigned)ek_bf16_of(low) | (unsigned)ek_bf16_of(high) << 16;
}
static __device__ __forceinline__ void ek_norm_store(ek_bf16 *to, const float (&from)[8])
{
    ek_norm_put(to, make_uint4(ek_norm_pair(from[0], from[1]), ek_norm_pair(from[2], from[3]),
                               ek_norm_pair(from[4], from[5]), ek_norm_pair(from[6], from[7])));
}
template <typename T, typename R>
static __device__ __forceinline__ void ek_norm_store(T *to, const R (&from)[1])
{
    ek_store(to, from[0]);
}

/* Elements of a vector of 16 bytes. */
template <typename T> struct ek_norm_width {
    enum { value = 16 / sizeof(T) };
};

/* ---- tasks ---- */

#define EK_TASK_LOOP(task, cut) \
    for (int64_t task = blockIdx.x; task < (cut).tasks; task += gridDim.x)

static inline dim3 ek_norm_grid(const ek_cuda_norm *norm)
{
    const int64_t most = 1 << 24;
    return dim3((unsigned)(norm->cut.tasks < most ? norm->cut.tasks : most));
}

/* A thread's share of a task over rows: its columns, and the rows [begin, end) in steps. */
struct ek_norm_rows {
    int64_t sample, part, column, begin, end;
    int step, team; /* teams of the block, and which this one is */
};

static __device__ __forceinline__ ek_norm_rows ek_norm_rows_of(const ek_cuda_norm &a, int64_t task)
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

/* A thread's share of a task over planes: elements [begin, end) in steps, of planes
 * [row, last). Without a column of its own, the team has no elements. */
struct ek_norm_planes {
    int64_t sample, part, column, begin, end, row, last;
    int step, lane;
};

static __device__ __forceinline__ ek_norm_planes ek_norm_planes_of(const ek_cuda_norm &a,
                                                                   int64_t task)
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

static __device__ __forceinline__ int64_t ek_norm_partial(const ek_cuda_norm &a, int64_t sample,
                                                          int64_t part, int64_t column)
{
    return (sample * a.cut.parts + part) * a.channels + column;
}

template <typename T>
static __device__ __forceinline__ T *ek_norm_at(const ek_norm_operand &operand, int64_t sample,
                                                int64_t row, int64_t column, bool planes)
{
    return (T *)operand.data + sample * operand.sample + row * operand.row +
           column * (planes ? operand.channel : 1);
}

/* ---- parameters ---- */

/* Which statistic a column has. */
static __device__ __forceinline__ int64_t ek_norm_group(const ek_cuda_norm &a, int64_t sample,
                                                        int64_t column)
{
    if (a.each == 1)
        return sample * a.channels + column;
    return sample * (a.channels / a.each) + column / a.each;
}

template <typename R>
static __device__ __forceinline__ R ek_norm_value(const void *values, int64_t i, R otherwise)
{
    return values != nullptr ? ((const R *)values)[i] : otherwise;
}

/* ---- moments ---- */

/* Mean and sum of squared deviations of `count` values. */
template <typename R> struct ek_norm_moments {
    R mean, deviation;
};

/* What a merge of a and b values multiplies: the difference of their means (part), and its square
 * (both). */
template <typename R> struct ek_norm_weights {
    R part, both;
};

template <typename R> static __device__ __forceinline__ ek_norm_weights<R> ek_norm_weigh(R a, R b)
{
    const R part = b > 0 ? b / (a + b) : R(0);
    return {part, a * part};
}

template <typename R>
static __device__ __forceinline__ void ek_norm_merge(ek_norm_moments<R> *a, ek_norm_moments<R> b,
                                                     ek_norm_weights<R> weights)
{
    const R delta = b.mean - a->mean;
    a->mean += delta * weights.part;
    a->deviation += b.deviation + delta * delta * weights.both;
}

static __device__ __forceinline__ float ek_norm_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static __device__ __forceinline__ double ek_norm_fma(double a, double b, double c)
{
    return fma(a, b, c);
}
static __device__ __forceinline__ float ek_norm_root(float x)
{
    return sqrtf(x);
}
static __device__ __forceinline__ double ek_norm_root(double x)
{
    return sqrt(x);
}

/* What becomes of mean and variance i; returns what variances turn into. Products are rounded where
 * the compiler has no choice, so that every kernel gives the same bits. */
template <typename R>
static __device__ __forceinline__ R ek_norm_updated(const ek_norm_updating &u, int64_t i, R mean,
                                                    R var)
{
    if (u.running_mean != nullptr) {
        const double momentum = u.average != nullptr ? 1 / (double)*u.average : u.momentum;
        const R keep = (R)(1 - momentum);
        R *const means = (R *)u.running_mean + i, *const vars = (R *)u.running_var + i;
        *means = ek_norm_fma((R)momentum, mean, keep * *means);
        *vars = ek_norm_fma((R)(momentum * u.unbiased), var, keep * *vars);
    }
    if (u.batches != nullptr && i == 0)
        ++*u.batches;
    return u.inverts ? 1 / ek_norm_root(var + (R)u.eps) : var;
}

/* What follows from a channel's sums of dy and of dy (x - mean). */
template <typename R>
static __device__ __forceinline__ void ek_norm_put_line(const ek_norm_line &line, int64_t i, R sum,
                                                        R product, R invstd)
{
    if (line.scale == nullptr)
        return;
    const R scale = ek_norm_value(line.weight, i, R(1)) * invstd, share = scale * (R)line.share;
    ((R *)line.scale)[i] = scale;
    ((R *)line.shift)[i] = share * sum;
    ((R *)line.slope)[i] = share * invstd * (product * invstd);
}

#endif
