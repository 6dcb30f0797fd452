/* list.cuh: a block's part of a list. */
#ifndef EK_CUDA_LIST_CUH
#define EK_CUDA_LIST_CUH

#include "cuda/launch.cuh"
#include "cuda/list.h"

struct ek_list_part {
    void *const *data; /* the operands, one after the other */
    int64_t begin, end;
    int64_t vectors_end; /* vectors of 16 bytes of all operands can be read from begin to here */
};

/* `size`: bytes of an element, of all operands. */
static __device__ __forceinline__ ek_list_part ek_list_part_of(const ek_cuda_list &list, int size)
{
    int at = 0; /* the last place whose first block is not after this one */
    for (int above = list.count; above - at > 1;) {
        int middle = (at + above) / 2;
        if (list.first[middle] <= blockIdx.x)
            at = middle;
        else
            above = middle;
    }
    ek_list_part part;
    part.data = list.data + at * list.operands;
    part.begin = (int64_t)(blockIdx.x - list.first[at]) * EK_CUDA_LIST_CHUNK;
    part.end = list.elements[at];
    if (part.end - part.begin > EK_CUDA_LIST_CHUNK)
        part.end = part.begin + EK_CUDA_LIST_CHUNK;
    uintptr_t addresses = 0;
    for (int k = 0; k < list.operands; k++)
        addresses |= (uintptr_t)part.data[k];
    int64_t vector = 16 / size;
    part.vectors_end =
        addresses % 16 == 0 ? part.begin + (part.end - part.begin) / vector * vector : part.begin;
    return part;
}

#endif
