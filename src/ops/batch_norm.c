/* batch_norm.c: batch normalisation, alone or followed by a ReLU.
 *
 * With xhat = (x - mean) r, r = 1 / sqrt(var + eps), over the n values of a channel:
 *
 *     normalize  N(x; w, b)  = w xhat + b
 *     gradient   G(dy, x; w) = (dx, dw, db), dw = sum(dy xhat), db = sum(dy),
 *                              dx = w r (dy - db / n - xhat dw / n) when training,
 *                              dx = w r dy where mean and var are constants.
 *
 * dx is linear in dy and the map is symmetric. For gradients a, b, c that arrive at G's outputs,
 * with A = G(a, x; w), D = G(dy, x; 1) and q = sum(a D.dx):
 *
 *     d/d dy = A.dx + N(x; b, c)
 *     d/d w  = q
 *     d/d x  = G(dy, x; b).dx
 *              - w r [ G(a D.dw / n + dy A.dw / n, x; 1).dx + N(x; q / n, 0) ]    (only when
 * training)
 *
 * since <a, A.dx> = w r (sum(a dy) - ...) reaches x through both xhat and r. Here r is itself an
 * operation of x when training (invstd_of): dr/dx = -r^2 xhat / n, which is N(x; -r^2 / n, 0). So
 * the three operations are closed under differentiation, none recomputes a statistic, and each is a
 * fused kernel. A ReLU adds a constant mask on dy. */
#include "ops/batch_norm.h"

#include "ops/ops.h"

/* The statistics of one forward pass: constants to the graph, whose dependence on x is in the
 * formulas. mean, invstd (C). */
typedef struct statistics {
    ek_tensor *mean, *invstd;
} statistics;

typedef struct norm_attributes {
    int64_t count; /* values per channel */
    bool training; /* the statistics are x's own */
    bool relu;
} norm_attributes;

/* What G gives; parts that nobody wants are NULL. */
typedef struct norm_gradients {
    ek_tensor *dx, *dw, *db;
} norm_gradients;

static const char norm_name[] = "batch_norm";

static ek_tensor *normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, statistics stats,
                            norm_attributes attributes);

/* Slots for results that lie in a leaf's gradient already, or NULLs; want_dx is false where the
 * input's gradient would be thrown away. */
typedef struct gradient_request {
    bool want_dx, want_sums;
    ek_tensor *dw, *db;
} gradient_request;

/* y_relu: the output where a ReLU followed, else NULL. */
static int gradient(ek_tensor *dy, ek_tensor *x, ek_tensor *w, ek_tensor *y_relu, statistics stats,
                    norm_attributes attributes, gradient_request request, norm_gradients *result);

ek_dtype ek_channel_dtype(const ek_tensor *x)
{
    return x->dtype == EK_BF16 ? EK_F32 : x->dtype;
}

ek_tensor *ek_new_channels(const ek_tensor *x)
{
    return ek_tensor_new(ek_tensor_dev(x), ek_channel_dtype(x), &EK_SHAPE(x->shape[1]),
                         EK_CONTIGUOUS);
}

ek_tensor *ek_per_channel(ek_tensor *values, const ek_tensor *x)
{
    ek_shape shape = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++)
        shape.dims[i] = i == 1 ? x->shape[1] : 1;
    ek_tensor *broadcast = ek_reshape(values, shape);
    return broadcast && broadcast->dtype != x->dtype ? ek_to_dtype(broadcast, x->dtype) : broadcast;
}

ek_tensor *ek_channel_sum(ek_tensor *x)
{
    if (!x)
        return NULL;
    ek_reduce_options options = {.x = ek_to_dtype(x, ek_channel_dtype(x))};
    for (int i = 0; i < x->ndim; i++)
        if (i != 1)
            options.dims[options.dim_count++] = i;
    return ek_sum_with(options);
}

/* ---- r as a function of x ---- */

/* Saved x, mean, and r itself, which leads on to x. */
static int invstd_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const norm_attributes *attributes = ek_node_attributes(node);
    ek_tensor *r = ek_node_saved(node, 2);
    ek_tensor *w =
        ek_mul_scalar(ek_mul(gradients[0], ek_square(r)), -1.0 / (double)attributes->count);
    statistics stats = {ek_node_saved(node, 1), r};
    results[0] = normalize(ek_node_saved(node, 0), w, NULL, stats, *attributes);
    return 0;
}

