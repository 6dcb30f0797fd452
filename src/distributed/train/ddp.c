/* ddp.c: ek_distributed_data_parallel, a module whose gradients are averaged over ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "core/digest.h"
#include "core/generator.h"
#include "core/thread.h"
#include "evenkeel/autograd.h"
#include "evenkeel/parallel.h"
#include "group/same.h"
#include "group/world.h"
#include "nn/module_table.h"
#include "parallel/draws.h"
#include "parallel/replica_copies.h"
#include "parallel/sync_batch_norm.h"
#include "parallel/wrapper.h"
#include "train/layout.h"
#include "train/rank_sharding.h"
#include "train/reducer.h"

static const char ddp_name[] = "distributed_data_parallel";

typedef struct distributed {
    ek_module module;
    ek_module *child;
    ek_process_group *group;
    ek_reducer *reducer;        /* NULL with one rank */
    ek_rank_sharding *sharding; /* NULL: parameters are not sharded over ranks */
    ek_ranks *ranks;            /* of the group; one reference; NULL with one rank */
    bool broadcasts;            /* rank 0 sends its buffers before forwards that train */
    bool syncs_statistics;      /* the child's synchronised batch normalisations use the group */
    bool syncs; /* forwards arm the averaging; false between ek_no_sync_begin and end */
    uint64_t buffer_nbytes;
} distributed;

/* ---- forward ---- */

/* Returns true if parameters are gathered unit by unit. */
static bool ddp_has_units(const distributed *self)
{
    return self->sharding && self->sharding->sharding.gathering;
}

static int ddp_send_buffers(distributed *self)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(self->child, false, true, &list));
    int rc = ek_layout_broadcast(list.tensors, list.count, 0, self->group, &self->buffer_nbytes);
    ek_tensor_list_clear(&list);
    return rc;
}

/* Calls the child. A child that is no wrapper draws the random numbers that its device would draw
 * in any division of devices among ranks. */
static ek_value ddp_call_child(const distributed *self, const ek_args *args)
{
    ek_tensor_list list = {0};
    if (ek_wrapper_of(self->child) || ek_module_collect(self->child, true, false, &list) < 0)
        return ek_module_forward(self->child, args);
    ek_dev *dev = list.count ? ek_tensor_dev(list.tensors[0]) : NULL;
    ek_tensor_list_clear(&list);
    ek_draws draws;
    if (ek_draws_begin(&draws, 0, args, 1) < 0)
        return ek_value_error();
    ek_generator *stood_in = ek_draws_enter(&draws, 0);
    ek_dev *drawn_for = dev ? ek_generator_draw_for(dev) : NULL;
    ek_value output = ek_module_forward(self->child, args);
    if (dev)
        ek_generator_draw_for(drawn_for);
    ek_draws_leave(&draws, stood_in);
    ek_draws_end(&draws);
    return output;
}

typedef struct ddp_call {
    distributed *self;
    const ek_args *args;
    ek_value output;
} ddp_call;

/* Runs a forward behind the boundary, because the other ranks wait in backward for a rank whose
 * forward has failed. */
static int ddp_run_forward(ek_process_group *group, void *user)
{
    ddp_call *call = user;
    distributed *self = call->self;
    (void)group; /* the group is the module's */
    if (ek_grad_enabled())
        EK_TRY(ek_layout_check_leaves(self->child, self->reducer->leaves, self->reducer->count));
    if (ddp_has_units(self))
        EK_TRY(ek_rank_units_settle(self->sharding));
    if (self->module.training && self->syncs_statistics) /* also of modules that are new in it */
        ek_sync_batch_norm_inherit(self->child, self->ranks);
    if (self->module.training && self->broadcasts && ek_grad_enabled())
        EK_TRY(ddp_send_buffers(self));
    if (ek_grad_enabled())
        self->reducer->armed = self->syncs;
    call->output = ddp_call_child(self, call->args);
    return call->output.kind == EK_VALUE_ERROR ? ek_error_pending() : ek_error_status();
}

