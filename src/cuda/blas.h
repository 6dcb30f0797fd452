/* blas.h: matrix products by cuBLAS: its handle and workspace, made with the device's first product
 * and kept under ek_cuda_device.lock. */
#ifndef EK_CUDA_BLAS_H
#define EK_CUDA_BLAS_H

#include "cuda/gemm_direct.h"
#include "cuda/runtime.h"

/* An operand has an element's neighbour in one of its two directions, and rows (or columns) that
 * don't overlap: what cuBLAS can read. */
bool ek_cuda_blas_reads(const ek_cuda_matrices *matrices, int64_t rows, int64_t columns);

/* 1 if the device has cuBLAS (the handle is made), 0 if not, negative on error. Between
 * ek_cuda_begin and ek_cuda_end. */
int ek_cuda_blas_has(ek_dev *dev);

/* Issues the product (without bias). All three operands are readable as above and none is empty; k
 * is above 0. 1 when issued, 0 if there is no cuBLAS or a size is beyond it; negative on error.
 * As above. */
int ek_cuda_blas_gemm(ek_dev *dev, const ek_cuda_gemm *gemm);

#endif
