/* dnn_conv.c: convolution by oneDNN. Activations are channels-last. The primitive chooses a blocked
 * layout of the weights, which costs a reorder per call and gains much more. */
#include "host/dnn_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/dnn.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/stage.h"

static const char *const kind_names[] = {"convolution", "convolution's input gradient",
                                         "convolution's weight gradient"};

static void dnn_conv_describe(const void *user, char what[EK_DNN_TEXT])
{
    const ek_conv *a = user;
    char x[200], w[200], y[200];
    snprintf(what, EK_DNN_TEXT, "%s of %s with weights %s to %s", kind_names[a->kind],
             ek_tensor_text(a->x, x), ek_tensor_text(a->w, w), ek_tensor_text(a->y, y));
}

static dnnl_status_t dnn_conv_describe_activation(dnnl_memory_desc_t *desc, const ek_tensor *tensor)
{
    dnnl_dims_t shape, stride;
    memcpy(shape, tensor->shape, sizeof tensor->shape[0] * (size_t)tensor->ndim);
    ek_strides_along(tensor->ndim, tensor->shape, 1, stride);
    return dnnl_memory_desc_init_by_strides(desc, tensor->ndim, shape, ek_dnn_type(tensor->dtype),
                                            stride);
}

/* Describes weights as ([groups,] outputs, inputs, window). If `open`, the primitive chooses the
 * layout. */
static dnnl_status_t dnn_conv_describe_weights(dnnl_memory_desc_t *desc, const ek_tensor *w,
                                               int64_t groups, bool open)
{
    dnnl_dims_t shape, stride;
    int64_t w_stride[EK_MAX_DIMS];
    int ndim = 0;
    ek_strides_along(w->ndim, w->shape, ek_is_channels_last(w) ? 1 : w->ndim - 1, w_stride);
    if (groups > 1) {
        shape[0] = groups;
        stride[0] = w->shape[0] / groups * w_stride[0];
        ndim = 1;
    }
    for (int i = 0; i < w->ndim; i++) {
        shape[ndim + i] = i == 0 ? w->shape[0] / groups : w->shape[i];
        stride[ndim + i] = w_stride[i];
    }
    ndim += w->ndim;
    if (open)
        return dnnl_memory_desc_init_by_tag(desc, ndim, shape, ek_dnn_type(w->dtype),
                                            dnnl_format_tag_any);
    return dnnl_memory_desc_init_by_strides(desc, ndim, shape, ek_dnn_type(w->dtype), stride);
}

/* The description that all of a convolution's primitives share. */
typedef struct description {
    dnnl_memory_desc_t x, w, bias, y;
    dnnl_dims_t stride, dilation, padding_begin, padding_end;
} description;

static dnnl_status_t dnn_conv_fill_description(description *d, const ek_conv *a)
{
    memset(d, 0, sizeof *d);
    EK_DNN_TRY(dnn_conv_describe_activation(&d->x, a->x));
    EK_DNN_TRY(dnn_conv_describe_activation(&d->y, a->y));
    EK_DNN_TRY(dnn_conv_describe_weights(&d->w, a->w, a->params->groups, true));
    if (a->bias) {
        dnnl_dims_t shape = {a->bias->shape[0]};
        dnnl_data_type_t type = ek_dnn_type(a->bias->dtype);
        EK_DNN_TRY(dnnl_memory_desc_init_by_tag(&d->bias, 1, shape, type, dnnl_a));
    }
    for (int i = 0; i < a->params->dims; i++) {
        int64_t window = (a->w->shape[2 + i] - 1) * a->params->dilation[i] + 1;
        d->stride[i] = a->params->stride[i];
        d->dilation[i] = a->params->dilation[i] - 1;
        d->padding_begin[i] = a->params->padding[i];
        /* padding_end is negative if the last window ends before the input: oneDNN cuts off the
         * rest of the input. */
        d->padding_end[i] = (a->y->shape[2 + i] - 1) * a->params->stride[i] + window -
                            a->x->shape[2 + i] - a->params->padding[i];
        /* oneDNN can only cut off less than a stride. An output_padding of at least the stride,
         * which a dilation above the stride allows, requires more to be cut off. */
        if (d->padding_end[i] <= -d->stride[i])
            return dnnl_unimplemented;
    }
    return dnnl_success;
}

