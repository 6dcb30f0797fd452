/* index.c: elements by position, and the adjoints; each is the other's gradient. Kernels check
 * bounds. */
#include "ops/attributes.h"
#include "ops/ops.h"

/* ---- index_select and its adjoint ---- */

EK_BACKWARD(index_select, ek_index_attributes,
            ek_index_sum(g, a->dim, ek_node_saved(node, 0), &a->shape))

EK_BACKWARD(index_add, ek_index_attributes, ek_index_select(g, a->dim, ek_node_saved(node, 0)))
EK_OPERATION(index_select, "index_select", index_select_backward);
EK_OPERATION(index_add, "index_add", index_add_backward);

ek_tensor *ek_index_select(ek_tensor *x, int dim, ek_tensor *index)
{
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(ek_index_select(ek_row_of(x), 0, index));
    index = ek_row_of(index);
    if (!ek_given("index_select", "x", x) ||
        !(index = ek_as_index("index_select", "index", index)) ||
        !ek_same_device("index_select", x, index) ||
        (dim = ek_dimension("index_select", x, dim)) < 0)
        return NULL;
    if (index->ndim != 1)
        return EK_REFUSE(EK_E_SHAPE, "index_select: index has %d dimensions and must have 1",
                         index->ndim);
    ek_index_attributes attributes = {ek_tensor_shape(x), dim};
    ek_shape shape = attributes.shape;
    shape.dims[dim] = index->shape[0];
    bool channels_last = x->ndim == 4 && !ek_tensor_is_contiguous(x, EK_CONTIGUOUS) &&
                         ek_tensor_is_contiguous(x, EK_CHANNELS_LAST);
    ek_tensor *y = ek_tensor_new(x->storage->dev, x->dtype, &shape,
                                 channels_last ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->index_select(x->storage->dev, y, x, dim, index) < 0)
        return NULL;
    return EK_RECORD(y, &index_select_operation, EK_INPUTS(x), EK_SAVED(index),
                     EK_ATTRIBUTES(attributes));
}

ek_tensor *ek_index_sum(ek_tensor *x, int dim, ek_tensor *index, const ek_shape *shape)
{
    if (!ek_floating("index_add", "x", x) || !ek_given("index_add", "index", index))
        return NULL;
    if (ek_dtype_is_narrow(x->dtype)) /* 16 bits are too coarse to add up in */
        return ek_to_dtype(ek_index_sum(ek_to_dtype(x, EK_F32), dim, index, shape), x->dtype);
    ek_index_attributes attributes = {ek_tensor_shape(x), dim};
    ek_tensor *y = ek_tensor_new(x->storage->dev, x->dtype, shape, EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->index_add(x->storage->dev, y, x, dim, index) < 0)
        return NULL;
    return EK_RECORD(y, &index_add_operation, EK_INPUTS(x), EK_SAVED(index),
                     EK_ATTRIBUTES(attributes));
}

/* ---- gather_dim and scatter_add_dim ---- */

EK_BACKWARD(gather, ek_index_attributes,
            ek_scatter_add_dim(g, a->dim, ek_node_saved(node, 0), a->shape))

EK_BACKWARD(scatter_add, ek_index_attributes, ek_gather_dim(g, a->dim, ek_node_saved(node, 0)))
EK_OPERATION(gather, "gather_dim", gather_backward);
EK_OPERATION(scatter_add, "scatter_add_dim", scatter_add_backward);

/* Checks that `index` has as many dimensions as `whole`, and isn't larger than `whole` in any
 * dimension other than dim. */
static bool index_addresses(const char *operation, const ek_tensor *index, const ek_shape *whole,
                            int dim)
{
    bool fits = index->ndim == whole->ndim;
    for (int i = 0; fits && i < whole->ndim; i++)
        fits = i == dim || index->shape[i] <= whole->dims[i];
    if (fits)
        return true;
    ek_shape shape = ek_tensor_shape(index);
    return EK_FAIL(EK_E_SHAPE,
                   "%s: index of shape %s is larger than %s outside of dimension %d, or has other "
                   "dimensions",
                   operation, EK_SHAPE_TEXT(&shape), EK_SHAPE_TEXT(whole), dim) == 0;
}

