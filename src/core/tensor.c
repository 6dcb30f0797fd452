/* tensor.c: handles of tensors and their geometry. */
#include "core/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cells.h"

/* ---- geometry ---- */

/* Writes to `order` the dimensions whose size isn't 1, by descending stride. Dimensions of equal
 * stride keep their order. Returns how many dimensions were written. */
static int tensor_dims_by_stride(const ek_tensor *tensor, int *order)
{
    int count = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 1)
            continue;
        int at = count++;
        while (at > 0 && tensor->stride[order[at - 1]] < tensor->stride[i]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    return count;
}

/* Returns true if the strides are those of EK_CONTIGUOUS. */
static bool tensor_is_row_major(const ek_tensor *tensor)
{
    int64_t step = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] == 1)
            continue;
        if (tensor->stride[i] != step)
            return false;
        step *= tensor->shape[i];
    }
    return true;
}

bool ek_is_dense(const ek_tensor *tensor)
{
    if (tensor_is_row_major(tensor))
        return true;
    int order[EK_MAX_DIMS];
    int64_t step = 1;
    for (int i = tensor_dims_by_stride(tensor, order) - 1; i >= 0; i--) {
        if (tensor->stride[order[i]] != step)
            return ek_count(tensor) == 0;
        step *= tensor->shape[order[i]];
    }
    return true;
}

bool ek_same_shape(const ek_tensor *a, const ek_tensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

bool ek_same_layout(const ek_tensor *a, const ek_tensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] != 1 && a->stride[i] != b->stride[i]))
            return false;
    return true;
}

bool ek_repeats(const ek_tensor *tensor)
{
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->stride[i] == 0 && tensor->shape[i] > 1)
            return true;
    return false;
}

bool ek_tensor_is_contiguous(const ek_tensor *tensor, ek_memory_format format)
{
    if (!tensor || ek_check_alive("tensor_is_contiguous", "the tensor", tensor) < 0)
        return false;
    ek_shape shape = ek_tensor_shape(tensor);
    int64_t strides[EK_MAX_DIMS];
    ek_strides_of(&shape, format, strides);
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] != 1 && tensor->stride[i] != strides[i])
            return ek_count(tensor) == 0;
    return true;
}

/* ---- handles ---- */

/* What a retired tensor has: a storage that cannot be held, on no real device. */
static ek_dev retired_dev = {.name = "no device"};
static ek_residence retired_residence;
static ek_storage retired_storage = {.dev = &retired_dev, .residence = &retired_residence};
static ek_write_count retired_version;

static void tensor_retire(ek_tensor *tensor)
{
    memset(&tensor->storage, 0, sizeof *tensor - offsetof(ek_tensor, storage));
    tensor->storage = &retired_storage;
    tensor->version = &retired_version;
    ek_object_retire(&tensor->object);
    ek_retire_cell(tensor, sizeof *tensor, "tensor");
}

static void tensor_destroy(ek_object *object)
{
    ek_tensor *tensor = (ek_tensor *)object;
    ek_object_release(tensor->history);
    ek_object_release(tensor->grad);
    ek_object_release(tensor->grad_buffer);
    ek_object_release(tensor->shards);
    ek_object_release(tensor->grad_hook);
    ek_object_release(tensor->hooks);
    ek_object_release(tensor->version);
    ek_object_release(tensor->storage);
    if (ek_checks_for(EK_CHECK_LIFETIMES))
        tensor_retire(tensor);
    else
        ek_cell_free(tensor, sizeof *tensor);
}

const ek_tensor *ek_object_tensor(const void *object)
{
    return ((const ek_object *)object)->destroy == tensor_destroy ? object : NULL;
}

int ek_tensor_hold_resident(const ek_tensor *tensor)
{
    return ek_is_retired(tensor) ? ek_retired_fail("a tensor", "an operand", tensor)
                                 : ek_storage_hold(tensor->storage);
}

