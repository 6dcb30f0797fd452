/* gemm_kernel.c: see gemm_kernel.h. */
#include "host/gemm_kernel.h"

#include "host/host.h"
#include "host/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Prefetches the lines of one stretch along k. Processors fetch the other line of a pair of lines
 * unasked; a request for it would only take one of the few places for lines under way. */
static inline __attribute__((always_inline)) void kernel_look_ahead(ek_gemm_ahead *ahead)
{
    for (int64_t left = ahead->pace; left > 0 && ahead->runs > 0; left -= 2) {
        __builtin_prefetch(ahead->run + ahead->line * 64, 0, 2);
        ahead->line += 2;
        if (ahead->line >= ahead->lines) {
            left += ahead->line - ahead->lines;
            ahead->line = 0;
            ahead->run += ahead->stride;
            ahead->runs--;
            if (--ahead->row_left == 0) {
                ahead->run += ahead->row_skip;
                ahead->row_left = ahead->row_runs;
            }
        }
    }
}

/* ---- the innermost loop, for AVX-512, AVX2 with FMA, and any processor ---- */

/* The compiler, which can't look into this, forgets what it knows of a pointer. Otherwise
 * the compiler keeps addresses from the prologue to the epilogue, and computes those of a stretch's
 * end in advance: for want of registers in vector registers and in memory. Reading them back takes
 * 5 % of the time with AVX-512, 10 % with AVX2. */
#define FORGET(POINTER) __asm__ volatile("" : "+r"(POINTER))

/* Before each third row, steps to the next three. */
#define NEXT_ROWS(FROM, R, STRIDE)        \
    if ((R) % 3 == 0) {                   \
        (FROM) += (R) ? 3 * (STRIDE) : 0; \
        FORGET(FROM);                     \
    }

/* ROWS x VECTORS vectors of sums stay in registers. Three rows of a share one pointer, because an
 * x86 address can add the stride to a pointer once or twice. With `packed`, the store unit, which
 * has nothing else to do, packs b. */
#define INNER(NAME, TARGET, ROWS, VECTORS, REAL, VECTOR, LOAD, STORE, SPLAT, ADD, FMA)       \
    TARGET static void NAME##_##VECTORS##_##ROWS(const ek_gemm_call *call)                   \
    {                                                                                        \
        enum { WIDTH = sizeof(VECTOR) / sizeof(REAL) };                                      \
        VECTOR sum[ROWS][VECTORS];                                                           \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                              \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++) sum[r][v] = SPLAT(0);  \
        const REAL *start = call->start;                                                     \
        if (start) {                                                                         \
            const int64_t start_row = call->start_row;                                       \
            _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                          \
            {                                                                                \
                NEXT_ROWS(start, r, start_row)                                               \
                _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++) sum[r][v] =        \
                    LOAD(start + r % 3 * start_row + v * WIDTH);                             \
            }                                                                                \
        }                                                                                    \
        const int64_t a_row = call->a_row, a_depth = call->a_depth, b_depth = call->b_depth; \
        const REAL *a[4], *b = call->b;                                                      \
        REAL *packed = call->packed;                                                         \
        _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) a[r] =                           \
            (const REAL *)call->a + (3 * r < ROWS ? 3 * r : 0) * a_row;                      \
        for (int64_t left = call->k; left > 0; left -= EK_GEMM_STRETCH) {                    \
            FORGET(call);                                                                    \
            kernel_look_ahead(call->next_a);                                                 \
            kernel_look_ahead(call->next_b);                                                 \
            const int64_t steps = ek_smaller(left, EK_GEMM_STRETCH);                         \
            _Pragma("GCC unroll 4") for (int64_t s = 0; s < steps; s++)                      \
            {                                                                                \
                VECTOR y[VECTORS];                                                           \
                _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++) y[v] =             \
                    LOAD(b + v * WIDTH);                                                     \
                if (__builtin_expect(packed != NULL, 0)) {                                   \
                    _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                \
                    {                                                                        \
                        __builtin_prefetch(b + EK_GEMM_STRETCH * b_depth + v * WIDTH);       \
                        STORE(packed + v * WIDTH, y[v]);                                     \
                    }                                                                        \
                    packed += VECTORS * WIDTH;                                               \
                }                                                                            \
                _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                      \
                {                                                                            \
                    VECTOR x = SPLAT(a[r / 3][r % 3 * a_row]);                               \
                    _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++) sum[r][v] =    \
                        FMA(x, y[v], sum[r][v]);                                             \
                }                                                                            \
                _Pragma("GCC unroll 4") for (int r = 0; 3 * r < ROWS; r++)                   \
                {                                                                            \
                    a[r] += a_depth;                                                         \
                    FORGET(a[r]);                                                            \
                }                                                                            \
                b += b_depth;                                                                \
                FORGET(b);                                                                   \
            }                                                                                \
        }                                                                                    \
        FORGET(call);                                                                        \
        const int64_t c_row = call->c_row;                                                   \
        const int64_t addend_row = call->add ? c_row : 0;                                    \
        const REAL *addend = call->add ? call->c : call->addend;                             \
        if (addend) {                                                                        \
            _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                          \
            {                                                                                \
                NEXT_ROWS(addend, r, addend_row)                                             \
                _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++) sum[r][v] =        \
                    ADD(LOAD(addend + r % 3 * addend_row + v * WIDTH), sum[r][v]);           \
            }                                                                                \
        }                                                                                    \
        REAL *c = call->c;                                                                   \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                              \
        {                                                                                    \
            NEXT_ROWS(c, r, c_row)                                                           \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                        \
                STORE(c + r % 3 * c_row + v * WIDTH, sum[r][v]);                             \
        }                                                                                    \
    }

