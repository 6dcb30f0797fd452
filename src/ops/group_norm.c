/* group_norm.c: normalisation with statistics per sample: group, instance and layer.
 *
 * With xhat = (x - mean) r, r = 1 / sqrt(var + eps), over the n values of a group of a sample, and
 * means over these:
 *
 *     normalize  N(x; w, b)  = w xhat + b
 *     gradient   G(dy, x; w) = (dx, dw, db, s), dx = r (g - mean(g) - xhat mean(g xhat)), g = w dy,
 *                              dw = sum(dy xhat) and db = sum(dy) over what shares a weight,
 *                              s = sum(g xhat) over a group
 *
 * dx, which is symmetric between g and what it is multiplied with, is r times a projection: it
 * takes from g what the mean and xhat explain. For gradients a, b, c, e that arrive at G's outputs,
 * with A = G(a, x; 1):
 *
 *     d/d dy = w A.dx + N(x; b, c) + w xhat e
 *     d/d w  = sum(dy A.dx) + sum(dy xhat e)
 *     d/d x  = G(dy, x; b).dx + e dx - r [ (s A.dx + A.s dx) / n + xhat mean(a dx) ]
 *
 * since <a, dx> = r (<a, g> - mean(a) sum(g) - A.s s / n) reaches x through A.s, s and r. r is an
 * operation of x again (invstd_of): dr/dx = -r^2 xhat / n. All of these are the fused N and G,
 * factors per group, and products: no statistic is ever computed again, and every order follows.
 *
 * Weight and bias are per channel or, with one group, per element of a sample (layer norm). */
#include "ops/autocast.h"
#include "ops/batch_norm.h"
#include "ops/ops.h"

/* The statistics of one forward pass: constants to the graph, whose dependence on x is in the
 * formulas. mean, invstd (N, G). */
typedef struct statistics {
    ek_tensor *mean, *invstd;
} statistics;

typedef struct norm_attributes {
    int64_t groups;
    double count; /* values per group */
    bool rows;    /* weight and bias are per element */
} norm_attributes;

/* What G gives; parts that nobody wants are NULL. */
typedef struct norm_gradients {
    ek_tensor *dx, *dw, *db, *s;
} norm_gradients;

/* Slots for results that lie in a leaf's gradient already, or NULLs. */
typedef struct gradient_request {
    bool want_dx, want_sums; /* sums: dw and db */
    ek_tensor *dw, *db;
} gradient_request;

static ek_tensor *normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, statistics stats,
                            norm_attributes attributes);

static int gradient(ek_tensor *dy, ek_tensor *x, ek_tensor *w, statistics stats,
                    norm_attributes attributes, gradient_request request, norm_gradients *result);

/* ---- shapes ---- */

/* Of weight and bias. */
static ek_shape affine_shape(const ek_tensor *x, norm_attributes attributes)
{
    if (!attributes.rows)
        return EK_SHAPE(x->shape[1]);
    ek_shape shape = {.ndim = x->ndim - 1};
    for (int i = 0; i < shape.ndim; i++)
        shape.dims[i] = x->shape[i + 1];
    return shape;
}

static ek_tensor *new_affine(const ek_tensor *x, norm_attributes attributes)
{
    ek_shape shape = affine_shape(x, attributes);
    return ek_tensor_new(ek_tensor_dev(x), ek_channel_dtype(x), &shape, EK_CONTIGUOUS);
}

static ek_tensor *new_statistic(const ek_tensor *x, norm_attributes attributes)
{
    return ek_tensor_new(ek_tensor_dev(x), ek_channel_dtype(x),
                         &EK_SHAPE(x->shape[0], attributes.groups), EK_CONTIGUOUS);
}

/* In x's dtype, for products with it. */
static ek_tensor *like(ek_tensor *values, const ek_tensor *x)
{
    return values && values->dtype != x->dtype ? ek_to_dtype(values, x->dtype) : values;
}

