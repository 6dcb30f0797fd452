/* gemm_blocked.h: matrix products by the innermost loops of gemm_kernel.h, and how these want their
 * operands packed. */
#ifndef EK_HOST_GEMM_BLOCKED_H
#define EK_HOST_GEMM_BLOCKED_H

#include "host/gemm.h"

/* A block of k has as many elements as fill so many bytes. Recurrent layers, which sum in equal
 * blocks, have the bits of these products. */
enum { EK_GEMM_BLOCK_NBYTES = 2048 };

/* The largest stride along k, in bytes, that is read in place again and again. Larger ones use few
 * sets of the level 1 cache. */
enum { EK_GEMM_NEAR_NBYTES = 1024 };

/* Computes the products. c isn't empty. A bias is contiguous. There is none with `accumulate`, nor
 * if columns of c aren't next to each other. With `transposed`, the epilogue gets areas whose rows
 * and columns are exchanged. */
int ek_gemm_run_blocked(ek_dev *dev, const ek_gemm *gemm, bool transposed);

/* Packs `lines` x `depth` elements into panels of `width` lines. Element (line, d) of a panel lies
 * at d * width + line. Lines are rows of a or columns of b. Lines beyond the end are zero. Any
 * thread may call the functions. */
void ek_gemm_pack_f32(float *to, const float *from, int64_t lines, int64_t depth, int width,
                      int64_t line_stride, int64_t depth_stride);
void ek_gemm_pack_f64(double *to, const double *from, int64_t lines, int64_t depth, int width,
                      int64_t line_stride, int64_t depth_stride);

#endif
