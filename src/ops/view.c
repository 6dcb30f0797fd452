/* view.c: views, which show a tensor's memory, or part of it, with another geometry. They share its
 * storage and version. */
#include <string.h>

#include "ops/attributes.h"
#include "ops/ops.h"

/* ---- reshape, squeeze, flatten, ...: the gradient is reshaped back ---- */

EK_BACKWARD(reshape, ek_shape, ek_reshape(g, *a))
EK_OPERATION(reshape, "reshape", reshape_backward);

static ek_tensor *view_as(ek_tensor *x, const ek_shape *shape, const int64_t *stride)
{
    ek_shape before = ek_tensor_shape(x);
    return EK_RECORD(ek_tensor_view(x, shape->ndim, shape->dims, stride, x->offset),
                     &reshape_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}

/* Finds strides with which a view of x has `shape` and x's row-major order; returns false if there
 * are none. Neighbouring dimensions of x that are contiguous to each other form a run. Runs are cut
 * into the dimensions of `shape`, from the last to the first. */
static bool view_strides(const ek_tensor *x, const ek_shape *shape, int64_t *stride)
{
    int64_t run = 1, cut = 1, base = x->ndim > 0 ? x->stride[x->ndim - 1] : 1;
    int to = shape->ndim - 1;
    if (x->ndim == 0 || ek_count(x) == 0) {
        ek_strides_of(shape, EK_CONTIGUOUS, stride);
        return true;
    }
    for (int from = x->ndim - 1; from >= 0; from--) {
        run *= x->shape[from];
        if (from > 0 && (x->shape[from - 1] == 1 || x->stride[from - 1] == run * base))
            continue;
        while (to >= 0 && (cut < run || shape->dims[to] == 1)) {
            stride[to] = cut * base;
            cut *= shape->dims[to--];
        }
        if (cut != run)
            return false;
        if (from > 0) {
            base = x->stride[from - 1];
            run = cut = 1;
        }
    }
    return true;
}

/* Checks a shape, and replaces -1 by the size that fits. */
static int view_complete_shape(const ek_tensor *x, ek_shape *shape)
{
    int64_t count = ek_count(x), known = 1;
    int open = -1;
    bool has_zero = false;
    ek_shape own = ek_tensor_shape(x);
    if (shape->ndim < 0 || shape->ndim > EK_MAX_DIMS)
        return EK_FAIL(EK_E_SHAPE, "reshape: %d dimensions; there can be 0 to %d", shape->ndim,
                       EK_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] < -1 || (shape->dims[i] == -1 && open >= 0))
            return EK_FAIL(EK_E_SHAPE, "reshape: %s; one size may be -1, none below",
                           EK_SHAPE_TEXT(shape));
        if (shape->dims[i] == -1)
            open = i;
        else if (shape->dims[i] == 0)
            has_zero = true;
        else if (__builtin_mul_overflow(known, shape->dims[i], &known))
            known = INT64_MAX; /* more elements than any tensor has */
    }
    if (has_zero && known < INT64_MAX)
        known = 0;
    if (open >= 0 && known > 0 && count % known == 0)
        shape->dims[open] = count / known;
    else if (open >= 0 || known != count)
        return EK_FAIL(EK_E_SHAPE, "reshape: %s (%lld elements) does not fit %s",
                       EK_SHAPE_TEXT(&own), (long long)count, EK_SHAPE_TEXT(shape));
    return 0;
}

ek_tensor *ek_reshape(ek_tensor *x, ek_shape shape)
{
    int64_t stride[EK_MAX_DIMS];
    if (!ek_given("reshape", "x", x) || view_complete_shape(x, &shape) < 0)
        return NULL;
    if (!view_strides(x, &shape, stride)) {
        x = ek_contiguous(x, EK_CONTIGUOUS);
        if (!x)
            return NULL;
        ek_strides_of(&shape, EK_CONTIGUOUS, stride);
    }
    return view_as(x, &shape, stride);
}

ek_tensor *ek_f_flatten(ek_tensor *x, int start_dim, int end_dim)
{
    if (!ek_given("flatten", "x", x))
        return NULL;
    if (x->ndim == 0)
        return ek_reshape(x, EK_SHAPE(1));
    int start = ek_dimension("flatten", x, start_dim), end = ek_dimension("flatten", x, end_dim);
    if (start < 0 || end < 0)
        return NULL;
    if (start > end)
        return EK_REFUSE(EK_E_SHAPE, "flatten: start_dim %d comes after end_dim %d", start_dim,
                         end_dim);
    ek_shape shape = {.ndim = x->ndim - (end - start)};
    for (int i = 0; i < shape.ndim; i++)
        shape.dims[i] = i <= start ? x->shape[i] : x->shape[i + (end - start)];
    for (int i = start + 1; i <= end; i++)
        shape.dims[start] *= x->shape[i];
    return ek_reshape(x, shape);
}