static const ek_operation invstd_operation = {.name = "batch_norm_invstd",
                                              .backward = invstd_backward};

static ek_tensor *invstd_of(ek_tensor *x, statistics stats, norm_attributes attributes)
{
    if (!x || !stats.mean || !stats.invstd)
        return NULL;
    ek_tensor *r = ek_tensor_alias(stats.invstd);
    return EK_RECORD(r, &invstd_operation, EK_INPUTS(x), EK_SAVED(x, stats.mean, r),
                     EK_ATTRIBUTES(attributes));
}

/* ---- N ---- */

/* Inputs x, w, b; saved x, w, mean, invstd, and y with a ReLU. */
static int normalize_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const norm_attributes *attributes = ek_node_attributes(node);
    ek_tensor *x = ek_node_saved(node, 0);
    ek_tensor *w = ek_node_saved(node, 1);
    statistics stats = {ek_node_saved(node, 2), ek_node_saved(node, 3)};
    ek_tensor *y_relu = attributes->relu ? ek_detach(ek_node_saved(node, 4)) : NULL;
    gradient_request request = {.want_dx = ek_node_needs(node, 0),
                                .want_sums = ek_node_needs(node, 1) || ek_node_needs(node, 2),
                                .dw = ek_node_destination(node, 1),
                                .db = ek_node_destination(node, 2)};
    norm_gradients result;
    EK_TRY(gradient(gradients[0], x, w, y_relu, stats, *attributes, request, &result));
    results[0] = result.dx;
    results[1] = ek_node_needs(node, 1) ? result.dw : NULL;
    results[2] = ek_node_needs(node, 2) ? result.db : NULL;
    return 0;
}

static const ek_operation normalize_operation = {.name = norm_name, .backward = normalize_backward};
static const ek_operation normalize_relu_operation = {.name = "batch_norm_relu",
                                                      .backward = normalize_backward};

static ek_tensor *normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, statistics stats,
                            norm_attributes attributes)
{
    if (!x || !stats.mean || !stats.invstd || ek_error_status() < 0)
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y || (ek_count(y) > 0 &&
               ek_kernels_of(x)->batch_norm_apply(ek_tensor_dev(x), y, x, stats.mean, stats.invstd,
                                                  w, b, attributes.relu) < 0))
        return NULL;
    return EK_RECORD(y, attributes.relu ? &normalize_relu_operation : &normalize_operation,
                     EK_INPUTS(x, w, b),
                     EK_SAVED(x, w, stats.mean, stats.invstd, attributes.relu ? y : NULL),
                     EK_ATTRIBUTES(attributes));
}

/* ---- G ---- */

/* dx of G(dy, x; w) alone. */
static ek_tensor *gradient_of_input(ek_tensor *dy, ek_tensor *x, ek_tensor *w, statistics stats,
                                    norm_attributes attributes)
{
    norm_gradients result;
    gradient_request request = {.want_dx = true};
    if (gradient(dy, x, w, NULL, stats, attributes, request, &result) < 0)
        return NULL;
    return result.dx;
}

/* The part of d/dx that comes from dx's own dependence on the statistics: both gradients that meet
 * there, A.dw and D.dw, and q. */
static ek_tensor *through_statistics(ek_tensor *a, ek_tensor *dy, ek_tensor *x, ek_tensor *w,
                                     ek_tensor *a_dw, ek_tensor *d_dw, ek_tensor *q,
                                     statistics stats, norm_attributes attributes)
{
    const double scale = 1.0 / (double)attributes.count;
    ek_tensor *mixed = ek_add(ek_mul(a, ek_per_channel(ek_mul_scalar(d_dw, scale), x)),
                              ek_mul(dy, ek_per_channel(ek_mul_scalar(a_dw, scale), x)));
    ek_tensor *inner = ek_add(gradient_of_input(mixed, x, NULL, stats, attributes),
                              normalize(x, ek_mul_scalar(q, scale), NULL, stats, attributes));
    ek_tensor *r = invstd_of(x, stats, attributes);
    ek_tensor *factor = w ? ek_mul(w, r) : r;
    return ek_neg(ek_mul(inner, ek_per_channel(factor, x)));
}

