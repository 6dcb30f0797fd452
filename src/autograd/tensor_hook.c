/* tensor_hook.c: the user's functions that get, and may replace, the gradient of a tensor.
 *
 * A leaf holds its hooks. Hooks of another tensor are held by the node that made the tensor, so
 * that they exist as long as gradients can arrive. */
#include "autograd/run.h"
#include "core/hook_list.h"

/* Where the tensor's hooks are held. */
static ek_hook_list **hook_place(ek_tensor *tensor)
{
    ek_node *node = (ek_node *)tensor->history;
    return node ? &node->outputs[tensor->history_output].hooks : &tensor->hooks;
}

/* ---- registering ---- */

int64_t ek_tensor_register_hook(ek_tensor *tensor, ek_tensor_hook *hook, void *user)
{
    char text[200];
    if (!tensor || !hook)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "register_hook: the %s is NULL",
                                               tensor ? "hook" : "tensor");
    EK_TRY(ek_check_alive("register_hook", "the tensor", tensor));
    if (!tensor->requires_grad)
        return EK_FAIL(EK_E_AUTOGRAD, "register_hook: %s requires no gradient",
                       ek_tensor_text(tensor, text));
    if (tensor->shards)
        return EK_FAIL(EK_E_STATE,
                       "register_hook: %s is sharded over devices, and gradients go to its shards",
                       ek_tensor_text(tensor, text));
    return ek_hook_list_add(hook_place(tensor), 0, (ek_any_function *)hook, user);
}

int ek_tensor_remove_hook(ek_tensor *tensor, int64_t id)
{
    if (!tensor)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "remove_hook: the tensor is NULL");
    EK_TRY(ek_check_alive("remove_hook", "the tensor", tensor));
    int removed = ek_hook_list_remove(hook_place(tensor), id);
    if (removed == 0)
        return EK_FAIL(EK_E_INVALID, "remove_hook: the tensor has no hook %lld", (long long)id);
    return removed < 0 ? removed : 0;
}

/* ---- calls ---- */

/* Calls the hook. Returns one reference to the gradient that replaces `gradient`; NULL with an
 * error. */
static ek_tensor *hook_call(const ek_hook *hook, ek_tensor *gradient)
{
    char texts[2][200];
    ek_tensor *result = ((ek_tensor_hook *)hook->function)(gradient, hook->user);
    if (ek_error_outcome(0) < 0)
        return NULL;
    if (!result)
        result = gradient;
    if (!ek_same_shape(result, gradient) || result->dtype != gradient->dtype ||
        ek_tensor_dev(result) != ek_tensor_dev(gradient))
        return EK_FAIL_NULL(EK_E_SHAPE, "a hook made %s of the gradient %s",
                            ek_tensor_text(result, texts[0]), ek_tensor_text(gradient, texts[1]));
    return ek_keep(result);
}

int ek_run_call_tensor_hooks(const ek_run *run, const ek_task *task, int index)
{
    ek_buffer *buffer = &task->buffers[index];
    ek_hook_list *list = task->node ? task->node->outputs[index].hooks : task->leaf->hooks;
    if (!list || !buffer->sum)
        return 0;
    EK_TRY(ek_cast_lists_flush_all());
    ek_object_retain(list); /* a hook may remove itself */
    ek_thread *self = ek_thread_self();
    const ek_thread_modes before = self->modes;
    int status = 0;
    for (int i = 0; i < list->count && status >= 0; i++) {
        ek_scope scope = ek_scope_begin();
        self->modes = run->modes;
        self->modes.path = before.path;
        ek_tensor *result = hook_call(&list->hooks[i], buffer->sum);
        self->modes = before;
        ek_scope_end(&scope);
        if (result) {
            ek_release(buffer->sum);
            buffer->sum = result;
        } else {
            status = ek_error_pending();
        }
    }
    ek_object_release(list);
    return status;
}
