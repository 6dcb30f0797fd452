/* replication_callback.c: replicas of one forward that know of each other. */
#include "parallel/replication_callback.h"

#include <stdlib.h>

#include "core/map.h"
#include "core/thread.h"
#include "nn/module_table.h"

/* ---- modules that want to be told ---- */

/* Modules without references of the list's own. */
typedef struct module_list {
    ek_module **modules;
    int count, capacity;
} module_list;

static int append(module_list *list, ek_module *module)
{
    EK_TRY(ek_grow(&list->modules, &list->capacity, list->count + 1));
    list->modules[list->count++] = module;
    return 0;
}

/* A module before those below it; what is shared counts where it is met first. */
static int collect(ek_module *module, ek_map *seen, module_list *list)
{
    int status = 0;
    if (!ek_map_add(seen, module, &status))
        return status;
    if (module->type->replicated)
        EK_TRY(append(list, module));
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            EK_TRY(collect(*member.slot.module, seen, list));
    }
    return 0;
}

static int list_modules(ek_module *module, module_list *list)
{
    ek_map seen = {0};
    int rc = collect(module, &seen, list);
    ek_map_clear(&seen);
    return rc;
}

/* ---- telling them ---- */

static int call_replica(ek_replications *replications, const module_list *originals,
                        const module_list *modules, int index, int count)
{
    for (int i = 0; i < modules->count; i++) {
        ek_module *module = modules->modules[i];
        ek_replication *replication = &replications->items[i];
        replication->index = index;
        replication->count = count;
        replication->original = originals->modules[i];
        int before = ek_error_status();
        int rc = module->type->replicated(module, replication);
        if (before == 0)
            rc = ek_error_outcome(rc);
        if (rc >= 0)
            continue;
        ek_error_prefix(before, "replication callback of %s", module->type->name);
        return rc;
    }
    return 0;
}

int ek_replications_call(ek_replications *replications, ek_module *original,
                         ek_module *const *replicas, ek_dev *const *devs, int count)
{
    module_list originals = {0};
    *replications = (ek_replications){0};
    int rc = list_modules(original, &originals);
    if (rc >= 0 && originals.count > 0) {
        replications->items = ek_calloc((size_t)originals.count, sizeof *replications->items);
        replications->count = replications->items ? originals.count : 0;
        rc = replications->items ? 0 : ek_error_pending();
    }
    for (int r = 0; r < count && originals.count > 0 && rc >= 0; r++) {
        module_list modules = {0}; /* a replica's are in the same places */
        int before = ek_error_status();
        rc = list_modules(replicas[r], &modules);
        if (rc >= 0)
            rc = call_replica(replications, &originals, &modules, r, count);
        if (rc < 0)
            ek_error_prefix(before, "replica %d on %s", r, devs[r]->name);
        free(modules.modules);
    }
    free(originals.modules);
    return rc;
}

void ek_replications_end(ek_replications *replications)
{
    for (int i = 0; i < replications->count; i++)
        if (replications->items[i].release)
            replications->items[i].release(replications->items[i].context);
    free(replications->items);
    *replications = (ek_replications){0};
}
