/* blas_api.h: the functions of cuBLAS that are used, as a table that library.c fills. Members have
 * the functions' names. */
#ifndef EK_CUDA_BLAS_API_H
#define EK_CUDA_BLAS_API_H

#include "cuda/library.h"

#include <cublas_v2.h>

#define EK_CUBLAS_MAP(X)          \
    X(cublasCreate_v2)            \
    X(cublasDestroy_v2)           \
    X(cublasSetStream_v2)         \
    X(cublasSetWorkspace_v2)      \
    X(cublasSetMathMode)          \
    X(cublasGemmEx)               \
    X(cublasGemmStridedBatchedEx) \
    X(cublasGetStatusString)

struct ek_cublas_api {
#define EK_CUBLAS_MEMBER(name) __typeof__(name) *name;
    EK_CUBLAS_MAP(EK_CUBLAS_MEMBER)
#undef EK_CUBLAS_MEMBER
};

#endif
