/* gemm.h: batched matrix products on plain memory, f32 or f64. */
#ifndef EK_HOST_GEMM_H
#define EK_HOST_GEMM_H

#include "core/tensor.h"

/* A batch of matrices; strides count elements and may be 0 for inputs. */
typedef struct ek_matrices {
    void *data;
    int64_t batch_stride, row_stride, column_stride;
} ek_matrices;

/* Rows [row, row + rows) and columns [column, column + columns) of product `batch`. */
typedef struct ek_gemm_area {
    void *c; /* The area's first element. Strides count elements. */
    int64_t row_stride, column_stride;
    int64_t batch, row, rows, column, columns;
} ek_gemm_area;

/* An epilogue: an activation, a residual, a mask. Called with an area whose elements have their
 * final sums, bias included, while the area lies in cache, by the thread that wrote it. Areas cover
 * c and don't overlap. Several threads may call it at the same time; how c is cut into areas
 * depends on their number, so that an element's result must not depend on its area. Not called if
 * c is empty. */
typedef void ek_gemm_finish(void *context, const ek_gemm_area *area);

/* c = a b, c = a b + bias, or with `accumulate` c += a b (+ bias). */
typedef struct ek_gemm {
    ek_dtype dtype; /* f32 or f64, for all operands */
    int64_t batch, n, m, k;
    ek_matrices a, b, c; /* (n, k), (k, m), (n, m) */
    bool accumulate;
    const void *bias; /* m elements that are added to each row of c; NULL: none */
    int64_t bias_stride;
    ek_gemm_finish *finish; /* NULL: none */
    void *finish_context;
} ek_gemm;

/* Describes out = x y for f32 or f64 tensors (batch, n, k), (batch, k, m), (batch, n, m). */
ek_gemm ek_gemm_of(const ek_tensor *out, const ek_tensor *x, const ek_tensor *y);

/* Computes the products. k may be 0. */
int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm);

/* Computes what the slot matmul does (kernels/kernels.h), followed by a ReLU with `relu`, if one of
 * the tensors is bf16 or f16. Sums are f32 and rounded once. A sum's order doesn't depend on the
 * number of threads. With `pairs`, for x and y of bf16 on a processor with ek_host_has_bf16,
 * elements are multiplied as bf16, else as f32. */
int ek_gemm_narrow(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate, bool relu, bool pairs);

#endif
