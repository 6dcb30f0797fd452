/* check.c: operand checks, each with its error message. */
#include <stdio.h>

#include "ops/ops.h"

bool ek_given(const char *operation, const char *name, const ek_tensor *x)
{
    if (x && ek_tensor_is_retired(x))
        return ek_retired_fail(operation, name, x) == 0;
    if (x)
        return ek_fork_check() == 0 && ek_tensor_hold(x) >= 0;
    return EK_FAIL(EK_E_INVALID, "%s: %s is NULL", operation, name) == 0;
}

bool ek_floating(const char *operation, const char *name, const ek_tensor *x)
{
    if (!ek_given(operation, name, x))
        return false;
    if (ek_dtype_is_floating(x->dtype))
        return true;
    return EK_FAIL(
               EK_E_DTYPE,
               "%s: %s has dtype %s; convert it to a floating dtype (f32, f64, bf16, f16) first",
               operation, name, ek_dtype_name(x->dtype)) == 0;
}

bool ek_of_dtype(const char *operation, const char *name, const ek_tensor *x, ek_dtype dtype)
{
    if (!ek_given(operation, name, x))
        return false;
    if (x->dtype == dtype)
        return true;
    return EK_FAIL(EK_E_DTYPE, "%s: %s has dtype %s and must have %s", operation, name,
                   ek_dtype_name(x->dtype), ek_dtype_name(dtype)) == 0;
}

bool ek_holds(const char *operation, const char *name, ek_dtype dtype, double value)
{
    if (ek_dtype_holds(dtype, value))
        return true;
    return EK_FAIL(EK_E_DTYPE, "%s: %s is %.17g, but %s holds %s; convert with ek_to_dtype first",
                   operation, name, value, ek_dtype_name(dtype),
                   ek_dtype_range_of(dtype)->text) == 0;
}

bool ek_holds_low(const char *operation, const char *name, ek_dtype dtype, double value)
{
    return value < ek_dtype_range_of(dtype)->first || ek_holds(operation, name, dtype, value);
}

bool ek_holds_high(const char *operation, const char *name, ek_dtype dtype, double value)
{
    return value > ek_dtype_range_of(dtype)->last || value >= 0x1p63 ||
           ek_holds(operation, name, dtype, value);
}

bool ek_no_bool(const char *operation, const char *name, const ek_tensor *x)
{
    if (!ek_given(operation, name, x))
        return false;
    if (x->dtype != EK_BOOL)
        return true;
    return EK_FAIL(EK_E_DTYPE, "%s: %s has dtype bool; convert it with ek_to_dtype first",
                   operation, name) == 0;
}

bool ek_is_mask(const char *operation, const char *name, const ek_tensor *x)
{
    return x && x->dtype == EK_U8 ? ek_given(operation, name, x)
                                  : ek_of_dtype(operation, name, x, EK_BOOL);
}

ek_tensor *ek_as_index(const char *operation, const char *name, ek_tensor *index)
{
    if (index && index->dtype == EK_I32)
        return ek_to_dtype(index, EK_I64);
    return ek_of_dtype(operation, name, index, EK_I64) ? index : NULL;
}

bool ek_chosen(const char *operation, const char *name, int choice, int count, const char *names)
{
    return (choice >= 0 && choice < count) ||
           EK_REFUSE(EK_E_INVALID, "%s: %s must be %s, got %d", operation, name, names, choice);
}

bool ek_of_shape(const char *operation, const char *name, const ek_tensor *x, const ek_shape *shape)
{
    if (!ek_given(operation, name, x))
        return false;
    ek_shape own = ek_tensor_shape(x);
    if (ek_shape_equal(&own, shape))
        return true;
    return EK_FAIL(EK_E_SHAPE, "%s: %s has shape %s and must have %s", operation, name,
                   EK_SHAPE_TEXT(&own), EK_SHAPE_TEXT(shape)) == 0;
}

bool ek_same_device(const char *operation, const ek_tensor *x, const ek_tensor *y)
{
    if (x->storage->dev == y->storage->dev)
        return true;
    return EK_FAIL(EK_E_DEVICE, "%s: operands on %s and %s; move one with ek_to_device", operation,
                   x->storage->dev->name, y->storage->dev->name) == 0;
}

bool ek_alike(const char *operation, const ek_tensor *x, const ek_tensor *y)
{
    if (!ek_same_device(operation, x, y))
        return false;
    if (x->dtype == y->dtype)
        return true;
    return EK_FAIL(EK_E_DTYPE, "%s: operands of dtype %s and %s; convert one with ek_to_dtype",
                   operation, ek_dtype_name(x->dtype), ek_dtype_name(y->dtype)) == 0;
}

int ek_dimension(const char *operation, const ek_tensor *x, int64_t dim)
{
    if (dim >= -x->ndim && dim < x->ndim)
        return (int)(dim < 0 ? dim + x->ndim : dim);
    if (x->ndim == 0)
        return EK_FAIL(EK_E_SHAPE, "%s: dimension %lld of a tensor of zero dimensions", operation,
                       (long long)dim);
    return EK_FAIL(EK_E_SHAPE, "%s: dimension %lld is not in [%d, %d]", operation, (long long)dim,
                   -x->ndim, x->ndim - 1);
}

bool ek_is_scalar_dim(const ek_tensor *x, int64_t dim)
{
    return x && x->ndim == 0 && (dim == 0 || dim == -1) && !ek_tensor_is_retired(x);
}

