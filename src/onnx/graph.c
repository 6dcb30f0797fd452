/* graph.c: see graph.h. Numbers of fields are those of onnx.proto. */
#include "onnx/graph.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5 };
enum { NODE_INPUT = 1, NODE_OUTPUT, NODE_NAME, NODE_TYPE, NODE_ATTRIBUTE };
enum { TENSOR_DIMS = 1, TENSOR_DTYPE = 2, TENSOR_NAME = 8, TENSOR_BYTES = 9 };
enum {
    ATTRIBUTE_NAME = 1,
    ATTRIBUTE_F,
    ATTRIBUTE_I,
    ATTRIBUTE_S,
    ATTRIBUTE_INTS = 8,
    ATTRIBUTE_TEXTS
};
enum { ATTRIBUTE_TYPE = 20 };

int ek_onnx_dtype(ek_dtype dtype)
{
    static const int numbers[] = {[EK_F32] = 1, [EK_F64] = 11, [EK_BF16] = 16, [EK_I64] = 7,
                                  [EK_U8] = 2,  [EK_F16] = 10, [EK_I32] = 6,   [EK_BOOL] = 9};
    return numbers[dtype];
}

const char *ek_onnx_refuse(ek_onnx_graph *g, const ek_onnx_record *r, const char *sentence)
{
    if (g->status >= 0)
        g->status = EK_FAIL(EK_E_INVALID, "%s %s", ek_onnx_place(r, (char[200]){0}), sentence);
    return "";
}

const char *ek_onnx_text(ek_onnx_graph *g, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *copy = g->status < 0 || ek_grow(&g->texts, &g->text_room, g->text_count + 1) < 0
                     ? NULL
                     : ek_strdup(text);
    if (copy)
        return g->texts[g->text_count++] = copy;
    g->status = g->status < 0 ? g->status : EK_E_NO_MEMORY;
    return "";
}

/* ---- nodes ---- */

static void graph_put_attribute(ek_protobuf *node, const ek_onnx_attribute *a)
{
    ek_protobuf attribute = {0};
    ek_protobuf_text(&attribute, ATTRIBUTE_NAME, a->name);
    if (a->kind == EK_ONNX_FLOAT)
        ek_protobuf_float(&attribute, ATTRIBUTE_F, (float)a->real);
    else if (a->kind == EK_ONNX_INT)
        ek_protobuf_int(&attribute, ATTRIBUTE_I, a->integer);
    else if (a->kind == EK_ONNX_TEXT)
        ek_protobuf_text(&attribute, ATTRIBUTE_S, a->text);
    for (int64_t i = 0; a->kind == EK_ONNX_INTS && i < a->integer; i++)
        ek_protobuf_int(&attribute, ATTRIBUTE_INTS, a->integers[i]);
    for (int64_t i = 0; a->kind == EK_ONNX_TEXTS && i < a->integer; i++)
        ek_protobuf_text(&attribute, ATTRIBUTE_TEXTS, a->text);
    ek_protobuf_int(&attribute, ATTRIBUTE_TYPE, a->kind);
    ek_protobuf_message(node, NODE_ATTRIBUTE, &attribute);
}

void ek_onnx_node_outputs(ek_onnx_graph *g, const char *type, const char *const *inputs,
                          const ek_onnx_attribute *attributes, const char **outputs, int count)
{
    ek_protobuf node = {0};
    const char *name =
        ek_onnx_text(g, "%s%s%s_%d", g->path, g->path[0] ? "/" : "", type, g->text_count);
    int given = 0;
    for (int i = 0; inputs[i]; i++)
        given = inputs[i][0] ? i + 1 : given; /* those that are left out at the end */
    for (int i = 0; i < given; i++)
        ek_protobuf_text(&node, NODE_INPUT, inputs[i]);
    for (int i = 0; i < count; i++) {
        if (!outputs[i])
            outputs[i] = count == 1 ? name : ek_onnx_text(g, "%s:%d", name, i);
        ek_protobuf_text(&node, NODE_OUTPUT, outputs[i]);
    }
    ek_protobuf_text(&node, NODE_NAME, name);
    ek_protobuf_text(&node, NODE_TYPE, type);
    for (; attributes->name; attributes++)
        graph_put_attribute(&node, attributes);
    ek_protobuf_message(&g->body, GRAPH_NODE, &node);
}

const char *ek_onnx_node(ek_onnx_graph *g, const char *type, const char *const *inputs,
                         const ek_onnx_attribute *attributes)
{
    const char *output = NULL;
    ek_onnx_node_outputs(g, type, inputs, attributes, &output, 1);
    return output;
}

/* ---- initializers ---- */

