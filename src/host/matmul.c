/* matmul.c: batched matrix products with bias, over tensors of any strides. */
#include "core/multiversion.h"
#include "host/dnn.h"
#include "host/gemm.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/formulas.h"
#include "kernels/stage.h"

/* Large operands are converted to f32 in blocks of at most BLOCK_ELEMENTS elements. A block has at
 * least BLOCK_SIDE rows and columns, if the operand has as many. */
enum { BLOCK_ELEMENTS = 1 << 22, BLOCK_SIDE = 64 };

typedef struct matmul_block {
    int64_t n, m, k;
} matmul_block;

/* Returns the dimension of a matrix that runs fastest in memory, which conversion keeps. */
static int matmul_fastest(const ek_tensor *t)
{
    return t->stride[1] == 1 ? 1 : 2;
}

/* Returns the operand with batch size 1 if the whole batch shares one matrix (batch stride 0), so
 * that it is converted once. */
static ek_tensor matmul_without_batch(const ek_tensor *t)
{
    ek_tensor one = *t;
    if (t->stride[0] == 0)
        one.shape[0] = 1;
    return one;
}

static ek_tensor matmul_with_batch(const ek_tensor *one, const ek_tensor *t)
{
    ek_tensor all = *one;
    if (t->stride[0] == 0) {
        all.shape[0] = t->shape[0];
        all.stride[0] = 0;
    }
    return all;
}

/* Converts all operands to f32, multiplies, and converts the result back. */
static int matmul_block_by_f32(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                               const ek_tensor *bias, bool accumulate)
{
    ek_tensor one_x = matmul_without_batch(x), one_y = matmul_without_batch(y), all_x, all_y;
    ek_stage stages[4] = {{.nbytes = 0}};
    ek_stage *so = &stages[0], *sx = &stages[1], *sy = &stages[2], *sb = &stages[3];
    bool keep_out = out->dtype == EK_F32, keep_x = x->dtype == EK_F32, keep_y = y->dtype == EK_F32;
    bool keep_bias = !bias || bias->dtype == EK_F32;
    int rc;
    EK_TRY_GOTO(ek_stage_begin(so, dev, out, EK_F32, matmul_fastest(out), keep_out, accumulate), rc,
                end);
    EK_TRY_GOTO(ek_stage_begin(sx, dev, &one_x, EK_F32, matmul_fastest(x), keep_x, true), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sy, dev, &one_y, EK_F32, matmul_fastest(y), keep_y, true), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sb, dev, bias, EK_F32, 0, keep_bias, true), rc, end);
    all_x = matmul_with_batch(sx->tensor, x);
    all_y = matmul_with_batch(sy->tensor, y);
    rc = ek_host_matmul(dev, so->tensor, &all_x, &all_y, sb->tensor, accumulate);
end:
    rc = ek_stage_end(sb, dev, false, rc);
    rc = ek_stage_end(sy, dev, false, rc);
    rc = ek_stage_end(sx, dev, false, rc);
    return ek_stage_end(so, dev, true, rc);
}

static ek_tensor matmul_part_of(const ek_tensor *t, int dim, int64_t start, int64_t length)
{
    ek_tensor part = *t;
    part.offset += start * t->stride[dim];
    part.shape[dim] = length;
    return part;
}

/* Computes one matrix product in blocks. Sums over several blocks of k are kept in f32. */
static int matmul_matrix_by_f32(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                                const ek_tensor *bias, bool accumulate, matmul_block block)
{
    const int64_t n = out->shape[1], m = out->shape[2], k = x->shape[2];
    int rc = 0;
    for (int64_t j = 0; j < m && rc >= 0; j += block.m) {
        const int64_t columns = ek_smaller(block.m, m - j);
        ek_tensor bias_part = bias ? matmul_part_of(bias, 0, j, columns) : (ek_tensor){.ndim = 0};
        for (int64_t i = 0; i < n && rc >= 0; i += block.n) {
            const int64_t rows = ek_smaller(block.n, n - i);
            ek_tensor of_rows = matmul_part_of(out, 1, i, rows),
                      of_out = matmul_part_of(&of_rows, 2, j, columns);
            ek_stage stage = {.nbytes = 0};
            bool keep = k <= block.k || out->dtype == EK_F32;
            rc =
                ek_stage_begin(&stage, dev, &of_out, EK_F32, matmul_fastest(out), keep, accumulate);
            for (int64_t d = 0; (d < k || d == 0) && rc >= 0; d += block.k) {
                const int64_t depth = ek_smaller(block.k, k - d);
                ek_tensor x_rows = matmul_part_of(x, 1, i, rows),
                          of_x = matmul_part_of(&x_rows, 2, d, depth);
                ek_tensor y_rows = matmul_part_of(y, 1, d, depth),
                          of_y = matmul_part_of(&y_rows, 2, j, columns);
                rc = matmul_block_by_f32(dev, stage.tensor, &of_x, &of_y,
                                         bias && d == 0 ? &bias_part : NULL, accumulate || d > 0);
            }
            rc = ek_stage_end(&stage, dev, true, rc);
        }
    }
    return rc;
}

