/* wrapper.c: makes and frees data-parallel wrappers, and warns of unequal devices. */
#include "parallel/wrapper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "core/ranks.h"
#include "nn/module_table.h"
#include "parallel/replica_copies.h"

/* ---- making ---- */

/* Sets the wrapper's devices: the given devices, which are checked, or all accelerators. */
static int wrapper_find_devices(ek_wrapper *wrapper, const ek_device_list *given)
{
    const char *what = wrapper->module.type->name;
    EK_TRY(ek_device_list_check(what, given));
    wrapper->devices = *given;
    if (given->count == 0) {
        EK_TRY(ek_error_status()); /* a pending error may be why the list is empty */
        ek_device_kind kind = ek_default_device_kind();
        if (ek_device_count(kind) > 0)
            wrapper->devices = ek_devices(kind, 0);
        if (wrapper->devices.count == 0)
            return ek_error_status();
    }
    EK_TRY(ek_comm_devices(what, &wrapper->devices, wrapper->devs));
    for (int i = 0; i < wrapper->devices.count; i++)
        for (int j = 0; j < i; j++)
            if (wrapper->devs[i] == wrapper->devs[j])
                return EK_FAIL(EK_E_INVALID, "%s: %s stands twice in device_ids", what,
                               wrapper->devs[i]->name);
    return 0;
}

static int wrapper_plan(ek_wrapper *wrapper, const ek_data_parallel_options *options)
{
    int devices = wrapper->devices.count;
    const int64_t *chunks = options->chunks[0] != EK_UNSET ? options->chunks : NULL;
    const double *weights = options->weights[0] != EK_UNSET ? options->weights : NULL;
    const int64_t *first = &options->first_device_batch;
    ek_split_options wishes = {.policy = options->split,
                               .goal = options->goal,
                               .chunks = chunks,
                               .weights = weights,
                               .first_device_batch = *first != EK_UNSET ? first : NULL,
                               .plan = options->plan};
    wrapper->planner = ek_planner_new(wrapper->module.type->name, &wishes, devices ? devices : 1);
    return wrapper->planner ? 0 : ek_error_pending();
}

/* Moves the module to the first device and into slabs, and makes the set of replicas. */
static int wrapper_place(ek_wrapper *wrapper, bool broadcast_buffers)
{
    int count = wrapper->devices.count;
    ek_device home = count ? wrapper->devices.devices[0] : ek_cpu();
    if (count > 1)
        EK_TRY(ek_check_home(wrapper->module.type->name, wrapper->child, NULL));
    const bool later = (int)wrapper->shards == EK_SHARD_OVER_RANKS;
    wrapper->offloads = wrapper->offloads && (count > 1 || home.kind != EK_CPU);
    if (later || (count < 2 && !wrapper->offloads))
        wrapper->shards = EK_SHARD_NONE;
    else if (wrapper->offloads && !wrapper->shards)
        wrapper->shards = EK_SHARD_OPTIMIZER;
    if (count > 1 || wrapper->shards) {
        wrapper->replicas = ek_replica_set_new(wrapper->child, count, broadcast_buffers);
        if (!wrapper->replicas)
            return ek_error_pending();
    }
    if (later)
        return 0;
    /* Parameters that are gathered never lie whole on the first device. */
    if (wrapper->shards == EK_SHARD_PARAMETERS)
        EK_TRY(ek_replica_set_shard(wrapper->replicas, wrapper->devs, wrapper->shards,
                                    wrapper->offloads, wrapper->guard));
    EK_TRY(ek_module_to_device(wrapper->child, home));
    if (wrapper->shards == EK_SHARD_PARAMETERS)
        return 0;
    EK_TRY(ek_flatten_parameters(wrapper->child, !wrapper->shards));
    return wrapper->shards ? ek_replica_set_shard(wrapper->replicas, wrapper->devs, wrapper->shards,
                                                  wrapper->offloads, wrapper->guard)
                           : 0;
}

