/* layout.c: memory for copies of tensors, and parts of tensors. */
#include "comm/layout.h"

#include <string.h>

#include "core/object.h"
#include "core/slab.h"

/* Dimensions from the slowest to the fastest in memory; false if zero strides leave that open. */
static bool order_in_memory(const ek_tensor *tensor, int *order)
{
    int count = 0;
    for (int dim = 0; dim < tensor->ndim; dim++) {
        if (tensor->shape[dim] > 1 && tensor->stride[dim] == 0)
            return false;
        int at = count++;
        /* Dimensions of size 1 stay where they are: behind what comes before them. */
        for (; at > 0 && tensor->shape[dim] > 1; at--) {
            if (tensor->shape[order[at - 1]] > 1 &&
                tensor->stride[order[at - 1]] >= tensor->stride[dim])
                break;
            order[at] = order[at - 1];
        }
        order[at] = dim;
    }
    return true;
}

ek_tensor *ek_comm_like(const ek_tensor *like, const ek_shape *shape, ek_dev *dev)
{
    ek_shape own = {.ndim = like->ndim};
    memcpy(own.dims, like->shape, sizeof own.dims);
    if (!shape)
        shape = &own;
    int order[EK_MAX_DIMS];
    if (shape->ndim != like->ndim || !order_in_memory(like, order))
        return ek_tensor_new(dev, like->dtype, shape, EK_CONTIGUOUS);
    int64_t strides[EK_MAX_DIMS], stride = 1;
    for (int i = shape->ndim - 1; i >= 0; i--) {
        strides[order[i]] = stride;
        stride *= shape->dims[order[i]] > 1 ? shape->dims[order[i]] : 1;
    }
    return ek_tensor_new_strided(dev, like->dtype, shape, strides);
}

int ek_comm_room(ek_dev *dev, ek_tensor *const *tensors, int count, ek_tensor **out)
{
    if (count == 1) {
        out[0] = ek_comm_like(tensors[0], NULL, dev);
        return out[0] ? 0 : ek_error_pending();
    }
    ek_slab *slab = ek_slab_new(dev, tensors, count);
    int rc = slab ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc == 0; i++) {
        out[i] = ek_scope_adopt(ek_object_retain(slab->members[i]));
        rc = out[i] ? 0 : ek_error_pending();
    }
    ek_object_release(slab);
    return rc;
}

ek_tensor *ek_comm_part(const ek_tensor *tensor, int dim, int64_t start, int64_t length)
{
    int64_t shape[EK_MAX_DIMS];
    memcpy(shape, tensor->shape, sizeof shape);
    shape[dim] = length;
    return ek_tensor_view(tensor, tensor->ndim, shape, tensor->stride,
                          tensor->offset + start * tensor->stride[dim]);
}

ek_tensor *ek_comm_flat(const ek_tensor *dense, int64_t begin, int64_t end)
{
    ek_shape shape = {1, {end - begin}};
    int64_t stride = 1;
    return ek_tensor_member(dense->storage, dense->dtype, &shape, &stride, dense->offset + begin);
}

int ek_comm_slowest(const ek_tensor *tensor)
{
    int order[EK_MAX_DIMS];
    bool ordered = order_in_memory(tensor, order);
    for (int i = 0; i < tensor->ndim; i++) {
        int dim = ordered ? order[i] : i;
        if (tensor->shape[dim] > 1)
            return dim;
    }
    return -1;
}

bool ek_comm_alike(const ek_tensor *a, const ek_tensor *b)
{
    return ek_same_layout(a, b) && ek_is_dense(a) && ek_is_dense(b);
}

ptrdiff_t ek_comm_step(const ek_tensor *tensor, const ek_tensor *next)
{
    const char *begin = ek_tensor_address(tensor), *end = ek_tensor_address(next);
    ptrdiff_t step = end - begin, gap = step - (ptrdiff_t)ek_comm_nbytes(tensor);
    return tensor->storage == next->storage && gap >= 0 && gap < EK_COMM_ALIGNMENT ? step : -1;
}
