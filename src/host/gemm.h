/* gemm.h: batched matrix products on plain memory, f32 or f64. */
#ifndef EK_HOST_GEMM_H
#define EK_HOST_GEMM_H

#include "core/tensor.h"

/* A batch of matrices; strides count elements and may be 0 for inputs. */
typedef struct ek_matrices {
    void *data;
    int64_t batch_stride, row_stride, column_stride;
} ek_matrices;

/* Packs lines (rows of a, or columns of b) [line, line + lines) of one matrix of the batch, from
 * `first` to first + depth along k. The result is f32 in panels of `width` lines: element (l, d) of
 * a panel is at d * width + l. Lines beyond the end are zero. Any thread. */
typedef void ek_gemm_pack(const void *context, int64_t batch, float *to, int64_t line,
                          int64_t lines, int64_t first, int64_t depth, int width);

typedef struct ek_gemm {
    ek_dtype dtype; /* f32 or f64, for a, b and c */
    int64_t batch, n, m, k;
    ek_matrices a, b, c; /* (n, k), (k, m), (n, m) */
    bool accumulate;     /* c += a b instead of c = a b */
    /* If set, pack_a packs the rows of a, and pack_b the columns of b, which aren't read otherwise.
     * f32 only. */
    ek_gemm_pack *pack_a, *pack_b;
    const void *pack_context;
    const int64_t *batch_k; /* each product's own k, at most k; NULL if all have k */
} ek_gemm;

int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm);

#endif