static ek_value ddp_forward(ek_module *module, const ek_args *args)
{
    distributed *self = (distributed *)module;
    if (!self->reducer || (!self->reducer->group->communication && !ek_grad_enabled()))
        return ek_module_forward(self->child, args);
    if (!self->reducer->group->communication) {
        EK_FAIL(EK_E_STATE, "%s: the process group that it averages over was destroyed", ddp_name);
        return ek_value_error();
    }
    ddp_call call = {self, args, ek_value_error()};
    ek_group_call(ddp_name, self->group, ddp_run_forward, &call);
    return call.output;
}

/* Returns true if somebody else has the module, or the module that it wraps. */
static bool ddp_is_shared(ek_module *module)
{
    const ek_wrapper *wrapper = ek_wrapper_of(module);
    return module && (atomic_load(&module->members->references) > 1 ||
                      (wrapper && atomic_load(&wrapper->child->members->references) > 1));
}

static void ddp_destroy(ek_module *module)
{
    distributed *self = (distributed *)module;
    if (self->child && self->syncs_statistics)
        ek_sync_batch_norm_inherit(self->child, NULL);
    ek_rank_sharding_end(self->sharding, !ddp_has_units(self) || ddp_is_shared(self->child));
    ek_reducer_free(self->reducer);
    ek_object_release(self->ranks);
}

static const ek_module_type ddp_type = {.name = "distributed_data_parallel",
                                        .size = sizeof(distributed),
                                        .forward = ddp_forward,
                                        .destroy = ddp_destroy};

/* ---- making ---- */

/* Finds the device of the module's first tensor, and whether other tensors lie on other devices. */
static int ddp_devices_of(ek_module *module, const ek_dev **dev, bool *several)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, true, &list));
    *several = false;
    *dev = list.count ? ek_tensor_dev(list.tensors[0]) : NULL;
    for (int i = 1; i < list.count; i++)
        *several = *several || ek_tensor_dev(list.tensors[i]) != *dev;
    ek_tensor_list_clear(&list);
    return 0;
}

/* Places the child as the options ask: in a wrapper of the given devices, which moves inputs there.
 * Devices share the optimizer's state, or offload it, here only if there are no other ranks.
 * Parameters that will be gathered stay where they are, so that they never lie whole on a device.
 */
static int ddp_place(ek_module **child, const ek_distributed_options *options, int ranks)
{
    const bool alone = ranks == 1, units = options->shard == EK_SHARD_PARAMETERS && !alone;
    const ek_shard_policy over_ranks = units ? (ek_shard_policy)EK_SHARD_OVER_RANKS : EK_SHARD_NONE;
    const ek_device_list *ids = &options->device_ids;
    const ek_dev *dev;
    bool several, wrapper = ek_wrapper_of(*child);
    bool output = options->output_device.kind != EK_CPU;
    EK_TRY(ek_device_list_check(ddp_name, ids));
    EK_TRY(ddp_devices_of(*child, &dev, &several));
    if ((ids->count > 0 || output) && (several || wrapper))
        return EK_FAIL(EK_E_INVALID,
                       "%s: device_ids and output_device are for a module on one device; this one "
                       "%s, and stays there",
                       ddp_name,
                       wrapper ? "is a data-parallel wrapper" : "lies on several devices");
    if (ids->count > 0) {
        *child = ek_data_parallel(*child, .device_ids = *ids, .dim = options->dim,
                                  .output_device = options->output_device,
                                  .shard = alone ? options->shard : over_ranks,
                                  .offload = alone ? options->offload : EK_OFFLOAD_NONE);
        return *child ? 0 : ek_error_pending();
    }
    if (units && several && !wrapper)
        return EK_FAIL(EK_E_INVALID,
                       "%s: EK_SHARD_PARAMETERS needs a module on one device, or a data-parallel "
                       "wrapper; this one lies on several devices",
                       ddp_name);
    if (units)
        return 0;
    return several || wrapper ? 0 : ek_flatten_parameters(*child, true);
}

