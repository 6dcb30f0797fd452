/* extremes.c: the largest and the smallest over dimensions, and whether any or all elements are
 * true. */
#include <math.h>

#include "ops/ops.h"

/* ---- amax, amin, max, min: elements that are equal to the extreme share its gradient evenly
 * ---- */

typedef struct extreme_attributes {
    unsigned mask; /* the reduced dimensions */
    bool nan;      /* if the extreme is NaN, its gradient goes to the elements that are NaN */
} extreme_attributes;

/* Saved x, and the result with its dimensions kept. */
static int extreme_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const extreme_attributes *attributes = ek_node_attributes(node);
    ek_tensor *g = gradients[0], *x = ek_node_saved(node, 0), *y = ek_node_saved(node, 1);
    if (!x || !y)
        return ek_error_pending();
    ek_tensor *equal = ek_eq(x, y);
    if (attributes->nan)
        equal = ek_logical_or(equal, ek_logical_and(ek_isnan(x), ek_isnan(y)));
    ek_tensor *shares = ek_to_dtype(equal, g->dtype == EK_F64 ? EK_F64 : EK_F32);
    ek_tensor *sum = ek_sum_mask(shares, attributes->mask, 0);
    results[0] = ek_mul(ek_to_dtype(ek_div(shares, sum), g->dtype), g);
    return 0;
}

EK_OPERATION(amax, "amax", extreme_backward);
EK_OPERATION(amin, "amin", extreme_backward);
EK_OPERATION(max, "max", extreme_backward);
EK_OPERATION(min, "min", extreme_backward);

static ek_tensor *extreme_over(const char *name, const ek_operation *operation, ek_reduce_kind kind,
                               bool nan, ek_tensor *x, unsigned mask, bool keepdim)
{
    ek_shape kept = ek_reduced_shape(x, mask);
    if (ek_count(x) == 0 && ek_shape_count(&kept) > 0)
        return EK_REFUSE(EK_E_SHAPE, "%s: a dimension that is reduced has no elements", name);
    extreme_attributes attributes = {mask, nan};
    ek_tensor *y = ek_run_reduce(kind, x, mask, x->dtype);
    y = EK_RECORD(y, operation, EK_INPUTS(x), EK_SAVED(x, y), EK_ATTRIBUTES(attributes));
    return ek_reduced(y, mask, keepdim);
}

static ek_tensor *extreme_reduce(const ek_operation *operation, ek_reduce_kind kind, bool nan,
                                 const ek_reduce_options *options)
{
    int mask = EK_REDUCED(operation->name, options);
    return mask < 0 ? NULL
                    : extreme_over(operation->name, operation, kind, nan, options->x,
                                   (unsigned)mask, options->keepdim);
}

/* Returns the extreme of all elements. If the extreme is NaN, all NaNs share its gradient. */
static ek_tensor *extreme_of_all(const ek_operation *operation, ek_reduce_kind kind, ek_tensor *x)
{
    ek_reduce_options all = EK_DEFAULTS(ek_reduce_options);
    all.x = x;
    return extreme_reduce(operation, kind, true, &all);
}

ek_tensor *ek_extreme(const char *name, ek_tensor *x, bool largest, unsigned mask)
{
    return extreme_over(name, largest ? &amax_operation : &amin_operation,
                        largest ? EK_REDUCE_MAX : EK_REDUCE_MIN, false, x, mask, true);
}

ek_tensor *ek_amax_with(ek_reduce_options options)
{
    return extreme_reduce(&amax_operation, EK_REDUCE_MAX, false, &options);
}

ek_tensor *ek_amin_with(ek_reduce_options options)
{
    return extreme_reduce(&amin_operation, EK_REDUCE_MIN, false, &options);
}

EK_OPERATION(chosen, "median", extreme_backward);

ek_tensor *ek_record_chosen(ek_tensor *y, ek_tensor *x)
{
    extreme_attributes attributes = {x ? (1u << x->ndim) - 1 : 0, true};
    return EK_RECORD(y, &chosen_operation, EK_INPUTS(x), EK_SAVED(x, y), EK_ATTRIBUTES(attributes));
}

ek_tensor *ek_max(ek_tensor *x)
{
    return extreme_of_all(&max_operation, EK_REDUCE_MAX, x);
}

ek_tensor *ek_min(ek_tensor *x)
{
    return extreme_of_all(&min_operation, EK_REDUCE_MIN, x);
}

/* ---- any, all: by the number of elements that differ from 0, or don't ---- */

/* Counts the elements that pass `test`, and returns the truth of `test` for the counts. */
static ek_tensor *extreme_truth(const char *name, ek_reduce_options *options,
                                ek_tensor *(*test)(ek_tensor *x, double number))
{
    int mask = EK_REDUCED(name, options);
    if (mask < 0)
        return NULL;
    ek_tensor *count =
        ek_sum_mask(test(options->x, 0), (unsigned)mask, options->keepdim ? 0 : (unsigned)mask);
    return count ? test(count, 0) : NULL;
}

ek_tensor *ek_any_with(ek_reduce_options options)
{
    return extreme_truth("any", &options, ek_ne_scalar);
}

ek_tensor *ek_all_with(ek_reduce_options options)
{
    return extreme_truth("all", &options, ek_eq_scalar);
}
