#include "cuda/arg_reduce.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

int ek_cuda_arg_reduce(ek_dev *dev, ek_reduce_kind kind, ek_tensor *index, const ek_tensor *x,
                       int dim)
{
    if (ek_count(index) == 0)
        return 0;
    int64_t size = x->ndim == 0 ? 1 : x->shape[dim];
    if (size == 0)
        return EK_FAIL(EK_E_INVALID, "there is no position of the %s of no elements (dimension %d)",
                       kind == EK_REDUCE_MIN ? "minimum" : "maximum", dim);
    ek_cuda_arg_job job = {.smallest = kind == EK_REDUCE_MIN,
                           .dtype = x->dtype,
                           .x = ek_tensor_address(x),
                           .index = ek_tensor_address(index),
                           .size = size,
                           .stride = x->ndim == 0 ? 1 : x->stride[dim]};
    ek_cuda_places_without(&job.lines, 2, (const ek_tensor *[]){index, x}, NULL, dim);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    job.team = ek_cuda_team_along(queue.multiprocessors, &job.lines, 1, size, job.stride,
                                  EK_CUDA_TEAM_READS);
    return ek_cuda_end(dev, &queue, "arg_reduce", ek_cuda_launch_arg_reduce(&queue, &job));
}
