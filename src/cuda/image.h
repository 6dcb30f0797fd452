/* image.h: tensors (N, C, ...) with one to three dimensions in space, as kernels see them. Plain C
 * that C++ compiles too. */
#ifndef EK_CUDA_IMAGE_H
#define EK_CUDA_IMAGE_H

#include "cuda/view.h"
#include "kernels/formulas.h"

EK_BEGIN_DECLARATIONS

/* Division of n < 2^31 by a constant below 2^31: n / divisor = (high(n multiplier) + n) >> shift,
 * with multiplier = floor(2^32 (2^shift - divisor) / divisor) + 1 and 2^shift the first power of 2
 * that is not smaller than the divisor. A machine's division takes some 20 instructions. */
typedef struct ek_cuda_divider {
    int64_t divisor;
    uint32_t multiplier, shift;
} ek_cuda_divider;

EK_FORMULA ek_cuda_divider ek_cuda_divider_of(int64_t divisor)
{
    ek_cuda_divider by = {divisor < 1 ? 1 : divisor, 0, 0};
    if (by.divisor > INT32_MAX)
        return by;
    while (((int64_t)1 << by.shift) < by.divisor)
        by.shift++;
    uint64_t above = ((uint64_t)1 << by.shift) - (uint64_t)by.divisor;
    by.multiplier = (uint32_t)((above << 32) / (uint64_t)by.divisor + 1);
    return by;
}

typedef struct ek_cuda_image {
    void *data;
    ek_dtype dtype;
    int64_t count, plane; /* elements of all, positions of one plane */
    int64_t samples, channels;
    int64_t size[3];                        /* missing dimensions come first, with size 1 */
    int64_t by_sample, by_channel, step[3]; /* strides */
    ek_cuda_divider per_channels, per_size[3];
    bool last; /* channels are innermost in memory */
    bool even; /* position p of a plane lies at p * step[2] */
    bool wide; /* elements or distances that don't fit 31 bits */
} ek_cuda_image;

struct ek_tensor;
ek_cuda_image ek_cuda_image_of(const struct ek_tensor *tensor);

EK_END_DECLARATIONS
#endif
