/* recompute.c: nodes that keep only their inputs, as graph.h tells: backward evaluates F again. */
#include <stdlib.h>

#include "autograd/graph.h"

/* ---- F', the gradient of F ---- */

/* The state of F'. The inputs of F' are F's inputs and the gradients that arrived; its outputs are
 * the gradients that are wanted. */
typedef struct derivative {
    ek_object object;
    ek_recomputed of; /* F, with one reference to its state */
    int input_count, output_count;
    bool *wanted; /* true for inputs of F whose gradient is wanted */
    bool *given;  /* true for outputs of F whose gradient arrived */
} derivative;

static void derivative_destroy(ek_object *object)
{
    derivative *self = (derivative *)object;
    ek_object_release(self->of.state);
    free(self);
}

static ek_object *derivative_of(const ek_recomputed *of, const ek_node *node,
                                ek_tensor *const *gradients)
{
    size_t inputs = (size_t)ek_node_input_count(node), outputs = (size_t)ek_node_output_count(node);
    derivative *self = ek_calloc(1, sizeof *self + inputs + outputs);
    if (!self)
        return NULL;
    ek_object_init(&self->object, derivative_destroy);
    self->of = *of;
    ek_object_retain(of->state);
    self->input_count = (int)inputs;
    self->output_count = (int)outputs;
    self->wanted = (bool *)(self + 1);
    self->given = self->wanted + inputs;
    for (int i = 0; i < self->input_count; i++)
        self->wanted[i] = ek_node_needs(node, i);
    for (int o = 0; o < self->output_count; o++)
        self->given[o] = gradients[o] != NULL;
    return &self->object;
}

/* Evaluates F in gradient mode, under F's own flags. */
static int derivative_evaluate_inner(const derivative *self, ek_tensor *const *inputs,
                                     ek_tensor **outputs)
{
    unsigned *flags = &ek_thread_self()->modes.flags, before = *flags;
    *flags =
        (self->of.flags & ~(unsigned)EK_MODE_NO_GRAD) | EK_MODE_ALONE | (before & EK_MODE_BACKWARD);
    int rc =
        self->of.function(self->of.state, inputs, self->input_count, outputs, self->output_count);
    *flags = before;
    return rc;
}

/* Evaluates F and its gradients. `work` has room for F's inputs and for three times F's outputs. */
static int derivative_differentiate(const derivative *self, ek_tensor *const *inputs,
                                    ek_tensor **results, ek_tensor **work)
{
    bool create_graph = ek_grad_enabled();
    ek_tensor **leaves = work, **outputs = work + self->input_count;
    ek_tensor **roots = outputs + self->output_count, **seeds = roots + self->output_count;
    int leaf_count = 0, root_count = 0;
    for (int i = 0; i < self->input_count; i++)
        if (self->wanted[i]) {
            inputs[i]->requires_grad = true; /* other inputs are constants of this evaluation */
            leaves[leaf_count++] = inputs[i];
        }
    EK_TRY(derivative_evaluate_inner(self, inputs, outputs));
    ek_tensor *const *gradient = inputs + self->input_count;
    for (int o = 0; o < self->output_count; o++) {
        if (!self->given[o])
            continue;
        if (outputs[o] && outputs[o]->requires_grad) {
            roots[root_count] = outputs[o];
            seeds[root_count++] = *gradient;
        }
        gradient++;
    }
    if (!root_count)
        return 0;
    return ek_grad(.outputs = roots, .output_count = root_count, .inputs = leaves,
                   .input_count = leaf_count, .gradients = results, .grad_outputs = seeds,
                   .create_graph = create_graph, .allow_unused = true);
}

static int derivative_evaluate(ek_object *state, ek_tensor *const *inputs, int input_count,
                               ek_tensor **outputs, int output_count)
{
    const derivative *self = (const derivative *)state;
    (void)input_count, (void)output_count;
    size_t room = (size_t)self->input_count + 3 * (size_t)self->output_count;
    ek_tensor **work = ek_calloc(room, sizeof *work);
    if (!work)
        return ek_error_pending();
    int rc = derivative_differentiate(self, inputs, outputs, work);
    free(work);
    return rc;
}

/* ---- C(F) ---- */

static bool recompute_is_among(const ek_tensor *tensor, ek_tensor *const *tensors, int count)
{
    for (int i = 0; i < count; i++)
        if (tensors[i] == tensor)
            return true;
    return false;
}

