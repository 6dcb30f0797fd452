/* saved.c: reading saved tensors back. */
#include "autograd/basic.h"
#include "autograd/node.h"
#include "kernels/kernels.h"

static int check_version(const ek_node *node, const ek_saved *saved)
{
    const ek_version *version = saved->tensor->version;
    uint64_t now = atomic_load_explicit(&version->count, memory_order_relaxed);
    if (now == saved->version)
        return 0;
    const char *writer = atomic_load_explicit(&version->writer, memory_order_relaxed);
    char text[200];
    return EK_FAIL(
        EK_E_MODIFIED,
        "%s saved %s for its backward at version %llu, but %s modified it in place since "
        "(version %llu); modify a copy, or after the backward",
        node->operation->name, ek_tensor_text(saved->tensor, text),
        (unsigned long long)saved->version, writer ? writer : "something", (unsigned long long)now);
}

/* A new handle on what was saved, made by `node`. */
static ek_tensor *with_history(const ek_saved *saved, ek_node *node, int output)
{
    ek_tensor *tensor = ek_tensor_alias(saved->tensor);
    if (tensor) {
        tensor->history = ek_object_retain(node);
        tensor->history_output = output;
        tensor->requires_grad = true;
    }
    return tensor;
}

ek_tensor *ek_node_saved(ek_node *node, int index)
{
    if (index < 0 || index >= node->saved_count) {
        EK_FAIL(EK_E_INVALID, "%s has saved %d tensors, there is no saved tensor %d",
                node->operation->name, node->saved_count, index);
        return NULL;
    }
    if (node->freed) {
        EK_FAIL(
            EK_E_STATE,
            "the saved tensors of %s were freed by an earlier backward through this graph; call "
            "backward with retain_graph the first time",
            node->operation->name);
        return NULL;
    }
    const ek_saved *saved = &node->saved[index];
    if (!saved->tensor || check_version(node, saved) < 0)
        return NULL;
    if (ek_grad_enabled()) {
        if (saved->output >= 0 && ek_dtype_is_floating(saved->tensor->dtype))
            return with_history(saved, node, saved->output);
        if (saved->edge.node)
            return with_history(saved, saved->edge.node, saved->edge.output);
        ek_tensor *leaf = saved->edge.leaf;
        if (leaf &&
            (leaf->storage != saved->tensor->storage || leaf->offset != saved->tensor->offset))
            return ek_fold_alias(saved->tensor, leaf);
        if (leaf)
            return ek_scope_adopt(ek_keep(leaf));
    }
    return ek_scope_adopt(ek_keep(saved->tensor));
}

ek_tensor *ek_node_zeros(ek_node *node, int output)
{
    const ek_output_info *info = &node->outputs[output];
    ek_tensor *zeros = ek_tensor_new(info->dev, info->dtype, &info->shape, EK_CONTIGUOUS);
    if (!zeros || ek_kernels_of(zeros)->fill(info->dev, zeros, 0) < 0)
        return NULL;
    return zeros;
}