ek_tensor *ek_unsqueeze(ek_tensor *x, int dim)
{
    if (!ek_given("unsqueeze", "x", x))
        return NULL;
    if (dim < -x->ndim - 1 || dim > x->ndim || x->ndim == EK_MAX_DIMS)
        return EK_REFUSE(
            EK_E_SHAPE,
            "unsqueeze: dimension %d is not in [%d, %d], or the result has more than %d", dim,
            -x->ndim - 1, x->ndim, EK_MAX_DIMS);
    if (dim < 0)
        dim += x->ndim + 1;
    ek_shape shape = {.ndim = x->ndim + 1};
    int64_t stride[EK_MAX_DIMS];
    for (int i = 0; i < shape.ndim; i++) {
        int from = i - (i > dim);
        shape.dims[i] = i == dim ? 1 : x->shape[from];
        if (i == dim)
            stride[i] = from < x->ndim ? x->shape[from] * x->stride[from] : 1;
        else
            stride[i] = x->stride[from];
    }
    return view_as(x, &shape, stride);
}

/* The geometry of x without a dimension. */
static ek_shape view_shape_without(const ek_tensor *x, int dim, int64_t *stride)
{
    ek_shape shape = {.ndim = x->ndim - 1};
    for (int i = 0; i < shape.ndim; i++) {
        shape.dims[i] = x->shape[i + (i >= dim)];
        stride[i] = x->stride[i + (i >= dim)];
    }
    return shape;
}

ek_tensor *ek_squeeze(ek_tensor *x, int dim)
{
    if (ek_is_scalar_dim(x, dim))
        return ek_itself(x);
    if (!ek_given("squeeze", "x", x) || (dim = ek_dimension("squeeze", x, dim)) < 0)
        return NULL;
    if (x->shape[dim] != 1)
        return ek_itself(x);
    int64_t stride[EK_MAX_DIMS];
    ek_shape shape = view_shape_without(x, dim, stride);
    return view_as(x, &shape, stride);
}

/* ---- permute: the gradient is permuted back ---- */

static int permute_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_shape *order = ek_node_attributes(node);
    ek_shape inverse = {.ndim = order->ndim};
    for (int i = 0; i < order->ndim; i++)
        inverse.dims[order->dims[i]] = i;
    results[0] = ek_permute(gradients[0], inverse);
    return 0;
}

EK_OPERATION(permute, "permute", permute_backward);

ek_tensor *ek_permute(ek_tensor *x, ek_shape order)
{
    if (!ek_given("permute", "x", x))
        return NULL;
    int64_t shape[EK_MAX_DIMS], stride[EK_MAX_DIMS];
    unsigned seen = 0;
    if (order.ndim != x->ndim)
        return EK_REFUSE(EK_E_SHAPE,
                         "permute: order %s has %d entries and the tensor %d dimensions",
                         EK_SHAPE_TEXT(&order), order.ndim, x->ndim);
    for (int i = 0; i < x->ndim; i++) {
        int64_t dim = order.dims[i] < 0 ? order.dims[i] + x->ndim : order.dims[i];
        if (dim < 0 || dim >= x->ndim || seen >> dim & 1)
            return EK_REFUSE(EK_E_SHAPE, "permute: order %s must name each of %d dimensions once",
                             EK_SHAPE_TEXT(&order), x->ndim);
        seen |= 1u << dim;
        order.dims[i] = dim;
        shape[i] = x->shape[dim];
        stride[i] = x->stride[dim];
    }
    return EK_RECORD(ek_tensor_view(x, x->ndim, shape, stride, x->offset), &permute_operation,
                     EK_INPUTS(x), EK_ATTRIBUTES(order));
}

ek_tensor *ek_transpose(ek_tensor *x, int dim0, int dim1)
{
    if (!ek_given("transpose", "x", x))
        return NULL;
    if (ek_is_scalar_dim(x, dim0) && ek_is_scalar_dim(x, dim1))
        return ek_permute(x, ek_scalar_shape());
    dim0 = ek_dimension("transpose", x, dim0);
    dim1 = dim0 < 0 ? -1 : ek_dimension("transpose", x, dim1);
    if (dim1 < 0)
        return NULL;
    ek_shape order = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++)
        order.dims[i] = i == dim0 ? dim1 : i == dim1 ? dim0 : i;
    return ek_permute(x, order);
}

