/* tensor_hook.c: functions of the user's that see, and may replace, the gradient of a tensor.
 *
 * Hooks of a leaf are held by the leaf. Hooks of other tensors are held by the node that made the
 * tensor, beside its description of the output: so they are there as long as gradients can arrive.
 */
#include <stdlib.h>

#include "autograd/run.h"

typedef struct hook_entry {
    int64_t id;
    ek_tensor_hook *function;
    void *user; /* borrowed */
} hook_entry;

typedef struct hook_list {
    ek_object object;
    hook_entry *entries;
    int count, room;
} hook_list;

static atomic_int_least64_t next_id;

static void hook_list_destroy(ek_object *object)
{
    hook_list *list = (hook_list *)object;
    free(list->entries);
    free(list);
}

/* Where the tensor's hooks are held. */
static ek_object **hook_place(ek_tensor *tensor)
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
    if (!tensor->requires_grad)
        return EK_FAIL(EK_E_AUTOGRAD, "register_hook: %s requires no gradient",
                       ek_tensor_text(tensor, text));
    if (tensor->flat)
        return EK_FAIL(EK_E_STATE,
                       "register_hook: %s is sharded over devices, and gradients go to its shards",
                       ek_tensor_text(tensor, text));
    ek_object **place = hook_place(tensor);
    hook_list *list = (hook_list *)*place;
    if (!list) {
        list = ek_calloc(1, sizeof *list);
        if (!list)
            return ek_error_pending();
        ek_object_init(&list->object, hook_list_destroy);
        *place = &list->object;
    }
    EK_TRY(ek_grow(&list->entries, &list->room, list->count + 1));
    int64_t id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed) + 1;
    list->entries[list->count++] = (hook_entry){id, hook, user};
    return id;
}

int ek_tensor_remove_hook(ek_tensor *tensor, int64_t id)
{
    if (!tensor)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "remove_hook: the tensor is NULL");
    ek_object **place = hook_place(tensor);
    hook_list *list = (hook_list *)*place;
    for (int i = 0; list && i < list->count; i++) {
        if (list->entries[i].id != id)
            continue;
        for (list->count--; i < list->count; i++)
            list->entries[i] = list->entries[i + 1];
        if (list->count == 0) {
            *place = NULL;
            ek_object_release(list);
        }
        return 0;
    }
    return EK_FAIL(EK_E_INVALID, "remove_hook: the tensor has no hook %lld", (long long)id);
}

/* ---- calls ---- */

/* What the hook makes of the gradient, with one reference; NULL with an error. */
static ek_tensor *hook_call(const hook_entry *entry, ek_tensor *gradient)
{
    char texts[2][200];
    ek_tensor *result = entry->function(gradient, entry->user);
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
    const hook_list *list =
        (const hook_list *)(task->node ? task->node->outputs[index].hooks : task->leaf->hooks);
    if (!list || !buffer->sum)
        return 0;
    ek_thread *self = ek_thread_self();
    const ek_thread_modes before = self->modes;
    int status = 0;
    for (int i = 0; i < list->count && status >= 0; i++) {
        ek_scope scope = ek_scope_begin();
        self->modes = run->modes;
        ek_tensor *result = hook_call(&list->entries[i], buffer->sum);
        self->modes = before;
        ek_scope_end(&scope);
        if (result) {
            ek_release(buffer->sum);
            buffer->sum = result;
        } else {
            status = ek_error_pending();
        }
    }
    return status;
}
