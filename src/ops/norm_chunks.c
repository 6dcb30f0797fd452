/* norm_chunks.c: batch normalisation of chunks that share their statistics.
 *
 * Of all n values of a channel, about a constant c (the value of their mean), the statistics follow
 * from two sums over the chunks, Z = (sum(x - c), sum((x - c)^2) / 2):
 *
 *     mean = c + Z1 / n,   r = 1 / sqrt(var + eps),   var = 2 Z2 / n - (mean - c)^2
 *
 * so that the gradients z of a chunk's sums are those of Z, summed over what every chunk sends
 * back, and the gradient of x is a line L:
 *
 *     chunk   x -> (x', z, s)        dx = L(dx', x; s, z) = s dx' + z1 + z2 (x - c)
 *     apply   y = w xhat(x', Z) + b  dx' = dy, s = w r, z = -(s db, s r dw) / n,
 *                                    dw = sum(dy xhat), db = sum(dy)
 *
 * (z1 has a term -z2 (mean - c), too, which is 0 but has a gradient.) The gradient of x' is a
 * product that isn't formed: dy arrives as its gradient, and the other factor as the gradient of s.
 * That saves a pass over memory for dx. One kernel, `sums`, makes all that is sent back. L's
 * derivatives are L and R(a, x) = (sum(a), sum(a (x - c))); R's are L and L. */
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

/* The product x y; NULL counts as zero. */
static ek_tensor *chunk_mul(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_mul(x, y) : NULL;
}

static ek_tensor *chunk_stack(ek_tensor *first, ek_tensor *second)
{
    ek_tensor *rows[] = {first    ? first
                         : second ? ek_zeros_like(second)
                                  : NULL,
                         second  ? second
                         : first ? ek_zeros_like(first)
                                 : NULL};
    return rows[0] && rows[1] ? ek_stack(rows, 2, 0) : NULL;
}

/* mean - center, which is 0 but has a gradient. NULL if nobody asks for that gradient. */
static ek_tensor *chunk_drift(ek_tensor *mean, ek_tensor *center)
{
    return ek_records(&mean, 1) ? ek_sub(mean, center) : NULL;
}

/* ---- L and R ---- */

static ek_tensor *chunk_line(ek_tensor *u, ek_tensor *scale, ek_tensor *x, ek_tensor *rows,
                             ek_tensor *center);

/* Inputs a, x; saved a, x, center. */
static int pair_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *a = ek_node_saved(node, 0), *x = ek_node_saved(node, 1);
    ek_tensor *center = ek_node_saved(node, 2);
    if (ek_node_needs(node, 0))
        results[0] = chunk_line(NULL, NULL, x, gradients[0], center);
    if (ek_node_needs(node, 1))
        results[1] = chunk_line(a, chunk_row(gradients[0], 1), x, NULL, center);
    return ek_error_status();
}

EK_OPERATION(pair, "norm_chunk_pair", pair_backward);

/* R(a, x) about `center`, as two rows. */
static ek_tensor *chunk_pair(ek_tensor *a, ek_tensor *x, ek_tensor *center)
{
    ek_tensor *rows = a && x && center ? chunk_new_rows(x) : NULL;
    ek_norm_sums sums = {.dbias = chunk_row(rows, 0), .dweight = chunk_row(rows, 1)};
    if (!sums.dbias || !sums.dweight ||
        ek_kernels_of(x)->norm_reduce(ek_tensor_dev(x), &sums, a, x, center, NULL, NULL, NULL) < 0)
        return NULL;
    return EK_RECORD(rows, &pair_operation, EK_INPUTS(a, x), EK_SAVED(a, x, center));
}

static ek_tensor *chunk_wide(ek_tensor *x)
{
    return x ? ek_to_dtype(x, ek_norm_dtype(x)) : NULL;
}

/* Inputs u, scale, x, rows; saved u, scale, x, rows, center. */
static int line_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *u = ek_node_saved(node, 0), *scale = ek_node_saved(node, 1);
    ek_tensor *x = ek_node_saved(node, 2), *rows = ek_node_saved(node, 3);
    ek_tensor *center = ek_node_saved(node, 4), *a = gradients[0];
    EK_TRY(ek_error_status());
    if (u && ek_node_needs(node, 0))
        results[0] = chunk_line(a, scale, x, NULL, center);
    if (u && ek_node_needs(node, 1))
        results[1] = ek_norm_channel_sum(ek_mul(chunk_wide(a), chunk_wide(u)));
    if (rows && ek_node_needs(node, 2))
        results[2] = chunk_line(a, chunk_row(rows, 1), x, NULL, center);
    if (rows && ek_node_needs(node, 3))
        results[3] = chunk_pair(a, x, center);
    return ek_error_status();
}

