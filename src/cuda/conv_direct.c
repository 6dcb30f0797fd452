/* conv_direct.c: the geometry of convolutions that our own kernels compute. */
#include "cuda/conv_direct.h"

#include <math.h>

#include "cuda/cuda.h"
#include "cuda/runtime.h"

/* Positions and steps beyond this are computed in 64 bits. */
enum { FAR = 1 << 28 };

static bool is_far(int64_t value)
{
    return value > FAR || value < -FAR;
}

/* ---- forward and input gradient ---- */

static ek_cuda_conv_gather gather_of(const ek_tensor *from, const ek_tensor *to, const ek_tensor *w,
                                     const ek_conv_params *params)
{
    ek_cuda_conv_gather conv = {.from = ek_cuda_image_of(from),
                                .to = ek_cuda_image_of(to),
                                .w = ek_tensor_address(w),
                                .groups = params->groups,
                                .from_channels = from->shape[1] / params->groups,
                                .to_channels = to->shape[1] / params->groups,
                                .w_group = w->shape[0] / params->groups * w->stride[0]};
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - params->dims);
        conv.taps[i] = d < 0 ? 1 : w->shape[2 + d];
        conv.w_tap[i] = d < 0 ? 0 : w->stride[2 + d];
        conv.row_step[i] = conv.divide[i] = 1;
    }
    conv.per_from = ek_cuda_divider_of(conv.from_channels);
    conv.per_to = ek_cuda_divider_of(conv.to_channels);
    return conv;
}

static void set_wide(ek_cuda_conv_gather *conv)
{
    double columns = (double)conv->from_channels;
    for (int i = 0; i < 3; i++) {
        columns *= (double)conv->taps[i];
        double reach = fabs((double)conv->origin[i]) +
                       fabs((double)conv->tap_step[i]) * (double)conv->taps[i] +
                       (double)conv->row_step[i] * (double)conv->to.size[i];
        conv->wide = conv->wide || reach > (double)FAR || is_far(conv->from.size[i]) ||
                     is_far(conv->divide[i]);
    }
    conv->wide = conv->wide || columns > (double)FAR;
}

static int run_gather(ek_dev *dev, const char *operation, ek_cuda_conv_gather *conv)
{
    ek_cuda_queue queue;
    set_wide(conv);
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, operation, ek_cuda_launch_conv_gather(&queue, conv));
}

int ek_cuda_conv_direct_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                                const ek_tensor *bias, const ek_conv_params *params)
{
    ek_cuda_conv_gather conv = gather_of(x, y, w, params);
    conv.bias = bias ? ek_tensor_address(bias) : NULL;
    conv.by_bias = bias ? bias->stride[0] : 0;
    conv.w_from = w->stride[1];
    conv.w_to = w->stride[0];
    for (int i = 3 - params->dims, d = 0; i < 3; i++, d++) {
        conv.origin[i] = -params->padding[d];
        conv.row_step[i] = params->stride[d];
        conv.tap_step[i] = params->dilation[d];
    }
    return run_gather(dev, "conv_forward", &conv);
}

int ek_cuda_conv_direct_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                       const ek_tensor *w, const ek_conv_params *params)
{
    ek_cuda_conv_gather conv = gather_of(dy, dx, w, params);
    conv.w_from = w->stride[0];
    conv.w_to = w->stride[1];
    for (int i = 3 - params->dims, d = 0; i < 3; i++, d++) {
        conv.origin[i] = params->padding[d];
        conv.tap_step[i] = -params->dilation[d];
        conv.divide[i] = params->stride[d];
    }
    return run_gather(dev, "conv_input_gradient", &conv);
}

/* ---- weight gradient ---- */

static ek_cuda_conv_weights weights_of(const ek_tensor *dw, const ek_tensor *dbias,
                                       const ek_tensor *x, const ek_tensor *dy,
                                       const ek_conv_params *params)
{
    ek_cuda_conv_weights conv = {.x = ek_cuda_image_of(x),
                                 .y = ek_cuda_image_of(dy),
                                 .w = ek_tensor_address(dw),
                                 .bias = dbias ? ek_tensor_address(dbias) : NULL,
                                 .groups = params->groups,
                                 .channels = dw->shape[1],
                                 .outputs = dw->shape[0] / params->groups,
                                 .w_output = dw->stride[0],
                                 .w_channel = dw->stride[1],
                                 .by_bias = dbias ? dbias->stride[0] : 0,
                                 .columns = dw->shape[1]};
    conv.wide = conv.x.wide || conv.y.wide;
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - params->dims);
        conv.taps[i] = d < 0 ? 1 : dw->shape[2 + d];
        conv.w_tap[i] = d < 0 ? 0 : dw->stride[2 + d];
        conv.stride[i] = d < 0 ? 1 : params->stride[d];
        conv.padding[i] = d < 0 ? 0 : params->padding[d];
        conv.dilation[i] = d < 0 ? 1 : params->dilation[d];
        conv.columns *= conv.taps[i];
        conv.per_taps[i] = ek_cuda_divider_of(conv.taps[i]);
        double reach = (double)conv.padding[i] + (double)conv.dilation[i] * (double)conv.taps[i] +
                       (double)conv.stride[i] * (double)conv.y.size[i];
        conv.wide = conv.wide || reach > (double)FAR || is_far(conv.x.size[i]);
    }
    conv.rows = conv.y.samples * conv.y.plane;
    conv.per_outputs = ek_cuda_divider_of(conv.outputs);
    conv.per_channels = ek_cuda_divider_of(conv.channels);
    conv.wide = conv.wide || is_far(conv.columns);
    return conv;
}

int ek_cuda_conv_direct_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias,
                                        const ek_tensor *x, const ek_tensor *dy,
                                        const ek_conv_params *params)
{
    ek_cuda_queue queue;
    ek_cuda_conv_weights conv = weights_of(dw, dbias, x, dy, params);
    EK_TRY(ek_cuda_begin(dev, &queue));
    size_t nbytes = ek_cuda_conv_weights_plan(&queue, &conv);
    int rc = ek_cuda_scratch(dev, nbytes, &conv.partials);
    if (rc < 0)
        return ek_cuda_end(dev, &queue, "conv_weight_gradient", rc);
    rc = ek_cuda_launch_conv_weights(&queue, &conv);
    ek_cuda_scratch_free(dev, conv.partials, nbytes);
    return ek_cuda_end(dev, &queue, "conv_weight_gradient", rc);
}
