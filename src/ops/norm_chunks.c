/* norm_chunks.c: batch normalisation of chunks that share their statistics.
 *
 * Of all n values of a channel, about a constant c (the value of their mean), the statistics follow
 * from two sums over the chunks, Z = (sum(x - c), sum((x - c)^2) / 2):
 *
 *     mean = c + Z1 / n,   r = 1 / sqrt(var + eps),   var = 2 Z2 / n - (mean - c)^2
 *
 * so that the gradients z of a chunk's sums are those of Z, summed over what every chunk sends
 * back, and the gradient of x is a line:
 *
 *     chunk   x -> (x', z, s)        dx = s dx' + z1 + z2 (x - c)
 *     apply   y = w xhat(x', Z) + b  dx' = dy, s = w r, z = -(s db, s r dw) / n,
 *                                    dw = sum(dy xhat), db = sum(dy)
 *
 * (z1 has a term -z2 (mean - c), too, which is 0 but has a gradient.) The gradient of x' is a
 * product that isn't formed: dy arrives as its gradient, and the other factor as the gradient of s.
 * That saves a pass over memory for dx. One kernel computes all that is sent back. If a graph of
 * the gradients is recorded, operations compute them instead. */
#include "ops/norm.h"
#include "ops/ops.h"

/* Row 0 or 1 of (2, C). NULL for NULL. */
static ek_tensor *chunk_row(ek_tensor *rows, int row)
{
    return rows ? ek_select(rows, 0, row) : NULL;
}

static ek_tensor *chunk_new(const ek_tensor *x, ek_shape shape)
{
    return ek_tensor_new(ek_tensor_dev(x), ek_norm_dtype(x), &shape, EK_CONTIGUOUS);
}

static ek_tensor *chunk_new_rows(const ek_tensor *x)
{
    return chunk_new(x, EK_SHAPE(2, x->shape[1]));
}

static ek_tensor *chunk_wide(ek_tensor *x)
{
    return x ? ek_to_dtype(x, ek_norm_dtype(x)) : NULL;
}

/* Returns the values (C) in a shape that broadcasts over x. */
static ek_tensor *chunk_spread(ek_tensor *values, const ek_tensor *x)
{
    return values ? ek_reshape(values, ek_reduced_shape(x, ~2U)) : NULL;
}

/* ---- the moments of a chunk ---- */

/* Computes s dx' + z1 + z2 (x - c) by operations. s and dx', or z, may be NULL. */
static ek_tensor *chunk_line(ek_tensor *dy, ek_tensor *scale, ek_tensor *x, ek_tensor *rows,
                             ek_tensor *center)
{
    ek_tensor *dx = dy ? ek_mul(chunk_wide(dy), chunk_spread(scale, x)) : NULL;
    if (rows) {
        ek_tensor *apart = ek_sub(chunk_wide(x), chunk_spread(center, x));
        ek_tensor *line = ek_add(ek_mul(apart, chunk_spread(chunk_row(rows, 1), x)),
                                 chunk_spread(chunk_row(rows, 0), x));
        dx = dy ? ek_add(dx, line) : line;
    }
    return dx ? ek_to_dtype(dx, x->dtype) : NULL;
}

/* Input x; outputs x', the moments (in place of z's sums) and s, as at the head; saved x and the
 * statistics, which are written later. */
static int chunk_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *dy = gradients[0], *rows = gradients[1], *scale = gradients[2];
    ek_tensor *x = ek_node_saved(node, 0), *center = chunk_row(ek_node_saved(node, 1), 0);
    if (!x || !center)
        return ek_error_pending();
    if (ek_grad_enabled()) {
        results[0] = chunk_line(dy, scale, x, rows, center);
        return ek_error_status();
    }
    ek_tensor *shift = chunk_row(rows, 0), *slope = chunk_row(rows, 1);
    results[0] = ek_result(x, NULL, NULL, x->dtype);
    EK_TRY(ek_error_status());
    ek_norm_args args = {.x = x, .mean = center};
    if (dy) {
        args.dy = dy;
        args.weight = scale;
        args.sum = shift;
        args.sum_xhat = slope;
        args.count = -1;
    } else {
        args.invstd = slope;
        args.bias = shift;
    }
    return ek_kernels_of(x)->norm_line(ek_tensor_dev(x), results[0], &args);
}

