/* quantile.c: medians and quantiles, which are elements of sorted lines. A sort puts NaNs last. */
#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- medians ---- */

/* Returns the median's rank (i64) in each sorted line along dim, which gets size 1. If a line has
 * NaNs, the rank is that of the first NaN; with skip_nan NaNs don't count. */
static ek_tensor *median_rank(ek_tensor *x, int dim, bool skip_nan)
{
    const int64_t size = x->shape[dim];
    ek_tensor *is_nan = ek_isnan(x), *nans = is_nan ? ek_to_dtype(is_nan, EK_F64) : NULL, *rank;
    nans = nans ? ek_sum(nans, EK_DIMS(dim), .keepdim = true) : NULL;
    if (!nans)
        return NULL;
    if (skip_nan)
        rank = ek_floor(ek_clamp(ek_affine(nans, -0.5, 0.5 * (double)(size - 1)), 0, (double)size));
    else
        rank = ek_where(ek_gt_scalar(nans, 0), ek_affine(nans, -1, (double)size),
                        ek_number_like(nans, (double)((size - 1) / 2)));
    return ek_to_dtype(rank, EK_I64);
}

/* Returns the position of the median along dim, which gets size 1. */
static ek_tensor *median_position(const char *name, ek_tensor *x, int dim, bool skip_nan)
{
    if (x->shape[dim] == 0)
        return EK_REFUSE(EK_E_SHAPE, "%s: dimension %d has no elements", name, dim);
    x = ek_detach(x);
    ek_tensor *order = x ? ek_argsort(x, dim, false) : NULL;
    ek_tensor *rank = order ? median_rank(x, dim, skip_nan) : NULL;
    return rank ? ek_gather_dim(order, dim, rank) : NULL;
}

static ek_tensor *median_of_all(const char *name, ek_tensor *x, bool skip_nan)
{
    if (!ek_given(name, "x", x))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *flat = ek_reshape(ek_detach(x), EK_SHAPE(-1));
    ek_tensor *at = flat ? median_position(name, flat, 0, skip_nan) : NULL;
    ek_tensor *y = at ? ek_gather_dim(flat, 0, at) : NULL;
    y = y ? ek_clone(ek_reshape(y, ek_scalar_shape())) : NULL;
    return ek_scope_return(&scope, ek_record_chosen(y, x));
}

static ek_tensor *median_along(const char *name, ek_tensor *x, int dim, bool keepdim,
                               ek_tensor **index, bool skip_nan)
{
    if (index)
        *index = NULL;
    if (!ek_given(name, "x", x) || (dim = ek_reduced_dimension(name, x, dim)) < 0)
        return NULL;
    const bool kept = keepdim && x->ndim > 0;
    ek_scope scope = ek_scope_begin();
    x = ek_row_of(x);
    ek_tensor *at = x ? median_position(name, x, dim, skip_nan) : NULL;
    ek_tensor *y = at ? ek_gather_dim(x, dim, at) : NULL;
    if (!kept) {
        y = y ? ek_squeeze(y, dim) : NULL;
        at = y && index ? ek_squeeze(at, dim) : NULL;
    }
    if (index) {
        *index = y && at ? ek_keep(at) : NULL;
        y = *index ? y : NULL;
    }
    y = ek_scope_return(&scope, y);
    if (index && *index)
        *index = ek_scope_adopt(*index);
    return y;
}

ek_tensor *ek_median(ek_tensor *x)
{
    return median_of_all("median", x, false);
}

ek_tensor *ek_nanmedian(ek_tensor *x)
{
    return median_of_all("nanmedian", x, true);
}

ek_tensor *ek_median_dim(ek_tensor *x, int dim, bool keepdim, ek_tensor **index)
{
    return median_along("median", x, dim, keepdim, index, false);
}

ek_tensor *ek_nanmedian_dim(ek_tensor *x, int dim, bool keepdim, ek_tensor **index)
{
    return median_along("nanmedian", x, dim, keepdim, index, true);
}

/* ---- quantiles ---- */

static bool quantile_check_numbers(const char *name, ek_tensor *q)
{
    ek_tensor *numbers = ek_to_dtype(ek_to_device(ek_detach(q), ek_cpu()), EK_F64);
    numbers = numbers ? ek_contiguous(numbers, EK_CONTIGUOUS) : NULL;
    const double *number = numbers ? ek_tensor_address(numbers) : NULL;
    for (int64_t i = 0; numbers && i < ek_count(numbers); i++)
        if (!(number[i] >= 0 && number[i] <= 1))
            return EK_FAIL(EK_E_INVALID, "%s: q is %g; it must lie in [0, 1]", name, number[i]) ==
                   0;
    return numbers != NULL;
}

static bool quantile_check(const char *name, const ek_quantile_options *options)
{
    const ek_tensor *x = options->x, *q = options->q;
    if (!ek_floating(name, "x", x) || !ek_given(name, "q", q) || !ek_alike(name, x, q) ||
        !ek_chosen(name, "interpolation", (int)options->interpolation, 5,
                   "EK_QUANTILE_LINEAR, _LOWER, _HIGHER, _NEAREST or _MIDPOINT"))
        return false;
    if (q->ndim > 1)
        return EK_FAIL(EK_E_SHAPE, "%s: q has %d dimensions and must have 0 or 1", name, q->ndim) ==
               0;
    if (ek_counted_dimensions(name, options->dims, options->dim_count) < 0)
        return false;
    if (options->dim_count < 0 || options->dim_count > 1)
        return EK_FAIL(EK_E_INVALID,
                       "%s: %d dimensions; quantiles are taken over one, or over all elements",
                       name, options->dim_count) == 0;
    if (options->keepdim && x->ndim + q->ndim > EK_MAX_DIMS)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: the result for x of %d dimensions, with keepdim and a dimension for "
                       "q, has %d; at most %d are possible",
                       name, x->ndim, x->ndim + q->ndim, EK_MAX_DIMS) == 0;
    return quantile_check_numbers(name, options->q);
}