/* Inputs dy, x, w; outputs dx, dw, db; saved dy, x, w, mean, invstd, y_relu. The formulas at the
 * top. */
static int gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    norm_attributes attributes = *(const norm_attributes *)ek_node_attributes(node);
    ek_tensor *a = gradients[0], *b = gradients[1], *c = gradients[2];
    ek_tensor *dy = ek_node_saved(node, 0);
    ek_tensor *x = ek_node_saved(node, 1);
    ek_tensor *w = ek_node_saved(node, 2);
    statistics stats = {ek_node_saved(node, 3), ek_node_saved(node, 4)};
    ek_tensor *y_relu = ek_node_saved(node, 5);
    EK_TRY(ek_error_status());
    attributes.relu = false;
    if (y_relu)
        dy = ek_relu_gradient(dy, y_relu, 0);

    const bool through = attributes.training && ek_node_needs(node, 1);
    norm_gradients a_parts = {NULL, NULL, NULL}, d_parts = {NULL, NULL, NULL};
    ek_tensor *q = NULL;
    if (a && (ek_node_needs(node, 0) || through)) {
        gradient_request request = {.want_dx = ek_node_needs(node, 0), .want_sums = through};
        EK_TRY(gradient(a, x, w, NULL, stats, attributes, request, &a_parts));
    }
    if (a && (ek_node_needs(node, 2) || through)) {
        gradient_request request = {.want_dx = true, .want_sums = through};
        EK_TRY(gradient(dy, x, NULL, NULL, stats, attributes, request, &d_parts));
        q = ek_channel_sum(ek_mul(a, d_parts.dx));
    }

    if (ek_node_needs(node, 0)) {
        ek_tensor *zero = !b && c ? ek_zeros_like(c) : b;
        ek_tensor *affine = b || c ? normalize(x, zero, c, stats, attributes) : NULL;
        results[0] = a && affine ? ek_add(a_parts.dx, affine) : a ? a_parts.dx : affine;
        if (y_relu && results[0])
            results[0] = ek_relu_gradient(results[0], y_relu, 0);
    }
    if (ek_node_needs(node, 1)) {
        ek_tensor *first = b ? gradient_of_input(dy, x, b, stats, attributes) : NULL;
        ek_tensor *second = a && through ? through_statistics(a, dy, x, w, a_parts.dw, d_parts.dw,
                                                              q, stats, attributes)
                                         : NULL;
        results[1] = first && second ? ek_add(first, second) : first ? first : second;
    }
    if (ek_node_needs(node, 2))
        results[2] = q;
    return ek_error_status();
}

static const ek_operation gradient_operation = {.name = "batch_norm_gradient",
                                                .backward = gradient_backward};

static int gradient(ek_tensor *dy, ek_tensor *x, ek_tensor *w, ek_tensor *y_relu, statistics stats,
                    norm_attributes attributes, gradient_request request, norm_gradients *result)
{
    *result = (norm_gradients){NULL, NULL, NULL};
    if (!dy || !x || !stats.mean || !stats.invstd || ek_error_status() < 0)
        return ek_error_pending();
    ek_dev *dev = ek_tensor_dev(x);
    const ek_kernels *kernels = ek_kernels_of(x);
    const bool sums = request.want_sums || attributes.training;
    if (sums) {
        result->dw = request.dw ? request.dw : ek_new_channels(x);
        result->db = request.db ? request.db : ek_new_channels(x);
        if (!result->dw || !result->db)
            return ek_error_pending();
        EK_TRY(kernels->batch_norm_reduce(dev, result->db, result->dw, dy, x, stats.mean,
                                          stats.invstd, y_relu, NULL));
    }
    if (request.want_dx) {
        result->dx = ek_result(x, NULL, NULL, x->dtype);
        if (!result->dx)
            return ek_error_pending();
        const bool training = attributes.training;
        EK_TRY(kernels->batch_norm_gradient(dev, result->dx, dy, x, stats.mean, stats.invstd, w,
                                            training ? result->db : NULL,
                                            training ? result->dw : NULL, (double)attributes.count,
                                            y_relu));
    }
    ek_tensor *outputs[] = {result->dx, result->dw, result->db};
    return ek_record_outputs(outputs, 3, &gradient_operation,
                             &(const ek_record_options){EK_INPUTS(dy, x, w),
                                                        EK_SAVED(dy, x, w, stats.mean, stats.invstd,
                                                                 y_relu),
                                                        EK_ATTRIBUTES(attributes)});
}

