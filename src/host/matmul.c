/* matmul.c: batched matrix products with bias, over tensors of any strides. */
#include "core/multiversion.h"
#include "host/dnn.h"
#include "host/gemm.h"
#include "host/host.h"
#include "host/isa.h"
#include "kernels/formulas.h"

/* Computes products of which an operand is bf16 or f16. With AMX oneDNN reaches several times what
 * the own kernels do. */
static int matmul_narrow(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                         const ek_tensor *bias, bool accumulate, bool relu)
{
    bool same = x->dtype == y->dtype && (!bias || bias->dtype == out->dtype);
    if (same && x->dtype == EK_BF16 && x->shape[2] > 0 && ek_dnn_has_amx()) {
        int done = ek_dnn_matmul(dev, out, x, y, bias, accumulate);
        if (done < 0)
            return done;
        if (done > 0)
            return relu ? ek_host_unary(dev, EK_UNARY_RELU, out, out, 0, 0) : 0;
    }
    const bool pairs = x->dtype == EK_BF16 && y->dtype == EK_BF16 && ek_host_bf16_is_fast();
    return ek_gemm_narrow(dev, out, x, y, bias, accumulate, relu, pairs);
}

static bool matmul_is_narrow(const ek_tensor *out, const ek_tensor *x, const ek_tensor *y)
{
    return ek_dtype_is_narrow(out->dtype) || ek_dtype_is_narrow(x->dtype) ||
           ek_dtype_is_narrow(y->dtype);
}

/* Does what ek_host_matmul does; `finish` is an epilogue of f32 and f64, or NULL. */
static int matmul_run(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                      const ek_tensor *bias, bool accumulate, ek_gemm_finish *finish, void *context)
{
    if (ek_count(out) == 0)
        return 0;
    if (matmul_is_narrow(out, x, y))
        return matmul_narrow(dev, out, x, y, bias, accumulate, false);
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
    if (matmul_is_narrow(y, x, w) && ek_count(y) > 0)
        return matmul_narrow(dev, &out, &left, &right, bias, false, relu);
    if (!relu)
        return matmul_run(dev, &out, &left, &right, bias, false, NULL, NULL);
    return matmul_run(dev, &out, &left, &right, bias, false,
                      y->dtype == EK_F32 ? matmul_relu_f32 : matmul_relu_f64, NULL);
}

/* The epilogue that writes gelu of the product's results to a matrix, which may be the product's.
 */
typedef struct matmul_gelu {
    void *data;
    int64_t row_stride, column_stride;
    bool tanh;
} matmul_gelu;

/* Rows are contiguous in most cases, so that the loop is vectorised. */
#define GELU_ROW(NAME, to_step, from_step)      \
    EK_IVDEP                                    \
    for (int64_t j = 0; j < area->columns; j++) \
    to[j * (to_step)] = NAME(from[j * (from_step)], 0, 0)
#define GELU(NAME, REAL, suffix)                                                                   \
    EK_MULTIVERSION static void NAME(void *context, const ek_gemm_area *area)                      \
    {                                                                                              \
        const matmul_gelu *g = context;                                                            \
        const int64_t step = area->column_stride, to_step = g->column_stride;                      \
        for (int64_t i = 0; i < area->rows; i++) {                                                 \
            const REAL *from = (const REAL *)area->c + i * area->row_stride;                       \
            REAL *to = (REAL *)g->data + (area->row + i) * g->row_stride + area->column * to_step; \
            if (step == 1 && to_step == 1 && g->tanh)                                              \
                GELU_ROW(ek_unary_GELU_TANH_##suffix, 1, 1);                                       \
            else if (step == 1 && to_step == 1)                                                    \
                GELU_ROW(ek_unary_GELU_##suffix, 1, 1);                                            \
            else if (g->tanh)                                                                      \
                GELU_ROW(ek_unary_GELU_TANH_##suffix, to_step, step);                              \
            else                                                                                   \
                GELU_ROW(ek_unary_GELU_##suffix, to_step, step);                                   \
        }                                                                                          \
    }
GELU(matmul_gelu_f32, float, f32)
GELU(matmul_gelu_f64, double, f64)

int ek_host_linear_gelu(ek_dev *dev, ek_tensor *y, ek_tensor *before, const ek_tensor *x,
                        const ek_tensor *w, const ek_tensor *bias, bool tanh)
{
    if (matmul_is_narrow(y, x, w)) {
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