/* Returns true for bf16 weight gradients that oneDNN 2.6 computes wrongly. If windows are strided
 * or of three dimensions, and the input is padded and about as small as the window, oneDNN leaves
 * out elements of the window that do lie on the input. */
static bool dnn_conv_leaves_elements_out(const ek_conv *a)
{
    const ek_conv_params *params = a->params;
    for (int i = 0; i < params->dims; i++) {
        int64_t window = (a->w->shape[2 + i] - 1) * params->dilation[i] + 1;
        int64_t stride = params->stride[i];
        if (params->padding[i] > 0 && (stride > 1 || params->dims == 3) &&
            a->x->shape[2 + i] < window + stride - 1)
            return a->w->dtype == EK_BF16;
    }
    return false;
}

/* Returns true for weight gradients in which oneDNN 2.6 may overwrite other memory. For strided
 * windows of one element, oneDNN copies the elements that windows read. If the channels are no
 * multiple of a vector (8 or 16), oneDNN then reads and writes beyond this copy. */
static bool dnn_conv_writes_beyond(const ek_conv *a)
{
    enum { LONGEST_VECTOR = 16 };
    bool strided = false;
    for (int i = 0; i < a->params->dims; i++) {
        if (a->w->shape[2 + i] != 1)
            return false;
        strided = strided || a->params->stride[i] != 1;
    }
    return strided && a->w->shape[1] % LONGEST_VECTOR != 0;
}

static bool dnn_conv_is_miscomputed(const ek_conv *a)
{
    return a->kind == EK_CONV_WEIGHT_GRADIENT &&
           (dnn_conv_writes_beyond(a) || dnn_conv_leaves_elements_out(a));
}

/* Chooses the primitive for a kind of convolution. A gradient's primitive is chosen to fit
 * `forward`, the description of the forward's. */
static dnnl_status_t dnn_conv_choose(dnnl_primitive_desc_t *chosen, const description *d,
                                     ek_conv_kind kind, dnnl_engine_t engine,
                                     const_dnnl_primitive_attr_t attributes,
                                     dnnl_primitive_desc_t forward)
{
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    const dnnl_memory_desc_t *bias = d->bias.ndims ? &d->bias : NULL;
    dnnl_convolution_desc_t operation;
    if (kind == EK_CONV_FORWARD)
        EK_DNN_TRY(dnnl_dilated_convolution_forward_desc_init(&operation, dnnl_forward_training,
                                                              direct, &d->x, &d->w, bias, &d->y,
                                                              d->stride, d->dilation,
                                                              d->padding_begin, d->padding_end));
    else if (kind == EK_CONV_INPUT_GRADIENT)
        EK_DNN_TRY(dnnl_dilated_convolution_backward_data_desc_init(&operation, direct, &d->x,
                                                                    &d->w, &d->y, d->stride,
                                                                    d->dilation, d->padding_begin,
                                                                    d->padding_end));
    else
        EK_DNN_TRY(
            dnnl_dilated_convolution_backward_weights_desc_init(&operation, direct, &d->x, &d->w,
                                                                bias, &d->y, d->stride, d->dilation,
                                                                d->padding_begin, d->padding_end));
    return dnnl_primitive_desc_create(chosen, &operation, attributes, engine, forward);
}

/* Makes plan->primitive, or leaves it NULL if oneDNN has only slow reference code or wrong code. */
static dnnl_status_t dnn_conv_build_primitive(ek_dnn_plan *plan, dnnl_engine_t engine,
                                              const_dnnl_primitive_attr_t attributes,
                                              const ek_conv *a)
{
    description d;
    dnnl_primitive_desc_t forward = NULL, chosen = NULL;
    if (dnn_conv_is_miscomputed(a))
        return dnnl_success;
    dnnl_status_t status = dnn_conv_fill_description(&d, a);
    if (status == dnnl_success && a->kind != EK_CONV_FORWARD)
        status = dnn_conv_choose(&forward, &d, EK_CONV_FORWARD, engine, attributes, NULL);
    if (status == dnnl_success)
        status = dnn_conv_choose(&chosen, &d, a->kind, engine, attributes, forward);
    if (status == dnnl_success && ek_dnn_is_fast(chosen)) {
        bool gradient = a->kind == EK_CONV_WEIGHT_GRADIENT;
        plan->x = d.x;
        plan->y = d.y;
        plan->bias = d.bias;
        plan->w = *dnnl_primitive_desc_query_md(chosen,
                                                gradient ? dnnl_query_diff_weights_md
                                                         : dnnl_query_weights_md,
                                                0);
        plan->scratch = *dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
        status = dnnl_primitive_create(&plan->primitive, chosen);
    }
    if (forward)
        dnnl_primitive_desc_destroy(forward);
    if (chosen)
        dnnl_primitive_desc_destroy(chosen);
    return status == dnnl_unimplemented ? dnnl_success : status;
}

