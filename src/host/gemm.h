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

/* Computes what the slot matmul does (kernels/kernels.h), followed by a ReLU with `relu`, if one of
 * the tensors is bf16 or f16. Sums are f32 and rounded once. A sum's order doesn't depend on the
 * number of threads. With `pairs`, for x and y of bf16 on a processor with ek_host_has_bf16,
 * elements are multiplied as bf16, else as f32. */
int ek_gemm_narrow(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate, bool relu, bool pairs);

#endif
