/* strides.cuh: the offsets of a position in several operands, and teams of threads that share a
 * line. Only .cu files include it. */
#ifndef EK_CUDA_STRIDES_CUH
#define EK_CUDA_STRIDES_CUH

#include "cuda/launch.cuh"

/* Computes the offsets of position i in the first N operands. */
template <int N>
EK_DEVICE void ek_offsets(const ek_cuda_strides &strides, int64_t i, int64_t (&offset)[N])
{
    EK_EACH(k, N)
        offset[k] = 0;
    if (strides.narrow) {
        uint32_t rest = (uint32_t)i;
        for (int d = strides.ndim - 1; d > 0; d--) {
            uint32_t next = ek_cuda_divide(strides.divisor[d], rest);
            int64_t at = rest - next * strides.divisor[d].by;
            EK_EACH(k, N)
                offset[k] += at * strides.stride[k][d];
            rest = next;
        }
        i = rest;
    } else {
        for (int d = strides.ndim - 1; d > 0; d--) {
            int64_t next = (int64_t)ek_cuda_divide_long(strides.long_divisor[d], (uint64_t)i);
            int64_t at = i - next * strides.shape[d];
            EK_EACH(k, N)
                offset[k] += at * strides.stride[k][d];
            i = next;
        }
    }
    EK_EACH(k, N)
        offset[k] += i * strides.stride[k][0];
}

/* ---- offsets of `Operands` tensors at a position of their walk ---- */

/* Offsets in 32 bits, if positions and offsets are below 2^31. */
template <int Operands> struct ek_strided32 {
    typedef int32_t offset;
    int ndim;
    ek_cuda_divisor shape[EK_MAX_DIMS];
    int32_t stride[Operands][EK_MAX_DIMS];

    __device__ __forceinline__ void find(int64_t position, int32_t (&offsets)[Operands]) const
    {
        uint32_t rest = (uint32_t)position;
        for (int k = 0; k < Operands; k++)
            offsets[k] = 0;
        for (int d = ndim - 1; d > 0; d--) {
            uint32_t quotient = ek_cuda_divide(shape[d], rest);
            int32_t index = (int32_t)(rest - quotient * shape[d].by);
            for (int k = 0; k < Operands; k++)
                offsets[k] += index * stride[k][d];
            rest = quotient;
        }
        for (int k = 0; k < Operands; k++)
            offsets[k] += (int32_t)rest * stride[k][0];
    }
};

/* Offsets in 64 bits. */
template <int Operands> struct ek_strided64 {
    typedef int64_t offset;
    ek_cuda_strides strides;

    __device__ __forceinline__ void find(int64_t position, int64_t (&offsets)[Operands]) const
    {
        ek_offsets(strides, position, offsets);
    }
};

/* Returns true if the positions are below 2^31, and all operands' offsets between -2^31 and 2^31
 * (those of a flip are negative). */
static inline bool ek_fits_32(const ek_cuda_walk *walk)
{
    const int64_t limit = (int64_t)1 << 31;
    if (walk->count >= limit)
        return false;
    for (int k = 0; k < walk->operands; k++) {
        int64_t last = 0;
        for (int d = 0; d < walk->ndim; d++) {
            int64_t stride = walk->stride[k][d] < 0 ? -walk->stride[k][d] : walk->stride[k][d];
            if (stride >= limit)
                return false;
            last += (walk->shape[d] - 1) * stride;
        }
        if (last >= limit)
            return false;
    }
    return true;
}

/* Return the strides of a walk, which has at least one element. */
template <int Operands> static ek_strided32<Operands> ek_strided32_of(const ek_cuda_walk *walk)
{
    ek_strided32<Operands> result = {};
    result.ndim = walk->ndim;
    for (int d = 0; d < walk->ndim; d++) {
        result.shape[d] = ek_cuda_divisor_of((uint32_t)walk->shape[d]);
        for (int k = 0; k < Operands; k++)
            result.stride[k][d] = (int32_t)walk->stride[k][d];
    }
    return result;
}

template <int Operands> static ek_strided64<Operands> ek_strided64_of(const ek_cuda_walk *walk)
{
    ek_strided64<Operands> result = {};
    result.strides.ndim = walk->ndim;
    for (int d = 0; d < walk->ndim; d++) {
        result.strides.shape[d] = walk->shape[d];
        result.strides.long_divisor[d] = ek_cuda_long_divisor_of((uint64_t)walk->shape[d]);
        for (int k = 0; k < Operands; k++)
            result.strides.stride[k][d] = walk->stride[k][d];
    }
    return result;
}

/* Calls f(strides) with the narrowest strides that fit. */
template <int Operands, typename F> static int ek_with_strides(const ek_cuda_walk *walk, F f)
{
    return ek_fits_32(walk) ? f(ek_strided32_of<Operands>(walk))
                            : f(ek_strided64_of<Operands>(walk));
}

/* ---- walks in steps of several elements ---- */

/* Returns true if operand k stays in place along the innermost dimension. */
static inline bool ek_stays(const ek_cuda_walk *walk, int k)
{
    return walk->stride[k][walk->ndim - 1] == 0;
}

