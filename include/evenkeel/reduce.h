/** @file
 * reduce.h: reductions: sums, products, extremes, norms, moments; and cumulative sums and products.
 * The rules of ops.h hold. */
#ifndef EVENKEEL_REDUCE_H
#define EVENKEEL_REDUCE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_reduce_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int dim EK_IS(EK_UNSET);                 /**< one dimension, as EK_DIMS(dim) */
    int dims[EK_MAX_DIMS] EK_IS({EK_UNSET}); /**< the dimensions, if dim_count > 0; else all */
    int dim_count;
    bool keepdim;
} ek_reduce_options;
#define EK_DEFAULTS_ek_reduce_options EK_DEFAULT(dim, EK_UNSET), EK_DEFAULT(dims[0], EK_UNSET)

/** The dimensions to reduce: EK_DIMS(0, 2). A single one may be written as .dim = 1, and in C as
 * ek_sum(x, 1). Several without EK_DIMS or dim_count, as in ek_sum(x, 0, 2), are EK_E_INVALID. */
#define EK_DIMS(...) .dims = {__VA_ARGS__}, .dim_count = EK_COUNT(int, __VA_ARGS__)
#define EK_REDUCE_CALL(function, ...) EK_CALL_1(function, ek_reduce_options, x, __VA_ARGS__)

EK_API ek_tensor *ek_sum_with(ek_reduce_options options);
EK_API ek_tensor *ek_mean_with(ek_reduce_options options);
/** ek_sum(x) sums all elements; ek_sum(x, EK_DIMS(0, 2), .keepdim = true) sums over two dimensions.
 * The order of additions follows from shape, strides and device, not from the number of
 * threads. */
#define ek_sum(...) EK_REDUCE_CALL(ek_sum_with, __VA_ARGS__)
#define ek_mean(...) EK_REDUCE_CALL(ek_mean_with, __VA_ARGS__)

typedef struct ek_p_norm_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int dim EK_IS(EK_UNSET);                 /**< one dimension, as EK_DIMS(dim) */
    int dims[EK_MAX_DIMS] EK_IS({EK_UNSET}); /**< the dimensions, if dim_count > 0; else all */
    int dim_count;
    bool keepdim;
    double p EK_IS(2); /**< also 0, 1, INFINITY, -INFINITY, or any other number */
} ek_p_norm_options;
#define EK_DEFAULTS_ek_p_norm_options \
    EK_DEFAULT(dim, EK_UNSET), EK_DEFAULT(dims[0], EK_UNSET), EK_DEFAULT(p, 2)
EK_API ek_tensor *ek_norm_with(ek_p_norm_options options);
/** The p-norm: the root of the sum of |x|^p. For p = 0 the number of elements that are not 0, for
 * infinity the largest |x|, for -infinity the smallest. For p < 0 it is 0, with gradient 0, if an
 * element is 0. If the norm is 0, the 2-norm's gradients of every order are 0, never NaN. bf16 and
 * f16 are computed in f32. The norm of no elements is 0; with an infinite p it is EK_E_SHAPE. */
#define ek_norm(...) EK_CALL_1(ek_norm_with, ek_p_norm_options, x, __VA_ARGS__)

typedef struct ek_variance_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int dim EK_IS(EK_UNSET);                 /**< one dimension, as EK_DIMS(dim) */
    int dims[EK_MAX_DIMS] EK_IS({EK_UNSET}); /**< the dimensions, if dim_count > 0; else all */
    int dim_count;
    bool keepdim;
    int correction EK_IS(1); /**< 0 for the biased ones */
} ek_variance_options;
#define EK_DEFAULTS_ek_variance_options \
    EK_DEFAULT(dim, EK_UNSET), EK_DEFAULT(dims[0], EK_UNSET), EK_DEFAULT(correction, 1)
