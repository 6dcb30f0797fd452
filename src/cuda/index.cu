/* index.cu: selecting and adding at positions along one dimension. */
#include "cuda/launches.h"
#include "cuda/strides.cuh"

EK_DEVICE bool index_in_range(const ek_cuda_index_job &job, ek_cuda_fault *fault, int64_t at)
{
    if (at >= 0 && at < job.size)
        return true;
    ek_fault_raise(fault, EK_CUDA_FAULT_INDEX, at, job.size, job.operation);
    return false;
}

/* ---- selecting ---- */

template <typename T> EK_KERNEL gather(ek_cuda_index_job job, ek_cuda_fault *fault)
{
    EK_GRID_LOOP(i, job.strides.count) {
        int64_t offset[3];
        ek_offsets(job.strides, i, offset);
        int64_t at = job.index[offset[2]];
        T *out = (T *)job.out + offset[0];
        if (index_in_range(job, fault, at))
            *out = ((const T *)job.x)[offset[1] + at * job.stride];
        else
            *out = T{};
    }
}

int ek_cuda_launch_gather(const ek_cuda_stream *stream, const ek_cuda_index_job *job, size_t size)
{
    EK_BY_SIZE(size, T,
               return ek_launch(stream, ek_grid(stream, job->strides.count), gather<T>, *job,
                                stream->fault))
}

/* ---- adding ---- */

template <typename T> EK_KERNEL scatter(ek_cuda_index_job job, ek_cuda_fault *fault)
{
    EK_GRID_LOOP(i, job.strides.count) {
        int64_t offset[3];
        ek_offsets(job.strides, i, offset);
        int64_t at = job.index[offset[2]];
        if (index_in_range(job, fault, at))
            atomicAdd((T *)job.out + offset[0] + at * job.stride, ((const T *)job.x)[offset[1]]);
    }
}

/* Adds in the order of x. `parts` threads (a power of two) share a line. Each thread goes along the
 * whole line and makes the additions at those positions of `out` that are its own number modulo
 * `parts`, so that the additions to one element stay in order. */
template <typename T>
EK_KERNEL scatter_lines(ek_cuda_index_job job, ek_cuda_fault *fault, int parts)
{
    EK_GRID_LOOP(i, job.strides.count * parts) {
        int64_t part = i / job.strides.count, offset[3];
        ek_offsets(job.strides, i - part * job.strides.count, offset);
        T *out = (T *)job.out + offset[0];
        const T *x = (const T *)job.x + offset[1];
        const int64_t *index = job.index + offset[2];
        for (int64_t j = 0; j < job.line; j++) {
            int64_t at = index[j * job.line_index];
            if ((at & (parts - 1)) == part && index_in_range(job, fault, at))
                out[at * job.stride] += x[j * job.line_x];
        }
    }
}

template <typename T>
static int launch_scatter(const ek_cuda_stream *stream, const ek_cuda_index_job *job)
{
    int parts = 1;
    if (!stream->deterministic)
        return ek_launch(stream, ek_grid(stream, job->strides.count), scatter<T>, *job,
                         stream->fault);
    while (parts < 256 && parts < job->size &&
           job->strides.count * parts < (int64_t)stream->multiprocessors * 1024)
        parts *= 2;
    return ek_launch(stream, ek_grid(stream, job->strides.count * parts), scatter_lines<T>, *job,
                     stream->fault, parts);
}

int ek_cuda_launch_scatter(const ek_cuda_stream *stream, const ek_cuda_index_job *job)
{
    return job->dtype == EK_F32 ? launch_scatter<float>(stream, job)
                                : launch_scatter<double>(stream, job);
}

/* Adds in the order of x. A position of `order` begins the additions to one element if its index
 * differs from that of the position before. Its threads, one for each line, make all these
 * additions. */
template <typename T>
EK_KERNEL scatter_sorted(ek_cuda_index_job job, ek_cuda_fault *fault, const int64_t *order)
{
    EK_GRID_LOOP(i, job.strides.count * job.line) {
        int64_t first = i / job.strides.count, offset[3];
        int64_t at = job.index[order[first] * job.line_index];
        if (first > 0 && job.index[order[first - 1] * job.line_index] == at)
            continue;
        if (!index_in_range(job, fault, at))
            continue;
        ek_offsets(job.strides, i - first * job.strides.count, offset);
        const T *x = (const T *)job.x + offset[1];
        T sum = 0;
        for (int64_t j = first; j < job.line; j++) {
            if (job.index[order[j] * job.line_index] != at)
                break;
            sum += x[order[j] * job.line_x];
        }
        ((T *)job.out)[offset[0] + at * job.stride] = sum;
    }
}

int ek_cuda_launch_scatter_sorted(const ek_cuda_stream *stream, const ek_cuda_index_job *job,
                                  const int64_t *order)
{
    unsigned grid = ek_grid(stream, job->strides.count * job->line);
    if (job->dtype == EK_F32)
        return ek_launch(stream, grid, scatter_sorted<float>, *job, stream->fault, order);
    return ek_launch(stream, grid, scatter_sorted<double>, *job, stream->fault, order);
}

/* ---- assigning ---- */

template <typename T> EK_KERNEL assign(ek_cuda_index_job job, ek_cuda_fault *fault)
{
    EK_GRID_LOOP(i, job.strides.count) {
        int64_t offset[3];
        ek_offsets(job.strides, i, offset);
        int64_t at = job.index[offset[2]];
        if (index_in_range(job, fault, at))
            ((T *)job.out)[offset[0] + at * job.stride] = ((const T *)job.x)[offset[1]];
    }
}

template <typename T> EK_KERNEL assign_lines(ek_cuda_index_job job, ek_cuda_fault *fault)
{
    EK_GRID_LOOP(i, job.strides.count) {
        int64_t offset[3];
        ek_offsets(job.strides, i, offset);
        for (int64_t j = 0; j < job.line; j++) {
            int64_t at = job.index[offset[2] + j * job.line_index];
            if (index_in_range(job, fault, at))
                ((T *)job.out)[offset[0] + at * job.stride] =
                    ((const T *)job.x)[offset[1] + j * job.line_x];
        }
    }
}

int ek_cuda_launch_assign(const ek_cuda_stream *stream, const ek_cuda_index_job *job, size_t size)
{
    unsigned grid = ek_grid(stream, job->strides.count);
    EK_BY_SIZE(size, T,
               return ek_launch(stream, grid, stream->deterministic ? assign_lines<T> : assign<T>,
                                *job, stream->fault))
}
