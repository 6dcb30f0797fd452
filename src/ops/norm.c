/* norm.c: normalisation, of which batch (alone or followed by a ReLU), group, instance and layer
 * norm are cases (norm_public.c).
 *
 * With xhat = (x - mean) r, r = 1 / sqrt(var + eps), over the n values that share a statistic: a
 * channel's of the whole batch, or those of a sample's group of channels:
 *
 *     y = w xhat + b,   dw = sum(dy xhat),   db = sum(dy)   over what shares a weight,
 *     dx = r (g - sum(g) / n - xhat sum(g xhat) / n),   g = w dy,   over what shares a statistic,
 *     dx = r g if mean and var are constants.
 *
 * Fused kernels make the gradients. If they are to be differentiated, they are made of operations
 * instead; r is an operation of x then, with dr/dx = -r^2 xhat / n.
 *
 * Weight and bias are per channel or, with one group, per element of a sample (layer norm). */
#include "ops/norm.h"

#include "ops/ops.h"

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

/* u, or the view of u whose first two dimensions are those of a statistic. */
static ek_tensor *norm_grouped(ek_tensor *u, ek_norm_attributes attributes)
{
    return attributes.batch ? u : ek_reshape(u, norm_split_shape(u, attributes));
}

/* The dimensions of a grouped tensor that share a statistic. */
static unsigned norm_shared(ek_norm_attributes attributes)
{
    return attributes.batch ? ~2U : ~3U;
}

/* The sum over what shares a statistic, in the statistics' dtype. */
static ek_tensor *norm_sum_statistic(ek_tensor *u, ek_norm_attributes attributes)
{
    return norm_sum(u ? norm_grouped(u, attributes) : NULL, norm_shared(attributes));
}

ek_tensor *ek_norm_added(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_add(x, y) : x ? x : y;
}

/* ---- r as a function of x ---- */

/* u f, for u of x's shape and f of a statistic's. */
static ek_tensor *norm_mul_statistic(ek_tensor *u, ek_tensor *f, ek_norm_attributes attributes)
{
    ek_tensor *grouped = u && f ? norm_grouped(u, attributes) : NULL;
    if (!grouped)
        return NULL;
    ek_tensor *factor = ek_reshape(f, ek_reduced_shape(grouped, norm_shared(attributes)));
    ek_tensor *product = ek_mul(grouped, norm_like(factor, u));
    return product ? ek_reshape(product, ek_tensor_shape(u)) : NULL;
}

/* Saved x, mean, and r with its history, so that derivatives of r reach x. */
static int invstd_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_norm_attributes attributes = *(const ek_norm_attributes *)ek_node_attributes(node);
    ek_tensor *r = ek_node_saved(node, 2);
    ek_norm_statistics stats = {ek_node_saved(node, 1), r};
    ek_tensor *xhat = ek_norm_normalize(ek_node_saved(node, 0), NULL, NULL, stats, attributes);
    ek_tensor *factor = ek_mul_scalar(ek_mul(gradients[0], ek_square(r)), -1 / attributes.count);
    results[0] = norm_mul_statistic(xhat, factor, attributes);
    return ek_error_status();
}

EK_OPERATION(invstd, "norm_invstd", invstd_backward);

static ek_tensor *norm_invstd_of(ek_tensor *x, ek_norm_statistics stats,
                                 ek_norm_attributes attributes)
{
    ek_tensor *r = stats.invstd ? ek_tensor_alias(stats.invstd) : NULL;
    return r ? EK_RECORD(r, &invstd_operation, EK_INPUTS(x), EK_SAVED(x, stats.mean, r),
                         EK_ATTRIBUTES(attributes))
             : NULL;
}

/* ---- the gradients by kernels ---- */

typedef struct norm_operands {
    ek_tensor *dy, *x, *w,
        *y_relu; /* y_relu: the output if a ReLU followed; it and w may be NULL */
    ek_norm_statistics stats;
    ek_norm_attributes attributes;
} norm_operands;

/* dx if it is wanted, and what it needs: dw and db if statistics are of the batch, sums of its own
 * if they are of samples. With `affine`, dw and db anyway. The caller may give tensors for both. */
static int norm_fused(const norm_operands *o, bool wanted, bool affine, ek_norm_sums *sums,
                      ek_tensor **dx)
{
    ek_norm_attributes attributes = o->attributes;
    ek_tensor *x = o->x, *mean = o->stats.mean, *invstd = o->stats.invstd;
    const ek_kernels *kernels = ek_kernels_of(x);
    ek_tensor *first = NULL, *second = NULL;
    const bool through = wanted && !attributes.constant;
    if (through && !attributes.batch) {
        first = sums->sum = ek_norm_new_statistic(x, attributes);
        second = sums->sum_xhat = ek_norm_new_statistic(x, attributes);
    }
    if (affine || (through && attributes.batch)) {
        sums->dweight = sums->dweight ? sums->dweight : norm_new_affine(x, attributes);
        sums->dbias = sums->dbias ? sums->dbias : norm_new_affine(x, attributes);
    }
    if (through && attributes.batch) {
        first = sums->dbias;
        second = sums->dweight;
    }
    *dx = wanted ? ek_result(x, NULL, NULL, x->dtype) : NULL;
    EK_TRY(ek_error_status());
    if (sums->sum || sums->dweight)
        EK_TRY(
            kernels->norm_reduce(ek_tensor_dev(x), sums, o->dy, x, mean, invstd, o->w, o->y_relu));
    return wanted ? kernels->norm_gradient(ek_tensor_dev(x), *dx, o->dy, x, mean, invstd, o->w,
                                           first, second, attributes.count, o->y_relu)
                  : 0;
}