/* ---- expand: the gradient is summed ---- */

EK_BACKWARD(expand, ek_shape, ek_sum_to(g, *a))
EK_OPERATION(expand, "expand", expand_backward);

ek_tensor *ek_expand(ek_tensor *x, ek_shape shape)
{
    if (!ek_given("expand", "x", x))
        return NULL;
    ek_shape before = ek_tensor_shape(x);
    bool fits = shape.ndim >= x->ndim && shape.ndim <= EK_MAX_DIMS;
    int lead = fits ? shape.ndim - x->ndim : 0;
    for (int i = 0; fits && i < shape.ndim; i++) {
        if (i >= lead && shape.dims[i] == -1)
            shape.dims[i] = x->shape[i - lead];
        fits = shape.dims[i] >= 0 &&
               (i < lead || x->shape[i - lead] == 1 || x->shape[i - lead] == shape.dims[i]);
    }
    if (!fits)
        return EK_REFUSE(EK_E_SHAPE, "expand: shape %s does not broadcast to %s",
                         EK_SHAPE_TEXT(&before), EK_SHAPE_TEXT(&shape));
    ek_tensor expanded;
    ek_borrow_expanded(&expanded, x, &shape);
    return EK_RECORD(ek_tensor_view(x, shape.ndim, expanded.shape, expanded.stride,
                                    expanded.offset),
                     &expand_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}

/* ---- parts along one dimension ---- */

static int slice_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_slice_attributes *a = ek_node_attributes(node);
    ek_tensor *g = a->drop ? ek_unsqueeze(gradients[0], a->dim) : gradients[0];
    results[0] = ek_slice_gradient(g, &a->shape, a->dim, a->start, a->step);
    return 0;
}

static const ek_operation slice_operation = {.name = "slice",
                                             .backward = slice_backward,
                                             .slices = true};
static const ek_operation select_operation = {.name = "select",
                                              .backward = slice_backward,
                                              .slices = true};

/* Returns a slice. The caller has checked that 0 <= start, and that start + (length - 1) * step is
 * inside. */