static int ddp_check(const ek_distributed_options *options, double cap, int ranks)
{
    if (!(cap > 0) || !isfinite(cap))
        return EK_FAIL(EK_E_INVALID, "%s: bucket_cap_mb is %g; it must be positive", ddp_name, cap);
    if (options->shard < EK_SHARD_NONE || options->shard > EK_SHARD_PARAMETERS)
        return EK_FAIL(EK_E_INVALID,
                       "%s: %d is no shard policy; EK_SHARD_NONE, EK_SHARD_OPTIMIZER and "
                       "EK_SHARD_PARAMETERS are",
                       ddp_name, (int)options->shard);
    EK_TRY(ek_offload_check(ddp_name, options->offload));
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(options->module, true, false, &list));
    bool any = false, sharded = false;
    for (int i = 0; i < list.count; i++) {
        any = any || list.tensors[i]->requires_grad;
        sharded = sharded || list.tensors[i]->shards;
    }
    ek_tensor_list_clear(&list);
    const ek_wrapper *inner = ek_wrapper_of(options->module);
    const bool units =
        options->shard == EK_SHARD_PARAMETERS && inner && inner->shards == EK_SHARD_PARAMETERS;
    if (sharded && ranks > 1 && !units)
        return EK_FAIL(EK_E_INVALID,
                       "%s: a wrapper shards the module's parameters already; leave .shard out "
                       "there, and give it here, for the devices of all ranks",
                       ddp_name);
    return any ? 0
               : EK_FAIL(EK_E_INVALID,
                         "%s: no parameter of the module requires a gradient, so that there is "
                         "nothing to average",
                         ddp_name);
}

/* Lists the devices over which this rank shards its part: those of the child if the child is a
 * wrapper with several devices. Returns their number, 0 if parameters stay on their devices, or a
 * negative status. */
static int ddp_share_devices(ek_module *child, ek_dev **devs)
{
    const ek_wrapper *wrapper = ek_wrapper_of(child);
    if (!wrapper || wrapper->devices.count < 2)
        return 0;
    EK_TRY(ek_comm_devices(ddp_name, &wrapper->devices, devs));
    return wrapper->devices.count;
}

static int ddp_shard_units(distributed *self, const ek_distributed_options *options, ek_dev **devs,
                           int devices, ek_dev *host)
{
    const ek_wrapper *wrapper = ek_wrapper_of(self->child);
    const ek_dev *dev;
    bool several;
    if (devices == 0 && wrapper && wrapper->replicas) { /* The wrapper offloads one device. */
        EK_TRY(ek_comm_devices(ddp_name, &wrapper->devices, devs));
        devices = 1;
    } else if (devices == 0) {
        EK_TRY(ddp_devices_of(self->child, &dev, &several));
        devs[0] = options->device_ids.count ? ek_dev_get(options->device_ids.devices[0])
                                            : ek_dev_get(dev->id);
        if (!devs[0])
            return ek_error_pending();
    }
    self->sharding = ek_rank_units_new(self->reducer, self->ranks, self->child,
                                       devices > 0 ? wrapper->replicas : NULL, devs,
                                       devices > 0 ? devices : 1, host);
    if (!self->sharding)
        return ek_error_pending();
    EK_TRY(
        ek_module_to_device(self->child, devs[0]->id)); /* Buffers and the like are not sharded. */
    return ek_dist_barrier(.group = self->reducer->group);
}

static int ddp_shard(distributed *self, const ek_distributed_options *options)
{
    ek_dev *devs[EK_MAX_DEVICES] = {NULL}, *host = options->offload ? ek_dev_get(ek_cpu()) : NULL;
    int devices = ddp_share_devices(self->child, devs);
    EK_TRY(devices);
    if (options->offload && !host)
        return ek_error_pending();
    if (options->shard == EK_SHARD_PARAMETERS)
        return ddp_shard_units(self, options, devs, devices, host);
    self->sharding = ek_rank_sharding_new(self->reducer, self->ranks, devs, devices, host);
    return self->sharding ? 0 : ek_error_pending();
}

/* Numbers that must be equal on all ranks, because buckets and transfers depend on them. */
enum {
    DDP_CAP,
    DDP_NARROW,
    DDP_SHARD,
    DDP_BUFFERS,
    DDP_TRAINED,
    DDP_WHICH,
    DDP_UNITS,
    DDP_NUMBERS
};
static const char *const ddp_numbers[DDP_NUMBERS] = {
    "bucket_cap_mb in bytes",
    "bf16_gradients",
    "shard",
    "broadcast_buffers",
    "the number of parameters that require a gradient",
    "a digest of which parameters require a gradient",
    "a digest of the units of parameters (ek_shard_unit)"};

