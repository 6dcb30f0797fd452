/* avg_pool.c: average pooling, adaptive or by windows, and its gradient. */
#include "cuda/avg_pool.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

static int forward(ek_dev *dev, const char *operation, const ek_tensor *y, const ek_tensor *x,
                   const ek_pool_params *params)
{
    ek_cuda_queue queue;
    ek_cuda_pool pool;
    EK_TRY(ek_cuda_pool_of(&pool, x, y, NULL, params));
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, operation, ek_cuda_launch_avg_forward(&queue, &pool));
}

static int gradient(ek_dev *dev, const char *operation, const ek_tensor *dx, const ek_tensor *dy,
                    const ek_pool_params *params)
{
    ek_cuda_queue queue;
    ek_cuda_pool pool;
    EK_TRY(ek_cuda_pool_of(&pool, dx, dy, NULL, params));
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, operation, ek_cuda_launch_avg_gradient(&queue, &pool));
}

int ek_cuda_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                             const ek_pool_params *params)
{
    return forward(dev, "avg_pool_forward", y, x, params);
}

int ek_cuda_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_pool_params *params)
{
    return gradient(dev, "avg_pool_gradient", dx, dy, params);
}

int ek_cuda_adaptive_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x)
{
    return forward(dev, "adaptive_avg_pool_forward", y, x, NULL);
}

int ek_cuda_adaptive_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy)
{
    return gradient(dev, "adaptive_avg_pool_gradient", dx, dy, NULL);
}
