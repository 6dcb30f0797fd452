/* image.h: tensors (N, C, ...) with one to three dimensions in space, as kernels see them. Plain C
 * that C++ compiles too. */
#ifndef EK_CUDA_IMAGE_H
#define EK_CUDA_IMAGE_H

#include "cuda/divide.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* Of positions below 2^31, with `narrow`, or of any. At least 1. */
typedef struct ek_cuda_divider {
    int64_t by;
    ek_cuda_divisor narrow; /* where `by` is below 2^31 itself */
} ek_cuda_divider;

EK_FORMULA ek_cuda_divider ek_cuda_divider_of(int64_t by)
{
    ek_cuda_divider divider = {by < 1 ? 1 : by, {0, 0, 0}};
    if (divider.by <= INT32_MAX)
        divider.narrow = ek_cuda_divisor_of((uint32_t)divider.by);
    return divider;
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