/* u w, u of x's shape; NULL is 1. */
static ek_tensor *mul_affine(ek_tensor *u, ek_tensor *w, norm_attributes attributes)
{
    if (!u || !w)
        return u;
    ek_shape shape = {.ndim = u->ndim - 1, .dims = {u->shape[1]}};
    for (int i = 1; i < shape.ndim; i++)
        shape.dims[i] = 1;
    return ek_mul(u, like(attributes.rows ? w : ek_reshape(w, shape), u));
}

/* Sum over what shares a weight, in the statistics' dtype. */
static ek_tensor *sum_affine(ek_tensor *u, norm_attributes attributes)
{
    if (!u)
        return NULL;
    ek_reduce_options options = {.x = ek_to_dtype(u, ek_channel_dtype(u))};
    for (int i = 0; i < u->ndim; i++)
        if (i == 0 || (i > 1 && !attributes.rows))
            options.dims[options.dim_count++] = i;
    return ek_sum_with(options);
}

/* x's shape with groups and the channels in one as two dimensions: a view in any order of memory,
 * unless there is no room for one dimension more, where the last two become one. */
static ek_shape split_shape(const ek_tensor *x, norm_attributes attributes)
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

/* u f, u of x's shape, f (N, G). */
static ek_tensor *mul_groups(ek_tensor *u, ek_tensor *f, norm_attributes attributes)
{
    if (!u || !f)
        return NULL;
    const ek_shape shape = ek_tensor_shape(u), split = split_shape(u, attributes);
    ek_shape factor = split;
    for (int i = 2; i < factor.ndim; i++)
        factor.dims[i] = 1;
    return ek_reshape(ek_mul(ek_reshape(u, split), like(ek_reshape(f, factor), u)), shape);
}

/* Sum over groups, (N, G), in the statistics' dtype. */
static ek_tensor *sum_groups(ek_tensor *u, norm_attributes attributes)
{
    if (!u)
        return NULL;
    ek_tensor *values = ek_to_dtype(u, ek_channel_dtype(u));
    const ek_shape split = split_shape(u, attributes);
    ek_reduce_options options = {.x = ek_reshape(values, split)};
    for (int i = 2; i < split.ndim; i++)
        options.dims[options.dim_count++] = i;
    return ek_sum_with(options);
}

/* Of two terms that may be absent. */
static ek_tensor *added(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_add(x, y) : x ? x : y;
}

/* ---- r as a function of x ---- */

/* Saved x, mean, and r itself, which leads on to x. */
static int invstd_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const norm_attributes attributes = *(const norm_attributes *)ek_node_attributes(node);
    ek_tensor *r = ek_node_saved(node, 2);
    statistics stats = {ek_node_saved(node, 1), r};
    ek_tensor *xhat = normalize(ek_node_saved(node, 0), NULL, NULL, stats, attributes);
    ek_tensor *factor = ek_mul_scalar(ek_mul(gradients[0], ek_square(r)), -1 / attributes.count);
    results[0] = mul_groups(xhat, factor, attributes);
    return 0;
}

static const ek_operation invstd_operation = {.name = "group_norm_invstd",
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

/* Inputs x, w, b; saved x, w, mean, invstd. */
static int normalize_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    statistics stats = {ek_node_saved(node, 2), ek_node_saved(node, 3)};
    gradient_request request = {.want_dx = ek_node_needs(node, 0),
                                .want_sums = ek_node_needs(node, 1) || ek_node_needs(node, 2),
                                .dw = ek_node_destination(node, 1),
                                .db = ek_node_destination(node, 2)};
    norm_gradients result;
    EK_TRY(gradient(gradients[0], ek_node_saved(node, 0), ek_node_saved(node, 1), stats,
                    *(const norm_attributes *)ek_node_attributes(node), request, &result));
    results[0] = result.dx;
    results[1] = ek_node_needs(node, 1) ? result.dw : NULL;
    results[2] = ek_node_needs(node, 2) ? result.db : NULL;
    return 0;
}

static const ek_operation normalize_operation = {.name = "group_norm",
                                                 .backward = normalize_backward};