void ek_tensor_await(const ek_tensor *tensor)
{
    ek_arrival *arrival = atomic_load(&tensor->version->arrival);
    if (arrival && !atomic_load(&arrival->awaited)) {
        ek_dev_wait_event(arrival->dev, EK_STREAM_COMPUTE, arrival->event);
        atomic_store(&arrival->awaited, true);
    }
    atomic_store(&tensor->version->arrival, NULL);
}

/* Checks that no size is negative and that the number of elements is at most INT64_MAX / 16, so
 * that the elements' bytes can be counted in an int64_t. A view that repeats elements may have more
 * elements than any memory holds. */
static int tensor_check_sizes(int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        int64_t size = shape[i] ? shape[i] : 1;
        if (size > 0 && !__builtin_mul_overflow(count, size, &count) && count <= INT64_MAX / 16)
            continue;
        char text[160];
        ek_shape sizes = {.ndim = ndim};
        memcpy(sizes.dims, shape, (size_t)ndim * sizeof *shape);
        return EK_FAIL(EK_E_SHAPE, "shape %s is negative or too large in dimension %d",
                       ek_shape_text(&sizes, text), i);
    }
    return 0;
}

/* Makes a handle without storage and version, in no scope; returns one reference. */
static ek_tensor *tensor_handle_new(ek_dtype dtype, int ndim, const int64_t *shape,
                                    const int64_t *stride, int64_t offset)
{
    ek_tensor *tensor = tensor_check_sizes(ndim, shape) < 0 ? NULL : ek_cell_new(sizeof *tensor);
    if (!tensor)
        return NULL;
    ek_object_init(&tensor->object, tensor_destroy);
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    tensor->offset = offset;
    for (int i = 0; i < ndim; i++) {
        tensor->shape[i] = shape[i];
        tensor->stride[i] = stride[i];
    }
    return tensor;
}

void ek_tensors_release(ek_tensor **tensors, int count)
{
    for (int i = 0; tensors && i < count; i++)
        ek_object_release(tensors[i]);
    free(tensors);
}

ek_tensor *ek_tensor_new_strided(ek_dev *dev, ek_dtype dtype, const ek_shape *shape,
                                 const int64_t *strides)
{
    ek_tensor *tensor = tensor_handle_new(dtype, shape->ndim, shape->dims, strides, 0);
    if (!tensor)
        return NULL;
    tensor->storage = ek_storage_new(dev, (size_t)ek_shape_count(shape) * ek_dtype_size(dtype));
    tensor->version = tensor->storage ? ek_version_new() : NULL;
    if (!tensor->version) {
        ek_object_release(tensor);
        return NULL;
    }
    return ek_scope_adopt(tensor);
}

ek_tensor *ek_tensor_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape,
                         ek_memory_format format)
{
    int64_t strides[EK_MAX_DIMS];
    ek_strides_of(shape, format, strides);
    return ek_tensor_new_strided(dev, dtype, shape, strides);
}

ek_tensor *ek_tensor_like_on(const ek_tensor *like, ek_dtype dtype, ek_dev *dev)
{
    ek_shape shape = ek_tensor_shape(like);
    if (ek_is_dense(like))
        return ek_tensor_new_strided(dev, dtype, &shape, like->stride);
    int64_t strides[EK_MAX_DIMS] = {0};
    int order[EK_MAX_DIMS];
    int64_t step = 1;
    for (int i = tensor_dims_by_stride(like, order) - 1; i >= 0; i--) {
        strides[order[i]] = step;
        step *= like->shape[order[i]] > 0 ? like->shape[order[i]] : 1;
    }
    return ek_tensor_new_strided(dev, dtype, &shape, strides);
}

ek_tensor *ek_tensor_like_dtype(const ek_tensor *like, ek_dtype dtype)
{
    return ek_tensor_like_on(like, dtype, like->storage->dev);
}

