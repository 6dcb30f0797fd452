/* conv_kernel.c: the innermost loop of convolution in place, for AVX2 with FMA. */
#include "host/conv_implicit.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* ROWS x 2 sums of 8 stay in registers over all taps. */
#define KERNEL(NAME, ROWS)                                                                       \
    __attribute__((target("avx2,fma"))) static void NAME(const ek_conv_tap *taps, int64_t count, \
                                                         int64_t channels, const float *packed,  \
                                                         const float *start, float *out)         \
    {                                                                                            \
        __m256 sum[ROWS][2];                                                                     \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                   \
        {                                                                                        \
            sum[r][0] = _mm256_loadu_ps(start);                                                  \
            sum[r][1] = _mm256_loadu_ps(start + 8);                                              \
        }                                                                                        \
        for (int64_t i = 0; i < count; i++) {                                                    \
            const float *b = packed + taps[i].tap * channels * EK_CONV_COLUMNS, *x[ROWS];        \
            _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) x[r] = taps[i].row[r];        \
            for (int64_t c = 0; c < channels; c++) {                                             \
                __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);                     \
                _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                           \
                {                                                                                \
                    __m256 a = _mm256_set1_ps(x[r][c]);                                          \
                    sum[r][0] = _mm256_fmadd_ps(a, b0, sum[r][0]);                               \
                    sum[r][1] = _mm256_fmadd_ps(a, b1, sum[r][1]);                               \
                }                                                                                \
                b += EK_CONV_COLUMNS;                                                            \
            }                                                                                    \
        }                                                                                        \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                   \
        {                                                                                        \
            _mm256_storeu_ps(out + EK_CONV_COLUMNS * r, sum[r][0]);                              \
            _mm256_storeu_ps(out + EK_CONV_COLUMNS * r + 8, sum[r][1]);                          \
        }                                                                                        \
    }
KERNEL(one_row, 1)
KERNEL(two_rows, 2)
KERNEL(three_rows, 3)
KERNEL(four_rows, 4)
KERNEL(five_rows, 5)
KERNEL(six_rows, 6)

ek_conv_kernel *const *ek_conv_kernels(void)
{
    static ek_conv_kernel *const kernels[EK_CONV_ROWS] = {one_row,   two_rows,  three_rows,
                                                          four_rows, five_rows, six_rows};
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kernels : NULL;
}

bool ek_conv_kernels_are_widest(void)
{
    return !__builtin_cpu_supports("avx512f");
}

#else

ek_conv_kernel *const *ek_conv_kernels(void)
{
    return NULL;
}

bool ek_conv_kernels_are_widest(void)
{
    return true;
}

#endif