/* Multiplies operands of any size. At most three blocks are converted at a time. */
static int matmul_by_f32(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                         const ek_tensor *bias, bool accumulate)
{
    const int64_t batch = out->shape[0], n = out->shape[1], m = out->shape[2], k = x->shape[2];
    matmul_block block;
    block.k = ek_larger(1, ek_smaller(k, BLOCK_ELEMENTS / BLOCK_SIDE));
    block.m = ek_smaller(m, BLOCK_ELEMENTS / block.k);
    block.n = ek_smaller(n, BLOCK_ELEMENTS / ek_larger(block.k, block.m));
    bool whole = block.k >= k && block.m == m && block.n == n;
    if (!whole) {
        int rc = 0;
        for (int64_t i = 0; i < batch && rc >= 0; i++) {
            ek_tensor o = matmul_part_of(out, 0, i, 1), a = matmul_part_of(x, 0, i, 1),
                      b = matmul_part_of(y, 0, i, 1);
            rc = matmul_matrix_by_f32(dev, &o, &a, &b, bias, accumulate, block);
        }
        return rc;
    }
    /* A matrix that the whole batch shares doesn't count, because it is converted once. */
    int64_t largest =
        ek_larger(n * m, ek_larger(x->stride[0] ? n * k : 1, y->stride[0] ? k * m : 1));
    int64_t step = ek_larger(1, BLOCK_ELEMENTS / largest);
    int rc = 0;
    for (int64_t i = 0; i < batch && rc >= 0; i += step) {
        const int64_t count = ek_smaller(step, batch - i);
        ek_tensor o = matmul_part_of(out, 0, i, count), a = matmul_part_of(x, 0, i, count);
        ek_tensor b = matmul_part_of(y, 0, i, count);
        rc = matmul_block_by_f32(dev, &o, &a, &b, bias, accumulate);
    }
    return rc;
}

static int matmul_narrow(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
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

/* Does what ek_host_matmul does; `finish` is an epilogue of f32 and f64, or NULL. */
static int matmul_run(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                      const ek_tensor *bias, bool accumulate, ek_gemm_finish *finish, void *context)
{
    if (ek_count(out) == 0)
        return 0;
    if (ek_dtype_is_narrow(out->dtype) || ek_dtype_is_narrow(x->dtype) ||
        ek_dtype_is_narrow(y->dtype))
        return matmul_narrow(dev, out, x, y, bias, accumulate);
    ek_gemm gemm = ek_gemm_of(out, x, y);
    gemm.accumulate = accumulate;
    gemm.finish = finish;
    gemm.finish_context = context;
    if (bias) {
        gemm.bias = ek_tensor_address(bias);
        gemm.bias_stride = bias->stride[0];
    }
    return ek_gemm_run(dev, &gemm);
}

int ek_host_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate)
{
    return matmul_run(dev, out, x, y, bias, accumulate, NULL, NULL);
}

/* ---- linear layers ---- */

#define RELU(NAME, REAL)                                                     \
    EK_MULTIVERSION static void NAME(void *unused, const ek_gemm_area *area) \
    {                                                                        \
        (void)unused;                                                        \
        for (int64_t i = 0; i < area->rows; i++) {                           \
            REAL *y = (REAL *)area->c + i * area->row_stride;                \
            if (area->column_stride == 1)                                    \
                for (int64_t j = 0; j < area->columns; j++)                  \
                    y[j] = y[j] <= 0 ? 0 : y[j];                             \
            else                                                             \
                for (int64_t j = 0; j < area->columns; j++) {                \
                    REAL *at = y + j * area->column_stride;                  \
                    *at = *at <= 0 ? 0 : *at;                                \
                }                                                            \
        }                                                                    \
    }
