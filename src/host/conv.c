/* conv.c: convolution and its gradients, by the fastest implementation. Operands are copied if that
 * implementation needs another layout or dtype. */
#include "host/conv.h"

#include "host/host.h"
#include "kernels/stage.h"

/* A kind computes one of x, w (with bias) and y from the other two. */
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

/* The implementation: oneDNN, conv_columns.c, conv_point.c, conv_implicit.c or winograd.c. */
typedef enum way { BY_DNN, BY_COLUMNS, POINT, IMPLICIT, WINOGRAD_2, WINOGRAD_4 } way;

/* Computes in `dtype`. Returns 1 when done, 0 if oneDNN has nothing fast, negative on error. */
static int conv_compute(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                        const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params,
                        ek_dtype dtype, way by)
{
    /* oneDNN takes row-major weights as they are, because it reorders weights anyway. */
    bool w_by_rows = by == BY_DNN && ek_tensor_is_contiguous(w, EK_CONTIGUOUS);
    bool keep_w = w->dtype == dtype && (w_by_rows || ek_is_channels_last(w));
    int w_axis = w_by_rows ? w->ndim - 1 : 1;
    bool keep_bias =
        !bias || (bias->dtype == dtype && ek_tensor_is_contiguous(bias, EK_CONTIGUOUS));
    ek_stage stages[4] = {{.nbytes = 0}};
    ek_stage *sx = &stages[0], *sw = &stages[1], *sb = &stages[2], *sy = &stages[3];
    int done = 0, rc;
    EK_TRY_GOTO(ek_stage_image(sx, dev, x, dtype, !conv_computes_x(kind)), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sw, dev, w, dtype, w_axis, keep_w, !conv_computes_w(kind)), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sb, dev, bias, dtype, 0, keep_bias, !conv_computes_w(kind)), rc,
                end);
    EK_TRY_GOTO(ek_stage_image(sy, dev, y, dtype, !conv_computes_y(kind)), rc, end);
    if (by == WINOGRAD_2 || by == WINOGRAD_4) {
        rc = ek_conv_winograd(dev, kind, by == WINOGRAD_2 ? 2 : 4, sx->tensor, sw->tensor,
                              sb->tensor, sy->tensor, params);
        done = 1;
    } else if (by == POINT) {
        rc = ek_conv_point(dev, kind, sx->tensor, sw->tensor, sb->tensor, sy->tensor, params);
        done = 1;
    } else if (by == IMPLICIT) {
        rc = ek_conv_implicit(dev, kind, sx->tensor, sw->tensor, sb->tensor, sy->tensor, params);
        done = 1;
    } else if (by == BY_COLUMNS) {
        rc = ek_conv_columns(dev, kind, sx->tensor, sw->tensor, sb->tensor, sy->tensor, params);
        done = 1;
    } else {
        rc = done = ek_dnn_conv(dev, kind, sx->tensor, sw->tensor, sb->tensor, sy->tensor, params);
    }
end:
    rc = ek_stage_end(sx, dev, done && conv_computes_x(kind), rc);
    rc = ek_stage_end(sw, dev, done && conv_computes_w(kind), rc);
    rc = ek_stage_end(sb, dev, done && conv_computes_w(kind), rc);
    rc = ek_stage_end(sy, dev, done && conv_computes_y(kind), rc);
    return rc < 0 ? rc : done;
}

/* The fastest way for f32. */
static way conv_way(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                    const ek_conv_params *params)
{
    int side = ek_conv_winograd_side(kind, x, w, y, params);
    if (side != 0)
        return side == 2 ? WINOGRAD_2 : WINOGRAD_4;
    if (ek_conv_point_wins(kind, x, w, y, params))
        return POINT;
    return ek_conv_implicit_wins(kind, x, w, y, params) ? IMPLICIT : BY_DNN;
}

static int conv_run(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                    const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    bool empty = ek_count(x) == 0 || ek_count(w) == 0 || ek_count(y) == 0;
    ek_dtype dtype = x->dtype;
    if (dtype == EK_BF16 && !empty && ek_conv_implicit_bf16_wins(kind, x, w, y, params)) {
        int done = conv_compute(dev, kind, x, w, bias, y, params, EK_BF16, IMPLICIT);
        return done < 0 ? done : 0;
    }
    if (dtype == EK_BF16 && !empty && ek_dnn_has_bf16()) {
        int done = conv_compute(dev, kind, x, w, bias, y, params, EK_BF16, BY_DNN);
        if (done != 0)
            return done < 0 ? done : 0;
    }
    dtype = ek_dtype_wide(dtype); /* bf16 and f16 are computed in f32 and rounded at the end */
    if (dtype == EK_F32 && !empty) {
        way by = conv_way(kind, x, w, y, params);
        int done = conv_compute(dev, kind, x, w, bias, y, params, EK_F32, by);
        if (done != 0)
            return done < 0 ? done : 0;
    }
    int done = conv_compute(dev, kind, x, w, bias, y, params, dtype, BY_COLUMNS);
    return done < 0 ? done : 0;
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
