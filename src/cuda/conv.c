/* conv.c: convolution and its gradients: by cuDNN if it has an engine, in the order of memory
 * that it is fastest in, else by our own kernels. */
#include <limits.h>

#include "cuda/bias.h"
#include "cuda/conv_direct.h"
#include "cuda/cuda.h"
#include "cuda/dnn.h"
#include "cuda/runtime.h"
#include "evenkeel/precision.h"

/* x, w, y and bias stand for their gradients if these are computed. */
typedef struct call {
    ek_dnn_operation operation;
    const ek_tensor *x, *w, *y, *bias;
    const ek_conv_params *params;
} call;

static bool computes_x(const call *c)
{
    return c->operation == EK_DNN_INPUT_GRADIENT;
}

static bool computes_w(const call *c)
{
    return c->operation == EK_DNN_WEIGHT_GRADIENT;
}

static bool computes_y(const call *c)
{
    return c->operation == EK_DNN_FORWARD;
}

/* ---- bias ---- */

/* A vector (C) as a tensor of `like`'s dimensions: of its shape, repeated, or (`reduced`) of size 1
 * but for dimension 1. */
static ek_tensor along_channels(const ek_tensor *vector, const ek_tensor *like, bool reduced)
{
    ek_tensor t = {.dtype = vector->dtype,
                   .ndim = like->ndim,
                   .offset = vector->offset,
                   .storage = vector->storage};
    for (int d = 0; d < like->ndim; d++)
        t.shape[d] = d == 1 || !reduced ? like->shape[d] : 1;
    t.stride[1] = vector->stride[0];
    return t;
}

/* y += bias */
static int add_bias(ek_dev *dev, ek_tensor *y, const ek_tensor *bias)
{
    bool last = ek_dnn_is_dense(y, EK_CHANNELS_LAST);
    ek_cuda_queue queue;
    if (!last && !ek_dnn_is_dense(y, EK_CONTIGUOUS)) {
        ek_tensor repeated = along_channels(bias, y, false);
        return ek_cuda_binary(dev, EK_BINARY_ADD, y, y, &repeated, 1);
    }
    int64_t inner = 1;
    for (int d = 2; d < y->ndim && !last; d++)
        inner *= y->shape[d];
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, "adding a bias",
                       ek_cuda_launch_bias(&queue, y->dtype, ek_tensor_address(y),
                                           ek_tensor_address(bias), bias->stride[0], ek_count(y),
                                           inner, y->shape[1]));
}

/* dbias = sums of dy over all but dimension 1 */
static int sum_channels(ek_dev *dev, const ek_tensor *dbias, const ek_tensor *dy)
{
    ek_tensor out = along_channels(dbias, dy, true);
    if (ek_count(dy) == 0)
        return ek_cuda_fill(dev, &out, 0);
    return ek_cuda_reduce(dev, EK_REDUCE_SUM, &out, dy);
}

/* ---- cuDNN ---- */

/* Plans hold for any address of their alignment; copies are aligned to all that counts. */
static int64_t alignment_of(const ek_tensor *t, ek_memory_format format)
{
    return ek_dnn_is_dense(t, format) ? ek_dnn_alignment(ek_tensor_address(t)) : 16;
}