EK_OPERATION(chunk, "norm_chunk", chunk_backward);

int ek_norm_chunk_begin(ek_tensor *x, ek_norm_chunk *chunk)
{
    *chunk = (ek_norm_chunk){.x = x,
                             .moments = chunk_new_rows(x),
                             .statistics = chunk_new_rows(x),
                             .alias = ek_tensor_alias(x)};
    ek_tensor *mean = chunk_row(chunk->moments, 0), *var = chunk_row(chunk->moments, 1);
    /* s is an edge of the graph alone: it has a gradient, and any values. */
    chunk->scale = mean ? ek_tensor_alias(mean) : NULL;
    if (!var || !chunk->statistics || !chunk->alias || !chunk->scale)
        return ek_error_pending();
    EK_TRY(ek_kernels_of(x)->norm_moments(ek_tensor_dev(x), mean, var, x, NULL));
    ek_tensor *outputs[] = {chunk->alias, chunk->moments, chunk->scale};
    return ek_record_outputs(outputs, 3, &chunk_operation,
                             &(const ek_record_options){EK_INPUTS(x),
                                                        EK_SAVED(x, chunk->statistics)});
}

int ek_norm_chunks_merge(ek_tensor *statistics, ek_tensor *moments, const int64_t *counts,
                         int chunks, double eps, const ek_norm_tracking *tracking)
{
    double shares[EK_MAX_DEVICES];
    int64_t total = 0;
    moments = moments ? ek_detach(moments) : NULL;
    ek_tensor *mean = chunk_row(statistics, 0), *invstd = chunk_row(statistics, 1);
    ek_tensor *means = moments ? ek_select(moments, 1, 0) : NULL;
    ek_tensor *vars = moments ? ek_select(moments, 1, 1) : NULL;
    if (!mean || !invstd || !means || !vars)
        return ek_error_pending();
    for (int i = 0; i < chunks; i++)
        total += counts[i];
    for (int i = 0; i < chunks; i++)
        shares[i] = (double)counts[i] / (double)total;
    ek_norm_update update = {.eps = eps};
    EK_TRY(ek_norm_tracking_begin(tracking, total, &update));
    EK_TRY(ek_kernels_of(mean)->norm_merge(ek_tensor_dev(mean), mean, invstd, means, vars, shares,
                                           &update));
    ek_norm_tracking_end(tracking);
    return 0;
}

/* ---- mean and r as functions of Z ---- */

/* Input Z; outputs mean, r; saved mean, r, center; the attribute is n. */
static int statistics_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const double count = *(const double *)ek_node_attributes(node);
    ek_tensor *mean = ek_node_saved(node, 0), *r = ek_node_saved(node, 1);
    ek_tensor *given[2];
    for (int i = 0; i < 2; i++)
        given[i] = gradients[i] ? gradients[i] : ek_node_zeros(node, i);
    /* The gradient of var, times -2 / n. */
    ek_tensor *bend = ek_mul_scalar(ek_mul(ek_mul(given[1], r), ek_square(r)), 1 / count);
    ek_tensor *drift = ek_mul(bend, ek_sub(mean, ek_node_saved(node, 2)));
    ek_tensor *rows[] = {ek_add(ek_mul_scalar(given[0], 1 / count), drift), ek_neg(bend)};
    results[0] = rows[0] && rows[1] ? ek_stack(rows, 2, 0) : NULL;
    return ek_error_status();
}

EK_OPERATION(statistics, "norm_chunk_statistics", statistics_backward);

/* ---- the gradients that are sent back ---- */

/* The tensors that chunk_apply saved. It doesn't save the sums Z: the gradients of mean and r reach
 * Z through the histories of mean and r. */
typedef struct chunk_operands {
    ek_tensor *dy, *x, *mean, *r, *w, *center;
    double count;
} chunk_operands;

/* sum(dy), sum(dy xhat), z as two rows, and s. */
typedef struct chunk_gradients {
    ek_tensor *db, *dw, *rows, *scale;
} chunk_gradients;

