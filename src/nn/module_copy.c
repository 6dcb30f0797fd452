/* module_copy.c: copies of module structs, which show other tensors. */
#include "nn/module_copy.h"

#include "core/map.h"
#include "core/tensor.h"

/* `map` leads from the module's tensors to the handles, and from modules to their copies. */
static ek_module *copy_module(ek_module *module, ek_map *map)
{
    void **known = ek_map_at(map, module);
    if (!known)
        return NULL;
    if (*known)
        return ek_module_retain(*known);
    ek_module *copy = ek_module_replicate_struct(module);
    if (!copy)
        return NULL;
    *known = copy;
    int count = ek_module_member_count(module);
    for (int i = 0; i < count; i++) {
        ek_member from = ek_module_member(module, i), to = ek_module_member(copy, i);
        if (from.kind == EK_MEMBER_MODULE) {
            if (!*from.slot.module)
                continue;
            *to.slot.module = copy_module(*from.slot.module, map);
            if (!*to.slot.module)
                goto fail;
        } else if (*from.slot.tensor) {
            void **handle = ek_map_at(map, *from.slot.tensor);
            if (!handle)
                goto fail;
            *to.slot.tensor = ek_object_retain(*handle);
        }
    }
    return copy;

fail:
    ek_module_free(copy);
    return NULL;
}

ek_module *ek_module_copy_with(ek_module *module, ek_tensor *const *sources,
                               ek_tensor *const *handles, int count)
{
    ek_map map = {0};
    ek_module *copy = NULL;
    for (int i = 0; i < count; i++) {
        void **handle = ek_map_at(&map, sources[i]);
        if (!handle)
            goto done;
        *handle = handles[i];
    }
    copy = copy_module(module, &map);
done:
    ek_map_clear(&map);
    return copy;
}
