/* conv_rows.h: defines the kernels of conv_implicit.c and conv_weight.c. They differ in the number
 * of rows of sums in registers: up to 6 with AVX2, up to 12 with AVX-512; for f32 and bf16.
 *
 * The file that includes this header defines KERNEL(NAME, TARGET, ROWS, VECTOR, P, MULTIPLY), which
 * makes a function NAME for TARGET: P##_add_ps adds two VECTORs, and MULTIPLY(a, b, sum) returns
 * sum + a b. x86-64 only. */
#ifndef EK_HOST_CONV_ROWS_H
#define EK_HOST_CONV_ROWS_H

#include <immintrin.h>

#include "host/isa.h"

#define EK_ROWS_TO_6(X, prefix) \
    X(prefix, 1) X(prefix, 2) X(prefix, 3) X(prefix, 4) X(prefix, 5) X(prefix, 6)
#define EK_ROWS_TO_12(X, prefix) \
    EK_ROWS_TO_6(X, prefix)      \
    X(prefix, 7) X(prefix, 8) X(prefix, 9) X(prefix, 10) X(prefix, 11) X(prefix, 12)

/* Words are pairs of bf16: one instruction adds both products to an f32. */
#define EK_ROWS_MULTIPLY_PAIRS(a, b, sum) _mm512_dpbf16_ps(sum, (__m512bh)(a), (__m512bh)(b))

#define EK_ROWS_AVX2(prefix, ROWS) \
    KERNEL(prefix##_avx2_##ROWS, "avx2,fma", ROWS, __m256, _mm256, _mm256_fmadd_ps)
#define EK_ROWS_AVX512(prefix, ROWS) \
    KERNEL(prefix##_avx512_##ROWS, "avx512f", ROWS, __m512, _mm512, _mm512_fmadd_ps)
#define EK_ROWS_BF16(prefix, ROWS) \
    KERNEL(prefix##_bf16_##ROWS, EK_TARGET_BF16, ROWS, __m512, _mm512, EK_ROWS_MULTIPLY_PAIRS)

/* Defines all kernels: prefix_avx2_1 and so on. */
#define EK_ROWS_KERNELS(prefix)           \
    EK_ROWS_TO_6(EK_ROWS_AVX2, prefix)    \
    EK_ROWS_TO_12(EK_ROWS_AVX512, prefix) \
    EK_ROWS_TO_12(EK_ROWS_BF16, prefix)

/* Names a kernel, as an initializer of a table of functions. */
#define EK_ROWS_NAME(prefix, ROWS) prefix##_##ROWS,

#endif