EK_OPERATION(line, "norm_chunk_line", line_backward);

/* L(u, x; scale, rows) about `center`; u and scale, or rows, may be NULL. */
static ek_tensor *chunk_line(ek_tensor *u, ek_tensor *scale, ek_tensor *x, ek_tensor *rows,
                             ek_tensor *center)
{
    ek_tensor *shift = chunk_row(rows, 0), *slope = chunk_row(rows, 1);
    ek_tensor *y =
        x && center && ek_error_status() == 0 ? ek_result(x, NULL, NULL, x->dtype) : NULL;
    if (!y)
        return NULL;
    const ek_kernels *kernels = ek_kernels_of(x);
    ek_dev *dev = ek_tensor_dev(x);
    if ((u ? kernels->norm_gradient(dev, y, u, x, center, NULL, scale, shift, slope, -1, NULL)
           : kernels->norm_apply(dev, y, x, center, slope, NULL, shift, false)) < 0)
        return NULL;
    return EK_RECORD(y, &line_operation, EK_INPUTS(u, scale, x, rows),
                     EK_SAVED(u, scale, x, rows, center));
}

/* ---- the moments of a chunk ---- */

/* Input x; outputs x', the moments (in place of z's sums) and s, as at the head; saved x and the
 * statistics, which are written later. */
static int chunk_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = chunk_line(gradients[0], gradients[2], ek_node_saved(node, 0), gradients[1],
                            chunk_row(ek_node_saved(node, 1), 0));
    return ek_error_status();
}

EK_OPERATION(chunk, "norm_chunk", chunk_backward);

int ek_norm_chunk_begin(ek_tensor *x, ek_norm_chunk *chunk)
{
    *chunk = (ek_norm_chunk){.x = x,
                             .moments = chunk_new_rows(x),
                             .statistics = chunk_new_rows(x),
                             .alias = ek_tensor_alias(x)};
    ek_tensor *mean = chunk_row(chunk->moments, 0), *var = chunk_row(chunk->moments, 1);
    /* Nobody reads the values of s. */
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
    double share = 1 / *(const double *)ek_node_attributes(node);
    ek_tensor *mean = ek_node_saved(node, 0), *r = ek_node_saved(node, 1);
    EK_TRY(ek_error_status());
    /* -2 times the gradient of var. */
    ek_tensor *bend = gradients[1] ? ek_mul(ek_mul(gradients[1], r), ek_square(r)) : NULL;
    ek_tensor *first = chunk_mul(bend, chunk_drift(mean, ek_node_saved(node, 2)));
    ek_tensor *rows = chunk_stack(ek_norm_added(gradients[0], first), bend ? ek_neg(bend) : NULL);
    results[0] = rows ? ek_mul_scalar(rows, share) : NULL;
    return ek_error_status();
}

EK_OPERATION(statistics, "norm_chunk_statistics", statistics_backward);

/* ---- the gradients that are sent back ---- */

/* The outputs of chunk_sums: sum(dy), sum(dy xhat), z as two rows, and s. */
enum { DBIAS, DWEIGHT, ROWS, SCALE, SUMS };

/* dy, and the tensors that chunk_apply saved. Z, the sums that make mean and r, is not among them:
 * gradients of mean and r reach it through their histories. */
typedef struct chunk_operands {
    ek_tensor *dy, *x, *mean, *r, *w, *center;
    double count;
} chunk_operands;

/* Inputs dy, x, mean, r, w; saved dy, x, mean, r, w, center, dbias, dweight, s. With h = -(gradient
 * of z) / n and s = w r, the gradients of dbias and dweight are P = g + s h1 and Q = g + s r h2. */
