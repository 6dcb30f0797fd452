/* add_n.h: sums of many tensors of one layout. */
#ifndef EK_CUDA_ADD_N_H
#define EK_CUDA_ADD_N_H

#include "cuda/list.h"
#include "cuda/queue.h"

EK_BEGIN_DECLARATIONS

/* The first operand of each place = the sum of the others, in their order; it may be the second. */
int ek_cuda_launch_add_n(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_list *list);

EK_END_DECLARATIONS
#endif
