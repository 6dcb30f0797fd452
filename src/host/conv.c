/* conv.c: convolution and its gradients, by the fastest of several algorithms, which are the rows
 * of a table. */
#include "host/conv.h"

#include "host/gemm_blocked.h"
#include "host/host.h"
#include "host/isa.h"
#include "kernels/stage.h"

/* Each kind of convolution computes one of x, w (with bias) and y from the other two. */
static bool conv_computes_x(ek_conv_kind kind)
{
    return kind == EK_CONV_INPUT_GRADIENT;
}

static bool conv_computes_w(ek_conv_kind kind)
{
    return kind == EK_CONV_WEIGHT_GRADIENT;
}

static bool conv_computes_y(ek_conv_kind kind)
{
    return kind == EK_CONV_FORWARD;
}

/* ---- the table of algorithms ---- */

/* Computes a convolution by one algorithm. Returns 0 when done, 1 if the algorithm isn't fast for
 * this convolution, negative on an error. */
typedef int conv_run_function(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x,
                              const ek_tensor *w, const ek_tensor *bias, const ek_tensor *y,
                              const ek_conv_params *params);

static bool conv_winograd_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                               const ek_tensor *y, const ek_conv_params *params)
{
    return ek_conv_winograd_side(kind, x, w, y, params) != 0;
}

static int conv_winograd(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                         const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    const int side = ek_conv_winograd_side(kind, x, w, y, params);
    return ek_conv_winograd(dev, kind, side, x, w, bias, y, params);
}

static bool conv_dnn_wins_bf16(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                               const ek_tensor *y, const ek_conv_params *params)
{
    (void)kind, (void)x, (void)w, (void)y, (void)params;
    return ek_dnn_has_amx() || (ek_dnn_has_bf16() && ek_host_bf16_is_fast());
}

static int conv_dnn(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                    const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    const int done = ek_dnn_conv(dev, kind, x, w, bias, y, params);
    return done < 0 ? done : !done;
}

/* Windows of one element are products, which convert bf16 and f16 while they pack: a copy in f32
 * costs more. */
static bool conv_product_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                              const ek_tensor *y, const ek_conv_params *params)
{
    (void)kind, (void)y;
    return ek_conv_point_can(x, w, params);
}

/* The limits were measured against oneDNN 2.6 on a Zen 5 core, with AVX-512 and with AVX2. With
 * fewer channels, panels are half empty, or sums are too short: from 64 to 64 channels, forward
 * reaches 82 % of the peak with AVX-512, oneDNN 94 %. */
static bool conv_point_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                            const ek_tensor *y, const ek_conv_params *params)
{
    enum { LEAST_CHANNELS = 64, WHOLE = 16 };
    const int64_t c = x->shape[1], o = y->shape[1];
    const bool few = kind == EK_CONV_FORWARD && ek_host_isa() == EK_ISA_AVX512 &&
                     ek_larger(c, o) < 2 * LEAST_CHANNELS;
    return ek_conv_point_can(x, w, params) && ek_host_isa() >= EK_ISA_AVX2 &&
           ek_smaller(c, o) >= LEAST_CHANNELS && c % WHOLE == 0 && o % WHOLE == 0 && !few;
}

/* Returns a channels-last tensor as a matrix whose columns are the channels. For kernels only. */
static ek_tensor conv_matrix_of(const ek_tensor *t)
{
    const int64_t channels = t->shape[1];
    ek_tensor m = *t;
    m.ndim = 2;
    m.shape[0] = channels > 0 ? ek_count(t) / channels : 0;
    m.stride[0] = channels;
    m.stride[1] = 1;
    return m;
}

int ek_conv_bias_gradient(ek_dev *dev, const ek_tensor *bias, const ek_tensor *y)
{
    const ek_tensor positions = conv_matrix_of(y);
    ek_tensor row = ek_row_of_vector(bias);
    return ek_host_reduce(dev, EK_REDUCE_SUM, &row, &positions);
}

/* Input gradients of f32 leave oneDNN's product aside, because it takes memory that the ledger
 * doesn't see: 4 MB of code, and copies of large operands for each thread. oneDNN computes sums of
 * DEEP terms or more to fewer channels in 0.83 of the time, without such copies, and others in
 * 0.97. */
