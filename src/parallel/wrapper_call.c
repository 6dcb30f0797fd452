/* wrapper_call.c: calls of several devices: cut, replicated, run. */
#include <stdlib.h>

#include "comm/collectives.h"
#include "comm/nest.h"
#include "evenkeel/autograd.h"
#include "nn/module_table.h"
#include "parallel/replication_callback.h"
#include "parallel/running_stats.h"
#include "parallel/wrapper.h"

/* ---- who takes part ---- */

int ek_wrapper_begin(ek_wrapper *wrapper)
{
    if (ek_thread_self()->modes.flags & EK_MODE_ALONE)
        return EK_FAIL(EK_E_STATE,
                       "inside ek_checkpoint it would be computed again in backward on one device; "
                       "put the checkpoint inside the module that is wrapped");
    EK_TRY(ek_comm_devices(wrapper->module.type->name, &wrapper->devices, wrapper->devs));
    return ek_check_home(wrapper->child, wrapper->devs[0]);
}

static ek_places first_places(int count)
{
    ek_places places = {.count = count};
    for (int i = 0; i < count; i++)
        places.at[i] = i;
    return places;
}

/* The first list in the nest that is scattered already and has tensors in all elements. */
static ek_value scattered_list(ek_value value)
{
    if (value.kind != EK_VALUE_LIST && value.kind != EK_VALUE_DICT)
        return ek_value_none();
    int count = ek_value_length(value);
    bool all = count > 0;
    for (int i = 0; i < count && value.per_device; i++)
        all = all && ek_nest_first(ek_value_at(value, i));
    if (value.per_device)
        return all ? value : ek_value_none();
    ek_value found = ek_value_none();
    for (int i = 0; i < count && found.kind == EK_VALUE_NONE; i++)
        found = scattered_list(ek_value_at(value, i));
    return found;
}

/* Where a scattered list's elements lie already, so that they can stay there; anywhere else they go
 * to the first devices. */
static ek_places places_of(const ek_wrapper *wrapper, ek_value list, int parts)
{
    ek_places places = {0};
    for (int place = 0; place < wrapper->devices.count && places.count < parts; place++)
        if (ek_value_length(list) == parts &&
            ek_tensor_dev(ek_nest_first(ek_value_at(list, places.count))) == wrapper->devs[place])
            places.at[places.count++] = place;
    return places.count == parts ? places : first_places(parts);
}

/* The plan for a batch, without the devices that get nothing. If nothing will go backward the
 * plan is only read: what such a forward needs says nothing about training. */
static int follow_plan(ek_wrapper *wrapper, int64_t batch, ek_wrapper_cut *cut)
{
    int64_t sizes[EK_MAX_DEVICES];
    EK_TRY(ek_grad_enabled() ? ek_planner_begin(wrapper->planner, wrapper->devs, batch, sizes)
                             : ek_planner_hold(wrapper->planner, wrapper->devs, batch, sizes));
    cut->places.count = 0;
    cut->sized = true;
    for (int place = 0; place < wrapper->devices.count; place++) {
        if (sizes[place] == 0)
            continue;
        cut->sizes[cut->places.count] = sizes[place];
        cut->places.at[cut->places.count++] = place;
    }
    return 0;
}

/* Lists that are scattered already keep their sizes, and tensors beside them follow; else the plan
 * says. */
static int decide(ek_wrapper *wrapper, ek_value nest, ek_wrapper_cut *cut)
{
    ek_nest_survey survey = {.size = -1};
    int devices = wrapper->devices.count;
    EK_TRY(ek_nest_look(nest, wrapper->dim, &survey));
    *cut = (ek_wrapper_cut){.places = first_places(devices)};
    if (survey.parts > devices)
        return 0; /* scatter's error */
    if (survey.parts)
        cut->places = places_of(wrapper, scattered_list(nest), survey.parts);
    if (survey.size <= 0 || survey.sizes_known || ek_planner_is_chunk(wrapper->planner))
        return 0;
    EK_TRY(follow_plan(wrapper, survey.size, cut));
    if (survey.parts && survey.parts != cut->places.count)
        return EK_FAIL(EK_E_SHAPE,
                       "the plan cuts a batch of %lld into %d chunks, but a scattered list has %d "
                       "elements",
                       (long long)survey.size, cut->places.count, survey.parts);
    return 0;
}

/* ---- cutting ---- */

static ek_device_list devices_at(const ek_wrapper *wrapper, const ek_places *places)
{
    ek_device_list devices = {.count = places->count};
    for (int i = 0; i < places->count; i++)
        devices.devices[i] = wrapper->devices.devices[places->at[i]];
    return devices;
}

/* Lays the parts' lists of inputs out as arguments. */
static int lay_out(const ek_value *parts, int count, int inputs, ek_wrapper_call *call)
{
    call->inputs = ek_calloc((size_t)(count * inputs) + 1, sizeof *call->inputs);
    if (!call->inputs)
        return ek_error_pending();
    for (int p = 0; p < count; p++) {
        ek_value *own = call->inputs + (ptrdiff_t)p * inputs;
        ek_value list = ek_value_at(parts[p], 0);
        for (int i = 0; i < inputs; i++)
            own[i] = ek_value_at(list, i);
        call->args[p] = (ek_args){own, inputs, ek_value_at(parts[p], 1)};
    }
    return 0;
}

