/* conv.c: convolution and its gradients. cuDNN computes them, in the order of memory in which it is
 * fastest. If cuDNN has no engine, conv_direct.c computes. */
#include <limits.h>
#include <math.h>

#include "cuda/conv.h"
#include "cuda/dnn.h"
#include "cuda/runtime.h"
#include "evenkeel/precision.h"
#include "kernels/stage.h"

/* A convolution to compute. In a gradient y is dy, and what is computed (x, or w and bias) is a
 * gradient. */
typedef struct conv_call {
    ek_dnn_operation operation;
    const ek_tensor *x, *w, *y, *bias;
    const ek_conv_params *params;
} conv_call;

enum { CONV_X, CONV_W, CONV_Y };

/* Returns which tensor is computed. */
static int conv_output(const conv_call *c)
{
    return c->operation == EK_DNN_FORWARD          ? CONV_Y
           : c->operation == EK_DNN_INPUT_GRADIENT ? CONV_X
                                                   : CONV_W;
}

/* ---- bias ---- */

ek_tensor ek_cuda_conv_along_channels(const ek_tensor *vector, const ek_tensor *like, bool reduced)
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

/* Adds the bias to y. */
static int conv_add_bias(ek_dev *dev, ek_tensor *y, const ek_tensor *bias)
{
    bool last = ek_dnn_is_dense(y, EK_CHANNELS_LAST);
    if (!last && !ek_dnn_is_dense(y, EK_CONTIGUOUS)) {
        ek_tensor repeated = ek_cuda_conv_along_channels(bias, y, false);
        return ek_cuda_binary(dev, EK_BINARY_ADD, y, y, &repeated, 1);
    }
    int64_t inner = 1;
    for (int d = 2; d < y->ndim && !last; d++)
        inner *= y->shape[d];
    EK_CUDA_RUN(dev, "adding a bias",
                ek_cuda_launch_bias(&stream, y->dtype, ek_tensor_address(y),
                                    ek_tensor_address(bias), bias->stride[0], ek_count(y), inner,
                                    y->shape[1]));
}

int ek_cuda_conv_sum_channels(ek_dev *dev, const ek_tensor *dbias, const ek_tensor *dy)
{
    ek_tensor out = ek_cuda_conv_along_channels(dbias, dy, true);
    if (ek_count(dy) == 0)
        return ek_cuda_fill(dev, &out, 0);
    return ek_cuda_reduce(dev, EK_REDUCE_SUM, &out, dy);
}

/* ---- cuDNN ---- */

/* Returns true if tensor cores may be used. They load 16 bytes at once, so that cuDNN then needs
 * addresses aligned to 16. */
static bool conv_by_tensor_cores(const conv_call *c)
{
    return ek_dtype_is_narrow(c->x->dtype) ||
           (c->x->dtype == EK_F32 && ek_tf32_convolution_allowed());
}

/* Returns true if cuDNN can read the tensor in place. Otherwise the tensor is copied to an aligned
 * address. The copy takes less time than an engine without tensor cores. */
static bool conv_fits(const conv_call *c, const ek_tensor *t, ek_memory_format format)
{
    return ek_dnn_is_dense(t, format) &&
           (!conv_by_tensor_cores(c) || ek_dnn_alignment(ek_tensor_address(t)) == 16);
}

static int conv_run_staged(ek_dev *dev, const conv_call *c, const ek_dnn_problem *problem,
                           ek_memory_format format)
{
    ek_stage stages[3] = {{.nbytes = 0}};
    ek_tensor *const tensors[3] = {(ek_tensor *)c->x, (ek_tensor *)c->w, (ek_tensor *)c->y};
    int output = conv_output(c), done = 0, rc = 0;
    for (int i = 0; i < 3 && rc >= 0; i++)
        rc = ek_stage_begin(&stages[i], dev, tensors[i], tensors[0]->dtype,
                            ek_axis_of(format, tensors[i]->ndim), conv_fits(c, tensors[i], format),
                            i != output);
    if (rc >= 0)
        rc = done = ek_cuda_dnn_run(dev, problem, stages[CONV_X].tensor, stages[CONV_W].tensor,
                                    stages[CONV_Y].tensor, problem->bias ? c->bias : NULL);
    if (rc > 0 && output == CONV_Y && c->bias && !problem->bias)
        rc = conv_add_bias(dev, stages[CONV_Y].tensor, c->bias);
    if (rc > 0 && output == CONV_W && c->bias)
        rc = ek_cuda_conv_sum_channels(dev, c->bias, stages[CONV_Y].tensor);
    for (int i = 2; i >= 0; i--)
        rc = ek_stage_end(&stages[i], dev, done > 0 && i == output, rc);
    return rc < 0 ? rc : done;
}

