/* recompute.h: an operation that keeps only its inputs.
 *
 * F is a function of tensors that any operations make up. C(F) has its values, but no graph of the
 * inside: the node holds the inputs, and its backward evaluates F again, on leaves of its own, and
 * differentiates that. This backward is itself a function of the inputs and the gradients,
 * F'(x, g), and it is called as C(F'). So with create_graph the node of the gradient keeps inputs
 * only too, and its backward evaluates F' again: gradients of any order come from these two lines.
 */
#ifndef EK_AUTOGRAD_RECOMPUTE_H
#define EK_AUTOGRAD_RECOMPUTE_H

#include "autograd/graph.h"

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

#endif
