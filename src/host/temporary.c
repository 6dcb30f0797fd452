/* temporary.c: see temporary.h. */
#include "host/temporary.h"

#include <string.h>

#include "host/host.h"

void ek_row_major_strides(int ndim, const int64_t *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= shape[i];
    }
}

void ek_channels_last_strides(int ndim, const int64_t *shape, int64_t *stride)
{
    int64_t step = shape[1];
    stride[1] = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (i == 1)
            continue;
        stride[i] = step;
        step *= shape[i];
    }
}

static bool has_strides(const ek_tensor *tensor, const int64_t *stride)
{
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] != 1 && tensor->stride[i] != stride[i])
            return false;
    return true;
}

bool ek_is_row_major(const ek_tensor *tensor)
{
    int64_t stride[EK_MAX_DIMS];
    ek_row_major_strides(tensor->ndim, tensor->shape, stride);
    return has_strides(tensor, stride);
}

bool ek_is_channels_last(const ek_tensor *tensor)
{
    int64_t stride[EK_MAX_DIMS];
    if (tensor->ndim < 2)
        return false;
    ek_channels_last_strides(tensor->ndim, tensor->shape, stride);
    return has_strides(tensor, stride);
}

void ek_temporary_none(ek_temporary *temporary)
{
    temporary->storage.dev = NULL;
}

int ek_temporary_new(ek_temporary *temporary, ek_dev *dev, const ek_tensor *like, ek_dtype dtype,
                     bool channels_last)
{
    ek_tensor *tensor = &temporary->tensor;
    memset(temporary, 0, sizeof *temporary);
    tensor->dtype = dtype;
    tensor->ndim = like->ndim;
    memcpy(tensor->shape, like->shape, sizeof tensor->shape);
    if (channels_last && like->ndim >= 3)
        ek_channels_last_strides(like->ndim, like->shape, tensor->stride);
    else
        ek_row_major_strides(like->ndim, like->shape, tensor->stride);
    tensor->storage = &temporary->storage;
    temporary->storage.nbytes = (size_t)ek_count(tensor) * ek_dtype_size(dtype);
    temporary->storage.category = EK_MEMORY_WORKSPACE;
    EK_TRY(ek_dev_alloc(dev, temporary->storage.nbytes, EK_MEMORY_WORKSPACE,
                        &temporary->storage.data));
    temporary->storage.dev = dev;
    return 0;
}

int ek_temporary_copy(ek_temporary *temporary, ek_dev *dev, const ek_tensor *source, ek_dtype dtype,
                      bool channels_last)
{
    EK_TRY(ek_temporary_new(temporary, dev, source, dtype, channels_last));
    int rc = ek_host_copy(dev, &temporary->tensor, source);
    if (rc < 0)
        ek_temporary_free(temporary);
    return rc;
}

void ek_temporary_free(ek_temporary *temporary)
{
    if (temporary->storage.dev)
        ek_dev_free(temporary->storage.dev, temporary->storage.data, temporary->storage.nbytes,
                    EK_MEMORY_WORKSPACE);
    temporary->storage.dev = NULL;
}
