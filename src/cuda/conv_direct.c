/* conv_direct.c: convolution and its gradients without cuDNN, for f64 and for what cuDNN doesn't
 * support.
 *
 * Most are products (conv_by_products). The elements of `from` that a position of `to` reads become
 * a row of a matrix, for as many positions at once as have COLUMNS_NBYTES. This matrix and the
 * weights, or the gradient of `to`, are multiplied as matrices (matmul.c). Elements of 16 bits are
 * multiplied in f32, so that results are rounded once.
 *
 * If products are small, or memory is short, each element of the result is a sum of one thread,
 * warp or block (conv_direct.cu). */
#include <math.h>

#include "cuda/conv.h"
#include "cuda/runtime.h"
#include "evenkeel/precision.h"
#include "kernels/stage.h"

/* ---- the geometry ---- */

/* Positions and steps beyond this limit are computed in 64 bits. */
enum { FAR = 1 << 28 };

static bool conv_is_far(int64_t value)
{
    return value > FAR || value < -FAR;
}

static void conv_set_wide(ek_cuda_conv_gather *conv)
{
    double columns = (double)conv->groups * (double)conv->from_channels;
    for (int i = 0; i < 3; i++) {
        columns *= (double)conv->taps[i];
        double reach = fabs((double)conv->origin[i]) +
                       fabs((double)conv->tap_step[i]) * (double)conv->taps[i] +
                       (double)conv->row_step[i] * (double)conv->to.size[i];
        conv->wide = conv->wide || reach > (double)FAR || conv_is_far(conv->from.size[i]) ||
                     conv_is_far(conv->divide[i]);
    }
    conv->wide = conv->wide || conv->from.wide || conv->to.wide || columns > (double)FAR;
}

/* Describes how a convolution gathers, which its weights' gradient does alike; with `gradient`, how
 * the gradient of x gathers. */
static ek_cuda_conv_gather conv_gather_of(const ek_tensor *from, const ek_tensor *to,
                                          const ek_tensor *w, const ek_conv_params *params,
                                          bool gradient)
{
    ek_cuda_conv_gather conv = {.from = ek_cuda_image_of(from),
                                .to = ek_cuda_image_of(to),
                                .w = ek_tensor_address(w),
                                .groups = params->groups,
                                .from_channels = from->shape[1] / params->groups,
                                .to_channels = to->shape[1] / params->groups,
                                .w_group = w->shape[0] / params->groups * w->stride[0],
                                .w_from = w->stride[gradient ? 0 : 1],
                                .w_to = w->stride[gradient ? 1 : 0],
                                .depth = from->shape[1] / params->groups,
                                .taps_inside = gradient};
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - params->dims);
        conv.taps[i] = d < 0 ? 1 : w->shape[2 + d];
        conv.w_tap[i] = d < 0 ? 0 : w->stride[2 + d];
        conv.origin[i] = d < 0 ? 0 : gradient ? params->padding[d] : -params->padding[d];
        conv.tap_step[i] = d < 0 ? 0 : gradient ? -params->dilation[d] : params->dilation[d];
        conv.row_step[i] = d < 0 || gradient ? 1 : params->stride[d];
        conv.divide[i] = d < 0 || !gradient ? 1 : params->stride[d];
        conv.per_taps[i] = ek_cuda_divider_of(conv.taps[i]);
        conv.depth *= conv.taps[i];
    }
    conv.per_from = ek_cuda_divider_of(conv.from_channels);
    conv.per_to = ek_cuda_divider_of(conv.to_channels);
    conv.per_row = ek_cuda_divider_of(conv.groups * conv.depth);
    conv_set_wide(&conv);
    return conv;
}

/* ---- as products ---- */

/* Smaller products are left to the kernels that sum each element. */
enum { COLUMNS_NBYTES = 16 << 20, LEAST_CHANNELS = 16, LEAST_PRODUCTS = 1 << 18 };