static ek_tensor *normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, statistics stats,
                            norm_attributes attributes)
{
    if (!x || !stats.mean || !stats.invstd || ek_error_status() < 0)
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y || ek_kernels_of(x)->group_norm_apply(ek_tensor_dev(x), y, x, stats.mean, stats.invstd,
                                                 w, b) < 0)
        return NULL;
    return EK_RECORD(y, &normalize_operation, EK_INPUTS(x, w, b),
                     EK_SAVED(x, w, stats.mean, stats.invstd), EK_ATTRIBUTES(attributes));
}

/* ---- G ---- */

/* -r [ (s A.dx + A.s dx) / n + xhat mean(a dx) ]. What is small is scaled. */
static ek_tensor *through_statistics(ek_tensor *a, ek_tensor *x, const norm_gradients *a_parts,
                                     ek_tensor *xhat, ek_tensor *dx, ek_tensor *s, statistics stats,
                                     norm_attributes attributes)
{
    ek_tensor *r = ek_mul_scalar(invstd_of(x, stats, attributes), -1 / attributes.count);
    ek_tensor *first = mul_groups(a_parts->dx, ek_mul(s, r), attributes);
    ek_tensor *second = mul_groups(dx, ek_mul(a_parts->s, r), attributes);
    ek_tensor *q = sum_groups(ek_mul(a, dx), attributes);
    return ek_add(ek_add(first, second), mul_groups(xhat, ek_mul(q, r), attributes));
}

/* Inputs dy, x, w; outputs dx, dw, db, s; saved dy, x, w, mean, invstd, dx, s. The formulas at the
 * top. */
static int gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const norm_attributes attributes = *(const norm_attributes *)ek_node_attributes(node);
    ek_tensor *a = gradients[0], *b = gradients[1], *c = gradients[2], *e = gradients[3];
    ek_tensor *dy = ek_node_saved(node, 0), *x = ek_node_saved(node, 1);
    ek_tensor *w = ek_node_saved(node, 2), *dx = ek_node_saved(node, 5);
    statistics stats = {ek_node_saved(node, 3), ek_node_saved(node, 4)};
    EK_TRY(ek_error_status());

    norm_gradients a_parts = {NULL, NULL, NULL, NULL};
    if (a)
        EK_TRY(
            gradient(a, x, NULL, stats, attributes, (gradient_request){.want_dx = true}, &a_parts));
    ek_tensor *xhat = a || e ? normalize(x, NULL, NULL, stats, attributes) : NULL;
    /* What meets w dy: A.dx + xhat e. */
    ek_tensor *met = added(a_parts.dx, e ? mul_groups(xhat, e, attributes) : NULL);

    if (ek_node_needs(node, 0)) {
        ek_tensor *zero = !b && c ? ek_zeros_like(c) : b;
        ek_tensor *affine = b || c ? normalize(x, zero, c, stats, attributes) : NULL;
        results[0] = added(mul_affine(met, w, attributes), affine);
    }
    if (ek_node_needs(node, 1)) {
        norm_gradients b_parts = {NULL, NULL, NULL, NULL};
        if (b)
            EK_TRY(gradient(dy, x, b, stats, attributes, (gradient_request){.want_dx = true},
                            &b_parts));
        ek_tensor *scaled = e ? mul_groups(dx, e, attributes) : NULL;
        ek_tensor *through = a ? through_statistics(a, x, &a_parts, xhat, dx,
                                                    ek_node_saved(node, 6), stats, attributes)
                               : NULL;
        results[1] = added(added(b_parts.dx, scaled), through);
    }
    if (ek_node_needs(node, 2) && met)
        results[2] = sum_affine(ek_mul(dy, met), attributes);
    return ek_error_status();
}

static const ek_operation gradient_operation = {.name = "group_norm_gradient",
                                                .backward = gradient_backward};

