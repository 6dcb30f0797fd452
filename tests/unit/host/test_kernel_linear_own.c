/* Linear layers on the GPU by our own kernels. */
#define TWIN_WITHOUT_LIBRARIES "cublas"
#include "test_kernel_linear.c"
