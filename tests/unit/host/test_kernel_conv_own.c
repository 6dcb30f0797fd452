/* Convolution and its gradients on the GPU by our own kernels. */
#define TWIN_WITHOUT_LIBRARIES "cublas,cudnn"
#include "test_kernel_conv.c"
