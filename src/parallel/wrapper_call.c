/* wrapper_call.c: calls of several devices: cut, replicated, run.
 *
 * The road of a batch, from the top down:
 *
 *     ek_module_forward     nn/module_call.c: the public call
 *     data_parallel_call    data_parallel.c: chooses the device of the outputs
 *     ek_wrapper_apply      here: begins, scatters, runs
 *     ek_wrapper_begin      looks the devices up
 *     ek_wrapper_scatter    decides how many samples each device gets (wrapper_decide)
 *     ek_tree_scatter       comm/tree.c: cuts the tensors among the arguments
 *     ek_wrapper_run        makes replicas, runs them, settles their buffers
 *     ek_replica_set_make   replica_set.c: refreshes copies, records the nodes of gradients
 *     wrapper_apply_all     calls the replicas concurrently (ek_jobs_run)
 *     ek_gather_value       comm/tree.c: joins the outputs on one device */
#include <stdlib.h>

#include "comm/collectives.h"
#include "comm/tree.h"
#include "core/generator.h"
#include "core/map.h"
#include "core/value.h"
#include "core/worker.h"
#include "evenkeel/autograd.h"
#include "nn/module_table.h"
#include "parallel/draws.h"
#include "parallel/wrapper.h"

/* ---- who takes part ---- */

int ek_wrapper_begin(ek_wrapper *wrapper)
{
    if (ek_thread_self()->modes.flags & EK_MODE_ALONE)
        return EK_FAIL(EK_E_STATE,
                       "inside ek_checkpoint it would be computed again in backward on one device; "
                       "put the checkpoint inside the module that is wrapped");
    EK_TRY(ek_comm_devices(wrapper->module.type->name, &wrapper->devices, wrapper->devs));
    return ek_check_home(NULL, wrapper->child, wrapper->devs[0]);
}

/* Returns the devices on which a scattered list's elements lie, so that the elements needn't move.
 * If no input is scattered, returns the first devices. */
static ek_rank_list wrapper_ranks_of(const ek_wrapper *wrapper, const ek_tree_survey *survey)
{
    ek_rank_list ranks = {0};
    int parts = ek_value_length(survey->placed);
    for (int rank = 0; rank < wrapper->devices.count && ranks.count < parts; rank++)
        if (ek_tensor_dev(ek_tree_first(ek_value_at(survey->placed, ranks.count))) ==
            wrapper->devs[rank])
            ranks.at[ranks.count++] = rank;
    return ranks.count == survey->parts ? ranks : ek_first_rank_list(survey->parts);
}

/* Cuts a batch by its plan, and leaves out devices that get no sample. In no-grad mode the plan is
 * only read, because a forward without gradients tells nothing about the memory of training. */
static int wrapper_follow_plan(ek_wrapper *wrapper, int64_t batch, ek_wrapper_cut *cut)
{
    int64_t sizes[EK_MAX_DEVICES];
    EK_TRY(ek_grad_enabled() ? ek_planner_begin(wrapper->planner, wrapper->devs, batch, sizes)
                             : ek_planner_hold(wrapper->planner, wrapper->devs, batch, sizes));
    cut->ranks.count = 0;
    cut->sized = true;
    for (int rank = 0; rank < wrapper->devices.count; rank++) {
        if (sizes[rank] == 0)
            continue;
        cut->sizes[cut->ranks.count] = sizes[rank];
        cut->ranks.at[cut->ranks.count++] = rank;
    }
    return 0;
}

/* Decides how a call is cut. If an input is scattered already, it keeps its sizes, and tensors are
 * cut in the same sizes. Otherwise the plan decides. */
static int wrapper_decide(ek_wrapper *wrapper, const ek_tree_survey *survey, ek_wrapper_cut *cut)
{
    int devices = wrapper->devices.count;
    *cut = (ek_wrapper_cut){.ranks = ek_first_rank_list(devices)};
    if (survey->parts > devices)
        return 0; /* scatter's error */
    if (survey->parts)
        cut->ranks = wrapper_ranks_of(wrapper, survey);
    if (survey->size <= 0 || survey->sizes_known || ek_planner_is_chunk(wrapper->planner))
        return 0;
    EK_TRY(wrapper_follow_plan(wrapper, survey->size, cut));
    if (survey->parts && survey->parts != cut->ranks.count)
        return EK_FAIL(EK_E_SHAPE,
                       "the plan cuts a batch of %lld into %d chunks, but a scattered list has %d "
                       "elements",
                       (long long)survey->size, cut->ranks.count, survey->parts);
    return 0;
}

