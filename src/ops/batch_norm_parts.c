/* batch_norm_parts.c: batch normalisation in pieces.
 *
 * Over the n values of a channel, with moments m = sum(x) / n and v = sum((x - m)^2) / n:
 *
 *     moments    x -> (x', s, m, v), x' = x     dx = ds dx' + dm / n + 2 dv (x - m) / n
 *     normalise  y = w (x' - mean) r + b        dx' = dy, ds = w r, dmean = -w r sum(dy),
 *                                               dr = w t, dw = r t, db = sum(dy),
 *                                               t = sum(dy (x - mean))
 *     merge      (m, v) of chunks, shares p -> mean = sum(p m), var = sum(p (v + (m - mean)^2)),
 *                r = 1 / sqrt(var + eps)        dm = p (dmean + 2 (m - mean) e), dv = p e,
 *                                               e = dvar - dr r^3 / 2
 *
 * The gradient of x' is left as a product that isn't formed, of dy and of what comes as the
 * "gradient" of s, so that a pass over memory less gives dx. mean and r are operands of normalise,
 * whatever they were made of, so that any merging of chunks lies between the two. All gradients are
 * fused kernels, or, where they are to be differentiated again, the same formulas in differentiable
 * operations. */
#include "ops/batch_norm.h"
#include "ops/ops.h"

/* The composed formulas are computed in the statistics' dtype. */
static ek_tensor *widened(ek_tensor *x)
{
    return x ? ek_to_dtype(x, ek_channel_dtype(x)) : NULL;
}

static ek_tensor *narrowed(ek_tensor *dx, const ek_tensor *x)
{
    return dx ? ek_to_dtype(dx, x->dtype) : NULL;
}

/* x - values, per channel */
static ek_tensor *centred(ek_tensor *x, ek_tensor *values)
{
    return ek_sub(x, values && x ? ek_per_channel(values, x) : NULL);
}

/* ---- moments ---- */

/* Row 0 or 1 of (1, 2, C), for kernels and for gradients. */
static ek_tensor *moment(ek_tensor *moments, int row)
{
    return moments ? ek_select(ek_select(moments, 0, 0), 0, row) : NULL;
}

/* In one pass. */
static ek_tensor *moments_fused(ek_tensor *dy, ek_tensor *scale, ek_tensor *x, ek_tensor *mean,
                                ek_tensor *dmean, ek_tensor *dvar)
{
    ek_tensor *dx = ek_result(x, NULL, NULL, x->dtype);
    if (!dx || ek_kernels_of(x)->norm_moments_gradient(ek_tensor_dev(x), dx, dy, scale, x, mean,
                                                       dmean, dvar) < 0)
        return NULL;
    return dx;
}

/* scale dy; without a scale dy itself. */
static ek_tensor *scaled(ek_tensor *dy, ek_tensor *scale)
{
    ek_tensor *wide = widened(dy);
    return wide && scale ? ek_mul(wide, ek_per_channel(scale, wide)) : wide;
}

/* dy has its scale, and the result the dtype of statistics. */
static ek_tensor *moments_composed(ek_tensor *dy, ek_tensor *x, ek_tensor *mean, ek_tensor *dmean,
                                   ek_tensor *dvar)
{
    const double count = (double)(ek_count(x) / x->shape[1]);
    ek_tensor *wide = widened(x);
    ek_tensor *slope = ek_mul_scalar(dvar, 2 / count);
    ek_tensor *dx = ek_mul(centred(wide, mean), slope && wide ? ek_per_channel(slope, wide) : NULL);
    ek_tensor *shift = ek_mul_scalar(dmean, 1 / count);
    dx = ek_add(dx, shift && wide ? ek_per_channel(shift, wide) : NULL);
    return dy ? ek_add(dy, dx) : dx;
}

/* Input x; outputs x', the moments and s; saved x and the moments. */
static int moments_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *dy = gradients[0], *dmoments = gradients[1], *scale = gradients[2];
    ek_tensor *x = ek_node_saved(node, 0), *moments = ek_node_saved(node, 1);
    EK_TRY(ek_error_status());
    if (!dmoments) {
        results[0] = narrowed(scaled(dy, scale), x);
        return 0;
    }
    ek_tensor *mean = moment(moments, 0);
    ek_tensor *dmean = moment(dmoments, 0), *dvar = moment(dmoments, 1);
    EK_TRY(ek_error_status());
    if (dy && !ek_records((ek_tensor *const[]){dy, scale, x, dmoments}, 4))
        results[0] = moments_fused(dy, scale, x, mean, dmean, dvar);
    else
        results[0] = narrowed(moments_composed(scaled(dy, scale), x, mean, dmean, dvar), x);
    return 0;
}

