/** @file
 * sort.h: operations of order and choice. The rules of ops.h hold. Positions are i64. A NaN counts
 * as larger than all numbers, and equal elements stay in the order of their positions. */
#ifndef EVENKEEL_SORT_H
#define EVENKEEL_SORT_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/random.h"
#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** x sorted along `dim`. If `index` is not NULL, *index becomes the elements' positions in x, of
 * the result's shape, here and in the functions below. */
EK_API ek_tensor *ek_sort(ek_tensor *x, int dim, bool descending, ek_tensor **index);
EK_API ek_tensor *ek_argsort(ek_tensor *x, int dim, bool descending);
/** The k largest (smallest) elements along `dim`, in descending (ascending) order. */
EK_API ek_tensor *ek_topk(ek_tensor *x, int64_t k, int dim, bool largest, ek_tensor **index);
/** The k-th smallest element along `dim`, k from 1 on. */
EK_API ek_tensor *ek_kthvalue(ek_tensor *x, int64_t k, int dim, bool keepdim, ek_tensor **index);

/** The median: of an even number of elements the lower one of the two in the middle. NaN if any
 * element is NaN; ek_nanmedian leaves NaNs out, and is NaN if all are. For the median of all
 * elements, those equal to it share the gradient; along a dimension the gradient goes to the
 * element at *index (NULL: not wanted). EK_E_SHAPE if there is no element. */
EK_API ek_tensor *ek_median(ek_tensor *x);
EK_API ek_tensor *ek_nanmedian(ek_tensor *x);
EK_API ek_tensor *ek_median_dim(ek_tensor *x, int dim, bool keepdim, ek_tensor **index);
EK_API ek_tensor *ek_nanmedian_dim(ek_tensor *x, int dim, bool keepdim, ek_tensor **index);

typedef enum ek_quantile_interpolation {
    EK_QUANTILE_LINEAR = 0,
    EK_QUANTILE_LOWER = 1,
    EK_QUANTILE_HIGHER = 2,
    EK_QUANTILE_NEAREST = 3, /**< halves go to the even position */
    EK_QUANTILE_MIDPOINT = 4
} ek_quantile_interpolation;
typedef struct ek_quantile_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    ek_tensor *q;
    int dims[EK_MAX_DIMS] EK_IS({EK_UNSET}); /**< EK_DIMS(dim) (reduce.h), or all elements */
    int dim_count;
    bool keepdim;
    ek_quantile_interpolation interpolation;
} ek_quantile_options;
#define EK_DEFAULTS_ek_quantile_options EK_DEFAULT(dims[0], EK_UNSET)
EK_API ek_tensor *ek_quantile_with(ek_quantile_options options);
EK_API ek_tensor *ek_nanquantile_with(ek_quantile_options options);
/** ek_quantile(x, q, EK_DIMS(1), .keepdim = true): the q-quantiles of x, over one dimension or all
 * elements. q, of x's dtype, is a scalar or has one dimension, which comes first in the result; the
 * host reads it, and it must lie in [0, 1]. Between two elements the interpolation decides. A NaN
 * wins; ek_nanquantile leaves NaNs out, and is NaN if all are. bf16 and f16 are computed in f32. */
#define ek_quantile(...) EK_CALL_2(ek_quantile_with, ek_quantile_options, x, q, __VA_ARGS__)
#define ek_nanquantile(...) EK_CALL_2(ek_nanquantile_with, ek_quantile_options, x, q, __VA_ARGS__)

/* The next three read elements on the host, and so wait for the device. */

/** The positions of all elements that aren't 0, in row-major order: (count, dimensions of x). */
EK_API ek_tensor *ek_nonzero(ek_tensor *x);
/** The elements of x at which mask (bool or u8, broadcast with x) isn't 0, in one dimension. */
EK_API ek_tensor *ek_masked_select(ek_tensor *x, ek_tensor *mask);
/** The different elements of x in ascending order, in one dimension, without a gradient. *inverse
 * becomes each element's place among them (x's shape), *counts how often each occurs. Both may be
 * NULL. NaNs are different from each other. */
EK_API ek_tensor *ek_unique(ek_tensor *x, ek_tensor **inverse, ek_tensor **counts);
/** x with `value` where mask (bool or u8, broadcast with x) isn't 0. The value is limited as in
 * ek_full. */
EK_API ek_tensor *ek_masked_fill(ek_tensor *x, ek_tensor *mask, double value);

/** The positions in `sorted` at which `values` would be inserted: before equal elements, or with
 * `right` after them. `sorted` ascends along its last dimension. It has one dimension, or the sizes
 * of `values` except for the last. */
EK_API ek_tensor *ek_searchsorted(ek_tensor *sorted, ek_tensor *values, bool right);
/** ek_searchsorted in boundaries of one dimension. */
EK_API ek_tensor *ek_bucketize(ek_tensor *values, ek_tensor *boundaries, bool right);

/** How often 0, 1, ... occur in x (i64, i32 or u8 of one dimension, not negative), at least
 * `minlength` counts. With weights (x's shape; else NULL) their sums: f32 for f32, else f64,
 * without a gradient. Waits for the device. */
EK_API ek_tensor *ek_bincount(ek_tensor *x, ek_tensor *weights, int64_t minlength);

/** Draws `count` positions for each row of p (classes) or (rows, classes), with a probability in
 * proportion to p, which need not add up to 1: (count) or (rows, count). Without replacement the
 * positions of a row differ. The generator (NULL: the default one) draws f64 uniforms on the host,
 * whatever p's device. So a Mersenne Twister gives the positions of PyTorch's CPU; Philox makes
 * the uniforms as ek_uniform_ does. Without replacement a row's classes draw one uniform u each,
 * and the largest p / -log(1 - u) are taken; else each position draws one, which is looked up in
 * the cumulative distribution. bf16 and f16 are computed in f32. EK_E_INVALID if p is negative,
 * infinite or NaN, if a row's sum is 0, or if there are fewer classes than positions without
 * replacement. Waits for the device. */
EK_API ek_tensor *ek_multinomial(ek_tensor *p, int64_t count, bool replacement,
                                 ek_generator *generator);

EK_END_DECLARATIONS
#endif