/* The sums by group are needed for dx only, and made with it. */
static int gradient(ek_tensor *dy, ek_tensor *x, ek_tensor *w, statistics stats,
                    norm_attributes attributes, gradient_request request, norm_gradients *result)
{
    *result = (norm_gradients){NULL, NULL, NULL, NULL};
    if (!dy || !x || !stats.mean || !stats.invstd || ek_error_status() < 0)
        return ek_error_pending();
    ek_dev *dev = ek_tensor_dev(x);
    const ek_kernels *kernels = ek_kernels_of(x);
    ek_tensor *sum = NULL;
    if (request.want_dx) {
        result->dx = ek_result(x, NULL, NULL, x->dtype);
        result->s = new_statistic(x, attributes);
        sum = new_statistic(x, attributes);
    }
    if (request.want_sums) {
        result->dw = request.dw ? request.dw : new_affine(x, attributes);
        result->db = request.db ? request.db : new_affine(x, attributes);
    }
    EK_TRY(ek_error_status());
    EK_TRY(kernels->group_norm_reduce(dev, sum, result->s, result->dw, result->db, dy, x,
                                      stats.mean, stats.invstd, w));
    if (request.want_dx)
        EK_TRY(kernels->group_norm_gradient(dev, result->dx, dy, x, stats.mean, stats.invstd, w,
                                            sum, result->s));
    ek_tensor *outputs[] = {result->dx, result->dw, result->db, result->s};
    return ek_record_outputs(outputs, 4, &gradient_operation,
                             &(const ek_record_options){EK_INPUTS(dy, x, w),
                                                        EK_SAVED(dy, x, w, stats.mean, stats.invstd,
                                                                 result->dx, result->s),
                                                        EK_ATTRIBUTES(attributes)});
}

/* ---- the public operations ---- */

static bool check_affine(const char *name, const ek_tensor *x, const ek_tensor *weight,
                         const ek_tensor *bias, double eps, norm_attributes attributes)
{
    const struct {
        const char *name;
        const ek_tensor *tensor;
    } parameters[] = {{"weight", weight}, {"bias", bias}};
    ek_shape shape = affine_shape(x, attributes);
    for (int i = 0; i < 2; i++) {
        const ek_tensor *tensor = parameters[i].tensor;
        if (!ek_optional(tensor) ||
            (tensor && (!ek_of_dtype(name, parameters[i].name, tensor, ek_channel_dtype(x)) ||
                        !ek_same_device(name, x, tensor) ||
                        !ek_of_shape(name, parameters[i].name, tensor, &shape))))
            return false;
    }
    if (eps >= 0)
        return true;
    EK_FAIL(EK_E_INVALID, "%s: eps must not be negative, got %g", name, eps);
    return false;
}

/* Nothing to normalise, but still a function of the operands. */
static ek_tensor *empty(ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                        norm_attributes attributes)
{
    ek_tensor *y = mul_affine(ek_clone(x), weight, attributes);
    return bias ? ek_add(y, mul_affine(ek_ones(ek_tensor_shape(x), x->dtype,
                                               .device = ek_tensor_device(x)),
                                       bias, attributes))
                : y;
}

/* x (N, C, ...), checked by the caller as far as groups go. */
static ek_tensor *group_norm(const char *name, ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                             double eps, norm_attributes attributes)
{
    eps = ek_number_or(eps, 1e-5);
    if (!check_affine(name, x, weight, bias, eps, attributes))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = NULL;
    if (ek_count(x) == 0) {
        y = empty(x, weight, bias, attributes);
    } else {
        statistics stats = {new_statistic(x, attributes), new_statistic(x, attributes)};
        attributes.count = (double)(ek_count(x) / (x->shape[0] * attributes.groups));
        const ek_norm_settle settle = {.eps = eps, .invstd = stats.invstd};
        if (stats.mean && stats.invstd &&
            ek_kernels_of(x)->group_norm_statistics(ek_tensor_dev(x), stats.mean, stats.invstd, x,
                                                    &settle) >= 0)
            y = normalize(x, weight, bias, stats, attributes);
    }
    return ek_scope_end_with(&scope, y);
}

