/* stage.c: see stage.h. */
#include "kernels/stage.h"

#include "kernels/kernels.h"

/* Begins a stage. Returns 1; 0 if memory is short and the stage is `optional`. */
static int stage_begin(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                       bool keep, bool load, bool optional)
{
    stage->nbytes = 0;
    stage->original = (ek_tensor *)x; /* `original` is written only if the stage is for an output */
    stage->tensor = stage->original;
    if (keep || !x)
        return 1;
    size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(dtype);
    nbytes = nbytes > 0 ? nbytes : 1;
    void *data;
    ek_event *none;
    stage->tensor = NULL;
    int rc = optional ? ek_dev_try_alloc_for(dev, EK_STREAM_COMPUTE, nbytes, EK_MEMORY_WORKSPACE,
                                             &data, &none)
                      : ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &data);
    if (rc < 0 || (rc == 0 && optional))
        return rc;
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
    ek_strides_along(own->ndim, own->shape, axis, own->stride);
    stage->tensor = own;
    rc = load ? ek_kernels_of(own)->copy(dev, own, x) : 0;
    return rc < 0 ? ek_stage_end(stage, dev, false, rc) : 1;
}

int ek_stage_begin(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                   bool keep, bool load)
{
    const int rc = stage_begin(stage, dev, x, dtype, axis, keep, load, false);
    return rc < 0 ? rc : 0;
}

int ek_stage_try(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                 bool keep, bool load)
{
    return stage_begin(stage, dev, x, dtype, axis, keep, load, true);
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
        rc = ek_kernels_of(&stage->own)->copy(dev, stage->original, &stage->own);
    ek_dev_free(dev, stage->storage.data, stage->nbytes, EK_MEMORY_WORKSPACE);
    stage->nbytes = 0;
    return rc;
}

static int stage_rows(ek_stage *stage, ek_dev *dev, const ek_tensor *x, bool load)
{
    bool keep = !x || ek_is_dense_along(x, x->ndim - 1);
    return ek_stage_begin(stage, dev, x, x ? x->dtype : EK_F32, x ? x->ndim - 1 : 0, keep, load);
}

int ek_stage_draw(ek_dev *dev, const ek_drawn *tensors, const ek_draw *draw, ek_draw_rows *run)
{
    ek_stage drawn, read = {.nbytes = 0}, beside = {.nbytes = 0};
    EK_TRY(stage_rows(&drawn, dev, tensors->out, false));
    int rc = stage_rows(&read, dev, tensors->x, true);
    if (rc >= 0)
        rc = stage_rows(&beside, dev, tensors->residual, true);
    if (rc >= 0)
        rc = run(dev, &(ek_drawn){drawn.tensor, read.tensor, beside.tensor}, draw);
    rc = ek_stage_end(&beside, dev, false, rc);
    rc = ek_stage_end(&read, dev, false, rc);
    return ek_stage_end(&drawn, dev, true, rc);
}

void ek_strides_along(int ndim, const int64_t *shape, int axis, int64_t *stride)
{
    int64_t step = ndim > 0 ? shape[axis] : 1;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = d == axis ? 1 : step;
        step *= d == axis ? 1 : shape[d];
    }
}

bool ek_is_dense_along(const ek_tensor *tensor, int axis)
{
    int64_t stride[EK_MAX_DIMS];
    ek_strides_along(tensor->ndim, tensor->shape, axis, stride);
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] != 1 && tensor->stride[d] != stride[d])
            return false;
    return true;
}

bool ek_is_channels_last(const ek_tensor *tensor)
{
    return tensor->ndim >= 2 && ek_is_dense_along(tensor, 1);
}

ek_tensor ek_heads_like(const ek_tensor *x, int64_t width)
{
    ek_tensor like = {.dtype = x->dtype, .ndim = 4};
    memcpy(like.shape, x->shape, 3 * sizeof *like.shape);
    like.shape[3] = width;
    ek_strides_along(4, like.shape, 3, like.stride);
    if (x->stride[1] < x->stride[2] && x->shape[2] > 1) {
        like.stride[1] = width;
        like.stride[2] = width * x->shape[1];
    }
    return like;
}
