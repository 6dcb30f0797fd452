/* stage.c: a tensor as a dense copy of another dtype or layout. */
#include "cuda/cuda.h"
#include "cuda/runtime.h"

/* The order of dimensions in memory: row-major, or with dimension 1 innermost. */
static void set_strides(ek_tensor *own, ek_memory_format format)
{
    bool last = format == EK_CHANNELS_LAST && (own->ndim == 4 || own->ndim == 5);
    int64_t stride = last ? own->shape[1] : 1;
    for (int d = own->ndim - 1; d >= 0; d--) {
        if (last && d == 1) {
            own->stride[d] = 1;
            continue;
        }
        own->stride[d] = stride;
        stride *= own->shape[d];
    }
}

int ek_cuda_stage_begin(ek_cuda_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype,
                        ek_memory_format format, bool keep, bool load)
{
    stage->nbytes = 0;
    stage->tensor = (ek_tensor *)x; /* written only by a stage that was begun for an output */
    if (keep || !x)
        return 0;
    size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(dtype);
    nbytes = nbytes > 0 ? nbytes : 1;
    void *data;
    EK_TRY(ek_cuda_scratch(dev, nbytes, &data));
    stage->nbytes = nbytes;
    stage->storage.dev = dev;
    stage->storage.data = data;
    stage->storage.nbytes = nbytes;
    ek_tensor *own = &stage->own;
    own->dtype = dtype;
    own->ndim = x->ndim;
    own->offset = 0;
    own->storage = &stage->storage;
    own->version = NULL;
    for (int d = 0; d < x->ndim; d++)
        own->shape[d] = x->shape[d];
    set_strides(own, format);
    stage->tensor = own;
    int rc = load ? ek_cuda_copy(dev, own, x) : 0;
    return rc < 0 ? ek_cuda_stage_end(stage, dev, NULL, false, rc) : 0;
}

int ek_cuda_stage_end(ek_cuda_stage *stage, ek_dev *dev, ek_tensor *original, bool store, int rc)
{
    if (stage->nbytes == 0)
        return rc;
    if (store && rc >= 0)
        rc = ek_cuda_copy(dev, original, &stage->own);
    ek_cuda_scratch_free(dev, stage->storage.data, stage->nbytes);
    stage->nbytes = 0;
    return rc;
}
