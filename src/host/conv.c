/* conv.c: convolution and its gradients: brings the operands into the layout and dtype that compute
 * fastest, and chooses who computes. */
#include "host/conv.h"

#include "host/host.h"
#include "host/temporary.h"

/* One operand during a call: the tensor itself, or a copy that fits. */
typedef struct operand {
    const ek_tensor *tensor; /* what computes */
    ek_tensor *copy_to;      /* an output that wants the result; NULL elsewhere */
    ek_temporary temporary;
} operand;

typedef enum direction { INPUT, OUTPUT } direction;
typedef enum layout { CHANNELS_LAST, ANY_ORDER, FLAT } layout;

static bool fits(const ek_tensor *tensor, ek_dtype dtype, layout order)
{
    if (tensor->dtype != dtype)
        return false;
    if (order == CHANNELS_LAST)
        return ek_is_channels_last(tensor);
    return ek_is_row_major(tensor) || (order == ANY_ORDER && ek_is_channels_last(tensor));
}

static int operand_begin(operand *o, ek_dev *dev, const ek_tensor *tensor, direction way,
                         ek_dtype dtype, layout order)
{
    ek_temporary_none(&o->temporary);
    o->copy_to = NULL;
    o->tensor = tensor;
    if (!tensor || fits(tensor, dtype, order))
        return 0;
    bool channels_last = order != FLAT;
    o->tensor = &o->temporary.tensor;
    if (way == INPUT)
        return ek_temporary_copy(&o->temporary, dev, tensor, dtype, channels_last);
    o->copy_to = (ek_tensor *)(uintptr_t)tensor; /* an output came in as const */
    return ek_temporary_new(&o->temporary, dev, tensor, dtype, channels_last);
}

static int operand_end(operand *o, ek_dev *dev, int rc)
{
    if (rc >= 0 && o->copy_to)
        rc = ek_host_copy(dev, o->copy_to, &o->temporary.tensor);
    ek_temporary_free(&o->temporary);
    return rc;
}

/* Computes in `dtype`. Returns 1 when done, 0 where another way must be taken, negative on error.
 */
static int compute(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                   const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params,
                   ek_dtype dtype, bool by_columns)
{
    direction x_direction = kind == EK_CONV_INPUT_GRADIENT ? OUTPUT : INPUT;
    direction w_direction = kind == EK_CONV_WEIGHT_GRADIENT ? OUTPUT : INPUT;
    direction y_direction = kind == EK_CONV_FORWARD ? OUTPUT : INPUT;
    operand ox = {.tensor = NULL}, ow = ox, ob = ox, oy = ox;
    int done = 0;
    int rc = operand_begin(&ox, dev, x, x_direction, dtype, CHANNELS_LAST);
    if (rc >= 0)
        rc = operand_begin(&ow, dev, w, w_direction, dtype, by_columns ? CHANNELS_LAST : ANY_ORDER);
    if (rc >= 0)
        rc = operand_begin(&ob, dev, bias, w_direction, dtype, FLAT);
    if (rc >= 0)
        rc = operand_begin(&oy, dev, y, y_direction, dtype, CHANNELS_LAST);
    if (rc >= 0 && by_columns) {
        rc = ek_conv_columns(dev, kind, ox.tensor, ow.tensor, ob.tensor, oy.tensor, params);
        done = 1;
    } else if (rc >= 0) {
        rc = done = ek_dnn_conv(dev, kind, ox.tensor, ow.tensor, ob.tensor, oy.tensor, params);
    }
    /* Where nothing was computed, nothing is copied out. */
    int out = done > 0 ? 0 : -1;
    operand *operands[] = {&oy, &ob, &ow, &ox};
    for (int i = 0; i < 4; i++) {
        int ended = operand_end(operands[i], dev, rc < 0 ? rc : out);
        if (rc >= 0 && out == 0 && ended < 0)
            rc = ended;
    }
    return rc < 0 ? rc : done;
}

static int conv(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    bool empty = ek_count(x) == 0 || ek_count(w) == 0 || ek_count(y) == 0;
    ek_dtype dtype = x->dtype;
    if (!empty && (dtype == EK_F32 || (dtype == EK_BF16 && ek_dnn_has_bf16()))) {
        int done = compute(dev, kind, x, w, bias, y, params, dtype, false);
        if (done != 0)
            return done < 0 ? done : 0;
    }
    if (dtype == EK_BF16) {
        dtype = EK_F32;
        int done = empty ? 0 : compute(dev, kind, x, w, bias, y, params, dtype, false);
        if (done != 0)
            return done < 0 ? done : 0;
    }
    int done = compute(dev, kind, x, w, bias, y, params, dtype, true);
    return done < 0 ? done : 0;
}

int ek_host_conv_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                         const ek_tensor *bias, const ek_conv_params *params)
{
    return conv(dev, EK_CONV_FORWARD, x, w, bias, y, params);
}

int ek_host_conv_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *w,
                                const ek_conv_params *params)
{
    return conv(dev, EK_CONV_INPUT_GRADIENT, dx, w, NULL, dy, params);
}

int ek_host_conv_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                 const ek_tensor *dy, const ek_conv_params *params)
{
    return conv(dev, EK_CONV_WEIGHT_GRADIENT, x, dw, dbias, dy, params);
}