static int chunk_fused(const chunk_operands *o, chunk_gradients *g)
{
    ek_tensor *x = o->x;
    const ek_shape shape = EK_SHAPE(x->shape[1]);
    *g = (chunk_gradients){chunk_new(x, shape), chunk_new(x, shape), chunk_new_rows(x),
                           chunk_new(x, shape)};
    ek_norm_sums sums = {.dbias = g->db,
                         .dweight = g->dw,
                         .shift = chunk_row(g->rows, 0),
                         .slope = chunk_row(g->rows, 1),
                         .scale = g->scale,
                         .count = o->count};
    EK_TRY(ek_error_status());
    const ek_norm_args args = {
        .x = x, .mean = o->mean, .invstd = o->r, .weight = o->w, .dy = o->dy};
    return ek_kernels_of(x)->norm_reduce(ek_tensor_dev(x), &sums, &args);
}

/* The gradients as operations. */
static int chunk_differentiable(const chunk_operands *o, chunk_gradients *g)
{
    ek_tensor *x = chunk_wide(o->x), *dy = chunk_wide(o->dy);
    ek_tensor *xhat = ek_mul(ek_sub(x, chunk_spread(o->mean, o->x)), chunk_spread(o->r, o->x));
    g->db = ek_sum_mask(dy, ~2U, ~2U);
    g->dw = ek_sum_mask(ek_mul(dy, xhat), ~2U, ~2U);
    g->scale = o->w ? ek_mul(o->w, o->r) : o->r;
    ek_tensor *share = ek_mul_scalar(g->scale, -1 / o->count);
    ek_tensor *slope = ek_mul(ek_mul(share, o->r), g->dw);
    ek_tensor *drift = ek_mul(slope, ek_sub(o->mean, o->center));
    ek_tensor *rows[] = {ek_sub(ek_mul(share, g->db), drift), slope};
    g->rows = rows[0] && slope ? ek_stack(rows, 2, 0) : NULL;
    return ek_error_status();
}

/* Inputs x', Z, w, b, s; saved x, mean, r, w, center. x is saved instead of x', because the
 * gradient of x' lacks its scale and further derivatives must not be added to it. */
static int chunk_apply_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    chunk_operands o = {.dy = gradients[0],
                        .x = ek_node_saved(node, 0),
                        .mean = ek_node_saved(node, 1),
                        .r = ek_node_saved(node, 2),
                        .w = ek_node_saved(node, 3),
                        .center = ek_node_saved(node, 4),
                        .count = *(const double *)ek_node_attributes(node)};
    chunk_gradients g;
    EK_TRY(ek_error_status());
    EK_TRY(ek_grad_enabled() ? chunk_differentiable(&o, &g) : chunk_fused(&o, &g));
    ek_tensor *const all[] = {o.dy, g.rows, g.dw, g.db, g.scale};
    for (int i = 0; i < 5; i++)
        results[i] = ek_node_needs(node, i) ? all[i] : NULL;
    return ek_error_status();
}

EK_OPERATION(chunk_apply, "norm_chunk_apply", chunk_apply_backward);

ek_tensor *ek_norm_chunk_apply(const ek_norm_chunk *chunk, ek_tensor *shared, int64_t total,
                               ek_tensor *weight, ek_tensor *bias)
{
    ek_tensor *x = chunk->x, *center = chunk_row(chunk->statistics, 0);
    ek_tensor *invstd = chunk_row(chunk->statistics, 1);
    if (!shared || !center || !invstd || !ek_optional(weight) || !ek_optional(bias))
        return NULL;
    double count = (double)total;
    ek_tensor *outputs[] = {ek_tensor_alias(center), ek_tensor_alias(invstd)};
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    const ek_norm_args args = {
        .x = x, .mean = center, .invstd = invstd, .weight = weight, .bias = bias};
    if (!outputs[0] || !outputs[1] || !y ||
        ek_kernels_of(x)->norm_line(ek_tensor_dev(x), y, &args) < 0 ||
        ek_record_outputs(outputs, 2, &statistics_operation,
                          &(const ek_record_options){EK_INPUTS(shared),
                                                     EK_SAVED(outputs[0], outputs[1], center),
                                                     EK_ATTRIBUTES(count)}) < 0)
        return NULL;
    return EK_RECORD(y, &chunk_apply_operation,
                     EK_INPUTS(chunk->alias, shared, weight, bias, chunk->scale),
                     EK_SAVED(x, outputs[0], outputs[1], weight, center), EK_ATTRIBUTES(count));
}
