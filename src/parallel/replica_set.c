/* replica_set.c: replicas whose memory persists between forwards. */
#include "parallel/replica_set.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "comm/collectives.h"
#include "comm/exchange.h"
#include "nn/module_table.h"
#include "parallel/replica_copies.h"

/* ---- the module's tensors ---- */

/* `whole`: gathered parameters become whole, because the module lives on. */
static void set_forget(ek_replica_set *set, bool whole)
{
    ek_replica_set_join(set);
    ek_sharding_end(set->sharding, whole);
    if (set->gatherer == set->sharding)
        set->gatherer = NULL;
    set->sharding = NULL;
    ek_replica_set_forget_nodes(set);
    ek_copies_forget(set);
    set->sources = NULL;
    set->count = set->parameters = 0;
}

/* Returns true if a copy still has its source's dtype and geometry. */
static bool set_fits(const ek_tensor *copy, const ek_tensor *source)
{
    return copy->dtype == source->dtype && ek_same_shape(copy, source) &&
           (ek_same_layout(copy, source) || !ek_is_dense(source));
}

/* Returns true if the set still describes the module: no parameter was registered, replaced or
 * converted since the last forward. */
static bool set_is_current(const ek_replica_set *set, const ek_tensor_list *list, int parameters)
{
    if (!set->sources || list->count != set->count || parameters != set->parameters)
        return false;
    if (set->shards && !(set->sharding && ek_sharding_is_current(set->sharding)))
        return false;
    for (int i = 0; i < list->count; i++) {
        if (list->tensors[i] != set->sources[i])
            return false;
        for (int d = 1; d < set->devices; d++)
            if (set->copies[d].tensors && !set_fits(set->copies[d].tensors[i], list->tensors[i]))
                return false;
    }
    return true;
}

/* ---- sharding ---- */

static int set_refresh_sharded(void *user)
{
    ek_replica_set *set = user;
    ek_rank_list all = ek_first_rank_list(set->devices);
    return ek_copies_refresh(set, &all, set->parameters, false);
}

/* Marks the copies of parameter i as current, because the shards' owners have sent the parameter to
 * all devices. If status is negative, marks them as stale. */
static void set_note_published(void *user, int i, int status)
{
    ek_replica_set *set = user;
    if (!set->sources || i >= set->parameters) /* the module has changed */
        return;
    ek_tensor_written(set->sources[i], "the optimizer's step");
    for (int d = 1; d < set->devices; d++) {
        if (!set->copies[d].tensors)
            continue;
        ek_tensor_written(set->copies[d].tensors[i], "the optimizer's step");
        ek_copies_note(set, d, i, status >= 0);
    }
    if (status >= 0 && !ek_copies_gathers(set, i))
        set->stats.shared_nbytes +=
            (uint64_t)(set->devices - !set->host) * ek_comm_nbytes(set->sources[i]);
}

/* Marks the copies of parameter i as written, whose elements a user has written on the first
 * device, so that older graphs report it. */
static void set_note_written(void *user, int i)
{
    const ek_replica_set *set = user;
    for (int d = 1; d < set->devices && i < set->parameters; d++)
        if (set->copies[d].tensors)
            ek_tensor_written(set->copies[d].tensors[i], "a write to the parameter");
}

static ek_sharding_owner set_as_owner(ek_replica_set *set)
{
    return (ek_sharding_owner){.user = set,
                               .guard = set->guard,
                               .host = set->host,
                               .refresh = set_refresh_sharded,
                               .published = set_note_published,
                               .written = set_note_written};
}

/* Binds the parameters to their units, after copies on other devices are made. */
static int set_bind_parameters(ek_replica_set *set)
{
    for (int d = 1; d < set->devices; d++)
        EK_TRY(ek_copies_allocate(set, d));
    return ek_gathering_bind(set->gatherer->gathering);
}

/* Shards the module's parameters, which are gathered unit by unit. */
static int set_shard_parameters(ek_replica_set *set)
{
    ek_tensor *const *there[EK_MAX_DEVICES] = {set->sources};
    int *units = ek_calloc((size_t)set->parameters + 1, sizeof *units);
    int count = units ? ek_units_assign(set->module, set->sources, set->parameters, units)
                      : ek_error_pending();
    if (count >= 0)
        set->sharding = ek_sharding_new(set->module, set->devs, set->devices, set->parameters,
                                        there, units, count, set_as_owner(set));
    free(units);
    if (!set->sharding)
        return ek_error_pending();
    set->gatherer = set->sharding;
    ek_scope scope = ek_scope_begin();
    int rc = set_bind_parameters(set);
    ek_scope_end(&scope);
    if (rc < 0) {
        ek_sharding_end(set->sharding, true);
        set->sharding = set->gatherer = NULL;
    }
    return rc;
}

