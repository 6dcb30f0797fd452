/* kernels_table.c: the GPU's kernels by slot. */
#include "cuda/cuda.h"

#define FILLED(slot) .slot = ek_cuda_##slot,

const ek_kernels ek_cuda_kernels = {EK_KERNELS(FILLED)};
