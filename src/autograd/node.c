/* node.c: graph nodes: how operations record, how saved tensors are read, how graphs are freed. */
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/anomaly.h"
#include "autograd/observer.h"
#include "core/cells.h"
#include "kernels/kernels.h"

/* A saved tensor. The node has a separate handle, which neither in-place operations on the caller's
 * handle nor a parameter's move to other memory change. The handle has no history, so that it never
 * leads back to the node. */
typedef struct ek_saved {
    ek_tensor *tensor; /* one reference, without history; NULL if NULL was saved */
    ek_edge edge;      /* history of the saved tensor; holds references */
    int output;        /* index among the node's own outputs; -1 for other tensors */
    uint64_t version;  /* version of the memory when the tensor was saved */
} ek_saved;

static atomic_uint_fast64_t next_sequence;

/* ---- release ---- */

/* The list of nodes without an owner, and whether this thread is freeing them. A release within
 * another release only appends to the list, so that a chain of a million nodes needs no deep
 * stack. */
static _Thread_local ek_node *dead_nodes;
static _Thread_local bool releasing;

/* Returns the edge to where the gradient of `tensor` goes, with one reference; all zero if the
 * tensor requires no gradient. */
static ek_edge edge_to(ek_tensor *tensor)
{
    ek_edge edge = {NULL, 0, NULL};
    if (!tensor || !tensor->requires_grad)
        return edge;
    if (tensor->history) {
        edge.node = ek_object_retain(tensor->history);
        edge.output = tensor->history_output;
    } else {
        edge.leaf = ek_keep(tensor);
    }
    return edge;
}

static void edge_release(ek_edge *edge)
{
    ek_object_release(edge->node);
    ek_release(edge->leaf);
    *edge = (ek_edge){NULL, 0, NULL};
}

static void node_drop_saved(ek_node *node)
{
    for (int i = 0; i < node->saved_count; i++) {
        ek_release(node->saved[i].tensor);
        node->saved[i].tensor = NULL;
        edge_release(&node->saved[i].edge);
    }
}

static void node_release(ek_node *node)
{
    node_drop_saved(node);
    for (int i = 0; i < node->input_count; i++)
        edge_release(&node->edges[i]);
    for (int i = 0; i < node->output_count; i++)
        ek_object_release(node->outputs[i].hooks);
    if (node->attributes && node->operation->destroy)
        node->operation->destroy(node->attributes);
    ek_cell_free(node, node->nbytes);
}

static void node_destroy(ek_object *object)
{
    ek_node *node = (ek_node *)object;
    node->next_dead = dead_nodes;
    dead_nodes = node;
    if (releasing)
        return;
    releasing = true;
    while (dead_nodes) {
        node = dead_nodes;
        dead_nodes = node->next_dead;
        node_release(node);
    }
    releasing = false;
}

/* ---- recording ---- */

bool ek_records(ek_tensor *const *inputs, int count)
{
    if (ek_thread_self()->modes.flags & EK_MODE_NO_GRAD)
        return false;
    for (int i = 0; i < count; i++)
        if (inputs[i] && inputs[i]->requires_grad)
            return true;
    return false;
}

/* Refuses a view whose memory a recorded operation modified after the view was made. The view would
 * show new numbers with the old history, so that its gradient would be wrong. */
static int node_check_views(const ek_operation *operation, const ek_record_options *options)
{
    for (int i = 0; i < options->input_count; i++) {
        const ek_tensor *input = options->inputs[i];
        if (!input || !input->is_view || !input->history)
            continue;
        const ek_node *maker = (const ek_node *)input->history;
        if (maker->outputs[input->history_output].recorded ==
            atomic_load_explicit(&input->version->recorded, memory_order_relaxed))
            continue;
        return EK_FAIL(EK_E_MODIFIED,
                       "%s: input %d is a view made by %s before %s modified its memory in place; "
                       "make the view again after that",
                       operation->name, i, maker->operation->name,
                       atomic_load_explicit(&input->version->writer, memory_order_relaxed));
    }
    return 0;
}

