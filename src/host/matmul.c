/* matmul.c: batched matrix products with bias, over tensors of any strides. */
#include "host/dnn.h"
#include "host/gemm.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"

/* The operands of matmul_bias_rows, which writes bias (m) to all rows of out (B, n, m), or with
 * `add` adds bias to them. */
typedef struct bias_rows {
    const ek_tensor *out;
    const ek_tensor *bias;
    bool add;
} bias_rows;

#define BIAS_ROWS(NAME, TYPE)                                                              \
    static void NAME(void *context, int64_t begin, int64_t end)                            \
    {                                                                                      \
        const bias_rows *b = context;                                                      \
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
BIAS_ROWS(matmul_bias_rows_f32, float)
BIAS_ROWS(matmul_bias_rows_f64, double)

static ek_matrices matmul_matrices_of(const ek_tensor *tensor)
{
    return (ek_matrices){ek_tensor_address(tensor), tensor->stride[0], tensor->stride[1],
                         tensor->stride[2]};
}

/* With AMX oneDNN reaches several times what the own kernels do. */
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
    if (matmul_is_narrow(out, x, y))
        return matmul_narrow(dev, out, x, y, bias, accumulate, false);
    gemm.a = matmul_matrices_of(x);
    gemm.b = matmul_matrices_of(y);
    gemm.c = matmul_matrices_of(out);
    if (bias) {
        bias_rows rows = {out, bias, accumulate};
        ek_parallel_for(dev, gemm.batch * gemm.n, 1 + 16384 / gemm.m,
                        out->dtype == EK_F32 ? matmul_bias_rows_f32 : matmul_bias_rows_f64, &rows);
        gemm.accumulate = true;
    }
    return ek_gemm_run(dev, &gemm);
}

/* ---- linear layers ---- */

int ek_host_linear(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                   const ek_tensor *bias, bool relu)
{
    ek_tensor out = ek_batch_of_matrix(y, false), left = ek_batch_of_matrix(x, false);
    ek_tensor right = ek_batch_of_matrix(w, true);
    if (matmul_is_narrow(y, x, w) && ek_count(y) > 0)
        return matmul_narrow(dev, &out, &left, &right, bias, false, relu);
    EK_TRY(ek_host_matmul(dev, &out, &left, &right, bias, false));
    return relu ? ek_host_unary(dev, EK_UNARY_RELU, y, y, 0, 0) : 0;
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