static int graph_put(ek_protobuf *message, const char *name, ek_dtype dtype, const int64_t *dims,
                     int ndim, const void *bytes, size_t nbytes)
{
    ek_protobuf tensor = {0};
    for (int i = 0; i < ndim; i++)
        ek_protobuf_int(&tensor, TENSOR_DIMS, dims[i]);
    ek_protobuf_int(&tensor, TENSOR_DTYPE, ek_onnx_dtype(dtype));
    ek_protobuf_text(&tensor, TENSOR_NAME, name);
    ek_protobuf_bytes(&tensor, TENSOR_BYTES, bytes, nbytes);
    ek_protobuf_message(message, GRAPH_INITIALIZER, &tensor);
    return message->status;
}

int ek_onnx_put_tensor(ek_protobuf *message, const char *name, const ek_tensor *tensor)
{
    const size_t nbytes = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
    void *bytes = ek_calloc(1, nbytes + 1);
    int status = bytes ? ek_to_data(tensor, bytes, nbytes) : EK_E_NO_MEMORY;
    if (status >= 0)
        status =
            graph_put(message, name, tensor->dtype, tensor->shape, tensor->ndim, bytes, nbytes);
    free(bytes);
    return status;
}

const char *ek_onnx_constant(ek_onnx_graph *g, const char *name, const ek_tensor *tensor)
{
    if (!tensor && g->status >= 0)
        g->status = ek_error_pending();
    if (g->status >= 0)
        g->status = ek_onnx_put_tensor(&g->body, name, tensor);
    return name;
}

/* Adds the constant and ends the scope in which it was made. */
static const char *graph_constant(ek_onnx_graph *g, ek_scope *scope, const ek_tensor *tensor)
{
    const char *name = ek_onnx_constant(g, ek_onnx_text(g, "constant_%d", g->text_count), tensor);
    ek_scope_end(scope);
    return name;
}

const char *ek_onnx_number(ek_onnx_graph *g, ek_dtype dtype, double value)
{
    ek_scope scope = ek_scope_begin();
    return graph_constant(g, &scope, ek_scalar(value, dtype, ek_cpu()));
}

const char *ek_onnx_filled(ek_onnx_graph *g, ek_dtype dtype, ek_shape shape, double value)
{
    ek_scope scope = ek_scope_begin();
    return graph_constant(g, &scope, ek_full(value, shape, dtype));
}

const char *ek_onnx_integers(ek_onnx_graph *g, const int64_t *values, int count)
{
    ek_scope scope = ek_scope_begin();
    return graph_constant(g, &scope, ek_from_data(values, EK_SHAPE(count), EK_I64));
}

/* ---- shapes ---- */

static ek_tensor *graph_tensor(const ek_onnx_graph *g, int value)
{
    return value < 0 ? NULL : g->trace->values[value].tensor;
}

int64_t ek_onnx_batches(ek_onnx_graph *g, int value, int dim)
{
    const int64_t size = graph_tensor(g, value)->shape[dim];
    const int64_t other = g->other->values[value].tensor->shape[dim];
    if (size == other)
        return 0;
    if (g->batch > 0 && size % g->batch == 0 && size / g->batch * g->other_batch == other)
        return size / g->batch;
    if (g->status >= 0)
        g->status = EK_FAIL(EK_E_INVALID,
                            "%s: a size is %lld for a batch of %lld and %lld for a batch of %lld; "
                            "only multiples of the batch's size can be written",
                            g->path, (long long)size, (long long)g->batch, (long long)other,
                            (long long)g->other_batch);
    return 0;
}

/* Returns the batch's size as a tensor (1) of i64, times a number. */
static const char *graph_size(ek_onnx_graph *g, int64_t times)
{
    for (int v = 0; !g->size && g->trace->values[v].kind == EK_ONNX_INPUT; v++)
        for (int d = 0; !g->size && d < graph_tensor(g, v)->ndim; d++)
            if (ek_onnx_batches(g, v, d) == 1)
                g->size = NODE("Shape", IN(ek_onnx_name(g, v)), INT("start", d), INT("end", d + 1));
    const char *size = g->size ? g->size : "";
    return times == 1 ? size : NODE("Mul", IN(size, ek_onnx_integers(g, &times, 1)));
}

/* Returns a shape of which the dimensions in the mask `open` are -1. */
static const char *graph_shape(ek_onnx_graph *g, int value, unsigned open)
{
    const ek_tensor *tensor = graph_tensor(g, value);
    const char *parts[EK_MAX_DIMS + 1] = {NULL};
    int64_t sizes[EK_MAX_DIMS];
    int count = 0, fixed = 0;
    for (int d = 0; d <= tensor->ndim; d++) {
        const int64_t times =
            d < tensor->ndim && !(open >> d & 1) ? ek_onnx_batches(g, value, d) : 0;
        if (fixed > 0 && (times || d == tensor->ndim)) {
            parts[count++] = ek_onnx_integers(g, sizes, fixed);
            fixed = 0;
        }
        if (times)
            parts[count++] = graph_size(g, times);
        else if (d < tensor->ndim)
            sizes[fixed++] = open >> d & 1 ? -1 : tensor->shape[d];
    }
    return count == 0   ? ek_onnx_integers(g, sizes, 0)
           : count == 1 ? parts[0]
                        : NODE("Concat", parts, INT("axis", 0));
}