/* ---- the public operation ---- */

int ek_check_batch_norm(const ek_batch_norm_options *options)
{
    const ek_tensor *x = options->x;
    if (!ek_floating(norm_name, "x", x) || !ek_optional(options->weight) ||
        !ek_optional(options->bias))
        return ek_error_pending();
    char text[200];
    if (x->ndim < 2)
        return EK_FAIL(EK_E_SHAPE,
                       "batch_norm: expected x of 2 or more dimensions (N, C, ...), got %s",
                       ek_tensor_text(x, text));
    const struct {
        const char *name;
        const ek_tensor *tensor;
    } channels[] = {{"weight", options->weight},
                    {"bias", options->bias},
                    {"running_mean", options->running_mean},
                    {"running_var", options->running_var}};
    for (int i = 0; i < 4; i++) {
        const ek_tensor *tensor = channels[i].tensor;
        if (tensor && (!ek_of_dtype(norm_name, channels[i].name, tensor, ek_channel_dtype(x)) ||
                       !ek_same_device(norm_name, x, tensor) ||
                       !ek_of_shape(norm_name, channels[i].name, tensor, &EK_SHAPE(x->shape[1]))))
            return ek_error_pending();
    }
    if (!options->running_mean != !options->running_var)
        return EK_FAIL(EK_E_INVALID, "batch_norm: running_mean and running_var go together, but "
                                     "only one is given");
    if (!(options->eps >= 0) && options->eps != EK_ZERO)
        return EK_FAIL(EK_E_INVALID, "batch_norm: eps must not be negative, got %g", options->eps);
    return 0;
}

int ek_check_values_per_channel(const ek_tensor *x, int64_t count)
{
    if (count != 1)
        return 0;
    char text[200];
    ek_shape shape = ek_tensor_shape(x);
    return EK_FAIL(EK_E_SHAPE,
                   "batch_norm: expected more than 1 value per channel when training, got input "
                   "size %s",
                   ek_shape_text(&shape, text));
}

/* One batch more. */
static int count_batch(const ek_norm_tracking *tracking)
{
    ek_tensor *batches = tracking->batches;
    if (!batches)
        return 0;
    EK_TRY(ek_kernels_of(batches)->unary(ek_tensor_dev(batches), EK_UNARY_AFFINE, batches, batches,
                                         1, 1));
    ek_tensor_written(batches, norm_name);
    return 0;
}

/* Statistics of `count` values are to move what is tracked: a kernel runs with `settle` between
 * begin and end. */
static int begin_tracking(const ek_norm_tracking *tracking, int64_t count, ek_norm_settle *settle)
{
    if (!tracking->mean)
        return 0;
    if (tracking->momentum == EK_CUMULATIVE && !tracking->batches)
        return EK_FAIL(EK_E_INVALID, "batch_norm: EK_CUMULATIVE is for modules, which count their "
                                     "batches");
    settle->running_mean = tracking->mean;
    settle->running_var = tracking->var;
    settle->momentum = tracking->momentum;
    settle->count = (double)count;
    if (tracking->momentum != EK_CUMULATIVE) {
        settle->batches = tracking->batches;
        return 0;
    }
    /* Every channel reads the number: it is counted before. */
    settle->average = tracking->batches;
    return count_batch(tracking);
}

static void end_tracking(const ek_norm_tracking *tracking)
{
    ek_tensor *const written[] = {tracking->mean, tracking->var, tracking->batches};
    for (int i = 0; tracking->mean && i < 3; i++)
        if (written[i])
            ek_tensor_written(written[i], norm_name);
}