/* Vectors of 4 numbers, which compilers support on any processor. */
typedef float kernel_vector_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double kernel_vector_f64 __attribute__((vector_size(32), aligned(8), may_alias));
#define PLAIN_F32(ROWS, VECTORS)                                                       \
    INNER(kernel_plain_f32, , ROWS, VECTORS, float, kernel_vector_f32, PLAIN_LOAD_F32, \
          PLAIN_STORE_F32, PLAIN_SPLAT_F32, PLAIN_ADD, PLAIN_FMA)
#define PLAIN_F64(ROWS, VECTORS)                                                        \
    INNER(kernel_plain_f64, , ROWS, VECTORS, double, kernel_vector_f64, PLAIN_LOAD_F64, \
          PLAIN_STORE_F64, PLAIN_SPLAT_F64, PLAIN_ADD, PLAIN_FMA)
#define PLAIN_LOAD_F32(from) (*(const kernel_vector_f32 *)(from))
#define PLAIN_LOAD_F64(from) (*(const kernel_vector_f64 *)(from))
#define PLAIN_STORE_F32(to, v) (*(kernel_vector_f32 *)(to) = (v))
#define PLAIN_STORE_F64(to, v) (*(kernel_vector_f64 *)(to) = (v))
#define PLAIN_SPLAT_F32(x) ((x) - (kernel_vector_f32){0})
#define PLAIN_SPLAT_F64(x) ((x) - (kernel_vector_f64){0})
#define PLAIN_ADD(x, y) ((x) + (y))
#define PLAIN_FMA(x, y, sum) ((sum) + (x) * (y))
#define ROWS_4(X, VECTORS) X(1, VECTORS) X(2, VECTORS) X(3, VECTORS) X(4, VECTORS)
#define ROWS_6(X, VECTORS) ROWS_4(X, VECTORS) X(5, VECTORS) X(6, VECTORS)
#define ROWS_12(X, VECTORS) \
    ROWS_6(X, VECTORS)      \
    X(7, VECTORS) X(8, VECTORS) X(9, VECTORS) X(10, VECTORS) X(11, VECTORS) X(12, VECTORS)
/* clang-format off */
ROWS_4(PLAIN_F32, 1)
ROWS_4(PLAIN_F32, 2)
ROWS_4(PLAIN_F64, 1)
ROWS_4(PLAIN_F64, 2)
/* clang-format on */

#if defined(__x86_64__)

/* Sums fill 6 x 2 of 16 registers with AVX2, 12 x 2 of 32 with AVX-512. */
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f")))
#define AVX2_F32(ROWS, VECTORS)                                                                   \
    INNER(kernel_avx2_f32, AVX2, ROWS, VECTORS, float, __m256, _mm256_loadu_ps, _mm256_storeu_ps, \
          _mm256_set1_ps, _mm256_add_ps, _mm256_fmadd_ps)
#define AVX2_F64(ROWS, VECTORS)                                                   \
    INNER(kernel_avx2_f64, AVX2, ROWS, VECTORS, double, __m256d, _mm256_loadu_pd, \
          _mm256_storeu_pd, _mm256_set1_pd, _mm256_add_pd, _mm256_fmadd_pd)
