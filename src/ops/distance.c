/* distance.c: named products of two tensors (dot, mv, bmm, ...), and distances of rows. */
#include <math.h>

#include "ops/autocast.h"
#include "ops/ops.h"

ek_tensor *ek_bmm(ek_tensor *x, ek_tensor *y)
{
    if (!ek_given("bmm", "x", x) || !ek_given("bmm", "y", y))
        return NULL;
    if (x->ndim != 3 || y->ndim != 3 || x->shape[0] != y->shape[0])
        return EK_REFUSE(EK_E_SHAPE, "bmm: %s and %s must be (B, n, k) and (B, k, m)",
                         EK_SIZE_TEXT(x), EK_SIZE_TEXT(y));
    return ek_matmul(x, y);
}

ek_tensor *ek_outer(ek_tensor *x, ek_tensor *y)
{
    if (!ek_given("outer", "x", x) || !ek_given("outer", "y", y))
        return NULL;
    if (x->ndim != 1 || y->ndim != 1)
        return EK_REFUSE(EK_E_SHAPE, "outer: %s and %s must be vectors", EK_SIZE_TEXT(x),
                         EK_SIZE_TEXT(y));
    return ek_mul(ek_unsqueeze(x, 1), y);
}

ek_tensor *ek_f_bilinear(ek_tensor *x, ek_tensor *y, ek_tensor *weight, ek_tensor *bias)
{
    if (!ek_given("bilinear", "x", x) || !ek_given("bilinear", "y", y) ||
        !ek_given("bilinear", "weight", weight) || !ek_optional(bias))
        return NULL;
    bool fits = x->ndim == y->ndim && x->ndim >= 1 && weight->ndim == 3 &&
                weight->shape[1] == x->shape[x->ndim - 1] &&
                weight->shape[2] == y->shape[y->ndim - 1];
    for (int d = 0; fits && d < x->ndim - 1; d++)
        fits = x->shape[d] == y->shape[d];
    if (!fits)
        return EK_REFUSE(EK_E_SHAPE,
                         "bilinear: expected x (..., in1), y (..., in2) and a weight (out, in1, "
                         "in2), got %s, %s and %s",
                         EK_SIZE_TEXT(x), EK_SIZE_TEXT(y), EK_SIZE_TEXT(weight));
    ek_tensor *const operands[] = {x, weight, y};
    ek_scope scope = ek_scope_begin();
    ek_tensor *z = ek_einsum("...i,oij,...j->...o", operands, 3);
    return ek_scope_return(&scope, bias ? ek_add(z, bias) : z);
}

/* ---- distances ---- */

/* Returns the root of x. For numbers up to 0 the root and its gradient are 0. */
static ek_tensor *distance_root(ek_tensor *x)
{
    if (!x)
        return NULL;
    ek_tensor *zero = ek_number_like(x, 0), *is_zero = ek_le(x, zero);
    return ek_where(is_zero, zero, ek_sqrt(ek_where(is_zero, ek_number_like(x, 1), x)));
}

/* Returns the root of |x|^2 + |y|^2 - 2 x y, by one product of (-2 x, |x|^2, 1) and (y, 1, |y|^2).
 * Autocast doesn't cast the product: the squares may be too large for f16. */
static ek_tensor *distance_by_product(ek_tensor *x, ek_tensor *y)
{
    const ek_dtype dtype = x->dtype;
    x = ek_to_dtype(x, ek_dtype_wide(dtype));
    y = ek_to_dtype(y, ek_dtype_wide(dtype));
    if (!x || !y)
        return NULL;
    ek_tensor *xx = ek_sum(ek_square(x), EK_DIMS(-1), .keepdim = true);
    ek_tensor *yy = ek_sum(ek_square(y), EK_DIMS(-1), .keepdim = true);
    if (!xx || !yy)
        return NULL;
    ek_tensor *left = ek_cat((ek_tensor *[]){ek_mul_scalar(x, -2), xx, ek_ones_like(xx)}, 3, -1);
    ek_tensor *right = ek_cat((ek_tensor *[]){y, ek_ones_like(yy), yy}, 3, -1);
    right = left && right ? ek_transpose(right, -2, -1) : NULL;
    if (!right)
        return NULL;
    ek_autocast off = ek_autocast_begin(EK_F32);
    ek_tensor *squares = ek_matmul(left, right);
    ek_autocast_end(&off);
    return ek_to_dtype(distance_root(squares), dtype);
}

