/* reduce.c: sums, means, extremes along a dimension, norms, variance and standard deviation. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "autograd/observer.h"
#include "ops/attributes.h"
#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- sum: the gradient is repeated ---- */

static int sum_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_sum_attributes *a = ek_node_attributes(node);
    ek_tensor *g = gradients[0];
    if (g->ndim != a->kept.ndim)
        g = ek_reshape(g, a->kept);
    results[0] = ek_expand(g, a->whole);
    return 0;
}

EK_OPERATION(sum, "sum", sum_backward);

/* Removes the dimensions in a mask, which have size 1, from y, which no caller has yet. */
static void reduce_drop_dimensions(ek_tensor *y, unsigned mask)
{
    int ndim = 0;
    for (int i = 0; i < y->ndim; i++) {
        if (mask >> i & 1)
            continue;
        y->shape[ndim] = y->shape[i];
        y->stride[ndim++] = y->stride[i];
    }
    y->ndim = ndim;
}

ek_shape ek_reduced_shape(const ek_tensor *x, unsigned mask)
{
    ek_shape shape = ek_tensor_shape(x);
    for (int i = 0; i < x->ndim; i++)
        if (mask >> i & 1)
            shape.dims[i] = 1;
    return shape;
}

ek_tensor *ek_run_reduce(ek_reduce_kind kind, const ek_tensor *x, unsigned mask, ek_dtype dtype)
{
    ek_shape shape = ek_reduced_shape(x, mask);
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(x), dtype, &shape, EK_CONTIGUOUS);
    return y && ek_kernels_of(x)->reduce(ek_tensor_dev(x), kind, y, x) >= 0 ? y : NULL;
}

/* Returns how many elements are summed for one element of the result. */
static int64_t reduce_summed_count(const ek_tensor *x, unsigned mask)
{
    int64_t count = 1;
    for (int i = 0; i < x->ndim; i++)
        if (mask >> i & 1)
            count *= x->shape[i];
    return count;
}

