/* cross_entropy.h: cross entropy over one dimension, its gradient, and the weight of targets. */
#ifndef EK_CUDA_CROSS_ENTROPY_H
#define EK_CUDA_CROSS_ENTROPY_H

#include "cuda/places.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

/* Values whose dtype the kernel looks at. */
typedef struct ek_cuda_values {
    void *data; /* NULL: there are none, and each is 1 */
    ek_dtype dtype;
} ek_cuda_values;

typedef struct ek_cuda_entropy_job {
    ek_cross_entropy_params params;
    ek_dtype dtype; /* of x and dx */
    const void *x;
    void *dx;
    const int64_t *target;
    ek_cuda_values loss, lse; /* `loss` is the arriving gradient in the gradient */
    ek_cuda_values weight;
    int64_t weight_stride;
    ek_cuda_places lines; /* operands: x, target, loss, lse, dx */
    int64_t classes, stride_x, stride_dx;
    ek_cuda_team team;
} ek_cuda_entropy_job;

int ek_cuda_launch_cross_entropy(const ek_cuda_queue *queue, const ek_cuda_entropy_job *job);
int ek_cuda_launch_cross_entropy_gradient(const ek_cuda_queue *queue,
                                          const ek_cuda_entropy_job *job);

enum { EK_CUDA_TARGET_BLOCK = 16384 /* targets that one block weighs */ };

typedef struct ek_cuda_target_job {
    const int64_t *target;
    ek_cuda_places places; /* operand: target */
    ek_cuda_values weight, out;
    int64_t weight_stride, classes, ignore_index;
    double *partial; /* one per block; NULL if there is one */
    int64_t blocks;
} ek_cuda_target_job;

int ek_cuda_launch_target_weight(const ek_cuda_queue *queue, const ek_cuda_target_job *job);

EK_END_DECLARATIONS
#endif
