/* matmul.c: batched matrix products with bias, over tensors of any strides. */
#include "host/dnn.h"
#include "host/gemm.h"
#include "host/host.h"
#include "host/parallel.h"
#include "host/stage.h"

/* out (B, n, m) = or += bias (m). */
typedef struct bias_rows {
    const ek_tensor *out;
    const ek_tensor *bias;
    bool add;
} bias_rows;

#define BIAS_ROWS(NAME, TYPE)                                                              \
    static void NAME(const bias_rows *b, int64_t begin, int64_t end)                       \
    {                                                                                      \
        int64_t rows = b->out->shape[1], columns = b->out->shape[2];                       \
        int64_t step = b->out->stride[2], bias_step = b->bias->stride[0];                  \
        const TYPE *bias = ek_tensor_address(b->bias);                                     \
        for (int64_t i = begin; i < end; i++) {                                            \
            TYPE *row = (TYPE *)ek_tensor_address(b->out) + i / rows * b->out->stride[0] + \
                        i % rows * b->out->stride[1];                                      \
            if (b->add)                                                                    \
                for (int64_t j = 0; j < columns; j++)                                      \
                    row[j * step] += bias[j * bias_step];                                  \
            else                                                                           \
                for (int64_t j = 0; j < columns; j++)                                      \
                    row[j * step] = bias[j * bias_step];                                   \
        }                                                                                  \
    }
BIAS_ROWS(bias_rows_f32, float)
BIAS_ROWS(bias_rows_f64, double)

static void bias_part(void *context, int64_t begin, int64_t end)
{
    const bias_rows *b = context;
    if (b->out->dtype == EK_F32)
        bias_rows_f32(b, begin, end);
    else
        bias_rows_f64(b, begin, end);
}

static ek_matrices matrices_of(const ek_tensor *tensor)
{
    return (ek_matrices){ek_tensor_address(tensor), tensor->stride[0], tensor->stride[1],
                         tensor->stride[2]};
}

/* The dimension of a matrix that runs fastest in memory: conversion keeps it. */
static int fastest(const ek_tensor *t)
{
    return t->stride[1] == 1 ? 1 : 2;
}

/* What is one matrix for the whole batch is converted once: without the batch, and with it again.
 */
static ek_tensor without_batch(const ek_tensor *t)
{
    ek_tensor one = *t;
    if (t->stride[0] == 0)
        one.shape[0] = 1;
    return one;
}

static ek_tensor with_batch(const ek_tensor *one, const ek_tensor *t)
{
    ek_tensor all = *one;
    if (t->stride[0] == 0) {
        all.shape[0] = t->shape[0];
        all.stride[0] = 0;
    }
    return all;
}

/* In f32 and back. */
static int matmul_by_f32(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                         const ek_tensor *bias, bool accumulate)
{
    ek_tensor one_x = without_batch(x), one_y = without_batch(y), all_x, all_y;
    ek_stage stages[4] = {{.nbytes = 0}};
    ek_stage *so = &stages[0], *sx = &stages[1], *sy = &stages[2], *sb = &stages[3];
    bool keep_out = out->dtype == EK_F32, keep_x = x->dtype == EK_F32, keep_y = y->dtype == EK_F32;
    bool keep_bias = !bias || bias->dtype == EK_F32;
    int rc;
    EK_TRY_GOTO(ek_stage_begin(so, dev, out, EK_F32, fastest(out), keep_out, accumulate), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sx, dev, &one_x, EK_F32, fastest(x), keep_x, true), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sy, dev, &one_y, EK_F32, fastest(y), keep_y, true), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sb, dev, bias, EK_F32, 0, keep_bias, true), rc, end);
    all_x = with_batch(sx->tensor, x);
    all_y = with_batch(sy->tensor, y);
    rc = ek_host_matmul(dev, so->tensor, &all_x, &all_y, sb->tensor, accumulate);
end:
    rc = ek_stage_end(sb, dev, false, rc);
    rc = ek_stage_end(sy, dev, false, rc);
    rc = ek_stage_end(sx, dev, false, rc);
    return ek_stage_end(so, dev, true, rc);
}

static int matmul_bf16(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                       const ek_tensor *bias, bool accumulate)
{
    bool same = x->dtype == y->dtype && (!bias || bias->dtype == out->dtype);
    if (same && x->dtype == EK_BF16 && x->shape[2] > 0 && ek_dnn_has_bf16()) {
        int done = ek_dnn_matmul(dev, out, x, y, bias, accumulate);
        if (done != 0)
            return done < 0 ? done : 0;
    }
    return matmul_by_f32(dev, out, x, y, bias, accumulate);
}

int ek_host_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate)
{
    ek_gemm gemm = {.dtype = out->dtype,
                    .batch = out->shape[0],
                    .n = out->shape[1],
                    .m = out->shape[2],
                    .k = x->shape[2],
                    .accumulate = accumulate};
    if (gemm.batch == 0 || gemm.n == 0 || gemm.m == 0)
        return 0;
    if (out->dtype == EK_BF16 || x->dtype == EK_BF16 || y->dtype == EK_BF16)
        return matmul_bf16(dev, out, x, y, bias, accumulate);
    gemm.a = matrices_of(x);
    gemm.b = matrices_of(y);
    gemm.c = matrices_of(out);
    if (bias) {
        bias_rows rows = {out, bias, accumulate};
        ek_parallel_for(dev, gemm.batch * gemm.n, 1 + 16384 / gemm.m, bias_part, &rows);
        gemm.accumulate = true;
    }
    return ek_gemm_run(dev, &gemm);
}