ek_tensor *ek_sum_mask(ek_tensor *x, unsigned reduced, unsigned dropped)
{
    if (!x)
        return NULL;
    ek_sum_attributes attributes = {ek_tensor_shape(x), ek_reduced_shape(x, reduced)};
    ek_dtype dtype = ek_dtype_is_floating(x->dtype) ? x->dtype : EK_I64;
    ek_tensor *y = ek_tensor_new(x->storage->dev, dtype, &attributes.kept, EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->reduce(x->storage->dev, EK_REDUCE_SUM, y, x) < 0)
        return NULL;
    reduce_drop_dimensions(y, dropped);
    return EK_RECORD(y, &sum_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

ek_tensor *ek_sum_with(ek_reduce_options options)
{
    int mask = EK_REDUCED("sum", &options);
    if (mask < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.x);
    ek_tensor *y = ek_sum_mask(x, (unsigned)mask, options.keepdim ? 0 : (unsigned)mask);
    return ek_scope_return(&scope, y);
}

ek_tensor *ek_mean_with(ek_reduce_options options)
{
    int mask = EK_REDUCED("mean", &options);
    if (mask < 0 || !ek_floating("mean", "x", options.x))
        return NULL;
    unsigned reduced = (unsigned)mask;
    if (options.x->dtype == EK_F16) { /* a sum may be too large for f16 */
        ek_scope scope = ek_scope_begin();
        options.x = ek_to_dtype(options.x, EK_F32);
        ek_tensor *mean = options.x ? ek_mean_with(options) : NULL;
        return ek_scope_return(&scope, ek_to_dtype(mean, EK_F16));
    }
    ek_tensor *y = ek_sum_mask(options.x, reduced, options.keepdim ? 0 : reduced);
    return ek_div_scalar(y, (double)reduce_summed_count(options.x, reduced));
}

ek_tensor *ek_sum_to(ek_tensor *x, ek_shape shape)
{
    if (!ek_given("sum_to", "x", x))
        return NULL;
    ek_shape own = ek_tensor_shape(x);
    if (ek_shape_equal(&own, &shape))
        return ek_itself(x);
    bool fits = shape.ndim >= 0 && shape.ndim <= x->ndim;
    int lead = fits ? x->ndim - shape.ndim : 0;
    unsigned reduced = 0;
    for (int i = 0; fits && i < x->ndim; i++) {
        int64_t size = i < lead ? 1 : shape.dims[i - lead];
        fits = size == 1 || size == x->shape[i];
        if (i < lead || size != x->shape[i])
            reduced |= 1u << i;
    }
    if (!fits) {
        return EK_REFUSE(EK_E_SHAPE, "sum_to: %s does not broadcast to %s", EK_SHAPE_TEXT(&shape),
                         EK_SHAPE_TEXT(&own));
    }
    return ek_sum_mask(x, reduced, (1u << lead) - 1);
}

/* ---- extremes: elements are gathered, so that gradients go to the gathered elements ---- */

/* Returns the positions of the extremes along dimension *dim, which gets size 1. *dim becomes
 * non-negative. */
static ek_tensor *reduce_positions(const char *operation, ek_reduce_kind kind, ek_tensor *x,
                                   int *dim)
{
    if (!ek_given(operation, "x", x) || (*dim = ek_dimension(operation, x, *dim)) < 0)
        return NULL;
    ek_shape shape = ek_tensor_shape(x);
    if (shape.dims[*dim] == 0)
        return EK_REFUSE(EK_E_SHAPE, "%s: dimension %d has no elements", operation, *dim);
    shape.dims[*dim] = 1;
    ek_tensor *index = ek_tensor_new(x->storage->dev, EK_I64, &shape, EK_CONTIGUOUS);
    if (!index || ek_kernels_of(x)->arg_reduce(x->storage->dev, kind, index, x, *dim) < 0)
        return NULL;
    return EK_OBSERVED(index, kind == EK_REDUCE_MAX ? "argmax" : "argmin", EK_INPUTS(x),
                       EK_ATTRIBUTES(*dim));
}

static ek_tensor *reduce_extreme(const char *operation, ek_reduce_kind kind, ek_tensor *x, int dim,
                                 bool keepdim)
{
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(reduce_extreme(operation, kind, ek_row_of(x), 0, true));
    ek_tensor *index = reduce_positions(operation, kind, x, &dim);
    if (!index)
        return NULL;
    ek_tensor *y = ek_gather_dim(x, dim, index);
    return keepdim || !y ? y : ek_squeeze(y, dim);
}

ek_tensor *ek_max_dim(ek_tensor *x, int dim, bool keepdim)
{
    return reduce_extreme("max_dim", EK_REDUCE_MAX, x, dim, keepdim);
}

ek_tensor *ek_min_dim(ek_tensor *x, int dim, bool keepdim)
{
    return reduce_extreme("min_dim", EK_REDUCE_MIN, x, dim, keepdim);
}

static ek_tensor *reduce_position(const char *operation, ek_reduce_kind kind, ek_tensor *x, int dim,
                                  bool keepdim)
{
    if (ek_is_scalar_dim(x, dim))
        return reduce_position(operation, kind, ek_row_of(x), 0, false);
    ek_tensor *index = reduce_positions(operation, kind, x, &dim);
    if (index && !keepdim)
        reduce_drop_dimensions(index, 1u << dim);
    return index;
}

ek_tensor *ek_argmax(ek_tensor *x, int dim, bool keepdim)
{
    return reduce_position("argmax", EK_REDUCE_MAX, x, dim, keepdim);
}

ek_tensor *ek_argmin(ek_tensor *x, int dim, bool keepdim)
{
    return reduce_position("argmin", EK_REDUCE_MIN, x, dim, keepdim);
}

/* ---- sqrt(x), with gradient 0 at 0 ----
 *
 * If the root is 0, its gradients of any order are 0. A quotient by 0 is never formed, not even one
 * that is thrown away afterwards, because its own gradient would be NaN. */

/* The backward of y = 1 / x for x > 0 and y = 0 for x = 0; NaN stays NaN. Saved y. Where y is 0,
 * the gradient is replaced by 0. */
static int safe_reciprocal_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *y = ek_node_saved(node, 0);
    results[0] = ek_neg(ek_mul(ek_relu_gradient(gradients[0], y, 0), ek_square(y)));
    return 0;
}

EK_OPERATION(safe_reciprocal, "safe_reciprocal", safe_reciprocal_backward);

static ek_tensor *reduce_safe_reciprocal(ek_tensor *x)
{
    if (!x)
        return NULL;
    ek_tensor *y = ek_run_unary(EK_UNARY_SAFE_RECIPROCAL, x, 0, 0);
    return EK_RECORD(y, &safe_reciprocal_operation, EK_INPUTS(x), EK_SAVED(y));
}

static int root_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *y = ek_node_saved(node, 0);
    results[0] = ek_mul(gradients[0], ek_mul_scalar(reduce_safe_reciprocal(y), 0.5));
    return 0;
}

