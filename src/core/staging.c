/* staging.c: see staging.h. */
#include "core/staging.h"

static size_t staging_nbytes(const ek_tensor *tensor)
{
    return (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
}

static ek_tensor *staging_new_pinned(ek_dev *dev, ek_dtype dtype, const ek_shape *shape)
{
    int64_t strides[EK_MAX_DIMS], count = ek_shape_count(shape);
    size_t nbytes;
    if (__builtin_mul_overflow((size_t)count, ek_dtype_size(dtype), &nbytes))
        return EK_FAIL_NULL(EK_E_SHAPE,
                            "staging: %lld elements of %s are more than memory can have",
                            (long long)count, ek_dtype_name(dtype));
    ek_storage *storage = ek_storage_new_pinned(dev, nbytes);
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
    if (dev->backend->pinned_alloc)
        return staging_new_pinned(dev, dtype, shape);
    dev = ek_dev_get(ek_cpu());
    return dev ? ek_tensor_new(dev, dtype, shape, EK_CONTIGUOUS) : NULL;
}

ek_tensor *ek_staging_send(ek_tensor *staged, ek_dev *dev)
{
    ek_shape shape = ek_tensor_shape(staged);
    size_t nbytes = staging_nbytes(staged);
    if (ek_tensor_dev(staged) == dev)
        return staged;
    ek_storage *storage = ek_storage_new_for(dev, EK_STREAM_UPLOAD, nbytes);
    if (!storage)
        return NULL;
    ek_tensor *sent = ek_tensor_member(storage, staged->dtype, &shape, staged->stride, 0);
    ek_object_release(storage);
    if (!sent)
        return NULL;
    int rc = ek_dev_upload(dev, ek_tensor_address(sent), ek_tensor_dev(staged),
                           ek_tensor_address(staged), nbytes);
    if (storage->stream == EK_STREAM_UPLOAD) { /* also after an error, with a part copied */
        ek_dev_record_event(dev, EK_STREAM_UPLOAD, &storage->event);
        storage->arriving = true;
    }
    return rc < 0 ? NULL : sent;
}

ek_tensor *ek_staging_receive(ek_tensor *sent, ek_dev *dev)
{
    if (ek_tensor_dev(sent) == dev)
        ek_storage_receive(sent->storage);
    return sent;
}

ek_tensor *ek_staging_copy(ek_tensor *staged, ek_dev *dev)
{
    ek_tensor *sent = ek_staging_send(staged, dev);
    return sent ? ek_staging_receive(sent, dev) : NULL;
}

bool ek_staging_copies(const ek_tensor *tensor, const ek_dev *dev)
{
    return ek_dev_has_streams(dev) && ek_dev_is_host(ek_tensor_dev(tensor)) && ek_is_dense(tensor);
}

/* ---- to the host, and back ---- */

int ek_staging_fetch(ek_tensor *host, const ek_tensor *from, ek_event **event)
{
    ek_dev *dev = ek_tensor_dev(from);
    ek_dev_record_event(dev, EK_STREAM_COMPUTE, event);
    ek_dev_wait_event(dev, EK_STREAM_COMMUNICATE, *event);
    EK_TRY(ek_dev_download(dev, ek_tensor_dev(host), ek_tensor_address(host),
                           ek_tensor_address(from), staging_nbytes(from)));
    ek_dev_record_event(dev, EK_STREAM_COMMUNICATE, event);
    return 0;
}

int ek_staging_deliver(ek_tensor *to, const ek_tensor *host, ek_event **event)
{
    ek_dev *dev = ek_tensor_dev(to);
    ek_dev_record_event(dev, EK_STREAM_COMPUTE, event);
    ek_dev_wait_event(dev, EK_STREAM_UPLOAD, *event);
    int rc = ek_dev_upload(dev, ek_tensor_address(to), ek_tensor_dev(host), ek_tensor_address(host),
                           staging_nbytes(to));
    ek_dev_record_event(dev, EK_STREAM_UPLOAD, event); /* also after an error, with a part copied */
    ek_dev_wait_event(dev, EK_STREAM_COMPUTE, *event);
    return rc;
}
