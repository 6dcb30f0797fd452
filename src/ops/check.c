/* check.c: operand checks, each with its sentence. */
#include <math.h>

#include "ops/ops.h"

bool ek_given(const char *operation, const char *name, const ek_tensor *x)
{
    if (x)
        return ek_fork_check() == 0;
    EK_FAIL(EK_E_INVALID, "%s: %s is NULL", operation, name);
    return false;
}

bool ek_floating(const char *operation, const char *name, const ek_tensor *x)
{
    if (!ek_given(operation, name, x))
        return false;
    if (ek_dtype_is_floating(x->dtype))
        return true;
    EK_FAIL(EK_E_DTYPE,
            "%s: %s has dtype %s; convert it to a floating dtype (f32, f64, bf16) first", operation,
            name, ek_dtype_name(x->dtype));
    return false;
}

bool ek_of_dtype(const char *operation, const char *name, const ek_tensor *x, ek_dtype dtype)
{
    if (!ek_given(operation, name, x))
        return false;
    if (x->dtype == dtype)
        return true;
    EK_FAIL(EK_E_DTYPE, "%s: %s has dtype %s and must have %s", operation, name,
            ek_dtype_name(x->dtype), ek_dtype_name(dtype));
    return false;
}

/* What integers hold: whole numbers in [low, end). */
static const struct {
    double low, end;
    const char *text;
} integer_ranges[EK_DTYPES] = {
    [EK_I64] = {-0x1p63, 0x1p63, "whole numbers from -2^63 to 2^63 - 1"},
    [EK_U8] = {0, 256, "whole numbers from 0 to 255"},
};

bool ek_holds(const char *operation, const char *name, ek_dtype dtype, double value)
{
    if (ek_dtype_is_floating(dtype) || (value >= integer_ranges[dtype].low &&
                                        value < integer_ranges[dtype].end && value == floor(value)))
        return true;
    EK_FAIL(EK_E_DTYPE, "%s: %s is %.17g, but %s holds %s; convert with ek_to_dtype first",
            operation, name, value, ek_dtype_name(dtype), integer_ranges[dtype].text);
    return false;
}

bool ek_holds_low(const char *operation, const char *name, ek_dtype dtype, double value)
{
    return value < integer_ranges[dtype].low || ek_holds(operation, name, dtype, value);
}

bool ek_holds_high(const char *operation, const char *name, ek_dtype dtype, double value)
{
    return value >= integer_ranges[dtype].end || ek_holds(operation, name, dtype, value);
}

bool ek_of_shape(const char *operation, const char *name, const ek_tensor *x, const ek_shape *shape)
{
    if (!ek_given(operation, name, x))
        return false;
    ek_shape own = ek_tensor_shape(x);
    if (ek_shape_equal(&own, shape))
        return true;
    char text[160], wanted[160];
    EK_FAIL(EK_E_SHAPE, "%s: %s has shape %s and must have %s", operation, name,
            ek_shape_text(&own, text), ek_shape_text(shape, wanted));
    return false;
}

bool ek_same_device(const char *operation, const ek_tensor *x, const ek_tensor *y)
{
    if (x->storage->dev == y->storage->dev)
        return true;
    EK_FAIL(EK_E_DEVICE, "%s: operands on %s and %s; move one with ek_to_device", operation,
            x->storage->dev->name, y->storage->dev->name);
    return false;
}

bool ek_alike(const char *operation, const ek_tensor *x, const ek_tensor *y)
{
    if (!ek_same_device(operation, x, y))
        return false;
    if (x->dtype == y->dtype)
        return true;
    EK_FAIL(EK_E_DTYPE, "%s: operands of dtype %s and %s; convert one with ek_to_dtype", operation,
            ek_dtype_name(x->dtype), ek_dtype_name(y->dtype));
    return false;
}

int ek_dimension(const char *operation, const ek_tensor *x, int dim)
{
    if (dim >= -x->ndim && dim < x->ndim)
        return dim < 0 ? dim + x->ndim : dim;
    if (x->ndim == 0)
        return EK_FAIL(EK_E_SHAPE, "%s: dimension %d of a tensor of zero dimensions", operation,
                       dim);
    return EK_FAIL(EK_E_SHAPE, "%s: dimension %d is not in [%d, %d]", operation, dim, -x->ndim,
                   x->ndim - 1);
}