ek_tensor *ek_gather_dim(ek_tensor *x, int dim, ek_tensor *index)
{
    if (x && index && (ek_is_scalar_dim(x, dim) || (x->ndim > 0 && index->ndim == 0))) {
        ek_tensor *y = ek_gather_dim(ek_row_of(x), dim, ek_row_of(index));
        return y ? ek_reshape(y, ek_tensor_shape(index)) : NULL;
    }
    if (!ek_given("gather_dim", "x", x) || !(index = ek_as_index("gather_dim", "index", index)) ||
        !ek_same_device("gather_dim", x, index) || (dim = ek_dimension("gather_dim", x, dim)) < 0)
        return NULL;
    ek_index_attributes attributes = {ek_tensor_shape(x), dim};
    if (!index_addresses("gather_dim", index, &attributes.shape, dim))
        return NULL;
    ek_shape shape = ek_tensor_shape(index);
    ek_tensor *y = ek_tensor_new(x->storage->dev, x->dtype, &shape, EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->gather(x->storage->dev, y, x, dim, index) < 0)
        return NULL;
    return EK_RECORD(y, &gather_operation, EK_INPUTS(x), EK_SAVED(index),
                     EK_ATTRIBUTES(attributes));
}

ek_tensor *ek_scatter_add_dim(ek_tensor *x, int dim, ek_tensor *index, ek_shape shape)
{
    if (ek_is_scalar_dim(x, dim)) {
        ek_shape row = shape.ndim == 0 ? EK_SHAPE(1) : shape;
        ek_tensor *y = ek_scatter_add_dim(ek_row_of(x), 0, ek_row_of(index), row);
        return y ? ek_reshape(y, shape) : NULL;
    }
    if (!ek_floating("scatter_add_dim", "x", x) ||
        !(index = ek_as_index("scatter_add_dim", "index", index)) ||
        !ek_same_device("scatter_add_dim", x, index) ||
        (dim = ek_dimension("scatter_add_dim", x, dim)) < 0)
        return NULL;
    ek_index_attributes attributes = {ek_tensor_shape(x), dim};
    if (!ek_of_shape("scatter_add_dim", "index", index, &attributes.shape) ||
        !index_addresses("scatter_add_dim", index, &shape, dim))
        return NULL;
    if (ek_dtype_is_narrow(x->dtype))
        return ek_to_dtype(ek_scatter_add_dim(ek_to_dtype(x, EK_F32), dim, index, shape), x->dtype);
    ek_tensor *y = ek_tensor_new(x->storage->dev, x->dtype, &shape, EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->scatter_add(x->storage->dev, y, x, dim, index) < 0)
        return NULL;
    return EK_RECORD(y, &scatter_add_operation, EK_INPUTS(x), EK_SAVED(index),
                     EK_ATTRIBUTES(attributes));
}

/* ---- scatter: the gradient of x is 0 at places that were written ---- */

static int scatter_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_index_attributes *a = ek_node_attributes(node);
    ek_tensor *index = ek_node_saved(node, 0);
    if (ek_node_needs(node, 0))
        results[0] = ek_scatter_fill(gradients[0], a->dim, index, 0);
    if (ek_node_needs(node, 1))
        results[1] = ek_gather_dim(gradients[0], a->dim, index);
    return 0;
}

EK_OPERATION(scatter, "scatter_dim", scatter_backward);

/* Returns a copy of x into which source is written. Both have one device and dtype, and source has
 * the index's shape. */
static ek_tensor *index_scatter(const char *operation, ek_tensor *x, int dim, ek_tensor *index,
                                ek_tensor *source)
{
    ek_index_attributes attributes = {ek_tensor_shape(x), dim};
    if (!index_addresses(operation, index, &attributes.shape, dim))
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y || ek_transfer(y, x) < 0 ||
        ek_kernels_of(x)->scatter(ek_tensor_dev(x), y, source, dim, index) < 0)
        return NULL;
    return EK_RECORD(y, &scatter_operation, EK_INPUTS(x, source), EK_SAVED(index),
                     EK_ATTRIBUTES(attributes));
}

/* Checks x, dim and the index. *dim becomes non-negative, and *index i64. */
static bool index_begin(const char *operation, ek_tensor *x, int *dim, ek_tensor **index)
{
    return ek_given(operation, "x", x) && (*index = ek_as_index(operation, "index", *index)) &&
           ek_same_device(operation, x, *index) && (*dim = ek_dimension(operation, x, *dim)) >= 0;
}

