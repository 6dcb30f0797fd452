/* view.c: tensors as kernels see them. */
#include "cuda/view.h"

#include <string.h>

#include "cuda/runtime.h"
#include "kernels/walk.h"

_Static_assert((int)EK_CUDA_OPERANDS == (int)EK_WALK_OPERANDS, "a walk of either kind fits");

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

/* ---- strides and teams ---- */

void ek_cuda_strides_init(ek_cuda_strides *into, int operands, int ndim, const int64_t *shape,
                          const int64_t *const *strides)
{
    ek_walk walk;
    ek_walk_init_raw(&walk, operands, ndim, shape, strides);
    *into = (ek_cuda_strides){.ndim = walk.ndim,
                              .operands = operands,
                              .count = walk.count,
                              .narrow = walk.count <= INT32_MAX};
    for (int d = 0; d < walk.ndim; d++) {
        int64_t by = walk.shape[d] > 0 ? walk.shape[d] : 1;
        into->shape[d] = walk.shape[d];
        into->long_divisor[d] = ek_cuda_long_divisor_of((uint64_t)by);
        if (into->narrow)
            into->divisor[d] = ek_cuda_divisor_of((uint32_t)by);
        for (int k = 0; k < operands; k++)
            into->stride[k][d] = walk.stride[k][d];
    }
}

void ek_cuda_strides_without(ek_cuda_strides *into, int operands, const ek_tensor *const *tensors,
                             const bool *has_dim, int dim)
{
    int64_t shape[EK_MAX_DIMS], stride[EK_CUDA_OPERANDS][EK_MAX_DIMS];
    const int64_t *strides[EK_CUDA_OPERANDS];
    int ndim = 0;
    for (int d = 0; d < tensors[0]->ndim; d++) {
        if (d == dim)
            continue;
        shape[ndim] = tensors[0]->shape[d];
        for (int k = 0; k < operands; k++)
            stride[k][ndim] = tensors[k]->stride[!has_dim || has_dim[k] ? d : ndim];
        ndim++;
    }
    for (int k = 0; k < operands; k++)
        strides[k] = stride[k];
    ek_cuda_strides_init(into, operands, ndim, shape, strides);
}

enum { TEAM_WARP = 32, TEAM_BLOCK = 256 };

ek_cuda_team ek_cuda_team_for(int multiprocessors, int64_t lines, int64_t size, bool inner,
                              int each)
{
    ek_cuda_team team = {.lanes = 1};
    int64_t threads = (int64_t)multiprocessors * 1024; /* fewer threads leave the device idle */
    if (!inner && lines >= TEAM_WARP) {
        /* Neighbouring threads read neighbouring elements with any number of lanes. More lanes help
         * only if there are few lines. */
        if (lines < threads && size >= TEAM_WARP)
            team = (ek_cuda_team){.lanes = TEAM_BLOCK / TEAM_WARP, .across = true};
        return team;
    }
    each = lines < threads ? EK_CUDA_TEAM_WRITES : each;
    while (team.lanes < TEAM_WARP && team.lanes * each < size)
        team.lanes *= 2;
    if (size >= 4096 || (size >= 512 && lines * TEAM_WARP < threads))
        team.lanes = TEAM_BLOCK;
    return team;
}

ek_cuda_team ek_cuda_team_along(int multiprocessors, const ek_cuda_strides *lines, int operand,
                                int64_t size, int64_t stride, int each)
{
    int64_t next = lines->stride[operand][lines->ndim - 1];
    return ek_cuda_team_for(multiprocessors, lines->count, size, lines->count == 1 || stride < next,
                            each);
}

/* ---- images ---- */

ek_cuda_image ek_cuda_image_of(const ek_tensor *tensor)
{
    ek_cuda_image image = {.data = ek_tensor_address(tensor),
                           .dtype = tensor->dtype,
                           .count = ek_count(tensor),
                           .plane = 1,
                           .samples = tensor->shape[0],
                           .channels = tensor->shape[1],
                           .by_sample = tensor->stride[0],
                           .by_channel = tensor->stride[1],
                           .per_channels = ek_cuda_divider_of(tensor->shape[1])};
    double reach = 0;
    for (int d = 0; d < tensor->ndim; d++)
        reach += (double)tensor->stride[d] * (double)tensor->shape[d];
    image.wide = reach >= INT32_MAX || (double)image.count >= INT32_MAX;
    int missing = 3 - (tensor->ndim - 2);
    for (int i = 0; i < 3; i++) {
        int d = i - missing + 2;
        image.size[i] = i < missing ? 1 : tensor->shape[d];
        image.step[i] = i < missing ? 0 : tensor->stride[d];
        image.per_size[i] = ek_cuda_divider_of(image.size[i]);
        image.plane *= image.size[i];
    }
    /* The innermost dimension in space whose size isn't 1. */
    int inner = 2;
    while (inner > missing && image.size[inner] == 1)
        inner--;
    image.last =
        image.channels > 1 && (image.size[inner] == 1 || image.by_channel < image.step[inner]);
    image.even = true;
    int64_t step = image.step[2];
    for (int i = 2; i >= 0; step *= image.size[i], i--)
        image.even = image.even && (image.size[i] == 1 || image.step[i] == step);
    return image;
}
