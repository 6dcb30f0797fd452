/* fill.h: filling and copying. */
#ifndef EK_CUDA_FILL_H
#define EK_CUDA_FILL_H

#include "cuda/queue.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* operand 0 = value */
int ek_cuda_launch_fill(const ek_cuda_queue *queue, const ek_cuda_walk *walk, double value);

EK_END_DECLARATIONS
#endif