ek_tensor *ek_scatter_dim(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source)
{
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(ek_scatter_dim(ek_row_of(x), 0, ek_row_of(index), ek_row_of(source)));
    if (!index_begin("scatter_dim", x, &dim, &index) ||
        !ek_given("scatter_dim", "source", source) || !ek_alike("scatter_dim", x, source))
        return NULL;
    bool fits = source->ndim == index->ndim;
    for (int d = 0; fits && d < index->ndim; d++)
        fits = source->shape[d] >= index->shape[d];
    if (!fits)
        return EK_REFUSE(EK_E_SHAPE, "scatter_dim: source of shape %s is smaller than index's %s",
                         EK_SIZE_TEXT(source), EK_SIZE_TEXT(index));
    for (int d = 0; source && d < index->ndim; d++)
        if (source->shape[d] > index->shape[d])
            source = ek_narrow(source, d, 0, index->shape[d]);
    return source ? index_scatter("scatter_dim", x, dim, index, source) : NULL;
}

/* Returns a number of x's dtype, expanded to `shape`. */
static ek_tensor *index_number(const char *operation, const ek_tensor *x, double value,
                               ek_shape shape)
{
    if (!ek_holds(operation, "the value", x->dtype, value))
        return NULL;
    return ek_expand(ek_number_like(x, value), shape);
}

ek_tensor *ek_scatter_fill(ek_tensor *x, int dim, ek_tensor *index, double value)
{
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(ek_scatter_fill(ek_row_of(x), 0, ek_row_of(index), value));
    if (!index_begin("scatter_fill", x, &dim, &index))
        return NULL;
    ek_tensor *source = index_number("scatter_fill", x, value, ek_tensor_shape(index));
    return source ? index_scatter("scatter_fill", x, dim, index, source) : NULL;
}

/* ---- slices at an index ---- */

/* The shape of index's slices of x. */
static bool index_slices(const char *operation, ek_tensor *x, int *dim, ek_tensor **index,
                         ek_shape *shape)
{
    *index = ek_row_of(*index);
    if (!index_begin(operation, x, dim, index))
        return false;
    if ((*index)->ndim != 1)
        return EK_REFUSE(EK_E_SHAPE, "%s: index has %d dimensions and must have 1", operation,
                         (*index)->ndim);
    *shape = ek_tensor_shape(x);
    shape->dims[*dim] = (*index)->shape[0];
    return true;
}

/* Expands a list of indices along dim to an index for each element of `shape`. */
static ek_tensor *index_of_elements(ek_tensor *index, int dim, const ek_shape *shape)
{
    ek_shape column = {.ndim = shape->ndim};
    for (int d = 0; d < shape->ndim; d++)
        column.dims[d] = d == dim ? shape->dims[dim] : 1;
    return ek_expand(ek_reshape(index, column), *shape);
}

ek_tensor *ek_index_add(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source, double alpha)
{
    ek_shape shape, whole;
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(ek_index_add(ek_row_of(x), 0, index, ek_row_of(source), alpha));
    if (!index_slices("index_add", x, &dim, &index, &shape) ||
        !ek_of_shape("index_add", "source", source, &shape) || !ek_floating("index_add", "x", x) ||
        !ek_alike("index_add", x, source))
        return NULL;
    whole = ek_tensor_shape(x);
    return ek_add_scaled(x, ek_index_sum(source, dim, index, &whole), alpha);
}

ek_tensor *ek_index_copy(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source)
{
    ek_shape shape;
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(ek_index_copy(ek_row_of(x), 0, index, ek_row_of(source)));
    if (!index_slices("index_copy", x, &dim, &index, &shape) ||
        !ek_of_shape("index_copy", "source", source, &shape) || !ek_alike("index_copy", x, source))
        return NULL;
    index = index_of_elements(index, dim, &shape);
    return index ? index_scatter("index_copy", x, dim, index, source) : NULL;
}

ek_tensor *ek_index_fill(ek_tensor *x, int dim, ek_tensor *index, double value)
{
    ek_shape shape;
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(ek_index_fill(ek_row_of(x), 0, index, value));
    if (!index_slices("index_fill", x, &dim, &index, &shape))
        return NULL;
    ek_tensor *source = index_number("index_fill", x, value, shape);
    index = index_of_elements(index, dim, &shape);
    return source && index ? index_scatter("index_fill", x, dim, index, source) : NULL;
}
