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

/* ---- writing: adding, or assigning ---- */

template <typename T, bool Adds> EK_KERNEL write(ek_cuda_index_job job, ek_cuda_fault *fault)
{
    EK_GRID_LOOP(i, job.strides.count) {
        int64_t offset[3];
        ek_offsets(job.strides, i, offset);
        int64_t at = job.index[offset[2]];
        if (!index_in_range(job, fault, at))
            continue;
        T *out = (T *)job.out + offset[0] + at * job.stride, x = ((const T *)job.x)[offset[1]];
        if constexpr (Adds)
            atomicAdd(out, x);
        else
            *out = x;
    }
}

/* A place of a line's order begins the additions to one element if its index differs from that of
 * the place before. Its thread makes all these additions, or assigns the last element. */
template <typename T, bool Adds>
EK_KERNEL write_sorted(ek_cuda_index_job job, ek_cuda_fault *fault, const int64_t *order,
                       int64_t apart)
{
    EK_GRID_LOOP(i, job.strides.count * job.line) {
        int64_t first = i / job.strides.count, line = i - first * job.strides.count, offset[3];
        ek_offsets(job.strides, line, offset);
        const int64_t *own = order + line * apart, *index = job.index + offset[2];
        const T *x = (const T *)job.x + offset[1];
        int64_t at = index[own[first] * job.line_index];
        if (first > 0 && index[own[first - 1] * job.line_index] == at)
            continue;
        if (!index_in_range(job, fault, at))
            continue;
        T value = {};
        for (int64_t j = first; j < job.line; j++) {
            if (index[own[j] * job.line_index] != at)
                break;
            if constexpr (Adds)
                value += x[own[j] * job.line_x];
            else
                value = x[own[j] * job.line_x];
        }
        ((T *)job.out)[offset[0] + at * job.stride] = value;
    }
}

template <typename T, bool Adds>
static int launch_write(const ek_cuda_stream *stream, const ek_cuda_index_job *job,
                        const int64_t *order, int64_t apart)
{
    const int64_t count = job->strides.count;
    return order ? ek_launch(stream, ek_grid(stream, count * job->line), write_sorted<T, Adds>,
                             *job, stream->fault, order, apart)
                 : ek_launch(stream, ek_grid(stream, count), write<T, Adds>, *job, stream->fault);
}

int ek_cuda_launch_write(const ek_cuda_stream *stream, const ek_cuda_index_job *job,
                         const int64_t *order, int64_t apart, size_t size)
{
    if (size > 0)
        EK_BY_SIZE(size, T, return launch_write<T, false>(stream, job, order, apart))
    return job->dtype == EK_F32 ? launch_write<float, true>(stream, job, order, apart)
                                : launch_write<double, true>(stream, job, order, apart);
}