EK_OPERATION(root, "safe_root", root_backward);

static ek_tensor *reduce_safe_root(ek_tensor *x)
{
    if (!x)
        return NULL;
    ek_tensor *y = ek_run_unary(EK_UNARY_SQRT, x, 0, 0);
    return EK_RECORD(y, &root_operation, EK_INPUTS(x), EK_SAVED(y));
}

/* ---- sums over dimensions ---- */

ek_tensor *ek_reduced(ek_tensor *y, unsigned mask, bool keepdim)
{
    if (!y || keepdim)
        return y;
    ek_shape shape = {.ndim = 0};
    for (int i = 0; i < y->ndim; i++)
        if (!(mask >> i & 1))
            shape.dims[shape.ndim++] = y->shape[i];
    return ek_reshape(y, shape);
}

EK_BACKWARD(sum_squares, void, ek_mul(ek_node_saved(node, 0), ek_mul_scalar(g, 2)))
EK_OPERATION(sum_squares, "sum_squares", sum_squares_backward);

static ek_tensor *reduce_sum_squares(ek_tensor *x, unsigned mask)
{
    ek_tensor *y = ek_run_reduce(EK_REDUCE_SUM_SQUARES, x, mask, x->dtype);
    return EK_RECORD(y, &sum_squares_operation, EK_INPUTS(x), EK_SAVED(x));
}

/* ---- norms ---- */

/* Returns x^p for x >= 0. Elements in the mask become 0, with gradient 0. */
static ek_tensor *reduce_masked_power(ek_tensor *x, ek_tensor *mask, double p)
{
    if (!x || !mask)
        return NULL;
    ek_tensor *base = ek_where(mask, ek_number_like(x, 1), x);
    return ek_where(mask, ek_number_like(x, 0), ek_pow_scalar(base, p));
}

/* Returns x^p for x >= 0. If p isn't 1, value and gradient are 0 at 0. */
static ek_tensor *reduce_safe_power(ek_tensor *x, double p)
{
    return p == 1 ? x : reduce_masked_power(x, ek_eq_scalar(x, 0), p);
}

/* Returns the p-norm for p < 0. If an element is 0, the norm and its gradient are 0. */
static ek_tensor *reduce_negative_norm(ek_tensor *magnitude, double p, unsigned mask)
{
    ek_tensor *is_zero = ek_eq_scalar(magnitude, 0);
    ek_tensor *some = ek_ne_scalar(ek_sum_mask(is_zero, mask, 0), 0);
    ek_tensor *sum = ek_sum_mask(reduce_masked_power(magnitude, is_zero, p), mask, 0);
    return reduce_masked_power(sum, some, 1 / p);
}

/* The backward of counting elements that are not 0: the gradient is 0. */
EK_BACKWARD(counted, void, ek_zeros_like(g))
EK_OPERATION(counted, "counted", counted_backward);

