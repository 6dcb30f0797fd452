// cudnn_handle.h: cuDNN's handle.
#ifndef EK_EMULATOR_CUDNN_HANDLE_H
#define EK_EMULATOR_CUDNN_HANDLE_H

#include <cuda_runtime_api.h>

struct cudnnContext {
    int device = 0;
    cudaStream_t stream = nullptr;
};

#endif