static size_t node_aligned(size_t nbytes)
{
    return (nbytes + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
}

/* Allocates a node in one block: node, edges, saved tensors, outputs, attributes. */
static ek_node *node_new(const ek_operation *operation, int output_count,
                         const ek_record_options *options)
{
    size_t edges = node_aligned(sizeof(ek_node));
    size_t saved = edges + node_aligned((size_t)options->input_count * sizeof(ek_edge));
    size_t outputs = saved + node_aligned((size_t)options->saved_count * sizeof(ek_saved));
    size_t attributes = outputs + node_aligned((size_t)output_count * sizeof(ek_output_info));
    size_t nbytes = attributes + options->attributes_size;
    char *block = ek_cell_new(nbytes);
    if (!block)
        return NULL;
    ek_node *node = (ek_node *)block;
    node->nbytes = nbytes;
    ek_object_init(&node->object, node_destroy);
    node->operation = operation;
    node->path = ek_thread_self()->modes.path;
    node->sequence = atomic_fetch_add_explicit(&next_sequence, 1, memory_order_relaxed);
    node->input_count = options->input_count;
    node->output_count = output_count;
    node->saved_count = options->saved_count;
    node->edges = (ek_edge *)(block + edges);
    node->saved = (ek_saved *)(block + saved);
    node->outputs = (ek_output_info *)(block + outputs);
    if (options->attributes_size) {
        node->attributes = block + attributes;
        memcpy(node->attributes, options->attributes, options->attributes_size);
    }
    return node;
}

static int node_save(ek_node *node, ek_saved *saved, ek_tensor *tensor, ek_tensor *const *outputs)
{
    saved->output = -1;
    if (!tensor)
        return 0;
    saved->tensor = ek_tensor_alias_owned(tensor);
    if (!saved->tensor)
        return ek_error_pending();
    saved->version = ek_version_writes(tensor->version);
    for (int i = 0; i < node->output_count && saved->output < 0; i++)
        if (tensor == outputs[i])
            saved->output = i;
    if (saved->output < 0)
        saved->edge = edge_to(tensor);
    return 0;
}

static void node_describe_output(ek_output_info *info, const ek_tensor *output)
{
    info->dev = ek_tensor_dev(output);
    info->dtype = output->dtype;
    info->shape.ndim = output->ndim;
    memcpy(info->shape.dims, output->shape, sizeof info->shape.dims);
    info->recorded = atomic_load_explicit(&output->version->recorded, memory_order_relaxed);
}

/* Takes a reference to the node. */
static void node_set_history(ek_tensor *output, ek_node *node, int index)
{
    ek_object *before = output->history;
    output->history = &node->object;
    output->history_output = index;
    output->requires_grad = true;
    ek_object_release(before);
}

int ek_record_outputs(ek_tensor *const *outputs, int output_count, const ek_operation *operation,
                      const ek_record_options *options)
{
    ek_thread *self = ek_thread_self();
    self->meetings += operation->meets;
    if (self->observer)
        self->observer->operation(self->observer, operation->name, outputs, output_count, options);
    if (ek_checks_for(EK_CHECK_ANOMALY))
        ek_anomaly_check(outputs, output_count, operation, options);
    if (!ek_records(options->inputs, options->input_count))
        return 0;
    ek_node *node = NULL;
    if ((!operation->meets || ek_check_meeting(operation->name) >= 0) &&
        node_check_views(operation, options) >= 0)
        node = node_new(operation, output_count, options);
    if (!node) {
        if (operation->destroy)
            operation->destroy((void *)(uintptr_t)options->attributes);
        return ek_error_pending();
    }
    node->dev = options->dev;
    for (int i = 0; i < options->input_count; i++)
        node->edges[i] = edge_to(options->inputs[i]);
    int rc = 0;
    ek_node *own = node; /* this function's reference; NULL once an output has it */
    for (int i = 0; i < options->saved_count && rc >= 0; i++)
        rc = node_save(node, &node->saved[i], options->saved[i], outputs);
    for (int i = 0; i < output_count && rc >= 0; i++) {
        if (!outputs[i])
            continue;
        node_describe_output(&node->outputs[i], outputs[i]);
        if (!ek_dtype_is_floating(outputs[i]->dtype))
            continue;
        node_set_history(outputs[i], own ? own : ek_object_retain(node), i);
        own = NULL;
    }
    ek_object_release(own);
    return rc;
}

bool ek_record_again(ek_tensor *y, ek_node *node, int output)
{
    const ek_output_info *info = &node->outputs[output];
    if (info->hooks || ek_thread_self()->observer ||
        info->recorded != atomic_load_explicit(&y->version->recorded, memory_order_relaxed))
        return false;
    node_set_history(y, ek_object_retain(node), output);
    return true;
}

ek_tensor *ek_record(ek_tensor *y, const ek_operation *operation, const ek_record_options *options)
{
    return y && ek_record_outputs(&y, 1, operation, options) >= 0 ? y : NULL;
}

ek_tensor *ek_record_in_place(ek_tensor *x, const ek_operation *operation,
                              const ek_record_options *options)
{
    if (!x)
        return NULL;
    if (!ek_records(options->inputs, options->input_count)) {
        if (ek_checks_for(EK_CHECK_ANOMALY))
            ek_anomaly_check(&x, 1, operation, options);
        return ek_observed(x, operation->name, options);
    }
    if (x->is_view)
        return EK_FAIL_NULL(
            EK_E_AUTOGRAD,
            "%s writes a value with a gradient into a view, whose base would not know; build the "
            "result out of place (ek_cat, ek_where)",
            operation->name);
    atomic_fetch_add_explicit(&x->version->recorded, 1, memory_order_relaxed);
    return ek_record(x, operation, options);
}

int ek_check_in_place(const char *operation, const ek_tensor *x)
{
    if (ek_checks_for(EK_CHECK_ANOMALY))
        ek_anomaly_note(x);
    if (!x->requires_grad || (ek_thread_self()->modes.flags & EK_MODE_NO_GRAD))
        return ek_tensor_unshare(x);
    char text[200];
    if (!x->history)
        return EK_FAIL(
            EK_E_AUTOGRAD,
            "%s would modify a leaf that requires a gradient (%s) in place; turn gradient "
            "mode off for it, or work on a copy",
            operation, ek_tensor_text(x, text));
    if (x->is_view)
        return EK_FAIL(EK_E_AUTOGRAD,
                       "%s would modify a view that has a history (%s) in place; use the operation "
                       "that makes a new tensor",
                       operation, ek_tensor_text(x, text));
    return ek_tensor_unshare(x);
}

/* ---- looking at nodes ---- */

const void *ek_node_attributes(const ek_node *node)
{
    return node->attributes;
}

int ek_node_input_count(const ek_node *node)
{
    return node->input_count;
}

int ek_node_output_count(const ek_node *node)
{
    return node->output_count;
}

ek_dev *ek_node_dev(const ek_node *node)
{
    ek_dev *dev = node->dev;
    bool several = false;
    for (int i = 0; i < node->output_count && !node->dev; i++) {
        ek_dev *output_dev = node->outputs[i].dev;
        if (!dev)
            dev = output_dev;
        else if (output_dev && output_dev != dev)
            several = true;
    }
    for (int i = 0; several && i < node->input_count; i++) {
        const ek_edge *edge = &node->edges[i];
        if (edge->leaf)
            return ek_tensor_dev(edge->leaf);
        if (edge->node)
            return edge->node->outputs[edge->output].dev;
    }
    return dev;
}

void ek_node_free_saved(ek_node *node)
{
    if (!node->saved_count)
        return;
    node_drop_saved(node);
    node->freed = true;
}

/* ---- saved tensors ---- */

static uint64_t saved_version(const ek_saved *saved)
{
    return ek_version_writes(saved->tensor->version);
}

bool ek_node_saved_is_current(const ek_node *node, int index)
{
    const ek_saved *saved = &node->saved[index];
    return !saved->tensor || saved_version(saved) == saved->version;
}

static int saved_check(const ek_node *node, const ek_saved *saved)
{
    const ek_write_count *version = saved->tensor->version;
    const uint64_t now = saved_version(saved);
    if (now == saved->version)
        return 0;
    if (version->lender && now != atomic_load(&version->count))
        version = version->lender; /* It was written after the borrower got its elements. */
    const char *writer = atomic_load_explicit(&version->writer, memory_order_relaxed);
    char text[200];
    return EK_FAIL(
        EK_E_MODIFIED,
        "%s saved %s for its backward at version %llu, but %s modified it in place since "
        "(version %llu); modify a copy, or after the backward",
        node->operation->name, ek_tensor_text(saved->tensor, text),
        (unsigned long long)saved->version, writer ? writer : "something", (unsigned long long)now);
}

/* Makes a handle on the saved tensor whose history is `output` of `node`. In the scope. */
static ek_tensor *saved_with_history(const ek_saved *saved, ek_node *node, int output)
{
    ek_tensor *tensor = ek_tensor_alias(saved->tensor);
    if (tensor) {
        tensor->history = ek_object_retain(node);
        tensor->history_output = output;
        tensor->requires_grad = true;
    }
    return tensor;
}

/* Backward of a handle on the memory of a saved leaf that has moved to other memory since. The
 * handle's gradient is the leaf's gradient. */
static int saved_leaf_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    (void)node;
    results[0] = gradients[0];
    return 0;
}

