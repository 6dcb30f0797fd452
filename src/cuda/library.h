/* library.h: NVIDIA's libraries, which are opened at run time with their first use, so that the
 * program starts and computes on the host if they are missing.
 *
 * They are looked for in the folders that EVENKEEL_CUDA_LIBRARIES lists (separated by colons), then
 * where the system's loader looks, then in the toolkit's usual folder. Libraries that
 * EVENKEEL_CUDA_WITHOUT lists ("cublas,cublaslt,cudnn,nccl") are treated as missing. */
#ifndef EK_CUDA_LIBRARY_H
#define EK_CUDA_LIBRARY_H

#include <cublasLt.h>
#include <cublas_v2.h>

#include "evenkeel/base.h"

/* The libraries whose headers this build has; the emulator has headers of its own. */
#if defined(EK_WITH_CUDNN) || defined(EK_CUDA_EMULATED)
#define EK_HAVE_CUDNN
#endif
#if defined(EK_WITH_NCCL) || defined(EK_CUDA_EMULATED)
#define EK_HAVE_NCCL
#endif

#ifdef EK_HAVE_CUDNN
#include <cudnn.h>
#endif
#ifdef EK_HAVE_NCCL
#include <nccl.h>
#endif

/* Tables of the functions in use, which library.c fills. Members are named after the functions. */
typedef struct ek_cublas_api ek_cublas_api;
typedef struct ek_cublaslt_api ek_cublaslt_api;
typedef struct ek_cudnn_api ek_cudnn_api;
typedef struct ek_nccl_api ek_nccl_api;

#define EK_LIBRARY_MEMBER(name) __typeof__(name) *name;

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
    EK_CUBLAS_MAP(EK_LIBRARY_MEMBER)
};

#define EK_CUBLASLT_MAP(X)                  \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmul)

struct ek_cublaslt_api {
    EK_CUBLASLT_MAP(EK_LIBRARY_MEMBER)
};

#ifdef EK_HAVE_CUDNN
/* clang-format off */
#define EK_CUDNN_MAP(X) \
    X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetVersion) \
    X(cudnnGetErrorString) X(cudnnGetLastErrorString) \
    X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) \
    X(cudnnBackendFinalize) X(cudnnBackendExecute) \
    X(cudnnCreateTensorDescriptor) X(cudnnSetTensorNdDescriptor) X(cudnnDestroyTensorDescriptor) \
    X(cudnnCreateDropoutDescriptor) X(cudnnSetDropoutDescriptor) X(cudnnDestroyDropoutDescriptor) \
    X(cudnnCreateRNNDescriptor) X(cudnnSetRNNDescriptor_v8) X(cudnnDestroyRNNDescriptor) \
    X(cudnnCreateRNNDataDescriptor) X(cudnnSetRNNDataDescriptor) X(cudnnDestroyRNNDataDescriptor) \
    X(cudnnGetRNNTempSpaceSizes) X(cudnnGetRNNWeightSpaceSize) X(cudnnGetRNNWeightParams) \
    X(cudnnRNNForward) X(cudnnRNNBackwardData_v8) X(cudnnRNNBackwardWeights_v8)
/* clang-format on */

struct ek_cudnn_api {
    EK_CUDNN_MAP(EK_LIBRARY_MEMBER)
};
#endif

#ifdef EK_HAVE_NCCL
#define EK_NCCL_MAP(X)        \
    X(ncclGetErrorString)     \
    X(ncclCommInitAll)        \
    X(ncclCommInitRankConfig) \
    X(ncclGetUniqueId)        \
    X(ncclGetVersion)         \
    X(ncclCommDestroy)        \
    X(ncclCommAbort)          \
    X(ncclCommGetAsyncError)  \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)           \
    X(ncclSend)               \
    X(ncclRecv)               \
    X(ncclBroadcast)          \
    X(ncclReduce)             \
    X(ncclAllReduce)

struct ek_nccl_api {
    EK_NCCL_MAP(EK_LIBRARY_MEMBER)
};
#endif

/* Checks the environment variables that choose libraries or print their plans. */
int ek_cuda_read_settings(void);

/* Return the library's functions; NULL if the library can't be used. ek_x_reason then returns the
 * reason as part of a sentence ("cuBLAS cannot be used: ..."), else NULL. Both results never
 * change. Any thread. */
const ek_cublas_api *ek_cublas(void);
const char *ek_cublas_reason(void);
const ek_cublaslt_api *ek_cublaslt(void);
const char *ek_cublaslt_reason(void);
const ek_cudnn_api *ek_cudnn(void);
const char *ek_cudnn_reason(void);
const ek_nccl_api *ek_nccl(void);
const char *ek_nccl_reason(void);

#endif
