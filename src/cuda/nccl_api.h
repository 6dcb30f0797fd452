/* nccl_api.h: the functions of NCCL that are used, as a table that library.c fills. Members have
 * the functions' names. */
#ifndef EK_CUDA_NCCL_API_H
#define EK_CUDA_NCCL_API_H

#include "cuda/library.h"

#ifdef EK_HAVE_NCCL
#include <nccl.h>

#define EK_NCCL_MAP(X)       \
    X(ncclGetErrorString)    \
    X(ncclCommInitAll)       \
    X(ncclCommDestroy)       \
    X(ncclCommAbort)         \
    X(ncclCommGetAsyncError) \
    X(ncclGroupStart)        \
    X(ncclGroupEnd)          \
    X(ncclSend)              \
    X(ncclRecv)              \
    X(ncclBroadcast)         \
    X(ncclReduce)

struct ek_nccl_api {
#define EK_NCCL_MEMBER(name) __typeof__(name) *name;
    EK_NCCL_MAP(EK_NCCL_MEMBER)
#undef EK_NCCL_MEMBER
};
#endif

#endif
