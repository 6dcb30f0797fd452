/* norm.c: normalisation, of which batch (alone or followed by a ReLU), group, instance and layer
 * norm (alone or of a sum) are cases (norm_public.c).
 *
 * With xhat = (x - mean) r, r = 1 / sqrt(var + eps), over the n values that share a statistic: a
 * channel's of the whole batch, or those of a sample's group of channels:
 *
 *     y = w xhat + b,   dw = sum(dy xhat),   db = sum(dy)   over what shares a weight,
 *     dx = r (g - sum(g) / n - xhat sum(g xhat) / n),   g = w dy,   over what shares a statistic,
 *     dx = r g if mean and var are constants.
 *
 * Fused kernels compute the gradients. If a graph of the gradients is recorded, operations compute
 * them instead, and r is an operation of x, with dr/dx = -r^2 xhat / n.
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

ek_tensor *ek_norm_mul_affine(ek_tensor *u, ek_tensor *w, ek_norm_attributes attributes)
{
    if (!u || !w)
        return u;
    ek_tensor *factor = attributes.element ? w : ek_reshape(w, ek_reduced_shape(u, ~2U));
    return ek_mul(u, factor && w->dtype != u->dtype ? ek_to_dtype(factor, u->dtype) : factor);
}

/* Returns the sums over the values that share a weight. */
static ek_tensor *norm_sum_affine(ek_tensor *u, ek_norm_attributes attributes)
{
    const unsigned shared = attributes.element ? 1U : ~2U;
    return ek_sum_mask(u, shared, shared);
}

/* Returns x's shape with the channels as two dimensions: groups, and channels of a group. If this
 * shape has one dimension too many, its last two dimensions become one. */
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

/* Returns u. With statistics of samples, returns a view of u whose first two dimensions are those
 * of a statistic. */
static ek_tensor *norm_grouped(ek_tensor *u, ek_norm_attributes attributes)
{
    return !u || attributes.batch ? u : ek_reshape(u, norm_split_shape(u, attributes));
}

/* The dimensions that share a statistic. */
static unsigned norm_shared(ek_norm_attributes attributes)
{
    return attributes.batch ? ~2U : ~3U;
}

/* Returns the sums of a grouped u over the values that share a statistic. Summed dimensions stay,
 * with size 1. */
static ek_tensor *norm_sum_statistic(ek_tensor *u, ek_norm_attributes attributes)
{
    return ek_sum_mask(u, norm_shared(attributes), 0);
}

/* Returns the statistic in a shape that broadcasts over a grouped u. */
static ek_tensor *norm_spread(ek_tensor *statistic, ek_tensor *u, ek_norm_attributes attributes)
{
    return u ? ek_reshape(statistic, ek_reduced_shape(u, norm_shared(attributes))) : NULL;
}

/* ---- r as a function of x ---- */

/* Saved x, mean, and r with its history, so that derivatives of r reach x. A constant r has a
 * gradient, too, of zeros: the gradients of x have a history whatever the statistics are. */
static int invstd_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_norm_attributes attributes = *(const ek_norm_attributes *)ek_node_attributes(node);
    ek_tensor *x = ek_node_saved(node, 0), *r = ek_node_saved(node, 2);
    ek_norm_statistics stats = {ek_node_saved(node, 1), r};
    if (attributes.constant) {
        results[0] = x ? ek_zeros_like(x) : NULL;
        return ek_error_status();
    }
    ek_tensor *xhat = norm_grouped(ek_norm_normalize(x, NULL, NULL, stats, attributes), attributes);
    ek_tensor *factor = ek_mul_scalar(ek_mul(gradients[0], ek_square(r)), -1 / attributes.count);
    ek_tensor *dx = ek_mul(xhat, norm_spread(factor, xhat, attributes));
    results[0] = dx ? ek_reshape(dx, ek_tensor_shape(x)) : NULL;
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

/* ---- the gradients ---- */