int ek_reduced_dimension(const char *operation, const ek_tensor *x, int64_t dim)
{
    return ek_is_scalar_dim(x, dim) ? 0 : ek_dimension(operation, x, dim);
}

ek_tensor *ek_row_of(ek_tensor *x)
{
    return x && x->ndim == 0 ? ek_reshape(x, EK_SHAPE(1)) : x;
}

ek_tensor *ek_scalar_of(ek_tensor *row)
{
    return row ? ek_reshape(row, ek_scalar_shape()) : NULL;
}

int ek_counted_dimensions(const char *operation, const int *dims, int dim_count)
{
    return dim_count != 0 || dims[0] == EK_UNSET
               ? 0
               : EK_FAIL(EK_E_INVALID,
                         "%s: dimension %d is given without a count; write EK_DIMS(%d)", operation,
                         dims[0], dims[0]);
}

int ek_reduced_dimensions(const char *operation, const ek_tensor *x, int dim, const int *dims,
                          int dim_count)
{
    int mask = 0;
    if (!ek_given(operation, "x", x))
        return ek_error_pending();
    EK_TRY(ek_counted_dimensions(operation, dims, dim_count));
    if (dim_count < 0 || dim_count > EK_MAX_DIMS)
        return EK_FAIL(EK_E_INVALID, "%s: dim_count is %d; it must lie between 0 and %d", operation,
                       dim_count, EK_MAX_DIMS);
    if (dim != EK_UNSET) {
        if (dim_count != 0)
            return EK_FAIL(EK_E_INVALID, "%s: dim and EK_DIMS are one option; give one", operation);
        dim = ek_reduced_dimension(operation, x, dim);
        return dim < 0 ? dim : x->ndim == 0 ? 0 : 1 << dim;
    }
    if (dim_count == 0)
        return (1 << x->ndim) - 1;
    for (int i = 0; i < dim_count; i++) {
        dim = ek_reduced_dimension(operation, x, dims[i]);
        if (dim < 0)
            return dim;
        if (mask >> dim & 1)
            return EK_FAIL(EK_E_INVALID, "%s: dimension %d is named twice", operation, dim);
        mask |= 1 << dim;
    }
    return mask & ((1 << x->ndim) - 1); /* a scalar has no dimension */
}

/* ---- signals, images and volumes ---- */

ek_memory_format ek_spatial_format(const ek_tensor *x)
{
    if (x->ndim != 4)
        return EK_CONTIGUOUS;
    if (ek_tensor_is_contiguous(x, EK_CHANNELS_LAST))
        return EK_CHANNELS_LAST;
    if (ek_tensor_is_contiguous(x, EK_CONTIGUOUS))
        return EK_CONTIGUOUS;
    return x->stride[1] <= x->stride[3] ? EK_CHANNELS_LAST : EK_CONTIGUOUS;
}

int ek_spatial_check(const char *name, const ek_tensor *x, int dims)
{
    static const char *const axes[] = {"", "L", "H, W", "D, H, W"};
    if (!ek_dtype_is_floating(x->dtype))
        return EK_FAIL(EK_E_DTYPE, "%s: expected a floating x, got %s", name, EK_TENSOR_TEXT(x));
    if (x->ndim != dims + 2)
        return EK_FAIL(EK_E_SHAPE, "%s: expected x of %d dimensions (N, C, %s), got %s", name,
                       dims + 2, axes[dims], EK_TENSOR_TEXT(x));
    return 0;
}

ek_tensor *ek_spatial_batched(ek_tensor *x, int dims, bool *single)
{
    *single = x && x->ndim == dims + 1;
    return *single ? ek_unsqueeze(x, 0) : x;
}

const char *ek_spatial_direction(int dims, int i)
{
    static const char *const names[] = {"depth", "height", "width"};
    return dims == 1 ? "length" : names[3 - dims + i];
}

int ek_spatial_option(const char *name, const char *option, int dims, const int each[3], int all,
                      int64_t least, int64_t result[3])
{
    for (int i = dims; i < 3; i++)
        if (each[i] != 0)
            return EK_FAIL(EK_E_INVALID, "%s: %ss has an entry %d, %d, but there %s", name, option,
                           i + 1, each[i],
                           dims == 1 ? "is only one direction" : "are only two directions");
    for (int i = 0; i < dims; i++)
        result[i] = each[i] != 0 ? each[i] : all;
    return ek_spatial_least(name, option, dims, result, least);
}

int ek_spatial_stride(const char *name, int dims, const int each[3], int all,
                      const int64_t kernel[3], int64_t result[3])
{
    if (all != EK_UNSET)
        return ek_spatial_option(name, "stride", dims, each, all, 1, result);
    int kernels[3] = {0};
    for (int i = 0; i < 3; i++)
        kernels[i] = each[i] == 0 && i < dims ? (int)kernel[i] : each[i];
    return ek_spatial_option(name, "stride", dims, kernels, 1, 1, result);
}

int ek_spatial_least(const char *name, const char *option, int dims, const int64_t *values,
                     int64_t least)
{
    bool fine = true;
    char text[3 * 24];
    int length = 0;
    for (int i = 0; i < dims; i++) {
        fine = fine && values[i] >= least;
        length += snprintf(text + length, sizeof text - (size_t)length, "%s%lld",
                           i > 0 ? " x " : "", (long long)values[i]);
    }
    return fine ? 0
                : EK_FAIL(EK_E_INVALID, "%s: %s must be at least %lld, got %s", name, option,
                          (long long)least, text);
}

void ek_spatial_lift(int64_t values[3], int64_t first)
{
    values[1] = values[0];
    values[0] = first;
}
