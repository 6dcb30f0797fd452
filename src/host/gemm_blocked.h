/* gemm_blocked.h: matrix products by the innermost loops of gemm_kernel.h. */
#ifndef EK_HOST_GEMM_BLOCKED_H
#define EK_HOST_GEMM_BLOCKED_H

#include "host/gemm.h"

/* A block of k has as many elements as fill so many bytes. */
enum { EK_GEMM_BLOCK_NBYTES = 2048 };

/* Computes the products. c isn't empty. A bias is contiguous, and there is none with `accumulate`.
 * With `transposed`, the epilogue gets areas whose rows and columns are exchanged. */
int ek_gemm_run_blocked(ek_dev *dev, const ek_gemm *gemm, bool transposed);

#endif
