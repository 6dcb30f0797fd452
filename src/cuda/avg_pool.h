/* avg_pool.h: launchers of average pooling, by windows or adaptive. */
#ifndef EK_CUDA_AVG_POOL_H
#define EK_CUDA_AVG_POOL_H

#include "cuda/pool.h"

EK_BEGIN_DECLARATIONS

int ek_cuda_launch_avg_forward(const ek_cuda_queue *queue, const ek_cuda_pool *pool);
int ek_cuda_launch_avg_gradient(const ek_cuda_queue *queue, const ek_cuda_pool *pool);

EK_END_DECLARATIONS
#endif
