/* fill.h: every element one value. */
#ifndef EK_CUDA_FILL_H
#define EK_CUDA_FILL_H

#include "cuda/queue.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* An element's bytes over and over, whatever its size. */
typedef union ek_cuda_pattern {
    uint8_t u8[16];
    uint16_t u16[8];
    uint32_t u32[4];
    uint64_t u64[2];
} ek_cuda_pattern;

/* Operand 0 becomes the pattern. The walk has at least one element; `size` bytes each. */
int ek_cuda_launch_fill(const ek_cuda_queue *queue, const ek_cuda_walk *walk, size_t size,
                        const ek_cuda_pattern *pattern);

EK_END_DECLARATIONS
#endif
