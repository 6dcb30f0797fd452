/* stage.c: see stage.h. */
#include "host/stage.h"

#include "host/host.h"

int ek_stage_begin(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                   bool keep, bool load)
{
    stage->nbytes = 0;
    stage->original = (ek_tensor *)x; /* written only by a stage that was begun for an output */
    stage->tensor = stage->original;
    if (keep || !x)
        return 0;
    size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(dtype);
    void *data;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &data));
    stage->nbytes = nbytes > 0 ? nbytes : 1;
    stage->storage.dev = dev;
    stage->storage.data = data;
    ek_tensor *own = &stage->own;
    own->dtype = dtype;
    own->ndim = x->ndim;
    own->offset = 0;
    own->storage = &stage->storage;
    own->version = NULL;
    int64_t stride = x->ndim > 0 ? x->shape[axis] : 1;
    for (int d = x->ndim - 1; d >= 0; d--) {
        own->shape[d] = x->shape[d];
        own->stride[d] = d == axis ? 1 : stride;
        if (d != axis)
            stride *= x->shape[d];
    }
    stage->tensor = own;
    int rc = load ? ek_host_copy(dev, own, x) : 0;
    return rc < 0 ? ek_stage_end(stage, dev, false, rc) : 0;
}

int ek_stage_image(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, bool load)
{
    bool keep = !x || (x->dtype == dtype && ek_is_channels_last(x));
    return ek_stage_begin(stage, dev, x, dtype, 1, keep, load);
}

int ek_stage_end(ek_stage *stage, ek_dev *dev, bool store, int rc)
{
    if (stage->nbytes == 0)
        return rc;
    if (store && rc >= 0)
        rc = ek_host_copy(dev, stage->original, &stage->own);
    size_t nbytes = (size_t)ek_count(&stage->own) * ek_dtype_size(stage->own.dtype);
    ek_dev_free(dev, stage->storage.data, nbytes, EK_MEMORY_WORKSPACE);
    stage->nbytes = 0;
    return rc;
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

bool ek_is_channels_last(const ek_tensor *tensor)
{
    int64_t stride[EK_MAX_DIMS];
    if (tensor->ndim < 2)
        return false;
    ek_channels_last_strides(tensor->ndim, tensor->shape, stride);
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] != 1 && tensor->stride[i] != stride[i])
            return false;
    return true;
}
