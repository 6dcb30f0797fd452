/* add_n.h: sums of many tensors of one layout. */
#ifndef EK_CUDA_ADD_N_H
#define EK_CUDA_ADD_N_H

#include "cuda/queue.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

enum { EK_CUDA_ADDENDS = 128 }; /* of one launch; the table travels with it */

typedef struct ek_cuda_addends {
    int count;
    const void *data[EK_CUDA_ADDENDS];
} ek_cuda_addends;

/* out = the sum of the addends, in their order; `count` elements, at least one, of each. */
int ek_cuda_launch_add_n(const ek_cuda_queue *queue, ek_dtype dtype, void *out,
                         const ek_cuda_addends *addends, int64_t count);

EK_END_DECLARATIONS
#endif
