/* gemm.h: batched matrix products on plain memory, f32 or f64. */
#ifndef EK_HOST_GEMM_H
#define EK_HOST_GEMM_H

#include "core/tensor.h"

/* A batch of matrices; strides count elements and may be 0 for inputs. */
typedef struct ek_matrices {
    void *data;
    int64_t batch_stride, row_stride, column_stride;
} ek_matrices;

typedef struct ek_gemm {
    ek_dtype dtype; /* f32 or f64, for a, b and c */
    int64_t batch, n, m, k;
    ek_matrices a, b, c; /* (n, k), (k, m), (n, m) */
    bool accumulate;     /* c += a b instead of c = a b */
} ek_gemm;

int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm);

#endif
