/* matmul.c: batched matrix products with bias, over tensors of any strides: by cuBLAS, or by our
 * own kernel where it cannot be opened. */
#include "cuda/blas.h"
#include "cuda/cuda.h"
#include "cuda/runtime.h"

static ek_cuda_matrices matrices_of(const ek_tensor *t)
{
    return (ek_cuda_matrices){ek_tensor_address(t), t->shape[0] > 1 ? t->stride[0] : 0,
                              t->stride[1], t->stride[2]};
}

/* out (B, n, m) as it is before the product: zeros, or the bias in every row. */
static int set_rows(ek_dev *dev, ek_tensor *out, const ek_tensor *bias, bool accumulate)
{
    if (!bias)
        return accumulate ? 0 : ek_cuda_fill(dev, out, 0);
    ek_tensor rows = {.dtype = bias->dtype,
                      .ndim = 3,
                      .shape = {out->shape[0], out->shape[1], out->shape[2]},
                      .stride = {0, 0, bias->stride[0]},
                      .offset = bias->offset,
                      .storage = bias->storage};
    if (accumulate)
        return ek_cuda_binary(dev, EK_BINARY_ADD, out, out, &rows, 1);
    return ek_cuda_copy(dev, out, &rows);
}

/* Many small products with one y are a single large one where the rows of x, and of out, follow
 * each other. */
static void join_batch(ek_cuda_gemm *g)
{
    int64_t n = g->batch * g->n;
    if (g->batch > 1 && g->y.batch == 0 && g->x.batch == g->n * g->x.row &&
        g->out.batch == g->n * g->out.row && ek_cuda_blas_reads(&g->x, n, g->k) &&
        ek_cuda_blas_reads(&g->out, n, g->m)) {
        g->n = n;
        g->batch = 1;
    }
}

/* An operand as cuBLAS can read it. One that is broadcast is copied once. */
static int readable(ek_cuda_stage *stage, ek_dev *dev, ek_cuda_matrices *m, const ek_tensor *t,
                    bool load)
{
    ek_tensor part = {.dtype = t->dtype,
                      .ndim = 3,
                      .shape = {m->batch == 0 ? 1 : t->shape[0], t->shape[1], t->shape[2]},
                      .stride = {t->stride[0], t->stride[1], t->stride[2]},
                      .offset = t->offset,
                      .storage = t->storage};
    if (ek_cuda_blas_reads(m, t->shape[1], t->shape[2]))
        return 0;
    EK_TRY(ek_cuda_stage_begin(stage, dev, &part, t->dtype, EK_CONTIGUOUS, false, load));
    *m = matrices_of(stage->tensor);
    return 0;
}

/* 1 when issued, 0 if there is no cuBLAS. The bias is in out already. */
static int by_blas(ek_dev *dev, const ek_cuda_gemm *gemm, ek_tensor *out, const ek_tensor *x,
                   const ek_tensor *y)
{
    ek_cuda_gemm g = *gemm;
    ek_cuda_stage sx = {.nbytes = 0}, sy = {.nbytes = 0}, so = {.nbytes = 0};
    int done = 0, rc;
    EK_TRY_GOTO(readable(&sx, dev, &g.x, x, true), rc, end);
    EK_TRY_GOTO(readable(&sy, dev, &g.y, y, true), rc, end);
    EK_TRY_GOTO(readable(&so, dev, &g.out, out, g.accumulate), rc, end);
    join_batch(&g);
    rc = done = ek_cuda_blas_gemm(dev, &g);
end:
    rc = ek_cuda_stage_end(&so, dev, out, done == 1, rc);
    rc = ek_cuda_stage_end(&sy, dev, NULL, false, rc);
    rc = ek_cuda_stage_end(&sx, dev, NULL, false, rc);
    return rc < 0 ? rc : done;
}

/* A status or a cudaError_t. */
static int product(ek_dev *dev, const ek_cuda_queue *queue, const ek_cuda_gemm *gemm,
                   ek_tensor *out, const ek_tensor *x, const ek_tensor *y, const ek_tensor *bias)
{
    ek_cuda_gemm g = *gemm;
    int rc = ek_cuda_blas_has(dev);
    EK_TRY(rc);
    if (rc > 0) {
        /* cuBLAS adds what it finds in out before it rounds: one pass over out, and no second
         * rounding of bf16. */
        if (bias)
            EK_TRY(set_rows(dev, out, bias, g.accumulate));
        g.accumulate = g.accumulate || bias;
        rc = by_blas(dev, &g, out, x, y);
        if (rc != 0)
            return rc < 0 ? rc : 0;
    } else if (bias) {
        g.bias = (ek_cuda_matrices){.data = ek_tensor_address(bias), .column = bias->stride[0]};
    }
    return ek_cuda_launch_gemm_direct(queue, &g);
}

int ek_cuda_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate)
{
    ek_cuda_gemm gemm = {.dtype = out->dtype,
                         .batch = out->shape[0],
                         .n = out->shape[1],
                         .m = out->shape[2],
                         .k = x->shape[2],
                         .x = matrices_of(x),
                         .y = matrices_of(y),
                         .out = matrices_of(out),
                         .accumulate = accumulate};
    ek_cuda_queue queue;
    if (gemm.batch == 0 || gemm.n == 0 || gemm.m == 0)
        return 0;
    if (gemm.k == 0)
        return set_rows(dev, out, bias, accumulate);
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, "matrix product", product(dev, &queue, &gemm, out, x, y, bias));
}
