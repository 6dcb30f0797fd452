/* arg_reduce.h: position of the largest or smallest along one dimension. */
#ifndef EK_CUDA_ARG_REDUCE_H
#define EK_CUDA_ARG_REDUCE_H

#include "cuda/places.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_cuda_arg_job {
    bool smallest;
    ek_dtype dtype;
    const void *x;
    int64_t *index;
    ek_cuda_places lines; /* operands: index, x */
    int64_t size, stride; /* of x along the dimension */
    ek_cuda_team team;
} ek_cuda_arg_job;

int ek_cuda_launch_arg_reduce(const ek_cuda_queue *queue, const ek_cuda_arg_job *job);

EK_END_DECLARATIONS
#endif
