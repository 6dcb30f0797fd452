/* optimizer.h: steps of several parameters in one launch. */
#ifndef EK_CUDA_OPTIMIZER_H
#define EK_CUDA_OPTIMIZER_H

#include "cuda/list.h"
#include "cuda/queue.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

/* Places are parameters; operands: the parameter, its gradient, and the states of the options.
 * dtype: f32 or f64. */
int ek_cuda_launch_sgd(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_list *list,
                       const ek_sgd_params *params);
int ek_cuda_launch_adam(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_list *list,
                        const ek_adam_params *params);

EK_END_DECLARATIONS
#endif