ek_tensor *ek_tensor_like(const ek_tensor *like)
{
    return ek_tensor_like_dtype(like, like->dtype);
}

/* Makes a view in no scope; returns one reference. */
static ek_tensor *tensor_view_new(const ek_tensor *tensor, int ndim, const int64_t *shape,
                                  const int64_t *stride, int64_t offset)
{
    ek_tensor *view = tensor_handle_new(tensor->dtype, ndim, shape, stride, offset);
    if (!view)
        return NULL;
    view->is_view = true;
    view->storage = ek_object_retain(tensor->storage);
    view->version = ek_object_retain(tensor->version);
    return view;
}

ek_tensor *ek_tensor_view(const ek_tensor *tensor, int ndim, const int64_t *shape,
                          const int64_t *stride, int64_t offset)
{
    return ek_scope_adopt(tensor_view_new(tensor, ndim, shape, stride, offset));
}

ek_tensor *ek_tensor_in_memory_order(const ek_tensor *tensor)
{
    int64_t shape[EK_MAX_DIMS], stride[EK_MAX_DIMS];
    int order[EK_MAX_DIMS], ndim = tensor_dims_by_stride(tensor, order);
    for (int i = 0; i < ndim; i++) {
        shape[i] = tensor->shape[order[i]];
        stride[i] = tensor->stride[order[i]];
    }
    return ek_tensor_view(tensor, ndim, shape, stride, tensor->offset);
}

ek_tensor *ek_tensor_alias_owned(const ek_tensor *tensor)
{
    ek_tensor *alias =
        tensor_view_new(tensor, tensor->ndim, tensor->shape, tensor->stride, tensor->offset);
    if (alias)
        alias->is_view = tensor->is_view;
    return alias;
}

ek_tensor *ek_tensor_alias(const ek_tensor *tensor)
{
    return ek_scope_adopt(ek_tensor_alias_owned(tensor));
}

ek_tensor *ek_tensor_member(ek_storage *storage, ek_dtype dtype, const ek_shape *shape,
                            const int64_t *strides, int64_t offset)
{
    ek_tensor *member = tensor_handle_new(dtype, shape->ndim, shape->dims, strides, offset);
    if (!member)
        return NULL;
    member->storage = ek_object_retain(storage);
    member->version = ek_version_new();
    if (!member->version) {
        ek_object_release(member);
        return NULL;
    }
    return ek_scope_adopt(member);
}

void ek_tensor_rebind(ek_tensor *tensor, const ek_tensor *source)
{
    ek_storage *storage = ek_object_retain(source->storage);
    ek_write_count *version = ek_object_retain(source->version);
    ek_object_release(tensor->storage);
    ek_object_release(tensor->version);
    tensor->storage = storage;
    tensor->version = version;
    tensor->dtype = source->dtype;
    tensor->offset = source->offset;
    memcpy(tensor->stride, source->stride, sizeof tensor->stride);
}

/* ---- stack views ---- */

void ek_borrow(ek_tensor *view, const ek_tensor *x)
{
    memset(view, 0, sizeof *view);
    view->dtype = x->dtype;
    view->ndim = x->ndim;
    memcpy(view->shape, x->shape, sizeof view->shape);
    memcpy(view->stride, x->stride, sizeof view->stride);
    view->offset = x->offset;
    view->storage = x->storage;
    view->version = x->version;
}

void ek_borrow_slice(ek_tensor *view, const ek_tensor *x, int dim, int64_t start, int64_t length,
                     int64_t step)
{
    ek_borrow(view, x);
    view->offset += length > 0 ? start * x->stride[dim] : 0;
    view->shape[dim] = length;
    view->stride[dim] *= length > 1 ? step : 1;
}

/* ---- public ---- */