int ek_record_recomputed(ek_tensor **outputs, int output_count, const ek_recomputed *recomputed,
                         ek_tensor *const *inputs, int input_count)
{
    if (!ek_records(inputs, input_count))
        return 0;
    ek_tensor **made = ek_calloc((size_t)output_count, sizeof *made);
    if (!made)
        return ek_error_pending();
    int rc = 0;
    for (int o = 0; o < output_count && rc >= 0; o++) {
        ek_tensor *output = outputs[o];
        if (!output || output->requires_grad || !ek_dtype_is_floating(output->dtype) ||
            recompute_is_among(output, inputs, input_count))
            continue;
        made[o] = ek_tensor_alias(output);
        rc = made[o] ? 0 : ek_error_pending();
    }
    if (rc >= 0) {
        ek_object_retain(recomputed->state); /* the node's reference */
        rc = ek_record_outputs(made, output_count, recomputed->operation,
                               &(ek_record_options){.inputs = inputs,
                                                    .input_count = input_count,
                                                    .saved = inputs,
                                                    .saved_count = input_count,
                                                    EK_ATTRIBUTES(*recomputed)});
    }
    for (int o = 0; o < output_count && rc >= 0; o++)
        outputs[o] = made[o] ? made[o] : outputs[o];
    free(made);
    return rc;
}

void ek_recomputed_destroy(void *attributes)
{
    ek_object_release(((ek_recomputed *)attributes)->state);
}

/* Evaluates the function on leaves that stand for the inputs. An output that is such a leaf is
 * replaced by the input. */
static int recompute_evaluate_on_leaves(const ek_recomputed *recomputed, ek_tensor *const *inputs,
                                        int input_count, ek_tensor **outputs, int output_count)
{
    ek_tensor **leaves = ek_calloc((size_t)input_count, sizeof *leaves);
    int rc = leaves ? 0 : ek_error_pending();
    for (int i = 0; i < input_count && rc >= 0; i++) {
        leaves[i] = inputs[i] ? ek_tensor_alias(inputs[i]) : NULL;
        rc = inputs[i] && !leaves[i] ? ek_error_pending() : 0;
    }
    if (rc >= 0)
        rc = recomputed->function(recomputed->state, leaves, input_count, outputs, output_count);
    for (int o = 0; o < output_count && rc >= 0; o++)
        for (int i = 0; outputs[o] && i < input_count; i++)
            if (outputs[o] == leaves[i]) {
                outputs[o] = inputs[i];
                break;
            }
    free(leaves);
    return rc;
}

/* C(F)(inputs): evaluates F without a graph, then records. Outputs are in the caller's scope. */
static int recompute_call(const ek_recomputed *recomputed, ek_tensor *const *inputs,
                          int input_count, ek_tensor **outputs, int output_count)
{
    unsigned *flags = &ek_thread_self()->modes.flags, before = *flags;
    ek_scope scope = ek_scope_begin();
    *flags |= EK_MODE_NO_GRAD | EK_MODE_ALONE;
    int rc = recompute_evaluate_on_leaves(recomputed, inputs, input_count, outputs, output_count);
    *flags = before;
    for (int o = 0; o < output_count; o++)
        outputs[o] = rc < 0 ? NULL : ek_keep(outputs[o]);
    ek_scope_end(&scope);
    for (int o = 0; o < output_count; o++) {
        bool lost = outputs[o] && !ek_scope_adopt(outputs[o]);
        outputs[o] = lost ? NULL : outputs[o];
        rc = lost && rc >= 0 ? ek_error_pending() : rc;
    }
    return rc < 0 ? rc
                  : ek_record_recomputed(outputs, output_count, recomputed, inputs, input_count);
}

/* Calls C(F'). There is room for the node's inputs and gradients in `inputs`, and for a gradient of
 * each input in `outputs`. */
static int recompute_backward(ek_node *node, const ek_recomputed *gradient_of,
                              ek_tensor *const *gradients, ek_tensor **results, ek_tensor **inputs,
                              ek_tensor **outputs)
{
    const derivative *what = (const derivative *)gradient_of->state;
    int input_count = ek_node_input_count(node), count = input_count, wanted = 0;
    for (int i = 0; i < input_count; i++) {
        inputs[i] = ek_node_saved(node, i);
        EK_TRY(ek_error_status());
    }
    for (int o = 0; o < ek_node_output_count(node); o++)
        if (gradients[o])
            inputs[count++] = gradients[o];
    for (int i = 0; i < input_count; i++)
        wanted += what->wanted[i];
    EK_TRY(recompute_call(gradient_of, inputs, count, outputs, wanted));
    for (int i = 0, next = 0; i < input_count; i++)
        results[i] = what->wanted[i] ? outputs[next++] : NULL;
    return 0;
}

int ek_recomputed_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_recomputed *of = ek_node_attributes(node);
    size_t inputs = (size_t)ek_node_input_count(node), outputs = (size_t)ek_node_output_count(node);
    ek_recomputed gradient_of = {of->operation, derivative_evaluate,
                                 derivative_of(of, node, gradients), ek_thread_self()->modes.flags};
    ek_tensor **room = ek_calloc(2 * inputs + outputs, sizeof *room);
    int rc = gradient_of.state && room ? 0 : ek_error_pending();
    if (rc >= 0)
        rc = recompute_backward(node, &gradient_of, gradients, results, room,
                                room + inputs + outputs);
    free(room);
    ek_object_release(gradient_of.state);
    return rc;
}