/* Returns the p-norm, with its dimensions kept. For finite p the norm of no elements is 0. */
static ek_tensor *reduce_norm(ek_tensor *x, double p, unsigned mask)
{
    if (!x)
        return NULL;
    if (p == 2)
        return reduce_safe_root(reduce_sum_squares(x, mask));
    if (p == 0)
        return ek_sum_mask(EK_RECORD(ek_to_dtype(ek_ne_scalar(x, 0), x->dtype), &counted_operation,
                                     EK_INPUTS(x)),
                           mask, 0);
    ek_tensor *magnitude = ek_abs(x);
    if (isinf(p))
        return magnitude ? ek_extreme("norm", magnitude, p > 0, mask) : NULL;
    if (p < 0 && ek_count(x) > 0)
        return reduce_negative_norm(magnitude, p, mask);
    return reduce_safe_power(ek_sum_mask(reduce_safe_power(magnitude, p), mask, 0), 1 / p);
}

/* Computes norms of bf16 and f16 in f32, because squares may be too large for f16. */
ek_tensor *ek_norm_with(ek_p_norm_options options)
{
    int mask = EK_REDUCED("norm", &options);
    if (mask < 0 || !ek_floating("norm", "x", options.x))
        return NULL;
    if (isnan(options.p))
        return EK_REFUSE(EK_E_INVALID, "norm: p is not a number");
    ek_scope scope = ek_scope_begin();
    const ek_dtype wide = ek_dtype_wide(options.x->dtype);
    const ek_dtype dtype = ek_autocast_widens(options.x) ? wide : options.x->dtype;
    ek_tensor *y = reduce_norm(ek_to_dtype(options.x, wide), options.p, (unsigned)mask);
    return ek_scope_return(&scope,
                           ek_reduced(ek_to_dtype(y, dtype), (unsigned)mask, options.keepdim));
}

/* ---- log(sum(exp(x))), whose gradient is softmax ---- */

/* Saved x, and the result with its dimensions kept and its history, so that its derivatives reach
 * x. */
EK_BACKWARD(logsumexp, void,
            ek_mul(g, ek_exp(ek_sub(ek_node_saved(node, 0), ek_node_saved(node, 1)))))
EK_OPERATION(logsumexp, "logsumexp", logsumexp_backward);

/* Computes without history. First subtracts the largest element, or the largest finite number if
 * that element is infinite, so that infinities give the right result. */
static ek_tensor *reduce_run_logsumexp(ek_tensor *x, unsigned mask)
{
    ek_shape kept = ek_reduced_shape(x, mask);
    if (ek_count(x) == 0)
        return ek_log(ek_sum_mask(x, mask, 0));
    ek_tensor *largest = ek_tensor_new(ek_tensor_dev(x), x->dtype, &kept, EK_CONTIGUOUS);
    const double most = x->dtype == EK_F64 ? DBL_MAX : (double)FLT_MAX;
    if (!largest || ek_kernels_of(x)->reduce(ek_tensor_dev(x), EK_REDUCE_MAX, largest, x) < 0)
        return NULL;
    largest = ek_run_unary(EK_UNARY_CLAMP, largest, -most, most);
    return ek_add(ek_log(ek_sum_mask(ek_exp(ek_sub(x, largest)), mask, 0)), largest);
}

/* bf16 and f16 are computed in f32. */
ek_tensor *ek_logsumexp_with(ek_reduce_options options)
{
    int mask = EK_REDUCED("logsumexp", &options);
    if (mask < 0 || !ek_floating("logsumexp", "x", options.x))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_dtype dtype = options.x->dtype;
    ek_tensor *x = ek_to_dtype(options.x, ek_dtype_wide(dtype));
    bool before = ek_set_grad_enabled(false);
    ek_tensor *y = x ? reduce_run_logsumexp(x, (unsigned)mask) : NULL;
    ek_set_grad_enabled(before);
    y = EK_RECORD(y, &logsumexp_operation, EK_INPUTS(x), EK_SAVED(x, y));
    y = ek_reduced(ek_to_dtype(y, dtype), (unsigned)mask, options.keepdim);
    return ek_scope_return(&scope, y);
}

/* ---- variance ---- */

