/* index.c: elements by position, and the adjoints; each is the other's gradient. Kernels check
 * bounds. */
#include "ops/ops.h"

typedef struct index_attributes {
    ek_shape shape; /* the input's shape */
    int dim;
} index_attributes;

/* ---- index_select and index_add ---- */

EK_BACKWARD(index_select, index_attributes,
            ek_index_add(g, a->dim, ek_node_saved(node, 0), &a->shape))

EK_BACKWARD(index_add, index_attributes, ek_index_select(g, a->dim, ek_node_saved(node, 0)))
EK_OPERATION(index_select, "index_select", index_select_backward);
EK_OPERATION(index_add, "index_add", index_add_backward);

ek_tensor *ek_index_select(ek_tensor *x, int dim, ek_tensor *index)
{
    if (!ek_given("index_select", "x", x) || !ek_of_dtype("index_select", "index", index, EK_I64) ||
        !ek_same_device("index_select", x, index) ||
        (dim = ek_dimension("index_select", x, dim)) < 0)
        return NULL;
    if (index->ndim != 1)
        return EK_REFUSE(EK_E_SHAPE, "index_select: index has %d dimensions and must have 1",
                         index->ndim);
    index_attributes attributes = {ek_tensor_shape(x), dim};
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

ek_tensor *ek_index_add(ek_tensor *x, int dim, ek_tensor *index, const ek_shape *shape)
{
    if (!ek_floating("index_add", "x", x) || !ek_given("index_add", "index", index))
        return NULL;
    if (x->dtype == EK_BF16) /* bf16 is too coarse to add up in */
        return ek_to_dtype(ek_index_add(ek_to_dtype(x, EK_F32), dim, index, shape), EK_BF16);
    index_attributes attributes = {ek_tensor_shape(x), dim};
    ek_tensor *y = ek_tensor_new(x->storage->dev, x->dtype, shape, EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->index_add(x->storage->dev, y, x, dim, index) < 0)
        return NULL;
    return EK_RECORD(y, &index_add_operation, EK_INPUTS(x), EK_SAVED(index),
                     EK_ATTRIBUTES(attributes));
}

/* ---- gather_dim and scatter_add_dim ---- */

EK_BACKWARD(gather, index_attributes,
            ek_scatter_add_dim(g, a->dim, ek_node_saved(node, 0), a->shape))

EK_BACKWARD(scatter_add, index_attributes, ek_gather_dim(g, a->dim, ek_node_saved(node, 0)))
EK_OPERATION(gather, "gather_dim", gather_backward);
EK_OPERATION(scatter_add, "scatter_add_dim", scatter_add_backward);

/* True if `index` can address `whole` along dim: it must not be larger in other dimensions. */
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
    if (!ek_given("gather_dim", "x", x) || !ek_of_dtype("gather_dim", "index", index, EK_I64) ||
        !ek_same_device("gather_dim", x, index) || (dim = ek_dimension("gather_dim", x, dim)) < 0)
        return NULL;
    index_attributes attributes = {ek_tensor_shape(x), dim};
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
    if (!ek_floating("scatter_add_dim", "x", x) ||
        !ek_of_dtype("scatter_add_dim", "index", index, EK_I64) ||
        !ek_same_device("scatter_add_dim", x, index) ||
        (dim = ek_dimension("scatter_add_dim", x, dim)) < 0)
        return NULL;
    index_attributes attributes = {ek_tensor_shape(x), dim};
    if (!ek_of_shape("scatter_add_dim", "index", index, &attributes.shape) ||
        !index_addresses("scatter_add_dim", index, &shape, dim))
        return NULL;
    if (x->dtype == EK_BF16)
        return ek_to_dtype(ek_scatter_add_dim(ek_to_dtype(x, EK_F32), dim, index, shape), EK_BF16);
    ek_tensor *y = ek_tensor_new(x->storage->dev, x->dtype, &shape, EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->scatter_add(x->storage->dev, y, x, dim, index) < 0)
        return NULL;
    return EK_RECORD(y, &scatter_add_operation, EK_INPUTS(x), EK_SAVED(index),
                     EK_ATTRIBUTES(attributes));
}
