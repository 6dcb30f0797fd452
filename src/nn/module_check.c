/* module_check.c: see module_check.h. */
#include "nn/module_check.h"

#include <string.h>

#include "core/check.h"
#include "core/map.h"
#include "nn/module_table.h"

/* Adds a module's or tensor's path to the map. */
static int check_note(ek_map *paths, const char *path, const void *target)
{
    void **place = ek_map_at(paths, target);
    if (!place)
        return ek_error_pending();
    *place = (void *)path;
    return 0;
}

static int check_note_tensor(const char *path, ek_tensor *tensor, void *user)
{
    return check_note(user, path, tensor);
}

static int check_note_module(const char *path, ek_module *module, void *user)
{
    return check_note(user, path, module);
}

static bool check_is_registered(const ek_module *module, size_t offset)
{
    const ek_layout *layout = module->members->layout;
    int i = 0;
    while (i < layout->count && layout->entries[i].offset != offset)
        i++;
    return i < layout->count;
}

static int check_members_of(const char *path, ek_module *module, void *user)
{
    const ek_map *paths = user;
    const size_t size = module->type->size;
    for (size_t at = sizeof(ek_module); at + sizeof(void *) <= size; at += sizeof(void *)) {
        void *target;
        memcpy(&target, (const char *)module + at, sizeof target);
        const char *name = target ? ek_map_find(paths, target) : NULL;
        if (!name || check_is_registered(module, at))
            continue;
        ek_check_warn("%s%s%s: the member at byte %zu of its struct isn't registered and points to "
                      "\"%s\", so that replicas use the original's; register the member, or look "
                      "in forward for what it points to",
                      path, *path ? ": " : "", module->type->name, at, name);
    }
    return 0;
}

void ek_module_check_members(ek_module *module)
{
    ek_map paths = {0};
    ek_error_record before;
    ek_error_take(&before);
    if (ek_module_modules(module, check_note_module, &paths) == 0 &&
        ek_module_parameters(module, check_note_tensor, &paths) == 0 &&
        ek_module_buffers(module, check_note_tensor, &paths) == 0)
        ek_module_modules(module, check_members_of, &paths);
    ek_map_clear(&paths);
    ek_error_clear();
    ek_error_raise(&before);
}