RELU(matmul_relu_f32, float)
RELU(matmul_relu_f64, double)

int ek_host_linear(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                   const ek_tensor *bias, bool relu)
{
    ek_tensor out = ek_batch_of_matrix(y, false), left = ek_batch_of_matrix(x, false);
    ek_tensor right = ek_batch_of_matrix(w, true);
    const bool narrow = ek_dtype_is_narrow(y->dtype) || ek_dtype_is_narrow(x->dtype) ||
                        ek_dtype_is_narrow(w->dtype);
    if (!relu || narrow) {
        EK_TRY(matmul_run(dev, &out, &left, &right, bias, false, NULL, NULL));
        return relu ? ek_host_unary(dev, EK_UNARY_RELU, y, y, 0, 0) : 0;
    }
    return matmul_run(dev, &out, &left, &right, bias, false,
                      y->dtype == EK_F32 ? matmul_relu_f32 : matmul_relu_f64, NULL);
}

/* The epilogue that writes gelu of the product's results to another matrix. */
typedef struct matmul_gelu {
    void *data;
    int64_t row_stride, column_stride;
    bool tanh;
} matmul_gelu;

/* Rows are contiguous in most cases, so that the loop is vectorised. */
#define GELU_ROW(NAME, to_step, from_step)      \
    for (int64_t j = 0; j < area->columns; j++) \
    to[j * (to_step)] = NAME(from[j * (from_step)], 0, 0)
#define GELU(NAME, REAL, suffix)                                                            \
    EK_MULTIVERSION static void NAME(void *context, const ek_gemm_area *area)               \
    {                                                                                       \
        const matmul_gelu *g = context;                                                     \
        const int64_t step = area->column_stride, to_step = g->column_stride;               \
        for (int64_t i = 0; i < area->rows; i++) {                                          \
            const REAL *restrict from = (const REAL *)area->c + i * area->row_stride;       \
            REAL *restrict to =                                                             \
                (REAL *)g->data + (area->row + i) * g->row_stride + area->column * to_step; \
            if (step == 1 && to_step == 1 && g->tanh)                                       \
                GELU_ROW(ek_unary_GELU_TANH_##suffix, 1, 1);                                \
            else if (step == 1 && to_step == 1)                                             \
                GELU_ROW(ek_unary_GELU_##suffix, 1, 1);                                     \
            else if (g->tanh)                                                               \
                GELU_ROW(ek_unary_GELU_TANH_##suffix, to_step, step);                       \
            else                                                                            \
                GELU_ROW(ek_unary_GELU_##suffix, to_step, step);                            \
        }                                                                                   \
    }
GELU(matmul_gelu_f32, float, f32)
GELU(matmul_gelu_f64, double, f64)

int ek_host_linear_gelu(ek_dev *dev, ek_tensor *y, ek_tensor *before, const ek_tensor *x,
                        const ek_tensor *w, const ek_tensor *bias, bool tanh)
{
    if (ek_dtype_is_narrow(y->dtype) || ek_dtype_is_narrow(x->dtype) ||
        ek_dtype_is_narrow(w->dtype)) {
        EK_TRY(ek_host_linear(dev, before, x, w, bias, false));
        return ek_host_unary(dev, tanh ? EK_UNARY_GELU_TANH : EK_UNARY_GELU, y, before, 0, 0);
    }
    ek_tensor out = ek_batch_of_matrix(before, false), left = ek_batch_of_matrix(x, false);
    ek_tensor right = ek_batch_of_matrix(w, true);
    matmul_gelu gelu = {ek_tensor_address(y), y->stride[0], y->stride[1], tanh};
    return matmul_run(dev, &out, &left, &right, bias, false,
                      y->dtype == EK_F32 ? matmul_gelu_f32 : matmul_gelu_f64, &gelu);
}

int ek_host_linear_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                   const ek_tensor *dy)
{
    ek_tensor out = ek_batch_of_matrix(dw, false), left = ek_batch_of_matrix(dy, true);
    ek_tensor right = ek_batch_of_matrix(x, false);
    ek_tensor row = ek_row_of_vector(dbias);
    EK_TRY(ek_host_matmul(dev, &out, &left, &right, NULL, false));
    return dbias->shape[0] > 0 ? ek_host_reduce(dev, EK_REDUCE_SUM, &row, dy) : 0;
}
