#include "cuda/places.h"

#include "core/tensor.h"
#include "kernels/walk.h"

enum { WARP = 32, BLOCK = 256 };

void ek_cuda_places_init(ek_cuda_places *places, int operands, int ndim, const int64_t *shape,
                         const int64_t *const *strides)
{
    ek_walk walk;
    ek_walk_init_raw(&walk, operands, ndim, shape, strides);
    *places = (ek_cuda_places){.ndim = walk.ndim,
                               .operands = operands,
                               .count = walk.count,
                               .narrow = walk.count <= INT32_MAX};
    for (int d = 0; d < walk.ndim; d++) {
        int64_t by = walk.shape[d] > 0 ? walk.shape[d] : 1;
        places->shape[d] = walk.shape[d];
        places->long_divisor[d] = ek_cuda_long_divisor_of((uint64_t)by);
        if (places->narrow)
            places->divisor[d] = ek_cuda_divisor_of((uint32_t)by);
        for (int k = 0; k < operands; k++)
            places->stride[k][d] = walk.stride[k][d];
    }
}

void ek_cuda_places_without(ek_cuda_places *places, int operands, const ek_tensor *const *tensors,
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
    ek_cuda_places_init(places, operands, ndim, shape, strides);
}

ek_cuda_team ek_cuda_team_for(int multiprocessors, int64_t lines, int64_t size, bool inner,
                              int each)
{
    ek_cuda_team team = {.lanes = 1};
    int64_t threads = (int64_t)multiprocessors * 1024; /* fewer leave the device idle */
    if (!inner && lines >= WARP) {
        /* Neighbouring threads read neighbouring elements in any case: more lanes only if there
         * are few lines. */
        if (lines < threads && size >= WARP)
            team = (ek_cuda_team){.lanes = BLOCK / WARP, .across = true};
        return team;
    }
    each = lines < threads ? EK_CUDA_TEAM_WRITES : each;
    while (team.lanes < WARP && team.lanes * each < size)
        team.lanes *= 2;
    if (size >= 4096 || (size >= 512 && lines * WARP < threads))
        team.lanes = BLOCK;
    return team;
}

ek_cuda_team ek_cuda_team_along(int multiprocessors, const ek_cuda_places *lines, int operand,
                                int64_t size, int64_t stride, int each)
{
    int64_t next = lines->stride[operand][lines->ndim - 1];
    return ek_cuda_team_for(multiprocessors, lines->count, size, lines->count == 1 || stride < next,
                            each);
}