/* Returns r (g - sum(g) / n - xhat sum(g xhat) / n), or r g if r is constant. */
static ek_tensor *norm_projection(ek_tensor *g, ek_tensor *xhat, ek_tensor *r,
                                  ek_norm_attributes attributes)
{
    const double share = 1 / attributes.count;
    ek_tensor *u = norm_grouped(g, attributes), *v = norm_grouped(xhat, attributes), *line = u;
    if (!attributes.constant) {
        ek_tensor *mean = ek_mul_scalar(norm_sum_statistic(u, attributes), share);
        ek_tensor *slope = ek_mul_scalar(norm_sum_statistic(ek_mul(u, v), attributes), share);
        line = ek_sub(ek_sub(u, mean), ek_mul(v, slope));
    }
    ek_tensor *dx = ek_mul(line, norm_spread(r, u, attributes));
    return dx ? ek_reshape(dx, ek_tensor_shape(g)) : NULL;
}

/* The gradients that are wanted, of x, w and b. */
typedef struct norm_wanted {
    bool x, w, b;
} norm_wanted;

/* Computes the gradients by operations, in the statistics' dtype. */
static int norm_differentiable(norm_wanted wanted, ek_tensor *dy, ek_tensor *x, ek_tensor *w,
                               ek_tensor *y_relu, ek_norm_statistics stats,
                               ek_norm_attributes attributes, ek_tensor **results)
{
    const ek_dtype dtype = ek_norm_dtype(x);
    ek_tensor *wide = ek_to_dtype(x, dtype);
    ek_tensor *g = ek_to_dtype(y_relu ? ek_relu_gradient(dy, y_relu, 0) : dy, dtype);
    attributes.relu = false;
    ek_tensor *xhat = ek_norm_normalize(wide, NULL, NULL, stats, attributes);
    if (!g || !xhat)
        return ek_error_pending();
    if (wanted.x) {
        ek_tensor *r = norm_invstd_of(wide, stats, attributes), *u = g;
        /* If values that share a statistic also share a weight, the weight is a factor of sums. */
        if (attributes.batch || (attributes.groups == x->shape[1] && !attributes.element))
            r = w ? ek_mul(r, w) : r;
        else
            u = ek_norm_mul_affine(g, w, attributes);
        ek_tensor *dx = norm_projection(u, xhat, r, attributes);
        results[0] = dx ? ek_to_dtype(dx, x->dtype) : NULL;
    }
    if (wanted.w)
        results[1] = norm_sum_affine(ek_mul(g, xhat), attributes);
    if (wanted.b)
        results[2] = norm_sum_affine(g, attributes);
    return ek_error_status();
}

/* Computes dx, which may be NULL and contains the residual of args, and dweight and dbias of
 * `sums`. dx needs dweight and dbias if statistics are of the batch, and separate sums if
 * statistics are of samples. */
static int norm_run_gradients(ek_tensor *dx, ek_norm_sums *sums, ek_norm_args *args,
                              ek_norm_attributes attributes)
{
    const ek_tensor *x = args->x, *residual = args->residual;
    const ek_kernels *kernels = ek_kernels_of(x);
    ek_dev *dev = ek_tensor_dev(x);
    const bool through = dx && !attributes.constant;
    int done = attributes.element ? kernels->norm_rows_gradient(dev, dx, sums, args) : 0;
    if (done != 0)
        return done;
    args->residual = NULL; /* an operand of the kernel for rows alone */
    if (through && !attributes.batch) {
        sums->sum = ek_norm_new_statistic(x, attributes);
        sums->sum_xhat = ek_norm_new_statistic(x, attributes);
        EK_TRY(ek_error_status());
    }
    if (sums->sum || sums->dweight)
        EK_TRY(kernels->norm_reduce(dev, sums, args));
    if (through) {
        args->sum = attributes.batch ? sums->dbias : sums->sum;
        args->sum_xhat = attributes.batch ? sums->dweight : sums->sum_xhat;
    }
    if (dx)
        EK_TRY(kernels->norm_line(dev, dx, args));
    return dx && residual ? kernels->binary(dev, EK_BINARY_ADD, dx, dx, residual, 1) : 0;
}

