/* module_path.c: finds modules and tensors by their paths. */
#include <stdio.h>
#include <string.h>

#include "core/tensor.h"
#include "nn/module_table.h"

const char *ek_module_child_name(const ek_module *module, int index)
{
    if (ek_check_alive("module_child_name", "the module", module) < 0)
        return NULL;
    for (int i = 0; module && index >= 0 && i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && index-- == 0)
            return member.name;
    }
    return NULL;
}

ek_module *ek_module_wrapped(const ek_module *module)
{
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && !member.name[0])
            return *member.slot.module;
    }
    return NULL;
}

ek_tensor **ek_module_slot_of(const ek_module *module, const ek_tensor *tensor)
{
    for (int i = 0; tensor && i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != EK_MEMBER_MODULE && *member.slot.tensor == tensor)
            return member.slot.tensor;
    }
    return NULL;
}

const char *ek_module_origin(const ek_module *top, const ek_module *module, const ek_tensor *tensor)
{
    for (; top != module; top = ek_module_wrapped(top))
        for (int i = 0; i < ek_module_member_count(top); i++) {
            ek_member member = ek_module_member(top, i);
            if (member.is_origin && *member.slot.tensor == tensor)
                return member.name;
        }
    return NULL;
}

/* Returns the index of the child, or with `tensor` of the parameter or buffer, whose name has these
 * `length` bytes; -1 if there is none. */
static int path_index(const ek_module *module, const char *name, size_t length, bool tensor)
{
    for (int i = 0; i < ek_module_member_count(module) && length > 0; i++) {
        ek_member member = ek_module_member(module, i);
        if ((member.kind != EK_MEMBER_MODULE) == tensor && strlen(member.name) == length &&
            memcmp(member.name, name, length) == 0)
            return i;
    }
    return -1;
}

/* Fails. The sentence lists what there is at the place where the path broke off. */
static int path_fail(const ek_module *module, const char *path, bool tensor,
                     const ek_member_place *place)
{
    char text[400] = "";
    size_t length = 0;
    for (const ek_module *at = place->top; at; at = ek_module_wrapped(at))
        for (int i = 0; i < ek_module_member_count(at) && length < sizeof text; i++) {
            ek_member member = ek_module_member(at, i);
            if ((member.kind != EK_MEMBER_MODULE) == tensor && member.name[0])
                length += (size_t)snprintf(text + length, sizeof text - length, "%s\"%.80s\"%s",
                                           length ? ", " : "", member.name,
                                           *member.slot.tensor ? "" : " (absent)");
        }
    return EK_FAIL(EK_E_INVALID, "%s has no %s \"%.200s\"; %s has %s%s", module->type->name,
                   tensor ? "parameter or buffer" : "module", path, place->top->type->name,
                   length ? text : "none", length < sizeof text ? "" : " ...");
}

int ek_module_find(ek_module *module, const char *path, bool tensor, ek_member_place *place)
{
    *place = (ek_member_place){.top = module};
    if (!module || !path)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "the %s is NULL", !module ? "module" : "path");
    const char *rest = path;
    for (ek_module *at = module; at;) {
        const size_t length = strcspn(rest, ".");
        const bool last = !rest[length];
        const int index = path_index(at, rest, length, tensor && last);
        if (last && index >= 0) {
            place->parent = at;
            place->index = index;
            return 0;
        }
        ek_module *child = index >= 0 ? *ek_module_member(at, index).slot.module : NULL;
        if (child) {
            place->top = child;
            rest += length + 1;
        }
        at = child ? child : ek_module_wrapped(at);
    }
    return path_fail(module, path, tensor, place);
}

/* Returns what is at the path. NULL with an error if there is nothing, or if it is absent. */
static void *path_content(ek_module *module, const char *path, bool tensor)
{
    ek_member_place place;
    if (ek_module_find(module, path, tensor, &place) < 0)
        return NULL;
    void *content = *ek_module_slot(place.parent, place.index);
    if (!content)
        path_fail(module, path, tensor, &place);
    return content;
}

ek_module *ek_module_at(ek_module *module, const char *path)
{
    if (ek_check_alive("module_at", "the module", module) < 0)
        return NULL;
    return module && path && !*path ? module : path_content(module, path, false);
}

ek_tensor *ek_module_tensor(ek_module *module, const char *path)
{
    return ek_check_alive("module_tensor", "the module", module) < 0
               ? NULL
               : path_content(module, path, true);
}

ek_module *ek_module_child(ek_module *module, int index)
{
    if (!module || index < 0 || ek_check_alive("module_child", "the module", module) < 0)
        return NULL;
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && index-- == 0)
            return *member.slot.module;
    }
    return NULL;
}