int ek_offload_check(const char *what, ek_offload_policy offload)
{
    if (offload == EK_OFFLOAD_NONE || offload == EK_OFFLOAD_OPTIMIZER)
        return 0;
    return EK_FAIL(EK_E_INVALID,
                   "%s: %d is no offload policy; EK_OFFLOAD_NONE and EK_OFFLOAD_OPTIMIZER are",
                   what, (int)offload);
}

static int wrapper_check(const char *what, const ek_data_parallel_options *options)
{
    const int shard = (int)options->shard;
    if ((shard < EK_SHARD_NONE || shard > EK_SHARD_PARAMETERS) && shard != EK_SHARD_OVER_RANKS)
        return EK_FAIL(EK_E_INVALID,
                       "%s: %d is no shard policy; EK_SHARD_NONE, EK_SHARD_OPTIMIZER and "
                       "EK_SHARD_PARAMETERS are",
                       what, shard);
    EK_TRY(ek_offload_check(what, options->offload));
    if (options->running_stats != EK_RUNNING_STATS_FIRST &&
        options->running_stats != EK_RUNNING_STATS_AVERAGE)
        return EK_FAIL(EK_E_INVALID, "%s: %d is no policy for running statistics", what,
                       (int)options->running_stats);
    if (options->running_stats == EK_RUNNING_STATS_AVERAGE && !options->broadcast_buffers)
        return EK_FAIL(EK_E_INVALID,
                       "%s: EK_RUNNING_STATS_AVERAGE needs .broadcast_buffers: without it each "
                       "replica goes on with running statistics of its own",
                       what);
    return 0;
}

ek_wrapper *ek_wrapper_new(const ek_module_type *type, const ek_data_parallel_options *options)
{
    ek_module *child = options->module;
    if (!child)
        return EK_FAIL_NULL(EK_E_INVALID, "%s: module is NULL", type->name);
    ek_wrapper *wrapper = (ek_wrapper *)ek_module_new(type);
    if (!wrapper) {
        ek_module_discard(child);
        return NULL;
    }
    wrapper->dim = options->dim;
    wrapper->running_stats = options->running_stats;
    wrapper->shards = options->shard;
    wrapper->offloads = options->offload == EK_OFFLOAD_OPTIMIZER;
    wrapper->measures = options->split == EK_SPLIT_AUTO;
    wrapper->module.training = child->training;
    int rc = ek_register_module(&wrapper->module, "", &wrapper->child, child);
    wrapper->guard = ek_calloc(1, sizeof *wrapper->guard);
    if (rc >= 0)
        rc = wrapper->guard ? wrapper_check(type->name, options) : ek_error_pending();
    if (rc >= 0)
        rc = wrapper_find_devices(wrapper, &options->device_ids);
    if (rc >= 0)
        rc = wrapper_plan(wrapper, options);
    if (rc >= 0)
        rc = wrapper_place(wrapper, options->broadcast_buffers);
    if (rc >= 0)
        return wrapper;
    ek_module_free(&wrapper->module);
    return NULL;
}

const char ek_wrapper_family[] = "wrapper";

void ek_wrapper_destroy(ek_module *module)
{
    ek_wrapper *wrapper = (ek_wrapper *)module;
    ek_replica_set_free(wrapper->replicas);
    ek_planner_free(wrapper->planner);
    free(wrapper->guard);
}

ek_wrapper *ek_wrapper_of(ek_module *module)
{
    return module && ek_check_alive("data_parallel", "the module", module) == 0 &&
                   module->type->family == ek_wrapper_family
               ? (ek_wrapper *)module
               : NULL;
}

/* Returns the module as a wrapper of this process's devices, or NULL with EK_E_INVALID. */
static ek_wrapper *wrapper_checked(ek_module *data_parallel)
{
    ek_wrapper *wrapper = ek_wrapper_of(data_parallel);
    return wrapper ? wrapper
                   : EK_FAIL_NULL(EK_E_INVALID, "%s is no data-parallel wrapper",
                                  data_parallel ? data_parallel->type->name : "NULL");
}

