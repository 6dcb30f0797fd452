/* create.c: tensors filled with numbers. */
#include "ops/ops.h"

ek_tensor *ek_full_with(double value, ek_tensor_options options)
{
    if ((unsigned)options.dtype < EK_DTYPES && !ek_holds("full", "the value", options.dtype, value))
        return NULL;
    ek_tensor *x = ek_empty_with(options);
    return EK_RUN(x, fill, value);
}

ek_tensor *ek_zeros_with(ek_tensor_options options)
{
    return ek_full_with(0, options);
}

ek_tensor *ek_ones_with(ek_tensor_options options)
{
    return ek_full_with(1, options);
}

ek_tensor *ek_scalar(double value, ek_dtype dtype, ek_device device)
{
    return ek_full(value, ek_scalar_shape(), dtype, device);
}

ek_tensor *ek_arange(int64_t count, ek_dtype dtype, ek_device device)
{
    if (count < 0)
        return EK_REFUSE(EK_E_INVALID, "arange: count is %lld; it must not be negative",
                         (long long)count);
    if (count > 0 && (unsigned)dtype < EK_DTYPES &&
        !ek_holds("arange", "the last number", dtype, (double)(count - 1)))
        return NULL;
    /* Counted in i64 in plain memory; the conversion rounds as the dtype does. */
    ek_tensor *x = ek_empty(EK_SHAPE(count), EK_I64);
    if (!x)
        return NULL;
    int64_t *values = ek_tensor_data(x);
    for (int64_t i = 0; i < count; i++)
        values[i] = i;
    return ek_to_device(ek_to_dtype(x, dtype), device);
}

/* ---- for operations ---- */

ek_tensor *ek_filled(ek_dev *dev, ek_dtype dtype, const ek_shape *shape, double value)
{
    ek_tensor *x = ek_tensor_new(dev, dtype, shape, EK_CONTIGUOUS);
    return EK_RUN(x, fill, value);
}

ek_tensor *ek_zeros_like(const ek_tensor *x)
{
    ek_tensor *zeros = ek_result(x, NULL, NULL, x->dtype);
    return EK_RUN(zeros, fill, 0);
}

ek_tensor *ek_number_like(const ek_tensor *x, double value)
{
    ek_shape scalar = ek_scalar_shape();
    return ek_filled(x->storage->dev, x->dtype, &scalar, value);
}
