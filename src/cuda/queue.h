/* queue.h: what a kernel launch needs to know of its device. Plain C that C++ compiles too.
 *
 * Files of this folder come in pairs: x.c takes tensors apart (the slots of kernels/kernels.h),
 * x.cu holds the kernels and the functions that launch them, and x.h is what both agree on:
 * functions with C linkage over plain structs, whose first argument is a queue and whose result is
 * 0 or a cudaError_t. A launch returns before the kernel has run. */
#ifndef EK_CUDA_QUEUE_H
#define EK_CUDA_QUEUE_H

#include <cuda_runtime_api.h>

#include "cuda/fault.h"
#include "evenkeel/base.h"

typedef struct ek_cuda_queue {
    cudaStream_t stream;
    ek_cuda_fault *fault; /* the device's address of its fault record */
    int multiprocessors;
    bool deterministic; /* no sums in the order of arrival */
    int restore;        /* the calling thread's CUDA device before; for ek_cuda_end */
} ek_cuda_queue;

#endif
