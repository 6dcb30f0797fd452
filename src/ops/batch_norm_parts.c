/* batch_norm_parts.c: batch normalisation in pieces.
 *
 * Over the n values of a channel, with moments m = sum(x) / n and v = sum((x - m)^2) / n:
 *
 *     moments    x -> (x', m, v), x' = x        dx = dx' + dm / n + 2 dv (x - m) / n
 *     normalise  y = w (x - mean) r + b         dx = w r dy, dmean = -w r sum(dy),
 *                                               dr = w t, dw = r t, db = sum(dy),
 *                                               t = sum(dy (x - mean))
 *
 * mean and r are operands here, whatever they were made of, so that any merging of chunks lies
 * between the two. Both gradients are fused kernels, or, where they are to be differentiated again,
 * the same formulas in differentiable operations. */
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

/* dx' + dm / n + 2 dv (x - m) / n in one pass: what the gradient of a batch normalisation with
 * invstd 1 computes from these sums. */
static ek_tensor *moments_fused(ek_tensor *dy, ek_tensor *x, ek_tensor *mean, ek_tensor *dmean,
                                ek_tensor *dvar, double count)
{
    ek_tensor *ones = ek_filled(ek_tensor_dev(mean), mean->dtype, &EK_SHAPE(x->shape[1]), 1);
    ek_tensor *sum_dy = ek_run_unary(EK_UNARY_AFFINE, dmean, -1, 0);
    ek_tensor *sum_dy_xhat = ek_run_unary(EK_UNARY_AFFINE, dvar, -2, 0);
    ek_tensor *dx = ek_result(x, NULL, NULL, x->dtype);
    if (!ones || !sum_dy || !sum_dy_xhat || !dx ||
        ek_kernels_of(x)->batch_norm_gradient(ek_tensor_dev(x), dx, dy, x, mean, ones, NULL, sum_dy,
                                              sum_dy_xhat, count, NULL) < 0)
        return NULL;
    return dx;
}

static ek_tensor *moments_composed(ek_tensor *dy, ek_tensor *x, ek_tensor *mean, ek_tensor *dmean,
                                   ek_tensor *dvar, double count)
{
    ek_tensor *wide = widened(x);
    ek_tensor *slope = ek_mul_scalar(dvar, 2 / count);
    ek_tensor *dx = ek_mul(centred(wide, mean), slope && wide ? ek_per_channel(slope, wide) : NULL);
    ek_tensor *shift = ek_mul_scalar(dmean, 1 / count);
    dx = ek_add(dx, shift && wide ? ek_per_channel(shift, wide) : NULL);
    return narrowed(dy ? ek_add(widened(dy), dx) : dx, x);
}

/* Input x; outputs x' and the moments; saved x and the moments. */
static int moments_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *dy = gradients[0], *dmoments = gradients[1];
    if (!dmoments) {
        results[0] = dy;
        return 0;
    }
    ek_tensor *x = ek_node_saved(node, 0), *moments = ek_node_saved(node, 1);
    ek_tensor *mean = moment(moments, 0);
    ek_tensor *dmean = moment(dmoments, 0), *dvar = moment(dmoments, 1);
    EK_TRY(ek_error_status());
    const double count = (double)(ek_count(x) / x->shape[1]);
    if (dy && !ek_records((ek_tensor *const[]){dy, x, dmoments}, 3))
        results[0] = moments_fused(dy, x, mean, dmean, dvar, count);
    else
        results[0] = moments_composed(dy, x, mean, dmean, dvar, count);
    return 0;
}

static const ek_operation moments_operation = {.name = "batch_norm_moments",
                                               .backward = moments_backward};

int ek_channel_moments(ek_tensor *x, ek_tensor **alias, ek_tensor **moments)
{
    if (!x)
        return ek_error_pending();
    ek_tensor *outputs[] = {ek_tensor_alias(x),
                            ek_tensor_new(ek_tensor_dev(x), ek_channel_dtype(x),
                                          &EK_SHAPE(1, 2, x->shape[1]), EK_CONTIGUOUS)};
    ek_tensor *mean = moment(outputs[1], 0), *var = moment(outputs[1], 1);
    if (!outputs[0] || !mean || !var)
        return ek_error_pending();
    EK_TRY(ek_kernels_of(x)->batch_norm_statistics(ek_tensor_dev(x), mean, var, x));
    *alias = outputs[0];
    *moments = outputs[1];
    return ek_record_outputs(outputs, 2, &moments_operation,
                             &(const ek_record_options){EK_INPUTS(x), EK_SAVED(x, outputs[1])});
}

/* ---- merging ---- */

/* The chunks' shares of all values, (chunks, 1). */
static ek_tensor *shares_of(const ek_tensor *moments, const int64_t *counts, int chunks)
{
    double values[EK_MAX_DEVICES], total = 0;
    for (int i = 0; i < chunks; i++)
        total += (double)counts[i];
    for (int i = 0; i < chunks; i++)
        values[i] = (double)counts[i] / total;
    ek_tensor *shares = ek_from_data(values, EK_SHAPE(chunks, 1), .dtype = EK_F64);
    shares = shares ? ek_to_dtype(shares, moments->dtype) : NULL;
    return shares ? ek_to_device(shares, ek_tensor_device(moments)) : NULL;
}