static int run_staged(ek_dev *dev, const call *c, const ek_dnn_problem *problem,
                      ek_memory_format format)
{
    ek_cuda_stage stages[3] = {{.nbytes = 0}};
    ek_cuda_stage *sx = &stages[0], *sw = &stages[1], *sy = &stages[2];
    ek_tensor *x = (ek_tensor *)c->x, *w = (ek_tensor *)c->w, *y = (ek_tensor *)c->y;
    ek_dtype dtype = x->dtype;
    int done = 0, rc;
    EK_TRY_GOTO(ek_cuda_stage_begin(sx, dev, x, dtype, format, ek_dnn_is_dense(x, format),
                                    !computes_x(c)),
                rc, end);
    EK_TRY_GOTO(ek_cuda_stage_begin(sw, dev, w, dtype, format, ek_dnn_is_dense(w, format),
                                    !computes_w(c)),
                rc, end);
    EK_TRY_GOTO(ek_cuda_stage_begin(sy, dev, y, dtype, format, ek_dnn_is_dense(y, format),
                                    !computes_y(c)),
                rc, end);
    rc = done = ek_cuda_dnn_run(dev, problem, sx->tensor, sw->tensor, sy->tensor,
                                problem->bias ? c->bias : NULL);
    if (rc > 0 && computes_y(c) && c->bias && !problem->bias)
        rc = add_bias(dev, sy->tensor, c->bias);
    if (rc > 0 && computes_w(c) && c->bias)
        rc = sum_channels(dev, c->bias, sy->tensor);
end:
    rc = ek_cuda_stage_end(sy, dev, y, done > 0 && computes_y(c), rc);
    rc = ek_cuda_stage_end(sw, dev, w, done > 0 && computes_w(c), rc);
    rc = ek_cuda_stage_end(sx, dev, x, done > 0 && computes_x(c), rc);
    return rc < 0 ? rc : done;
}

/* The plan may find out only when it runs that it doesn't: then 0. */
static int run_supported(ek_dev *dev, const call *c, const ek_dnn_problem *problem,
                         ek_memory_format format)
{
    int rc = ek_cuda_dnn_supports(dev, problem);
    return rc > 0 ? run_staged(dev, c, problem, format) : rc;
}

/* Elements side by side, aligned as the rest: cuDNN can add such a bias while it stores y. */
static bool reads_bias(const call *c, const ek_dnn_problem *problem)
{
    const ek_tensor *bias = c->bias;
    return computes_y(c) && bias && (bias->stride[0] == 1 || bias->shape[0] == 1) &&
           ek_dnn_alignment(ek_tensor_address(bias)) >= problem->alignment;
}

/* 1 when issued, 0 if cuDNN doesn't compute it in this order of memory. */
static int by_dnn_in(ek_dev *dev, const call *c, ek_memory_format format)
{
    ek_dnn_problem problem;
    if (!ek_dnn_problem_of(&problem, c->operation, c->x, c->w, c->y, c->params, format))
        return 0;
    const ek_tensor *tensors[] = {c->x, c->w, c->y};
    for (int i = 0; i < 3; i++) {
        int64_t alignment = alignment_of(tensors[i], format);
        if (alignment < problem.alignment)
            problem.alignment = alignment;
    }
    problem.bias = reads_bias(c, &problem);
    int rc = problem.bias ? run_supported(dev, c, &problem, format) : 0;
    problem.bias = 0;
    return rc == 0 ? run_supported(dev, c, &problem, format) : rc;
}

/* The order of memory. Tensor cores are fed channels-last: from row-major tensors cuDNN makes such
 * copies itself, in every call and in its workspace (the plans for an H100 show it), so they are
 * made here, by kernels that are bound by memory only, and engines are found more often. f32
 * without TF32 goes through the ordinary units, for which cuDNN's own engines are row-major: such
 * tensors stay as they are, and only the weights, which are small, are turned. Channels-last ones
 * stay too, since cuDNN knows whether to copy them or to take an engine that reads them. */
static int by_dnn(ek_dev *dev, const call *c)
{
    bool ordinary = c->x->dtype == EK_F32 && !ek_tf32_allowed();
    bool rows = ek_dnn_is_dense(c->x, EK_CONTIGUOUS) && ek_dnn_is_dense(c->y, EK_CONTIGUOUS);
    bool last = ek_dnn_is_dense(c->x, EK_CHANNELS_LAST) && ek_dnn_is_dense(c->y, EK_CHANNELS_LAST);
    if (ordinary && rows && !last) {
        int rc = by_dnn_in(dev, c, EK_CONTIGUOUS);
        if (rc != 0)
            return rc;
    }
    return by_dnn_in(dev, c, EK_CHANNELS_LAST);
}

