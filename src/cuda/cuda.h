/* cuda.h: the kernels of the CUDA backend: ek_cuda_<slot> for each slot of kernels/kernels.h, where
 * its contract stands. */
#ifndef EK_CUDA_CUDA_H
#define EK_CUDA_CUDA_H

#include "kernels/kernels.h"

extern const ek_kernels ek_cuda_kernels;

#define EK_CUDA_KERNEL(slot) ek_##slot##_kernel ek_cuda_##slot;
EK_KERNELS(EK_CUDA_KERNEL)
#undef EK_CUDA_KERNEL

#endif
