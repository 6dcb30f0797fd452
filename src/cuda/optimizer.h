/* optimizer.h: steps of several parameters in one launch. */
#ifndef EK_CUDA_OPTIMIZER_H
#define EK_CUDA_OPTIMIZER_H

#include "cuda/queue.h"
#include "cuda/view.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

enum {
    EK_CUDA_STEP_TENSORS = 64, /* of one launch; the list travels with it */
    EK_CUDA_STEP_CHUNK = 4096, /* elements that one block steps */
    EK_CUDA_STEP_DATA = 5
};

/* Parameter t is stepped by blocks [first[t], first[t + 1]). */
typedef struct ek_cuda_step_list {
    int count;
    uint32_t first[EK_CUDA_STEP_TENSORS + 1];
    int64_t elements[EK_CUDA_STEP_TENSORS];
    /* Parameters, gradients, states; NULL where the options need none. */
    void *data[EK_CUDA_STEP_DATA][EK_CUDA_STEP_TENSORS];
} ek_cuda_step_list;

/* dtype: f32 or f64. */
int ek_cuda_launch_sgd(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_step_list *list,
                       const ek_sgd_params *params);
int ek_cuda_launch_adam(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_step_list *list,
                        const ek_adam_params *params);

EK_END_DECLARATIONS
#endif
