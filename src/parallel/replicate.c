/* replicate.c: copies of module structs, and replicate for callers. */
#include "parallel/replicate.h"

#include "comm/lists.h"
#include "evenkeel/parallel.h"
#include "nn/identity.h"
#include "parallel/replica_set.h"

/* `map` leads from the module's tensors to the handles, and from modules to their copies. */
static ek_module *copy_module(ek_module *module, ek_identity *map)
{
    void **known = ek_identity_at(map, module);
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
            void **handle = ek_identity_at(map, *from.slot.tensor);
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
    ek_identity map = {0};
    ek_module *copy = NULL;
    for (int i = 0; i < count; i++) {
        void **handle = ek_identity_at(&map, sources[i]);
        if (!handle)
            goto done;
        *handle = handles[i];
    }
    copy = copy_module(module, &map);
done:
    ek_identity_clear(&map);
    return copy;
}

/* A set for one use: the replicas' memory is theirs alone once it is gone. */
int ek_replicate(ek_module *module, const ek_device_list *devices, ek_module **replicas)
{
    if (!module)
        return EK_FAIL(EK_E_INVALID, "replicate: module is NULL");
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("replicate", devices, devs));
    EK_TRY(ek_check_home(module, devs[0]));
    ek_replica_set *set = ek_replica_set_new(module, devices->count, true);
    if (!set)
        return ek_error_pending();
    int rc = ek_replica_set_make(set, devs, devices->count, replicas);
    ek_replica_set_free(set);
    return rc;
}