static int conv_product_dense(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x,
                              const ek_tensor *w, const ek_tensor *bias, const ek_tensor *y)
{
    enum { DEEP = 1024 };
    ek_tensor mx = conv_matrix_of(x), mw = conv_matrix_of(w), my = conv_matrix_of(y);
    ek_tensor none = {.ndim = 1}, sum = bias ? *bias : none;
    if (conv_computes_y(kind))
        return ek_host_linear(dev, &my, &mx, &mw, bias, false);
    if (conv_computes_w(kind))
        return ek_host_linear_weight_gradient(dev, &mw, &sum, &mx, &my);
    ek_tensor out = ek_batch_of_matrix(&mx, false), left = ek_batch_of_matrix(&my, false);
    ek_tensor right = ek_batch_of_matrix(&mw, false);
    const bool deep = my.shape[1] >= DEEP && mx.shape[1] < DEEP;
    if (x->dtype != EK_F32 || deep)
        return ek_host_matmul(dev, &out, &left, &right, NULL, false);
    const ek_gemm gemm = ek_gemm_of(&out, &left, &right);
    return ek_gemm_run_blocked(dev, &gemm, false);
}

/* Returns some rows of some images. For kernels only. */
static ek_tensor conv_rows_of(const ek_tensor *t, int64_t sample, int64_t samples, int64_t row,
                              int64_t rows)
{
    ek_tensor part = *t;
    part.offset += sample * t->stride[0] + row * t->stride[2];
    part.shape[0] = samples;
    part.shape[2] = rows;
    return part;
}

/* Strided windows reach some elements of x, which are copied to or from a dense tensor. Few rows of
 * y have their copies at a time, so that these stay in cache and the peak of memory is small. A
 * weight gradient, whose sums run over all rows, has all copies at once. */
static int conv_product(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                        const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    enum { COPY_NBYTES = 2 << 20 };
    const int64_t line = y->shape[3] * x->shape[1] * (int64_t)ek_dtype_size(x->dtype);
    const int64_t most = conv_computes_w(kind) ? y->shape[0] * y->shape[2] : COPY_NBYTES / line;
    const int64_t rows = ek_larger(1, ek_smaller(most, y->shape[2]));
    const int64_t samples = ek_larger(1, most / y->shape[2]);
    ek_tensor reached = *x;
    for (int d = 0; d < 2; d++) {
        reached.stride[2 + d] *= params->stride[d];
        reached.shape[2 + d] = y->shape[2 + d];
    }
    if (ek_count(&reached) == ek_count(x))
        return conv_product_dense(dev, kind, x, w, bias, y);
    if (conv_computes_x(kind))
        EK_TRY(ek_host_fill(dev, (ek_tensor *)(uintptr_t)x, 0));
    for (int64_t i = 0; i < y->shape[0]; i += samples)
        for (int64_t row = 0; row < y->shape[2]; row += rows) {
            const int64_t images = ek_smaller(samples, y->shape[0] - i);
            const int64_t count = ek_smaller(rows, y->shape[2] - row);
            const ek_tensor from = conv_rows_of(&reached, i, images, row, count);
            const ek_tensor to = conv_rows_of(y, i, images, row, count);
            ek_stage stage;
            EK_TRY(ek_stage_begin(&stage, dev, &from, x->dtype, 1, false, !conv_computes_x(kind)));
            const int rc = conv_product_dense(dev, kind, stage.tensor, w, bias, &to);
            EK_TRY(ek_stage_end(&stage, dev, conv_computes_x(kind), rc));
        }
    return 0;
}

/* Weight gradients have a faster algorithm (conv_point.c). */
static int conv_point(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                      const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    return conv_computes_w(kind) ? ek_conv_point_weight(dev, x, w, bias, y, params)
                                 : conv_product(dev, kind, x, w, bias, y, params);
}

/* The algorithms, best first. The convolution is computed by the first row that takes the dtype,
 * whose `wins` returns true, and whose `run` returns 0; if there is no such row, by
 * ek_conv_columns, which takes any dtype. */
