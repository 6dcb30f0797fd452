/* sort.c: sorting. A kernel finds positions, at which elements are gathered, so that gradients go
 * to the elements' places in the input. */
#include "ops/ops.h"

/* Returns the positions of the first `count` elements of x along *dim in order. *dim becomes
 * non-negative. `count` -1 means all; `low` is the least count that is allowed. */
static ek_tensor *sort_positions(const char *operation, ek_tensor *x, int *dim, int64_t low,
                                 int64_t count, bool descending)
{
    if (!ek_given(operation, "x", x) || (*dim = ek_dimension(operation, x, *dim)) < 0)
        return NULL;
    int64_t size = x->shape[*dim];
    if (low >= 0 && (count < low || count > size))
        return EK_REFUSE(EK_E_INVALID,
                         "%s: k is %lld; dimension %d has %lld elements, so that it must be from "
                         "%lld to %lld",
                         operation, (long long)count, *dim, (long long)size, (long long)low,
                         (long long)size);
    ek_shape shape = ek_tensor_shape(x);
    shape.dims[*dim] = low < 0 ? size : count;
    ek_tensor *index = ek_tensor_new(ek_tensor_dev(x), EK_I64, &shape, EK_CONTIGUOUS);
    return EK_RUN(index, argsort, x, *dim, descending);
}

/* Returns the elements of x at positions `at`; *index becomes `at`. */
static ek_tensor *sort_pick(ek_tensor *x, int dim, ek_tensor *at, ek_tensor **index)
{
    ek_tensor *y = at ? ek_gather_dim(x, dim, at) : NULL;
    if (y && index)
        *index = at;
    return y;
}

/* Turns the results for a row of one element into the results for a scalar. */
static ek_tensor *sort_scalar(ek_tensor *y, ek_tensor **index)
{
    if (y && index && !(*index = ek_scalar_of(*index)))
        return NULL;
    return ek_scalar_of(y);
}

ek_tensor *ek_sort(ek_tensor *x, int dim, bool descending, ek_tensor **index)
{
    if (ek_is_scalar_dim(x, dim))
        return sort_scalar(ek_sort(ek_row_of(x), 0, descending, index), index);
    ek_tensor *at = sort_positions("sort", x, &dim, -1, 0, descending);
    return sort_pick(x, dim, at, index);
}

ek_tensor *ek_argsort(ek_tensor *x, int dim, bool descending)
{
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(ek_argsort(ek_row_of(x), 0, descending));
    return sort_positions("argsort", x, &dim, -1, 0, descending);
}

ek_tensor *ek_topk(ek_tensor *x, int64_t k, int dim, bool largest, ek_tensor **index)
{
    if (ek_is_scalar_dim(x, dim))
        return sort_scalar(ek_topk(ek_row_of(x), k, 0, largest, index), index);
    ek_tensor *at = sort_positions("topk", x, &dim, 0, k, largest);
    return sort_pick(x, dim, at, index);
}

ek_tensor *ek_kthvalue(ek_tensor *x, int64_t k, int dim, bool keepdim, ek_tensor **index)
{
    if (ek_is_scalar_dim(x, dim))
        return sort_scalar(ek_kthvalue(ek_row_of(x), k, 0, true, index), index);
    ek_tensor *at = sort_positions("kthvalue", x, &dim, 1, k, false), *last = NULL;
    if (!at || !(at = ek_narrow(at, dim, k - 1, 1)))
        return NULL;
    ek_tensor *y = sort_pick(x, dim, at, &last);
    if (!keepdim) {
        y = y ? ek_squeeze(y, dim) : NULL;
        last = y ? ek_squeeze(last, dim) : NULL;
    }
    if (last && index)
        *index = last;
    return last ? y : NULL;
}

/* ---- searching in what is sorted ---- */

