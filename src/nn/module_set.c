/* module_set.c: puts other children, parameters and buffers into the slots of registered ones. */
#include "core/tensor.h"
#include "nn/module_table.h"

/* Finds what is to be replaced, in a module that is no replica. */
static int set_find(ek_module *module, const char *path, bool tensor, ek_member_place *place)
{
    EK_TRY(ek_check_alive(tensor ? "module_set_tensor" : "module_set", "the module", module));
    EK_TRY(ek_module_find(module, path, tensor, place));
    return place->parent->is_replica
               ? EK_FAIL(EK_E_STATE,
                         "%s: \"%s\" is in a replica, which lasts for one call; replace it in the "
                         "module that was replicated",
                         module->type->name, path)
               : 0;
}

/* ---- children ---- */

static int set_child(ek_module *module, const char *path, ek_module *child)
{
    ek_member_place place;
    EK_TRY(set_find(module, path, false, &place));
    if (!child)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID,
                             "%s: the module for \"%s\" is NULL; ek_identity() does nothing",
                             module->type->name, path);
    if (ek_module_contains(child, place.parent))
        return EK_FAIL(EK_E_INVALID, "%s: \"%s\" cannot be a part of itself", module->type->name,
                       path);
    void **slot = ek_module_slot(place.parent, place.index);
    ek_module *old = *slot;
    EK_TRY(ek_module_adopt(place.parent, ek_module_member(place.parent, place.index).name, child));
    *slot = child;
    ek_module_free(old);
    return 0;
}

int ek_module_set(ek_module *module, const char *path, ek_module *child)
{
    EK_TRY(ek_check_alive("module_set", "the child", child));
    const int rc = set_child(module, path, child);
    const bool above = child && module && ek_module_contains(child, module);
    if (rc < 0 && !above)
        ek_module_discard(child);
    return rc;
}

/* ---- parameters and buffers ---- */

static void set_slot(ek_tensor **slot, ek_tensor *tensor)
{
    ek_tensor *old = *slot;
    *slot = ek_object_retain(tensor);
    ek_module_cut_gradient(old);
    ek_object_release(old);
}

/* Checks that the tensor may take the place of `old`, which is `member`'s. */
static int set_check_tensor(const ek_member_place *place, const ek_member *member, const char *path,
                            const ek_tensor *old, const ek_tensor *tensor)
{
    const char *top = place->top->type->name;
    const char *origin = old ? ek_module_origin(place->top, place->parent, old) : NULL;
    if (origin)
        return EK_FAIL(EK_E_INVALID, "%s: \"%s\" is computed from \"%s\", which can be replaced",
                       top, path, origin);
    if (tensor)
        return 0;
    EK_TRY(ek_error_status());
    return member->is_origin
               ? EK_FAIL(EK_E_INVALID,
                         "%s: \"%s\" cannot be absent, because a weight is computed from it", top,
                         path)
               : 0;
}

int ek_module_set_tensor(ek_module *module, const char *path, ek_tensor *tensor)
{
    ek_member_place place;
    EK_TRY(set_find(module, path, true, &place));
    EK_TRY(ek_check_alive("module_set_tensor", "the tensor", tensor));
    const ek_member member = ek_module_member(place.parent, place.index);
    ek_tensor *old = *member.slot.tensor, **slot;
    EK_TRY(set_check_tensor(&place, &member, path, old, tensor));
    EK_TRY(ek_module_admit(place.parent, member.kind, member.name, tensor));
    if (tensor)
        ek_module_count_memory(place.parent, tensor);
    if (tensor == old)
        return 0;
    ek_object_retain(old);
    set_slot(member.slot.tensor, tensor);
    ek_module *wrapped = member.is_origin ? ek_module_wrapped(place.parent) : NULL;
    for (; wrapped; wrapped = ek_module_wrapped(wrapped))
        while ((slot = ek_module_slot_of(wrapped, old)))
            set_slot(slot, tensor);
    ek_object_release(old);
    return 0;
}
