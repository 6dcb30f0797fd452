/* reduce.h: sums and extremes over any set of dimensions.
 *
 * Sums go in a fixed order that depends on shape, strides and device alone. If there are fewer
 * outputs than keep the device busy, the reduced elements are cut into chunks; a second reduction
 * joins their results. */
#ifndef EK_CUDA_REDUCE_H
#define EK_CUDA_REDUCE_H

#include "cuda/places.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_cuda_reduction {
    ek_reduce_kind kind;
    ek_dtype x_dtype, out_dtype;
    const void *x;
    void *out;
    ek_cuda_places kept;    /* operands: x, out; without `columns` */
    ek_cuda_places reduced; /* operand: x */
    int64_t chunk, chunks;  /* reduced elements of a chunk; how many chunks. With more than one, out
                               is [chunk][output], row-major in the order of `kept` */
    int pack;               /* elements that one load takes: 1, or 16 bytes */

    /* The innermost dimension is kept: threads lie along it, `width` of a block side by side. */
    bool by_columns;
    int64_t columns, column_x, column_out; /* their number and strides */
    int width;

    /* Else a team of threads goes along the reduced elements: in runs of the innermost dimension,
     * or place by place if these are short. */
    ek_cuda_team team;
    bool runs;
} ek_cuda_reduction;

int ek_cuda_launch_reduce(const ek_cuda_queue *queue, const ek_cuda_reduction *reduction);

EK_END_DECLARATIONS
#endif
