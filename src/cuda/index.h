/* index.h: selecting and adding at positions along one dimension. */
#ifndef EK_CUDA_INDEX_H
#define EK_CUDA_INDEX_H

#include "cuda/places.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_cuda_index_job {
    const char *operation;
    void *out;
    const void *x;
    const int64_t *index;
    int64_t size;   /* of the dimension that index addresses */
    int64_t stride; /* of what index addresses, along it */

    /* Operands: out, x, index. What index addresses does not move along the dimension. In fixed
     * order of additions these are the lines along the dimension only, `line` elements each, x and
     * index with these strides. */
    ek_cuda_places places;
    int64_t line, line_x, line_index;
} ek_cuda_index_job;

/* out = x at index, for elements of 1, 2, 4, 8 or 16 bytes. */
int ek_cuda_launch_gather(const ek_cuda_queue *queue, const ek_cuda_index_job *job, int nbytes);
/* out at index += x, f32 or f64: in the order of arrival, or ascending in x. */
int ek_cuda_launch_scatter(const ek_cuda_queue *queue, const ek_cuda_index_job *job,
                           ek_dtype dtype);
int ek_cuda_launch_scatter_lines(const ek_cuda_queue *queue, const ek_cuda_index_job *job,
                                 ek_dtype dtype);

EK_END_DECLARATIONS
#endif
