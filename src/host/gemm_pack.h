/* gemm_pack.h: operands of matrix products in the order in which the innermost loops read them. */
#ifndef EK_HOST_GEMM_PACK_H
#define EK_HOST_GEMM_PACK_H

#include "core/tensor.h"

/* Packs `lines` x `depth` elements into panels of `width` lines. Element (line, d) of a panel lies
 * at d * width + line. Lines are rows of a or columns of b. Lines beyond the end are zero. Any
 * thread may call the functions. */
void ek_gemm_pack_f32(float *to, const float *from, int64_t lines, int64_t depth, int width,
                      int64_t line_stride, int64_t depth_stride);
void ek_gemm_pack_f64(double *to, const double *from, int64_t lines, int64_t depth, int width,
                      int64_t line_stride, int64_t depth_stride);

#endif
