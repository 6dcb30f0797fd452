/* matmul.h: products with an epilogue by cuBLASLt (matmul_lt.c), for matmul.c. */
#ifndef EK_CUDA_MATMUL_H
#define EK_CUDA_MATMUL_H

#include "cuda/library.h"
#include "cuda/runtime.h"

/* One operand as cuBLAS takes it. */
typedef struct ek_cuda_operand {
    const void *data;
    cublasOperation_t transpose;
    int64_t leading;
} ek_cuda_operand;

/* A product, columns first: d (m, n) = a (m, k) b (k, n). */
typedef struct ek_cuda_product {
    cudaDataType type; /* of all three */
    cublasComputeType_t compute;
    int m, n, k;
    ek_cuda_operand a, b;
    void *d;
    int64_t leading;
    /* The epilogue and its vector, which is contiguous and has the products' type: a bias (m); for
     * BGRADA and BGRADB the sums over k of a (m) or b (n). NULL if the epilogue needs none. */
    cublasLtEpilogue_t epilogue;
    void *vector;
} ek_cuda_product;

/* cuBLASLt of one device, with the plans that its heuristic has chosen, one for each problem.
 * Guarded by ek_cuda_device.lock. */
typedef struct ek_cuda_lt ek_cuda_lt;

/* Returns cuBLASLt; NULL if it can't be used or memory is short. `workspace`, which the caller
 * owns, is aligned to 256 bytes. */
ek_cuda_lt *ek_cuda_lt_open(ek_dev *dev, void *workspace, size_t nbytes);
void ek_cuda_lt_close(ek_cuda_lt *lt);

/* Issues the product. Returns NOT_SUPPORTED or ALLOC_FAILED if it must be computed otherwise. */
cublasStatus_t ek_cuda_lt_issue(ek_cuda_lt *lt, const ek_cuda_product *product);

#endif
