/* elementwise.h: operations on each element. Walks have at least one element; operand 0 is the
 * output. */
#ifndef EK_CUDA_ELEMENTWISE_H
#define EK_CUDA_ELEMENTWISE_H

#include "cuda/queue.h"
#include "cuda/view.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

/* Computed as operand 1's dtype is: integers have some operations only. */
int ek_cuda_launch_unary(const ek_cuda_queue *queue, ek_unary op, const ek_cuda_walk *walk,
                         double a, double b);
int ek_cuda_launch_binary(const ek_cuda_queue *queue, ek_binary op, const ek_cuda_walk *walk,
                          double a);
int ek_cuda_launch_compare(const ek_cuda_queue *queue, ek_compare op, const ek_cuda_walk *walk);

/* Operand 1 is the condition. Computed as the output's dtype is. */
int ek_cuda_launch_where(const ek_cuda_queue *queue, const ek_cuda_walk *walk);

EK_END_DECLARATIONS
#endif
