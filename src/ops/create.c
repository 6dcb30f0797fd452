/* create.c: tensors of evenly spaced numbers, and of another tensor's shape. Numbers are computed
 * in f64 on cpu (linspace of f32 in f32), then converted to the dtype. */
#include <math.h>

#include "core/linspace.h"
#include "ops/ops.h"

/* Converts x, which lies on cpu, to a dtype and a device. Fails if an integer dtype doesn't hold a
 * number of x. */
static ek_tensor *create_from(const char *operation, ek_tensor *x, ek_dtype dtype, ek_device device)
{
    if ((unsigned)dtype < EK_DTYPES && !ek_dtype_is_floating(dtype)) {
        const double *values = ek_tensor_address(x);
        for (int64_t i = 0; i < ek_count(x); i++)
            if (!ek_holds_low(operation, "a number", dtype, floor(values[i])) ||
                !ek_holds(operation, "a number", dtype, trunc(values[i])))
                return NULL;
    }
    return ek_to_device(ek_to_dtype(x, dtype), device);
}

ek_tensor *ek_arange_step(double start, double end, double step, ek_dtype dtype, ek_device device)
{
    double count = ceil((end - start) / step);
    if (step == 0 || !(count >= 0) || !(count < 0x1p53))
        return EK_REFUSE(EK_E_INVALID, "arange: steps of %g don't lead from %g to %g", step, start,
                         end);
    ek_tensor *x = ek_empty(EK_SHAPE((int64_t)count), EK_F64);
    if (!x)
        return NULL;
    double *values = ek_tensor_address(x);
    for (int64_t i = 0; i < (int64_t)count; i++)
        values[i] = start + (double)i * step;
    return create_from("arange", x, dtype, device);
}

ek_tensor *ek_linspace(double start, double end, int64_t steps, ek_dtype dtype, ek_device device)
{
    if (steps < 0)
        return EK_REFUSE(EK_E_INVALID, "linspace: %lld steps; there can't be fewer than 0",
                         (long long)steps);
    ek_tensor *x = ek_empty(EK_SHAPE(steps), EK_F64);
    if (!x)
        return NULL;
    double *values = ek_tensor_address(x);
    for (int64_t i = 0; i < steps; i++)
        values[i] = dtype == EK_F32 ? ek_linspace_f32((float)start, (float)end, steps, i)
                                    : ek_linspace_f64(start, end, steps, i);
    return create_from("linspace", x, dtype, device);
}

ek_tensor *ek_eye(int64_t rows, int64_t columns, ek_dtype dtype, ek_device device)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(rows, columns), dtype, .device = device), one;
    if (!x || ek_count(x) == 0)
        return x;
    ek_borrow(&one, x);
    one.ndim = 1;
    one.shape[0] = rows < columns ? rows : columns;
    one.stride[0] = x->stride[0] + x->stride[1];
    return ek_kernels_of(x)->fill(ek_tensor_dev(x), &one, 1) < 0 ? NULL : x;
}

static ek_tensor *create_like(const char *operation, const ek_tensor *x, double value)
{
    if (!ek_given(operation, "x", x) || !ek_holds(operation, "the value", x->dtype, value))
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    return EK_RUN(y, fill, value);
}

ek_tensor *ek_full_like(const ek_tensor *x, double value)
{
    return create_like("full_like", x, value);
}

ek_tensor *ek_zeros_like(const ek_tensor *x)
{
    return create_like("zeros_like", x, 0);
}

ek_tensor *ek_ones_like(const ek_tensor *x)
{
    return create_like("ones_like", x, 1);
}