static dnnl_status_t dnn_conv_build_reorder(ek_dnn_plan *plan, dnnl_engine_t engine,
                                            const_dnnl_primitive_attr_t attributes,
                                            const ek_conv *a)
{
    EK_DNN_TRY(dnn_conv_describe_weights(&plan->w_user, a->w, a->params->groups, false));
    if (dnnl_memory_desc_equal(&plan->w, &plan->w_user))
        return dnnl_success;
    dnnl_primitive_desc_t chosen;
    bool out = a->kind == EK_CONV_WEIGHT_GRADIENT;
    EK_DNN_TRY(dnnl_reorder_primitive_desc_create(&chosen, out ? &plan->w : &plan->w_user, engine,
                                                  out ? &plan->w_user : &plan->w, engine,
                                                  attributes));
    plan->reorder_scratch = *dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
    dnnl_status_t status = dnnl_primitive_create(&plan->reorder, chosen);
    dnnl_primitive_desc_destroy(chosen);
    return status;
}

static dnnl_status_t dnn_conv_build(ek_dnn_plan *plan, dnnl_engine_t engine,
                                    dnnl_primitive_attr_t attributes, const void *user)
{
    EK_DNN_TRY(dnn_conv_build_primitive(plan, engine, attributes, user));
    return plan->primitive ? dnn_conv_build_reorder(plan, engine, attributes, user) : dnnl_success;
}

/* ---- running ---- */

static dnnl_status_t dnn_conv_run_reorder(const ek_dnn_plan *plan, bool out, void *w_user, void *w,
                                          void *scratch, dnnl_engine_t engine, dnnl_stream_t stream)
{
    ek_dnn_args args = {.engine = engine};
    ek_dnn_args_add(&args, out ? DNNL_ARG_TO : DNNL_ARG_FROM, &plan->w_user, w_user);
    ek_dnn_args_add(&args, out ? DNNL_ARG_FROM : DNNL_ARG_TO, &plan->w, w);
    ek_dnn_args_add(&args, DNNL_ARG_SCRATCHPAD, &plan->reorder_scratch, scratch);
    return ek_dnn_run(plan->reorder, &args, stream);
}

static dnnl_status_t dnn_conv_run_primitive(const ek_dnn_plan *plan, const ek_conv *a, void *w,
                                            void *scratch, dnnl_engine_t engine,
                                            dnnl_stream_t stream)
{
    static const struct {
        int x, w, bias, y;
    } names[] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST},
                 {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_DIFF_DST},
                 {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST}};
    ek_dnn_args args = {.engine = engine};
    ek_dnn_args_add(&args, names[a->kind].x, &plan->x, ek_tensor_address(a->x));
    ek_dnn_args_add(&args, names[a->kind].w, &plan->w, w);
    if (a->bias)
        ek_dnn_args_add(&args, names[a->kind].bias, &plan->bias, ek_tensor_address(a->bias));
    ek_dnn_args_add(&args, names[a->kind].y, &plan->y, ek_tensor_address(a->y));
    ek_dnn_args_add(&args, DNNL_ARG_SCRATCHPAD, &plan->scratch, scratch);
    return ek_dnn_run(plan->primitive, &args, stream);
}

static dnnl_status_t dnn_conv_run(const ek_dnn_plan *plan, const void *user, char *workspace,
                                  dnnl_engine_t engine, dnnl_stream_t stream)
{
    const ek_conv *a = user;
    void *w_user = ek_tensor_address(a->w), *w = plan->reorder ? workspace : w_user;
    void *scratch = workspace + ek_dnn_weight_bytes(plan);
    bool gradient = a->kind == EK_CONV_WEIGHT_GRADIENT;
    if (plan->reorder && !gradient)
        EK_DNN_TRY(dnn_conv_run_reorder(plan, false, w_user, w, scratch, engine, stream));
    EK_DNN_TRY(dnn_conv_run_primitive(plan, a, w, scratch, engine, stream));
    return plan->reorder && gradient
               ? dnn_conv_run_reorder(plan, true, w_user, w, scratch, engine, stream)
               : dnnl_success;
}