/* Returns false if products are few, or would be computed in TF32 against the caller's wish. */
static bool conv_is_product(const ek_cuda_conv_gather *conv)
{
    double products = (double)conv->depth * (double)conv->to.count;
    for (int d = 0; d < 3; d++)
        products /= (double)conv->divide[d];
    const bool rounds = conv->to.dtype == EK_F32 && ek_tf32_allowed();
    return !conv->wide && conv->to_channels >= LEAST_CHANNELS && products >= LEAST_PRODUCTS &&
           (!rounds || ek_tf32_convolution_allowed());
}

typedef struct conv_products {
    const ek_cuda_conv_gather *gather;
    bool of_weights; /* The result is w, not `to`. */
    bool adds;       /* `to` has the bias already. */
    ek_stage w, to, columns;
} conv_products;

/* Returns matrices in the memory of t, one for each group, from element `first` on. */
static ek_tensor conv_matrices(const ek_tensor *t, int64_t first, const int64_t shape[3],
                               const int64_t stride[3])
{
    return (ek_tensor){.dtype = t->dtype,
                       .ndim = 3,
                       .shape = {shape[0], shape[1], shape[2]},
                       .stride = {stride[0], stride[1], stride[2]},
                       .offset = t->offset + first,
                       .storage = t->storage};
}

/* Multiplies the columns of `rows` rows from `first` on. */
static int conv_multiply(ek_dev *dev, conv_products *p, int64_t first, int64_t rows)
{
    const int64_t groups = p->gather->groups, m = p->gather->to_channels, k = p->gather->depth;
    const ek_tensor columns =
        conv_matrices(p->columns.tensor, 0, (const int64_t[]){groups, rows, k},
                      (const int64_t[]){k, groups * k, 1});
    const bool of_weights = p->of_weights, turned = !of_weights && !p->gather->taps_inside;
    ek_tensor w = conv_matrices(p->w.tensor, 0,
                                (const int64_t[]){groups, of_weights ? m : k, of_weights ? k : m},
                                (const int64_t[]){m * k,
                                                  turned       ? 1
                                                  : of_weights ? k
                                                               : m,
                                                  turned ? k : 1});
    ek_tensor to =
        conv_matrices(p->to.tensor, first * groups * m,
                      (const int64_t[]){groups, of_weights ? m : rows, of_weights ? rows : m},
                      (const int64_t[]){m, of_weights ? 1 : groups * m,
                                        of_weights ? groups * m : 1});
    return of_weights ? ek_cuda_matmul(dev, &w, &to, &columns, NULL, first > 0)
                      : ek_cuda_matmul(dev, &to, &columns, &w, NULL, p->adds);
}

static int conv_run_products(ek_dev *dev, conv_products *p, int64_t rows)
{
    const int64_t all = p->gather->to.samples * p->gather->to.plane;
    ek_cuda_stream stream;
    for (int64_t first = 0; first < all; first += rows) {
        rows = rows < all - first ? rows : all - first;
        EK_TRY(ek_cuda_begin(dev, &stream));
        EK_TRY(ek_cuda_end(dev, &stream, "convolution",
                           ek_cuda_launch_conv_columns(&stream, p->gather, first, rows,
                                                       ek_tensor_address(p->columns.tensor))));
        EK_TRY(conv_multiply(dev, p, first, rows));
    }
    return 1;
}

static int conv_stage(ek_stage *stage, ek_dev *dev, const ek_tensor *t, ek_dtype dtype, bool load)
{
    return ek_stage_try(stage, dev, t, dtype, 1, t->dtype == dtype && ek_is_channels_last(t), load);
}

/* Returns 1 if the convolution is computed, 0 if it isn't worth products or memory is short,
 * negative on error. */