/* The size of x, for sentences. */
static const char *size_text(const ek_tensor *x, char text[160])
{
    ek_shape shape = ek_tensor_shape(x);
    return ek_shape_text(&shape, text);
}

ek_tensor *ek_f_group_norm(ek_tensor *x, int64_t groups, ek_tensor *weight, ek_tensor *bias,
                           double eps)
{
    char text[160];
    if (!ek_floating("group_norm", "x", x) || !(x = ek_autocast_wide(x)))
        return NULL;
    if (x->ndim < 2) {
        EK_FAIL(EK_E_SHAPE, "group_norm: expected x of 2 or more dimensions (N, C, ...), got %s",
                size_text(x, text));
        return NULL;
    }
    if (groups < 1 || x->shape[1] % groups != 0) {
        EK_FAIL(EK_E_INVALID,
                "group_norm: expected a number of channels that groups divides, got input size %s "
                "and %lld groups",
                size_text(x, text), (long long)groups);
        return NULL;
    }
    /* One value per group is its own mean: the result is the bias. PyTorch refuses it for a batch
     * of one only. */
    if (ek_count(x) == groups) {
        EK_FAIL(EK_E_SHAPE,
                "group_norm: expected more than 1 value per group or a batch of more than 1, got "
                "input size %s and %lld groups",
                size_text(x, text), (long long)groups);
        return NULL;
    }
    return group_norm("group_norm", x, weight, bias, eps, (norm_attributes){.groups = groups});
}

ek_tensor *ek_f_instance_norm(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, double eps)
{
    char text[160];
    if (!ek_floating("instance_norm", "x", x))
        return NULL;
    if (x->ndim < 3) {
        EK_FAIL(EK_E_SHAPE, "instance_norm: expected x of 3 or more dimensions (N, C, ...), got %s",
                size_text(x, text));
        return NULL;
    }
    if (ek_count(x) > 0 && ek_count(x) == x->shape[0] * x->shape[1]) {
        EK_FAIL(EK_E_SHAPE,
                "instance_norm: expected more than 1 spatial element, got input size %s",
                size_text(x, text));
        return NULL;
    }
    /* Without channels there are no elements either, and no groups to count. */
    int64_t groups = x->shape[1] > 0 ? x->shape[1] : 1;
    return group_norm("instance_norm", x, weight, bias, eps, (norm_attributes){.groups = groups});
}

ek_tensor *ek_f_layer_norm(ek_tensor *x, int normalized_ndim, ek_tensor *weight, ek_tensor *bias,
                           double eps)
{
    if (!ek_floating("layer_norm", "x", x) || !(x = ek_autocast_wide(x)))
        return NULL;
    const int lead = x->ndim - normalized_ndim;
    /* Rows are a dimension of their own, so that one has to be left for them. */
    const int most = x->ndim < EK_MAX_DIMS ? x->ndim : EK_MAX_DIMS - 1;
    if (normalized_ndim < 1 || normalized_ndim > most) {
        char text[160];
        EK_FAIL(EK_E_SHAPE,
                "layer_norm: cannot normalise over the last %d dimensions of %s; 1 to %d can be",
                normalized_ndim, size_text(x, text), most);
        return NULL;
    }
    const norm_attributes attributes = {.groups = 1, .rows = true};
    if (lead == 1)
        return group_norm("layer_norm", x, weight, bias, eps, attributes);
    ek_shape rows = {.ndim = normalized_ndim + 1, .dims = {1}};
    for (int i = 0; i < lead; i++)
        rows.dims[0] *= x->shape[i];
    for (int i = 0; i < normalized_ndim; i++)
        rows.dims[i + 1] = x->shape[lead + i];
    ek_tensor *flat = ek_reshape(x, rows);
    if (!flat)
        return NULL;
    ek_tensor *y = group_norm("layer_norm", flat, weight, bias, eps, attributes);
    return y ? ek_reshape(y, ek_tensor_shape(x)) : NULL;
}