/* Returns true if cuDNN can add the bias while it stores y: the bias is contiguous and aligned. */
static bool conv_reads_bias(const conv_call *c, const ek_dnn_problem *problem)
{
    const ek_tensor *bias = c->bias;
    return conv_output(c) == CONV_Y && bias && (bias->stride[0] == 1 || bias->shape[0] == 1) &&
           ek_dnn_alignment(ek_tensor_address(bias)) >= problem->alignment;
}

/* Decides whether the plan adds the bias (problem->bias). It doesn't if only a plan without the
 * bias uses tensor cores, as with some engines for few channels. Returns what ek_cuda_dnn_supports
 * returns for the choice. */
static int conv_plan(ek_dev *dev, const conv_call *c, ek_dnn_problem *problem, int64_t *workspace)
{
    problem->bias = conv_reads_bias(c, problem);
    int fused = problem->bias ? ek_cuda_dnn_supports(dev, problem, workspace) : 0;
    if (fused < 0 || fused == 2 || (fused == 1 && !conv_by_tensor_cores(c)))
        return fused;
    problem->bias = 0;
    int apart = ek_cuda_dnn_supports(dev, problem, workspace);
    if (apart < 0 || fused == 0 || apart == 2)
        return apart;
    problem->bias = 1;
    return fused;
}

/* Describes the call in an order of memory. Returns false if cuDNN can't express the call. */
static bool conv_problem_of(const conv_call *c, ek_memory_format format, ek_dnn_problem *problem)
{
    if (!ek_dnn_problem_of(problem, c->operation, c->x, c->w, c->y, c->params, format))
        return false;
    const ek_tensor *tensors[] = {c->x, c->w, c->y};
    for (int i = 0; i < 3; i++) {
        int64_t alignment = ek_dnn_alignment(ek_tensor_address(tensors[i]));
        if (conv_fits(c, tensors[i], format) && alignment < problem->alignment)
            problem->alignment = alignment; /* plans are valid for all such addresses */
    }
    return true;
}

/* Computes by cuDNN in the order `format`. Returns 1 when issued, 0 if cuDNN doesn't support the
 * call. If a plan with the bias turns out unsupported when it runs, a plan without the bias is
 * tried. */
static int conv_by_dnn_in(ek_dev *dev, const conv_call *c, ek_memory_format format)
{
    ek_dnn_problem problem;
    if (!conv_problem_of(c, format, &problem))
        return 0;
    int rc = conv_plan(dev, c, &problem, NULL);
    rc = rc > 0 ? conv_run_staged(dev, c, &problem, format) : rc;
    if (rc != 0 || !problem.bias)
        return rc;
    problem.bias = 0;
    rc = ek_cuda_dnn_supports(dev, &problem, NULL);
    return rc > 0 ? conv_run_staged(dev, c, &problem, format) : rc;
}

ek_memory_format ek_cuda_conv_format(ek_dev *dev, ek_dtype dtype)
{
    (void)dev;
    return ek_dnn_format(dtype);
}

/* Returns 1 if computing with row-major x and y copies no more bytes than the channels-last order,
 * for which x and y are copied here. Returns 0 if not, or if cuDNN doesn't support the row-major
 * order, negative on error. In row-major order only the weights are copied here, but the plan may
 * copy all three tensors. It does so for most gradients of large weights, whose engine reads
 * channels-last tensors only. With 512 channels at 4 x 4 and a batch of 256, this plan copies 26 MB
 * there and back, plus 9 MB of the weight's gradient, since parameters are channels-last. Copying x
 * and dy here takes 17 MB in all. For an H200, the plans of other operations copy at most the
 * weights, except for small groups. */
static int conv_prefers_rows(ek_dev *dev, const conv_call *c)
{
    ek_dnn_problem rows, last;
    int64_t in_rows = 0, in_last = 0;
    if (!conv_problem_of(c, EK_CONTIGUOUS, &rows) || !conv_problem_of(c, EK_CHANNELS_LAST, &last))
        return 1;
    int rc = conv_plan(dev, c, &rows, &in_rows);
    if (rc <= 0 || ek_dnn_copied(&rows, in_rows) <= ek_dnn_copied(&last, 0))
        return rc;
    rc = conv_plan(dev, c, &last, &in_last);
    return rc < 0 ? rc : rc == 0 || ek_dnn_copied(&rows, in_rows) <= ek_dnn_copied(&last, in_last);
}

/* Computes by cuDNN: row-major if cuDNN prefers this order for the dtype, x and y have it and
 * conv_prefers_rows agrees; else channels-last. cuDNN copies tensors in another order in every
 * call, in its workspace (as plans for an H100 show). So the copies are made here, by kernels that
 * are bound by memory only, and cuDNN has an engine more often. Channels-last tensors aren't
 * copied: cuDNN decides whether to copy them, or to use an engine that reads them. */
