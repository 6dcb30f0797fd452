/* library.h: NVIDIA's libraries, opened at run time with their first use, so that the program
 * starts, and computes on the host, if they are missing.
 *
 * They are looked for in the folders that EVENKEEL_CUDA_LIBRARIES lists (separated by colons), then
 * where the system's loader looks, then in the toolkit's usual folder. Those that
 * EVENKEEL_CUDA_WITHOUT lists ("cublas,cudnn,nccl") are treated as missing. */
#ifndef EK_CUDA_LIBRARY_H
#define EK_CUDA_LIBRARY_H

#include "evenkeel/base.h"

/* Which headers this build has seen; the emulator brings its own. */
#define EK_HAVE_CUBLAS
#ifdef EK_WITH_CUDNN
#define EK_HAVE_CUDNN
#endif
#if defined(EK_WITH_NCCL) || defined(EK_CUDA_EMULATED)
#define EK_HAVE_NCCL
#endif

/* Defined in blas_api.h, dnn_api.h and nccl_api.h, where the headers are. */
typedef struct ek_cublas_api ek_cublas_api;
typedef struct ek_cudnn_api ek_cudnn_api;
typedef struct ek_nccl_api ek_nccl_api;

/* The library's functions, or NULL if it cannot be had; then the _reason is part of a sentence
 * ("cuBLAS cannot be used: ..."), else NULL. The same for the life of the process. Any thread. */
const ek_cublas_api *ek_cublas(void);
const char *ek_cublas_reason(void);
const ek_cudnn_api *ek_cudnn(void);
const char *ek_cudnn_reason(void);
const ek_nccl_api *ek_nccl(void);
const char *ek_nccl_reason(void);

#endif