/* Writes a digest of the units by which the parameters are gathered. */
static int ddp_digest_units(ek_module *module, const ek_tensor_list *list, int64_t *digest)
{
    int *units = ek_calloc((size_t)list->count + 1, sizeof *units);
    int rc =
        units ? ek_units_assign(module, list->tensors, list->count, units) : ek_error_pending();
    uint64_t word = EK_DIGEST;
    for (int i = 0; i < list->count && rc >= 0; i++)
        word = ek_digest_word(word, (uint64_t)units[i]);
    free(units);
    *digest = (int64_t)(word >> 1);
    return rc < 0 ? rc : 0;
}

static int ddp_read_numbers(const distributed *self, const ek_distributed_options *options,
                            double cap, int64_t *numbers)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(self->child, true, false, &list));
    uint64_t digest = EK_DIGEST;
    numbers[DDP_TRAINED] = 0;
    for (int i = 0; i < list.count; i++) {
        bool trained = list.tensors[i]->requires_grad;
        numbers[DDP_TRAINED] += trained;
        digest = ek_digest_word(digest, trained);
    }
    numbers[DDP_UNITS] = 0;
    int rc = options->shard == EK_SHARD_PARAMETERS
                 ? ddp_digest_units(self->child, &list, &numbers[DDP_UNITS])
                 : 0;
    ek_tensor_list_clear(&list);
    EK_TRY(rc);
    numbers[DDP_WHICH] = (int64_t)(digest >> 1);
    numbers[DDP_CAP] = cap < 1e12 ? (int64_t)(cap * (1 << 20)) : INT64_MAX;
    numbers[DDP_NARROW] = options->bf16_gradients;
    numbers[DDP_SHARD] = options->shard;
    numbers[DDP_BUFFERS] = self->broadcasts;
    return 0;
}

/* Returns EK_E_STATE on all ranks if the numbers differ. */
static int ddp_compare(const distributed *self, const ek_distributed_options *options, double cap)
{
    int64_t mine[DDP_NUMBERS];
    ek_difference found;
    EK_TRY(ddp_read_numbers(self, options, cap, mine));
    int same = ek_group_compare(mine, DDP_NUMBERS, self->group, &found);
    return same ? same < 0 ? same : 0
                : ek_ranks_alike(EK_FAIL(
                      EK_E_STATE,
                      "%s: the ranks' wrappers differ: %s is %lld on rank %d and %lld on rank %d",
                      ddp_name, ddp_numbers[found.index], (long long)found.first,
                      self->group->ranks[0], (long long)found.other,
                      self->group->ranks[found.rank]));
}

static int ddp_start(distributed *self, const ek_distributed_options *options, double cap)
{
    self->ranks = ek_process_group_ranks(self->group);
    if (!self->ranks)
        return ek_error_pending();
    EK_TRY(ek_layout_agree(ddp_name, self->child, self->group));
    EK_TRY(ddp_compare(self, options, cap));
    if (options->init_sync) {
        ek_tensor_list list = {0};
        EK_TRY(ek_module_collect(self->child, true, true, &list));
        int rc = ek_layout_broadcast(list.tensors, list.count, 0, self->group, NULL);
        ek_tensor_list_clear(&list);
        EK_TRY(rc);
    }
    EK_TRY(ek_reducer_new(self->child, self->group, cap, options->bf16_gradients, options->shard,
                          &self->reducer));
    if (options->shard)
        EK_TRY(ddp_shard(self, options));
    self->syncs_statistics = options->sync_statistics;
    if (self->syncs_statistics)
        ek_sync_batch_norm_inherit(self->child, self->ranks);
    return 0;
}

typedef struct ddp_new {
    ek_distributed_options *options;
    ek_module *child; /* becomes the child of the wrapper */
    distributed *made;
} ddp_new;

