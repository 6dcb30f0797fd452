/* graph.h: a graph of ONNX under construction, and how rows of tables write their operations:
 *
 *     ROW(elementwise_silu)
 *     {
 *         return NODE("Mul", IN(X, NODE("Sigmoid", IN(X))));
 *     }
 *
 * Names of values are strings that the graph owns; "" stands for an operand that is left out. After
 * an error, which `status` keeps, all functions do nothing and return "". */
#ifndef EK_ONNX_GRAPH_H
#define EK_ONNX_GRAPH_H

#include "core/protobuf.h"
#include "core/tensor.h"
#include "onnx/trace.h"

/* An attribute of a node. Kinds are those of AttributeProto. */
typedef struct ek_onnx_attribute {
    const char *name; /* NULL ends a list */
    enum {
        EK_ONNX_FLOAT = 1,
        EK_ONNX_INT = 2,
        EK_ONNX_TEXT = 3,
        EK_ONNX_INTS = 7,
        EK_ONNX_TEXTS = 8
    } kind;
    double real;
    int64_t integer; /* or how many integers there are, or how often a text is repeated */
    const int64_t *integers;
    const char *text;
} ek_onnx_attribute;

#define FLOAT(name_, v) ((ek_onnx_attribute){.name = (name_), .kind = EK_ONNX_FLOAT, .real = (v)})
#define INT(name_, v) ((ek_onnx_attribute){.name = (name_), .kind = EK_ONNX_INT, .integer = (v)})
#define TEXT(name_, v) ((ek_onnx_attribute){.name = (name_), .kind = EK_ONNX_TEXT, .text = (v)})
#define INTS(name_, v, count) \
    ((ek_onnx_attribute){     \
        .name = (name_), .kind = EK_ONNX_INTS, .integers = (v), .integer = (count)})

/* NODE(type, IN(x, y), INT("axis", 1), ...): adds a node to `g` and returns its output. */
#define IN(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NODE(type, ...) NODE_OF(type, __VA_ARGS__, {0})
#define NODE_OF(type, in, ...) \
    ek_onnx_node(g, (type), (in), (const ek_onnx_attribute[]){__VA_ARGS__})

typedef struct ek_onnx_row ek_onnx_row;

typedef struct ek_onnx_graph {
    const ek_onnx_trace *trace, *other; /* this run's, and the other run's */
    int64_t batch, other_batch;         /* the batch's size in both */
    int opset, status;
    ek_protobuf body;   /* a GraphProto: its nodes, and constants as initializers */
    const char **names; /* of each value of the trace; NULL: none yet */
    char **texts;       /* owns the names */
    int text_count, text_room;
    const char *path; /* of the module whose nodes are written */
    const ek_onnx_row *row;
    const char *size; /* the batch's size as a tensor (1) of i64; NULL: none yet */
} ek_onnx_graph;

/* A row of a table: how an operation is written. */
struct ek_onnx_row {
    const char *operation;
    /* Returns the output's name; NULL if the function has named the outputs itself. */
    const char *(*write)(ek_onnx_graph *g, const ek_onnx_record *r);
    const char *type; /* for `write` */
    unsigned saved;   /* which saved tensors `write` reads, as bits */
    bool broadcasts;  /* `write` reads its inputs by ek_onnx_operand */
};

/* ROW begins a row's function. TYPE and X are the row's type and input 0. NUMBER is a scalar of X's
 * dtype, ONE a list of one integer. */
#define ROW(name) static const char *name(ek_onnx_graph *g, const ek_onnx_record *r)
#define TYPE (g->row->type)
#define X ek_onnx_input(g, r, 0)
#define NUMBER(v) ek_onnx_number(g, ek_onnx_input_tensor(g, r, 0)->dtype, (v))
#define ONE(v) ek_onnx_integers(g, &(const int64_t){(v)}, 1)

/* The tables; a row without an operation ends each. */
extern const ek_onnx_row ek_onnx_elementwise[], ek_onnx_shapes[], ek_onnx_spatial[],
    ek_onnx_layers[], ek_onnx_networks[];

/* Sets the error "module (operation): sentence". Returns "". */
const char *ek_onnx_refuse(ek_onnx_graph *g, const ek_onnx_record *r, const char *sentence);

/* Return the name of an operand, and of any value. */
const char *ek_onnx_input(ek_onnx_graph *g, const ek_onnx_record *r, int i);
const char *ek_onnx_saved(ek_onnx_graph *g, const ek_onnx_record *r, int i);
const char *ek_onnx_name(ek_onnx_graph *g, int value);
/* Return an operand's tensor, of which shape and dtype may be read. NULL for NULL. */
const ek_tensor *ek_onnx_input_tensor(const ek_onnx_graph *g, const ek_onnx_record *r, int i);
const ek_tensor *ek_onnx_output_tensor(const ek_onnx_graph *g, const ek_onnx_record *r, int i);
/* Return an operand of an operation that broadcasts, as a value and as a name: the operand as it
 * was before it was expanded, if another operand has the output's shape. */
int ek_onnx_unexpanded(const ek_onnx_graph *g, const ek_onnx_record *r, int i);
const char *ek_onnx_operand(ek_onnx_graph *g, const ek_onnx_record *r, int i);

/* Makes a name. */
const char *ek_onnx_text(ek_onnx_graph *g, const char *format, ...) EK_PRINTF(2, 3);
/* Adds a node. The second form has `count` outputs, and gives a name to those that are NULL. */
const char *ek_onnx_node(ek_onnx_graph *g, const char *type, const char *const *inputs,
                         const ek_onnx_attribute *attributes);
void ek_onnx_node_outputs(ek_onnx_graph *g, const char *type, const char *const *inputs,
                          const ek_onnx_attribute *attributes, const char **outputs, int count);

/* Add initializers: a scalar, a list of i64, one number in a shape, a tensor's elements. */
const char *ek_onnx_number(ek_onnx_graph *g, ek_dtype dtype, double value);
const char *ek_onnx_integers(ek_onnx_graph *g, const int64_t *values, int count);
const char *ek_onnx_filled(ek_onnx_graph *g, ek_dtype dtype, ek_shape shape, double value);
const char *ek_onnx_constant(ek_onnx_graph *g, const char *name, const ek_tensor *tensor);
/* Appends an initializer to a GraphProto. */
int ek_onnx_put_tensor(ek_protobuf *message, const char *name, const ek_tensor *tensor);

/* Returns n if dimension `dim` of a value has n times the batch's size, 0 if its size is fixed. */
int64_t ek_onnx_batches(ek_onnx_graph *g, int value, int dim);
/* Return a value's shape as a tensor of i64. ek_onnx_target is for Reshape: a size may be -1. */
const char *ek_onnx_shape(ek_onnx_graph *g, int value);
const char *ek_onnx_target(ek_onnx_graph *g, int value);

/* Returns the number of a dtype in TensorProto. */
int ek_onnx_dtype(ek_dtype dtype);

#endif