static const ek_operation moments_operation = {.name = "batch_norm_moments",
                                               .backward = moments_backward};

int ek_channel_moments(ek_tensor *x, ek_channel_chunk *chunk)
{
    if (!x)
        return ek_error_pending();
    ek_tensor *moments = ek_tensor_new(ek_tensor_dev(x), ek_channel_dtype(x),
                                       &EK_SHAPE(1, 2, x->shape[1]), EK_CONTIGUOUS);
    ek_tensor *mean = moment(moments, 0), *var = moment(moments, 1);
    /* Nobody reads s. */
    ek_tensor *outputs[] = {ek_tensor_alias(x), moments, mean ? ek_tensor_alias(mean) : NULL};
    if (!outputs[0] || !var || !outputs[2])
        return ek_error_pending();
    EK_TRY(ek_kernels_of(x)->batch_norm_statistics(ek_tensor_dev(x), mean, var, x, NULL));
    *chunk = (ek_channel_chunk){x, outputs[0], outputs[2], moments};
    return ek_record_outputs(outputs, 3, &moments_operation,
                             &(const ek_record_options){EK_INPUTS(x), EK_SAVED(x, moments)});
}

/* ---- merging ---- */

/* The chunks' shares of all values. */
typedef struct merge_attributes {
    int chunks;
    double shares[EK_MAX_DEVICES];
} merge_attributes;

/* As (chunks, 1), to broadcast with a row of all moments. */
static ek_tensor *shares_of(const ek_tensor *moments, const merge_attributes *attributes)
{
    ek_tensor *shares =
        ek_from_data(attributes->shares, EK_SHAPE(attributes->chunks, 1), .dtype = EK_F64);
    shares = shares ? ek_to_dtype(shares, moments->dtype) : NULL;
    return shares ? ek_to_device(shares, ek_tensor_device(moments)) : NULL;
}

static ek_tensor *merge_composed(const merge_attributes *attributes, ek_tensor *const *gradients,
                                 ek_tensor *moments, ek_tensor *mean, ek_tensor *r)
{
    ek_tensor *shares = shares_of(moments, attributes);
    ek_tensor *e = gradients[1], *dmean = gradients[0], *rows[2];
    if (gradients[2]) {
        ek_tensor *term = ek_mul_scalar(ek_mul(gradients[2], ek_mul(r, ek_square(r))), -0.5);
        e = e ? ek_add(e, term) : term;
    }
    if (e) {
        ek_tensor *apart = ek_sub(ek_select(moments, 1, 0), mean);
        ek_tensor *term = ek_mul(apart, ek_mul_scalar(e, 2));
        dmean = dmean ? ek_add(term, dmean) : term;
    }
    ek_tensor *zero = e ? NULL : ek_zeros_like(mean);
    rows[0] = ek_mul(shares, dmean);
    rows[1] = ek_mul(shares, e ? e : zero);
    return ek_error_status() < 0 ? NULL : ek_stack(rows, 2, 1);
}

/* Input the moments; outputs mean, var, r; saved moments, mean, r. */
static int merge_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const merge_attributes *attributes = ek_node_attributes(node);
    ek_tensor *moments = ek_node_saved(node, 0), *mean = ek_node_saved(node, 1);
    ek_tensor *r = ek_node_saved(node, 2), *dmean = gradients[0], *dvar = gradients[1];
    EK_TRY(ek_error_status());
    if (ek_records((ek_tensor *const[]){dmean, dvar, gradients[2], moments}, 4)) {
        results[0] = merge_composed(attributes, gradients, moments, mean, r);
        return 0;
    }
    const ek_shape shape = ek_tensor_shape(moments);
    ek_dev *dev = ek_tensor_dev(moments);
    results[0] = ek_tensor_new(dev, moments->dtype, &shape, EK_CONTIGUOUS);
    if (!results[0])
        return ek_error_pending();
    return ek_kernels_of(moments)->norm_merge_gradient(dev, results[0], dmean, dvar, gradients[2],
                                                       moments, mean, r, attributes->shares);
}

static const ek_operation merge_operation = {.name = "batch_norm_merge",
                                             .backward = merge_backward};