typedef struct conv_way {
    ek_dtype dtype; /* of the computation; f32 algorithms convert bf16 and f16 operands */
    bool dnn;       /* takes row-major weights unchanged, because it reorders weights anyway */
    /* Returns true if the algorithm can compute this convolution and was measured to be faster than
     * the rows below. NULL: always true. Not called for empty tensors. */
    bool (*wins)(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                 const ek_conv_params *params);
    conv_run_function *run;
} conv_way;
static const conv_way conv_ways[] = {
    {EK_BF16, false, ek_conv_implicit_bf16_wins, ek_conv_implicit},
    {EK_BF16, true, conv_dnn_wins_bf16, conv_dnn},
    {EK_BF16, false, conv_product_wins, conv_product},
    {EK_F16, false, conv_product_wins, conv_product},
    {EK_F32, false, conv_winograd_wins, conv_winograd},
    {EK_F32, false, conv_point_wins, conv_point},
    {EK_F32, false, ek_conv_implicit_wins, ek_conv_implicit},
    {EK_F32, true, NULL, conv_dnn},
};
enum { CONV_WAYS = sizeof conv_ways / sizeof *conv_ways };

/* Computes by the algorithm `way`, for which operands with another layout or dtype are copied. */
static int conv_compute(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                        const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params,
                        const conv_way *way)
{
    const ek_dtype dtype = way->dtype;
    const bool w_by_rows = way->dnn && ek_tensor_is_contiguous(w, EK_CONTIGUOUS);
    const bool keep_w = w->dtype == dtype && (w_by_rows || ek_is_channels_last(w));
    const int w_axis = w_by_rows ? w->ndim - 1 : 1;
    const bool keep_bias =
        !bias || (bias->dtype == dtype && ek_tensor_is_contiguous(bias, EK_CONTIGUOUS));
    ek_stage stages[4] = {{.nbytes = 0}};
    ek_stage *sx = &stages[0], *sw = &stages[1], *sb = &stages[2], *sy = &stages[3];
    bool done = false;
    int rc;
    EK_TRY_GOTO(ek_stage_image(sx, dev, x, dtype, !conv_computes_x(kind)), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sw, dev, w, dtype, w_axis, keep_w, !conv_computes_w(kind)), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sb, dev, bias, dtype, 0, keep_bias, !conv_computes_w(kind)), rc,
                end);
    EK_TRY_GOTO(ek_stage_image(sy, dev, y, dtype, !conv_computes_y(kind)), rc, end);
    rc = way->run(dev, kind, sx->tensor, sw->tensor, sb->tensor, sy->tensor, params);
    done = rc == 0;
end:
    rc = ek_stage_end(sx, dev, done && conv_computes_x(kind), rc);
    rc = ek_stage_end(sw, dev, done && conv_computes_w(kind), rc);
    rc = ek_stage_end(sb, dev, done && conv_computes_w(kind), rc);
    return ek_stage_end(sy, dev, done && conv_computes_y(kind), rc);
}

static int conv_run(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                    const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    const bool empty = ek_count(x) == 0 || ek_count(w) == 0 || ek_count(y) == 0;
    const ek_dtype wide = ek_dtype_wide(x->dtype);
    int rc = 1;
    for (int i = 0; i < CONV_WAYS && rc > 0 && !empty; i++) {
        const conv_way *way = &conv_ways[i];
        if ((way->dtype == x->dtype || way->dtype == wide) &&
            (!way->wins || way->wins(kind, x, w, y, params)))
            rc = conv_compute(dev, kind, x, w, bias, y, params, way);
    }
    const conv_way columns = {wide, false, NULL, ek_conv_columns};
    return rc > 0 ? conv_compute(dev, kind, x, w, bias, y, params, &columns) : rc;
}

ek_memory_format ek_host_conv_format(ek_dev *dev, ek_dtype dtype)
{
    (void)dev, (void)dtype;
    return EK_CHANNELS_LAST;
}

int ek_host_conv_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                         const ek_tensor *bias, const ek_conv_params *params)
{
    return conv_run(dev, EK_CONV_FORWARD, x, w, bias, y, params);
}

int ek_host_conv_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *w,
                                const ek_conv_params *params)
{
    return conv_run(dev, EK_CONV_INPUT_GRADIENT, dx, w, NULL, dy, params);
}

int ek_host_conv_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                 const ek_tensor *dy, const ek_conv_params *params)
{
    return conv_run(dev, EK_CONV_WEIGHT_GRADIENT, x, dw, dbias, dy, params);
}