static int conv_by_products(ek_dev *dev, const ek_cuda_conv_gather *conv, bool of_weights,
                            const ek_tensor *to, const ek_tensor *w, const ek_tensor *bias)
{
    conv_products p = {.gather = conv, .of_weights = of_weights, .adds = bias != NULL};
    const ek_dtype dtype = ek_dtype_wide(to->dtype);
    const int64_t width = conv->groups * conv->depth, all = conv->to.samples * conv->to.plane;
    int64_t rows = COLUMNS_NBYTES / (width * (int64_t)ek_dtype_size(dtype));
    rows = rows < 1 ? 1 : rows < all ? rows : all;
    const ek_tensor columns = {.ndim = 2, .shape = {rows, width}};
    if (!conv_is_product(conv))
        return 0;
    int done = 0, rc = conv_stage(&p.w, dev, w, dtype, !of_weights);
    if (rc > 0)
        rc = conv_stage(&p.to, dev, to, dtype, of_weights);
    if (rc > 0)
        rc = ek_stage_try(&p.columns, dev, &columns, dtype, 1, false, false);
    if (rc > 0 && bias) {
        const ek_tensor repeated = ek_cuda_conv_along_channels(bias, to, false);
        rc = ek_cuda_copy(dev, p.to.tensor, &repeated) < 0 ? ek_error_pending() : 1;
    }
    if (rc > 0)
        rc = done = conv_run_products(dev, &p, rows);
    rc = ek_stage_end(&p.columns, dev, false, rc);
    rc = ek_stage_end(&p.to, dev, done > 0 && !of_weights, rc);
    rc = ek_stage_end(&p.w, dev, done > 0 && of_weights, rc);
    return rc < 0 ? rc : done > 0;
}

/* ---- the three functions ---- */

static int conv_run_gather(ek_dev *dev, const char *operation, const ek_cuda_conv_gather *conv)
{
    EK_CUDA_RUN(dev, operation, ek_cuda_launch_conv_gather(&stream, conv));
}

int ek_cuda_conv_direct_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                                const ek_tensor *bias, const ek_conv_params *params)
{
    ek_cuda_conv_gather conv = conv_gather_of(x, y, w, params, false);
    conv.bias = bias ? ek_tensor_address(bias) : NULL;
    conv.by_bias = bias ? bias->stride[0] : 0;
    const int rc = conv_by_products(dev, &conv, false, y, w, bias);
    return rc == 0 ? conv_run_gather(dev, "conv_forward", &conv) : rc < 0 ? rc : 0;
}

int ek_cuda_conv_direct_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                       const ek_tensor *w, const ek_conv_params *params)
{
    const ek_cuda_conv_gather conv = conv_gather_of(dy, dx, w, params, true);
    const int rc = conv_by_products(dev, &conv, false, dx, w, NULL);
    return rc == 0 ? conv_run_gather(dev, "conv_input_gradient", &conv) : rc < 0 ? rc : 0;
}

int ek_cuda_conv_direct_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias,
                                        const ek_tensor *x, const ek_tensor *dy,
                                        const ek_conv_params *params)
{
    ek_cuda_stream stream;
    ek_cuda_conv_gather conv = conv_gather_of(x, dy, dw, params, false);
    if (dbias)
        EK_TRY(ek_cuda_conv_sum_channels(dev, dbias, dy));
    const int done = conv_by_products(dev, &conv, true, dy, dw, NULL);
    if (done != 0)
        return done < 0 ? done : 0;
    EK_TRY(ek_cuda_begin(dev, &stream));
    size_t nbytes = ek_cuda_conv_weights_plan(&stream, &conv);
    int rc = ek_cuda_scratch(dev, nbytes, &conv.partials);
    if (rc < 0)
        return ek_cuda_end(dev, &stream, "conv_weight_gradient", rc);
    rc = ek_cuda_launch_conv_weights(&stream, &conv);
    ek_cuda_scratch_free(dev, conv.partials, nbytes);
    return ek_cuda_end(dev, &stream, "conv_weight_gradient", rc);
}