ek_module *ek_data_parallel_module(ek_module *data_parallel)
{
    ek_module *within;
    if (data_parallel && ek_check_alive("data_parallel", "the module", data_parallel) < 0)
        return NULL;
    ek_ranks_around(data_parallel, &within);
    if (within == data_parallel && !wrapper_checked(data_parallel))
        return NULL;
    const ek_wrapper *wrapper = ek_wrapper_of(within);
    return wrapper ? wrapper->child : within;
}

ek_module *ek_data_parallel_unwrap(ek_module *data_parallel)
{
    ek_wrapper *wrapper = wrapper_checked(data_parallel);
    if (!wrapper)
        return NULL;
    ek_module *child = wrapper->child;
    if (data_parallel->members->has_parent)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "data_parallel_unwrap: the %s is a part of another module",
                            data_parallel->type->name);
    if (ek_wrapper_enter(wrapper) < 0) /* another thread calls it */
        return NULL;
    int rc = wrapper->replicas ? ek_replica_set_make_whole(wrapper->replicas) : 0;
    ek_wrapper_leave(wrapper);
    if (rc < 0)
        return NULL;
    ek_module_retain(child);
    ek_module_free(data_parallel);
    if (atomic_load(&child->members->references) == 1) {
        child->members->has_parent = false;
        child->members->name = ek_path_root;
    }
    return child;
}

int ek_data_parallel_get_stats(ek_module *data_parallel, ek_data_parallel_stats *stats)
{
    if (!stats)
        return EK_FAIL(EK_E_INVALID, "stats is NULL");
    *stats = (ek_data_parallel_stats){0};
    if (!wrapper_checked(data_parallel))
        return ek_error_pending();
    ek_wrapper *wrapper = (ek_wrapper *)data_parallel;
    EK_TRY(ek_wrapper_enter(wrapper));
    if (wrapper->replicas)
        *stats = ek_replica_set_stats(wrapper->replicas);
    ek_wrapper_leave(wrapper);
    return 0;
}

/* ---- unequal devices ---- */

enum { LARGEST_WEIGHT = 16 };    /* weights up to this are tried */
static const double NEAR = 0.05; /* relative error that weights may have */

/* Writes the smallest whole numbers that are nearly in these proportions, in the form "{2, 2, 1}".
 */
static void wrapper_write_weights(const double *measures, int count, double most, char *text,
                                  size_t room)
{
    long weights[EK_MAX_DEVICES];
    bool near = false;
    for (int scale = 1; scale <= LARGEST_WEIGHT && !near; scale++) {
        near = true;
        for (int i = 0; i < count; i++) {
            double exact = measures[i] / most * scale;
            weights[i] = lround(exact);
            near = near && fabs((double)weights[i] - exact) <= NEAR * exact;
        }
    }
    size_t length = 0;
    for (int i = 0; i < count && length < room; i++)
        length += (size_t)snprintf(text + length, room - length, "%s%ld%s", i ? ", " : "{",
                                   weights[i], i == count - 1 ? "}" : "");
}

static bool wrapper_warn_of(const ek_wrapper *wrapper, const double *measures, const char *measured)
{
    char weights[8 * EK_MAX_DEVICES];
    int count = wrapper->devices.count, low = 0, high = 0;
    for (int i = 0; i < count; i++) {
        low = measures[i] < measures[low] ? i : low;
        high = measures[i] > measures[high] ? i : high;
    }
    if (!(measures[low] > 0 && measures[low] < 0.75 * measures[high]))
        return false;
    wrapper_write_weights(measures, count, measures[high], weights, sizeof weights);
    ek_log_line(EK_LOG_WARNING,
                "%s: there is an imbalance between the devices: %s has less than 75%% of the %s of "
                "%s; .weights = %s would suit them, or .split = EK_SPLIT_AUTO; it can also be left "
                "out of device_ids",
                wrapper->module.type->name, wrapper->devs[low]->name, measured,
                wrapper->devs[high]->name, weights);
    return true;
}

