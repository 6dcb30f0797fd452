/* gemm_kernel.c: the innermost loop of matrix products, for AVX-512, AVX2 with FMA, and anything.
 */
#include "host/gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PLAIN(NAME, REAL)                                                              \
    static void NAME(int64_t k, const void *packed_a, const void *packed_b, void *out) \
    {                                                                                  \
        const REAL *restrict a = packed_a, *restrict b = packed_b;                     \
        REAL *restrict acc = out, sum[4][8] = {{0}};                                   \
        for (int64_t i = 0; i < k; i++) {                                              \
            for (int r = 0; r < 4; r++)                                                \
                for (int c = 0; c < 8; c++)                                            \
                    sum[r][c] += a[r] * b[c];                                          \
            a += 4;                                                                    \
            b += 8;                                                                    \
        }                                                                              \
        for (int r = 0; r < 4; r++)                                                    \
            for (int c = 0; c < 8; c++)                                                \
                acc[r * 8 + c] = sum[r][c];                                            \
    }
PLAIN(plain_f32, float)
PLAIN(plain_f64, double)

#if defined(__x86_64__)

/* ROWS x 2 sums of one VECTOR each stay in registers: 6 x 2 of 16, 12 x 2 of 32. */
#define VECTORISED(NAME, TARGET, ROWS, REAL, VECTOR, ZERO, LOAD, STORE, SPLAT, FMA)             \
    __attribute__((target(TARGET))) static void NAME(int64_t k, const void *packed_a,           \
                                                     const void *packed_b, void *out)           \
    {                                                                                           \
        enum { WIDTH = sizeof(VECTOR) / sizeof(REAL) };                                         \
        const REAL *a = packed_a, *b = packed_b;                                                \
        REAL *acc = out;                                                                        \
        VECTOR sum[ROWS][2];                                                                    \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = ZERO(); \
        for (int64_t i = 0; i < k; i++) {                                                       \
            VECTOR b0 = LOAD(b), b1 = LOAD(b + WIDTH);                                          \
            _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                             \
            {                                                                                   \
                VECTOR x = SPLAT(a[r]);                                                         \
                sum[r][0] = FMA(x, b0, sum[r][0]);                                              \
                sum[r][1] = FMA(x, b1, sum[r][1]);                                              \
            }                                                                                   \
            a += ROWS;                                                                          \
            b += 2 * WIDTH;                                                                     \
        }                                                                                       \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                                 \
        {                                                                                       \
            STORE(acc + 2 * WIDTH * r, sum[r][0]);                                              \
            STORE(acc + 2 * WIDTH * r + WIDTH, sum[r][1]);                                      \
        }                                                                                       \
    }

VECTORISED(avx2_f32, "avx2,fma", 6, float, __m256, _mm256_setzero_ps, _mm256_loadu_ps,
           _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps)
VECTORISED(avx2_f64, "avx2,fma", 6, double, __m256d, _mm256_setzero_pd, _mm256_loadu_pd,
           _mm256_storeu_pd, _mm256_set1_pd, _mm256_fmadd_pd)
VECTORISED(avx512_f32, "avx512f", 12, float, __m512, _mm512_setzero_ps, _mm512_loadu_ps,
           _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps)
VECTORISED(avx512_f64, "avx512f", 12, double, __m512d, _mm512_setzero_pd, _mm512_loadu_pd,
           _mm512_storeu_pd, _mm512_set1_pd, _mm512_fmadd_pd)

#endif

const ek_gemm_kernel *ek_gemm_kernel_best(ek_dtype dtype)
{
    bool wide = dtype == EK_F64;
#if defined(__x86_64__)
    static const ek_gemm_kernel avx512[2] = {{12, 32, avx512_f32}, {12, 16, avx512_f64}};
    static const ek_gemm_kernel avx2[2] = {{6, 16, avx2_f32}, {6, 8, avx2_f64}};
    if (__builtin_cpu_supports("avx512f"))
        return &avx512[wide];
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &avx2[wide];
#endif
    static const ek_gemm_kernel plain[2] = {{4, 8, plain_f32}, {4, 8, plain_f64}};
    return &plain[wide];
}
