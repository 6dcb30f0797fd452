/* pool.c: average and max pooling, adaptive or by windows, and their gradients. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

/* Returns true if positions of windows may need 64 bits. The limits are well below 2^31. */
static bool pool_is_wide(const ek_cuda_pool *pool)
{
    bool wide = pool->x.wide || pool->y.wide || pool->index.wide;
    for (int d = 0; d < 3; d++) {
        double in = (double)pool->x.size[d], out = (double)pool->y.size[d];
        double reach = in + out * (double)pool->stride[d] + (double)pool->padding[d] +
                       (double)pool->kernel[d] * (double)pool->dilation[d];
        wide = wide || reach >= 1 << 30 || (in + 1) * (out + 1) >= 1 << 30;
    }
    return wide;
}

/* Fills *pool. params is NULL for adaptive pooling, and for kernels that don't read windows. index
 * may be NULL. Fails if a plane has more positions than an int32_t counts. */
static int pool_of(ek_cuda_pool *pool, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *index, const ek_pool_params *params)
{
    *pool = (ek_cuda_pool){.x = ek_cuda_image_of(x),
                           .y = ek_cuda_image_of(y),
                           .adaptive = !params,
                           .count_include_pad = params && params->count_include_pad};
    if (index)
        pool->index = ek_cuda_image_of(index);
    int missing = 3 - (x->ndim - 2);
    for (int i = 0; i < 3; i++) {
        int d = i - missing;
        bool real = d >= 0 && params;
        pool->kernel[i] = real ? params->kernel[d] : 1;
        pool->stride[i] = real ? params->stride[d] : 1;
        pool->padding[i] = real ? params->padding[d] : 0;
        pool->dilation[i] = real && params->dilation[d] > 1 ? params->dilation[d] : 1;
        pool->per_stride[i] = ek_cuda_divider_of(pool->stride[i]);
    }
    pool->wide = pool_is_wide(pool);
    if (pool->x.plane > INT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "pooling over planes of %lld positions; at most %d are possible",
                       (long long)pool->x.plane, INT32_MAX);
    return 0;
}

typedef int pool_launch(const ek_cuda_stream *stream, const ek_cuda_pool *pool);

/* Launches a kernel. x and y may be gradients. */
static int pool_run(ek_dev *dev, const char *operation, pool_launch *launch, const ek_tensor *x,
                    const ek_tensor *y, const ek_tensor *index, const ek_pool_params *params)
{
    ek_cuda_pool pool;
    EK_TRY(pool_of(&pool, x, y, index, params));
    pool.operation = operation;
    EK_CUDA_RUN(dev, operation, launch(&stream, &pool));
}

int ek_cuda_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                             const ek_pool_params *params)
{
    return pool_run(dev, "avg_pool_forward", ek_cuda_launch_avg_forward, x, y, NULL, params);
}

int ek_cuda_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_pool_params *params)
{
    return pool_run(dev, "avg_pool_gradient", ek_cuda_launch_avg_gradient, dx, dy, NULL, params);
}

int ek_cuda_adaptive_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x)
{
    return pool_run(dev, "adaptive_avg_pool_forward", ek_cuda_launch_avg_forward, x, y, NULL, NULL);
}

int ek_cuda_adaptive_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy)
{
    return pool_run(dev, "adaptive_avg_pool_gradient", ek_cuda_launch_avg_gradient, dx, dy, NULL,
                    NULL);
}

int ek_cuda_max_pool_forward(ek_dev *dev, ek_tensor *y, ek_tensor *index, const ek_tensor *x,
                             const ek_pool_params *params)
{
    return pool_run(dev, "max_pool_forward", ek_cuda_launch_max_forward, x, y, index, params);
}

int ek_cuda_max_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_tensor *index, const ek_pool_params *params)
{
    if (ek_count(dy) == 0)
        return ek_cuda_fill(dev, dx, 0);
    return pool_run(dev, "max_pool_gradient", ek_cuda_launch_max_gradient, dx, dy, index, params);
}

int ek_cuda_max_pool_gather(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *index)
{
    return pool_run(dev, "max_pool_gather", ek_cuda_launch_max_gather, x, y, index, NULL);
}