int ek_merge_moments(ek_tensor *moments, const int64_t *counts, int chunks, double eps,
                     ek_merged_moments *merged)
{
    ek_tensor *mean = moments ? ek_select(moments, 1, 0) : NULL;
    ek_tensor *var = moments ? ek_select(moments, 1, 1) : NULL;
    if (chunks == 1) {
        merged->mean = mean ? ek_select(mean, 0, 0) : NULL;
        merged->var = var ? ek_select(var, 0, 0) : NULL;
    } else {
        ek_tensor *shares = moments ? shares_of(moments, counts, chunks) : NULL;
        ek_tensor *all = ek_sum(ek_mul(mean, shares), .dims = {0}, .dim_count = 1);
        ek_tensor *apart = ek_square(ek_sub(mean, all));
        merged->mean = all;
        merged->var = ek_sum(ek_mul(ek_add(var, apart), shares), .dims = {0}, .dim_count = 1);
    }
    merged->invstd = merged->var ? ek_reciprocal(ek_sqrt(ek_add_scalar(merged->var, eps))) : NULL;
    return merged->invstd ? 0 : ek_error_pending();
}

/* ---- normalising ---- */

/* dy, and what the operation saved. */
typedef struct operands {
    ek_tensor *dy, *x, *mean, *r, *w;
} operands;

static int normalise_fused(const ek_node *node, const operands *o, ek_tensor **results)
{
    ek_dev *dev = ek_tensor_dev(o->x);
    const ek_kernels *kernels = ek_kernels_of(o->x);
    if (ek_node_needs(node, 0)) {
        results[0] = ek_result(o->x, NULL, NULL, o->x->dtype);
        if (!results[0])
            return ek_error_pending();
        EK_TRY(kernels->batch_norm_gradient(dev, results[0], o->dy, o->x, o->mean, o->r, o->w, NULL,
                                            NULL, 1, NULL));
    }
    if (!ek_node_needs(node, 1) && !ek_node_needs(node, 2) && !ek_node_needs(node, 3) &&
        !ek_node_needs(node, 4))
        return 0;
    ek_tensor *sum = ek_new_channels(o->x), *t_r = ek_new_channels(o->x);
    if (!sum || !t_r)
        return ek_error_pending();
    EK_TRY(kernels->batch_norm_reduce(dev, sum, t_r, o->dy, o->x, o->mean, o->r, NULL));
    ek_tensor *w_r = o->w ? ek_mul(o->w, o->r) : o->r;
    ek_tensor *t = ek_div(t_r, o->r);
    results[1] = ek_neg(ek_mul(w_r, sum));
    results[2] = o->w ? ek_mul(o->w, t) : t;
    results[3] = t_r;
    results[4] = sum;
    return 0;
}

static int normalise_composed(const operands *o, ek_tensor **results)
{
    ek_tensor *x = widened(o->x), *dy = widened(o->dy);
    if (!x || !dy)
        return ek_error_pending();
    ek_tensor *w_r = o->w ? ek_mul(o->w, o->r) : o->r;
    ek_tensor *sum = ek_channel_sum(dy);
    ek_tensor *t = ek_channel_sum(ek_mul(dy, centred(x, o->mean)));
    results[0] = narrowed(ek_mul(dy, w_r ? ek_per_channel(w_r, x) : NULL), o->x);
    results[1] = ek_neg(ek_mul(w_r, sum));
    results[2] = o->w ? ek_mul(o->w, t) : t;
    results[3] = ek_mul(o->r, t);
    results[4] = sum;
    return 0;
}

/* Inputs x, mean, r, w, b; saved x, mean, r, w. */
static int normalise_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const operands o = {gradients[0], ek_node_saved(node, 0), ek_node_saved(node, 1),
                        ek_node_saved(node, 2), ek_node_saved(node, 3)};
    EK_TRY(ek_error_status());
    bool again = ek_records((ek_tensor *const[]){o.dy, o.x, o.mean, o.r, o.w}, 5);
    EK_TRY(again ? normalise_composed(&o, results) : normalise_fused(node, &o, results));
    for (int i = 0; i < ek_node_input_count(node); i++)
        if (!ek_node_needs(node, i))
            results[i] = NULL;
    return ek_error_status();
}

static const ek_operation normalise_operation = {.name = "batch_norm_normalise",
                                                 .backward = normalise_backward};

ek_tensor *ek_normalise_channels(ek_tensor *x, ek_tensor *mean, ek_tensor *invstd,
                                 ek_tensor *weight, ek_tensor *bias)
{
    if (!x || !mean || !invstd || !ek_optional(weight) || !ek_optional(bias))
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y || ek_kernels_of(x)->batch_norm_apply(ek_tensor_dev(x), y, x, mean, invstd, weight, bias,
                                                 false) < 0)
        return NULL;
    return EK_RECORD(y, &normalise_operation, EK_INPUTS(x, mean, invstd, weight, bias),
                     EK_SAVED(x, mean, invstd, weight));
}
