/* graph.h: how operations record themselves and write their backward.
 *
 * A graph node has edges to the nodes (or leaves) of its inputs, saved tensors, and a copy of the
 * operation's attributes. Graph nodes hold references to tensors, never scopes. A saved output is
 * stored without its edge to the node, so that there is no reference cycle; reading the output
 * restores the edge. Graphs are freed iteratively.
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
 *     } */
#ifndef EK_AUTOGRAD_GRAPH_H
#define EK_AUTOGRAD_GRAPH_H

#include "core/lane.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"

typedef struct ek_node ek_node;

typedef struct ek_operation {
    const char *name;
    /* gradients[o] is the gradient of output o, or NULL if none arrived (counts as zero).
     * results[i], NULL at first, gets the gradient of input i, in the scope; it stays NULL if
     * ek_node_needs is false or the gradient is zero. Backwards are written with differentiable
     * operations, which record if create_graph is set. Returns 0 or a negative status. If it
     * returns 0 while an error is pending and a result is NULL, the call counts as failed with that
     * error. */
    int (*backward)(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
    /* Optional: frees what the attributes own. Called once if ek_records is true, even if recording
     * fails. */
    void (*destroy)(void *attributes);
    /* True: a ready backward runs before those of nodes that aren't urgent. For operations that
     * other threads wait for or that free memory, like reducing a bucket of gradients. */
    bool urgent;
    /* True: the backward communicates with the backward of the corresponding node on other ranks.
     * It always runs, because the backwards of the other ranks run; a gradient that did not arrive
     * is given as zeros. Such backwards run one after another (Note [Nodes that meet]), and are not
     * urgent. */
    bool meets;
    /* True: the output is a slice of the only input, and the attributes are an ek_slice_attributes.
     * Without create_graph the engine doesn't call the backward, but puts the output's gradient in
     * its place in the sum of the input's gradients (gradients.c). */
    bool slices;
} ek_operation;

/* A slice of a tensor: elements along `dim` from `start` on, `step` apart. */
typedef struct ek_slice_attributes {
    ek_shape shape; /* the whole's shape */
    int dim;
    bool drop; /* select: one element, whose dimension disappeared */
    int64_t start, step;
} ek_slice_attributes;

typedef struct ek_edge {
    ek_node *node; /* the node that made the input; NULL for leaves and inputs without a gradient */
    int output;    /* the input's index among that node's outputs */
    ek_tensor *leaf; /* a leaf that accumulates, else NULL */
} ek_edge;

/* The arguments of ek_record. Arrays are read during the call only. NULL inputs have no edge. */
typedef struct ek_record_options {
    ek_tensor *const *inputs;
    int input_count;
    ek_tensor *const *saved; /* inputs, outputs or other tensors; NULL entries stay NULL */
    int saved_count;
    const void *attributes; /* copied by ek_record */
    size_t attributes_size;
    ek_dev *dev; /* the device on whose thread backward runs; NULL: by outputs (ek_node_dev) */
} ek_record_options;

#define EK_INPUTS(...)                           \
    .inputs = (ek_tensor *const[]){__VA_ARGS__}, \
    .input_count = (int)(sizeof((ek_tensor *const[]){__VA_ARGS__}) / sizeof(ek_tensor *))
#define EK_SAVED(...)                           \
    .saved = (ek_tensor *const[]){__VA_ARGS__}, \
    .saved_count = (int)(sizeof((ek_tensor *const[]){__VA_ARGS__}) / sizeof(ek_tensor *))
#define EK_ATTRIBUTES(a) .attributes = &(a), .attributes_size = sizeof(a)

/* Records y = operation(inputs) if gradient mode is on and an input requires a gradient; else does
 * nothing. Returns y, or NULL with an error (y stays in its scope). If y is NULL, returns NULL. */
#define EK_RECORD(y, operation, ...) \
    ek_record((y), (operation), &(const ek_record_options){__VA_ARGS__})
ek_tensor *ek_record(ek_tensor *y, const ek_operation *operation, const ek_record_options *options);

/* Records an operation of several outputs. NULL outputs and outputs that aren't floating carry no
 * gradient. Returns 0 or a negative status. */
int ek_record_outputs(ek_tensor *const *outputs, int output_count, const ek_operation *operation,
                      const ek_record_options *options);

/* Makes `output` of a node that was recorded earlier the history of y, a new handle on the output's
 * memory, in place of recording the operation again. The node must save no tensors. Returns false
 * if the operation must be recorded: the output has hooks, an operation that was recorded since has
 * modified its memory, or an observer counts operations. */
bool ek_record_again(ek_tensor *y, ek_node *node, int output);

/* Records an in-place operation on x after x was written and its version counted up. The new node
 * becomes x's history. Input 0 of the node is x, and its edge leads to x's earlier history. If x is
 * among the saved tensors, it counts as the output. EK_E_AUTOGRAD if x is a view, because the write
 * would be missing in its base's history. */
ek_tensor *ek_record_in_place(ek_tensor *x, const ek_operation *operation,
                              const ek_record_options *options);
/* Checks whether an operation may write x in place; called before it does. In gradient mode,
 * EK_E_AUTOGRAD if x is a leaf that requires a gradient or a view with a history. */
int ek_check_in_place(const char *operation, const ek_tensor *x);

/* True if the operation would be recorded: gradient mode is on and one of the inputs (NULLs are
 * skipped) requires a gradient. */
bool ek_records(ek_tensor *const *inputs, int count);

/* ---- in backward ---- */

/* Returns saved tensor `index`, in the scope; in gradient mode with its history. Returns NULL
 * without an error if NULL was saved. EK_E_MODIFIED, which names the node's operation and the
 * modifying one, if the tensor was modified since it was saved. EK_E_STATE ("call backward with
 * retain_graph") if an earlier backward freed it. */
ek_tensor *ek_node_saved(ek_node *node, int index);
/* Returns true if NULL was saved, or a tensor that was not modified since. For backwards that can
 * do without saved tensor `index`. */
bool ek_node_saved_is_current(const ek_node *node, int index);
/* Returns a new handle, in the scope, on the memory of saved tensor `index`, for a backward that
 * overwrites the memory with a result of the tensor's dtype and layout. Returns NULL without an
 * error if something else may still read the memory: a handle, another node, or a later pass. Call
 * ek_node_saved for this tensor afterwards. */
ek_tensor *ek_node_saved_memory(const ek_node *node, int index);
const void *ek_node_attributes(const ek_node *node);
/* Returns true if this input's gradient is wanted. The answer is exact on the thread that runs the
 * node's backward; another thread may get true for a gradient that nobody wants. */
bool ek_node_needs(const ek_node *node, int input);
/* Returns the number of the pass in which the calling thread runs the node's backward; 0 outside of
 * backward. Numbers are unique in the process. */
uint64_t ek_node_pass(const ek_node *node);
/* Returns true if the calling thread runs the node's backward in a pass that records nothing and
 * drops the saved tensors. */
bool ek_node_is_last_use(const ek_node *node);
int ek_node_input_count(const ek_node *node);
int ek_node_output_count(const ek_node *node);
/* Makes zeros of the output's shape, dtype and device, in the scope. */
ek_tensor *ek_node_zeros(ek_node *node, int output);

/* Returns the empty grad buffer of the leaf behind `input`, if the leaf gets no other contribution
 * in this pass; else NULL. A backward that writes its result there and returns the buffer saves a
 * copy. The leaf owns the buffer. For the thread that runs the node's backward. */
ek_tensor *ek_node_destination(ek_node *node, int input);
/* For the backward of a cast to 16 bits. If nobody reads the input's gradient before the pass ends,
 * adds the cast of `gradient` to the thread's cast list and returns 1; *result becomes the tensor
 * that will get the cast. The caller doesn't write to `gradient` again. Returns 0 if the caller
 * must cast at once; negative on an error. */
int ek_node_cast_later(const ek_node *node, int input, ek_tensor *gradient, ek_tensor **result);
/* Flushes the cast lists of all passes of this thread. Called before user code, which may read
 * gradients of leaves. */
int ek_cast_lists_flush_all(void);
/* Returns true if this input's gradient is only added to an existing gradient of a leaf. */
bool ek_node_accumulates(const ek_node *node, int input);
/* Returns events that follow the kernels which compute the gradients of the node's outputs, for the
 * backward of an urgent operation that defers its sections (core/lane.h). Borrowed until the
 * backward ends. */
ek_deferral ek_node_arrivals(const ek_node *node);

/* Checks that an operation may meet other ranks here; called before the operation meets them, in
 * forward or backward. Recording calls it for operations with `meets`. EK_E_STATE on concurrent
 * threads, whose order may differ from rank to rank: in jobs of a group (the common work of a
 * rendezvous is allowed), and in backwards of several devices (operations with `meets` are
 * allowed). */
int ek_check_meeting(const char *operation);

/* ---- leaves ---- */

/* Gives a leaf a grad buffer: memory in a slab in which its gradients will lie, of its shape, dtype
 * and device (else EK_E_INVALID). NULL removes the buffer. The buffer's elements need not be set;
 * if the leaf has a gradient, it is copied there. ek_tensor_set_grad(leaf, NULL) marks the gradient
 * as unset and keeps the buffer. With create_graph the gradient lies elsewhere: leaf->grad !=
 * leaf->grad_buffer. */
int ek_leaf_set_grad_buffer(ek_tensor *leaf, ek_tensor *slot);

/* ---- an operation that keeps only its inputs ----
 *
 * F is a function of tensors, composed of any operations. C(F) has F's values, but its graph is one
 * node, which holds the inputs. The node's backward evaluates F again on new leaves and
 * differentiates that evaluation. The backward is a function F'(x, g) of inputs and gradients, and
 * is called as C(F'). So with create_graph the node of the gradient keeps only its inputs, too, and
 * the backward of that node evaluates F' again. Gradients of any order follow. */

/* F. Sets outputs[o], which is NULL before, in the scope. In gradient mode the inputs are leaves of
 * this evaluation, at which the outputs' graph ends; requires_grad tells whose gradients are
 * wanted. With equal state F must give equal values each time. */
typedef int ek_recomputed_function(ek_object *state, ek_tensor *const *inputs, int input_count,
                                   ek_tensor **outputs, int output_count);

typedef struct ek_recomputed {
    const ek_operation *operation; /* has ek_recomputed_backward and ek_recomputed_destroy */
    ek_recomputed_function *function;
    ek_object *state; /* retained by the node */
    unsigned flags;   /* thread modes of the function, except gradient mode */
} ek_recomputed;

/* Records C(F) for outputs that were computed without a graph. Each output that carries a gradient
 * is replaced by a new handle. An output that is an input, or has a history already, is unchanged.
 */
int ek_record_recomputed(ek_tensor **outputs, int output_count, const ek_recomputed *recomputed,
                         ek_tensor *const *inputs, int input_count);

/* The backward and destroy of an operation in `ek_recomputed`. */
int ek_recomputed_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
void ek_recomputed_destroy(void *attributes);

/* ---- the operations that the engine itself needs; src/ops has the others ---- */

/* Returns x + y of one shape, dtype and device, for sums of gradients. Recorded in gradient mode.
 */
ek_tensor *ek_fold_add(ek_tensor *x, ek_tensor *y);

/* Copies x to the layout of `like`, which has its shape, dtype and device. Recorded in gradient
 * mode. */
ek_tensor *ek_fold_copy(ek_tensor *x, const ek_tensor *like);

/* Makes an uninitialised tensor of this shape for the gradient of a whole, of which x is the
 * gradient of a slice: channels-last if x is, else row-major. */
ek_tensor *ek_fold_whole(const ek_tensor *x, const ek_shape *shape);

/* Casts x to a floating dtype; returns x if it has that dtype. Recorded in gradient mode. */
ek_tensor *ek_fold_cast(ek_tensor *x, ek_dtype dtype);

/* ---- for the engine ---- */

struct ek_node {
    ek_object object;
    const ek_operation *operation;
    size_t nbytes;     /* the size of the cell that holds all of the node */
    uint64_t sequence; /* order of recording, over the whole process */
    int input_count, output_count, saved_count;
    bool freed;       /* the saved tensors were dropped */
    const char *path; /* The module that recorded the node (core/path.h) */
    ek_edge *edges;
    struct ek_saved *saved;
    struct ek_output_info *outputs;
    void *attributes;
    ek_dev *dev;        /* where it was recorded to run; NULL: by its outputs */
    ek_node *next_dead; /* next node in the list of dead nodes (node.c) */
};

/* A node's description of an output, which ek_node_zeros and ek_node_dev need. */
typedef struct ek_output_info {
    ek_dev *dev;
    ek_dtype dtype;
    ek_shape shape;
    uint64_t recorded;          /* count of in-place operations recorded on its memory */
    struct ek_hook_list *hooks; /* one reference to its tensor hooks (tensor_hook.c), or NULL */
} ek_output_info;

/* Returns the device on which a node's backward runs: that of ek_record_options; else the device of
 * its outputs, or, if these lie on several devices, the device of the first input with an edge. */
ek_dev *ek_node_dev(const ek_node *node);

/* Drops the saved tensors. Afterwards ek_node_saved fails with EK_E_STATE. */
void ek_node_free_saved(ek_node *node);

#endif
