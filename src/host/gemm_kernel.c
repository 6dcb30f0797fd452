/* gemm_kernel.c: the innermost loop of the f64 product, for AVX-512, AVX2 with FMA, and anything.
 */
#include "host/gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void run_plain(int64_t k, const double *restrict a, const double *restrict b,
                      double *restrict acc)
{
    double sum[4][8] = {{0}};
    for (int64_t i = 0; i < k; i++) {
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 8; c++)
                sum[r][c] += a[r] * b[c];
        a += 4;
        b += 8;
    }
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 8; c++)
            acc[r * 8 + c] = sum[r][c];
}

#if defined(__x86_64__)

/* Unrolled by the compiler: all sums stay in registers (6 x 2 of 16, 12 x 2 of 32). */
__attribute__((target("avx2,fma"))) static void run_avx2(int64_t k, const double *a,
                                                         const double *b, double *acc)
{
    __m256d sum[6][2];
#pragma GCC unroll 6
    for (int r = 0; r < 6; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_pd();
    for (int64_t i = 0; i < k; i++) {
        __m256d b0 = _mm256_loadu_pd(b), b1 = _mm256_loadu_pd(b + 4);
#pragma GCC unroll 6
        for (int r = 0; r < 6; r++) {
            __m256d x = _mm256_broadcast_sd(a + r);
            sum[r][0] = _mm256_fmadd_pd(x, b0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_pd(x, b1, sum[r][1]);
        }
        a += 6;
        b += 8;
    }
#pragma GCC unroll 6
    for (int r = 0; r < 6; r++) {
        _mm256_storeu_pd(acc + 8 * r, sum[r][0]);
        _mm256_storeu_pd(acc + 8 * r + 4, sum[r][1]);
    }
}

__attribute__((target("avx512f"))) static void run_avx512(int64_t k, const double *a,
                                                          const double *b, double *acc)
{
    __m512d sum[12][2];
#pragma GCC unroll 12
    for (int r = 0; r < 12; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_pd();
    for (int64_t i = 0; i < k; i++) {
        __m512d b0 = _mm512_loadu_pd(b), b1 = _mm512_loadu_pd(b + 8);
#pragma GCC unroll 12
        for (int r = 0; r < 12; r++) {
            __m512d x = _mm512_set1_pd(a[r]);
            sum[r][0] = _mm512_fmadd_pd(x, b0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_pd(x, b1, sum[r][1]);
        }
        a += 12;
        b += 16;
    }
#pragma GCC unroll 12
    for (int r = 0; r < 12; r++) {
        _mm512_storeu_pd(acc + 16 * r, sum[r][0]);
        _mm512_storeu_pd(acc + 16 * r + 8, sum[r][1]);
    }
}

#endif

const ek_gemm_kernel *ek_gemm_kernel_best(void)
{
#if defined(__x86_64__)
    static const ek_gemm_kernel avx512 = {12, 16, run_avx512}, avx2 = {6, 8, run_avx2};
    if (__builtin_cpu_supports("avx512f"))
        return &avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &avx2;
#endif
    static const ek_gemm_kernel plain = {4, 8, run_plain};
    return &plain;
}