static int conv_by_dnn(ek_dev *dev, const conv_call *c)
{
    if (ek_dnn_format(c->x->dtype) == EK_CONTIGUOUS && ek_dnn_is_dense(c->x, EK_CONTIGUOUS) &&
        ek_dnn_is_dense(c->y, EK_CONTIGUOUS)) {
        int rc = conv_prefers_rows(dev, c);
        if (rc > 0)
            rc = conv_by_dnn_in(dev, c, EK_CONTIGUOUS);
        if (rc != 0)
            return rc;
    }
    return conv_by_dnn_in(dev, c, EK_CHANNELS_LAST);
}

/* ---- who computes ---- */

static int conv_by_kernels(ek_dev *dev, const conv_call *c)
{
    ek_tensor *x = (ek_tensor *)c->x, *w = (ek_tensor *)c->w, *y = (ek_tensor *)c->y;
    if (conv_output(c) == CONV_X)
        return ek_cuda_conv_direct_input_gradient(dev, x, y, w, c->params);
    if (conv_output(c) == CONV_W)
        return ek_cuda_conv_direct_weight_gradient(dev, w, (ek_tensor *)c->bias, x, y, c->params);
    return ek_cuda_conv_direct_forward(dev, y, x, w, c->bias, c->params);
}

/* Returns a view of the samples [begin, end) of t. */
static ek_tensor conv_samples_of(const ek_tensor *t, int64_t begin, int64_t end)
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

/* Returns true if a tensor is too large for cuDNN's engines, which count elements in 32 bits. */
static bool conv_too_large(const conv_call *c)
{
    return ek_count(c->x) > INT_MAX || ek_count(c->y) > INT_MAX || ek_count(c->w) > INT_MAX;
}

static int conv_compute(ek_dev *dev, const conv_call *c)
{
    if (!conv_too_large(c)) {
        int rc = conv_by_dnn(dev, c);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        return conv_by_kernels(dev, c);
    }
    int64_t samples = c->x->shape[0];
    if (conv_output(c) == CONV_W || samples < 2)
        return conv_by_kernels(dev, c);
    for (int part = 0; part < 2; part++) { /* samples are independent of each other */
        int64_t begin = part ? samples / 2 : 0, end = part ? samples : samples / 2;
        ek_tensor x = conv_samples_of(c->x, begin, end), y = conv_samples_of(c->y, begin, end);
        conv_call half = {c->operation, &x, c->w, &y, c->bias, c->params};
        EK_TRY(conv_compute(dev, &half));
    }
    return 0;
}

/* Computes a result from empty tensors: sums have no terms, so that the result is 0 or the bias. */
static int conv_compute_empty(ek_dev *dev, const conv_call *c)
{
    ek_tensor *x = (ek_tensor *)c->x, *w = (ek_tensor *)c->w, *y = (ek_tensor *)c->y;
    if (conv_output(c) == CONV_X)
        return ek_cuda_fill(dev, x, 0);
    if (conv_output(c) == CONV_W) {
        EK_TRY(ek_cuda_fill(dev, w, 0));
        return c->bias ? ek_cuda_conv_sum_channels(dev, c->bias, y) : 0;
    }
    if (!c->bias || ek_count(y) == 0)
        return ek_cuda_fill(dev, y, 0);
    ek_tensor repeated = ek_cuda_conv_along_channels(c->bias, y, false);
    return ek_cuda_copy(dev, y, &repeated);
}

static int conv_run(ek_dev *dev, const conv_call *c)
{
    ek_cuda_stream stream; /* the device is made current and checked once for all that follows */
    EK_TRY(ek_cuda_begin(dev, &stream));
    bool empty = ek_count(c->x) == 0 || ek_count(c->w) == 0 || ek_count(c->y) == 0;
    int rc = empty ? conv_compute_empty(dev, c) : conv_compute(dev, c);
    return ek_cuda_end(dev, &stream, "convolution", rc);
}

int ek_cuda_conv_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                         const ek_tensor *bias, const ek_conv_params *params)
{
    return conv_run(dev, &(conv_call){EK_DNN_FORWARD, x, w, y, bias, params});
}

int ek_cuda_conv_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *w,
                                const ek_conv_params *params)
{
    return conv_run(dev, &(conv_call){EK_DNN_INPUT_GRADIENT, dx, w, dy, NULL, params});
}

int ek_cuda_conv_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                 const ek_tensor *dy, const ek_conv_params *params)
{
    return conv_run(dev, &(conv_call){EK_DNN_WEIGHT_GRADIENT, x, dw, dy, dbias, params});
}
