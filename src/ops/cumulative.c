/* cumulative.c: cumulative sums and products along a dimension, and products.
 *
 * All are made of one operation, the linear recurrence h[i] = a[i] h[i - 1] + b[i]. Its gradients
 * are recurrences in the opposite direction. So products have gradients of any order without
 * quotients, which are right even if factors are 0. */
#include <float.h>
#include <math.h>

#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- linear recurrences ---- */

typedef struct scan_attributes {
    int dim;
    bool reverse, factors, addends; /* which of a and b there are */
} scan_attributes;

/* Returns x shifted by one along dim. With `forward` it is shifted in the recurrence's direction,
 * and `first` fills its begin; otherwise against the direction, and `first` fills its end. */
static ek_tensor *scan_shifted(ek_tensor *x, const scan_attributes *a, bool forward, double first)
{
    if (!x)
        return NULL;
    int64_t size = x->shape[a->dim];
    bool front = forward != a->reverse;
    ek_shape shape = ek_tensor_shape(x);
    shape.dims[a->dim] = 1;
    ek_tensor *edge = ek_filled(ek_tensor_dev(x), x->dtype, &shape, first);
    ek_tensor *rest = ek_narrow(x, a->dim, front ? 0 : 1, size - 1);
    return front ? ek_cat((ek_tensor *const[]){edge, rest}, 2, a->dim)
                 : ek_cat((ek_tensor *const[]){rest, edge}, 2, a->dim);
}

static ek_tensor *scan_apply(ek_tensor *a, ek_tensor *b, int dim, bool reverse);

/* With g, the gradient of h: the gradient of b is G[i] = g[i] + a[i + 1] G[i + 1], and the gradient
 * of a is G[i] h[i - 1]. */
static int scan_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const scan_attributes *attributes = ek_node_attributes(node);
    ek_tensor *a = ek_node_saved(node, 0), *h = ek_node_saved(node, 1);
    ek_tensor *following = attributes->factors ? scan_shifted(a, attributes, false, 1) : NULL;
    if (attributes->factors && !following)
        return ek_error_pending();
    ek_tensor *whole = scan_apply(following, gradients[0], attributes->dim, !attributes->reverse);
    if (attributes->factors && ek_node_needs(node, 0))
        results[0] = ek_mul(whole, scan_shifted(h, attributes, true, attributes->addends ? 0 : 1));
    if (attributes->addends && ek_node_needs(node, 1))
        results[1] = whole;
    return 0;
}

EK_OPERATION(scan, "scan", scan_backward);

/* Computes the recurrence. NULL a: the factors are 1. NULL b: the addends are 0, and h[-1] is 1. At
 * most one is NULL; both have one shape and at least one element. */
static ek_tensor *scan_apply(ek_tensor *a, ek_tensor *b, int dim, bool reverse)
{
    if (!a && !b)
        return NULL;
    scan_attributes attributes = {dim, reverse, a != NULL, b != NULL};
    ek_tensor *h = ek_result(a ? a : b, b, NULL, a ? a->dtype : b->dtype);
    return EK_RECORD(EK_RUN(h, scan, a, b, dim, reverse), &scan_operation, EK_INPUTS(a, b),
                     EK_SAVED(a, a ? h : NULL), EK_ATTRIBUTES(attributes));
}

/* ---- cumsum, cumprod ---- */

static ek_tensor *cumulative_run(const char *operation, ek_tensor *x, int dim, bool product)
{
    if (!ek_given(operation, "x", x))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *line = ek_is_scalar_dim(x, dim) ? ek_row_of(x) : x;
    ek_tensor *y = NULL;
    dim = line ? ek_dimension(operation, line, dim) : -1;
    if (dim >= 0) {
        line = ek_dtype_is_floating(x->dtype) ? ek_autocast_wide(line) : ek_to_dtype(line, EK_I64);
        y = line && ek_count(line) > 0
                ? scan_apply(product ? line : NULL, product ? NULL : line, dim, false)
                : line;
        y = y && x->ndim == 0 ? ek_reshape(y, ek_scalar_shape()) : y;
    }
    return ek_scope_return(&scope, y == x ? ek_itself(x) : y);
}

ek_tensor *ek_cumsum(ek_tensor *x, int dim)
{
    return cumulative_run("cumsum", x, dim, false);
}

ek_tensor *ek_cumprod(ek_tensor *x, int dim)
{
    return cumulative_run("cumprod", x, dim, true);
}

/* ---- logcumsumexp ---- */

/* Returns the largest of the elements up to each element along dim, by maxima with the elements 1,
 * 2, 4, ... places before. */
