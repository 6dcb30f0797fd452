/* places.cuh: device side of places.h. */
#ifndef EK_CUDA_PLACES_CUH
#define EK_CUDA_PLACES_CUH

#include "cuda/launch.cuh"
#include "cuda/places.h"

/* The offsets of position i in the first N operands. */
template <int N>
static __device__ __forceinline__ void ek_place(const ek_cuda_places &places, int64_t i,
                                                int64_t (&offset)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++)
        offset[k] = 0;
    if (places.narrow) {
        uint32_t rest = (uint32_t)i;
        for (int d = places.ndim - 1; d > 0; d--) {
            uint32_t next = ek_cuda_divide(places.divisor[d], rest);
            int64_t at = rest - next * places.divisor[d].by;
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[k] += at * places.stride[k][d];
            rest = next;
        }
        i = rest;
    } else {
        for (int d = places.ndim - 1; d > 0; d--) {
            int64_t next = (int64_t)ek_cuda_divide_long(places.long_divisor[d], (uint64_t)i);
            int64_t at = i - next * places.shape[d];
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[k] += at * places.stride[k][d];
            i = next;
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        offset[k] += i * places.stride[k][0];
}

/* ---- teams ---- */

/* A thread's part in its block's teams: `seat` numbers the lines of a block. */
struct ek_team {
    int lanes, lane, seat, seats;
    bool across;
};

static __device__ __forceinline__ ek_team ek_team_of(ek_cuda_team plan)
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

/* Blocks for `lines`; each loops over tiles of team.seats lines. */
static inline dim3 ek_team_grid(const ek_cuda_queue *queue, ek_cuda_team team, int64_t lines)
{
    return dim3(ek_grid(queue, lines, EK_BLOCK / team.lanes));
}

/* All threads of a block run the body as often, with `line` at or beyond the count for some. */
#define EK_TEAM_LOOP(line, team, lines)                                       \
    for (int64_t tile = blockIdx.x, line = tile * (team).seats + (team).seat; \
         tile * (team).seats < (lines);                                       \
         tile += gridDim.x, line = tile * (team).seats + (team).seat)

static __device__ __forceinline__ float ek_exchange(float value, int step)
{
    return __shfl_xor_sync(0xffffffffu, value, step);
}
static __device__ __forceinline__ double ek_exchange(double value, int step)
{
    return __shfl_xor_sync(0xffffffffu, value, step);
}
static __device__ __forceinline__ int64_t ek_exchange(int64_t value, int step)
{
    return (int64_t)__shfl_xor_sync(0xffffffffu, (long long)value, step);
}

/* Joins the values of a line's lanes in a fixed order; every lane gets the result. join(a, b) is
 * symmetric; ek_exchange(value, step) is there for V. All threads of the block call it. */
template <typename V, typename J>
static __device__ V ek_team_join(const ek_team &team, V value, const J &join)
{
    __shared__ V parts[EK_BLOCK];
    if (team.across) {
        __syncthreads(); /* `parts` may still be read from the call before */
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
        value = parts[0];
        for (int warp = 1; warp < team.lanes / EK_WARP; warp++)
            value = join(value, parts[warp]);
    }
    return value;
}

template <typename T> struct ek_adding {
    __device__ __forceinline__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

template <typename T> static __device__ __forceinline__ T ek_team_sum(const ek_team &team, T value)
{
    return ek_team_join(team, value, ek_adding<T>());
}

/* ---- values of a dtype that only the launch knows: one per line, or cached ---- */

template <typename R>
static __device__ __forceinline__ R ek_load_as(const void *data, ek_dtype dtype, int64_t i)
{
    switch (dtype) {
    case EK_F32:
        return (R)((const float *)data)[i];
    case EK_F64:
        return (R)((const double *)data)[i];
    case EK_BF16:
        return (R)ek_load((const ek_bf16 *)data + i);
    case EK_I64:
        return (R)((const int64_t *)data)[i];
    default:
        return (R)((const uint8_t *)data)[i];
    }
}

template <typename R>
static __device__ __forceinline__ void ek_store_as(void *data, ek_dtype dtype, int64_t i, R value)
{
    switch (dtype) {
    case EK_F32:
        ((float *)data)[i] = (float)value;
        break;
    case EK_F64:
        ((double *)data)[i] = (double)value;
        break;
    case EK_BF16:
        ek_store((ek_bf16 *)data + i, (float)value);
        break;
    case EK_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    default:
        ((uint8_t *)data)[i] = (uint8_t)value;
        break;
    }
}

#endif
