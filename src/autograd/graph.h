/* graph.h: how operations record themselves and write their backward.
 *
 * A graph node has edges to the nodes (or leaves) of its inputs, saved tensors, and a copy of the
 * operation's attributes. Graph nodes hold references to tensors, never scopes; a saved output is
 * stored without its own edge and rebuilt when read, so that there is no reference cycle. Graphs
 * are released iteratively.
 *
 *     static int tanh_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
 *     {
 *         results[0] = ek_tanh_gradient(gradients[0], ek_node_saved(node, 0));
 *         return 0;
 *     }
 *     static const ek_operation tanh_operation = {"tanh", tanh_backward};
 *
 *     ek_tensor *ek_f_tanh(ek_tensor *x)
 *     {
 *         ... allocate y, run the kernel ...
 *         return EK_RECORD(y, &tanh_operation, EK_INPUTS(x), EK_SAVED(y));
 *     }
 */
#ifndef EK_AUTOGRAD_GRAPH_H
#define EK_AUTOGRAD_GRAPH_H

#include "core/tensor.h"
#include "evenkeel/autograd.h"

typedef struct ek_node ek_node;

typedef struct ek_operation {
    const char *name;
    /* gradients[o] is the gradient of output o, NULL if none arrived (counts as zero);
     * results[i], all NULL at first, gets the gradient of input i in the scope, and stays NULL
     * where ek_node_needs says no or the gradient is zero. Written with differentiable operations:
     * with create_graph they record. Returns 0 or a negative status; a NULL result with an error
     * pending is taken as that error. */
    int (*backward)(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
    /* Optional: frees what the attributes own, once, also if recording fails. If ek_records
     * says no it is not called. */
    void (*destroy)(void *attributes);
    /* Its backward runs as soon as it is ready, before nodes that were recorded later: for what
     * others wait for or what frees memory, as the reduction of a bucket of replicas' gradients. */
    bool urgent;
} ek_operation;

typedef struct ek_edge {
    ek_node *node;   /* what made the input; NULL for leaves and inputs without a gradient */
    int output;      /* which of its outputs */
    ek_tensor *leaf; /* a leaf that accumulates, else NULL */
} ek_edge;

/* What a record is made of; arrays are read during the call only. NULL inputs (an optional bias)
 * have no edge. */
typedef struct ek_record_options {
    ek_tensor *const *inputs;
    int input_count;
    ek_tensor *const *saved; /* inputs, outputs or plain tensors; NULL entries stay NULL */
    int saved_count;
    const void *attributes; /* copied */
    size_t attributes_size;
} ek_record_options;

#define EK_INPUTS(...)                           \
    .inputs = (ek_tensor *const[]){__VA_ARGS__}, \
    .input_count = (int)(sizeof((ek_tensor *const[]){__VA_ARGS__}) / sizeof(ek_tensor *))
#define EK_SAVED(...)                           \
    .saved = (ek_tensor *const[]){__VA_ARGS__}, \
    .saved_count = (int)(sizeof((ek_tensor *const[]){__VA_ARGS__}) / sizeof(ek_tensor *))
#define EK_ATTRIBUTES(a) .attributes = &(a), .attributes_size = sizeof(a)

/* Records y = operation(inputs) if gradient mode is on and an input requires a gradient; else does
 * nothing. Returns y, or NULL with an error (y stays in its scope). y may be NULL: NULL. */
#define EK_RECORD(y, operation, ...) \
    ek_record((y), (operation), &(const ek_record_options){__VA_ARGS__})
ek_tensor *ek_record(ek_tensor *y, const ek_operation *operation, const ek_record_options *options);

/* The same for several outputs; NULL outputs and outputs that aren't floating carry no gradient.
 * Returns 0 or a negative status. */
int ek_record_outputs(ek_tensor *const *outputs, int output_count, const ek_operation *operation,
                      const ek_record_options *options);

/* For in-place operations on x, already written and its version bumped: x's history becomes the new
 * node, whose edge for input 0, x itself, leads to x's history before. Saved tensors that are x
 * itself count as the output. EK_E_AUTOGRAD if x is a view, whose base would not know. */
ek_tensor *ek_record_in_place(ek_tensor *x, const ek_operation *operation,
                              const ek_record_options *options);
/* Before writing in place: EK_E_AUTOGRAD for a leaf that requires a gradient, or a view of history,
 * in gradient mode. */
int ek_check_in_place(const char *operation, const ek_tensor *x);

/* True if the operation would be recorded: gradient mode is on and one of the inputs (NULLs are
 * skipped) requires a gradient. */
bool ek_records(ek_tensor *const *inputs, int count);

/* ---- in backward ---- */

/* Saved tensor `index` in the scope, in gradient mode with its history; NULL without an error if
 * NULL was saved. If it was modified since: NULL with EK_E_MODIFIED naming both operations. If it
 * was freed by an earlier backward: NULL with EK_E_STATE ("call backward with retain_graph"). */
ek_tensor *ek_node_saved(ek_node *node, int index);
const void *ek_node_attributes(const ek_node *node);
/* Does anybody want this input's gradient? On threads other than the one that called the backward
 * the answer may be a yes too many. */
bool ek_node_needs(const ek_node *node, int input);
int ek_node_input_count(const ek_node *node);
int ek_node_output_count(const ek_node *node);
/* Shape, dtype and device of an output, to make zeros of. */
ek_tensor *ek_node_zeros(ek_node *node, int output);

/* Where the gradient of input `input` will end: the empty gradient slot of a leaf that gets no
 * other contribution in this run, or NULL. A backward that writes its result there (and returns it)
 * saves the engine a copy. The leaf owns it. For the thread that called the backward. */
ek_tensor *ek_node_destination(ek_node *node, int input);

/* ---- leaves ---- */

/* Gives a leaf the memory where its gradients are to lie (a slab's slot; same shape, dtype and
 * device, else EK_E_INVALID), which holds nothing yet; NULL takes it away. A gradient that the leaf
 * has already is copied there. ek_tensor_set_grad(leaf, NULL) marks the slot as absent without
 * touching it; with create_graph the gradient lies elsewhere, and leaf->grad != leaf->grad_slot. */
int ek_leaf_set_grad_slot(ek_tensor *leaf, ek_tensor *slot);

/* ---- an operation that keeps only its inputs ----
 *
 * F is a function of tensors that any operations make up. C(F) has its values, but no graph of the
 * inside: the node holds the inputs, and its backward evaluates F again, on leaves of its own, and
 * differentiates that. This backward is itself a function of the inputs and the gradients,
 * F'(x, g), and it is called as C(F'). So with create_graph the node of the gradient keeps inputs
 * only too, and its backward evaluates F' again: gradients of any order come from these two lines.
 */

/* F: writes its outputs, in the scope, NULL at first. If gradient mode is on they are to be a
 * graph from the inputs, which are leaves of this evaluation; the gradients of those that require
 * one are wanted. Gives the same values each time it is called with the same state. */
typedef int ek_recomputed_function(ek_object *state, ek_tensor *const *inputs, int input_count,
                                   ek_tensor **outputs, int output_count);

typedef struct ek_recomputed {
    const ek_operation *operation; /* a name with ek_recomputed_backward, ek_recomputed_destroy */
    ek_recomputed_function *function;
    ek_object *state; /* retained while the graph is */
    unsigned flags;   /* thread modes that the function runs under, but for gradient mode */
} ek_recomputed;

/* The node C(F) for outputs that were computed without a graph. Outputs that carry a gradient get a
 * handle of their own; inputs among the outputs stay what they are, with their own history, and so
 * do tensors with a history from elsewhere. */
int ek_record_recomputed(ek_tensor **outputs, int output_count, const ek_recomputed *recomputed,
                         ek_tensor *const *inputs, int input_count);

/* What an operation in `ek_recomputed` has as its backward and destroy. */
int ek_recomputed_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
void ek_recomputed_destroy(void *attributes);

/* ---- the operations that the engine itself needs; src/ops has the others ---- */

/* x + y of one shape, dtype and device, for folding gradients; recorded in gradient mode. */
ek_tensor *ek_fold_add(ek_tensor *x, ek_tensor *y);

/* x copied into new memory with the layout of `like` (same shape, dtype and device); recorded in
 * gradient mode. */
ek_tensor *ek_fold_copy(ek_tensor *x, const ek_tensor *like);

/* x in another floating dtype, x itself if it has that; recorded in gradient mode. */
ek_tensor *ek_fold_cast(ek_tensor *x, ek_dtype dtype);

/* ---- for the engine ---- */

struct ek_node {
    ek_object object;
    const ek_operation *operation;
    uint64_t sequence; /* order of recording, over the whole process */
    int input_count, output_count, saved_count;
    ek_edge *edges;
    struct ek_saved *saved;
    struct ek_output_info *outputs;
    void *attributes;
    bool freed;         /* saved tensors are gone */
    ek_node *next_dead; /* while graphs are being released */
};

/* What ek_node_zeros needs, and the device the node runs on. */
typedef struct ek_output_info {
    ek_dev *dev;
    ek_dtype dtype;
    ek_shape shape;
    uint64_t recorded; /* in-place operations recorded on its memory before */
} ek_output_info;

/* The device a node's backward runs on: its first output's, or, where outputs lie on several
 * devices, its first input edge's. */
ek_dev *ek_node_dev(const ek_node *node);

/* Drops saved tensors; ek_node_saved then says so. */
void ek_node_free_saved(ek_node *node);

#endif
