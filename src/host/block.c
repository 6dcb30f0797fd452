/* block.c: small blocks in registers. */
#include "host/block.h"

#include <stddef.h>

#include "host/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* ROWS x 2 vectors of sums stay in registers: 6 x 2 of 16 with AVX2, 12 x 2 of 32 with AVX-512. */
#define BLOCK(NAME, TARGET, ROWS, VECTOR, P, ROW_STRIDE, DEPTH_STRIDE)                           \
    __attribute__((target(TARGET))) static void NAME(int64_t depth, const float *a,              \
                                                     int64_t stride, const float *b, float *out, \
                                                     int64_t out_stride, bool add)               \
    {                                                                                            \
        enum { WIDTH = sizeof(VECTOR) / sizeof(float) };                                         \
        VECTOR sum[ROWS][2];                                                                     \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] =          \
            P##_setzero_ps();                                                                    \
        for (int64_t d = 0; d < depth; d++) {                                                    \
            VECTOR b0 = P##_loadu_ps(b), b1 = P##_loadu_ps(b + WIDTH);                           \
            _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                              \
            {                                                                                    \
                VECTOR x = P##_set1_ps(a[r * (ROW_STRIDE)]);                                     \
                sum[r][0] = P##_fmadd_ps(x, b0, sum[r][0]);                                      \
                sum[r][1] = P##_fmadd_ps(x, b1, sum[r][1]);                                      \
            }                                                                                    \
            a += DEPTH_STRIDE;                                                                   \
            b += 2 * WIDTH;                                                                      \
        }                                                                                        \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++, out += out_stride)               \
        {                                                                                        \
            if (add) {                                                                           \
                sum[r][0] = P##_add_ps(sum[r][0], P##_loadu_ps(out));                            \
                sum[r][1] = P##_add_ps(sum[r][1], P##_loadu_ps(out + WIDTH));                    \
            }                                                                                    \
            P##_storeu_ps(out, sum[r][0]);                                                       \
            P##_storeu_ps(out + WIDTH, sum[r][1]);                                               \
        }                                                                                        \
    }

#define AVX2(ROWS)                                                             \
    BLOCK(block_avx2_rows_##ROWS, "avx2,fma", ROWS, __m256, _mm256, stride, 1) \
    BLOCK(block_avx2_columns_##ROWS, "avx2,fma", ROWS, __m256, _mm256, 1, stride)
#define AVX512(ROWS)                                                            \
    BLOCK(block_avx512_rows_##ROWS, "avx512f", ROWS, __m512, _mm512, stride, 1) \
    BLOCK(block_avx512_columns_##ROWS, "avx512f", ROWS, __m512, _mm512, 1, stride)
#define TO_6(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define TO_12(X) TO_6(X) X(7) X(8) X(9) X(10) X(11) X(12)
TO_6(AVX2)
TO_12(AVX512)

const ek_block_products *ek_block_products_of_processor(void)
{
#define AVX2_ROWS(ROWS) block_avx2_rows_##ROWS,
#define AVX2_COLUMNS(ROWS) block_avx2_columns_##ROWS,
#define AVX512_ROWS(ROWS) block_avx512_rows_##ROWS,
#define AVX512_COLUMNS(ROWS) block_avx512_columns_##ROWS,
    static const ek_block_products avx2 = {6, 16, {TO_6(AVX2_ROWS)}, {TO_6(AVX2_COLUMNS)}};
    static const ek_block_products avx512 = {12, 32, {TO_12(AVX512_ROWS)}, {TO_12(AVX512_COLUMNS)}};
    ek_isa isa = ek_host_isa();
    return isa == EK_ISA_AVX512 ? &avx512 : isa == EK_ISA_AVX2 ? &avx2 : NULL;
}

/* Three rounds, each of which brings together elements that are twice as far apart. */
__attribute__((target("avx2"))) void ek_block_transpose(const float *from, int64_t from_stride,
                                                        float *to, int64_t to_stride)
{
    __m256 a[EK_BLOCK_SQUARE], b[EK_BLOCK_SQUARE];
#pragma GCC unroll 8
    for (int r = 0; r < EK_BLOCK_SQUARE; r++)
        a[r] = _mm256_loadu_ps(from + r * from_stride);
#pragma GCC unroll 4
    for (int r = 0; r < EK_BLOCK_SQUARE; r += 2) {
        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
    }
#pragma GCC unroll 2
    for (int r = 0; r < EK_BLOCK_SQUARE; r += 4) {
        a[r] = _mm256_shuffle_ps(b[r], b[r + 2], 0x44);
        a[r + 1] = _mm256_shuffle_ps(b[r], b[r + 2], 0xee);
        a[r + 2] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0x44);
        a[r + 3] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        _mm256_storeu_ps(to + c * to_stride, _mm256_permute2f128_ps(a[c], a[c + 4], 0x20));
        _mm256_storeu_ps(to + (c + 4) * to_stride, _mm256_permute2f128_ps(a[c], a[c + 4], 0x31));
    }
}

#else

void ek_block_transpose(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    for (int r = 0; r < EK_BLOCK_SQUARE; r++)
        for (int c = 0; c < EK_BLOCK_SQUARE; c++)
            to[c * to_stride + r] = from[r * from_stride + c];
}

const ek_block_products *ek_block_products_of_processor(void)
{
    return NULL;
}

#endif