/* Copies what users wrote to gathered parameters to the shards, and forgets what replicas wrote. */
static int set_settle_gathered(ek_replica_set *set)
{
    if (!set->gatherer)
        return 0;
    for (int d = 1; d < set->devices; d++) {
        for (int i = 0; i < set->parameters && set->copies[d].tensors; i++) {
            const ek_sent *sent = &set->copies[d].sent[i];
            if (!ek_copies_gathers(set, i) ||
                sent->replica == ek_tensor_version(set->copies[d].tensors[i]))
                continue;
            EK_TRY(ek_gathering_drop(set->gatherer->gathering, d, i));
            ek_copies_note(set, d, i, true);
        }
    }
    return ek_gathering_settle(set->gatherer->gathering);
}

/* Shards the module's parameters. All devices get copies, because shards are parts of the copies.
 */
static int set_shard(ek_replica_set *set)
{
    ek_tensor *const *there[EK_MAX_DEVICES] = {set->sources};
    if (set->shards == EK_SHARD_PARAMETERS)
        return set_shard_parameters(set);
    EK_TRY(ek_flatten_parameters(set->module, false));
    for (int d = 1; d < set->devices; d++) {
        EK_TRY(ek_copies_allocate(set, d));
        there[d] = set->copies[d].tensors;
    }
    set->sharding = ek_sharding_new(set->module, set->devs, set->devices, set->parameters, there,
                                    NULL, 0, set_as_owner(set));
    return set->sharding ? 0 : ek_error_pending();
}

/* Describes the module anew. */
static int set_describe(ek_replica_set *set, const ek_tensor_list *list, int parameters)
{
    size_t room = (size_t)list->count + 1;
    set_forget(set, true);
    ek_copies own = {ek_calloc(room, sizeof *own.tensors), ek_calloc(room, sizeof *own.sent)};
    set->copies[0] = own;
    if (!own.tensors || !own.sent)
        return ek_error_pending();
    set->sources = own.tensors;
    set->count = list->count;
    set->parameters = parameters;
    for (int i = 0; i < set->count; i++)
        set->sources[i] = ek_object_retain(list->tensors[i]);
    return set->shards ? set_shard(set) : 0;
}

static int set_look_at_module(ek_replica_set *set)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(set->module, true, false, &list));
    int parameters = list.count;
    EK_TRY(ek_module_collect(set->module, false, true, &list));
    int rc = set_is_current(set, &list, parameters) ? 0 : set_describe(set, &list, parameters);
    ek_tensor_list_clear(&list);
    return rc;
}

/* Stores the buffers' versions when a forward begins, to find out later which buffers it wrote. */
static void set_note_begun(ek_replica_set *set, const ek_rank_list *ranks)
{
    for (int r = 0; r < ranks->count; r++) {
        ek_copies *copies = &set->copies[ranks->at[r]];
        for (int i = set->parameters; i < set->count; i++)
            copies->sent[i].begun = ek_tensor_version(copies->tensors[i]);
    }
}

/* ---- handles of one forward ---- */

/* Makes handles[r * set->count + i], in the scope. Buffers on the first device that require no
 * gradient are the module's own handles; all other handles are new. */
static int set_make_handles(const ek_replica_set *set, const ek_rank_list *ranks,
                            ek_tensor **handles)
{
    for (int r = 0; r < ranks->count; r++) {
        for (int i = 0; i < set->count; i++) {
            ek_tensor *tensor = set->copies[ranks->at[r]].tensors[i];
            bool own = ranks->at[r] == 0 && i >= set->parameters && !tensor->requires_grad;
            ek_tensor **handle = &handles[r * set->count + i];
            *handle = own ? tensor : ek_tensor_alias(tensor);
            if (!*handle)
                return ek_error_pending();
        }
    }
    return 0;
}

/* ---- the set ---- */

ek_replica_set *ek_replica_set_new(ek_module *module, int devices, bool broadcast_buffers)
{
    ek_replica_set *set = ek_calloc(1, sizeof *set);
    if (!set)
        return NULL;
    set->module = module;
    set->devices = devices;
    set->broadcast_buffers = broadcast_buffers;
    return set;
}

int ek_replica_set_shard(ek_replica_set *set, ek_dev *const *devs, ek_shard_policy policy,
                         bool offloads, ek_call_guard *guard)
{
    memcpy(set->devs, devs, (size_t)set->devices * sizeof *devs);
    set->shards = policy;
    set->host = offloads ? ek_dev_get(ek_cpu()) : NULL;
    if (offloads && !set->host)
        return ek_error_pending();
    set->guard = guard;
    return set_look_at_module(set);
}

void ek_replica_set_release_sharding(ek_replica_set *set)
{
    set_forget(set, false);
    set->shards = EK_SHARD_NONE;
}