static ek_tensor *reduce_mean_kept(ek_tensor *x, unsigned mask)
{
    return mask ? ek_div_scalar(ek_sum_mask(x, mask, 0), (double)reduce_summed_count(x, mask)) : x;
}

static int variance_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_variance_attributes *attributes = ek_node_attributes(node);
    ek_tensor *x = ek_node_saved(node, 0);
    if (!x)
        return ek_error_pending();
    ek_tensor *scaled = ek_mul_scalar(gradients[0], 2 * attributes->share);
    results[0] = ek_mul(ek_sub(x, reduce_mean_kept(x, attributes->mask)), scaled);
    return 0;
}

EK_OPERATION(variance, "var", variance_backward);

/* Computes the mean, then the sum of squared differences from the mean. */
static ek_tensor *reduce_run_variance(ek_tensor *x, ek_variance_attributes attributes)
{
    ek_shape whole = ek_tensor_shape(x), kept = ek_reduced_shape(x, attributes.mask);
    ek_dev *dev = ek_tensor_dev(x);
    ek_tensor center;
    bool before = ek_set_grad_enabled(false);
    ek_tensor *mean = reduce_mean_kept(x, attributes.mask);
    ek_set_grad_enabled(before);
    if (!mean)
        return NULL;
    ek_borrow_expanded(&center, mean, &whole);
    ek_tensor *squares = ek_run_binary(EK_BINARY_SQUARED_DIFFERENCE, x, &center, 0);
    ek_tensor *y = ek_tensor_new(dev, x->dtype, &kept, EK_CONTIGUOUS);
    if (!squares || !y || ek_kernels_of(x)->reduce(dev, EK_REDUCE_SUM, y, squares) < 0)
        return NULL;
    return ek_run_unary(EK_UNARY_AFFINE, y, attributes.share, 0);
}

/* Computes variances of bf16 and f16 in f32, because a mean rounded to 16 bits is too far from the
 * true mean. */
static ek_tensor *reduce_variance(const char *operation, const ek_variance_options *options)
{
    int mask = EK_REDUCED(operation, options);
    if (mask < 0 || !ek_floating(operation, "x", options->x))
        return NULL;
    const ek_dtype dtype = options->x->dtype;
    int64_t count = reduce_summed_count(options->x, (unsigned)mask) - options->correction;
    ek_variance_attributes attributes = {(unsigned)mask,
                                         count > 0 ? 1.0 / (double)count : (double)INFINITY};
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_to_dtype(options->x, ek_dtype_wide(dtype));
    ek_tensor *y = x ? reduce_run_variance(x, attributes) : NULL;
    y = EK_RECORD(y, &variance_operation, EK_INPUTS(x), EK_SAVED(x), EK_ATTRIBUTES(attributes));
    y = ek_scope_return(&scope, ek_to_dtype(y, dtype));
    return ek_reduced(y, (unsigned)mask, options->keepdim);
}

ek_tensor *ek_var_with(ek_variance_options options)
{
    return reduce_variance("var", &options);
}

ek_tensor *ek_var_mean_with(ek_tensor **mean, ek_variance_options options)
{
    if (mean)
        *mean = NULL;
    ek_tensor *variance = reduce_variance("var_mean", &options);
    if (!variance || !mean)
        return variance;
    ek_reduce_options over = {.x = options.x,
                              .dim = options.dim,
                              .dim_count = options.dim_count,
                              .keepdim = options.keepdim};
    memcpy(over.dims, options.dims, sizeof over.dims);
    *mean = ek_mean_with(over);
    return *mean ? variance : NULL;
}

ek_tensor *ek_nansum_with(ek_reduce_options options)
{
    if (!ek_given("nansum", "x", options.x))
        return NULL;
    if (ek_dtype_is_floating(options.x->dtype))
        options.x = ek_where(ek_isnan(options.x), ek_number_like(options.x, 0), options.x);
    return options.x ? ek_sum_with(options) : NULL;
}

/* The gradient is 0 if the deviation is 0, as in PyTorch. */
ek_tensor *ek_std_with(ek_variance_options options)
{
    return reduce_safe_root(reduce_variance("std", &options));
}