/* Returns the ranks (..., Q), which may be fractions, of the quantiles q (Q) in `sorted` (..., n).
 */
static ek_tensor *quantile_ranks(ek_tensor *sorted, ek_tensor *q, bool skip_nan)
{
    const int64_t size = sorted->shape[sorted->ndim - 1];
    ek_tensor *is_nan = ek_isnan(ek_detach(sorted));
    ek_tensor *nans =
        is_nan ? ek_sum(ek_to_dtype(is_nan, EK_I64), EK_DIMS(-1), .keepdim = true) : NULL;
    if (!nans)
        return NULL;
    if (skip_nan) {
        ek_tensor *last = ek_clamp(ek_affine(nans, -1, (double)size - 1), 0, (double)size);
        return ek_mul(ek_to_dtype(last, q->dtype), q);
    }
    ek_tensor *last = ek_number_like(q, (double)size - 1);
    return ek_where(ek_gt_scalar(nans, 0), last, ek_mul(q, last));
}

/* Returns the elements (..., Q) of `sorted` at the ranks, interpolated between two elements. */
static ek_tensor *quantile_pick(ek_tensor *sorted, ek_tensor *ranks,
                                ek_quantile_interpolation interpolation)
{
    if (interpolation == EK_QUANTILE_LOWER)
        ranks = ek_floor(ranks);
    else if (interpolation == EK_QUANTILE_HIGHER)
        ranks = ek_ceil(ranks);
    else if (interpolation == EK_QUANTILE_NEAREST)
        ranks = ek_round(ranks);
    ek_tensor *floor = ek_floor(ranks), *below_at = ek_to_dtype(ek_detach(floor), EK_I64);
    ek_tensor *below = below_at ? ek_gather_dim(sorted, -1, below_at) : NULL;
    if (!below || (interpolation != EK_QUANTILE_LINEAR && interpolation != EK_QUANTILE_MIDPOINT))
        return below;
    ek_tensor *above_at = ek_to_dtype(ek_ceil(ek_detach(ranks)), EK_I64);
    ek_tensor *above = above_at ? ek_gather_dim(sorted, -1, above_at) : NULL;
    return interpolation == EK_QUANTILE_MIDPOINT ? ek_lerp_scalar(below, above, 0.5)
                                                 : ek_lerp(below, above, ek_sub(ranks, floor));
}

/* Returns y (..., Q) in the shape that the options ask for. dim was reduced; -1: all dimensions. */
static ek_tensor *quantile_shaped(ek_tensor *y, const ek_quantile_options *options, int dim)
{
    const int lead = options->q->ndim; /* 1 if Q is a dimension of the result, the first */
    if (!y)
        return NULL;
    if (dim >= 0) {
        y = ek_movedim(y, -1, 0); /* (Q, ...) */
        y = y && lead == 0 ? ek_squeeze(y, 0) : y;
        return y && options->keepdim ? ek_unsqueeze(y, lead + dim) : y;
    }
    ek_shape shape = {.ndim = lead + (options->keepdim ? options->x->ndim : 0),
                      .dims = {ek_count(y)}};
    for (int i = lead; i < shape.ndim; i++)
        shape.dims[i] = 1;
    return ek_reshape(y, shape);
}

static ek_tensor *quantile_checked(const char *name, const ek_quantile_options *options,
                                   bool skip_nan)
{
    if (!quantile_check(name, options))
        return NULL;
    ek_tensor *x = options->x, *q = ek_reshape(options->q, EK_SHAPE(-1));
    const ek_dtype dtype = x->dtype;
    int dim = -1;
    if (options->dim_count == 1 && !ek_is_scalar_dim(x, options->dims[0]) &&
        (dim = ek_dimension(name, x, options->dims[0])) < 0)
        return NULL;
    x = dim < 0 ? ek_reshape(x, EK_SHAPE(-1)) : ek_movedim(x, dim, -1);
    if (!x || !q)
        return NULL;
    if (x->shape[x->ndim - 1] == 0)
        return EK_REFUSE(EK_E_SHAPE, "%s: there are no elements in x of shape %s", name,
                         EK_SIZE_TEXT(options->x));
    q = ek_to_dtype(q, ek_dtype_wide(dtype));
    ek_tensor *sorted = ek_sort(ek_to_dtype(x, ek_dtype_wide(dtype)), -1, false, NULL);
    ek_tensor *ranks = sorted && q ? quantile_ranks(sorted, q, skip_nan) : NULL;
    if (!ranks)
        return NULL;
    ek_shape shape = ek_tensor_shape(sorted);
    shape.dims[shape.ndim - 1] = ek_count(q);
    ek_tensor *y = quantile_pick(sorted, ek_expand(ranks, shape), options->interpolation);
    return ek_to_dtype(quantile_shaped(y, options, dim), dtype);
}

ek_tensor *ek_quantile_with(ek_quantile_options options)
{
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope, quantile_checked("quantile", &options, false));
}

ek_tensor *ek_nanquantile_with(ek_quantile_options options)
{
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope, quantile_checked("nanquantile", &options, true));
}