int ek_wrapper_scatter(ek_wrapper *wrapper, const ek_wrapper_cut *cut, const ek_args *args,
                       ek_wrapper_call *call)
{
    *call = (ek_wrapper_call){0};
    if (args->count == 0 && ek_value_length(args->keywords) == 0) {
        call->places = cut ? cut->places : first_places(1);
        return 0;
    }
    /* Inputs and keywords are one nest, so that they have one number of chunks. */
    ek_value nest = EK_LIST(ek_value_list(args->inputs, args->count), args->keywords);
    if (nest.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    ek_wrapper_cut own;
    if (!cut)
        EK_TRY(decide(wrapper, nest, &own));
    cut = cut ? cut : &own;
    ek_device_list devices = devices_at(wrapper, &cut->places);
    ek_value parts[EK_MAX_DEVICES];
    int count =
        ek_scatter_value(nest, &devices, cut->sized ? cut->sizes : NULL, wrapper->dim, parts);
    EK_TRY(count);
    call->places = cut->places;
    call->places.count = count;
    return lay_out(parts, count, args->count, call);
}

void ek_wrapper_call_end(ek_wrapper_call *call)
{
    free(call->inputs);
    *call = (ek_wrapper_call){0};
}

/* ---- replicas ---- */

/* The modules that a call's devices run. All zero is none. */
typedef struct wrapper_replicas {
    int count;
    ek_module *modules[EK_MAX_DEVICES];
    ek_replications replications;
} wrapper_replicas;

static void replicas_end(wrapper_replicas *replicas)
{
    ek_replications_end(&replicas->replications);
    for (int i = 0; i < replicas->count; i++)
        ek_module_free(replicas->modules[i]);
    *replicas = (wrapper_replicas){0};
}

/* Replicas, told of their replication if the wrapper is patched, or the child itself if the first
 * device is alone (which has a replica too if parameters are divided, whose gradients go to their
 * owners). */
static int replicas_make(ek_wrapper *wrapper, const ek_places *places, ek_dev *const *devs,
                         wrapper_replicas *replicas)
{
    *replicas = (wrapper_replicas){0};
    bool alone = places->count == 1 && places->at[0] == 0;
    if (alone && !wrapper->divides) {
        replicas->modules[0] = ek_module_retain(wrapper->child);
        replicas->count = 1;
        return 0;
    }
    EK_TRY(ek_replica_set_make(wrapper->replicas, wrapper->devs, places, replicas->modules));
    replicas->count = places->count;
    int rc = 0;
    if (wrapper->calls_back && !alone)
        rc = ek_replications_call(&replicas->replications, wrapper->child, replicas->modules, devs,
                                  places->count);
    if (rc < 0)
        replicas_end(replicas);
    return rc;
}

/* ---- running ---- */

/* How many samples each part of a call has; 1 if it has no tensor that was cut. */
static int count_samples(const ek_wrapper *wrapper, const ek_wrapper_call *call, int64_t *samples)
{
    for (int p = 0; p < call->places.count; p++) {
        const ek_args *args = &call->args[p];
        int64_t size = -1;
        for (int i = 0; i <= args->count && size == -1; i++) {
            ek_value value = i < args->count ? args->inputs[i] : args->keywords;
            ek_tensor *first = ek_nest_first(value);
            if (first && ek_tensor_ndim(first) > 0)
                size = ek_nest_batch_size(value, wrapper->dim);
        }
        if (size < -1)
            return (int)size;
        samples[p] = size == -1 ? 1 : size;
    }
    return 0;
}

int ek_wrapper_run(ek_wrapper *wrapper, const ek_wrapper_call *call, ek_part_function *function,
                   void *user, ek_value *outputs)
{
    const ek_places *places = &call->places;
    wrapper_replicas replicas;
    ek_dev *devs[EK_MAX_DEVICES];
    int64_t samples[EK_MAX_DEVICES];
    bool averages = wrapper->running_stats == EK_RUNNING_STATS_AVERAGE && places->count > 1;
    if (averages)
        EK_TRY(count_samples(wrapper, call, samples));
    for (int i = 0; i < places->count; i++)
        devs[i] = wrapper->devs[places->at[i]];
    EK_TRY(replicas_make(wrapper, places, devs, &replicas));
    int rc =
        ek_apply_parts(replicas.modules, call->args, devs, places->count, function, user, outputs);
    if (rc >= 0)
        rc = ek_replica_set_settle_buffers(wrapper->replicas, places);
    if (rc >= 0 && averages)
        rc = ek_running_stats_average(wrapper->replicas, places, samples);
    replicas_end(&replicas);
    return rc;
}

int ek_wrapper_apply(ek_wrapper *wrapper, const ek_args *args, ek_value *outputs)
{
    ek_wrapper_call call;
    EK_TRY(ek_wrapper_begin(wrapper));
    EK_TRY(ek_wrapper_scatter(wrapper, NULL, args, &call));
    int parts = call.places.count;
    int rc = ek_wrapper_run(wrapper, &call, ek_part_forward, NULL, outputs);
    ek_wrapper_call_end(&call);
    return rc < 0 ? rc : parts;
}