/* ---- cutting ---- */

static ek_device_list wrapper_devices_at(const ek_wrapper *wrapper, const ek_rank_list *ranks)
{
    ek_device_list devices = {.count = ranks->count};
    for (int i = 0; i < ranks->count; i++)
        devices.devices[i] = wrapper->devices.devices[ranks->at[i]];
    return devices;
}

/* Returns inputs and keywords as one value, so that both are cut into equally many chunks;
 * wrapper_args_of undoes this. */
static ek_value wrapper_value_of(const ek_args *args)
{
    return EK_LIST(ek_value_list(args->inputs, args->count), args->keywords);
}

static ek_args wrapper_args_of(ek_value value)
{
    ek_value inputs = ek_value_at(value, 0);
    return (ek_args){ek_value_items(inputs), ek_value_length(inputs), ek_value_at(value, 1)};
}

int ek_wrapper_scatter(ek_wrapper *wrapper, const ek_wrapper_cut *cut, const ek_args *args,
                       ek_wrapper_call *call)
{
    *call = (ek_wrapper_call){0};
    if (args->count == 0 && ek_value_length(args->keywords) == 0) {
        call->ranks = cut ? cut->ranks : ek_first_rank_list(1);
        return 0;
    }
    ek_wrapper_cut own;
    ek_tree_survey survey = {.size = -1};
    ek_value parts[EK_MAX_DEVICES], whole = wrapper_value_of(args);
    if (whole.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    EK_TRY(ek_tree_look(whole, wrapper->dim, &survey));
    if (!cut)
        EK_TRY(wrapper_decide(wrapper, &survey, &own));
    cut = cut ? cut : &own;
    ek_device_list devices = wrapper_devices_at(wrapper, &cut->ranks);
    int count = ek_tree_scatter(whole, &survey, &devices, cut->sized ? cut->sizes : NULL,
                                wrapper->dim, parts);
    EK_TRY(count);
    call->ranks = cut->ranks;
    call->ranks.count = count;
    for (int p = 0; p < count; p++)
        call->args[p] = wrapper_args_of(parts[p]);
    return 0;
}

/* ---- plain calls ---- */

bool ek_wrapper_is_plain(const ek_wrapper *wrapper)
{
    return !wrapper->replicas || wrapper->module.is_replica;
}

ek_value ek_wrapper_call_plain(ek_wrapper *wrapper, const ek_args *args, ek_part_function *function,
                               void *user)
{
    /* A replica's caller has moved the inputs already. */
    if (wrapper->module.is_replica)
        return function(wrapper->child, args, user);
    ek_planner_disturb(wrapper->planner);
    ek_device device = wrapper->devices.count ? wrapper->devices.devices[0] : ek_cpu();
    ek_value moved = ek_value_to_device(wrapper_value_of(args), device, wrapper->dim);
    if (moved.kind == EK_VALUE_ERROR)
        return moved;
    const ek_args own = wrapper_args_of(moved);
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_value_error();
    ek_draws draws;
    if (ek_draws_begin(&draws, wrapper->dim, &own, 1) < 0)
        return ek_value_error();
    ek_generator *stood_in = ek_draws_enter(&draws, 0);
    ek_dev *drawn_for = ek_generator_draw_for(dev);
    ek_value output = function(wrapper->child, &own, user);
    ek_generator_draw_for(drawn_for);
    ek_draws_leave(&draws, stood_in);
    ek_draws_end(&draws);
    return output;
}

/* ---- replication callbacks ---- */

/* The arguments of the calls of `replicated` in one forward: an item for each module of the
 * original whose type has `replicated`, in order of registration. All zero: none. */
typedef struct replications {
    ek_replication *items;
    int count;
} replications;

/* A list of borrowed modules. All zero is an empty list. */
typedef struct module_list {
    ek_module **modules;
    int count, capacity;
} module_list;

/* Collects the modules whose type has `replicated`, each before its descendants. A module that
 * occurs in several places is listed at its first. */
static int modules_collect(ek_module *module, ek_map *seen, module_list *list)
{
    int status = 0;
    if (!ek_map_add(seen, module, &status))
        return status;
    if (module->type->replicated) {
        EK_TRY(ek_grow(&list->modules, &list->capacity, list->count + 1));
        list->modules[list->count++] = module;
    }
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            EK_TRY(modules_collect(*member.slot.module, seen, list));
    }
    return 0;
}

