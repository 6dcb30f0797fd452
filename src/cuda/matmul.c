/* matmul.c: batched matrix products with bias, over tensors of any strides, and linear layers.
 * cuBLAS computes them; if it can't be opened or refuses a product, this library's kernel does. A
 * bias, a ReLU, or sums of the gradient for the bias are one launch with the product if cuBLASLt
 * supports that.
 *
 * cuBLAS's handle and workspace are made with the device's first product and guarded by
 * ek_cuda_device.lock. cuBLAS expects column-major matrices, and so reads a row-major matrix as its
 * transpose. The product out = x y is therefore computed as out^T = y^T x^T. */
#include <limits.h>
#include <stdlib.h>

#include "cuda/launches.h"
#include "cuda/matmul.h"
#include "evenkeel/precision.h"
#include "kernels/stage.h"

/* ---- layouts ---- */

/* Returns true if the matrix's rows are contiguous: cuBLAS reads it as its transpose. The stride of
 * a dimension of size 1 doesn't matter. */
static bool matrix_has_rows(const ek_cuda_matrices *m, int64_t rows, int64_t columns)
{
    return (columns == 1 || m->column == 1) && (rows == 1 || m->row >= columns);
}

static ek_cuda_matrices matrix_transposed(const ek_cuda_matrices *m)
{
    return (ek_cuda_matrices){m->data, m->batch, m->column, m->row};
}

/* Returns true if cuBLAS can read an operand: its rows or its columns are contiguous and don't
 * overlap. */
static bool blas_reads(const ek_cuda_matrices *m, int64_t rows, int64_t columns)
{
    ek_cuda_matrices turned = matrix_transposed(m);
    return matrix_has_rows(m, rows, columns) || matrix_has_rows(&turned, columns, rows);
}

/* ---- the handle ---- */

struct ek_cuda_blas {
    const ek_cublas_api *api;
    cublasHandle_t handle; /* NULL if it could not be made */
    void *workspace;       /* the address as allocated */
    size_t nbytes;
    ek_cuda_lt *lt; /* uses the same workspace, because it uses the same stream; may be NULL */
};

/* Gives cuBLAS a workspace that the ledger counts. All calls use this workspace, which makes
 * results repeatable. It has the size that NVIDIA recommends, at most 1/64 of the device's
 * capacity, and is smaller if memory is short. */
static void blas_give_workspace(ek_dev *dev, struct ek_cuda_blas *blas)
{
    size_t nbytes = (size_t)(ek_cuda_of(dev)->capability >= 90 ? 32 : 8) << 20;
    ek_memory_stats stats;
    ek_ledger_read(dev, &stats);
    uint64_t capacity = stats.capacity;
    while (capacity > 0 && nbytes > capacity / 64)
        nbytes /= 2;
    void *workspace = NULL;
    for (; nbytes >= 1 << 20; nbytes /= 4)
        if (ek_cuda_try_scratch(dev, ek_cuda_padded(nbytes), &workspace) > 0)
            break;
    blas->workspace = workspace;
    blas->nbytes = workspace ? ek_cuda_padded(nbytes) : 0;
    if (blas->api->cublasSetWorkspace_v2(blas->handle, ek_cuda_aligned(workspace),
                                         workspace ? nbytes : 0) != CUBLAS_STATUS_SUCCESS)
        ek_log_line(EK_LOG_WARNING, "%s: cuBLAS does not take %zu bytes of workspace", dev->name,
                    nbytes);
}