ek_tensor *ek_empty_with(ek_tensor_options options)
{
    if (options.shape.ndim < 0 || options.shape.ndim > EK_MAX_DIMS)
        return EK_FAIL_NULL(EK_E_SHAPE, "a tensor of %d dimensions; between 0 and %d are possible",
                            options.shape.ndim, EK_MAX_DIMS);
    if ((unsigned)options.dtype >= EK_DTYPES)
        return EK_FAIL_NULL(EK_E_DTYPE, "%d is no dtype", (int)options.dtype);
    if (options.requires_grad && !ek_dtype_is_floating(options.dtype))
        return EK_FAIL_NULL(EK_E_DTYPE,
                            "a tensor of %s cannot require a gradient; f32, f64, bf16 and f16 can",
                            ek_dtype_name(options.dtype));
    ek_dev *dev = ek_dev_get(options.device);
    if (!dev)
        return NULL;
    ek_tensor *tensor = ek_tensor_new(dev, options.dtype, &options.shape, options.format);
    if (tensor)
        tensor->requires_grad = options.requires_grad;
    return tensor;
}

/* Returns true if the tensor is neither NULL nor retired. */
static bool tensor_is_usable(const char *what, const ek_tensor *tensor)
{
    return tensor && ek_check_alive(what, "the tensor", tensor) == 0;
}

ek_dtype ek_tensor_dtype(const ek_tensor *tensor)
{
    return tensor_is_usable("tensor_dtype", tensor) ? tensor->dtype : EK_F32;
}

ek_device ek_tensor_device(const ek_tensor *tensor)
{
    return tensor_is_usable("tensor_device", tensor) ? tensor->storage->dev->id : ek_cpu();
}

ek_shape ek_tensor_shape(const ek_tensor *tensor)
{
    ek_shape shape = {0};
    if (tensor_is_usable("tensor_shape", tensor)) {
        shape.ndim = tensor->ndim;
        memcpy(shape.dims, tensor->shape, sizeof shape.dims);
    }
    return shape;
}

ek_shape ek_tensor_strides(const ek_tensor *tensor)
{
    ek_shape strides = {0};
    if (tensor_is_usable("tensor_strides", tensor)) {
        strides.ndim = tensor->ndim;
        memcpy(strides.dims, tensor->stride, sizeof strides.dims);
    }
    return strides;
}

int ek_tensor_ndim(const ek_tensor *tensor)
{
    return tensor_is_usable("tensor_ndim", tensor) ? tensor->ndim : 0;
}

int64_t ek_tensor_size(const ek_tensor *tensor, int dim)
{
    if (!tensor_is_usable("tensor_size", tensor))
        return ek_error_pending();
    int index = dim < 0 ? dim + tensor->ndim : dim;
    if (index < 0 || index >= tensor->ndim) {
        char text[200];
        return EK_FAIL(EK_E_SHAPE, "%s has no dimension %d", ek_tensor_text(tensor, text), dim);
    }
    return tensor->shape[index];
}

int64_t ek_tensor_count(const ek_tensor *tensor)
{
    return tensor_is_usable("tensor_count", tensor) ? ek_count(tensor) : 0;
}

void *ek_tensor_data(const ek_tensor *tensor)
{
    return tensor_is_usable("tensor_data", tensor) && ek_dev_is_host(tensor->storage->dev) &&
                   ek_tensor_hold(tensor) >= 0 && ek_tensor_expose(tensor) >= 0
               ? ek_tensor_address(tensor)
               : NULL;
}

char *ek_tensor_text(const ek_tensor *tensor, char text[200])
{
    char shape_text[160];
    if (!tensor || ek_tensor_is_retired(tensor)) {
        snprintf(text, 200, "%s", tensor ? "a released tensor" : "NULL");
        return text;
    }
    ek_shape shape = ek_tensor_shape(tensor);
    snprintf(text, 200, "%s%s on %s", ek_dtype_name(tensor->dtype),
             ek_shape_text(&shape, shape_text), tensor->storage->dev->name);
    return text;
}
