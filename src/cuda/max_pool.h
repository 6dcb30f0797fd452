/* max_pool.h: launchers of max pooling. */
#ifndef EK_CUDA_MAX_POOL_H
#define EK_CUDA_MAX_POOL_H

#include "cuda/pool.h"

EK_BEGIN_DECLARATIONS

int ek_cuda_launch_max_forward(const ek_cuda_queue *queue, const ek_cuda_pool *pool);
/* x = sum of y at index, in the order of y; one rounding of bf16. y has an element. */
int ek_cuda_launch_max_gradient(const ek_cuda_queue *queue, const ek_cuda_pool *pool,
                                const char *operation);
int ek_cuda_launch_max_gather(const ek_cuda_queue *queue, const ek_cuda_pool *pool,
                              const char *operation);

EK_END_DECLARATIONS
#endif