const char *ek_onnx_shape(ek_onnx_graph *g, int value)
{
    return graph_shape(g, value, 0);
}

const char *ek_onnx_target(ek_onnx_graph *g, int value)
{
    for (int d = 0; d < graph_tensor(g, value)->ndim; d++)
        if (ek_onnx_batches(g, value, d))
            return graph_shape(g, value, 1U << d);
    return graph_shape(g, value, 0);
}

/* ---- values ---- */

/* Adds a constant. Dimensions along which elements repeat get size 1; if `expands`, a node expands
 * them. Elements must repeat along dimensions whose size depends on the batch. */
static const char *graph_captured(ek_onnx_graph *g, int value, bool expands)
{
    ek_tensor *tensor = graph_tensor(g, value), *first = tensor;
    double equal = 1;
    ek_scope scope = ek_scope_begin();
    for (int d = 0; d < tensor->ndim && first; d++)
        if (ek_onnx_batches(g, value, d) || (tensor->shape[d] > 1 && tensor->stride[d] == 0))
            first = ek_narrow(first, d, 0, 1);
    if (g->status >= 0 && ek_onnx_version(tensor) != g->trace->values[value].version)
        g->status = EK_FAIL(EK_E_INVALID,
                            "%s: a constant, %s, was written in place after an operation had read "
                            "it; make a new tensor",
                            g->path, ek_tensor_text(tensor, (char[200]){0}));
    if (first != tensor && g->status >= 0)
        g->status = ek_item(ek_all(ek_eq(tensor, first)), &equal);
    if (g->status >= 0 && equal == 0)
        g->status = EK_FAIL(EK_E_INVALID,
                            "%s: a constant, %s, depends on the batch's size otherwise than by "
                            "repeating elements",
                            g->path, ek_tensor_text(tensor, (char[200]){0}));
    const char *name = graph_constant(g, &scope, first);
    return first != tensor && expands ? NODE("Expand", IN(name, ek_onnx_shape(g, value))) : name;
}

const char *ek_onnx_name(ek_onnx_graph *g, int value)
{
    if (value < 0 || g->status < 0)
        return "";
    const ek_onnx_value *v = &g->trace->values[value];
    if (!g->names[value])
        g->names[value] = v->kind == EK_ONNX_PARAMETER  ? v->name
                          : v->kind == EK_ONNX_CONSTANT ? graph_captured(g, value, true)
                                                        : "";
    return g->names[value];
}

const char *ek_onnx_input(ek_onnx_graph *g, const ek_onnx_record *r, int i)
{
    return i < r->input_count ? ek_onnx_name(g, r->inputs[i]) : "";
}

const char *ek_onnx_saved(ek_onnx_graph *g, const ek_onnx_record *r, int i)
{
    return i < r->saved_count ? ek_onnx_name(g, r->saved[i]) : "";
}

const ek_tensor *ek_onnx_input_tensor(const ek_onnx_graph *g, const ek_onnx_record *r, int i)
{
    return i < r->input_count ? graph_tensor(g, r->inputs[i]) : NULL;
}

const ek_tensor *ek_onnx_output_tensor(const ek_onnx_graph *g, const ek_onnx_record *r, int i)
{
    return graph_tensor(g, r->outputs[i]);
}

/* Returns the record that expanded a value; NULL if the value wasn't made so. */
static const ek_onnx_record *graph_expansion(const ek_onnx_graph *g, int value)
{
    const int record = value < 0 ? -1 : g->trace->values[value].record;
    return record >= 0 && strcmp(g->trace->records[record].operation, "expand") == 0
               ? &g->trace->records[record]
               : NULL;
}

/* Returns true if an input other than i has the output's shape without having been expanded. */
static bool graph_others_give_shape(const ek_onnx_graph *g, const ek_onnx_record *r, int i)
{
    for (int k = 0; k < r->input_count; k++) {
        const ek_onnx_value *v = r->inputs[k] < 0 ? NULL : &g->trace->values[r->inputs[k]];
        if (k != i && v && v->kind != EK_ONNX_CONSTANT && !graph_expansion(g, r->inputs[k]))
            return true;
    }
    return false;
}

int ek_onnx_unexpanded(const ek_onnx_graph *g, const ek_onnx_record *r, int i)
{
    const ek_onnx_record *maker = graph_expansion(g, r->inputs[i]);
    return maker && graph_others_give_shape(g, r, i) ? maker->inputs[0] : r->inputs[i];
}

const char *ek_onnx_operand(ek_onnx_graph *g, const ek_onnx_record *r, int i)
{
    const int value = ek_onnx_unexpanded(g, r, i);
    return value >= 0 && g->trace->values[value].kind == EK_ONNX_CONSTANT &&
                   graph_others_give_shape(g, r, i)
               ? graph_captured(g, value, false)
               : ek_onnx_name(g, value);
}
