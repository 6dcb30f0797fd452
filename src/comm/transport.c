/* transport.c: moving elements between devices, below the graph. */
#include "comm/transport.h"

#include <string.h>

#include "ops/ops.h"

/* Members of a slab start at multiples of this. */
enum { SLAB_ALIGNMENT = 64 };

/* Dimensions from the slowest to the fastest in memory; false where zero strides leave that open.
 */
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

ek_tensor *ek_comm_part(const ek_tensor *tensor, int dim, int64_t start, int64_t length)
{
    int64_t shape[EK_MAX_DIMS];
    memcpy(shape, tensor->shape, sizeof shape);
    shape[dim] = length;
    return ek_tensor_view(tensor, tensor->ndim, shape, tensor->stride,
                          tensor->offset + start * tensor->stride[dim]);
}

static bool one_block(const ek_tensor *to, const ek_tensor *from)
{
    return ek_same_layout(to, from) && ek_is_dense(to) && ek_is_dense(from);
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

/* What a device can't write in place goes through blocks on both: of limited size. */
static int copy_in_pieces(ek_tensor *to, const ek_tensor *from)
{
    int dim = ek_comm_slowest(to);
    if (one_block(to, from) || dim < 0 || ek_comm_nbytes(to) <= EK_COMM_BUFFER_BYTES) {
        ek_scope scope = ek_scope_begin();
        int rc = ek_transfer(to, from);
        ek_scope_end(&scope);
        return rc;
    }
    int64_t size = to->shape[dim], half = size / 2;
    for (int64_t start = 0; start < size; start += half, half = size - half) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *target = ek_comm_part(to, dim, start, half);
        ek_tensor *source = ek_comm_part(from, dim, start, half);
        int rc = target && source ? copy_in_pieces(target, source) : ek_error_pending();
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return 0;
}

int ek_comm_copy(ek_tensor *to, const ek_tensor *from)
{
    size_t nbytes = ek_comm_nbytes(from);
    if (nbytes == 0)
        return 0;
    if (one_block(to, from))
        return ek_dev_copy(ek_tensor_dev(to), ek_tensor_address(to), ek_tensor_dev(from),
                           ek_tensor_address(from), nbytes);
    ek_dev *dev = ek_tensor_dev(to), *source = ek_tensor_dev(from);
    if (!ek_dev_reaches(dev, source))
        return copy_in_pieces(to, from);
    EK_TRY(ek_dev_order(dev, source));
    EK_TRY(dev->backend->kernels->copy(dev, to, from));
    return ek_dev_order(source, dev);
}

/* True where tensor `next` follows `tensor` in the same storage with nothing but padding between.
 */
static bool follows(const ek_tensor *tensor, const ek_tensor *next)
{
    const char *end = (const char *)ek_tensor_address(tensor) + ek_comm_nbytes(tensor);
    const char *begin = ek_tensor_address(next);
    return tensor->storage == next->storage && begin >= end && begin - end < SLAB_ALIGNMENT;
}

int ek_comm_run_length(ek_tensor *const *to, ek_tensor *const *from, int count)
{
    if (!one_block(to[0], from[0]))
        return 1;
    int length = 1;
    for (; length < count; length++) {
        const ek_tensor *a = to[length - 1], *b = from[length - 1];
        const ek_tensor *next_a = to[length], *next_b = from[length];
        ptrdiff_t step_a = (char *)ek_tensor_address(next_a) - (char *)ek_tensor_address(a);
        ptrdiff_t step_b = (char *)ek_tensor_address(next_b) - (char *)ek_tensor_address(b);
        if (!one_block(next_a, next_b) || !follows(a, next_a) || !follows(b, next_b) ||
            step_a != step_b)
            break;
    }
    return length;
}

int ek_comm_copy_list(ek_tensor *const *to, ek_tensor *const *from, int count)
{
    for (int i = 0; i < count;) {
        int length = ek_comm_run_length(to + i, from + i, count - i);
        if (length == 1) {
            EK_TRY(ek_comm_copy(to[i], from[i]));
        } else {
            EK_TRY(ek_dev_copy(ek_tensor_dev(to[i]), ek_tensor_address(to[i]),
                               ek_tensor_dev(from[i]), ek_tensor_address(from[i]),
                               ek_comm_run_nbytes(to + i, length)));
        }
        i += length;
    }
    return 0;
}

size_t ek_comm_run_nbytes(ek_tensor *const *run, int count)
{
    const char *begin = ek_tensor_address(run[0]), *last = ek_tensor_address(run[count - 1]);
    return (size_t)(last - begin) + ek_comm_nbytes(run[count - 1]);
}

ek_slab *ek_comm_pack(ek_tensor *const *from, ek_tensor *const *to, int count)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_slab *staging = ek_slab_new(ek_tensor_dev(from[0]), to, count);
    ek_memory_set_category(before);
    if (staging && ek_comm_copy_list(staging->members, from, count) < 0) {
        ek_object_release(staging);
        return NULL;
    }
    return staging;
}

int ek_comm_send(ek_tensor *const *to, ek_tensor *const *from, int count)
{
    if (count < 2 || ek_dev_reaches(ek_tensor_dev(to[0]), ek_tensor_dev(from[0])) ||
        ek_comm_run_length(to, from, count) == count)
        return ek_comm_copy_list(to, from, count);
    ek_slab *staging = ek_comm_pack(from, to, count);
    int rc = staging ? ek_comm_copy_list(to, staging->members, count) : ek_error_pending();
    ek_object_release(staging);
    return rc;
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
