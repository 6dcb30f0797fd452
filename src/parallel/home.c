/* home.c: parameters in slabs. */
#include "parallel/home.h"

#include <stdlib.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/slab.h"
#include "nn/module_table.h"

/* A slab's member is alone in its version, but not in its storage; or it has a slot for its
 * gradient. A divided one stays where its pieces are. */
static bool is_homed(const ek_tensor *tensor)
{
    return tensor->flat ||
           (!tensor->is_view &&
            (tensor->grad_slot || tensor->storage->nbytes > ek_comm_nbytes(tensor)));
}

typedef bool chooses(const ek_tensor *tensor);

static bool needs_home(const ek_tensor *tensor)
{
    return !is_homed(tensor);
}

static bool needs_slot(const ek_tensor *tensor)
{
    return tensor->requires_grad && !tensor->grad_slot && !tensor->flat;
}

/* A slab per dtype for the tensors that `choose` picks: homes[i] is the member for tensors[i], a
 * reference, or NULL. */
static int make_slabs(const ek_tensor_list *list, chooses *choose, ek_memory_category category,
                      ek_tensor **homes)
{
    ek_tensor **chosen = ek_calloc((size_t)list->count, sizeof(ek_tensor *));
    int rc = chosen ? 0 : ek_error_pending();
    ek_memory_category before = ek_memory_set_category(category);
    for (int dtype = 0; dtype < EK_DTYPES && rc >= 0; dtype++) {
        int count = 0;
        for (int i = 0; i < list->count; i++)
            if ((int)list->tensors[i]->dtype == dtype && choose(list->tensors[i]))
                chosen[count++] = list->tensors[i];
        if (count == 0)
            continue;
        ek_slab *slab = ek_slab_new(ek_tensor_dev(chosen[0]), chosen, count);
        rc = slab ? 0 : ek_error_pending();
        for (int i = 0, member = 0; i < list->count && slab; i++)
            if (member < count && list->tensors[i] == chosen[member])
                homes[i] = ek_object_retain(slab->members[member++]);
        ek_object_release(slab);
    }
    ek_memory_set_category(before);
    free(chosen);
    return rc;
}

static int copy_all(ek_tensor *const *homes, const ek_tensor_list *list)
{
    for (int i = 0; i < list->count; i++)
        if (homes[i])
            EK_TRY(ek_comm_copy(homes[i], list->tensors[i]));
    return 0;
}

/* slots NULL: gradients get none. */
static int home(const ek_tensor_list *list, ek_tensor **homes, ek_tensor **slots)
{
    for (int i = 1; i < list->count; i++)
        if (ek_tensor_dev(list->tensors[i]) != ek_tensor_dev(list->tensors[0]))
            return EK_FAIL(EK_E_DEVICE, "parameters of one module lie on %s and on %s",
                           ek_tensor_dev(list->tensors[0])->name,
                           ek_tensor_dev(list->tensors[i])->name);
    EK_TRY(make_slabs(list, needs_home, EK_MEMORY_PARAMETER, homes));
    if (slots)
        EK_TRY(make_slabs(list, needs_slot, EK_MEMORY_GRADIENT, slots));
    EK_TRY(copy_all(homes, list));
    for (int i = 0; i < list->count; i++)
        if (slots && slots[i])
            EK_TRY(ek_leaf_set_grad_slot(list->tensors[i], slots[i]));
    for (int i = 0; i < list->count; i++) {
        if (!homes[i])
            continue;
        ek_tensor_rehome(list->tensors[i], homes[i]);
        list->tensors[i]->is_view = false;
    }
    return 0;
}

int ek_home_parameters(ek_module *module, bool gradients)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, false, &list));
    ek_tensor **homes = ek_calloc(2 * (size_t)list.count + 1, sizeof(ek_tensor *));
    ek_scope scope = ek_scope_begin();
    int rc = homes ? home(&list, homes, gradients ? homes + list.count : NULL) : ek_error_pending();
    ek_scope_end(&scope);
    for (int i = 0; homes && i < 2 * list.count; i++)
        ek_object_release(homes[i]);
    free(homes);
    ek_tensor_list_clear(&list);
    return rc;
}
