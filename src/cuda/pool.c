/* pool.c: the geometry of pooling. */
#include "cuda/pool.h"

#include "core/tensor.h"

/* Far enough from the limits that positions of windows can't pass them. */
static bool is_wide(const ek_cuda_pool *pool)
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

int ek_cuda_pool_of(ek_cuda_pool *pool, const ek_tensor *x, const ek_tensor *y,
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
    pool->wide = is_wide(pool);
    if (pool->x.plane > INT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "pooling over planes of %lld positions; at most %d are possible",
                       (long long)pool->x.plane, INT32_MAX);
    return 0;
}