void ek_wrapper_warn(const ek_wrapper *wrapper, const ek_data_parallel_options *options)
{
    double capacities[EK_MAX_DEVICES], speeds[EK_MAX_DEVICES];
    const bool planned = options->split == EK_SPLIT_AUTO || options->plan ||
                         options->first_device_batch != EK_UNSET ||
                         options->chunks[0] != EK_UNSET || options->weights[0] != EK_UNSET;
    if (planned || wrapper->devices.count < 2)
        return;
    for (int i = 0; i < wrapper->devices.count; i++) {
        ek_memory_stats stats = {0};
        ek_memory_get_stats(wrapper->devices.devices[i], &stats);
        capacities[i] = (double)stats.capacity; /* 0 if there is no limit */
        speeds[i] = wrapper->devs[i]->speed;
    }
    if (!wrapper_warn_of(wrapper, capacities, "memory"))
        wrapper_warn_of(wrapper, speeds, "speed");
}

/* ---- plans ---- */

int64_t ek_data_parallel_plan(ek_module *data_parallel, char *text, size_t room)
{
    if (!wrapper_checked(data_parallel))
        return ek_error_pending();
    if (!text && room > 0)
        return EK_FAIL(EK_E_INVALID, "%s: the text for the plan is NULL",
                       data_parallel->type->name);
    ek_wrapper *wrapper = (ek_wrapper *)data_parallel;
    EK_TRY(ek_wrapper_enter(wrapper));
    int64_t length = (int64_t)ek_planner_text(wrapper->planner, text, room);
    ek_wrapper_leave(wrapper);
    return length;
}

static int wrapper_peek(ek_wrapper *wrapper, int64_t batch, int64_t *sizes)
{
    EK_TRY(ek_comm_devices(wrapper->module.type->name, &wrapper->devices, wrapper->devs));
    if (batch != 0)
        return ek_planner_peek(wrapper->planner, wrapper->devs, batch, sizes);
    memset(sizes, 0, (size_t)wrapper->devices.count * sizeof *sizes);
    return 0;
}

int ek_data_parallel_sizes(ek_module *data_parallel, int64_t batch, int64_t *sizes)
{
    if (!wrapper_checked(data_parallel))
        return ek_error_pending();
    const char *what = data_parallel->type->name;
    ek_wrapper *wrapper = (ek_wrapper *)data_parallel;
    if (!sizes)
        return EK_FAIL(EK_E_INVALID, "%s: sizes is NULL", what);
    if (wrapper->devices.count == 0)
        return 0; /* a plain call on cpu */
    EK_TRY(ek_wrapper_enter(wrapper));
    int rc = wrapper_peek(wrapper, batch, sizes);
    ek_wrapper_leave(wrapper);
    return rc;
}

/* ---- callbacks ---- */

int ek_patch_replication_callback(ek_module *data_parallel)
{
    if (!wrapper_checked(data_parallel))
        return ek_error_pending();
    ((ek_wrapper *)data_parallel)->calls_back = true;
    return 0;
}

/* ---- one thread at a time ---- */

int ek_wrapper_enter(ek_wrapper *wrapper)
{
    if (wrapper->module.is_replica)
        return 0;
    return ek_call_guard_enter(wrapper->guard, wrapper->module.type->name);
}

void ek_wrapper_leave(ek_wrapper *wrapper)
{
    if (!wrapper->module.is_replica)
        ek_call_guard_leave(wrapper->guard);
}

ek_value ek_wrapper_call_alone(ek_wrapper *wrapper, const ek_args *args,
                               ek_value (*forward)(ek_module *module, const ek_args *args))
{
    if (wrapper->module.is_replica)
        return forward(&wrapper->module, args);
    if (ek_call_guard_enter(wrapper->guard, "it") <
        0) /* the caller puts the name before the sentence */
        return ek_value_error();
    ek_value output = forward(&wrapper->module, args);
    ek_call_guard_leave(wrapper->guard);
    return output;
}
