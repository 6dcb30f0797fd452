/* scan.cu: linear recurrences h -> a h + b along a dimension. A short line is computed by a thread.
 * A long line of sums is computed by a block, which joins its threads' elements in 8 rounds. Lines
 * with factors are never computed in parts: products of factors, which the recurrence doesn't form,
 * may overflow and be multiplied by 0, and inf * 0 is NaN. */
#include "cuda/launches.h"
#include "cuda/strides.cuh"

enum { OPERANDS = 3, SHORT = 64 /* elements of a short line */ };

template <typename C> struct scan_step {
    C a, b;
};

/* Return h * a + b. Integers wrap. */
template <typename C> EK_DEVICE C scan_fused(C h, C a, C b)
{
    return h * a + b;
}
EK_DEVICE int64_t scan_fused(int64_t h, int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)h * (uint64_t)a + (uint64_t)b);
}

template <typename T, typename C>
EK_DEVICE scan_step<C> scan_load(const ek_cuda_scan_job &job, const int64_t (&line)[OPERANDS],
                                 int64_t i)
{
    scan_step<C> step = {1, 0};
    if (job.a != NULL)
        step.a = ek_load((const T *)job.a + line[1] + i * job.stride[1]);
    if (job.b != NULL)
        step.b = ek_load((const T *)job.b + line[2] + i * job.stride[2]);
    return step;
}

template <typename T> EK_KERNEL scan_in_turn(ek_cuda_scan_job job)
{
    typedef typename ek_compute<T>::type C;
    EK_GRID_LOOP(at, job.lines.count) {
        int64_t line[OPERANDS];
        ek_offsets(job.lines, at, line);
        C h = job.b != NULL ? 0 : 1;
        for (int64_t k = 0; k < job.size; k++) {
            int64_t i = job.reverse ? job.size - 1 - k : k;
            scan_step<C> step = scan_load<T, C>(job, line, i);
            h = scan_fused(h, step.a, step.b);
            ek_store((T *)job.out + line[0] + i * job.stride[0], h);
        }
    }
}

/* Computes lines of sums, which have no factors. */
template <typename T> EK_KERNEL scan_joined(ek_cuda_scan_job job)
{
    typedef typename ek_compute<T>::type C;
    __shared__ C sums[EK_BLOCK];
    int thread = (int)threadIdx.x;
    for (int64_t at = blockIdx.x; at < job.lines.count; at += gridDim.x) {
        int64_t line[OPERANDS];
        ek_offsets(job.lines, at, line);
        C before = job.b != NULL ? 0 : 1;
        for (int64_t start = 0; start < job.size; start += EK_BLOCK) {
            int64_t k = start + thread, i = job.reverse ? job.size - 1 - k : k;
            C own = 0;
            if (k < job.size)
                own = scan_load<T, C>(job, line, i).b;
            for (int distance = 1; distance < EK_BLOCK; distance *= 2) {
                __syncthreads(); /* the round before may still be read */
                sums[thread] = own;
                __syncthreads();
                if (thread >= distance)
                    own = scan_fused(sums[thread - distance], C(1), own);
            }
            C h = scan_fused(before, C(1), own);
            if (k < job.size)
                ek_store((T *)job.out + line[0] + i * job.stride[0], h);
            __syncthreads();
            if (thread == EK_BLOCK - 1)
                sums[0] = h;
            __syncthreads();
            before = sums[0];
        }
    }
}

int ek_cuda_launch_scan(const ek_cuda_stream *stream, const ek_cuda_scan_job *job)
{
    if (job->a != NULL || job->size <= SHORT ||
        job->lines.count >= (int64_t)stream->multiprocessors * 1024)
        EK_ANY_DTYPE(job->dtype, T,
                     return ek_launch(stream, ek_grid(stream, job->lines.count), scan_in_turn<T>,
                                      *job))
    EK_ANY_DTYPE(job->dtype, T,
                 return ek_launch(stream, ek_grid(stream, job->lines.count, 1), scan_joined<T>,
                                  *job))
}