EK_API ek_tensor *ek_var_with(ek_variance_options options);
EK_API ek_tensor *ek_std_with(ek_variance_options options);
/** Variance and standard deviation: squared differences from the mean are divided by n -
 * correction; NaN if n <= correction. ek_var_mean also writes the mean: ek_var_mean(&mean, x,
 * EK_DIMS(1)). */
#define ek_var(...) EK_CALL_1(ek_var_with, ek_variance_options, x, __VA_ARGS__)
#define ek_std(...) EK_CALL_1(ek_std_with, ek_variance_options, x, __VA_ARGS__)
EK_API ek_tensor *ek_var_mean_with(ek_tensor **mean, ek_variance_options options);
#define ek_var_mean(mean, ...) \
    EK_CALL_AFTER_1(ek_var_mean_with, (mean), ek_variance_options, x, __VA_ARGS__)

EK_API ek_tensor *ek_nansum_with(ek_reduce_options options);
/** The sum, with NaN counted as 0. */
#define ek_nansum(...) EK_REDUCE_CALL(ek_nansum_with, __VA_ARGS__)
EK_API ek_tensor *ek_prod_with(ek_reduce_options options);
/** The product; of integers i64. Gradients of any order are right also if elements are 0. */
#define ek_prod(...) EK_REDUCE_CALL(ek_prod_with, __VA_ARGS__)
EK_API ek_tensor *ek_logsumexp_with(ek_reduce_options options);
/** log(sum(exp(x))), stable: -inf if all x are -inf, inf if one is inf. The gradient is softmax. */
#define ek_logsumexp(...) EK_REDUCE_CALL(ek_logsumexp_with, __VA_ARGS__)
/** Largest and smallest element along `dim`. The gradient goes to the first of equal ones. */
EK_API ek_tensor *ek_max_dim(ek_tensor *x, int dim, bool keepdim);
EK_API ek_tensor *ek_min_dim(ek_tensor *x, int dim, bool keepdim);
/** The i64 index of the largest element along `dim`, the first of equal ones. */
EK_API ek_tensor *ek_argmax(ek_tensor *x, int dim, bool keepdim);
EK_API ek_tensor *ek_argmin(ek_tensor *x, int dim, bool keepdim); /**< the smallest one's index */
/** Largest and smallest element of all, as ek_amax and ek_amin. */
EK_API ek_tensor *ek_max(ek_tensor *x);
EK_API ek_tensor *ek_min(ek_tensor *x);
EK_API ek_tensor *ek_amax_with(ek_reduce_options options);
EK_API ek_tensor *ek_amin_with(ek_reduce_options options);
/** Largest and smallest element of all, or over dimensions; NaN if any is NaN. Equal elements share
 * the gradient evenly. EK_E_SHAPE if there is no element. */
#define ek_amax(...) EK_REDUCE_CALL(ek_amax_with, __VA_ARGS__)
#define ek_amin(...) EK_REDUCE_CALL(ek_amin_with, __VA_ARGS__)
EK_API ek_tensor *ek_any_with(ek_reduce_options options);
EK_API ek_tensor *ek_all_with(ek_reduce_options options);
/** Whether any element, or all, are not 0. Results are as those of ek_eq. */
#define ek_any(...) EK_REDUCE_CALL(ek_any_with, __VA_ARGS__)
#define ek_all(...) EK_REDUCE_CALL(ek_all_with, __VA_ARGS__)
/** Sums and products of the elements up to each along `dim`; of integers i64. Gradients of products
 * are right also if elements are 0. */
EK_API ek_tensor *ek_cumsum(ek_tensor *x, int dim);
EK_API ek_tensor *ek_cumprod(ek_tensor *x, int dim);
/** The logarithms of the sums of exp(x) up to each element along `dim`, stable. */
EK_API ek_tensor *ek_logcumsumexp(ek_tensor *x, int dim);
/** Sums x to `shape`, the reverse of broadcasting `shape` to that of x. */
EK_API ek_tensor *ek_sum_to(ek_tensor *x, ek_shape shape);

EK_END_DECLARATIONS
#endif
