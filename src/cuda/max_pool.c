/* max_pool.c: max pooling, its gradient, and the gradient's adjoint. */
#include "cuda/max_pool.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

int ek_cuda_max_pool_forward(ek_dev *dev, ek_tensor *y, ek_tensor *index, const ek_tensor *x,
                             const ek_pool_params *params)
{
    ek_cuda_queue queue;
    ek_cuda_pool pool;
    EK_TRY(ek_cuda_pool_of(&pool, x, y, index, params));
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, "max_pool_forward", ek_cuda_launch_max_forward(&queue, &pool));
}

int ek_cuda_max_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_tensor *index, const ek_pool_params *params)
{
    static const char operation[] = "max_pool_gradient";
    ek_cuda_queue queue;
    ek_cuda_pool pool;
    if (ek_count(dy) == 0)
        return ek_cuda_fill(dev, dx, 0);
    EK_TRY(ek_cuda_pool_of(&pool, dx, dy, index, params));
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, operation,
                       ek_cuda_launch_max_gradient(&queue, &pool, operation));
}

int ek_cuda_max_pool_gather(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *index)
{
    static const char operation[] = "max_pool_gather";
    ek_cuda_queue queue;
    ek_cuda_pool pool;
    EK_TRY(ek_cuda_pool_of(&pool, x, y, index, NULL));
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, operation, ek_cuda_launch_max_gather(&queue, &pool, operation));
}
