/* slice.c: parts along one dimension, and their adjoint. */
#include "ops/ops.h"

typedef struct slice_attributes {
    ek_shape shape; /* of the whole */
    int dim;
    bool drop; /* one element, whose dimension disappeared */
    int64_t start, step;
} slice_attributes;

static int slice_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const slice_attributes *a = ek_node_attributes(node);
    ek_tensor *g = a->drop ? ek_unsqueeze(gradients[0], a->dim) : gradients[0];
    results[0] = ek_slice_gradient(g, &a->shape, a->dim, a->start, a->step);
    return 0;
}

static const ek_operation slice_operation = {.name = "slice", .backward = slice_backward};
static const ek_operation select_operation = {.name = "select", .backward = slice_backward};

/* Checked: 0 <= start, and start + (length - 1) step is inside. */
static ek_tensor *slice(ek_tensor *x, int dim, int64_t start, int64_t length, int64_t step)
{
    ek_tensor part;
    slice_attributes attributes = {ek_tensor_shape(x), dim, false, start, step};
    /* The stride of a single element counts for nothing: it stays, and doesn't grow from slice to
     * slice. */
    ek_borrow_slice(&part, x, dim, length > 0 ? start : 0, length, length > 1 ? step : 1);
    return EK_RECORD(ek_tensor_view(x, part.ndim, part.shape, part.stride, part.offset),
                     &slice_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

static int64_t clamped(int64_t position, int64_t size)
{
    if (position < 0)
        position += size;
    return position < 0 ? 0 : position > size ? size : position;
}

ek_tensor *ek_slice(ek_tensor *x, int dim, int64_t start, int64_t end, int64_t step)
{
    if (!ek_given("slice", "x", x) || (dim = ek_dimension("slice", x, dim)) < 0)
        return NULL;
    if (step <= 0) {
        EK_FAIL(EK_E_INVALID, "slice: step is %lld; it must be positive", (long long)step);
        return NULL;
    }
    start = clamped(start, x->shape[dim]);
    end = clamped(end, x->shape[dim]);
    step = step > x->shape[dim] ? x->shape[dim] + 1 : step; /* strides stay small */
    return slice(x, dim, start, end > start ? (end - start - 1) / step + 1 : 0, step);
}

ek_tensor *ek_narrow(ek_tensor *x, int dim, int64_t start, int64_t length)
{
    if (!ek_given("narrow", "x", x) || (dim = ek_dimension("narrow", x, dim)) < 0)
        return NULL;
    int64_t size = x->shape[dim], first = start < 0 ? start + size : start;
    if (first < 0 || length < 0 || first > size || length > size - first) {
        EK_FAIL(EK_E_INVALID, "narrow: %lld elements from %lld on are not in dimension %d of %lld",
                (long long)length, (long long)start, dim, (long long)size);
        return NULL;
    }
    return slice(x, dim, first, length, 1);
}

ek_tensor *ek_select(ek_tensor *x, int dim, int64_t index)
{
    if (!ek_given("select", "x", x) || (dim = ek_dimension("select", x, dim)) < 0)
        return NULL;
    int64_t size = x->shape[dim], first = index < 0 ? index + size : index;
    if (first < 0 || first >= size) {
        EK_FAIL(EK_E_INVALID, "select: index %lld is not in dimension %d of %lld", (long long)index,
                dim, (long long)size);
        return NULL;
    }
    slice_attributes attributes = {ek_tensor_shape(x), dim, true, first, 1};
    int64_t shape[EK_MAX_DIMS], stride[EK_MAX_DIMS];
    for (int i = 0; i < x->ndim - 1; i++) {
        shape[i] = x->shape[i + (i >= dim)];
        stride[i] = x->stride[i + (i >= dim)];
    }
    return EK_RECORD(ek_tensor_view(x, x->ndim - 1, shape, stride,
                                    x->offset + first * x->stride[dim]),
                     &select_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

/* ---- the adjoint: zeros with x in its place; its own gradient is the slice again ---- */

typedef struct place_attributes {
    int dim;
    int64_t start, length, step;
} place_attributes;

static int slice_gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const place_attributes *a = ek_node_attributes(node);
    results[0] = slice(gradients[0], a->dim, a->start, a->length, a->step);
    return 0;
}

static const ek_operation slice_gradient_operation = {.name = "slice_gradient",
                                                      .backward = slice_gradient_backward};

ek_tensor *ek_slice_gradient(ek_tensor *x, const ek_shape *shape, int dim, int64_t start,
                             int64_t step)
{
    if (!ek_given("slice_gradient", "x", x))
        return NULL;
    ek_dev *dev = x->storage->dev;
    const ek_kernels *kernels = dev->backend->kernels;
    bool channels_last = x->ndim == 4 && !ek_tensor_is_contiguous(x, EK_CONTIGUOUS) &&
                         ek_tensor_is_contiguous(x, EK_CHANNELS_LAST);
    ek_tensor *y =
        ek_tensor_new(dev, x->dtype, shape, channels_last ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
    if (!y || kernels->fill(dev, y, 0) < 0)
        return NULL;
    place_attributes attributes = {dim, start, x->shape[dim], step};
    ek_tensor part;
    ek_borrow_slice(&part, y, dim, attributes.length > 0 ? start : 0, attributes.length, step);
    if (kernels->copy(dev, &part, x) < 0)
        return NULL;
    return EK_RECORD(y, &slice_gradient_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}