int ek_replica_set_gather(ek_replica_set *set, ek_sharding *sharding)
{
    set_forget(set, false);
    set->gatherer = sharding;
    return sharding ? set_look_at_module(set) : 0;
}

void ek_replica_set_note(ek_replica_set *set, int i, bool stepped, int status)
{
    if (stepped)
        set_note_published(set, i, status);
    else
        set_note_written(set, i);
}

int ek_replica_set_make_whole(ek_replica_set *set)
{
    if (!set->sharding || !set->sharding->gathering)
        return 0;
    EK_TRY(ek_sharding_publish(set->sharding));
    EK_TRY(set_settle_gathered(set));
    return ek_gathering_end(set->sharding->gathering);
}

void ek_replica_set_free(ek_replica_set *set)
{
    if (!set)
        return;
    set_forget(set, atomic_load(&set->module->members->references) > 1);
    free(set);
}

int ek_replica_set_make(ek_replica_set *set, ek_dev *const *devs, const ek_rank_list *ranks,
                        ek_module **replicas)
{
    memcpy(set->devs, devs, (size_t)set->devices * sizeof *devs);
    EK_TRY(set_look_at_module(set));
    EK_TRY(ek_sharding_publish(set->sharding));
    EK_TRY(set_settle_gathered(set));
    EK_TRY(ek_copies_refresh(set, ranks, set->count, true));
    int count = ranks->count;
    ek_tensor **handles = ek_calloc((size_t)set->count * (size_t)count + 1, sizeof(ek_tensor *));
    if (!handles)
        return ek_error_pending();
    int rc = set_make_handles(set, ranks, handles);
    if (rc >= 0)
        rc = ek_replica_set_record(set, ranks, handles);
    int made = 0;
    while (made < count && rc >= 0) {
        replicas[made] = ek_module_copy_with(set->module, set->sources,
                                             handles + (ptrdiff_t)made * set->count, set->count);
        rc = replicas[made] ? 0 : ek_error_pending();
        made += rc >= 0;
    }
    while (rc < 0 && made > 0) {
        ek_module_free(replicas[--made]);
        replicas[made] = NULL;
    }
    free(handles);
    EK_TRY(rc);
    set_note_begun(set, ranks);
    set->stats.forwards += count > 1 || ranks->at[0] != 0;
    return 0;
}

ek_data_parallel_stats ek_replica_set_stats(const ek_replica_set *set)
{
    ek_data_parallel_stats stats = set->stats;
    if (set->gatherer)
        stats.gathered_nbytes = ek_gathering_nbytes(set->gatherer->gathering);
    return stats;
}

/* ---- where a module lies ---- */

typedef struct home {
    const char *what, *kind;
    const ek_dev *dev; /* NULL until the caller gives one or a tensor has one */
    bool given;
} home;

static int set_check_tensor(const char *path, ek_tensor *tensor, void *user)
{
    home *h = user;
    const ek_dev *dev = ek_tensor_dev(tensor);
    if (h->given && dev != h->dev)
        return EK_FAIL(
            EK_E_DEVICE,
            "the module must have its parameters and buffers on device %s (device_ids[0]), "
            "but %s \"%s\" is on device %s",
            h->dev->name, h->kind, path, dev->name);
    if (dev->id.kind == EK_CPU) /* the layer hasn't been moved to an accelerator yet */
        return 0;
    if (h->dev && dev != h->dev)
        return EK_FAIL(
            EK_E_INVALID,
            "%s: %s \"%s\" is on %s, but what comes before it is on %s; a module for several "
            "devices has to lie on one, or on cpu (ek_module_to_device)",
            h->what, h->kind, path, dev->name, h->dev->name);
    h->dev = dev;
    return 0;
}

int ek_check_home(const char *what, ek_module *module, const ek_dev *dev)
{
    home h = {what, "parameter", dev, dev != NULL};
    EK_TRY(ek_module_parameters(module, set_check_tensor, &h));
    h.kind = "buffer";
    return ek_module_buffers(module, set_check_tensor, &h);
}

/* ---- for callers ---- */

/* Makes replicas by a set that is freed at once; afterwards the replicas own their memory. */
int ek_replicate(ek_module *module, const ek_device_list *devices, ek_module **replicas)
{
    if (!module)
        return EK_FAIL(EK_E_INVALID, "replicate: module is NULL");
    if (!replicas)
        return EK_FAIL(EK_E_INVALID, "replicate: replicas is NULL; it is an array with a place for "
                                     "each device's replica");
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("replicate", devices, devs));
    EK_TRY(ek_check_home("replicate", module, devs[0]));
    ek_replica_set *set = ek_replica_set_new(module, devices->count, true);
    if (!set)
        return ek_error_pending();
    ek_rank_list all = ek_first_rank_list(devices->count);
    int rc = ek_replica_set_make(set, devs, &all, replicas);
    ek_replica_set_free(set);
    return rc;
}