/* Returns true if every operand either stays in place along the innermost dimension, or has runs of
 * stride 1 there, whose starts are aligned to vectors of `count` elements of `sizes[k]` bytes.
 * Operand 0 must not stay in place, because it is written. */
static inline bool ek_has_vectors(const ek_cuda_walk *walk, const size_t *sizes, int count)
{
    int inner = walk->ndim - 1;
    if (walk->ndim > 1 && walk->shape[inner] % count != 0)
        return false;
    for (int k = 0; k < walk->operands; k++) {
        if (k > 0 && ek_stays(walk, k))
            continue;
        if (walk->stride[k][inner] != 1 || !ek_is_aligned(walk->data[k], sizes[k] * (size_t)count))
            return false;
        for (int d = 0; d < inner; d++)
            if (walk->stride[k][d] % count != 0)
                return false;
    }
    return true;
}

/* Returns the walk by vectors of `count` elements: the innermost dimension has fewer and longer
 * steps. */
static inline ek_cuda_walk ek_by_vectors(const ek_cuda_walk *walk, int count)
{
    ek_cuda_walk result = *walk;
    int inner = walk->ndim - 1;
    result.count /= count;
    result.shape[inner] /= count;
    for (int k = 0; k < walk->operands; k++)
        result.stride[k][inner] *= count;
    return result;
}

/* Joins neighbouring elements to units of up to 16 bytes, if all operands allow it. Returns the
 * unit's size. */
static inline size_t ek_widen(ek_cuda_walk *walk, size_t size)
{
    int inner = walk->ndim - 1;
    const size_t largest = 16;
    while (size < largest && walk->shape[inner] % 2 == 0) {
        for (int k = 0; k < walk->operands; k++) {
            if (walk->stride[k][inner] != 1 || !ek_is_aligned(walk->data[k], 2 * size))
                return size;
            for (int d = 0; d < inner; d++)
                if (walk->stride[k][d] % 2 != 0)
                    return size;
        }
        for (int k = 0; k < walk->operands; k++)
            for (int d = 0; d < inner; d++)
                walk->stride[k][d] /= 2;
        walk->shape[inner] /= 2;
        walk->count /= 2;
        size *= 2;
    }
    return size;
}

/* ---- teams ---- */

/* A thread's place in its block's teams. `seat` is the number of its line in the block. */
struct ek_team {
    int lanes, lane, seat, seats;
    bool across;
};

EK_DEVICE ek_team ek_team_of(ek_cuda_team plan)
{
    ek_team team;
    int thread = (int)threadIdx.x;
    team.lanes = plan.lanes;
    team.across = plan.across;
    team.seats = EK_BLOCK / plan.lanes;
    team.lane = plan.across ? thread / EK_WARP : thread & (plan.lanes - 1);
    team.seat = plan.across ? thread % EK_WARP : thread / plan.lanes;
    return team;
}

/* Returns the grid for `lines`. Each block loops over tiles of team.seats lines. */
static inline dim3 ek_team_grid(const ek_cuda_stream *stream, ek_cuda_team team, int64_t lines)
{
    return ek_grid(stream, lines, EK_BLOCK / team.lanes);
}

/* Loops over lines. All threads of a block run the body equally often, so that `line` may lie
 * beyond the last line. */
#define EK_TEAM_LOOP(line, team, lines)                                       \
    for (int64_t tile = blockIdx.x, line = tile * (team).seats + (team).seat; \
         tile * (team).seats < (lines);                                       \
         tile += gridDim.x, line = tile * (team).seats + (team).seat)

template <typename T> EK_DEVICE T ek_exchange(T value, int step)
{
    return __shfl_xor_sync(0xffffffffu, value, step);
}

/* Joins the values of a line's lanes in a fixed order. Every lane gets the result. join(a, b) must
 * be symmetric, and V must have ek_exchange(value, step). All threads of the block call it. */
template <typename V, typename J>
static __device__ V ek_team_join(const ek_team &team, V value, const J &join)
{
    __shared__ V parts[EK_BLOCK];
    if (team.across) {
        __syncthreads(); /* other threads may still read `parts` of the call before */
        parts[threadIdx.x] = value;
        __syncthreads();
        value = parts[team.seat];
        for (int lane = 1; lane < team.lanes; lane++)
            value = join(value, parts[lane * EK_WARP + team.seat]);
        return value;
    }
    for (int step = (team.lanes < EK_WARP ? team.lanes : EK_WARP) / 2; step > 0; step /= 2)
        value = join(value, ek_exchange(value, step));
    if (team.lanes > EK_WARP) {
        __syncthreads();
        if (threadIdx.x % EK_WARP == 0)
            parts[threadIdx.x / EK_WARP] = value;
        __syncthreads();
        const V *own = parts + team.seat * team.lanes / EK_WARP;
        value = own[0];
        for (int warp = 1; warp < team.lanes / EK_WARP; warp++)
            value = join(value, own[warp]);
    }
    return value;
}

template <typename T> struct ek_adding {
    __device__ __forceinline__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

template <typename T> EK_DEVICE T ek_team_sum(const ek_team &team, T value)
{
    return ek_team_join(team, value, ek_adding<T>());
}

#endif