/* ---- parts: groups of samples, or bands of rows if samples are few; each is a convolution ---- */

typedef struct conv_part {
    ek_conv a;
    ek_tensor x, y;
    ek_conv_params params;
    ek_stage w, bias; /* weight gradient: the part's sums */
} conv_part;

typedef struct division {
    int64_t groups, bands; /* groups of samples, and bands of rows in each group */
} division;

static division dnn_conv_divide(const ek_conv *a, int threads)
{
    enum { WORTH = 200000, LEAST_ROWS = 4, MOST_BANDS = 4 /* each band reorders the weights */ };
    const ek_tensor *banded = a->kind == EK_CONV_INPUT_GRADIENT ? a->x : a->y;
    const int64_t samples = a->x->shape[0], work = ek_count(a->y) * ek_count(a->w) / a->w->shape[0];
    const int64_t parts = ek_smaller(threads, 1 + work / WORTH);
    division d = {ek_smaller(samples, parts), 1};
    if (samples < parts)
        d.bands = parts / samples;
    else if (parts <= MOST_BANDS && samples % parts != 0 && samples < 4 * parts &&
             a->kind != EK_CONV_WEIGHT_GRADIENT)
        d = (division){samples, parts}; /* no thread has more samples than others */
    if (banded->shape[2] < LEAST_ROWS * d.bands)
        d = (division){ek_smaller(samples, parts), 1};
    return d;
}

static void dnn_conv_narrow(ek_tensor *t, int dim, int64_t start, int64_t length)
{
    int64_t stride[EK_MAX_DIMS];
    ek_strides_along(t->ndim, t->shape, 1, stride);
    t->offset += start * stride[dim];
    t->shape[dim] = length;
}

/* Narrows x and y to band i, and adapts the padding. Returns false if the band would have no row of
 * x or of y, or negative padding. */
static bool dnn_conv_take_band(conv_part *part, int64_t i, int64_t bands)
{
    ek_conv_params *params = &part->params;
    const int64_t stride = params->stride[0], padding = params->padding[0];
    const int64_t reach = (part->a.w->shape[2] - 1) * params->dilation[0];
    const int64_t rows = part->x.shape[2], outputs = part->y.shape[2];
    int64_t x, x_end, y, y_end;
    if (part->a.kind == EK_CONV_INPUT_GRADIENT) { /* all windows that see some of these rows */
        x = ek_part_of(rows, i, bands);
        x_end = ek_part_of(rows, i + 1, bands);
        y = ek_divide_up(ek_larger(x + padding - reach, 0), stride);
        y_end = ek_smaller((x_end - 1 + padding) / stride + 1, outputs);
    } else {
        y = ek_part_of(outputs, i, bands);
        y_end = ek_part_of(outputs, i + 1, bands);
        x = ek_larger(y * stride - padding, 0);
        x_end = ek_smaller((y_end - 1) * stride - padding + reach + 1, rows);
    }
    params->padding[0] = x + padding - y * stride;
    dnn_conv_narrow(&part->x, 2, x, x_end - x);
    dnn_conv_narrow(&part->y, 2, y, y_end - y);
    return x_end > x && y_end > y && params->padding[0] >= 0;
}

static bool dnn_conv_take(conv_part *part, const ek_conv *a, const division *d, int64_t i)
{
    const int64_t samples = a->x->shape[0], group = i / d->bands;
    const int64_t first = ek_part_of(samples, group, d->groups);
    const int64_t count = ek_part_of(samples, group + 1, d->groups) - first;
    part->a = *a;
    part->x = *a->x;
    part->y = *a->y;
    part->params = *a->params;
    part->a.x = &part->x;
    part->a.y = &part->y;
    part->a.params = &part->params;
    dnn_conv_narrow(&part->x, 0, first, count);
    dnn_conv_narrow(&part->y, 0, first, count);
    return d->bands == 1 || dnn_conv_take_band(part, i % d->bands, d->bands);
}