/* ---- who computes ---- */

static int by_kernels(ek_dev *dev, const call *c)
{
    ek_tensor *x = (ek_tensor *)c->x, *w = (ek_tensor *)c->w, *y = (ek_tensor *)c->y;
    if (computes_x(c))
        return ek_cuda_conv_direct_input_gradient(dev, x, y, w, c->params);
    if (computes_w(c))
        return ek_cuda_conv_direct_weight_gradient(dev, w, (ek_tensor *)c->bias, x, y, c->params);
    return ek_cuda_conv_direct_forward(dev, y, x, w, c->bias, c->params);
}

/* Samples [begin, end) of t. */
static ek_tensor samples_of(const ek_tensor *t, int64_t begin, int64_t end)
{
    ek_tensor part = {.dtype = t->dtype,
                      .ndim = t->ndim,
                      .offset = t->offset + begin * t->stride[0],
                      .storage = t->storage};
    for (int d = 0; d < t->ndim; d++) {
        part.shape[d] = t->shape[d];
        part.stride[d] = t->stride[d];
    }
    part.shape[0] = end - begin;
    return part;
}

/* cuDNN's engines count a tensor's elements in 32 bits; ours don't. */
static bool too_large(const call *c)
{
    return ek_count(c->x) > INT_MAX || ek_count(c->y) > INT_MAX || ek_count(c->w) > INT_MAX;
}

static int compute(ek_dev *dev, const call *c)
{
    if (!too_large(c)) {
        int rc = by_dnn(dev, c);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        return by_kernels(dev, c);
    }
    int64_t samples = c->x->shape[0];
    if (computes_w(c) || samples < 2)
        return by_kernels(dev, c);
    for (int part = 0; part < 2; part++) { /* samples are independent of each other */
        int64_t begin = part ? samples / 2 : 0, end = part ? samples : samples / 2;
        ek_tensor x = samples_of(c->x, begin, end), y = samples_of(c->y, begin, end);
        call half = {c->operation, &x, c->w, &y, c->bias, c->params};
        EK_TRY(compute(dev, &half));
    }
    return 0;
}

/* Sums of nothing. */
static int compute_empty(ek_dev *dev, const call *c)
{
    ek_tensor *x = (ek_tensor *)c->x, *w = (ek_tensor *)c->w, *y = (ek_tensor *)c->y;
    if (computes_x(c))
        return ek_cuda_fill(dev, x, 0);
    if (computes_w(c)) {
        EK_TRY(ek_cuda_fill(dev, w, 0));
        return c->bias ? sum_channels(dev, c->bias, y) : 0;
    }
    if (!c->bias || ek_count(y) == 0)
        return ek_cuda_fill(dev, y, 0);
    ek_tensor repeated = along_channels(c->bias, y, false);
    return ek_cuda_copy(dev, y, &repeated);
}

static int conv(ek_dev *dev, const call *c)
{
    ek_cuda_queue queue; /* the device is current for all that follows, and checked once */
    EK_TRY(ek_cuda_begin(dev, &queue));
    bool empty = ek_count(c->x) == 0 || ek_count(c->w) == 0 || ek_count(c->y) == 0;
    int rc = empty ? compute_empty(dev, c) : compute(dev, c);
    return ek_cuda_end(dev, &queue, "convolution", rc);
}

int ek_cuda_conv_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                         const ek_tensor *bias, const ek_conv_params *params)
{
    return conv(dev, &(call){EK_DNN_FORWARD, x, w, y, bias, params});
}

int ek_cuda_conv_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *w,
                                const ek_conv_params *params)
{
    return conv(dev, &(call){EK_DNN_INPUT_GRADIENT, dx, w, dy, NULL, params});
}

int ek_cuda_conv_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                 const ek_tensor *dy, const ek_conv_params *params)
{
    return conv(dev, &(call){EK_DNN_WEIGHT_GRADIENT, x, dw, dy, dbias, params});
}