static const ek_operation saved_leaf_operation = {.name = "saved leaf",
                                                  .backward = saved_leaf_backward};

static ek_tensor *saved_leaf(const ek_tensor *storage, ek_tensor *leaf)
{
    return EK_RECORD(ek_tensor_alias(storage), &saved_leaf_operation, EK_INPUTS(leaf));
}

ek_tensor *ek_node_saved(ek_node *node, int index)
{
    if (index < 0 || index >= node->saved_count)
        return EK_FAIL_NULL(EK_E_INVALID, "%s has saved %d tensors, there is no saved tensor %d",
                            node->operation->name, node->saved_count, index);
    if (node->freed)
        return EK_FAIL_NULL(
            EK_E_STATE,
            "the saved tensors of %s were freed by an earlier backward through this graph; call "
            "backward with retain_graph the first time",
            node->operation->name);
    const ek_saved *saved = &node->saved[index];
    if (!saved->tensor || saved_check(node, saved) < 0 || ek_tensor_hold(saved->tensor) < 0)
        return NULL;
    if (ek_grad_enabled()) {
        if (saved->output >= 0 && ek_dtype_is_floating(saved->tensor->dtype))
            return saved_with_history(saved, node, saved->output);
        if (saved->edge.node)
            return saved_with_history(saved, saved->edge.node, saved->edge.output);
        ek_tensor *leaf = saved->edge.leaf;
        if (leaf &&
            (leaf->storage != saved->tensor->storage || leaf->offset != saved->tensor->offset))
            return saved_leaf(saved->tensor, leaf);
        if (leaf)
            return ek_scope_adopt(ek_keep(leaf));
    }
    return ek_scope_adopt(ek_keep(saved->tensor));
}

