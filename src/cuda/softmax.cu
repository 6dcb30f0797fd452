/* softmax.cu: a team of threads per line. A line is read twice; the second time it comes from a
 * cache, unless it is very long. */
#include "cuda/soften.cuh"

#include "cuda/softmax.h"

template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void softmax(ek_cuda_softmax_job job)
{
    typedef typename ek_compute<T>::type R;
    ek_team team = ek_team_of(job.team);
    EK_TEAM_LOOP(line, team, job.lines.count)
    {
        bool valid = line < job.lines.count;
        int64_t offset[2] = {0, 0};
        if (valid)
            ek_place(job.lines, line, offset);
        const T *x = (const T *)job.a + offset[1];
        ek_softened<R> all = ek_soften(team, valid, x, job.stride[1], job.size);
        if (!valid)
            continue;
        T *y = (T *)job.out + offset[0];
        R last = job.logarithm ? ek_log(all.sum) : 1 / all.sum;
#pragma unroll 4
        for (int64_t c = team.lane; c < job.size; c += team.lanes) {
            R away = ek_load(x + c * job.stride[1]) - all.largest;
            ek_store(y + c * job.stride[0], job.logarithm ? away - last : ek_exp(away) * last);
        }
    }
}

/* The sum over the line of dy, or of dy y: by fours, which keeps the chain of roundings short. */
template <typename T, typename R>
static __device__ __forceinline__ R sum_of(const ek_cuda_softmax_job &job, const ek_team &team,
                                           const T *dy, const T *y)
{
    R sum = 0;
    for (int64_t c = team.lane; c < job.size; c += 4 * team.lanes) {
        R four = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int64_t at = c + k * team.lanes;
            if (at < job.size)
                four += ek_load(dy + at * job.stride[1]) *
                        (job.logarithm ? (R)1 : ek_load(y + at * job.stride[2]));
        }
        sum += four;
    }
    return sum;
}

template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void gradient(ek_cuda_softmax_job job)
{
    typedef typename ek_compute<T>::type R;
    ek_team team = ek_team_of(job.team);
    EK_TEAM_LOOP(line, team, job.lines.count)
    {
        bool valid = line < job.lines.count;
        int64_t offset[3] = {0, 0, 0};
        if (valid)
            ek_place(job.lines, line, offset);
        const T *dy = (const T *)job.a + offset[1], *y = (const T *)job.b + offset[2];
        R sum = ek_team_sum(team, valid ? sum_of<T, R>(job, team, dy, y) : (R)0);
        if (!valid)
            continue;
        T *dx = (T *)job.out + offset[0];
#pragma unroll 4
        for (int64_t c = team.lane; c < job.size; c += team.lanes) {
            R slope = ek_load(dy + c * job.stride[1]), value = ek_load(y + c * job.stride[2]);
            ek_store(dx + c * job.stride[0],
                     job.logarithm ? slope - ek_exp(value) * sum : value * (slope - sum));
        }
    }
}

int ek_cuda_launch_softmax(const ek_cuda_queue *queue, const ek_cuda_softmax_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(queue, ek_team_grid(queue, job->team, job->lines.count),
                                 dim3(EK_BLOCK), softmax<T>, *job))
    return (int)cudaErrorInvalidValue;
}

int ek_cuda_launch_softmax_gradient(const ek_cuda_queue *queue, const ek_cuda_softmax_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(queue, ek_team_grid(queue, job->team, job->lines.count),
                                 dim3(EK_BLOCK), gradient<T>, *job))
    return (int)cudaErrorInvalidValue;
}
