/* copy.c: tensors filled with numbers, or with the elements of another tensor in another memory
 * order, dtype or device. */
#include "autograd/observer.h"
#include "core/staging.h"
#include "core/trace.h"
#include "ops/ops.h"

/* ---- without history ---- */

static int copy_bytes(const ek_tensor *x, const ek_tensor *y)
{
    size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(x->dtype);
    if (nbytes == 0)
        return 0;
    ek_dev *to = x->storage->dev, *from = y->storage->dev;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "copy to", to->name,
                  to->id.kind == EK_CPU ? from : to);
    int rc = ek_dev_copy(to, ek_tensor_address(x), from, ek_tensor_address(y), nbytes);
    ek_span_end(&span);
    return rc;
}

/* Converts before and after the copy between devices, which copies dense blocks only. */
int ek_transfer(ek_tensor *x, const ek_tensor *y)
{
    ek_dev *to = x->storage->dev, *from = y->storage->dev;
    if (to == from)
        return to->backend->kernels->copy(to, x, y);
    if (x->dtype == y->dtype && ek_is_dense(y) && ek_same_layout(x, y))
        return copy_bytes(x, y);

    if (!ek_is_dense(y)) {
        ek_tensor *block = ek_result(y, NULL, NULL, y->dtype);
        if (!block || from->backend->kernels->copy(from, block, y) < 0)
            return ek_error_pending();
        y = block;
    }
    ek_shape shape = ek_tensor_shape(y);
    ek_tensor *arrived = ek_tensor_new_strided(to, y->dtype, &shape, y->stride);
    if (!arrived)
        return ek_error_pending();
    EK_TRY(copy_bytes(arrived, y));
    return to->backend->kernels->copy(to, x, arrived);
}

/* ---- clone, contiguous: the gradient passes ---- */

EK_BACKWARD(pass, void, g)
EK_OPERATION(clone, "clone", pass_backward);
EK_OPERATION(contiguous, "contiguous", pass_backward);

ek_tensor *ek_clone(ek_tensor *x)
{
    if (!ek_given("clone", "x", x))
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y || ek_transfer(y, x) < 0)
        return NULL;
    return EK_RECORD(y, &clone_operation, EK_INPUTS(x));
}

ek_tensor *ek_contiguous(ek_tensor *x, ek_memory_format format)
{
    if (!ek_given("contiguous", "x", x))
        return NULL;
    if (x->ndim != 4)
        format = EK_CONTIGUOUS;
    if (ek_tensor_is_contiguous(x, format))
        return ek_itself(x);
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *y = ek_tensor_new(x->storage->dev, x->dtype, &shape, format);
    if (!y || ek_transfer(y, x) < 0)
        return NULL;
    return EK_RECORD(y, &contiguous_operation, EK_INPUTS(x));
}

/* ---- to_dtype ---- */

static int to_dtype_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const int later = ek_node_cast_later(node, 0, gradients[0], &results[0]);
    if (later != 0)
        return later < 0 ? later : 0;
    ek_tensor *into = ek_node_destination(node, 0);
    if (into) {
        results[0] = into;
        return ek_transfer(into, gradients[0]);
    }
    results[0] = ek_to_dtype(gradients[0], *(const ek_dtype *)ek_node_attributes(node));
    return 0;
}

EK_OPERATION(to_dtype, "to_dtype", to_dtype_backward);

ek_tensor *ek_record_cast(ek_tensor *y, ek_tensor *x)
{
    ek_dtype before = x->dtype;
    return EK_RECORD(y, &to_dtype_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}

ek_tensor *ek_to_dtype(ek_tensor *x, ek_dtype dtype)
{
    if (!ek_given("to_dtype", "x", x))
        return NULL;
    if ((unsigned)dtype >= EK_DTYPES)
        return EK_REFUSE(EK_E_DTYPE, "to_dtype: %d is no dtype", (int)dtype);
    if (x->dtype == dtype)
        return ek_itself(x);
    ek_tensor *y = ek_result(x, NULL, NULL, dtype);
    if (!y || ek_transfer(y, x) < 0)
        return NULL;
    return ek_dtype_is_floating(dtype) ? ek_record_cast(y, x)
                                       : EK_OBSERVED(y, to_dtype_operation.name, EK_INPUTS(x));
}

/* ---- to_device ---- */

EK_BACKWARD(to_device, ek_device, ek_to_device(g, *a))
EK_OPERATION(to_device, "to_device", to_device_backward);

/* Copies a dense tensor to another device. A copy from the host doesn't wait for the device. */
static ek_tensor *copy_block_on(ek_dev *dev, ek_tensor *from)
{
    ek_shape shape = ek_tensor_shape(from);
    if (!ek_staging_copies(from, dev)) {
        ek_tensor *y = ek_tensor_new_strided(dev, from->dtype, &shape, from->stride);
        return y && copy_bytes(y, from) >= 0 ? y : NULL;
    }
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "copy to", dev->name, dev);
    ek_tensor *y = ek_staging_copy(from, dev);
    ek_span_end(&span);
    return y;
}

ek_tensor *ek_to_device(ek_tensor *x, ek_device device)
{
    if (!ek_given("to_device", "x", x))
        return NULL;
    ek_device before = x->storage->dev->id;
    if (ek_device_equal(before, device))
        return ek_itself(x);
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return NULL;
    ek_tensor *from = x;
    if (!ek_is_dense(x)) {
        from = ek_result(x, NULL, NULL, x->dtype);
        if (!from || ek_transfer(from, x) < 0)
            return NULL;
    }
    ek_tensor *y = copy_block_on(dev, from);
    if (!y)
        return NULL;
    return EK_RECORD(y, &to_device_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}

/* ---- numbers ---- */

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
    /* Numbers are counted in i64 on cpu; the conversion rounds as the dtype does. */
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

ek_tensor *ek_number_like(const ek_tensor *x, double value)
{
    ek_shape scalar = ek_scalar_shape();
    return ek_filled(x->storage->dev, x->dtype, &scalar, value);
}