int ek_merge_moments(ek_tensor *moments, const int64_t *counts, int chunks, double eps,
                     ek_merged_moments *merged)
{
    merge_attributes attributes = {.chunks = chunks};
    double total = 0;
    if (!moments)
        return ek_error_pending();
    for (int i = 0; i < chunks; i++)
        total += (double)counts[i];
    for (int i = 0; i < chunks; i++)
        attributes.shares[i] = (double)counts[i] / total;
    ek_tensor *outputs[3];
    for (int i = 0; i < 3; i++) {
        outputs[i] = ek_tensor_new(ek_tensor_dev(moments), moments->dtype,
                                   &EK_SHAPE(moments->shape[2]), EK_CONTIGUOUS);
        if (!outputs[i])
            return ek_error_pending();
    }
    EK_TRY(ek_kernels_of(moments)->norm_merge(ek_tensor_dev(moments), outputs[0], outputs[1],
                                              outputs[2], moments, attributes.shares, eps));
    *merged = (ek_merged_moments){.mean = outputs[0], .var = outputs[1], .invstd = outputs[2]};
    return ek_record_outputs(outputs, 3, &merge_operation,
                             &(const ek_record_options){EK_INPUTS(moments),
                                                        EK_SAVED(moments, outputs[0], outputs[2]),
                                                        EK_ATTRIBUTES(attributes)});
}

/* ---- normalising ---- */

/* dy, and what the operation saved. */
typedef struct operands {
    ek_tensor *dy, *x, *mean, *r, *w;
} operands;

/* x', mean, r, w, b, s */
enum { DX, DMEAN, DR, DW, DB, SCALE };

static int normalise_fused(const operands *o, ek_tensor **results)
{
    for (int i = DMEAN; i <= SCALE; i++) {
        results[i] = ek_new_channels(o->x);
        if (!results[i])
            return ek_error_pending();
    }
    const ek_norm_chain chain = {.weight = o->w,
                                 .dmean = results[DMEAN],
                                 .dinvstd = results[DR],
                                 .scale = results[SCALE]};
    results[DX] = o->dy;
    return ek_kernels_of(o->x)->batch_norm_reduce(ek_tensor_dev(o->x), results[DB], results[DW],
                                                  o->dy, o->x, o->mean, o->r, NULL, &chain);
}

static int normalise_composed(const operands *o, ek_tensor **results)
{
    ek_tensor *x = widened(o->x), *dy = widened(o->dy);
    if (!x || !dy)
        return ek_error_pending();
    ek_tensor *w_r = o->w ? ek_mul(o->w, o->r) : o->r;
    ek_tensor *sum = ek_channel_sum(dy);
    ek_tensor *t = ek_channel_sum(ek_mul(dy, centred(x, o->mean)));
    results[DX] = o->dy;
    results[DMEAN] = ek_neg(ek_mul(w_r, sum));
    results[DR] = o->w ? ek_mul(o->w, t) : t;
    results[DW] = ek_mul(o->r, t);
    results[DB] = sum;
    results[SCALE] = w_r;
    return 0;
}

/* Inputs x', mean, r, w, b, s; saved x, mean, r, w: what further derivatives bring to x isn't to
 * meet what is left to x' without its scale. */
static int normalise_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const operands o = {gradients[0], ek_node_saved(node, 0), ek_node_saved(node, 1),
                        ek_node_saved(node, 2), ek_node_saved(node, 3)};
    EK_TRY(ek_error_status());
    bool again = ek_records((ek_tensor *const[]){o.dy, o.x, o.mean, o.r, o.w}, 5);
    EK_TRY(again ? normalise_composed(&o, results) : normalise_fused(&o, results));
    for (int i = 0; i < ek_node_input_count(node); i++)
        if (!ek_node_needs(node, i))
            results[i] = NULL;
    return ek_error_status();
}

static const ek_operation normalise_operation = {.name = "batch_norm_normalise",
                                                 .backward = normalise_backward};

ek_tensor *ek_normalise_chunk(const ek_channel_chunk *chunk, ek_tensor *mean, ek_tensor *invstd,
                              ek_tensor *weight, ek_tensor *bias)
{
    ek_tensor *x = chunk->x;
    if (!x || !mean || !invstd || !ek_optional(weight) || !ek_optional(bias))
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y || ek_kernels_of(x)->batch_norm_apply(ek_tensor_dev(x), y, x, mean, invstd, weight, bias,
                                                 false) < 0)
        return NULL;
    return EK_RECORD(y, &normalise_operation,
                     EK_INPUTS(chunk->alias, mean, invstd, weight, bias, chunk->scale),
                     EK_SAVED(x, mean, invstd, weight));
}
