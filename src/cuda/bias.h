/* bias.h: a bias on the channels of a convolution's output. */
#ifndef EK_CUDA_BIAS_H
#define EK_CUDA_BIAS_H

#include "cuda/queue.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* y[i] += bias[i / inner % channels] over `count` contiguous elements of a floating dtype: inner is
 * 1 in channels-last memory, and the size of a plane in row-major memory. */
int ek_cuda_launch_bias(const ek_cuda_queue *queue, ek_dtype dtype, void *y, const void *bias,
                        int64_t bias_stride, int64_t count, int64_t inner, int64_t channels);

EK_END_DECLARATIONS
#endif