int ek_move_tracked(const ek_norm_tracking *tracking, const ek_tensor *mean, const ek_tensor *var,
                    int64_t count)
{
    ek_norm_settle settle = {.eps = 0};
    if (count == 0)
        return count_batch(tracking);
    if (!tracking->mean)
        return 0;
    EK_TRY(begin_tracking(tracking, count, &settle));
    EK_TRY(ek_kernels_of(mean)->norm_settle(ek_tensor_dev(mean), mean, var, &settle));
    end_tracking(tracking);
    return 0;
}

/* x's own statistics; moves the running ones. */
static int batch_statistics(const ek_tensor *x, const ek_norm_tracking *tracking, int64_t count,
                            double eps, statistics *stats)
{
    stats->mean = ek_new_channels(x);
    stats->invstd = ek_new_channels(x);
    if (!stats->mean || !stats->invstd)
        return ek_error_pending();
    ek_norm_settle settle = {.eps = eps, .invstd = stats->invstd};
    EK_TRY(begin_tracking(tracking, count, &settle));
    EK_TRY(ek_kernels_of(x)->batch_norm_statistics(ek_tensor_dev(x), stats->mean, stats->invstd, x,
                                                   &settle));
    end_tracking(tracking);
    return 0;
}

/* Copies of the running statistics, so that a later training pass may move them before backward. */
static int running_statistics(const ek_batch_norm_options *options, double eps, statistics *stats)
{
    ek_tensor *x = options->x;
    stats->mean = ek_new_channels(x);
    stats->invstd = ek_new_channels(x);
    if (!stats->mean || !stats->invstd)
        return ek_error_pending();
    const ek_norm_settle settle = {.eps = eps, .mean = stats->mean, .invstd = stats->invstd};
    return ek_kernels_of(x)->norm_settle(ek_tensor_dev(x), options->running_mean,
                                         options->running_var, &settle);
}

/* An empty batch: nothing to normalise or to count, but still a function of the operands. */
static ek_tensor *empty_batch(const ek_batch_norm_options *options)
{
    ek_tensor *y = ek_clone(options->x);
    if (options->weight)
        y = ek_mul(y, ek_per_channel(options->weight, options->x));
    if (options->bias)
        y = ek_add(y, ek_per_channel(options->bias, options->x));
    return y;
}

/* What this call moves. */
static ek_norm_tracking tracking_of(const ek_batch_norm_options *options, ek_tensor *batches)
{
    if (!options->training || !options->running_mean)
        return (ek_norm_tracking){.mean = NULL};
    return (ek_norm_tracking){.mean = options->running_mean,
                              .var = options->running_var,
                              .batches = batches,
                              .momentum = ek_number_or(EK_GIVEN(options, momentum, 6), 0.1)};
}

static ek_tensor *batch_norm(const ek_batch_norm_options *options, bool relu,
                             const ek_norm_tracking *tracking)
{
    const bool training = options->training || !options->running_mean;
    if (ek_check_batch_norm(options) < 0)
        return NULL;
    ek_tensor *x = options->x;
    if (training && ek_count(x) > 0 &&
        ek_check_values_per_channel(x, ek_count(x) / x->shape[1]) < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = NULL;
    if (ek_count(x) == 0) {
        y = count_batch(tracking) < 0 ? NULL : empty_batch(options);
    } else {
        norm_attributes attributes = {.count = ek_count(x) / x->shape[1],
                                      .training = training,
                                      .relu = relu};
        const double eps = ek_number_or(EK_GIVEN(options, eps, 7), 1e-5);
        statistics stats = {NULL, NULL};
        int rc = training ? batch_statistics(x, tracking, attributes.count, eps, &stats)
                          : running_statistics(options, eps, &stats);
        if (rc >= 0)
            y = normalize(x, options->weight, options->bias, stats, attributes);
    }
    return ek_scope_end_with(&scope, y);
}

ek_tensor *ek_batch_norm_tracked(ek_batch_norm_options options, bool relu, ek_tensor *batches)
{
    const ek_norm_tracking tracking = tracking_of(&options, batches);
    return batch_norm(&options, relu, &tracking);
}

ek_tensor *ek_f_batch_norm_with(ek_batch_norm_options options)
{
    return ek_batch_norm_tracked(options, false, NULL);
}
