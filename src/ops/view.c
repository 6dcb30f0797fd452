/* view.c: other geometries of the same memory. Views share storage and version. */
#include <string.h>

#include "ops/ops.h"

/* ---- reshape and its kin: the gradient is reshaped back ---- */

static int reshape_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = ek_reshape(gradients[0], *(const ek_shape *)ek_node_attributes(node));
    return 0;
}

static const ek_operation reshape_operation = {.name = "reshape", .backward = reshape_backward};

static ek_tensor *view_as(ek_tensor *x, const ek_shape *shape, const int64_t *stride)
{
    ek_shape before = ek_tensor_shape(x);
    return EK_RECORD(ek_tensor_view(x, shape->ndim, shape->dims, stride, x->offset),
                     &reshape_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}

/* Strides that show x's elements in row-major order as `shape`; false if there are none. Runs of
 * x's dimensions that lie one within the other in memory are cut anew, from the last to the first.
 */
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

/* Puts the size that -1 stands for. */
static int complete_shape(const ek_tensor *x, ek_shape *shape)
{
    int64_t count = ek_count(x), known = 1;
    int open = -1;
    bool has_zero = false;
    char text[160], wanted[160];
    ek_shape own = ek_tensor_shape(x);
    if (shape->ndim < 0 || shape->ndim > EK_MAX_DIMS)
        return EK_FAIL(EK_E_SHAPE, "reshape: %d dimensions; there can be 0 to %d", shape->ndim,
                       EK_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] < -1 || (shape->dims[i] == -1 && open >= 0))
            return EK_FAIL(EK_E_SHAPE, "reshape: %s; one size may be -1, none below",
                           ek_shape_text(shape, wanted));
        if (shape->dims[i] == -1)
            open = i;
        else if (shape->dims[i] == 0)
            has_zero = true;
        else if (__builtin_mul_overflow(known, shape->dims[i], &known))
            known = INT64_MAX; /* more than any tensor has */
    }
    if (has_zero && known < INT64_MAX)
        known = 0;
    if (open >= 0 && known > 0 && count % known == 0)
        shape->dims[open] = count / known;
    else if (open >= 0 || known != count)
        return EK_FAIL(EK_E_SHAPE, "reshape: %s (%lld elements) does not fit %s",
                       ek_shape_text(&own, text), (long long)count, ek_shape_text(shape, wanted));
    return 0;
}

ek_tensor *ek_reshape(ek_tensor *x, ek_shape shape)
{
    int64_t stride[EK_MAX_DIMS];
    if (!ek_given("reshape", "x", x) || complete_shape(x, &shape) < 0)
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
    if (start > end) {
        EK_FAIL(EK_E_SHAPE, "flatten: start_dim %d comes after end_dim %d", start_dim, end_dim);
        return NULL;
    }
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
    if (dim < -x->ndim - 1 || dim > x->ndim || x->ndim == EK_MAX_DIMS) {
        EK_FAIL(EK_E_SHAPE,
                "unsqueeze: dimension %d is not in [%d, %d], or the result has more than %d", dim,
                -x->ndim - 1, x->ndim, EK_MAX_DIMS);
        return NULL;
    }
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

ek_tensor *ek_squeeze(ek_tensor *x, int dim)
{
    if (!ek_given("squeeze", "x", x) || (dim = ek_dimension("squeeze", x, dim)) < 0)
        return NULL;
    if (x->shape[dim] != 1)
        return ek_itself(x);
    ek_shape shape = {.ndim = x->ndim - 1};
    int64_t stride[EK_MAX_DIMS];
    for (int i = 0; i < shape.ndim; i++) {
        shape.dims[i] = x->shape[i + (i >= dim)];
        stride[i] = x->stride[i + (i >= dim)];
    }
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

static const ek_operation permute_operation = {.name = "permute", .backward = permute_backward};

ek_tensor *ek_permute(ek_tensor *x, ek_shape order)
{
    if (!ek_given("permute", "x", x))
        return NULL;
    int64_t shape[EK_MAX_DIMS], stride[EK_MAX_DIMS];
    unsigned seen = 0;
    char text[160];
    if (order.ndim != x->ndim) {
        EK_FAIL(EK_E_SHAPE, "permute: order %s has %d entries and the tensor %d dimensions",
                ek_shape_text(&order, text), order.ndim, x->ndim);
        return NULL;
    }
    for (int i = 0; i < x->ndim; i++) {
        int64_t dim = order.dims[i] < 0 ? order.dims[i] + x->ndim : order.dims[i];
        if (dim < 0 || dim >= x->ndim || seen >> dim & 1) {
            EK_FAIL(EK_E_SHAPE, "permute: order %s must name each of %d dimensions once",
                    ek_shape_text(&order, text), x->ndim);
            return NULL;
        }
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

static int expand_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = ek_sum_to(gradients[0], *(const ek_shape *)ek_node_attributes(node));
    return 0;
}

static const ek_operation expand_operation = {.name = "expand", .backward = expand_backward};

ek_tensor *ek_expand(ek_tensor *x, ek_shape shape)
{
    if (!ek_given("expand", "x", x))
        return NULL;
    ek_shape before = ek_tensor_shape(x);
    char text[160], wanted[160];
    int lead = shape.ndim - x->ndim;
    bool fits = lead >= 0 && shape.ndim <= EK_MAX_DIMS;
    for (int i = 0; fits && i < shape.ndim; i++) {
        if (i >= lead && shape.dims[i] == -1)
            shape.dims[i] = x->shape[i - lead];
        fits = shape.dims[i] >= 0 &&
               (i < lead || x->shape[i - lead] == 1 || x->shape[i - lead] == shape.dims[i]);
    }
    if (!fits) {
        EK_FAIL(EK_E_SHAPE, "expand: shape %s does not broadcast to %s",
                ek_shape_text(&before, text), ek_shape_text(&shape, wanted));
        return NULL;
    }
    ek_tensor expanded;
    ek_borrow_expanded(&expanded, x, &shape);
    return EK_RECORD(ek_tensor_view(x, shape.ndim, expanded.shape, expanded.stride,
                                    expanded.offset),
                     &expand_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}
