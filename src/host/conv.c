/* conv.c: convolution and its gradients, by the fastest of several algorithms, which are the rows
 * of a table. */
#include "host/conv.h"

#include "host/gemm_blocked.h"
#include "host/host.h"
#include "host/isa.h"
#include "kernels/stage.h"

/* ---- the algorithms ---- */

static bool conv_winograd_wins(const ek_conv *c)
{
    return ek_conv_winograd_side(c) != 0;
}

static int conv_winograd(ek_dev *dev, const ek_conv *c)
{
    return ek_conv_winograd(dev, c, ek_conv_winograd_side(c));
}

static bool conv_dnn_wins_bf16(const ek_conv *c)
{
    (void)c;
    return ek_dnn_has_amx() || (ek_dnn_has_bf16() && ek_host_bf16_is_fast());
}

static int conv_dnn(ek_dev *dev, const ek_conv *c)
{
    const int done = ek_dnn_conv(dev, c);
    return done < 0 ? done : !done;
}

/* The limits were measured against oneDNN 2.6 on a Zen 5 core, with AVX-512 and with AVX2. With
 * fewer channels, panels are half empty, or sums are too short: from 64 to 64 channels, forward
 * reaches 82 % of the peak with AVX-512, oneDNN 94 %. */
static bool conv_point_wins(const ek_conv *conv)
{
    enum { LEAST_CHANNELS = 64, WHOLE = 16 };
    const int64_t c = conv->x->shape[1], o = conv->y->shape[1];
    const bool few = conv->kind == EK_CONV_FORWARD && ek_host_isa() == EK_ISA_AVX512 &&
                     ek_larger(c, o) < 2 * LEAST_CHANNELS;
    return ek_conv_point_can(conv) && ek_host_isa() >= EK_ISA_AVX2 &&
           ek_smaller(c, o) >= LEAST_CHANNELS && c % WHOLE == 0 && o % WHOLE == 0 && !few;
}

/* oneDNN reorders all weights in each call, which costs much if they outnumber what they are
 * multiplied by, and computes weights of few taps slowly. The limits were measured against oneDNN
 * 2.6 on an Emerald Rapids Xeon, with AVX-512 and with AVX2. */
static bool conv_columns_wins(const ek_conv *c)
{
    const int64_t least = ek_smaller(c->x->shape[1], c->y->shape[1]);
    if (c->params->dims != 2 || c->params->groups != 1 || ek_host_isa() < EK_ISA_AVX2)
        return false;
    if (c->kind == EK_CONV_WEIGHT_GRADIENT && least >= 32 && c->w->shape[2] * c->w->shape[3] <= 4)
        return true;
    return least >= 64 && ek_count(c->w) > ek_count(c->x) + ek_count(c->y);
}

/* The limits were measured on Zen 5 cores against oneDNN 2.6. If windows aren't strided and many
 * positions share the weights that oneDNN reorders, oneDNN is near the processor's peak, except in
 * weight gradients. With AMX oneDNN reaches several times that peak. */
static bool conv_columns_wins_bf16(const ek_conv *c)
{
    enum { LEAST_SAMPLES = 8 };
    const ek_tensor *to = c->kind == EK_CONV_FORWARD ? c->y : c->x;
    const int64_t least = ek_smaller(c->x->shape[1], c->y->shape[1]);
    const bool can =
        c->params->dims == 2 && c->params->groups == 1 && ek_conv_columns_can(c, EK_BF16);
    if (!can || !ek_host_bf16_is_fast() || ek_dnn_has_amx())
        return false;
    const int64_t positions = to->shape[0] * to->shape[2] * to->shape[3];
    const bool one_tap = c->w->shape[2] * c->w->shape[3] == 1;
    const bool strided = c->params->stride[0] > 1 || c->params->stride[1] > 1;
    if (c->kind == EK_CONV_INPUT_GRADIENT && strided && c->x->shape[0] < LEAST_SAMPLES)
        return false;
    if (c->kind == EK_CONV_WEIGHT_GRADIENT)
        return c->x->shape[0] > 1 && least >= (one_tap ? 128 : 64);
    if (c->kind == EK_CONV_FORWARD && strided)
        return least >= 64;
    return least >= 64 && positions <= (one_tap && !strided ? 512 : 2048);
}

/* Returns true if there is one window, which is all of x: one row of a matrix for each sample. */
static bool conv_has_one_window(const ek_conv *c)
{
    bool one = c->params->groups == 1 && ek_dtype_wide(c->x->dtype) == EK_F32;
    for (int d = 0; d < c->params->dims && one; d++)
        one = c->y->shape[2 + d] == 1 && c->w->shape[2 + d] == c->x->shape[2 + d] &&
              c->params->padding[d] == 0 && c->params->dilation[d] == 1;
    return one;
}

static bool conv_is_product(const ek_conv *c)
{
    return ek_conv_point_can(c) || conv_has_one_window(c);
}

