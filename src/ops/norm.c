/* norm.c: normalisation, of which batch (alone or followed by a ReLU), group, instance and layer
 * norm are cases (norm_public.c).
 *
 * With xhat = (x - mean) r, r = 1 / sqrt(var + eps), over the n values that share a statistic: a
 * channel's of the whole batch, or those of a sample's group of channels:
 *
 *     normalize  N(x; w, b)  = w xhat + b
 *     gradient   G(dy, x; w) = (dx, dw, db, s), dx = r (g - sum(g) / n - xhat s / n), g = w dy,
 *                              s = sum(g xhat) over what shares a statistic,
 *                              dw = sum(dy xhat) and db = sum(dy) over what shares a weight,
 *                              dx = r g if mean and var are constants.
 *
 * dx is r P g. The projection P g = g - sum(g) / n - xhat sum(g xhat) / n is symmetric: sum(a P g)
 * = sum(g P a). For gradients a, b, c, e that arrive at G's outputs, with A = G(a, x; 1):
 *
 *     d/d dy = w A.dx + N(x; b, c) + w xhat e
 *     d/d w  = sum(dy A.dx) + sum(dy xhat e)
 *     d/d x  = G(dy, x; b).dx + e dx - r [ (s A.dx + A.s dx) / n + xhat sum(a dx) / n ]
 *
 * since <a, dx> = r (<a, g> - sum(a) sum(g) / n - A.s s / n) reaches x through A.s, s and r (what
 * is in brackets only if the statistics are x's own). Here r is itself an operation of x
 * (norm_invstd_of): dr/dx = -r^2 xhat / n. So the three operations are closed under
 * differentiation: all of it is the fused N and G, factors per statistic, and products; none
 * recomputes a statistic. A ReLU adds a constant mask on dy.
 *
 * If statistics are of the batch, what shares a statistic also shares a weight. So w comes out of
 * the sums, s is w dw and no output, and with D = G(dy, x; 1), q = sum(a D.dx)
 *
 *     d/d dy = G(a, x; w).dx + N(x; b, c),   d/d w = q
 *     d/d x  = G(dy, x; b).dx - w r [ G((a D.dw + dy A.dw) / n, x; 1).dx + xhat q / n ]
 *
 * Weight and bias are per channel or, with one group, per element of a sample (layer norm). */
#include "ops/norm.h"

#include "ops/ops.h"

/* The outputs of G; outputs that nobody wants are NULL. */
typedef struct norm_gradients {
    ek_tensor *dx, *dw, *db, *s;
} norm_gradients;

/* The outputs that are asked of G. dw and db are leaves' gradient buffers to write to, or NULL for
 * new tensors. */
typedef struct norm_request {
    bool want_dx, want_sums; /* sums: dw and db */
    ek_tensor *dw, *db;
} norm_request;

/* Computes G. y_relu is the output if a ReLU followed, else NULL. */
static int norm_gradient(ek_tensor *dy, ek_tensor *x, ek_tensor *w, ek_tensor *y_relu,
                         ek_norm_statistics stats, ek_norm_attributes attributes,
                         norm_request request, norm_gradients *result);

/* ---- shapes ---- */

ek_shape ek_norm_affine_shape(const ek_tensor *x, ek_norm_attributes attributes)
{
    if (!attributes.element)
        return EK_SHAPE(x->shape[1]);
    ek_shape shape = {.ndim = x->ndim - 1};
    for (int i = 0; i < shape.ndim; i++)
        shape.dims[i] = x->shape[i + 1];
    return shape;
}

static ek_tensor *norm_new_affine(const ek_tensor *x, ek_norm_attributes attributes)
{
    ek_shape shape = ek_norm_affine_shape(x, attributes);
    return ek_tensor_new(ek_tensor_dev(x), ek_norm_dtype(x), &shape, EK_CONTIGUOUS);
}

ek_tensor *ek_norm_new_statistic(const ek_tensor *x, ek_norm_attributes attributes)
{
    ek_shape shape =
        attributes.batch ? EK_SHAPE(x->shape[1]) : EK_SHAPE(x->shape[0], attributes.groups);
    return ek_tensor_new(ek_tensor_dev(x), ek_norm_dtype(x), &shape, EK_CONTIGUOUS);
}

