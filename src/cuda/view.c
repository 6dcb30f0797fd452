#include "cuda/view.h"

#include <string.h>

#include "cuda/runtime.h"
#include "kernels/walk.h"

_Static_assert((int)EK_CUDA_OPERANDS == (int)EK_WALK_OPERANDS, "a walk of either kind fits");

ek_cuda_view ek_cuda_view_of(const ek_tensor *tensor)
{
    ek_cuda_view view = {.data = ek_tensor_address(tensor),
                         .dtype = tensor->dtype,
                         .ndim = tensor->ndim};
    memcpy(view.shape, tensor->shape, (size_t)tensor->ndim * sizeof view.shape[0]);
    memcpy(view.stride, tensor->stride, (size_t)tensor->ndim * sizeof view.stride[0]);
    return view;
}

ek_cuda_walk ek_cuda_walk_of(int operands, const ek_tensor *const *tensors)
{
    ek_walk walk;
    ek_walk_init(&walk, operands, tensors);
    ek_cuda_walk result = {.ndim = walk.ndim,
                           .operands = operands,
                           .count = walk.count,
                           .flat = true};
    memcpy(result.shape, walk.shape, (size_t)walk.ndim * sizeof walk.shape[0]);
    for (int k = 0; k < operands; k++) {
        memcpy(result.stride[k], walk.stride[k], (size_t)walk.ndim * sizeof walk.stride[k][0]);
        result.data[k] = ek_tensor_address(tensors[k]);
        result.dtype[k] = tensors[k]->dtype;
        result.flat = result.flat && ek_walk_is_flat(&walk, k);
    }
    return result;
}
