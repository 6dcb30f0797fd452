/* gemm_kernel.h: the innermost loops of matrix products, for AVX-512, AVX2 with FMA, and any
 * processor.
 *
 * An element's sum runs over k in order, so that all kernels with FMA compute the same bits. Any
 * thread may call the functions. */
#ifndef EK_HOST_GEMM_KERNEL_H
#define EK_HOST_GEMM_KERNEL_H

#include "core/tensor.h"

/* The most rows and columns of any processor's kernel, and the steps along k between two
 * prefetches. */
enum { EK_GEMM_ROWS = 12, EK_GEMM_COLUMNS = 32, EK_GEMM_STRETCH = 16 };

/* Memory that is needed next: `runs` of `lines` cache lines each, `stride` bytes apart. A kernel
 * prefetches `pace` lines every EK_GEMM_STRETCH steps along k. Bursts would stall the kernel. */
typedef struct ek_gemm_ahead {
    const char *run;
    int64_t lines, runs, stride, pace;
    int64_t line; /* the next line of the run */
    /* If runs form rows: the runs of a row, the runs left in the present row, and the bytes to skip
     * after a row. Otherwise 0. */
    int64_t row_runs, row_left, row_skip;
} ek_gemm_ahead;

/* The operands of c = a b or, with `add`, c += a b; with `addend`, c = addend + a b. Columns of b,
 * c, start and addend are contiguous; strides count elements. */
typedef struct ek_gemm_call {
    int64_t k;
    const void *a;
    int64_t a_row, a_depth;
    const void *b;
    int64_t b_depth;
    void *c;
    int64_t c_row;
    bool add;
    const void *addend; /* A row for all rows; NULL: none. Not together with `add`. */
    const void
        *start; /* Sums of the former part of k, at which these begin; NULL: they begin at 0. */
    int64_t start_row;
    void *packed; /* where to write b as a panel of as many columns as c has; NULL: nowhere */
    ek_gemm_ahead *next_a, *next_b;
} ek_gemm_call;

typedef void ek_gemm_inner(const ek_gemm_call *call);

/* inner[v - 1][r - 1] computes r rows by v vectors of columns. */
typedef struct ek_gemm_kernel {
    int rows, columns; /* the most, with two vectors */
    ek_gemm_inner *inner[2][EK_GEMM_ROWS];
} ek_gemm_kernel;

/* Returns the best kernel for this processor, for f32 or f64; or the kernel for bf16, NULL if the
 * processor doesn't multiply that. Elements of its a and b are pairs of bf16 that are neighbours
 * along k, elements of c are f32. */
const ek_gemm_kernel *ek_gemm_kernel_best(ek_dtype dtype);

/* Copies element d of line l, at from + l * stride + d, to to + d * width + l, for at most as many
 * lines as fill 32 bytes. Returns how many elements of each line have been copied; 0 without AVX2.
 * Always writes 32 bytes for each d. */
int64_t ek_gemm_transpose_f32(float *to, int64_t width, const float *from, int64_t lines,
                              int64_t stride, int64_t depth);
int64_t ek_gemm_transpose_f64(double *to, int64_t width, const double *from, int64_t lines,
                              int64_t stride, int64_t depth);

/* Does what ek_gemm_transpose_f32 does, for 16 lines. */
int64_t ek_gemm_transpose_16_f32(float *to, int64_t width, const float *from, int64_t stride,
                                 int64_t depth);

#endif