/* Casts values to x's dtype, for products with x. */
static ek_tensor *norm_like(ek_tensor *values, const ek_tensor *x)
{
    return values && values->dtype != x->dtype ? ek_to_dtype(values, x->dtype) : values;
}

static ek_tensor *norm_per_channel(ek_tensor *values, const ek_tensor *x)
{
    ek_shape shape = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++)
        shape.dims[i] = i == 1 ? x->shape[1] : 1;
    return ek_reshape(values, shape);
}

/* The sum over the dimensions of a mask, in the statistics' dtype. */
static ek_tensor *norm_sum(ek_tensor *u, unsigned mask)
{
    return u ? ek_sum_mask(ek_to_dtype(u, ek_norm_dtype(u)), mask, mask) : NULL;
}

ek_tensor *ek_norm_channel_sum(ek_tensor *x)
{
    return norm_sum(x, ~2U);
}

ek_tensor *ek_norm_mul_affine(ek_tensor *u, ek_tensor *w, ek_norm_attributes attributes)
{
    if (!u || !w)
        return u;
    return ek_mul(u, norm_like(attributes.element ? w : norm_per_channel(w, u), u));
}

/* Sum over what shares a weight. */
static ek_tensor *norm_sum_affine(ek_tensor *u, ek_norm_attributes attributes)
{
    return norm_sum(u, attributes.element ? 1U : ~2U);
}

/* x's shape with the channels as two dimensions: groups, and channels of a group. If that makes one
 * dimension too many, the last two become one. */
static ek_shape norm_split_shape(const ek_tensor *x, ek_norm_attributes attributes)
{
    ek_shape shape = {.ndim = 3,
                      .dims = {x->shape[0], attributes.groups, x->shape[1] / attributes.groups}};
    for (int i = 2; i < x->ndim; i++) {
        if (shape.ndim < EK_MAX_DIMS)
            shape.dims[shape.ndim++] = x->shape[i];
        else
            shape.dims[EK_MAX_DIMS - 1] *= x->shape[i];
    }
    return shape;
}

/* u f, for u of x's shape and f of a statistic's. */
static ek_tensor *norm_mul_statistic(ek_tensor *u, ek_tensor *f, ek_norm_attributes attributes)
{
    if (!u || !f)
        return NULL;
    if (attributes.batch)
        return ek_mul(u, norm_like(norm_per_channel(f, u), u));
    ek_shape shape = ek_tensor_shape(u), split = norm_split_shape(u, attributes);
    ek_shape factor = split;
    for (int i = 2; i < factor.ndim; i++)
        factor.dims[i] = 1;
    return ek_reshape(ek_mul(ek_reshape(u, split), norm_like(ek_reshape(f, factor), u)), shape);
}

/* Sum over what shares a statistic. */
static ek_tensor *norm_sum_statistic(ek_tensor *u, ek_norm_attributes attributes)
{
    if (attributes.batch || !u)
        return ek_norm_channel_sum(u);
    ek_tensor *values = ek_to_dtype(u, ek_norm_dtype(u));
    return norm_sum(ek_reshape(values, norm_split_shape(u, attributes)), ~3U);
}

ek_tensor *ek_norm_added(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_add(x, y) : x ? x : y;
}

/* ---- r as a function of x ---- */

/* Saved x, mean, and r with its history, so that derivatives of r reach x. */
static int invstd_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_norm_attributes attributes = *(const ek_norm_attributes *)ek_node_attributes(node);
    ek_tensor *r = ek_node_saved(node, 2);
    ek_norm_statistics stats = {ek_node_saved(node, 1), r};
    ek_tensor *xhat = ek_norm_normalize(ek_node_saved(node, 0), NULL, NULL, stats, attributes);
    ek_tensor *factor = ek_mul_scalar(ek_mul(gradients[0], ek_square(r)), -1 / attributes.count);
    results[0] = norm_mul_statistic(xhat, factor, attributes);
    return 0;
}

EK_OPERATION(invstd, "norm_invstd", invstd_backward);