static int modules_list(ek_module *module, module_list *list)
{
    ek_map seen = {0};
    int rc = modules_collect(module, &seen, list);
    ek_map_clear(&seen);
    return rc;
}

static int replications_tell(ek_replication *replication, ek_module *module)
{
    int before = ek_error_status();
    int rc = module->type->replicated(module, replication);
    if (before == 0)
        rc = ek_error_outcome(rc);
    if (rc < 0)
        ek_error_prefix(before, "replication callback of %s", module->type->name);
    return rc;
}

/* Calls `replicated` of all modules of replicas[0], then of replicas[1], ... */
static int replications_call(replications *told, ek_module *original, ek_module *const *replicas,
                             ek_dev *const *devs, int count)
{
    module_list originals = {0}, own = {0};
    int rc = modules_list(original, &originals);
    if (rc >= 0 && originals.count > 0) {
        told->items = ek_calloc((size_t)originals.count, sizeof *told->items);
        told->count = told->items ? originals.count : 0;
        rc = told->items ? 0 : ek_error_pending();
    }
    for (int r = 0; r < count && told->count > 0 && rc >= 0; r++) {
        int before = ek_error_status();
        own.count = 0;
        rc = modules_list(replicas[r],
                          &own); /* own.modules[i] is the replica of originals.modules[i] */
        for (int i = 0; i < own.count && rc >= 0; i++) {
            told->items[i].index = r;
            told->items[i].count = count;
            told->items[i].original = originals.modules[i];
            rc = replications_tell(&told->items[i], own.modules[i]);
        }
        if (rc < 0)
            ek_error_prefix(before, "replica %d on %s", r, devs[r]->name);
    }
    free(own.modules);
    free(originals.modules);
    return rc;
}

/* ---- replicas ---- */

/* The modules that a call's devices run. All zero: none. */
typedef struct wrapper_replicas {
    int count;
    ek_module *modules[EK_MAX_DEVICES];
    replications told;
} wrapper_replicas;

static void replicas_end(wrapper_replicas *replicas)
{
    const replications *told = &replicas->told;
    for (int i = 0; i < told->count; i++)
        if (told->items[i].release)
            told->items[i].release(told->items[i].context);
    free(told->items);
    for (int i = 0; i < replicas->count; i++)
        ek_module_free(replicas->modules[i]);
    *replicas = (wrapper_replicas){0};
}

/* Makes the replicas, and calls their `replicated` if the wrapper is patched. If only the first
 * device takes part, the child itself runs. A sharding wrapper makes a replica even then, because
 * gradients of replicas go to the shards' owners. */
static int replicas_make(ek_wrapper *wrapper, const ek_rank_list *ranks, ek_dev *const *devs,
                         wrapper_replicas *replicas)
{
    *replicas = (wrapper_replicas){0};
    bool alone = ranks->count == 1 && ranks->at[0] == 0;
    if (alone && !wrapper->shards) {
        replicas->modules[0] = ek_module_retain(wrapper->child);
        replicas->count = 1;
        return 0;
    }
    EK_TRY(ek_replica_set_make(wrapper->replicas, wrapper->devs, ranks, replicas->modules));
    replicas->count = ranks->count;
    int rc = 0;
    if (wrapper->calls_back && !alone)
        rc = replications_call(&replicas->told, wrapper->child, replicas->modules, devs,
                               ranks->count);
    if (rc < 0)
        replicas_end(replicas);
    return rc;
}

/* ---- running ---- */

typedef struct apply_call {
    int dim; /* along which the arguments are cut */
    ek_module *const *modules;
    const ek_args *args;
    ek_part_function *function;
    void *user;
    ek_value *outputs;
    ek_draws draws;
} apply_call;

ek_value ek_part_forward(ek_module *module, const ek_args *args, void *user)
{
    (void)user;
    return ek_module_forward(module, args);
}

