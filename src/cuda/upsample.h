/* upsample.h: launchers of upsampling. */
#ifndef EK_CUDA_UPSAMPLE_H
#define EK_CUDA_UPSAMPLE_H

#include "cuda/image.h"
#include "cuda/queue.h"

EK_BEGIN_DECLARATIONS

/* `small` is the side before upsampling, `large` after, whichever is larger. */
typedef struct ek_cuda_upsample {
    ek_cuda_image small, large;
    /* Steps in `small` per step in `large`, rounded to what positions are computed in; and large
     * size / small size. Height, width. */
    double scale[2], inverse[2];
    bool bilinear, align_corners;
    bool wide;
} ek_cuda_upsample;

/* large from small; and the adjoint. */
int ek_cuda_launch_upsample_forward(const ek_cuda_queue *queue, const ek_cuda_upsample *job);
int ek_cuda_launch_upsample_gradient(const ek_cuda_queue *queue, const ek_cuda_upsample *job);

EK_END_DECLARATIONS
#endif
