/* module_copy.c: deep copies of modules.
 *
 * Structs are copied as for replicas. Until memory that a struct owns has been copied, too, the
 * copy counts as a replica, for which destroy isn't called. */
#include <string.h>

#include "core/map.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"

/* `known` maps tensors and modules to their copies (borrowed). */
typedef struct copying {
    ek_map known;
} copying;

/* Fails for a module that owns memory and whose type has no copy function, before anything is
 * copied. */
static int copy_check(const ek_module *module)
{
    const ek_module_type *type = module->type;
    if (type->destroy && !type->copy)
        return EK_FAIL(EK_E_INVALID,
                       "module_copy: %s frees memory of its own (destroy), and its type has no "
                       "`copy` that would copy that; copy the modules within it",
                       type->name);
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            EK_TRY(copy_check(*member.slot.module));
    }
    return 0;
}

/* Copies a tensor to a leaf with its values, layout and device. Returns one reference. */
static ek_tensor *copy_tensor(copying *c, ek_tensor *tensor)
{
    void **known = ek_map_at(&c->known, tensor);
    if (!known)
        return NULL;
    if (*known)
        return ek_object_retain(*known);
    ek_scope scope = ek_scope_begin();
    ek_thread_modes *modes = &ek_thread_self()->modes, before = *modes;
    modes->category = EK_MEMORY_PARAMETER;
    modes->path = tensor->storage->path;
    ek_tensor *copy = ek_is_dense(tensor) ? ek_tensor_like(tensor) : ek_clone(tensor);
    *modes = before;
    if (copy && ek_is_dense(tensor))
        copy = ek_copy_(copy, tensor);
    if (copy && tensor->requires_grad && ek_tensor_set_requires_grad(copy, true) < 0)
        copy = NULL;
    ek_object_retain(copy);
    ek_scope_end(&scope);
    if (!copy)
        return NULL;
    copy->is_parameter = tensor->is_parameter;
    return *known = copy;
}

static ek_module *copy_module(copying *c, const ek_module *module);

/* Gives the copy its own members. */
static int copy_members(copying *c, const ek_module *module, ek_module *copy)
{
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member from = ek_module_member(module, i), to = ek_module_member(copy, i);
        if (!*from.slot.tensor)
            continue;
        if (from.kind == EK_MEMBER_MODULE) {
            ek_module *child = *to.slot.module = copy_module(c, *from.slot.module);
            if (!child)
                return ek_error_pending();
            if (!child->members->has_parent)
                EK_TRY(ek_module_adopt(copy, from.name, child));
        } else if (!(*to.slot.tensor = copy_tensor(c, *from.slot.tensor))) {
            return ek_error_pending();
        }
    }
    return 0;
}

static ek_module *copy_module(copying *c, const ek_module *module)
{
    void **known = ek_map_at(&c->known, module);
    if (!known)
        return NULL;
    if (*known)
        return ek_module_retain(*known);
    ek_module *copy = ek_module_replicate_struct(module);
    if (!copy)
        return NULL;
    int status = copy_members(c, module, copy);
    if (status == 0 && module->type->copy)
        status = module->type->copy(copy, module);
    if (status < 0) {
        ek_module_free(copy);
        return NULL;
    }
    copy->is_replica = false;
    known = ek_map_at(&c->known, module); /* the map may have grown */
    if (!known) {
        ek_module_free(copy);
        return NULL;
    }
    return *known = copy;
}

ek_module *ek_module_copy(ek_module *module)
{
    if (!module)
        return ek_error_status() < 0
                   ? NULL
                   : EK_FAIL_NULL(EK_E_INVALID, "module_copy: the module is NULL");
    if (ek_check_alive("module_copy", "the module", module) < 0)
        return NULL;
    if (module->is_replica)
        return EK_FAIL_NULL(EK_E_STATE,
                            "module_copy: a replica can't be copied; copy its original");
    if (copy_check(module) < 0 || ek_fork_check() < 0)
        return NULL;
    copying c = {0};
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_module *copy = copy_module(&c, module);
    ek_set_grad_enabled(grad_enabled);
    ek_map_clear(&c.known);
    if (copy && ek_module_set_path(copy, ek_path_root) < 0) {
        ek_module_free(copy);
        return NULL;
    }
    return copy;
}