#define AVX512_F32(ROWS, VECTORS)                                                   \
    INNER(kernel_avx512_f32, AVX512, ROWS, VECTORS, float, __m512, _mm512_loadu_ps, \
          _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_fmadd_ps)
#define AVX512_F64(ROWS, VECTORS)                                                     \
    INNER(kernel_avx512_f64, AVX512, ROWS, VECTORS, double, __m512d, _mm512_loadu_pd, \
          _mm512_storeu_pd, _mm512_set1_pd, _mm512_add_pd, _mm512_fmadd_pd)
/* Words are pairs of bf16, which may begin at any element: one instruction adds both products to an
 * f32. */
typedef float kernel_word __attribute__((aligned(2), may_alias));
#define KERNEL_BF16 __attribute__((target(EK_TARGET_BF16)))
#define PAIRS_BF16(ROWS, VECTORS)                                                        \
    INNER(kernel_bf16, KERNEL_BF16, ROWS, VECTORS, kernel_word, __m512, _mm512_loadu_ps, \
          _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps, PAIRS_FMA)
#define PAIRS_FMA(x, y, sum) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(y))
/* clang-format off */
ROWS_6(AVX2_F32, 1)
ROWS_6(AVX2_F32, 2)
ROWS_6(AVX2_F64, 1)
ROWS_6(AVX2_F64, 2)
ROWS_12(AVX512_F32, 1)
ROWS_12(AVX512_F32, 2)
ROWS_12(AVX512_F64, 1)
ROWS_12(AVX512_F64, 2)
ROWS_12(PAIRS_BF16, 1)
ROWS_12(PAIRS_BF16, 2)
/* clang-format on */

#endif