static ek_tensor *norm_invstd_of(ek_tensor *x, ek_norm_statistics stats,
                                 ek_norm_attributes attributes)
{
    if (!x || !stats.mean || !stats.invstd)
        return NULL;
    ek_tensor *r = ek_tensor_alias(stats.invstd);
    return EK_RECORD(r, &invstd_operation, EK_INPUTS(x), EK_SAVED(x, stats.mean, r),
                     EK_ATTRIBUTES(attributes));
}

/* ---- N ---- */

/* Inputs x, w, b; saved x, w, mean, invstd, and y with a ReLU. */
static int apply_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_norm_attributes *attributes = ek_node_attributes(node);
    ek_norm_statistics stats = {ek_node_saved(node, 2), ek_node_saved(node, 3)};
    ek_tensor *y_relu = attributes->relu ? ek_detach(ek_node_saved(node, 4)) : NULL;
    norm_request request = {.want_dx = ek_node_needs(node, 0),
                            .want_sums = ek_node_needs(node, 1) || ek_node_needs(node, 2),
                            .dw = ek_node_destination(node, 1),
                            .db = ek_node_destination(node, 2)};
    norm_gradients result;
    EK_TRY(norm_gradient(gradients[0], ek_node_saved(node, 0), ek_node_saved(node, 1), y_relu,
                         stats, *attributes, request, &result));
    results[0] = result.dx;
    results[1] = ek_node_needs(node, 1) ? result.dw : NULL;
    results[2] = ek_node_needs(node, 2) ? result.db : NULL;
    return 0;
}

EK_OPERATION(batch, "batch_norm", apply_backward);
EK_OPERATION(batch_relu, "batch_norm_relu", apply_backward);
EK_OPERATION(group, "group_norm", apply_backward);

ek_tensor *ek_norm_normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, ek_norm_statistics stats,
                             ek_norm_attributes attributes)
{
    if (!x || !stats.mean || !stats.invstd || ek_error_status() < 0)
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y || ek_kernels_of(x)->norm_apply(ek_tensor_dev(x), y, x, stats.mean, stats.invstd, w, b,
                                           attributes.relu) < 0)
        return NULL;
    return EK_RECORD(y,
                     attributes.relu    ? &batch_relu_operation
                     : attributes.batch ? &batch_operation
                                        : &group_operation,
                     EK_INPUTS(x, w, b),
                     EK_SAVED(x, w, stats.mean, stats.invstd, attributes.relu ? y : NULL),
                     EK_ATTRIBUTES(attributes));
}

/* ---- G ---- */

/* The inputs of G, and the gradient a that arrives at its output dx. */
typedef struct norm_operands {
    ek_tensor *dy, *x, *w, *a;
    ek_norm_statistics stats;
    ek_norm_attributes attributes;
    bool want_dy, want_x, want_w; /* want_x: through the statistics */
} norm_operands;

/* The terms of a and e in the gradients of dy, x (through the statistics) and w; NULL is zero. */
typedef struct norm_terms {
    ek_tensor *dy, *x, *w;
} norm_terms;

/* -r [ (s A.dx + A.s dx) / n + xhat sum(a dx) / n ]. The scaling is of factors per statistic, which
 * are small tensors. */
static ek_tensor *norm_through_statistics(const norm_operands *o, const norm_gradients *a_parts,
                                          ek_tensor *xhat, ek_tensor *dx, ek_tensor *s)
{
    ek_norm_attributes attributes = o->attributes;
    ek_tensor *r = ek_mul_scalar(norm_invstd_of(o->x, o->stats, attributes), -1 / attributes.count);
    ek_tensor *first = norm_mul_statistic(a_parts->dx, ek_mul(s, r), attributes);
    ek_tensor *second = norm_mul_statistic(dx, ek_mul(a_parts->s, r), attributes);
    ek_tensor *q = norm_sum_statistic(ek_mul(o->a, dx), attributes);
    return ek_add(ek_add(first, second), norm_mul_statistic(xhat, ek_mul(q, r), attributes));
}

/* The terms for statistics of samples. e is the gradient that arrives at s; dx and s are outputs of
 * G. */