static ek_tensor *view_slice(ek_tensor *x, int dim, int64_t start, int64_t length, int64_t step)
{
    ek_tensor part;
    ek_slice_attributes attributes = {ek_tensor_shape(x), dim, false, start, step};
    ek_borrow_slice(&part, x, dim, start, length, step);
    return EK_RECORD(ek_tensor_view(x, part.ndim, part.shape, part.stride, part.offset),
                     &slice_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

static int64_t view_clamped(int64_t position, int64_t size)
{
    if (position < 0)
        position += size;
    return position < 0 ? 0 : position > size ? size : position;
}

ek_tensor *ek_slice(ek_tensor *x, int dim, int64_t start, int64_t end, int64_t step)
{
    if (!ek_given("slice", "x", x) || (dim = ek_dimension("slice", x, dim)) < 0)
        return NULL;
    if (step <= 0)
        return EK_REFUSE(EK_E_INVALID, "slice: step is %lld; it must be positive", (long long)step);
    start = view_clamped(start, x->shape[dim]);
    end = view_clamped(end, x->shape[dim]);
    step = step > x->shape[dim] ? x->shape[dim] + 1 : step; /* strides stay small */
    return view_slice(x, dim, start, end > start ? (end - start - 1) / step + 1 : 0, step);
}

ek_tensor *ek_narrow(ek_tensor *x, int dim, int64_t start, int64_t length)
{
    if (!ek_given("narrow", "x", x) || (dim = ek_dimension("narrow", x, dim)) < 0)
        return NULL;
    int64_t size = x->shape[dim], first = start < 0 ? start + size : start;
    if (first < 0 || length < 0 || first > size || length > size - first)
        return EK_REFUSE(EK_E_INVALID,
                         "narrow: %lld elements from %lld on are not in dimension %d of %lld",
                         (long long)length, (long long)start, dim, (long long)size);
    return view_slice(x, dim, first, length, 1);
}

ek_tensor *ek_select(ek_tensor *x, int dim, int64_t index)
{
    if (!ek_given("select", "x", x) || (dim = ek_dimension("select", x, dim)) < 0)
        return NULL;
    int64_t size = x->shape[dim], first = index < 0 ? index + size : index;
    if (first < 0 || first >= size)
        return EK_REFUSE(EK_E_INVALID, "select: index %lld is not in dimension %d of %lld",
                         (long long)index, dim, (long long)size);
    ek_slice_attributes attributes = {ek_tensor_shape(x), dim, true, first, 1};
    int64_t stride[EK_MAX_DIMS], offset = x->offset + first * x->stride[dim];
    ek_shape shape = view_shape_without(x, dim, stride);
    return EK_RECORD(ek_tensor_view(x, shape.ndim, shape.dims, stride, offset), &select_operation,
                     EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

/* ---- the adjoint of slice: zeros with x in its place. Its gradient is the slice again ---- */

typedef struct place_attributes {
    int dim;
    int64_t start, length, step;
} place_attributes;

EK_BACKWARD(slice_gradient, place_attributes, view_slice(g, a->dim, a->start, a->length, a->step))
EK_OPERATION(slice_gradient, "slice_gradient", slice_gradient_backward);

ek_tensor *ek_slice_gradient(ek_tensor *x, const ek_shape *shape, int dim, int64_t start,
                             int64_t step)
{
    if (!ek_given("slice_gradient", "x", x))
        return NULL;
    ek_dev *dev = x->storage->dev;
    const ek_kernels *kernels = dev->backend->kernels;
    ek_tensor *y = ek_fold_whole(x, shape);
    if (!y || kernels->fill(dev, y, 0) < 0)
        return NULL;
    place_attributes attributes = {dim, start, x->shape[dim], step};
    ek_tensor part;
    ek_borrow_slice(&part, y, dim, start, attributes.length, step);
    if (kernels->copy(dev, &part, x) < 0)
        return NULL;
    return EK_RECORD(y, &slice_gradient_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

/* ---- another tensor in place of a part ---- */

static int slice_scatter_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
EK_OPERATION(slice_scatter, "slice_scatter", slice_scatter_backward);

static ek_tensor *view_scatter(ek_tensor *x, ek_tensor *source, const place_attributes *a)
{
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype), part;
    if (!source || !y || ek_transfer(y, x) < 0)
        return NULL;
    ek_borrow_slice(&part, y, a->dim, a->start, a->length, a->step);
    if (ek_kernels_of(y)->copy(ek_tensor_dev(y), &part, source) < 0)
        return NULL;
    return EK_RECORD(y, &slice_scatter_operation, EK_INPUTS(x, source), EK_ATTRIBUTES(*a));
}

static int slice_scatter_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const place_attributes *a = ek_node_attributes(node);
    ek_tensor *g = gradients[0];
    ek_shape shape = ek_tensor_shape(g);
    shape.dims[a->dim] = a->length;
    if (ek_node_needs(node, 0))
        results[0] = view_scatter(g, ek_expand(ek_number_like(g, 0), shape), a);
    if (ek_node_needs(node, 1))
        results[1] = view_slice(g, a->dim, a->start, a->length, a->step);
    return 0;
}

ek_tensor *ek_slice_scatter(ek_tensor *x, ek_tensor *source, int dim, int64_t start, int64_t end,
                            int64_t step)
{
    if (!ek_given("slice_scatter", "x", x) || !ek_given("slice_scatter", "source", source) ||
        !ek_alike("slice_scatter", x, source) || (dim = ek_dimension("slice_scatter", x, dim)) < 0)
        return NULL;
    if (step <= 0)
        return EK_REFUSE(EK_E_INVALID, "slice_scatter: step is %lld; it must be positive",
                         (long long)step);
    start = view_clamped(start, x->shape[dim]);
    end = view_clamped(end, x->shape[dim]);
    place_attributes attributes = {dim, start, end > start ? (end - start - 1) / step + 1 : 0,
                                   step};
    ek_shape shape = ek_tensor_shape(x);
    shape.dims[dim] = attributes.length;
    if (!ek_of_shape("slice_scatter", "source", source, &shape))
        return NULL;
    return view_scatter(x, source, &attributes);
}

ek_tensor *ek_select_scatter(ek_tensor *x, ek_tensor *source, int dim, int64_t index)
{
    if (!ek_given("select_scatter", "x", x) || !ek_given("select_scatter", "source", source) ||
        !ek_alike("select_scatter", x, source) ||
        (dim = ek_dimension("select_scatter", x, dim)) < 0)
        return NULL;
    int64_t size = x->shape[dim], first = index < 0 ? index + size : index, stride[EK_MAX_DIMS];
    if (first < 0 || first >= size)
        return EK_REFUSE(EK_E_INVALID, "select_scatter: index %lld is not in dimension %d of %lld",
                         (long long)index, dim, (long long)size);
    ek_shape shape = view_shape_without(x, dim, stride);
    if (!ek_of_shape("select_scatter", "source", source, &shape))
        return NULL;
    return view_scatter(x, ek_unsqueeze(source, dim), &(place_attributes){dim, first, 1, 1});
}