static void blas_make_handle(ek_dev *dev, struct ek_cuda_blas *blas)
{
    cublasStatus_t status = blas->api->cublasCreate_v2(&blas->handle);
    if (status == CUBLAS_STATUS_SUCCESS) /* before the workspace, which this call resets */
        status = blas->api->cublasSetStream_v2(blas->handle, ek_cuda_of(dev)->compute);
    /* Each call chooses TF32. Sums of bf16 and f16 products stay f32 to the end. */
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->api->cublasSetMathMode(
            blas->handle,
            (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    if (status == CUBLAS_STATUS_SUCCESS) {
        blas_give_workspace(dev, blas);
        blas->lt = ek_cuda_lt_open(dev, ek_cuda_aligned(blas->workspace),
                                   blas->nbytes > 0 ? blas->nbytes - 256 : 0);
        return;
    }
    (void)cudaGetLastError();
    ek_log_line(EK_LOG_WARNING, "%s: cuBLAS cannot be used (%s): matrix products will be slow",
                dev->name, blas->api->cublasGetStatusString(status));
    if (blas->handle)
        (void)blas->api->cublasDestroy_v2(blas->handle);
    blas->handle = NULL;
}

/* Sets *blas to the device's cuBLAS; NULL if there is none. device->lock is held. */
static int blas_enter(ek_dev *dev, struct ek_cuda_blas **blas)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    const ek_cublas_api *api = ek_cublas();
    *blas = NULL;
    if (!api)
        return 0;
    if (!device->blas) {
        struct ek_cuda_blas *made = calloc(1, sizeof *made);
        if (!made)
            return EK_FAIL(EK_E_NO_MEMORY, "no memory for cuBLAS's handle on %s", dev->name);
        made->api = api;
        blas_make_handle(dev, made);
        device->blas = made;
    }
    if (device->blas->handle)
        *blas = device->blas;
    return 0;
}

void ek_cuda_blas_close(ek_cuda_device *device)
{
    struct ek_cuda_blas *blas = device->blas;
    if (!blas)
        return;
    int restore = ek_cuda_enter_anyway(device->dev);
    ek_cuda_lt_close(blas->lt);
    if (blas->handle)
        (void)blas->api->cublasDestroy_v2(blas->handle);
    if (blas->workspace)
        ek_cuda_scratch_free(device->dev, blas->workspace, blas->nbytes);
    ek_cuda_leave(device->dev, restore);
    free(blas);
    device->blas = NULL;
}

/* Returns 1 if the device has cuBLAS (the handle is made), 0 if not, negative on error. */
static int blas_has(ek_dev *dev)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    struct ek_cuda_blas *blas;
    pthread_mutex_lock(&device->lock);
    int rc = blas_enter(dev, &blas);
    pthread_mutex_unlock(&device->lock);
    return rc < 0 ? rc : blas != NULL;
}

/* ---- products ---- */

/* Returns the operand for cuBLAS, which reads a row-major matrix as its transpose. */
static ek_cuda_operand blas_operand_of(const ek_cuda_matrices *m, int64_t rows, int64_t columns)
{
    bool by_rows = matrix_has_rows(m, rows, columns);
    int64_t length = by_rows ? columns : rows, others = by_rows ? rows : columns;
    int64_t leading = by_rows ? m->row : m->column;
    return (ek_cuda_operand){m->data, by_rows ? CUBLAS_OP_N : CUBLAS_OP_T,
                             others == 1 ? length : leading};
}

static cudaDataType blas_data_type(ek_dtype dtype)
{
    return dtype == EK_F32    ? CUDA_R_32F
           : dtype == EK_F64  ? CUDA_R_64F
           : dtype == EK_BF16 ? CUDA_R_16BF
                              : CUDA_R_16F;
}

static cublasComputeType_t blas_compute_type(ek_dtype dtype)
{
    if (dtype == EK_F64)
        return CUBLAS_COMPUTE_64F;
    if (dtype == EK_F32 && ek_tf32_allowed())
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    return CUBLAS_COMPUTE_32F;
}

static void *blas_element(void *data, int64_t index, ek_dtype dtype)
{
    return (char *)data + index * (int64_t)ek_dtype_size(dtype);
}

/* The most products per call, because cuBLAS makes batches a dimension of the grid. */
enum { BATCHES = 32768 };