static int wrapper_apply_one(void *user, int index)
{
    apply_call *call = user;
    ek_generator *before = ek_draws_enter(&call->draws, index);
    ek_value output = call->function(call->modules[index], &call->args[index], call->user);
    ek_draws_leave(&call->draws, before);
    if (output.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    call->outputs[index] = ek_value_keep(output); /* kept, because the scope ends with the job */
    return 0;
}

/* Runs the call's function for each module on its device, concurrently. Writes one output per
 * module, in the caller's scope; after an error all are EK_VALUE_ERROR. */
static int wrapper_apply_all(apply_call *call, ek_dev *const *devs, int count)
{
    ek_value *outputs = call->outputs;
    for (int i = 0; i < count; i++)
        outputs[i] = ek_value_none();
    int rc = ek_draws_begin(&call->draws, call->dim, call->args, count);
    if (rc >= 0)
        rc = ek_jobs_run(devs, count, wrapper_apply_one, call, "replica");
    ek_draws_end(&call->draws);
    for (int i = 0; i < count; i++) {
        void *object = ek_value_object(outputs[i]);
        if (rc < 0)
            ek_object_release(object);
        else if (object && !ek_scope_adopt(object))
            rc = ek_error_pending();
    }
    for (int i = 0; rc < 0 && i < count; i++)
        outputs[i] = ek_value_error();
    return rc;
}

int ek_parallel_apply(ek_module *const *modules, const ek_args *args, int count,
                      const ek_device_list *devices, ek_value *outputs)
{
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("parallel_apply", devices, devs));
    if (count < 1 || count > devices->count)
        return EK_FAIL(EK_E_INVALID, "parallel_apply: %d modules for %d devices", count,
                       devices->count);
    EK_TRY(ek_check_pointer("parallel_apply", "the array of modules", modules));
    EK_TRY(ek_check_pointer("parallel_apply", "the array of arguments", args));
    EK_TRY(ek_check_pointer("parallel_apply", "the array for the outputs", outputs));
    apply_call call = {0, modules, args, ek_part_forward, NULL, outputs, {0}};
    return wrapper_apply_all(&call, devs, count);
}

/* Writes how many samples each part of a call has; 1 for every part if the call has no tensor that
 * was cut. */
static int wrapper_count_samples(const ek_wrapper *wrapper, const ek_wrapper_call *call,
                                 int64_t *samples)
{
    for (int p = 0; p < call->ranks.count; p++) {
        samples[p] = ek_draws_samples(&call->args[p], wrapper->dim);
        if (samples[p] < 0)
            return (int)samples[p];
    }
    return 0;
}

int ek_wrapper_run(ek_wrapper *wrapper, const ek_wrapper_call *call, ek_part_function *function,
                   void *user, ek_value *outputs)
{
    const ek_rank_list *ranks = &call->ranks;
    wrapper_replicas replicas;
    ek_dev *devs[EK_MAX_DEVICES];
    int64_t samples[EK_MAX_DEVICES];
    bool averages = wrapper->running_stats == EK_RUNNING_STATS_AVERAGE && ranks->count > 1;
    if (averages)
        EK_TRY(wrapper_count_samples(wrapper, call, samples));
    for (int i = 0; i < ranks->count; i++)
        devs[i] = wrapper->devs[ranks->at[i]];
    int rc = replicas_make(wrapper, ranks, devs, &replicas);
    apply_call apply = {wrapper->dim, replicas.modules, call->args, function, user, outputs, {0}};
    if (rc >= 0)
        rc = wrapper_apply_all(&apply, devs, ranks->count);
    ek_replica_set_join(wrapper->replicas);
    if (rc >= 0)
        rc = ek_replica_set_settle_buffers(wrapper->replicas, ranks);
    if (rc >= 0 && averages)
        rc = ek_replica_set_average_buffers(wrapper->replicas, ranks, samples);
    replicas_end(&replicas);
    return rc;
}

int ek_wrapper_apply(ek_wrapper *wrapper, const ek_args *args, ek_value *outputs)
{
    ek_wrapper_call call;
    EK_TRY(ek_wrapper_begin(wrapper));
    EK_TRY(ek_wrapper_scatter(wrapper, NULL, args, &call));
    int parts = call.ranks.count;
    int rc = ek_wrapper_run(wrapper, &call, ek_part_forward, NULL, outputs);
    return rc < 0 ? rc : parts;
}