static int norm_sample_terms(const norm_operands *o, ek_tensor *e, ek_tensor *dx, ek_tensor *s,
                             norm_terms *terms)
{
    ek_norm_attributes attributes = o->attributes;
    norm_gradients a_parts = {NULL, NULL, NULL, NULL};
    if (o->a)
        EK_TRY(norm_gradient(o->a, o->x, NULL, NULL, o->stats, attributes,
                             (norm_request){.want_dx = true}, &a_parts));
    ek_tensor *xhat = o->a || e ? ek_norm_normalize(o->x, NULL, NULL, o->stats, attributes) : NULL;
    /* A.dx + xhat e, which is multiplied by w for dy, and by dy for w. */
    ek_tensor *met = ek_norm_added(a_parts.dx, e ? norm_mul_statistic(xhat, e, attributes) : NULL);
    if (o->want_dy)
        terms->dy = ek_norm_mul_affine(met, o->w, attributes);
    if (o->want_x)
        terms->x = ek_norm_added(e ? norm_mul_statistic(dx, e, attributes) : NULL,
                                 o->a ? norm_through_statistics(o, &a_parts, xhat, dx, s) : NULL);
    if (o->want_w && met)
        terms->w = norm_sum_affine(ek_mul(o->dy, met), attributes);
    return ek_error_status();
}

/* -w r [ G((a D.dw + dy A.dw) / n, x; 1).dx + xhat q / n ]. The projection G follows the rounding
 * to bf16, so that later sums over the batch come out right. */
static ek_tensor *norm_through_batch(const norm_operands *o, ek_tensor *a_dw, ek_tensor *d_dw,
                                     ek_tensor *q)
{
    ek_norm_attributes attributes = o->attributes;
    double share = 1.0 / attributes.count;
    norm_gradients inner;
    ek_tensor *mixed = ek_add(norm_mul_statistic(o->a, ek_mul_scalar(d_dw, share), attributes),
                              norm_mul_statistic(o->dy, ek_mul_scalar(a_dw, share), attributes));
    if (norm_gradient(mixed, o->x, NULL, NULL, o->stats, attributes,
                      (norm_request){.want_dx = true}, &inner) < 0)
        return NULL;
    ek_tensor *line = ek_norm_normalize(o->x, ek_mul_scalar(q, share), NULL, o->stats, attributes);
    ek_tensor *r = norm_invstd_of(o->x, o->stats, attributes);
    return ek_neg(
        norm_mul_statistic(ek_add(inner.dx, line), o->w ? ek_mul(o->w, r) : r, attributes));
}

/* The terms for statistics of the batch, with D = G(dy, x; 1) and q = sum(a D.dx), the gradient of
 * w. */
static int norm_batch_terms(const norm_operands *o, norm_terms *terms)
{
    norm_gradients a_parts, d_parts;
    if (!o->a)
        return 0;
    if (o->want_dy || o->want_x) {
        norm_request request = {.want_dx = o->want_dy, .want_sums = o->want_x};
        EK_TRY(norm_gradient(o->a, o->x, o->w, NULL, o->stats, o->attributes, request, &a_parts));
        terms->dy = a_parts.dx;
    }
    if (o->want_w || o->want_x) {
        norm_request request = {.want_dx = true, .want_sums = o->want_x};
        EK_TRY(norm_gradient(o->dy, o->x, NULL, NULL, o->stats, o->attributes, request, &d_parts));
        terms->w = ek_norm_channel_sum(ek_mul(o->a, d_parts.dx));
    }
    if (o->want_x)
        terms->x = norm_through_batch(o, a_parts.dw, d_parts.dw, terms->w);
    return ek_error_status();
}

/* Inputs dy, x, w; outputs dx, dw, db, s; saved dy, x, w, mean, invstd, y_relu, and for statistics
 * of samples dx and s. The formulas are at the head of the file. */