static void dnn_conv_make_key(ek_dnn_key *key, const ek_conv *a)
{
    const ek_conv_params *params = a->params;
    const int64_t words[] = {a->kind,
                             a->x->dtype,
                             a->w->dtype,
                             a->bias != NULL,
                             params->groups,
                             a->x->ndim,
                             ek_is_channels_last(a->w)};
    key->count = 0;
    ek_dnn_key_add(key, words, sizeof words / sizeof *words);
    ek_dnn_key_add(key, a->x->shape, a->x->ndim);
    ek_dnn_key_add(key, a->w->shape, a->w->ndim);
    ek_dnn_key_add(key, a->y->shape, a->y->ndim);
    ek_dnn_key_add(key, params->stride, params->dims);
    ek_dnn_key_add(key, params->padding, params->dims);
    ek_dnn_key_add(key, params->dilation, params->dims);
}

/* Gives each part of a weight gradient separate f32 memory for its sums. If the gradient is f32,
 * the first part writes to it. */
static int dnn_conv_begin_sums(ek_dev *dev, conv_part *parts, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const ek_conv *a = &parts[i].a;
        const int axis = ek_is_channels_last(a->w) ? 1 : a->w->ndim - 1;
        const bool keep = i == 0 && a->w->dtype == EK_F32;
        EK_TRY(ek_stage_begin(&parts[i].w, dev, a->w, EK_F32, axis, keep, false));
        EK_TRY(ek_stage_begin(&parts[i].bias, dev, a->bias, EK_F32, 0, keep, false));
        parts[i].a.w = parts[i].w.tensor;
        parts[i].a.bias = parts[i].bias.tensor;
    }
    return 0;
}

/* Adds the sums of all parts to those of the first, in their order. */
static int dnn_conv_add_sums(ek_dev *dev, const conv_part *parts, int64_t count)
{
    const int outs = parts[0].bias.tensor ? 2 : 1;
    for (int64_t i = 1; i < count; i++)
        for (int j = 0; j < outs; j++) {
            ek_tensor *sum = j ? parts[0].bias.tensor : parts[0].w.tensor;
            const ek_tensor *addend = j ? parts[i].bias.tensor : parts[i].w.tensor;
            EK_TRY(ek_host_add_n(dev, 1, &sum, (const ek_tensor *[]){sum, addend}, 2));
        }
    return 0;
}

/* Computes a convolution in the parts of a division. Returns what ek_dnn_conv returns. */
static int dnn_conv_compute(ek_dev *dev, const ek_conv *a, const division *d)
{
    static const ek_dnn_kind conv = {dnn_conv_build, dnn_conv_run, dnn_conv_describe};
    const int64_t count = d->groups * d->bands;
    const bool sums = a->kind == EK_CONV_WEIGHT_GRADIENT && count > 1;
    conv_part *made = ek_calloc((size_t)count, sizeof *made);
    ek_dnn_part *parts = ek_calloc((size_t)count, sizeof *parts);
    bool whole = made && parts;
    int rc = whole ? 0 : ek_error_pending();
    for (int64_t i = 0; i < count && whole; i++)
        whole = dnn_conv_take(&made[i], a, d, i);
    if (whole && sums)
        rc = dnn_conv_begin_sums(dev, made, count);
    for (int64_t i = 0; i < count && whole; i++) {
        parts[i].arguments = &made[i].a;
        dnn_conv_make_key(&parts[i].key, &made[i].a);
    }
    if (whole && rc >= 0)
        rc = ek_dnn_compute(dev, &conv, parts, (int)count);
    if (rc > 0 && sums && dnn_conv_add_sums(dev, made, count) < 0)
        rc = ek_error_pending();
    int ended = rc < 0 ? rc : 0;
    for (int64_t i = 0; i < count && made; i++) {
        const bool store = i == 0 && rc > 0;
        ended = ek_stage_end(&made[i].w, dev, store, ended);
        ended = ek_stage_end(&made[i].bias, dev, store, ended);
    }
    free(parts);
    free(made);
    return ended < 0 ? ended : rc;
}

int ek_dnn_conv(ek_dev *dev, const ek_conv *conv)
{
    const division parts = dnn_conv_divide(conv, ek_parallel_threads(dev)), one = {1, 1};
    int done = 0;
    if (parts.groups * parts.bands > 1)
        done = dnn_conv_compute(dev, conv, &parts);
    return done ? done : dnn_conv_compute(dev, conv, &one);
}