/* ---- the gradients as operations ---- */

/* P g; *s, if asked for, becomes sum(g xhat), not recorded. */
static ek_tensor *norm_projected(ek_tensor *g, ek_tensor *x, ek_norm_statistics stats,
                                 ek_norm_attributes attributes, ek_tensor **s);

/* sum(g xhat) over what shares a statistic, recorded. */
static ek_tensor *norm_along(ek_tensor *g, ek_tensor *xhat, ek_norm_attributes attributes)
{
    return norm_sum_statistic(ek_mul(g, xhat), attributes);
}

/* Inputs g, x; saved g, x, mean, invstd, dx, s. */
static int projected_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_norm_attributes attributes = *(const ek_norm_attributes *)ek_node_attributes(node);
    ek_tensor *a = gradients[0], *g = ek_node_saved(node, 0), *x = ek_node_saved(node, 1);
    ek_norm_statistics stats = {ek_node_saved(node, 2), ek_node_saved(node, 3)};
    ek_tensor *dx = ek_node_saved(node, 4), *s = ek_node_saved(node, 5), *s_a = NULL;
    ek_tensor *da = norm_projected(a, x, stats, attributes, &s_a);
    if (!da)
        return ek_error_pending();
    results[0] = da;
    if (attributes.constant || !ek_node_needs(node, 1))
        return 0;
    ek_tensor *xhat = ek_norm_normalize(x, NULL, NULL, stats, attributes);
    if (ek_grad_enabled()) {
        s = norm_along(g, xhat, attributes);
        s_a = norm_along(a, xhat, attributes);
    }
    ek_tensor *r = norm_invstd_of(x, stats, attributes);
    r = ek_mul_scalar(r, -1 / attributes.count);
    ek_tensor *q = norm_sum_statistic(ek_mul(a, dx), attributes);
    results[1] = ek_add(ek_add(norm_mul_statistic(da, ek_mul(s, r), attributes),
                               norm_mul_statistic(dx, ek_mul(s_a, r), attributes)),
                        norm_mul_statistic(xhat, ek_mul(q, r), attributes));
    return ek_error_status();
}

EK_OPERATION(projected, "norm_projected", projected_backward);

static ek_tensor *norm_projected(ek_tensor *g, ek_tensor *x, ek_norm_statistics stats,
                                 ek_norm_attributes attributes, ek_tensor **s)
{
    norm_operands o = {.dy = g, .x = x, .stats = stats, .attributes = attributes};
    ek_norm_sums sums = {.sum = NULL};
    ek_tensor *dx;
    if (!g || !x || !stats.mean || !stats.invstd || norm_fused(&o, true, false, &sums, &dx) < 0)
        return NULL;
    ek_tensor *along = attributes.batch ? sums.dweight : sums.sum_xhat;
    if (s)
        *s = along;
    return EK_RECORD(dx, &projected_operation, EK_INPUTS(g, x),
                     EK_SAVED(g, x, stats.mean, stats.invstd, dx, along),
                     EK_ATTRIBUTES(attributes));
}

static int norm_differentiable(ek_node *node, const norm_operands *o, ek_tensor **results)
{
    ek_norm_attributes attributes = o->attributes;
    ek_tensor *dy = o->y_relu ? ek_relu_gradient(o->dy, o->y_relu, 0) : o->dy;
    attributes.relu = false;
    if (ek_node_needs(node, 0))
        results[0] = norm_projected(ek_norm_mul_affine(dy, o->w, attributes), o->x, o->stats,
                                    attributes, NULL);
    if (ek_node_needs(node, 1))
        results[1] =
            norm_sum_affine(ek_mul(dy, ek_norm_normalize(o->x, NULL, NULL, o->stats, attributes)),
                            attributes);
    if (ek_node_needs(node, 2))
        results[2] = norm_sum_affine(dy, attributes);
    return ek_error_status();
}

/* Inputs x, w, b; saved x, w, mean, invstd, and y with a ReLU. */
static int norm_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    norm_operands o = {.dy = gradients[0],
                       .x = ek_node_saved(node, 0),
                       .w = ek_node_saved(node, 1),
                       .stats = {ek_node_saved(node, 2), ek_node_saved(node, 3)},
                       .attributes = *(const ek_norm_attributes *)ek_node_attributes(node)};
    const bool slope = ek_node_needs(node, 1), shift = ek_node_needs(node, 2);
    if (o.attributes.relu)
        o.y_relu = ek_detach(ek_node_saved(node, 4));
    EK_TRY(ek_error_status());
    if (ek_grad_enabled())
        return norm_differentiable(node, &o, results);
    ek_norm_sums sums = {.dweight = ek_node_destination(node, 1),
                         .dbias = ek_node_destination(node, 2)};
    EK_TRY(norm_fused(&o, ek_node_needs(node, 0), slope || shift, &sums, &results[0]));
    results[1] = slope ? sums.dweight : NULL;
    results[2] = shift ? sums.dbias : NULL;
    return 0;
}

/* ---- the operation ---- */

EK_OPERATION(batch, "batch_norm", norm_backward);
EK_OPERATION(batch_relu, "batch_norm_relu", norm_backward);
EK_OPERATION(group, "group_norm", norm_backward);

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