/* Computes the gradients of x, w and b. Input `weight` of the node is w, and the next one b. The
 * node saved x, w, mean, invstd, and with a ReLU y and b. dx contains `residual`, which may be
 * NULL. */
static int norm_gradients(ek_node *node, int weight, ek_tensor *dy, ek_tensor *residual,
                          ek_tensor **results)
{
    ek_norm_attributes attributes = *(const ek_norm_attributes *)ek_node_attributes(node);
    const norm_wanted wanted = {.x = ek_node_needs(node, 0) || ek_node_needs(node, weight - 1),
                                .w = ek_node_needs(node, weight),
                                .b = ek_node_needs(node, weight + 1)};
    ek_tensor *saved[5];
    for (int i = 0; i < 5; i++)
        saved[i] = ek_node_saved(node, i);
    ek_tensor *x = saved[0], *w = saved[1], *y_relu = saved[4];
    ek_norm_statistics stats = {saved[2], saved[3]};
    EK_TRY(ek_error_status());
    if (ek_grad_enabled()) {
        EK_TRY(norm_differentiable(wanted, dy, x, w, y_relu, stats, attributes, results));
        results[0] = results[0] && residual ? ek_add(results[0], residual) : results[0];
        return ek_error_status();
    }
    /* Nothing but the ReLU's mask depends on the bias, and y tells the mask, too. So the bias may
     * be modified before backward. */
    const bool again = y_relu && ek_node_saved_is_current(node, 5);
    ek_tensor *b = again ? ek_node_saved(node, 5) : NULL;
    ek_tensor *dx = wanted.x ? ek_result(x, NULL, NULL, x->dtype) : NULL;
    ek_norm_sums sums = {.dweight = ek_node_destination(node, weight),
                         .dbias = ek_node_destination(node, weight + 1)};
    if (wanted.w || wanted.b || (dx && attributes.batch && !attributes.constant)) {
        sums.dweight = sums.dweight ? sums.dweight : norm_new_affine(x, attributes);
        sums.dbias = sums.dbias ? sums.dbias : norm_new_affine(x, attributes);
    }
    EK_TRY(ek_error_status());
    ek_norm_args args = {.x = x,
                         .mean = stats.mean,
                         .invstd = stats.invstd,
                         .weight = w,
                         .bias = b,
                         .dy = dy,
                         .y_relu = y_relu,
                         .y_again = again,
                         .count = attributes.count,
                         .residual = residual};
    EK_TRY(norm_run_gradients(dx, &sums, &args, attributes));
    results[0] = dx;
    results[1] = wanted.w ? sums.dweight : NULL;
    results[2] = wanted.b ? sums.dbias : NULL;
    return 0;
}

/* Inputs x, w, b. */
static int norm_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    return norm_gradients(node, 1, gradients[0], NULL, results);
}

/* Inputs x, residual, w, b; outputs the sum of x and the residual, which is saved as x, and y. */
static int norm_added_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_norm_attributes *attributes = ek_node_attributes(node);
    ek_tensor *own[3] = {gradients[0], NULL, NULL};
    if (gradients[1])
        EK_TRY(norm_gradients(node, 2, gradients[1], gradients[0], own));
    results[0] = own[0];
    results[1] = own[0] ? ek_to_dtype(own[0], attributes->residual) : NULL;
    results[2] = own[1];
    results[3] = own[2];
    return ek_error_status();
}

/* ---- the operation ---- */

EK_OPERATION(batch, "batch_norm", norm_backward);
EK_OPERATION(batch_relu, "batch_norm_relu", norm_backward);
EK_OPERATION(group, "group_norm", norm_backward);
EK_OPERATION(added, "layer_norm_added", norm_added_backward);

/* Records y. */
static ek_tensor *norm_record(ek_tensor *y, ek_tensor *x, ek_tensor *w, ek_tensor *b,
                              ek_norm_statistics stats, ek_norm_attributes attributes)
{
    return EK_RECORD(y,
                     attributes.relu    ? &batch_relu_operation
                     : attributes.batch ? &batch_operation
                                        : &group_operation,
                     EK_INPUTS(x, w, b),
                     EK_SAVED(x, w, stats.mean, stats.invstd, attributes.relu ? y : NULL,
                              attributes.relu ? b : NULL),
                     EK_ATTRIBUTES(attributes));
}

