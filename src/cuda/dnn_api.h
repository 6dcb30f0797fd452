/* dnn_api.h: the functions of cuDNN that are used, as a table that library.c fills. Members have
 * the functions' names. */
#ifndef EK_CUDA_DNN_API_H
#define EK_CUDA_DNN_API_H

#include "cuda/library.h"

#ifdef EK_HAVE_CUDNN
#include <cudnn.h>

#define EK_CUDNN_MAP(X)              \
    X(cudnnCreate)                   \
    X(cudnnDestroy)                  \
    X(cudnnSetStream)                \
    X(cudnnGetErrorString)           \
    X(cudnnGetLastErrorString)       \
    X(cudnnBackendCreateDescriptor)  \
    X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendSetAttribute)      \
    X(cudnnBackendGetAttribute)      \
    X(cudnnBackendFinalize)          \
    X(cudnnBackendExecute)

struct ek_cudnn_api {
#define EK_CUDNN_MEMBER(name) __typeof__(name) *name;
    EK_CUDNN_MAP(EK_CUDNN_MEMBER)
#undef EK_CUDNN_MEMBER
};
#endif

#endif
