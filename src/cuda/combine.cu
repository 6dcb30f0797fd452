/* combine.cu: combines the terms that ranks have sent. Order and arithmetic are those of the host
 * (distributed/link/combine.c), to the bit: bf16 and f16 are combined in f32 and rounded once,
 * integers wrap. */
#include "core/sum_order.h"
#include "cuda/launch.cuh"
#include "cuda/launches.h"

/* Return the result of a bitwise operation. Floating dtypes have none (ek_combine_check). */
template <int Op, typename R> EK_DEVICE R combine_bits(R a, R)
{
    return a;
}
template <int Op> EK_DEVICE int64_t combine_bits(int64_t a, int64_t b)
{
    return Op == EK_DIST_BAND ? a & b : Op == EK_DIST_BOR ? a | b : a ^ b;
}

template <int Op, typename R> EK_DEVICE R combine_two(R a, R b)
{
    if constexpr (Op == EK_DIST_SUM || Op == EK_DIST_AVG)
        return ek_plus(a, b);
    else if constexpr (Op == EK_DIST_PRODUCT)
        return ek_times(a, b);
    else if constexpr (Op == EK_DIST_MIN)
        return a != a || a < b ? a : b;
    else if constexpr (Op == EK_DIST_MAX)
        return a != a || a > b ? a : b;
    else
        return combine_bits<Op>(a, b);
}

/* Element i of the ranks' terms. */
template <typename T, int Op> struct combine_element {
    typedef typename ek_compute<T>::type real;
    const ek_cuda_combination &job;
    int64_t i;

    __device__ __forceinline__ bool load(int rank, real (&value)[1]) const
    {
        const char *term = rank == job.rank ? job.own : job.terms + (size_t)rank * job.stride;
        value[0] = ek_load((const T *)term + i);
        return true;
    }
    __device__ __forceinline__ real pair(real a, real b) const
    {
        return combine_two<Op>(a, b);
    }
};

template <typename T, int Op> EK_KERNEL combine(ek_cuda_combination job)
{
    typedef typename ek_compute<T>::type real;
    EK_GRID_LOOP(i, job.count) {
        real sum[1];
        ek_combine_terms<EK_SUM_DEPTH>(combine_element<T, Op>{job, i}, job.ranks, sum);
        if constexpr (Op == EK_DIST_AVG)
            sum[0] = sum[0] / (real)job.ranks;
        ek_store((T *)job.out + i, sum[0]);
    }
}

template <typename T>
static int launch_combine(const ek_cuda_stream *stream, const ek_cuda_combination *job)
{
    unsigned grid = ek_grid(stream, job->count);
    switch (job->op) {
#define COMBINE_CASE(op) \
    case op:             \
        return ek_launch(stream, grid, combine<T, op>, *job);
        COMBINE_CASE(EK_DIST_SUM)
        COMBINE_CASE(EK_DIST_AVG)
        COMBINE_CASE(EK_DIST_PRODUCT)
        COMBINE_CASE(EK_DIST_MIN)
        COMBINE_CASE(EK_DIST_MAX)
        COMBINE_CASE(EK_DIST_BAND)
        COMBINE_CASE(EK_DIST_BOR)
        COMBINE_CASE(EK_DIST_BXOR)
#undef COMBINE_CASE
    default:
        return (int)cudaErrorInvalidValue;
    }
}

int ek_cuda_launch_combine(const ek_cuda_stream *stream, const ek_cuda_combination *job)
{
    EK_ANY_DTYPE(job->dtype, T, return launch_combine<T>(stream, job))
}
