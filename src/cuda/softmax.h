/* softmax.h: softmax and log-softmax along one dimension, and their gradients. */
#ifndef EK_CUDA_SOFTMAX_H
#define EK_CUDA_SOFTMAX_H

#include "cuda/places.h"

EK_BEGIN_DECLARATIONS

enum { EK_CUDA_SOFTMAX_OPERANDS = 3 };

typedef struct ek_cuda_softmax_job {
    bool logarithm;
    ek_dtype dtype;
    void *out;                                      /* y, or dx */
    const void *a, *b;                              /* x, or dy and y */
    ek_cuda_places lines;                           /* operands: out, a, b */
    int64_t size, stride[EK_CUDA_SOFTMAX_OPERANDS]; /* of the dimension */
    ek_cuda_team team;
} ek_cuda_softmax_job;

int ek_cuda_launch_softmax(const ek_cuda_queue *queue, const ek_cuda_softmax_job *job);
int ek_cuda_launch_softmax_gradient(const ek_cuda_queue *queue, const ek_cuda_softmax_job *job);

EK_END_DECLARATIONS
#endif
