#include "core/staging.h"

ek_tensor *ek_staging_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape)
{
    if (!ek_dev_is_host(dev))
        dev = ek_dev_get(ek_cpu());
    return dev ? ek_tensor_new(dev, dtype, shape, EK_CONTIGUOUS) : NULL;
}

ek_tensor *ek_staging_send(ek_tensor *staged, ek_dev *dev)
{
    ek_shape shape = ek_tensor_shape(staged);

    if (ek_tensor_dev(staged) == dev)
        return staged;
    ek_tensor *sent = ek_tensor_new(dev, staged->dtype, &shape, EK_CONTIGUOUS);
    if (!sent || ek_dev_copy(dev, ek_tensor_address(sent), ek_tensor_dev(staged),
                             ek_tensor_address(staged), sent->storage->nbytes) < 0)
        return NULL;
    return sent;
}
