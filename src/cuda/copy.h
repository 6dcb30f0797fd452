/* copy.h: copies between two layouts or dtypes. */
#ifndef EK_CUDA_COPY_H
#define EK_CUDA_COPY_H

#include "cuda/queue.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* Operand 0 becomes operand 1. The walk has at least one element. */

/* Of one dtype, of `size` bytes an element. */
int ek_cuda_launch_copy(const ek_cuda_queue *queue, const ek_cuda_walk *walk, size_t size);
int ek_cuda_launch_convert(const ek_cuda_queue *queue, const ek_cuda_walk *walk);

EK_END_DECLARATIONS
#endif