/* Returns true if `object` has one reference. Nobody else can add another one. */
static bool saved_is_sole(const ek_object *object)
{
    return atomic_load_explicit(&object->references, memory_order_acquire) == 1;
}

ek_tensor *ek_node_saved_memory(const ek_node *node, int index)
{
    const ek_tensor *x = node->saved[index].tensor;
    if (!x || !ek_node_is_last_use(node) || !ek_is_dense(x) || !saved_is_sole(&x->object))
        return NULL;
    ek_storage *storage = x->storage;
    if (!saved_is_sole(&storage->object) || storage->category != EK_MEMORY_ACTIVATION ||
        storage->stream != EK_STREAM_COMPUTE || storage->owner || storage->residence ||
        storage->pinned_by || atomic_load(&storage->derived))
        return NULL;
    const ek_shape shape = ek_tensor_shape(x);
    return ek_tensor_member(storage, x->dtype, &shape, x->stride, x->offset);
}

ek_tensor *ek_node_zeros(ek_node *node, int output)
{
    const ek_output_info *info = &node->outputs[output];
    ek_tensor *zeros = ek_tensor_new(info->dev, info->dtype, &info->shape, EK_CONTIGUOUS);
    if (!zeros || ek_kernels_of(zeros)->fill(info->dev, zeros, 0) < 0)
        return NULL;
    return zeros;
}