static ek_tensor *sort_search(const char *operation, ek_tensor *sorted, ek_tensor *values,
                              bool right)
{
    bool fits = sorted->ndim == 1 || (sorted->ndim > 1 && sorted->ndim == values->ndim);
    for (int d = 0; fits && d < sorted->ndim - 1; d++)
        fits = sorted->shape[d] == values->shape[d];
    if (!ek_alike(operation, sorted, values))
        return NULL;
    if (!fits)
        return EK_REFUSE(EK_E_SHAPE,
                         "%s: sorted lines of shape %s for values of %s; there must be one line, "
                         "or the values' sizes but for the last",
                         operation, EK_SIZE_TEXT(sorted), EK_SIZE_TEXT(values));
    ek_shape shape = ek_tensor_shape(values);
    ek_tensor *out = ek_tensor_new(ek_tensor_dev(values), EK_I64, &shape, EK_CONTIGUOUS);
    return EK_RUN(out, searchsorted, sorted, values, right);
}

ek_tensor *ek_searchsorted(ek_tensor *sorted, ek_tensor *values, bool right)
{
    if (!ek_given("searchsorted", "sorted", sorted) || !ek_given("searchsorted", "values", values))
        return NULL;
    return sort_search("searchsorted", sorted, values, right);
}

ek_tensor *ek_bucketize(ek_tensor *values, ek_tensor *boundaries, bool right)
{
    if (!ek_given("bucketize", "values", values) ||
        !ek_given("bucketize", "boundaries", boundaries))
        return NULL;
    if (boundaries->ndim != 1)
        return EK_REFUSE(EK_E_SHAPE, "bucketize: boundaries has %d dimensions and must have 1",
                         boundaries->ndim);
    return sort_search("bucketize", boundaries, values, right);
}

/* ---- unique: sorted, with a mark at the first of equal elements ---- */

/* Returns marks: 1 at elements of `sorted` (not empty) that differ from the element before. */
static ek_tensor *unique_marks(ek_tensor *sorted)
{
    int64_t size = sorted->shape[0];
    ek_tensor *differ = ek_ne(ek_narrow(sorted, 0, 1, size - 1), ek_narrow(sorted, 0, 0, size - 1));
    ek_tensor *first = ek_filled(ek_tensor_dev(sorted), EK_BOOL, &EK_SHAPE(1), 1);
    return first && differ ? ek_cat((ek_tensor *const[]){first, differ}, 2, 0) : NULL;
}

/* Returns the distance from each of `starts` to the next start, from the last start to `size`. */
static ek_tensor *unique_counts(ek_tensor *starts, int64_t size)
{
    ek_tensor *end = ek_filled(ek_tensor_dev(starts), EK_I64, &EK_SHAPE(1), (double)size);
    ek_tensor *later = ek_narrow(starts, 0, 1, starts->shape[0] - 1);
    if (!end || !later)
        return NULL;
    return ek_sub(ek_cat((ek_tensor *const[]){later, end}, 2, 0), starts);
}

/* Returns for each element of x the number of its value among the unique values. `at` has the
 * positions in x of the sorted elements. */
static ek_tensor *unique_inverse(ek_tensor *counts, ek_tensor *at, const ek_shape *shape)
{
    ek_tensor *numbers = ek_arange(counts->shape[0], EK_I64, ek_tensor_dev(counts)->id);
    ek_tensor *places = ek_repeat_interleave_by(numbers, counts, 0);
    places = places ? ek_scatter_dim(places, 0, at, places) : NULL;
    return places ? ek_reshape(places, *shape) : NULL;
}

ek_tensor *ek_unique(ek_tensor *x, ek_tensor **inverse, ek_tensor **counts)
{
    if (!ek_given("unique", "x", x))
        return NULL;
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *flat = ek_reshape(ek_detach(x), EK_SHAPE(-1)), *at, *starts, *places;
    ek_tensor *sorted = flat ? ek_sort(flat, 0, false, &at) : NULL;
    if (!sorted)
        return NULL;
    int64_t size = sorted->shape[0];
    if (size > 0)
        starts = ek_nonzero(unique_marks(sorted));
    else
        starts = ek_empty(EK_SHAPE(0, 1), EK_I64, ek_tensor_dev(x)->id);
    starts = starts ? ek_squeeze(starts, 1) : NULL;
    ek_tensor *values = starts ? ek_index_select(sorted, 0, starts) : NULL;
    ek_tensor *lengths = !values ? NULL : size > 0 ? unique_counts(starts, size) : starts;
    if (!lengths || (inverse && !(places = unique_inverse(lengths, at, &shape))))
        return NULL;
    if (counts)
        *counts = lengths;
    if (inverse)
        *inverse = places;
    return values;
}
