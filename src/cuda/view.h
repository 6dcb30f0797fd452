/* view.h: tensors as kernels see them: small structs that are passed by value. Plain C that C++
 * compiles too. Sizes and strides count elements. */
#ifndef EK_CUDA_VIEW_H
#define EK_CUDA_VIEW_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/* One tensor. */
typedef struct ek_cuda_view {
    void *data; /* the first element */
    ek_dtype dtype;
    int ndim;
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_MAX_DIMS];
} ek_cuda_view;

enum { EK_CUDA_OPERANDS = 6 };

/* Several tensors of one shape, visited together: dimensions sorted and joined as kernels/walk.h
 * says; the last is the innermost. */
typedef struct ek_cuda_walk {
    int ndim, operands;
    int64_t count;
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_CUDA_OPERANDS][EK_MAX_DIMS];
    void *data[EK_CUDA_OPERANDS];
    ek_dtype dtype[EK_CUDA_OPERANDS];
    bool flat; /* every operand is one run of stride 1 */
} ek_cuda_walk;

EK_END_DECLARATIONS
#endif