const ek_gemm_kernel *ek_gemm_kernel_best(ek_dtype dtype)
{
    bool wide = dtype == EK_F64;
#define NAMED(ROWS, NAME) NAME##_##ROWS,
#define BOTH(EACH, NAME)          \
    {                             \
        {EACH(NAMED, NAME##_1)},  \
        {                         \
            EACH(NAMED, NAME##_2) \
        }                         \
    }
#if defined(__x86_64__)
    static const ek_gemm_kernel avx512[2] = {{12, 32, BOTH(ROWS_12, kernel_avx512_f32)},
                                             {12, 16, BOTH(ROWS_12, kernel_avx512_f64)}};
    static const ek_gemm_kernel avx2[2] = {{6, 16, BOTH(ROWS_6, kernel_avx2_f32)},
                                           {6, 8, BOTH(ROWS_6, kernel_avx2_f64)}};
    static const ek_gemm_kernel bf16 = {12, 32, BOTH(ROWS_12, kernel_bf16)};
    if (dtype == EK_BF16 && ek_host_has_bf16())
        return &bf16;
    if (dtype != EK_BF16 && ek_host_isa() == EK_ISA_AVX512)
        return &avx512[wide];
    if (dtype != EK_BF16 && ek_host_isa() == EK_ISA_AVX2)
        return &avx2[wide];
#endif
    if (dtype == EK_BF16)
        return NULL;
    static const ek_gemm_kernel plain[2] = {{4, 8, BOTH(ROWS_4, kernel_plain_f32)},
                                            {4, 8, BOTH(ROWS_4, kernel_plain_f64)}};
    return &plain[wide];
}

/* ---- transposing in registers ---- */

#if defined(__x86_64__)

AVX2 static int64_t kernel_transpose_avx2_f32(float *to, int64_t width, const float *from,
                                              int64_t lines, int64_t stride, int64_t depth)
{
    int64_t d = 0;
    const float *line[8];
    for (int l = 0; l < 8; l++)
        line[l] = from + ek_smaller(l, lines - 1) * stride;
    for (; d + 4 <= depth; d += 4) {
        __m256 row[4];
        for (int l = 0; l < 4; l++)
            row[l] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(line[l] + d)),
                                          _mm_loadu_ps(line[l + 4] + d), 1);
        __m256 low01 = _mm256_unpacklo_ps(row[0], row[1]),
               high01 = _mm256_unpackhi_ps(row[0], row[1]);
        __m256 low23 = _mm256_unpacklo_ps(row[2], row[3]),
               high23 = _mm256_unpackhi_ps(row[2], row[3]);
        _mm256_storeu_ps(to + d * width, _mm256_shuffle_ps(low01, low23, 0x44));
        _mm256_storeu_ps(to + (d + 1) * width, _mm256_shuffle_ps(low01, low23, 0xee));
        _mm256_storeu_ps(to + (d + 2) * width, _mm256_shuffle_ps(high01, high23, 0x44));
        _mm256_storeu_ps(to + (d + 3) * width, _mm256_shuffle_ps(high01, high23, 0xee));
    }
    return d;
}

AVX512 static int64_t kernel_transpose_avx512_f32(float *to, int64_t width, const float *from,
                                                  int64_t stride, int64_t depth)
{
    int64_t d = 0;
    for (; d + 4 <= depth; d += 4) {
        __m512 row[4];
        for (int l = 0; l < 4; l++) {
            const float *line = from + l * stride + d;
            row[l] = _mm512_castps128_ps512(_mm_loadu_ps(line));
            row[l] = _mm512_insertf32x4(row[l], _mm_loadu_ps(line + 4 * stride), 1);
            row[l] = _mm512_insertf32x4(row[l], _mm_loadu_ps(line + 8 * stride), 2);
            row[l] = _mm512_insertf32x4(row[l], _mm_loadu_ps(line + 12 * stride), 3);
        }
        __m512 low01 = _mm512_unpacklo_ps(row[0], row[1]),
               high01 = _mm512_unpackhi_ps(row[0], row[1]);
        __m512 low23 = _mm512_unpacklo_ps(row[2], row[3]),
               high23 = _mm512_unpackhi_ps(row[2], row[3]);
        _mm512_storeu_ps(to + d * width, _mm512_shuffle_ps(low01, low23, 0x44));
        _mm512_storeu_ps(to + (d + 1) * width, _mm512_shuffle_ps(low01, low23, 0xee));
        _mm512_storeu_ps(to + (d + 2) * width, _mm512_shuffle_ps(high01, high23, 0x44));
        _mm512_storeu_ps(to + (d + 3) * width, _mm512_shuffle_ps(high01, high23, 0xee));
    }
    return d;
}

AVX2 static int64_t kernel_transpose_avx2_f64(double *to, int64_t width, const double *from,
                                              int64_t lines, int64_t stride, int64_t depth)
{
    int64_t d = 0;
    const double *line[4];
    for (int l = 0; l < 4; l++)
        line[l] = from + ek_smaller(l, lines - 1) * stride;
    for (; d + 2 <= depth; d += 2) {
        __m256d row[2];
        for (int l = 0; l < 2; l++)
            row[l] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(line[l] + d)),
                                          _mm_loadu_pd(line[l + 2] + d), 1);
        _mm256_storeu_pd(to + d * width, _mm256_unpacklo_pd(row[0], row[1]));
        _mm256_storeu_pd(to + (d + 1) * width, _mm256_unpackhi_pd(row[0], row[1]));
    }
    return d;
}

#endif

#define TRANSPOSE(NAME, REAL)                                                                  \
    int64_t ek_gemm_transpose_##NAME(REAL *to, int64_t width, const REAL *from, int64_t lines, \
                                     int64_t stride, int64_t depth)                            \
    {                                                                                          \
        return KERNEL_TRANSPOSE(NAME);                                                         \
    }
#if defined(__x86_64__)
#define KERNEL_TRANSPOSE(NAME)                                                 \
    (ek_host_isa() >= EK_ISA_AVX2                                              \
         ? kernel_transpose_avx2_##NAME(to, width, from, lines, stride, depth) \
         : 0)
#else
#define KERNEL_TRANSPOSE(NAME) \
    ((void)to, (void)width, (void)from, (void)lines, (void)stride, (void)depth, 0)
#endif
TRANSPOSE(f32, float)
TRANSPOSE(f64, double)

int64_t ek_gemm_transpose_16_f32(float *to, int64_t width, const float *from, int64_t stride,
                                 int64_t depth)
{
#if defined(__x86_64__)
    if (ek_host_isa() == EK_ISA_AVX512)
        return kernel_transpose_avx512_f32(to, width, from, stride, depth);
#endif
    ek_gemm_transpose_f32(to + 8, width, from + 8 * stride, 8, stride, depth);
    return ek_gemm_transpose_f32(to, width, from, 8, stride, depth);
}
