/* gemm.h: batched matrix products on plain memory, f32 or f64. */
#ifndef EK_HOST_GEMM_H
#define EK_HOST_GEMM_H

#include "core/tensor.h"

/* A batch of matrices; strides count elements and may be 0 for inputs. */
typedef struct ek_matrices {
    void *data;
    int64_t batch_stride, row_stride, column_stride;
} ek_matrices;

/* Of one matrix of the batch, writes lines [line, line + lines) of [first, first + depth) along k,
 * as f32 in panels of `width` lines: element (l, d) of a panel at d * width + l. Lines beyond the
 * end are zero. Any thread. */
typedef void ek_gemm_pack(const void *context, int64_t batch, float *to, int64_t line,
                          int64_t lines, int64_t first, int64_t depth, int width);

typedef struct ek_gemm {
    ek_dtype dtype; /* f32 or f64, of all three */
    int64_t batch, n, m, k;
    ek_matrices a, b, c; /* (n, k), (k, m), (n, m) */
    bool accumulate;     /* c += a b instead of c = a b */
    /* If set, these pack a's rows or b's columns, which are not read otherwise; f32. */
    ek_gemm_pack *pack_a, *pack_b;
    const void *pack_context;
    const int64_t *batch_k; /* k of each of the batch, at most k; NULL: all have k */
} ek_gemm;

int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm);

#endif
