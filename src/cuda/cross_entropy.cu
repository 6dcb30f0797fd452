/* cross_entropy.cu: a team of threads per element. With lse = log sum exp x, as the host has it:
 *
 *   loss = (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c])
 *
 * where s is the label smoothing. The loss takes lse apart, into the largest logit and the rest,
 * for large logits. */
#include "cuda/soften.cuh"

#include "cuda/cross_entropy.h"

/* Whether the target counts. */
static __device__ __forceinline__ bool counts(int64_t target, int64_t ignore_index, int64_t classes,
                                              ek_cuda_fault *fault, const char *operation)
{
    if (target == ignore_index)
        return false;
    if (target >= 0 && target < classes)
        return true;
    ek_fault_raise(fault, EK_CUDA_FAULT_TARGET, target, classes, operation);
    return false;
}

template <typename R>
static __device__ __forceinline__ R weight_of(const ek_cuda_entropy_job &job, int64_t c)
{
    if (job.weight.data == NULL)
        return (R)1;
    return ek_load_as<R>(job.weight.data, job.weight.dtype, c * job.weight_stride);
}

/* ---- loss ---- */

/* sum_c w[c] (lse - x[c]) */
template <typename T, typename R>
static __device__ R smooth_loss(const ek_cuda_entropy_job &job, const ek_team &team, const T *x,
                                ek_softened<R> all, R log_sum)
{
    R sum = 0;
    for (int64_t c = team.lane; c < job.classes; c += team.lanes)
        sum += weight_of<R>(job, c) * (all.largest - ek_load(x + c * job.stride_x) + log_sum);
    return sum;
}

template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void forward(ek_cuda_entropy_job job,
                                                           ek_cuda_fault *fault,
                                                           const char *operation)
{
    typedef typename ek_compute<T>::type R;
    ek_team team = ek_team_of(job.team);
    R smoothing = (R)job.params.label_smoothing;
    EK_TEAM_LOOP(line, team, job.lines.count)
    {
        bool valid = line < job.lines.count;
        int64_t offset[4] = {0, 0, 0, 0};
        if (valid)
            ek_place(job.lines, line, offset);
        const T *x = (const T *)job.x + offset[0];
        ek_softened<R> all = ek_soften(team, valid, x, job.stride_x, job.classes);
        R log_sum = ek_log(all.sum), spread = 0;
        if (smoothing != 0)
            spread =
                ek_team_sum(team, valid ? smooth_loss<T, R>(job, team, x, all, log_sum) : (R)0);
        if (!valid || team.lane != 0)
            continue;
        int64_t t = job.target[offset[1]];
        R loss = 0;
        if (counts(t, job.params.ignore_index, job.classes, fault, operation)) {
            loss = weight_of<R>(job, t) * (all.largest - ek_load(x + t * job.stride_x) + log_sum);
            if (smoothing != 0)
                loss = (1 - smoothing) * loss + smoothing / (R)job.classes * spread;
        }
        ek_store_as(job.loss.data, job.loss.dtype, offset[2], loss);
        ek_store_as(job.lse.data, job.lse.dtype, offset[3], all.largest + log_sum);
    }
}

/* ---- gradient ---- */

/* sum_c w[c], by each block for itself. */
template <typename R> static __device__ R total_weight(const ek_cuda_entropy_job &job)
{
    if (job.weight.data == NULL)
        return (R)job.classes;
    R sum = 0;
    for (int64_t c = threadIdx.x; c < job.classes; c += blockDim.x)
        sum += weight_of<R>(job, c);
    return ek_block_sum(sum);
}

