/* leaf.c: what a tensor says about its gradient, and gradient mode. */
#include "autograd/graph.h"
#include "autograd/shards.h"
#include "kernels/kernels.h"

bool ek_grad_enabled(void)
{
    return !(ek_thread_self()->modes.flags & EK_MODE_NO_GRAD);
}

bool ek_set_grad_enabled(bool enabled)
{
    unsigned *flags = &ek_thread_self()->modes.flags;
    bool before = !(*flags & EK_MODE_NO_GRAD);
    *flags = enabled ? *flags & ~(unsigned)EK_MODE_NO_GRAD : *flags | EK_MODE_NO_GRAD;
    return before;
}

static int missing(const char *function)
{
    int status = ek_error_status();
    return status < 0 ? status : EK_FAIL(EK_E_INVALID, "%s: tensor is NULL", function);
}

bool ek_tensor_requires_grad(const ek_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}

bool ek_tensor_is_leaf(const ek_tensor *tensor)
{
    return tensor && !tensor->history;
}

int ek_tensor_set_requires_grad(ek_tensor *tensor, bool requires_grad)
{
    char text[200];
    if (!tensor)
        return missing("ek_tensor_set_requires_grad");
    if (tensor->history)
        return EK_FAIL(EK_E_AUTOGRAD,
                       "%s is the result of an operation; only leaves can be told whether they "
                       "require a gradient (ek_detach makes one)",
                       ek_tensor_text(tensor, text));
    if (requires_grad && !ek_dtype_is_floating(tensor->dtype))
        return EK_FAIL(EK_E_DTYPE, "%s cannot require a gradient; f32, f64 and bf16 can",
                       ek_tensor_text(tensor, text));
    tensor->requires_grad = requires_grad;
    const ek_shards *shards = ek_leaf_shards(tensor);
    for (int i = 0; shards && i < shards->count; i++)
        shards->shards[i].piece->requires_grad = requires_grad;
    return 0;
}

ek_tensor *ek_tensor_grad(const ek_tensor *tensor)
{
    return tensor && !tensor->grad_absent ? tensor->grad : NULL;
}

static int check_grad(const char *function, const ek_tensor *tensor, const ek_tensor *grad)
{
    char texts[2][200];
    if (ek_same_shape(tensor, grad) && tensor->dtype == grad->dtype &&
        ek_tensor_dev(tensor) == ek_tensor_dev(grad))
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: %s is no gradient for %s; shape, dtype and device must agree",
                   function, ek_tensor_text(grad, texts[0]), ek_tensor_text(tensor, texts[1]));
}

static void replace_grad(ek_tensor *tensor, ek_tensor *grad, bool absent)
{
    ek_tensor *before = tensor->grad;
    tensor->grad = ek_keep(grad);
    tensor->grad_absent = absent;
    ek_release(before);
}

int ek_tensor_set_grad(ek_tensor *tensor, ek_tensor *grad)
{
    if (!tensor)
        return missing("ek_tensor_set_grad");
    if (grad)
        EK_TRY(check_grad("ek_tensor_set_grad", tensor, grad));
    ek_leaf_drop_piece_gradients(tensor);
    if (grad) {
        if (tensor->grad && tensor->grad_absent && !tensor->grad_slot)
            tensor->grad_slot = ek_keep(tensor->grad);
        replace_grad(tensor, grad, false);
    } else if (tensor->grad_slot) {
        replace_grad(tensor, tensor->grad_slot, true);
    } else if (!tensor->grad_absent) {
        replace_grad(tensor, NULL, false);
    }
    return 0;
}

int ek_leaf_set_grad_slot(ek_tensor *leaf, ek_tensor *slot)
{
    if (!slot) {
        if (leaf->grad_absent || leaf->grad == leaf->grad_slot)
            replace_grad(leaf, NULL, false);
        ek_release(leaf->grad_slot);
        leaf->grad_slot = NULL;
        return 0;
    }
    EK_TRY(check_grad("ek_leaf_set_grad_slot", leaf, slot));
    ek_tensor *grad = leaf->grad_absent ? NULL : leaf->grad;
    if (grad && grad != slot) {
        EK_TRY(ek_kernels_of(slot)->copy(ek_tensor_dev(slot), slot, grad));
        ek_tensor_written(slot, "ek_leaf_set_grad_slot");
    }
    ek_keep(slot);
    ek_release(leaf->grad_slot);
    leaf->grad_slot = slot;
    replace_grad(leaf, slot, !grad);
    return 0;
}

ek_tensor *ek_detach(ek_tensor *tensor)
{
    if (!tensor) {
        missing("ek_detach");
        return NULL;
    }
    return ek_tensor_alias(tensor);
}
