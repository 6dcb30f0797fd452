/* gemm_direct.h: matrix products by a kernel of our own: any strides and sizes, where cuBLAS cannot
 * be opened or has no layout for the operands. */
#ifndef EK_CUDA_GEMM_DIRECT_H
#define EK_CUDA_GEMM_DIRECT_H

#include "cuda/queue.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* Matrices in memory; strides count elements. */
typedef struct ek_cuda_matrices {
    void *data;
    int64_t batch, row, column;
} ek_cuda_matrices;

/* out (batch, n, m) = x (batch, n, k) y (batch, k, m) + bias (m, or data NULL), added to what is in
 * out with `accumulate`. All of one floating dtype; bf16 is summed in f32 and rounded once. */
typedef struct ek_cuda_gemm {
    ek_dtype dtype;
    int64_t batch, n, m, k;
    ek_cuda_matrices x, y, out;
    ek_cuda_matrices bias; /* its `column` is the stride */
    bool accumulate;
} ek_cuda_gemm;

int ek_cuda_launch_gemm_direct(const ek_cuda_queue *queue, const ek_cuda_gemm *gemm);

EK_END_DECLARATIONS
#endif
