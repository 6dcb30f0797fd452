#include "cuda/places.cuh"

#include "cuda/arg_reduce.h"

template <typename A> struct candidate {
    A value;
    int64_t at; /* -1: none yet */
};

template <typename A>
static __device__ __forceinline__ candidate<A> ek_exchange(candidate<A> own, int step)
{
    candidate<A> other;
    other.value = ek_exchange(own.value, step);
    other.at = ek_exchange(own.at, step);
    return other;
}

/* Of two candidates the better one, of equals the first. NaN is better than all numbers. */
template <typename A> struct choice {
    bool smallest;

    __device__ __forceinline__ candidate<A> operator()(candidate<A> a, candidate<A> b) const
    {
        if (b.at < 0)
            return a;
        if (a.at < 0)
            return b;
        bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
        bool better = smallest ? b.value < a.value : b.value > a.value;
        bool equal = b.value == a.value || (a_is_nan && b_is_nan);
        better = (!a_is_nan && (better || b_is_nan)) || (equal && b.at < a.at);
        return better ? b : a;
    }
};

template <typename T> static __global__ __launch_bounds__(EK_BLOCK) void find(ek_cuda_arg_job job)
{
    typedef typename ek_compute<T>::type A;
    ek_team team = ek_team_of(job.team);
    choice<A> choose = {job.smallest};
    EK_TEAM_LOOP(line, team, job.lines.count)
    {
        candidate<A> best = {0, -1};
        int64_t offset[2] = {0, 0};
        if (line < job.lines.count) {
            ek_place(job.lines, line, offset);
            const T *x = (const T *)job.x + offset[1];
            for (int64_t i = team.lane; i < job.size; i += team.lanes) {
                candidate<A> next = {ek_load(x + i * job.stride), i};
                best = choose(best, next);
            }
        }
        best = ek_team_join(team, best, choose);
        if (line < job.lines.count && team.lane == 0)
            job.index[offset[0]] = best.at;
    }
}

int ek_cuda_launch_arg_reduce(const ek_cuda_queue *queue, const ek_cuda_arg_job *job)
{
    EK_ANY_DTYPE(job->dtype, T,
                 return ek_launch(queue, ek_team_grid(queue, job->team, job->lines.count),
                                  dim3(EK_BLOCK), find<T>, *job))
    return (int)cudaErrorInvalidValue;
}
