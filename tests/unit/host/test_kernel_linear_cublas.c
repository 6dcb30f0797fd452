/* Linear layers on the GPU by cuBLAS alone. */
#define TWIN_WITHOUT_LIBRARIES "cublaslt"
#include "test_kernel_linear.c"