static int gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    norm_operands o = {.dy = ek_node_saved(node, 0),
                       .x = ek_node_saved(node, 1),
                       .w = ek_node_saved(node, 2),
                       .a = gradients[0],
                       .stats = {ek_node_saved(node, 3), ek_node_saved(node, 4)},
                       .attributes = *(const ek_norm_attributes *)ek_node_attributes(node),
                       .want_dy = ek_node_needs(node, 0),
                       .want_w = ek_node_needs(node, 2)};
    ek_tensor *b = gradients[1], *c = gradients[2], *y_relu = ek_node_saved(node, 5);
    EK_TRY(ek_error_status());
    o.want_x = !o.attributes.constant && ek_node_needs(node, 1);
    o.attributes.relu = false;
    if (y_relu)
        o.dy = ek_relu_gradient(o.dy, y_relu, 0);

    norm_terms terms = {NULL, NULL, NULL};
    if (o.attributes.batch)
        EK_TRY(norm_batch_terms(&o, &terms));
    else
        EK_TRY(norm_sample_terms(&o, gradients[3], ek_node_saved(node, 6), ek_node_saved(node, 7),
                                 &terms));
    if (o.want_dy) {
        ek_tensor *zero = !b && c ? ek_zeros_like(c) : b;
        ek_tensor *affine = b || c ? ek_norm_normalize(o.x, zero, c, o.stats, o.attributes) : NULL;
        results[0] = ek_norm_added(terms.dy, affine);
        if (y_relu && results[0])
            results[0] = ek_relu_gradient(results[0], y_relu, 0);
    }
    if (ek_node_needs(node, 1)) {
        norm_gradients b_parts = {NULL, NULL, NULL, NULL};
        if (b)
            EK_TRY(norm_gradient(o.dy, o.x, b, NULL, o.stats, o.attributes,
                                 (norm_request){.want_dx = true}, &b_parts));
        results[1] = ek_norm_added(b_parts.dx, terms.x);
    }
    if (o.want_w)
        results[2] = terms.w;
    return ek_error_status();
}

EK_OPERATION(gradient, "norm_gradient", gradient_backward);

/* dx needs dw and db if statistics are of the batch, and sums of its own if they are of samples. */
static int norm_gradient(ek_tensor *dy, ek_tensor *x, ek_tensor *w, ek_tensor *y_relu,
                         ek_norm_statistics stats, ek_norm_attributes attributes,
                         norm_request request, norm_gradients *result)
{
    *result = (norm_gradients){NULL, NULL, NULL, NULL};
    if (!dy || !x || !stats.mean || !stats.invstd || ek_error_status() < 0)
        return ek_error_pending();
    ek_dev *dev = ek_tensor_dev(x);
    const ek_kernels *kernels = ek_kernels_of(x);
    bool through = request.want_dx && !attributes.constant;
    ek_tensor *sum = NULL;
    if (request.want_dx)
        result->dx = ek_result(x, NULL, NULL, x->dtype);
    if (through && !attributes.batch) {
        result->s = ek_norm_new_statistic(x, attributes);
        sum = ek_norm_new_statistic(x, attributes);
    }
    if (request.want_sums || (through && attributes.batch)) {
        result->dw = request.dw ? request.dw : norm_new_affine(x, attributes);
        result->db = request.db ? request.db : norm_new_affine(x, attributes);
    }
    EK_TRY(ek_error_status());
    ek_norm_sums sums = {.sum = sum,
                         .sum_xhat = result->s,
                         .dweight = result->dw,
                         .dbias = result->db};
    if (sum || result->dw)
        EK_TRY(kernels->norm_reduce(dev, &sums, dy, x, stats.mean, stats.invstd, w, y_relu));
    if (request.want_dx) {
        ek_tensor *first = attributes.batch ? result->db : sum;
        ek_tensor *second = attributes.batch ? result->dw : result->s;
        EK_TRY(kernels->norm_gradient(dev, result->dx, dy, x, stats.mean, stats.invstd, w,
                                      through ? first : NULL, through ? second : NULL,
                                      attributes.count, y_relu));
    }
    ek_tensor *outputs[] = {result->dx, result->dw, result->db, result->s};
    return ek_record_outputs(
        outputs, 4, &gradient_operation,
        &(const ek_record_options){EK_INPUTS(dy, x, w),
                                   EK_SAVED(dy, x, w, stats.mean, stats.invstd, y_relu,
                                            attributes.batch ? NULL : result->dx, result->s),
                                   EK_ATTRIBUTES(attributes)});
}