ek_tensor *ek_cdist(ek_tensor *x, ek_tensor *y, double p)
{
    enum { FEW = 25 }; /* PyTorch's bound */
    if (!ek_floating("cdist", "x", x) || !ek_floating("cdist", "y", y))
        return NULL;
    if (p != 1 && p != 2)
        return EK_REFUSE(EK_E_INVALID, "cdist: p is %g and must be 1 or 2", p);
    if (x->ndim < 2 || y->ndim < 2 || x->shape[x->ndim - 1] != y->shape[y->ndim - 1])
        return EK_REFUSE(EK_E_SHAPE, "cdist: %s and %s must be (..., P, M) and (..., R, M)",
                         EK_SIZE_TEXT(x), EK_SIZE_TEXT(y));
    x = ek_autocast_wide(x);
    y = ek_autocast_wide(y);
    if (!x || !y || !ek_alike("cdist", x, y))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *z;
    if (p == 2 && (x->shape[x->ndim - 2] > FEW || y->shape[y->ndim - 2] > FEW)) {
        z = distance_by_product(x, y);
    } else {
        z = ek_sub(ek_unsqueeze(x, -2), ek_unsqueeze(y, -3));
        z = p == 2 ? ek_norm(z, EK_DIMS(-1)) : ek_sum(ek_abs(z), EK_DIMS(-1));
    }
    return ek_scope_return(&scope, z);
}

ek_tensor *ek_f_pairwise_distance_with(ek_pairwise_distance_options options)
{
    ek_tensor *x = options.x, *y = options.y;
    if (!ek_floating("pairwise_distance", "x", x) || !ek_floating("pairwise_distance", "y", y))
        return NULL;
    ek_tensor *difference = ek_add_scalar(ek_sub(x, y), options.eps);
    return difference ? ek_norm(difference, EK_DIMS(-1), .keepdim = options.keepdim, .p = options.p)
                      : NULL;
}

EK_BACKWARD(raise_value, void, g)
EK_OPERATION(raise_value, "raise_value", raise_value_backward);

ek_tensor *ek_raise_value(ek_tensor *x, double low)
{
    ek_tensor *y = x ? ek_clamp(ek_detach(x), low, (double)INFINITY) : NULL;
    return EK_RECORD(y, &raise_value_operation, EK_INPUTS(x), EK_ATTRIBUTES(low));
}

/* The norms along `dim`, at least eps. */
static ek_tensor *distance_norms(ek_tensor *x, int dim, double eps)
{
    ek_tensor *squares = ek_square(x);
    squares = squares ? ek_sum(squares, EK_DIMS(dim), .keepdim = true) : NULL;
    return ek_sqrt(ek_raise_value(squares, eps * eps));
}

/* bf16 and f16 are computed in f32. */
ek_tensor *ek_f_cosine_similarity_with(ek_cosine_similarity_options options)
{
    ek_tensor *x = options.x, *y = options.y;
    int dim = options.dim;
    if (!ek_floating("cosine_similarity", "x", x) || !ek_floating("cosine_similarity", "y", y))
        return NULL;
    x = ek_autocast_wide(x);
    y = ek_autocast_wide(y);
    if (!ek_broadcast_operands("cosine_similarity", &x, &y) ||
        (dim = ek_reduced_dimension("cosine_similarity", x, dim)) < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    const ek_dtype dtype = x->dtype;
    x = ek_to_dtype(x, ek_dtype_wide(dtype));
    y = ek_to_dtype(y, ek_dtype_wide(dtype));
    x = ek_div(x, distance_norms(x, dim, options.eps));
    ek_tensor *product = ek_mul(x, ek_div(y, distance_norms(y, dim, options.eps)));
    product = product ? ek_sum(product, EK_DIMS(dim)) : NULL;
    return ek_scope_return(&scope, ek_to_dtype(product, dtype));
}

ek_tensor *ek_f_normalize_with(ek_normalize_options options)
{
    ek_tensor *x = options.x;
    int dim = options.dim;
    if (!ek_floating("normalize", "x", x) || (dim = ek_reduced_dimension("normalize", x, dim)) < 0)
        return NULL;
    ek_tensor *norm = ek_norm(x, EK_DIMS(dim), .keepdim = true, .p = options.p);
    return ek_div(x, ek_clamp(norm, options.eps, (double)INFINITY));
}