/* Makes the wrapper. On a rank that is not in the group, the wrapper averages nothing. */
static int ddp_make(ek_process_group *group, void *user)
{
    ddp_new *call = user;
    const ek_distributed_options *options = call->options;
    int ranks = group->rank < 0 ? 1 : group->size;
    const double cap = options->bucket_cap_mb;
    EK_TRY(ddp_check(call->options, cap, ranks));
    EK_TRY(ddp_place(&call->child, options, ranks));
    distributed *self = (distributed *)ek_module_new(&ddp_type);
    if (!self)
        return ek_error_pending();
    call->made = self;
    self->group = group;
    self->syncs = true;
    self->broadcasts = options->broadcast_buffers;
    self->module.training = call->child->training;
    EK_TRY(ek_register_module(&self->module, "", &self->child, call->child));
    return ranks > 1 ? ddp_start(self, options, cap) : 0;
}

ek_module *ek_distributed_data_parallel_with(ek_distributed_options options)
{
    ddp_new call = {&options, options.module, NULL};
    if (options.offload && !options.shard)
        options.shard = EK_SHARD_OPTIMIZER;
    if (!call.child)
        return EK_FAIL_NULL(EK_E_INVALID, "%s: module is NULL", ddp_name);
    int rc = ek_group_call(ddp_name, options.process_group, ddp_make, &call);
    if (rc >= 0 && !call.made)
        rc = ddp_make(options.process_group, &call);
    if (rc >= 0)
        return &call.made->module;
    ek_module_discard(call.made ? &call.made->module : call.child);
    return NULL;
}

/* ---- what callers ask ---- */

/* The function that answers ek_ranks_of_wrapper for other types of modules; NULL: there is none. */
static ek_ranks *(*ddp_others)(ek_module *module, ek_module **child);

static ek_ranks *ddp_ranks(ek_module *module, ek_module **child)
{
    if (module->type != &ddp_type)
        return ddp_others ? ddp_others(module, child) : NULL;
    *child = ((distributed *)module)->child;
    return ((distributed *)module)->ranks;
}

static distributed *ddp_of(ek_module *module)
{
    if (module && module->type == &ddp_type)
        return (distributed *)module;
    return EK_FAIL_NULL(EK_E_INVALID, "%s is no ek_distributed_data_parallel",
                        module ? module->type->name : "NULL");
}

static bool ddp_set_sync(ek_module *module, bool sync)
{
    if (module->type != &ddp_type)
        return true;
    distributed *self = (distributed *)module;
    bool before = self->syncs;
    if (!ddp_has_units(self)) /* a device hasn't room for gradients of all units */
        self->syncs = sync;
    return before;
}

static ek_module *ddp_wrap(ek_module *module, ek_process_group *group, int shard, int offload)
{
    return ek_distributed_data_parallel(module, .process_group = group,
                                        .shard = (ek_shard_policy)shard,
                                        .offload = (ek_offload_policy)offload);
}

__attribute__((constructor)) static void ddp_register(void)
{
    ek_ranks_wrap_model = ddp_wrap;
    ddp_others = ek_ranks_of_wrapper;
    ek_ranks_of_wrapper = ddp_ranks;
    ek_ranks_set_sync = ddp_set_sync;
}

ek_no_sync ek_no_sync_begin(ek_module *model)
{
    distributed *self = ddp_of(model);
    ek_no_sync no_sync = {self ? model : NULL, self && self->syncs};
    if (self)
        self->syncs = false;
    return no_sync;
}

void ek_no_sync_end(ek_no_sync *no_sync)
{
    if (no_sync && no_sync->model)
        ((distributed *)no_sync->model)->syncs = no_sync->before;
}

int ek_distributed_get_stats(ek_module *model, ek_distributed_stats *stats)
{
    const distributed *self = ddp_of(model);
    if (!self)
        return ek_error_pending();
    if (!stats)
        return EK_FAIL(EK_E_INVALID, "%s: stats is NULL", ddp_name);
    *stats = self->reducer ? self->reducer->stats : (ek_distributed_stats){.waited_for = -1};
    if (self->reducer)
        ek_waits_read(self->reducer->group, stats);
    stats->buffer_nbytes = self->buffer_nbytes;
    stats->shares_memory = self->reducer && self->reducer->window;
    return 0;
}
