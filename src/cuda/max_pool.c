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

/* dx is zero. */
static int add_at_index(ek_dev *dev, const ek_tensor *dx, const ek_tensor *dy,
                        const ek_tensor *index)
{
    static const char operation[] = "max_pool_gradient";
    ek_cuda_queue queue;
    ek_cuda_pool pool;
    EK_TRY(ek_cuda_pool_of(&pool, dx, dy, index, NULL));
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, operation,
                       ek_cuda_launch_max_gradient(&queue, &pool, operation));
}

/* Sums of bf16 are made in f32 and rounded once. */
int ek_cuda_max_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_tensor *index)
{
    bool keep = dx->dtype != EK_BF16;
    ek_memory_format format = ek_cuda_image_of(dx).last ? EK_CHANNELS_LAST : EK_CONTIGUOUS;
    ek_cuda_stage stage;
    EK_TRY(ek_cuda_stage_begin(&stage, dev, dx, keep ? dx->dtype : EK_F32, format, keep, false));
    int rc = ek_cuda_fill(dev, stage.tensor, 0);
    if (rc >= 0)
        rc = add_at_index(dev, stage.tensor, dy, index);
    return ek_cuda_stage_end(&stage, dev, dx, true, rc);
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
