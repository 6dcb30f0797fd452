/* cast_list.c: the casts of leaves' gradients, many at a time.
 *
 * Autocast computes the gradients of parameters in 16 bits, and casts each to f32. A network has
 * many parameters, and the kernel of a cast is short, so that launching takes longer than casting.
 * A list therefore collects casts whose result nobody reads before the end of the pass: those of
 * leaves that have no hook and get no other gradient in the pass. One launch does all casts of the
 * list when the list is full, when it holds too much memory, and at the end of the pass.
 *
 * User code inside a pass (a hook, a function's backward, a nested pass) may read the gradients of
 * leaves. All lists of the thread are flushed before user code runs. */
#include "autograd/run.h"
#include "kernels/kernels.h"

/* The innermost list of this thread. Nested passes form a chain. */
static _Thread_local ek_cast_list *innermost;

void ek_cast_list_open(ek_cast_list *list)
{
    list->outer = innermost;
    innermost = list;
}

int ek_cast_list_flush(ek_cast_list *list)
{
    int rc = 0;
    if (list->count > 0)
        rc = ek_kernels_of(list->to[0])
                 ->add_n(ek_tensor_dev(list->to[0]), list->count, list->to,
                         (const ek_tensor *const *)list->from, 1);
    for (int i = 0; i < list->count; i++) {
        ek_release(list->to[i]);
        ek_release(list->from[i]);
    }
    list->count = 0;
    list->nbytes = 0;
    return rc;
}

int ek_cast_list_close(ek_cast_list *list)
{
    innermost = list->outer;
    return ek_cast_list_flush(list);
}

int ek_cast_lists_flush_all(void)
{
    int rc = 0;
    for (ek_cast_list *list = innermost; list; list = list->outer) {
        int made = ek_cast_list_flush(list);
        rc = rc < 0 ? rc : made;
    }
    return rc;
}

bool ek_cast_list_has(const ek_cast_list *list, const ek_tensor *tensor)
{
    for (int i = list->count - 1; i >= 0; i--)
        if (list->to[i] == tensor)
            return true;
    return false;
}

/* Returns the tensor that the gradient of `leaf` is cast to: its grad buffer, or new memory. */
static ek_tensor *cast_list_room(const ek_tensor *leaf)
{
    if (leaf->grad_buffer)
        return leaf->grad_buffer;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_tensor *room = ek_tensor_like(leaf);
    ek_memory_set_category(before);
    return room;
}

/* Returns true if add_n can cast the gradient: it is dense and has the leaf's layout, and no
 * communication that runs concurrently with the pass uses the memory of either. */
static bool cast_list_takes(const ek_tensor *leaf, const ek_tensor *gradient)
{
    return leaf->dtype == EK_F32 && ek_dtype_is_narrow(gradient->dtype) && ek_is_dense(leaf) &&
           ek_same_layout(gradient, leaf) && ek_tensor_dev(leaf) == ek_tensor_dev(gradient) &&
           gradient->storage->stream == EK_STREAM_COMPUTE && !ek_section_is_open() &&
           (!leaf->grad_buffer || ek_same_layout(leaf->grad_buffer, leaf));
}

int ek_node_cast_later(const ek_node *node, int input, ek_tensor *gradient, ek_tensor **result)
{
    const ek_tensor *leaf = ek_node_unseen_leaf(node, input);
    ek_cast_list *list = innermost;
    if (!list || !leaf || !cast_list_takes(leaf, gradient))
        return 0;
    ek_tensor *room = cast_list_room(leaf);
    if (!room)
        return ek_error_pending();
    if (list->count > 0 && (ek_tensor_dev(list->to[0]) != ek_tensor_dev(room) ||
                            list->from[0]->dtype != gradient->dtype))
        EK_TRY(ek_cast_list_flush(list));
    list->to[list->count] = ek_keep(room);
    list->from[list->count++] = ek_keep(gradient);
    list->nbytes += (size_t)ek_count(gradient) * ek_dtype_size(gradient->dtype);
    if (list->count == EK_CAST_LIST_TENSORS || list->nbytes >= EK_CAST_LIST_BYTES)
        EK_TRY(ek_cast_list_flush(list));
    *result = room;
    return 1;
}