template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void gradient(ek_cuda_entropy_job job,
                                                            ek_cuda_fault *fault,
                                                            const char *operation)
{
    typedef typename ek_compute<T>::type R;
    ek_team team = ek_team_of(job.team);
    R smoothing = (R)job.params.label_smoothing, share = smoothing / (R)job.classes;
    R total = smoothing != 0 ? total_weight<R>(job) : (R)0;
    EK_TEAM_LOOP(line, team, job.lines.count)
    {
        if (line >= job.lines.count)
            continue;
        int64_t offset[5];
        ek_place(job.lines, line, offset);
        const T *x = (const T *)job.x + offset[0];
        T *dx = (T *)job.dx + offset[4];
        int64_t t = job.target[offset[1]];
        if (!counts(t, job.params.ignore_index, job.classes, fault, operation)) {
            for (int64_t c = team.lane; c < job.classes; c += team.lanes)
                ek_store(dx + c * job.stride_dx, (R)0);
            continue;
        }
        R g = ek_load_as<R>(job.loss.data, job.loss.dtype, offset[2]);
        R lse = ek_load_as<R>(job.lse.data, job.lse.dtype, offset[3]);
        R own = (1 - smoothing) * weight_of<R>(job, t), scale = g * (own + share * total);
#pragma unroll 4
        for (int64_t c = team.lane; c < job.classes; c += team.lanes) {
            R slope = ek_exp(ek_load(x + c * job.stride_x) - lse) * scale;
            if (smoothing != 0)
                slope -= g * share * weight_of<R>(job, c);
            if (c == t)
                slope -= g * own;
            ek_store(dx + c * job.stride_dx, slope);
        }
    }
}

int ek_cuda_launch_cross_entropy(const ek_cuda_queue *queue, const ek_cuda_entropy_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(queue, ek_team_grid(queue, job->team, job->lines.count),
                                 dim3(EK_BLOCK), forward<T>, *job, queue->fault, "cross_entropy"))
    return (int)cudaErrorInvalidValue;
}

int ek_cuda_launch_cross_entropy_gradient(const ek_cuda_queue *queue,
                                          const ek_cuda_entropy_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(queue, ek_team_grid(queue, job->team, job->lines.count),
                                 dim3(EK_BLOCK), gradient<T>, *job, queue->fault,
                                 "cross_entropy_gradient"))
    return (int)cudaErrorInvalidValue;
}

/* ---- the denominator ---- */

static __global__ __launch_bounds__(EK_BLOCK) void weigh(ek_cuda_target_job job,
                                                         ek_cuda_fault *fault,
                                                         const char *operation)
{
    int64_t begin = (int64_t)blockIdx.x * EK_CUDA_TARGET_BLOCK, end = begin + EK_CUDA_TARGET_BLOCK;
    end = end < job.places.count ? end : job.places.count;
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        int64_t offset[1];
        ek_place(job.places, i, offset);
        int64_t t = job.target[offset[0]];
        if (job.weight.data == NULL)
            sum += t != job.ignore_index ? 1 : 0;
        else if (counts(t, job.ignore_index, job.classes, fault, operation))
            sum += ek_load_as<double>(job.weight.data, job.weight.dtype, t * job.weight_stride);
    }
    sum = ek_block_sum(sum);
    if (threadIdx.x != 0)
        return;
    if (job.partial != NULL)
        job.partial[blockIdx.x] = sum;
    else
        ek_store_as(job.out.data, job.out.dtype, 0, sum);
}

static __global__ __launch_bounds__(EK_BLOCK) void add_up(ek_cuda_values out, const double *partial,
                                                          int64_t count)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        sum += partial[i];
    sum = ek_block_sum(sum);
    if (threadIdx.x == 0)
        ek_store_as(out.data, out.dtype, 0, sum);
}

int ek_cuda_launch_target_weight(const ek_cuda_queue *queue, const ek_cuda_target_job *job)
{
    int rc = ek_launch(queue, dim3((unsigned)job->blocks), dim3(EK_BLOCK), weigh, *job,
                       queue->fault, "target_weight");
    if (rc != 0 || job->partial == NULL)
        return rc;
    return ek_launch(queue, dim3(1), dim3(EK_BLOCK), add_up, job->out, job->partial, job->blocks);
}
