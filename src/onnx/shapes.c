/* shapes.c: how views, joins and choices by index are written. */
#include <stdlib.h>

#include "onnx/graph.h"
#include "ops/attributes.h"

ROW(shapes_reshape)
{
    return NODE(TYPE, IN(X, ek_onnx_target(g, r->outputs[0])));
}

ROW(shapes_expand)
{
    return NODE(TYPE, IN(X, ek_onnx_shape(g, r->outputs[0])));
}

ROW(shapes_permute)
{
    const ek_shape *order = r->attributes;
    return NODE(TYPE, IN(X), INTS("perm", order->dims, order->ndim));
}

/* ---- parts ---- */

/* Returns elements [start, end) of x along `dim`, `step` apart. */
static const char *shapes_part(ek_onnx_graph *g, const char *x, int dim, int64_t start, int64_t end,
                               int64_t step)
{
    return NODE("Slice", IN(x, ONE(start), ONE(end), ONE(dim), ONE(step)));
}

/* If the slice's length depends on the batch's size, the slice must end with the dimension. */
ROW(shapes_slice)
{
    const ek_slice_attributes *a = r->attributes;
    const int64_t length = ek_onnx_output_tensor(g, r, 0)->shape[a->dim];
    const bool open = ek_onnx_batches(g, r->outputs[0], a->dim) > 0;
    if (open && a->start + length * a->step < a->shape.dims[a->dim])
        return ek_onnx_refuse(g, r, "takes a part of the batch that depends on its size");
    return shapes_part(g, X, a->dim, a->start, open ? INT64_MAX : a->start + length * a->step,
                       a->step);
}

ROW(shapes_select)
{
    const ek_slice_attributes *a = r->attributes;
    return NODE(TYPE, IN(X, ek_onnx_number(g, EK_I64, (double)a->start)), INT("axis", a->dim));
}

ROW(shapes_split)
{
    const int dim = *(const int *)r->attributes, count = r->output_count;
    int64_t *sizes = ek_calloc((size_t)count, sizeof *sizes);
    const char **names = ek_calloc((size_t)count, sizeof *names);
    for (int i = 0; sizes && i < count; i++)
        sizes[i] = ek_onnx_output_tensor(g, r, i)->shape[dim];
    if (sizes && names)
        ek_onnx_node_outputs(g, TYPE, IN(X, ek_onnx_integers(g, sizes, count)),
                             (const ek_onnx_attribute[]){INT("axis", dim), {0}}, names, count);
    for (int i = 0; sizes && names && i < count; i++)
        g->names[r->outputs[i]] = names[i];
    g->status = g->status < 0 || (sizes && names) ? g->status : EK_E_NO_MEMORY;
    free(sizes);
    free(names);
    return NULL;
}

ROW(shapes_flip)
{
    const ek_shape *dims = r->attributes;
    const char *x = X;
    for (int i = 0; i < dims->ndim; i++)
        x = shapes_part(g, x, (int)dims->dims[i], -1, INT64_MIN, -1);
    return dims->ndim > 0 ? x : NODE("Identity", IN(x));
}

ROW(shapes_roll)
{
    const ek_roll_attributes *a = r->attributes;
    return a->shift == 0 ? NODE("Identity", IN(X))
                         : NODE("Concat",
                                IN(shapes_part(g, X, a->dim, -a->shift, INT64_MAX, 1),
                                   shapes_part(g, X, a->dim, 0, -a->shift, 1)),
                                INT("axis", a->dim));
}

/* ---- joins and margins ---- */

/* Tensors are joined along the dimension that is longer than in the first tensor. If no dimension
 * is longer, the other tensors are empty, and any dimension will do. */
ROW(shapes_cat)
{
    const ek_tensor *x = ek_onnx_input_tensor(g, r, 0), *y = ek_onnx_output_tensor(g, r, 0);
    const char **names = ek_calloc((size_t)r->input_count + 1, sizeof *names), *output = "";
    int dim = 0;
    while (dim + 1 < x->ndim && x->shape[dim] == y->shape[dim])
        dim++;
    for (int i = 0; names && i < r->input_count; i++)
        names[i] = ek_onnx_input(g, r, i);
    if (names)
        output = NODE(TYPE, names, INT("axis", dim));
    else
        g->status = EK_E_NO_MEMORY;
    free(names);
    return output;
}

ROW(shapes_pad)
{
    const ek_pad_attributes *a = r->attributes;
    const ek_tensor *x = ek_onnx_input_tensor(g, r, 0);
    int64_t pads[2 * EK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        pads[d] = a->before[d];
        pads[x->ndim + d] = a->after[d];
    }
    return NODE(TYPE, IN(X, ek_onnx_integers(g, pads, 2 * x->ndim),
                         ek_onnx_number(g, x->dtype, a->value)));
}

/* ---- elements by index ---- */

ROW(shapes_index)
{
    const ek_index_attributes *a = r->attributes;
    return NODE(TYPE, IN(X, ek_onnx_saved(g, r, 0)), INT("axis", a->dim));
}

ROW(shapes_scatter)
{
    const ek_index_attributes *a = r->attributes;
    return NODE(TYPE, IN(X, ek_onnx_saved(g, r, 0), ek_onnx_input(g, r, 1)), INT("axis", a->dim));
}

ROW(shapes_position)
{
    const bool kept = ek_onnx_output_tensor(g, r, 0)->ndim == ek_onnx_input_tensor(g, r, 0)->ndim;
    return NODE(TYPE, IN(X), INT("axis", *(const int *)r->attributes), INT("keepdims", kept));
}

/* ---- the table ---- */

const ek_onnx_row ek_onnx_shapes[] = {{"reshape", shapes_reshape, "Reshape", 0, false},
                                      {"expand", shapes_expand, "Expand", 0, false},
                                      {"permute", shapes_permute, "Transpose", 0, false},
                                      {"slice", shapes_slice, NULL, 0, false},
                                      {"select", shapes_select, "Gather", 0, false},
                                      {"split", shapes_split, "Split", 0, false},
                                      {"flip", shapes_flip, NULL, 0, false},
                                      {"roll", shapes_roll, NULL, 0, false},
                                      {"cat", shapes_cat, "Concat", 0, false},
                                      {"pad", shapes_pad, "Pad", 0, false},
                                      {"index_select", shapes_index, "Gather", 1, false},
                                      {"gather_dim", shapes_index, "GatherElements", 1, false},
                                      {"scatter_dim", shapes_scatter, "ScatterElements", 1, false},
                                      {"argmax", shapes_position, "ArgMax", 0, false},
                                      {"argmin", shapes_position, "ArgMin", 0, false},
                                      {0}};
