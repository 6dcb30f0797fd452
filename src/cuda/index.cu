#include "cuda/places.cuh"

#include "cuda/index.h"

static __device__ __forceinline__ bool in_range(const ek_cuda_index_job &job, ek_cuda_fault *fault,
                                                int64_t at)
{
    if (at >= 0 && at < job.size)
        return true;
    ek_fault_raise(fault, EK_CUDA_FAULT_INDEX, at, job.size, job.operation);
    return false;
}

/* ---- selecting ---- */

static __device__ __forceinline__ void clear(uint4 *to)
{
    *to = make_uint4(0, 0, 0, 0);
}
template <typename T> static __device__ __forceinline__ void clear(T *to)
{
    *to = 0;
}

template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void gather(ek_cuda_index_job job,
                                                          ek_cuda_fault *fault)
{
    EK_GRID_LOOP(i, job.places.count)
    {
        int64_t offset[3];
        ek_place(job.places, i, offset);
        int64_t at = job.index[offset[2]];
        T *out = (T *)job.out + offset[0];
        if (in_range(job, fault, at))
            *out = ((const T *)job.x)[offset[1] + at * job.stride];
        else
            clear(out);
    }
}

int ek_cuda_launch_gather(const ek_cuda_queue *queue, const ek_cuda_index_job *job, int nbytes)
{
    dim3 grid(ek_grid(queue, job->places.count)), block(EK_BLOCK);
    switch (nbytes) {
    case 1:
        return ek_launch(queue, grid, block, gather<uint8_t>, *job, queue->fault);
    case 2:
        return ek_launch(queue, grid, block, gather<uint16_t>, *job, queue->fault);
    case 4:
        return ek_launch(queue, grid, block, gather<uint32_t>, *job, queue->fault);
    case 8:
        return ek_launch(queue, grid, block, gather<uint64_t>, *job, queue->fault);
    default:
        return ek_launch(queue, grid, block, gather<uint4>, *job, queue->fault);
    }
}

/* ---- adding ---- */

template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void scatter(ek_cuda_index_job job,
                                                           ek_cuda_fault *fault)
{
    EK_GRID_LOOP(i, job.places.count)
    {
        int64_t offset[3];
        ek_place(job.places, i, offset);
        int64_t at = job.index[offset[2]];
        if (in_range(job, fault, at))
            atomicAdd((T *)job.out + offset[0] + at * job.stride, ((const T *)job.x)[offset[1]]);
    }
}

/* A thread goes along a line and makes those additions whose position is its own, of `parts` (a
 * power of two) that share the line: the additions to one element stay in order. */
template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void scatter_lines(ek_cuda_index_job job,
                                                                 ek_cuda_fault *fault, int parts)
{
    EK_GRID_LOOP(i, job.places.count * parts)
    {
        int64_t part = i / job.places.count, offset[3];
        ek_place(job.places, i - part * job.places.count, offset);
        T *out = (T *)job.out + offset[0];
        const T *x = (const T *)job.x + offset[1];
        const int64_t *index = job.index + offset[2];
        for (int64_t j = 0; j < job.line; j++) {
            int64_t at = index[j * job.line_index];
            if ((at & (parts - 1)) == part && in_range(job, fault, at))
                out[at * job.stride] += x[j * job.line_x];
        }
    }
}

int ek_cuda_launch_scatter(const ek_cuda_queue *queue, const ek_cuda_index_job *job, ek_dtype dtype)
{
    dim3 grid(ek_grid(queue, job->places.count)), block(EK_BLOCK);
    if (dtype == EK_F32)
        return ek_launch(queue, grid, block, scatter<float>, *job, queue->fault);
    return ek_launch(queue, grid, block, scatter<double>, *job, queue->fault);
}

int ek_cuda_launch_scatter_lines(const ek_cuda_queue *queue, const ek_cuda_index_job *job,
                                 ek_dtype dtype)
{
    int parts = 1;
    while (parts < 256 && parts < job->size &&
           job->places.count * parts < (int64_t)queue->multiprocessors * 1024)
        parts *= 2;
    dim3 grid(ek_grid(queue, job->places.count * parts)), block(EK_BLOCK);
    if (dtype == EK_F32)
        return ek_launch(queue, grid, block, scatter_lines<float>, *job, queue->fault, parts);
    return ek_launch(queue, grid, block, scatter_lines<double>, *job, queue->fault, parts);
}