/* Writes y. */
static int norm_apply(ek_tensor *y, const ek_tensor *x, const ek_tensor *w, const ek_tensor *b,
                      ek_norm_statistics stats, ek_norm_attributes attributes)
{
    const ek_norm_args args = {.x = x,
                               .mean = stats.mean,
                               .invstd = stats.invstd,
                               .weight = w,
                               .bias = b,
                               .relu = attributes.relu};
    return ek_kernels_of(x)->norm_line(ek_tensor_dev(x), y, &args);
}

ek_tensor *ek_norm_normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, ek_norm_statistics stats,
                             ek_norm_attributes attributes)
{
    if (!x || !stats.mean || !stats.invstd || ek_error_status() < 0)
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    return y && norm_apply(y, x, w, b, stats, attributes) >= 0
               ? norm_record(y, x, w, b, stats, attributes)
               : NULL;
}

/* Writes y and the statistics of x's samples; with a residual, of *total = x + residual. */
static int norm_apply_samples(ek_tensor *y, ek_norm_args *args, ek_norm_statistics stats,
                              ek_norm_attributes attributes)
{
    const ek_kernels *kernels = ek_kernels_of(y);
    ek_dev *dev = ek_tensor_dev(y);
    const ek_norm_update update = {.eps = attributes.eps};
    int done = attributes.element
                   ? kernels->norm_rows(dev, y, stats.mean, stats.invstd, args, attributes.eps)
                   : 0;
    if (done != 0)
        return done;
    if (args->residual) {
        ek_tensor *residual = ek_to_dtype((ek_tensor *)(uintptr_t)args->residual, args->x->dtype);
        if (!residual)
            return ek_error_pending();
        EK_TRY(kernels->binary(dev, EK_BINARY_ADD, args->total, args->x, residual, 1));
    }
    const ek_tensor *x = args->residual ? args->total : args->x;
    EK_TRY(kernels->norm_moments(dev, stats.mean, stats.invstd, x, &update));
    return norm_apply(y, x, args->weight, args->bias, stats, attributes);
}

static ek_norm_statistics norm_new_statistics(const ek_tensor *x, ek_norm_attributes attributes)
{
    return (ek_norm_statistics){ek_norm_new_statistic(x, attributes),
                                ek_norm_new_statistic(x, attributes)};
}

ek_tensor *ek_norm_normalize_samples(ek_tensor *x, ek_tensor *w, ek_tensor *b,
                                     ek_norm_attributes attributes)
{
    const ek_norm_statistics stats = norm_new_statistics(x, attributes);
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    ek_norm_args args = {.x = x, .weight = w, .bias = b};
    return stats.mean && stats.invstd && y && norm_apply_samples(y, &args, stats, attributes) >= 0
               ? norm_record(y, x, w, b, stats, attributes)
               : NULL;
}

ek_tensor *ek_norm_normalize_added(ek_tensor **total, ek_tensor *x, ek_tensor *residual,
                                   ek_tensor *w, ek_tensor *b, ek_norm_attributes attributes)
{
    const ek_norm_statistics stats = norm_new_statistics(x, attributes);
    ek_tensor *y = ek_result(x, residual, NULL, x->dtype);
    *total = ek_result(x, residual, NULL, x->dtype);
    ek_norm_args args = {.x = x, .weight = w, .bias = b, .residual = residual, .total = *total};
    ek_tensor *outputs[] = {*total, y};
    return stats.mean && stats.invstd && y && *total &&
                   norm_apply_samples(y, &args, stats, attributes) >= 0 &&
                   ek_record_outputs(outputs, 2, &added_operation,
                                     &(const ek_record_options){EK_INPUTS(x, residual, w, b),
                                                                EK_SAVED(*total, w, stats.mean,
                                                                         stats.invstd, NULL),
                                                                EK_ATTRIBUTES(attributes)}) >= 0
               ? y
               : NULL;
}