/* Returns a channels-last tensor as a matrix of `rows` rows. For kernels only. */
static ek_tensor conv_matrix_of(const ek_tensor *t, int64_t rows)
{
    ek_tensor m = *t;
    m.ndim = 2;
    m.shape[0] = rows;
    m.shape[1] = m.stride[0] = rows > 0 ? ek_count(t) / rows : 0;
    m.stride[1] = 1;
    return m;
}

int ek_conv_bias_gradient(ek_dev *dev, const ek_tensor *bias, const ek_tensor *y)
{
    const int64_t channels = y->shape[1];
    const ek_tensor positions = conv_matrix_of(y, channels > 0 ? ek_count(y) / channels : 0);
    ek_tensor row = ek_row_of_vector(bias);
    return ek_host_reduce(dev, EK_REDUCE_SUM, &row, &positions);
}

/* Input gradients of f32 leave oneDNN's product aside, because it takes memory that the ledger
 * doesn't see: 4 MB of code, and copies of large operands for each thread. oneDNN computes sums of
 * DEEP terms or more to fewer channels in 0.83 of the time, without such copies, and others in
 * 0.97. */
static int conv_product_dense(ek_dev *dev, const ek_conv *c)
{
    enum { DEEP = 1024 };
    const int64_t outputs = c->y->shape[1], rows = ek_count(c->y) / outputs;
    ek_tensor mx = conv_matrix_of(c->x, rows), mw = conv_matrix_of(c->w, outputs);
    ek_tensor my = conv_matrix_of(c->y, rows);
    ek_tensor none = {.ndim = 1}, sum = c->bias ? *c->bias : none;
    if (c->kind == EK_CONV_FORWARD)
        return ek_host_linear(dev, &my, &mx, &mw, c->bias, false);
    if (c->kind == EK_CONV_WEIGHT_GRADIENT)
        return ek_host_linear_weight_gradient(dev, &mw, &sum, &mx, &my);
    ek_tensor out = ek_batch_of_matrix(&mx, false), left = ek_batch_of_matrix(&my, false);
    ek_tensor right = ek_batch_of_matrix(&mw, false);
    const bool deep = my.shape[1] >= DEEP && mx.shape[1] < DEEP;
    if (c->x->dtype != EK_F32 || deep)
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

/* Windows of one element, and single windows, are products, which convert bf16 and f16 while they
 * pack: a copy in f32 costs more. Strided windows reach some elements of x, which are copied to or
 * from a dense tensor. Few rows of y have their copies at a time, so that these stay in cache and
 * the peak of memory is small. A weight gradient, whose sums run over all rows, has all copies at
 * once. */
static int conv_product(ek_dev *dev, const ek_conv *c)
{
    enum { COPY_NBYTES = 2 << 20 };
    const ek_tensor *x = c->x, *y = c->y;
    if (conv_has_one_window(c))
        return conv_product_dense(dev, c);
    const int64_t line = y->shape[3] * x->shape[1] * (int64_t)ek_dtype_size(x->dtype);
    const int64_t most =
        c->kind == EK_CONV_WEIGHT_GRADIENT ? y->shape[0] * y->shape[2] : COPY_NBYTES / line;
    const int64_t rows = ek_larger(1, ek_smaller(most, y->shape[2]));
    const int64_t samples = ek_larger(1, most / y->shape[2]);
    ek_tensor reached = *x;
    for (int d = 0; d < 2; d++) {
        reached.stride[2 + d] *= c->params->stride[d];
        reached.shape[2 + d] = y->shape[2 + d];
    }
    if (ek_count(&reached) == ek_count(x))
        return conv_product_dense(dev, c);
    if (c->kind == EK_CONV_INPUT_GRADIENT)
        EK_TRY(ek_host_fill(dev, (ek_tensor *)(uintptr_t)x, 0));
    for (int64_t i = 0; i < y->shape[0]; i += samples)
        for (int64_t row = 0; row < y->shape[2]; row += rows) {
            const int64_t images = ek_smaller(samples, y->shape[0] - i);
            const int64_t count = ek_smaller(rows, y->shape[2] - row);
            const ek_tensor from = conv_rows_of(&reached, i, images, row, count);
            const ek_tensor to = conv_rows_of(y, i, images, row, count);
            ek_conv part = *c;
            ek_stage stage;
            EK_TRY(ek_stage_begin(&stage, dev, &from, x->dtype, 1, false,
                                  c->kind != EK_CONV_INPUT_GRADIENT));
            part.x = stage.tensor;
            part.y = &to;
            EK_TRY(ek_stage_end(&stage, dev, c->kind == EK_CONV_INPUT_GRADIENT,
                                conv_product_dense(dev, &part)));
        }
    return 0;
}

/* Weight gradients have a faster algorithm (conv_point.c). */
static int conv_point(ek_dev *dev, const ek_conv *c)
{
    return c->kind == EK_CONV_WEIGHT_GRADIENT ? ek_conv_point_weight(dev, c) : conv_product(dev, c);
}

/* The algorithms, best first. The convolution is computed by the first row that takes the dtype,
 * whose `wins` returns true, and whose `run` returns 0; if there is no such row, by
 * ek_conv_columns, which takes any dtype. */
typedef struct conv_way {
    ek_dtype dtype; /* of the computation; f32 algorithms convert bf16 and f16 operands */
    bool dnn;       /* takes row-major weights unchanged, because it reorders weights anyway */
    /* Returns true if the algorithm can compute this convolution and was measured to be faster than
     * the rows below. NULL: always true. Not called for empty tensors. */
    bool (*wins)(const ek_conv *conv);
    /* Returns 0 when done, 1 if the algorithm isn't fast for this convolution, negative on error.
     */
    int (*run)(ek_dev *dev, const ek_conv *conv);
} conv_way;
static const conv_way conv_ways[] = {
    {EK_BF16, false, conv_columns_wins_bf16, ek_conv_columns},
    {EK_BF16, true, conv_dnn_wins_bf16, conv_dnn},
    {EK_BF16, false, conv_is_product, conv_product},
    {EK_F16, false, conv_is_product, conv_product},
    {EK_F32, false, conv_winograd_wins, conv_winograd},
    {EK_F32, false, conv_has_one_window, conv_product},
    {EK_F32, false, conv_point_wins, conv_point},
    {EK_F32, false, conv_columns_wins, ek_conv_columns},
    {EK_F32, true, NULL, conv_dnn},
};
enum { CONV_WAYS = sizeof conv_ways / sizeof *conv_ways };

/* Computes by the algorithm `way`, for which operands with another layout or dtype are copied. */
static int conv_compute(ek_dev *dev, const ek_conv *c, const conv_way *way)
{
    const ek_dtype dtype = way->dtype;
    const ek_tensor *w = c->w, *bias = c->bias;
    const bool w_by_rows = way->dnn && ek_tensor_is_contiguous(w, EK_CONTIGUOUS);
    const bool keep_w = w->dtype == dtype && (w_by_rows || ek_is_channels_last(w));
    const int w_axis = w_by_rows ? w->ndim - 1 : 1;
    const bool keep_bias =
        !bias || (bias->dtype == dtype && ek_tensor_is_contiguous(bias, EK_CONTIGUOUS));
    /* Each kind of convolution computes one of x, w (with bias) and y from the other two. */
    const bool x_out = c->kind == EK_CONV_INPUT_GRADIENT, y_out = c->kind == EK_CONV_FORWARD,
               w_out = c->kind == EK_CONV_WEIGHT_GRADIENT;
    ek_stage x = {.nbytes = 0}, weight = x, sum = x, y = x;
    bool done = false;
    int rc;
    EK_TRY_GOTO(ek_stage_image(&x, dev, c->x, dtype, !x_out), rc, end);
    EK_TRY_GOTO(ek_stage_begin(&weight, dev, w, dtype, w_axis, keep_w, !w_out), rc, end);
    EK_TRY_GOTO(ek_stage_begin(&sum, dev, bias, dtype, 0, keep_bias, !w_out), rc, end);
    EK_TRY_GOTO(ek_stage_image(&y, dev, c->y, dtype, !y_out), rc, end);
    rc = way->run(dev, &(const ek_conv){c->kind, x.tensor, weight.tensor, sum.tensor, y.tensor,
                                        c->params});
    done = rc == 0;
end:
    rc = ek_stage_end(&x, dev, done && x_out, rc);
    rc = ek_stage_end(&weight, dev, done && w_out, rc);
    rc = ek_stage_end(&sum, dev, done && w_out, rc);
    return ek_stage_end(&y, dev, done && y_out, rc);
}

static int conv_run(ek_dev *dev, const ek_conv *c)
{
    const bool empty = ek_count(c->x) == 0 || ek_count(c->w) == 0 || ek_count(c->y) == 0;
    const ek_dtype dtype = c->x->dtype, wide = ek_dtype_wide(dtype);
    int rc = 1;
    for (int i = 0; i < CONV_WAYS && rc > 0 && !empty; i++) {
        const conv_way *way = &conv_ways[i];
        if ((way->dtype == dtype || way->dtype == wide) && (!way->wins || way->wins(c)))
            rc = conv_compute(dev, c, way);
    }
    const conv_way columns = {wide, false, NULL, ek_conv_columns};
    return rc > 0 ? conv_compute(dev, c, &columns) : rc;
}

ek_memory_format ek_host_conv_format(ek_dev *dev, ek_dtype dtype)
{
    (void)dev, (void)dtype;
    return EK_CHANNELS_LAST;
}

int ek_host_conv_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                         const ek_tensor *bias, const ek_conv_params *params)
{
    return conv_run(dev, &(const ek_conv){EK_CONV_FORWARD, x, w, bias, y, params});
}

int ek_host_conv_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *w,
                                const ek_conv_params *params)
{
    return conv_run(dev, &(const ek_conv){EK_CONV_INPUT_GRADIENT, dx, w, NULL, dy, params});
}

int ek_host_conv_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                 const ek_tensor *dy, const ek_conv_params *params)
{
    return conv_run(dev, &(const ek_conv){EK_CONV_WEIGHT_GRADIENT, x, dw, dbias, dy, params});
}
