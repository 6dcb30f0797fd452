#include "core/staging.h"

static ek_tensor *new_locked(ek_dev *dev, ek_dtype dtype, const ek_shape *shape)
{
    int64_t strides[EK_MAX_DIMS], count = ek_shape_count(shape);
    size_t nbytes;

    if (__builtin_mul_overflow((size_t)count, ek_dtype_size(dtype), &nbytes)) {
        EK_FAIL(EK_E_SHAPE, "staging: %lld elements of %s are more than memory can have",
                (long long)count, ek_dtype_name(dtype));
        return NULL;
    }
    ek_storage *storage = ek_storage_new_locked(dev, nbytes);
    if (!storage)
        return NULL;
    ek_strides_of(shape, EK_CONTIGUOUS, strides);
    ek_tensor *tensor = ek_tensor_member(storage, dtype, shape, strides, 0);
    ek_object_release(storage);
    return tensor;
}

ek_tensor *ek_staging_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape)
{
    if (ek_dev_is_host(dev))
        return ek_tensor_new(dev, dtype, shape, EK_CONTIGUOUS);
    if (dev->backend->locked_alloc)
        return new_locked(dev, dtype, shape);
    dev = ek_dev_get(ek_cpu());
    return dev ? ek_tensor_new(dev, dtype, shape, EK_CONTIGUOUS) : NULL;
}

static int send_bytes(const ek_storage *from, ek_dev *dev, void *to, const void *data,
                      size_t nbytes)
{
    if (nbytes == 0)
        return 0;
    if (from->locked_for == dev && data == from->data)
        return dev->backend->locked_send(dev, to, data, nbytes);
    return ek_dev_copy(dev, to, from->dev, data, nbytes);
}

ek_tensor *ek_staging_send(ek_tensor *staged, ek_dev *dev)
{
    ek_shape shape = ek_tensor_shape(staged);

    if (ek_tensor_dev(staged) == dev)
        return staged;
    ek_tensor *sent = ek_tensor_new(dev, staged->dtype, &shape, EK_CONTIGUOUS);
    if (!sent)
        return NULL;
    size_t nbytes = (size_t)ek_count(staged) * ek_dtype_size(staged->dtype);
    if (send_bytes(staged->storage, dev, ek_tensor_address(sent), ek_tensor_address(staged),
                   nbytes) < 0)
        return NULL;
    return sent;
}
