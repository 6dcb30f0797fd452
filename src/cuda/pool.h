/* pool.h: what the pooling kernels are told: two images and the windows between them. */
#ifndef EK_CUDA_POOL_H
#define EK_CUDA_POOL_H

#include "cuda/image.h"
#include "cuda/queue.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_cuda_pool {
    ek_cuda_image x, y; /* or their gradients */
    ek_cuda_image index;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    ek_cuda_divider per_stride[3];
    bool adaptive; /* windows by the sizes alone */
    bool count_include_pad;
    bool wide; /* for 64-bit arithmetic */
} ek_cuda_pool;

/* params NULL: adaptive, or windows that don't matter; index may be NULL. Fails for planes of more
 * positions than an int32_t counts. */
int ek_cuda_pool_of(ek_cuda_pool *pool, const struct ek_tensor *x, const struct ek_tensor *y,
                    const struct ek_tensor *index, const ek_pool_params *params);

EK_END_DECLARATIONS
#endif