static ek_tensor *cumulative_largest(ek_tensor *x, int dim)
{
    for (int64_t step = 1; x && step < x->shape[dim]; step *= 2) {
        int64_t rest = x->shape[dim] - step;
        ek_tensor *first = ek_narrow(x, dim, 0, step);
        ek_tensor *later = ek_maximum(ek_narrow(x, dim, step, rest), ek_narrow(x, dim, 0, rest));
        x = first && later ? ek_cat((ek_tensor *const[]){first, later}, 2, dim) : NULL;
    }
    return x;
}

/* Returns m + log(s), where m[i] is the largest element up to i, and s[i] = s[i - 1]
 * e^(m[i - 1] - m[i]) + e^(x[i] - m[i]). Nothing overflows. The result doesn't depend on m, which
 * therefore has no gradient. Infinite m are bounded, because their differences would be NaN. */
static ek_tensor *cumulative_logarithms(ek_tensor *x, int dim)
{
    const double bound = x->dtype == EK_F64 ? DBL_MAX : (double)FLT_MAX;
    ek_tensor *m = ek_clamp(cumulative_largest(ek_detach(x), dim), -bound, bound);
    scan_attributes forward = {.dim = dim};
    ek_tensor *factors = m ? ek_exp(ek_sub(scan_shifted(m, &forward, true, -bound), m)) : NULL;
    ek_tensor *addends = ek_exp(ek_sub(x, m));
    ek_tensor *s = factors && addends ? scan_apply(factors, addends, dim, false) : NULL;
    if (!s)
        return NULL;
    ek_tensor *empty = ek_eq_scalar(s, 0);
    ek_tensor *y = ek_add(m, ek_log(ek_where(empty, ek_number_like(s, 1), s)));
    return ek_where(empty, ek_number_like(s, -(double)INFINITY), y);
}

/* bf16 and f16 are computed in f32. */
ek_tensor *ek_logcumsumexp(ek_tensor *x, int dim)
{
    if (!ek_floating("logcumsumexp", "x", x))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *line = x->ndim == 0 && (dim == 0 || dim == -1) ? ek_reshape(x, EK_SHAPE(1)) : x;
    ek_tensor *y = NULL;
    dim = line ? ek_dimension("logcumsumexp", line, dim) : -1;
    if (dim >= 0) {
        line = ek_autocast_wide(line);
        const ek_dtype dtype = line ? line->dtype : x->dtype;
        line = ek_to_dtype(line, ek_dtype_wide(dtype));
        y = line && ek_count(line) > 0 ? cumulative_logarithms(line, dim) : line;
        y = ek_to_dtype(y, dtype);
        y = y && x->ndim == 0 ? ek_reshape(y, ek_scalar_shape()) : y;
    }
    return ek_scope_return(&scope, y == x ? ek_itself(x) : y);
}

/* ---- products ---- */

/* dx = g times the product of all other elements: of those before and of those after. Saved x. */
static int product_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    scan_attributes attributes = {.dim = *(const int *)ek_node_attributes(node)};
    ek_tensor *x = ek_node_saved(node, 0);
    if (!x)
        return ek_error_pending();
    ek_tensor *before =
        scan_shifted(scan_apply(x, NULL, attributes.dim, false), &attributes, true, 1);
    ek_tensor *after =
        scan_shifted(scan_apply(x, NULL, attributes.dim, true), &attributes, false, 1);
    results[0] = ek_mul(ek_mul(before, after), gradients[0]);
    return 0;
}

EK_OPERATION(product, "prod", product_backward);

/* Returns the product over one dimension, which gets size 1. */
static ek_tensor *product_along(ek_tensor *x, int dim)
{
    if (!x)
        return NULL;
    ek_dtype dtype = ek_dtype_is_floating(x->dtype) ? x->dtype : EK_I64;
    ek_tensor *y = ek_run_reduce(EK_REDUCE_PRODUCT, x, 1u << dim, dtype);
    return ek_count(x) == 0
               ? y
               : EK_RECORD(y, &product_operation, EK_INPUTS(x), EK_SAVED(x), EK_ATTRIBUTES(dim));
}

ek_tensor *ek_prod_with(ek_reduce_options options)
{
    int mask = EK_REDUCED("prod", &options);
    if (mask < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.x);
    bool integer = x && !ek_dtype_is_floating(x->dtype);
    if (x && (mask == 0 && integer))
        x = ek_to_dtype(x, EK_I64);
    for (int dim = 0; x && dim < options.x->ndim; dim++)
        if (mask >> dim & 1)
            x = product_along(x, dim);
    x = ek_reduced(x, (unsigned)mask, options.keepdim);
    return ek_scope_return(&scope, x == options.x ? ek_itself(x) : x);
}
