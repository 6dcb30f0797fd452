/* list.h: several tensors in one launch: each is cut into chunks, one for a block. Plain C that C++
 * compiles too. */
#ifndef EK_CUDA_LIST_H
#define EK_CUDA_LIST_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

enum {
    EK_CUDA_LIST_TENSORS = 64, /* of one launch at the most; the list travels with it */
    EK_CUDA_LIST_DATA = 320,   /* their operands in all */
    EK_CUDA_LIST_CHUNK = 4096  /* elements */
};

/* `operands` dense tensors of one layout for each of `count` places; operand k of place t is
 * data[t * operands + k]. Blocks [first[t], first[t + 1]) work on place t. */
typedef struct ek_cuda_list {
    int count, operands;
    uint32_t first[EK_CUDA_LIST_TENSORS + 1];
    int64_t elements[EK_CUDA_LIST_TENSORS];
    void *data[EK_CUDA_LIST_DATA];
} ek_cuda_list;

/* The next place, of `elements` of each operand, which go into the `operands` addresses that are
 * returned. NULL if the list is full: it is launched, and the next one begun. */
static inline void **ek_cuda_list_add(ek_cuda_list *list, int64_t elements)
{
    int at = list->count;
    int64_t blocks = (elements + EK_CUDA_LIST_CHUNK - 1) / EK_CUDA_LIST_CHUNK;
    bool room = at < EK_CUDA_LIST_TENSORS && (at + 1) * list->operands <= EK_CUDA_LIST_DATA;
    if (!room || (at > 0 && list->first[at] + blocks > INT32_MAX))
        return NULL;
    list->elements[at] = elements;
    list->first[at + 1] = list->first[at] + (uint32_t)blocks;
    list->count++;
    return list->data + at * list->operands;
}

EK_END_DECLARATIONS
#endif