/* Returns the product that cuBLAS computes for `g`, whose out has contiguous rows. */
static ek_cuda_product blas_product_of(const ek_cuda_gemm *g)
{
    return (ek_cuda_product){.type = blas_data_type(g->dtype),
                             .compute = blas_compute_type(g->dtype),
                             .m = (int)g->m,
                             .n = (int)g->n,
                             .k = (int)g->k,
                             .a = blas_operand_of(&g->y, g->k, g->m),
                             .b = blas_operand_of(&g->x, g->n, g->k),
                             .d = g->out.data,
                             .leading = g->n == 1 ? g->m : g->out.row,
                             .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
}

/* Issues the products of `g`, whose out has contiguous rows. */
static cublasStatus_t blas_issue(const struct ek_cuda_blas *blas, const ek_cuda_gemm *g)
{
    const double one = 1, add = g->accumulate;
    const float one_f = 1, add_f = g->accumulate;
    bool f64 = g->dtype == EK_F64;
    const void *alpha = f64 ? (const void *)&one : &one_f;
    const void *beta = f64 ? (const void *)&add : &add_f;
    ek_cuda_product p = blas_product_of(g);
    int lda = (int)p.a.leading, ldb = (int)p.b.leading, ldd = (int)p.leading;
    if (g->batch == 1)
        return blas->api->cublasGemmEx(blas->handle, p.a.transpose, p.b.transpose, p.m, p.n, p.k,
                                       alpha, p.a.data, p.type, lda, p.b.data, p.type, ldb, beta,
                                       p.d, p.type, ldd, p.compute, CUBLAS_GEMM_DEFAULT);
    for (int64_t done = 0; done < g->batch; done += BATCHES) {
        int count = (int)(g->batch - done < BATCHES ? g->batch - done : BATCHES);
        cublasStatus_t status = blas->api->cublasGemmStridedBatchedEx(
            blas->handle, p.a.transpose, p.b.transpose, p.m, p.n, p.k, alpha,
            blas_element(g->y.data, done * g->y.batch, g->dtype), p.type, lda, g->y.batch,
            blas_element(g->x.data, done * g->x.batch, g->dtype), p.type, ldb, g->x.batch, beta,
            blas_element(g->out.data, done * g->out.batch, g->dtype), p.type, ldd, g->out.batch,
            count, p.compute, CUBLAS_GEMM_DEFAULT);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Operations that are done together with a product out = x y. If all members are zero, there are
 * none. */
typedef struct matmul_extra {
    const ek_tensor *bias; /* (m), added to each row */
    bool relu;
    ek_tensor *sums; /* (n) gets the sums of x's rows */
} matmul_extra;

static bool matmul_extra_any(const matmul_extra *extra)
{
    return extra->bias || extra->relu || extra->sums;
}

/* Issues a product with all of its extra. If `turned`, g is the product of the transposed matrices.
 * Sums aren't supported if TF32 is used, because only products may round their operands. */
static cublasStatus_t blas_issue_extra(const struct ek_cuda_blas *blas, const ek_cuda_gemm *g,
                                       const matmul_extra *extra, bool turned)
{
    ek_cuda_product p = blas_product_of(g);
    const ek_tensor *vector = extra->bias ? extra->bias : extra->sums;
    bool whole = !vector || vector->shape[0] == 1 || vector->stride[0] == 1;
    bool rounds = extra->sums && p.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    bool adds = extra->bias || extra->relu;
    if (!blas->lt || !whole || rounds || g->batch > 1 || g->accumulate || (turned && adds) ||
        (extra->sums && adds))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    p.epilogue = extra->sums    ? (turned ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB)
                 : !extra->bias ? CUBLASLT_EPILOGUE_RELU
                 : extra->relu  ? CUBLASLT_EPILOGUE_RELU_BIAS
                                : CUBLASLT_EPILOGUE_BIAS;
    p.vector = vector ? ek_tensor_address(vector) : NULL;
    return ek_cuda_lt_issue(blas->lt, &p);
}

static bool blas_fits_int(const ek_cuda_gemm *g)
{
    const int64_t sizes[] = {g->n,     g->m,        g->k,       g->x.row,     g->x.column,
                             g->y.row, g->y.column, g->out.row, g->out.column};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > INT_MAX)
            return false;
    return true;
}

static int blas_failed(ek_dev *dev, const struct ek_cuda_blas *blas, const ek_cuda_gemm *g,
                       cublasStatus_t status)
{
    int late = ek_cuda_late(dev);
    if (late != cudaSuccess)
        EK_TRY(ek_cuda_check(dev, "matrix product", late));
    return EK_FAIL(EK_E_BACKEND,
                   "matrix product of %s (%lld, %lld, %lld) and (%lld, %lld, %lld) on %s: cuBLAS "
                   "says %s (%d)",
                   ek_dtype_name(g->dtype), (long long)g->batch, (long long)g->n, (long long)g->k,
                   (long long)g->batch, (long long)g->k, (long long)g->m, dev->name,
                   blas->api->cublasGetStatusString(status), (int)status);
}

/* Issues the product with all of its extra. blas_reads is true for all three operands, none is
 * empty, and k is above 0. Returns 1 when issued, 0 if cuBLAS is missing or refuses, negative on
 * error. */
static int blas_gemm(ek_dev *dev, const ek_cuda_gemm *gemm, const matmul_extra *extra)
{
    ek_cuda_gemm g = *gemm;
    bool turned = !matrix_has_rows(&g.out, g.n, g.m);
    if (!blas_fits_int(&g))
        return 0;
    if (turned) { /* out^T = y^T x^T has contiguous rows */
        g.n = gemm->m;
        g.m = gemm->n;
        g.x = matrix_transposed(&gemm->y);
        g.y = matrix_transposed(&gemm->x);
        g.out = matrix_transposed(&gemm->out);
    }
    ek_cuda_device *device = ek_cuda_of(dev);
    struct ek_cuda_blas *blas;
    pthread_mutex_lock(&device->lock);
    int rc = blas_enter(dev, &blas);
    if (rc >= 0 && blas) {
        cublasStatus_t status = matmul_extra_any(extra) ? blas_issue_extra(blas, &g, extra, turned)
                                                        : blas_issue(blas, &g);
        /* Without a workspace cuBLAS may refuse a call, even after earlier calls succeeded. */
        bool refused =
            status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_SUPPORTED;
        if (status == CUBLAS_STATUS_SUCCESS)
            rc = 1;
        else if (!refused || g.batch > BATCHES)
            rc = blas_failed(dev, blas, &g, status);
    }
    pthread_mutex_unlock(&device->lock);
    return rc;
}

/* ---- tensors ---- */

static ek_cuda_matrices matmul_matrices_of(const ek_tensor *t)
{
    return (ek_cuda_matrices){ek_tensor_address(t), t->shape[0] > 1 ? t->stride[0] : 0,
                              t->stride[1], t->stride[2]};
}

/* Sets out (B, n, m) to the values to which the product is added: zeros, or the bias in every row.
 * If `accumulate`, adds the bias to out. */
static int matmul_set_rows(ek_dev *dev, ek_tensor *out, const ek_tensor *bias, bool accumulate)
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

/* Joins many small products with one y into one large product, if the rows of x and of out of one
 * product follow those of the product before. */
static void matmul_join_batch(ek_cuda_gemm *g)
{
    int64_t n = g->batch * g->n;
    if (g->batch > 1 && g->y.batch == 0 && g->x.batch == g->n * g->x.row &&
        g->out.batch == g->n * g->out.row && blas_reads(&g->x, n, g->k) &&
        blas_reads(&g->out, n, g->m)) {
        g->n = n;
        g->batch = 1;
    }
}

/* Stages an operand if cuBLAS can't read it. A broadcast operand is copied once. */
static int matmul_readable(ek_stage *stage, ek_dev *dev, ek_cuda_matrices *m, const ek_tensor *t,
                           bool load)
{
    ek_tensor part = {.dtype = t->dtype,
                      .ndim = 3,
                      .shape = {m->batch == 0 ? 1 : t->shape[0], t->shape[1], t->shape[2]},
                      .stride = {t->stride[0], t->stride[1], t->stride[2]},
                      .offset = t->offset,
                      .storage = t->storage};
    if (blas_reads(m, t->shape[1], t->shape[2]))
        return 0;
    EK_TRY(ek_stage_begin(stage, dev, &part, t->dtype, 2, false, load));
    stage->original = (ek_tensor *)t; /* written only if t is the output */
    *m = matmul_matrices_of(stage->tensor);
    return 0;
}

/* Issues the product by cuBLAS. Returns 1 when issued with all of the extra, 0 if cuBLAS cannot do
 * so, negative on error. */
static int matmul_by_blas(ek_dev *dev, const ek_cuda_gemm *gemm, ek_tensor *out, const ek_tensor *x,
                          const ek_tensor *y, const matmul_extra *extra)
{
    ek_cuda_gemm g = *gemm;
    ek_stage sx = {.nbytes = 0}, sy = {.nbytes = 0}, so = {.nbytes = 0};
    int done = 0, rc;
    EK_TRY_GOTO(matmul_readable(&sx, dev, &g.x, x, true), rc, end);
    EK_TRY_GOTO(matmul_readable(&sy, dev, &g.y, y, true), rc, end);
    EK_TRY_GOTO(matmul_readable(&so, dev, &g.out, out, g.accumulate), rc, end);
    matmul_join_batch(&g);
    rc = done = blas_gemm(dev, &g, extra);
end:
    rc = ek_stage_end(&so, dev, done == 1, rc);
    rc = ek_stage_end(&sy, dev, false, rc);
    rc = ek_stage_end(&sx, dev, false, rc);
    return rc < 0 ? rc : done;
}

static bool matmul_is_readable(const ek_cuda_gemm *g)
{
    return blas_reads(&g->x, g->n, g->k) && blas_reads(&g->y, g->k, g->m) &&
           blas_reads(&g->out, g->n, g->m);
}

/* Issues a product with its bias, and with the rest of the extra if one launch can do all. *extra
 * becomes what is left to do. Returns a status (not above 0) or a cudaError_t. */
static int matmul_issue(ek_dev *dev, const ek_cuda_stream *stream, const ek_cuda_gemm *gemm,
                        ek_tensor *out, const ek_tensor *x, const ek_tensor *y, matmul_extra *extra)
{
    const matmul_extra nothing = {NULL, false, NULL}, bias = {extra->bias, false, NULL};
    ek_cuda_gemm g = *gemm;
    int rc = blas_has(dev);
    EK_TRY(rc);
    if (rc == 0) {
        if (extra->bias)
            g.bias = (ek_cuda_matrices){.data = ek_tensor_address(extra->bias),
                                        .column = extra->bias->stride[0]};
        g.relu = extra->relu;
        *extra = (matmul_extra){NULL, false, extra->sums};
        return ek_cuda_launch_gemm(stream, &g);
    }
    rc = 0;
    if (matmul_extra_any(extra) && matmul_is_readable(&g)) {
        rc = matmul_by_blas(dev, &g, out, x, y, extra);
        if (rc != 0)
            *extra = nothing;
        if (rc == 0 && extra->bias && extra->relu) {
            rc = matmul_by_blas(dev, &g, out, x, y, &bias);
            extra->bias = rc > 0 ? NULL : extra->bias;
        }
    }
    if (rc != 0)
        return rc < 0 ? rc : 0;
    /* cuBLAS adds out's values before it rounds. So bf16 and f16 aren't rounded twice, and a bias
     * takes one pass over out. */
    if (extra->bias)
        EK_TRY(matmul_set_rows(dev, out, extra->bias, g.accumulate));
    g.accumulate = g.accumulate || extra->bias;
    extra->bias = NULL;
    rc = matmul_by_blas(dev, &g, out, x, y, &nothing);
    return rc != 0 ? (rc < 0 ? rc : 0) : ek_cuda_launch_gemm(stream, &g);
}

static int matmul_run(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                      bool accumulate, matmul_extra *extra)
{
    ek_cuda_gemm gemm = {.dtype = out->dtype,
                         .batch = out->shape[0],
                         .n = out->shape[1],
                         .m = out->shape[2],
                         .k = x->shape[2],
                         .x = matmul_matrices_of(x),
                         .y = matmul_matrices_of(y),
                         .out = matmul_matrices_of(out),
                         .accumulate = accumulate};
    if (gemm.batch == 0 || gemm.n == 0 || gemm.m == 0)
        return 0;
    if (gemm.k == 0) {
        const ek_tensor *bias = extra->bias;
        extra->bias = NULL;
        return matmul_set_rows(dev, out, bias, accumulate);
    }
    EK_CUDA_RUN(dev, "matrix product", matmul_issue(dev, &stream, &gemm, out, x, y, extra));
}

int ek_cuda_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate)
{
    matmul_extra extra = {.bias = bias};
    return matmul_run(dev, out, x, y, accumulate, &extra);
}

/* ---- linear layers ---- */

int ek_cuda_linear(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                   const ek_tensor *bias, bool relu)
{
    ek_tensor out = ek_batch_of_matrix(y, false), left = ek_batch_of_matrix(x, false);
    ek_tensor right = ek_batch_of_matrix(w, true);
    matmul_extra extra = {.bias = bias, .relu = relu};
    EK_TRY(matmul_run(dev, &out, &left, &right, false, &extra));
    return extra.relu ? ek_cuda_unary(dev, EK_UNARY_RELU, y, y, 0, 0) : 0;
}

int ek_cuda_linear_gelu(ek_dev *dev, ek_tensor *y, ek_tensor *before, const ek_tensor *x,
                        const ek_tensor *w, const ek_tensor *bias, bool tanh)
{
    EK_TRY(ek_cuda_linear(dev, before, x, w, bias, false));
    return ek_cuda_unary(dev, tanh ? EK_UNARY_GELU_TANH : EK_UNARY_GELU, y, before, 0, 0);
}

int ek_cuda_linear_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                   const ek_tensor *dy)
{
    ek_tensor out = ek_batch_of_matrix(dw, false), left = ek_batch_of_matrix(dy, true);
    ek_tensor right = ek_batch_of_matrix(x, false);
    matmul_extra extra = {.sums = dbias};
    EK_TRY(matmul_run(dev, &out, &left, &right, false, &extra));
    if (!extra.sums || dbias->shape[0] == 0)
        return 0;
    ek_tensor row = ek_row_of_vector(dbias);
    return ek_cuda_reduce(dev, EK_REDUCE_SUM, &row, dy);
}
