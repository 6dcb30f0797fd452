/* logic.c: comparisons with numbers, logic, and bounds that are tensors. All results are made by
 * ek_eq and the other comparisons, which define their dtype. */
#include <float.h>
#include <math.h>

#include "ops/ops.h"

/* ---- comparisons with a number ---- */

typedef ek_tensor *logic_comparison(ek_tensor *x, ek_tensor *y);

static ek_tensor *logic_compare(const char *operation, logic_comparison *compare, ek_tensor *x,
                                double c)
{
    if (!ek_given(operation, "x", x) || !ek_holds(operation, "c", x->dtype, c))
        return NULL;
    return compare(x, ek_number_like(x, c));
}

#define COMPARISON(name)                                        \
    ek_tensor *ek_##name##_scalar(ek_tensor *x, double c)       \
    {                                                           \
        return logic_compare(#name "_scalar", ek_##name, x, c); \
    }
COMPARISON(eq)
COMPARISON(ne)
COMPARISON(lt)
COMPARISON(le)
COMPARISON(gt)
COMPARISON(ge)

/* ---- logic ---- */

ek_tensor *ek_logical_not(ek_tensor *x)
{
    return logic_compare("logical_not", ek_eq, x, 0);
}

/* For truths 0 and 1: x and y is x > not y; x or y is x >= not y. */
ek_tensor *ek_logical_and(ek_tensor *x, ek_tensor *y)
{
    return ek_gt(logic_compare("logical_and", ek_ne, x, 0),
                 logic_compare("logical_and", ek_eq, y, 0));
}

ek_tensor *ek_logical_or(ek_tensor *x, ek_tensor *y)
{
    return ek_ge(logic_compare("logical_or", ek_ne, x, 0),
                 logic_compare("logical_or", ek_eq, y, 0));
}

ek_tensor *ek_logical_xor(ek_tensor *x, ek_tensor *y)
{
    return ek_ne(logic_compare("logical_xor", ek_ne, x, 0),
                 logic_compare("logical_xor", ek_ne, y, 0));
}

/* ---- what is no number, and what is infinite ---- */

ek_tensor *ek_isnan(ek_tensor *x)
{
    return ek_given("isnan", "x", x) ? ek_ne(x, x) : NULL;
}

/* Compares |x| with infinity. Integers are finite, and are compared with themselves. */
static ek_tensor *logic_compare_magnitude(logic_comparison *reals, logic_comparison *integers,
                                          ek_tensor *x)
{
    if (!ek_dtype_is_floating(x->dtype))
        return integers(x, x);
    ek_tensor *magnitude = ek_run_unary(EK_UNARY_ABS, x, 0, 0);
    return magnitude ? reals(magnitude, ek_number_like(x, (double)INFINITY)) : NULL;
}

ek_tensor *ek_isinf(ek_tensor *x)
{
    return ek_given("isinf", "x", x) ? logic_compare_magnitude(ek_eq, ek_ne, x) : NULL;
}

ek_tensor *ek_isfinite(ek_tensor *x)
{
    return ek_given("isfinite", "x", x) ? logic_compare_magnitude(ek_lt, ek_eq, x) : NULL;
}

/* Returns the largest finite number of a floating dtype. */
static double logic_largest(ek_dtype dtype)
{
    const double largest_bf16 = 3.3895313892515355e38;
    return dtype == EK_F64    ? DBL_MAX
           : dtype == EK_F16  ? 65504
           : dtype == EK_BF16 ? largest_bf16
                              : (double)FLT_MAX;
}

ek_tensor *ek_nan_to_num_with(ek_nan_to_num_options options)
{
    ek_tensor *x = options.x;
    if (!ek_given("nan_to_num", "x", x))
        return NULL;
    if (!ek_dtype_is_floating(x->dtype))
        return ek_clone(x);
    double largest = logic_largest(x->dtype), infinite = (double)INFINITY;
    double numbers[] = {options.nan, options.posinf == EK_UNSET ? largest : options.posinf,
                        options.neginf == EK_UNSET ? -largest : options.neginf};
    ek_tensor *conditions[] = {ek_isnan(x), ek_eq_scalar(x, infinite), ek_eq_scalar(x, -infinite)};
    for (int i = 0; i < 3; i++)
        x = x ? ek_where(conditions[i], ek_number_like(x, numbers[i]), x) : NULL;
    return x;
}

/* ---- bounds that are tensors ---- */

/* Of g, what a condition admits; 0 elsewhere. */
static ek_tensor *logic_admit(ek_tensor *condition, ek_tensor *g)
{
    return g ? ek_where(condition, g, ek_number_like(g, 0)) : NULL;
}

/* If x lies between the bounds or equals a bound, the gradient of x is g; otherwise the bound that
 * the result equals gets g. If the lower bound is above the upper bound, the upper bound gets g. If
 * both are equal and x is below them, no operand gets g. */
static int clamp_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *g = gradients[0], *x = ek_node_saved(node, 0);
    ek_tensor *low = ek_node_saved(node, 1), *high = ek_node_saved(node, 2);
    if (ek_node_needs(node, 0)) {
        results[0] = low ? logic_admit(ek_ge(x, low), g) : g;
        results[0] = high ? logic_admit(ek_le(x, high), results[0]) : results[0];
    }
    if (low && ek_node_needs(node, 1)) {
        results[1] = logic_admit(ek_lt(x, low), g);
        results[1] = high ? logic_admit(ek_lt(low, high), results[1]) : results[1];
    }
    if (high && ek_node_needs(node, 2)) {
        results[2] = logic_admit(ek_gt(x, high), g);
        results[2] = low ? ek_where(ek_lt(high, low), g, results[2]) : results[2];
    }
    return 0;
}
EK_OPERATION(clamp, "clamp_tensors", clamp_backward);

ek_tensor *ek_clamp_tensors(ek_tensor *x, ek_tensor *low, ek_tensor *high)
{
    if (!ek_given("clamp_tensors", "x", x) || !ek_optional(low) || !ek_optional(high))
        return NULL;
    if (!low && !high)
        return EK_REFUSE(EK_E_INVALID, "clamp_tensors: low and high are both NULL");
    /* Twice, because the upper bound may have made x larger. */
    for (int i = 0; i < 2; i++)
        if ((low && !ek_broadcast_operands("clamp_tensors", &x, &low)) ||
            (high && !ek_broadcast_operands("clamp_tensors", &x, &high)))
            return NULL;
    ek_tensor *y = low ? ek_run_binary(EK_BINARY_MAXIMUM, x, low, 0) : x;
    y = high && y ? ek_run_binary(EK_BINARY_MINIMUM, y, high, 0) : y;
    return EK_RECORD(y, &clamp_operation, EK_INPUTS(x, low, high), EK_SAVED(x, low, high));
}