static int sums_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    double count = *(const double *)ek_node_attributes(node);
    ek_tensor *saved[9];
    for (int i = 0; i < 9; i++)
        saved[i] = ek_node_saved(node, i);
    EK_TRY(ek_error_status());
    ek_tensor *dy = saved[0], *x = saved[1], *mean = saved[2], *r = saved[3], *w = saved[4];
    ek_tensor *center = saved[5], *db = saved[6], *dw = saved[7], *s = saved[8];
    ek_tensor *h = gradients[ROWS] ? ek_mul_scalar(gradients[ROWS], -1 / count) : NULL;
    ek_tensor *h1 = chunk_row(h, 0), *h2 = chunk_row(h, 1), *h2_r = chunk_mul(h2, r);
    ek_tensor *q = ek_norm_added(gradients[DWEIGHT], chunk_mul(s, h2_r));
    ek_tensor *q_r = chunk_mul(q, r);
    ek_tensor *ds =
        ek_norm_added(ek_norm_added(chunk_mul(h1, db), chunk_mul(h2_r, dw)), gradients[SCALE]);

    if (ek_node_needs(node, 0)) {
        ek_tensor *p = ek_norm_added(gradients[DBIAS], chunk_mul(s, h1));
        ek_tensor *drift = chunk_mul(q_r, chunk_drift(mean, center));
        ek_tensor *rows = chunk_stack(ek_norm_added(p, drift ? ek_neg(drift) : NULL), q_r);
        results[0] = rows ? chunk_line(NULL, NULL, x, rows, center) : NULL;
    }
    if (ek_node_needs(node, 1) && q_r)
        results[1] = chunk_line(dy, q_r, x, NULL, center);
    if (ek_node_needs(node, 2) && q_r)
        results[2] = ek_neg(ek_mul(q_r, db));
    if (ek_node_needs(node, 3)) {
        ek_tensor *direct = ds && w ? ek_mul(w, ds) : ds;
        ek_tensor *bent = chunk_mul(chunk_mul(s, h2), dw);
        ek_tensor *own = gradients[DWEIGHT] ? ek_div(ek_mul(gradients[DWEIGHT], dw), r) : NULL;
        results[3] =
            ek_norm_added(ek_norm_added(direct, bent ? ek_mul_scalar(bent, 2) : NULL), own);
    }
    if (ek_node_needs(node, 4))
        results[4] = chunk_mul(r, ds);
    return ek_error_status();
}

EK_OPERATION(sums, "norm_chunk_sums", sums_backward);

static int chunk_sums(const chunk_operands *o, ek_tensor *results[SUMS])
{
    ek_tensor *x = o->x;
    for (int i = 0; i < SUMS; i++)
        results[i] = i == ROWS ? chunk_new_rows(x) : chunk_new(x, EK_SHAPE(x->shape[1]));
    ek_norm_sums sums = {.dbias = results[DBIAS],
                         .dweight = results[DWEIGHT],
                         .shift = chunk_row(results[ROWS], 0),
                         .slope = chunk_row(results[ROWS], 1),
                         .scale = results[SCALE],
                         .count = o->count};
    EK_TRY(ek_error_status());
    EK_TRY(ek_kernels_of(x)->norm_reduce(ek_tensor_dev(x), &sums, o->dy, x, o->mean, o->r, o->w,
                                         NULL));
    return ek_record_outputs(results, SUMS, &sums_operation,
                             &(const ek_record_options){EK_INPUTS(o->dy, x, o->mean, o->r, o->w),
                                                        EK_SAVED(o->dy, x, o->mean, o->r, o->w,
                                                                 o->center, results[DBIAS],
                                                                 results[DWEIGHT], results[SCALE]),
                                                        EK_ATTRIBUTES(o->count)});
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
    ek_tensor *sums[SUMS];
    EK_TRY(ek_error_status());
    EK_TRY(chunk_sums(&o, sums));
    ek_tensor *drift = chunk_drift(o.mean, o.center);
    if (drift) {
        ek_tensor *term = ek_neg(ek_mul(chunk_row(sums[ROWS], 1), drift));
        sums[ROWS] = ek_add(sums[ROWS], chunk_stack(term, NULL));
    }
    ek_tensor *const all[] = {o.dy, sums[ROWS], sums[DWEIGHT], sums[DBIAS], sums[SCALE]};
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
    if (!outputs[0] || !outputs[1] || !y ||
        ek_kernels_of(x)->norm_apply(ek_tensor_dev(x), y, x, center, invstd, weight, bias, false) <
            0 ||
        ek_record_outputs(outputs, 2, &statistics_operation,
                          &(const ek_record_options){EK_INPUTS(shared),
                                                     EK_SAVED(outputs[0], outputs[1], center),
                                                     EK_ATTRIBUTES(count)}) < 0)
        return NULL;
    return EK_RECORD(y, &chunk_apply_operation,
                     EK_INPUTS(chunk->alias, shared, weight, bias, chunk->scale),
                     EK_SAVED(x, outputs[0], outputs[1], weight, center), EK_ATTRIBUTES(count));
}
