/* data_parallel_criterion.c: the loss is computed where the outputs are; only scalars meet.
 *
 * Exact reduction. With loss_i the mean on device i and d_i what it divides by, the loss of all is
 *
 *     sum_i loss_i d_i / sum_i d_i
 *
 * which has one device's value and gradients for any chunks. Each device reads its own d_i, at the
 * end of its forward: only numbers can tell that d_i is 0, where loss_i is 0 / 0 and its gradient
 * must not be multiplied by anything but must not flow at all. */
#include <stdlib.h>

#include "autograd/graph.h"
#include "balance/loss_weight.h"
#include "balance/loss_weights.h"
#include "comm/nest.h"
#include "core/value.h"
#include "core/worker.h"
#include "evenkeel/balance.h"
#include "evenkeel/ops.h"
#include "parallel/wrapper.h"
#include "plan/split.h"

typedef struct data_parallel_criterion {
    ek_wrapper wrapper;
    ek_loss_reduction reduction;
    bool is_target_scattered;
    ek_split_policy split;
    ek_loss_weight *weight; /* not NULL: calls say here what their loss divides by */
} data_parallel_criterion;

/* ---- arguments ---- */

/* An output that is a list is several positional inputs. Writes them (inputs NULL: only counts). */
static int spread(ek_value output, ek_value *inputs)
{
    if (output.kind != EK_VALUE_LIST || output.per_device) {
        if (inputs)
            inputs[0] = output;
        return 1;
    }
    for (int i = 0; inputs && i < ek_value_length(output); i++)
        inputs[i] = ek_value_at(output, i);
    return ek_value_length(output);
}

/* What a plain call's loss divides by; its samples are those of the first output. */
static int weigh_plain(data_parallel_criterion *self, const ek_args *args)
{
    ek_tensor *first = ek_nest_first(args->inputs[0]);
    bool has_batch = first && ek_tensor_ndim(first) > 0;
    int64_t samples = has_batch ? ek_nest_batch_size(args->inputs[0], self->wrapper.dim) : 1;
    if (samples < 0)
        return (int)samples;
    return ek_loss_weight_ask(self->wrapper.child, args, (double)samples, self->weight);
}

/* Inputs where a plain call would move them, so that they can be looked at before. */
static int move_plain(const data_parallel_criterion *self, ek_value *inputs, int count)
{
    const ek_wrapper *wrapper = &self->wrapper;
    ek_device device = wrapper->devices.count > 0 ? wrapper->devices.devices[0] : ek_cpu();
    for (int i = 0; i < count; i++) {
        inputs[i] = ek_value_to_device(inputs[i], device, wrapper->dim);
        if (inputs[i].kind == EK_VALUE_ERROR)
            return ek_error_pending();
    }
    return 0;
}

/* The plain call: (output..., targets...) on the first device. */
static ek_value call_plain(data_parallel_criterion *self, const ek_args *args)
{
    ek_value output = args->inputs[0];
    if (output.per_device && ek_value_length(output) == 1)
        output = ek_value_at(output, 0);
    int width = spread(output, NULL);
    ek_value *inputs = ek_calloc((size_t)(width + args->count), sizeof *inputs);
    if (!inputs)
        return ek_value_error();
    spread(output, inputs);
    for (int i = 1; i < args->count; i++) {
        inputs[width + i - 1] = args->inputs[i];
        if (self->is_target_scattered && args->inputs[i].kind == EK_VALUE_LIST)
            inputs[width + i - 1].per_device = true;
    }
    ek_args spread_args = {inputs, width + args->count - 1, args->keywords};
    bool weigh = self->weight != NULL;
    ek_value loss = ek_value_error();
    if (!weigh || move_plain(self, inputs, spread_args.count) >= 0)
        loss = ek_wrapper_call_plain(&self->wrapper, &spread_args);
    if (weigh && loss.kind != EK_VALUE_ERROR && weigh_plain(self, &spread_args) < 0)
        loss = ek_value_error();
    free(inputs);
    return loss;
}

/* Outputs lie one per device, on any of them, in the order of device_ids: writes which. */
static int find_places(const data_parallel_criterion *self, ek_value outputs, ek_places *places)
{
    const ek_wrapper *wrapper = &self->wrapper;
    int parts = ek_value_length(outputs), devices = wrapper->devices.count;
    if (parts < 1 || parts > devices)
        return EK_FAIL(EK_E_INVALID, "%d outputs for %d devices", parts, devices);
    places->count = 0;
    for (int i = 0, place = 0; i < parts; i++, place++) {
        const ek_tensor *first = ek_nest_first(ek_value_at(outputs, i));
        if (!first)
            return EK_FAIL(EK_E_INVALID, "output %d holds no tensor", i);
        while (place < devices && wrapper->devs[place] != ek_tensor_dev(first))
            place++;
        if (place == devices)
            return EK_FAIL(EK_E_DEVICE,
                           "output %d is on %s, which isn't in device_ids "
                           "or stands before the device of output %d there; the model and the "
                           "criterion need the same devices",
                           i, ek_tensor_dev(first)->name, i - (i > 0));
        places->at[places->count++] = place;
    }
    return 0;
}

/* The call's values as scatter takes them: targets that are scattered already are marked as such.
 */
static int mark_scattered(const data_parallel_criterion *self, int parts, const ek_args *args,
                          ek_value *inputs)
{
    for (int i = 0; i < args->count; i++) {
        inputs[i] = args->inputs[i];
        if (i > 0 && self->is_target_scattered) {
            if (inputs[i].kind != EK_VALUE_LIST)
                return EK_FAIL(EK_E_INVALID,
                               "with is_target_scattered, target %d has to "
                               "be a list with one element per device, not %s",
                               i - 1, ek_value_kind_name(inputs[i]));
            inputs[i].per_device = true;
        }
        if (i > 0 && inputs[i].per_device && ek_value_length(inputs[i]) != parts)
            return EK_FAIL(EK_E_SHAPE,
                           "target %d is scattered to %d devices, but there "
                           "are %d outputs",
                           i - 1, ek_value_length(inputs[i]), parts);
    }
    return 0;
}

/* One list of inputs per device, (output..., targets...), for the jobs. */
static int lay_out(const ek_wrapper_call *call, loss_job *job)
{
    int room = 0;
    for (int p = 0; p < call->places.count; p++)
        room += spread(call->args[p].inputs[0], NULL) + call->args[p].count - 1;
    job->inputs = ek_calloc((size_t)room + 1, sizeof *job->inputs);
    if (!job->inputs)
        return ek_error_pending();
    ek_value *next = job->inputs;
    for (int p = 0; p < call->places.count; p++) {
        const ek_args *args = &call->args[p];
        int width = spread(args->inputs[0], next);
        for (int i = 1; i < args->count; i++)
            next[width + i - 1] = args->inputs[i];
        job->args[p] = (ek_args){next, width + args->count - 1, args->keywords};
        next += job->args[p].count;
    }
    return 0;
}

/* Sizes for targets, where outputs without a batch don't say them. */
static int find_sizes(const data_parallel_criterion *self, const ek_value *inputs,
                      const ek_args *args, ek_wrapper_cut *cut)
{
    ek_nest_survey survey = {.size = -1};
    if (self->split != EK_SPLIT_EVEN)
        return 0;
    for (int i = 0; i < args->count; i++)
        EK_TRY(ek_nest_look(inputs[i], self->wrapper.dim, &survey));
    EK_TRY(ek_nest_look(args->keywords, self->wrapper.dim, &survey));
    if (survey.size < cut->places.count || survey.sizes_known)
        return 0;
    ek_split_even(survey.size, cut->places.count, cut->sizes);
    cut->sized = true;
    return 0;
}

/* Cuts targets and keywords as the outputs are cut. */
static int scatter(data_parallel_criterion *self, const ek_args *args, const ek_places *places,
                   loss_job *job)
{
    ek_wrapper_call call;
    ek_wrapper_cut cut = {.places = *places};
    ek_value *inputs = ek_calloc((size_t)args->count, sizeof *inputs);
    if (!inputs)
        return ek_error_pending();
    int rc = mark_scattered(self, places->count, args, inputs);
    if (rc >= 0)
        rc = find_sizes(self, inputs, args, &cut);
    if (rc >= 0)
        rc = ek_wrapper_scatter(&self->wrapper, &cut,
                                &(const ek_args){inputs, args->count, args->keywords}, &call);
    free(inputs);
    EK_TRY(rc);
    rc = lay_out(&call, job);
    ek_wrapper_call_end(&call);
    return rc;
}

/* ---- reduction ---- */

/* Scalars are reduced; anything else stays where it is. */
static ek_value combine(const data_parallel_criterion *self, loss_job *job)
{
    int scalars = 0;
    for (int i = 0; i < job->parts; i++)
        scalars += ek_loss_is_scalar(job->losses[i]);
    if (scalars == job->parts) {
        /* Onto the first device also where it had no part: losses of other forwards are there. */
        ek_tensor *loss = ek_weigh_losses(job, self->reduction == EK_EXACT);
        return ek_value_of_tensor(ek_to_device(loss, self->wrapper.devices.devices[0]));
    }
    if (scalars == 0)
        return ek_value_per_device(job->losses, job->parts);
    EK_FAIL(EK_E_SHAPE, "%d of %d devices gave a scalar loss", scalars, job->parts);
    return ek_value_error();
}

/* ---- the module ---- */

static int apply(data_parallel_criterion *self, const ek_args *args, loss_job *job)
{
    ek_wrapper *wrapper = &self->wrapper;
    ek_wrapper_replicas replicas;
    ek_places places;
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_wrapper_begin(wrapper));
    EK_TRY(find_places(self, args->inputs[0], &places));
    ek_wrapper_devs(wrapper, &places, devs);
    job->parts = places.count;
    for (int i = 0; i < job->parts; i++) {
        ek_value output = ek_value_at(args->inputs[0], i);
        bool has_batch = ek_tensor_ndim(ek_nest_first(output)) > 0;
        int64_t size = has_batch ? ek_nest_batch_size(output, wrapper->dim) : 1;
        if (size < 0)
            return (int)size;
        job->denominators[i] = (double)size;
    }
    job->weigh = self->reduction == EK_EXACT && (job->parts > 1 || self->weight);
    EK_TRY(scatter(self, args, &places, job));
    EK_TRY(ek_wrapper_replicate(wrapper, &places, &replicas));
    int rc = ek_loss_job_run(job, replicas.modules, devs);
    if (rc >= 0)
        rc = ek_wrapper_replicas_settle(wrapper, &replicas);
    ek_wrapper_replicas_end(&replicas);
    return rc;
}

static ek_value criterion_call(ek_module *module, const ek_args *args)
{
    data_parallel_criterion *self = (data_parallel_criterion *)module;
    if (args->count < 1) {
        EK_FAIL(EK_E_INVALID, "the model's outputs are missing");
        return ek_value_error();
    }
    if (ek_wrapper_is_plain(&self->wrapper) || !args->inputs[0].per_device)
        return call_plain(self, args);
    loss_job job = {0};
    int rc = apply(self, args, &job);
    if (rc >= 0 && self->weight)
        rc = ek_total_weight(&job, self->weight);
    ek_value loss = rc < 0 ? ek_value_error() : combine(self, &job);
    free(job.inputs);
    return loss;
}

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    return ek_wrapper_call_alone((ek_wrapper *)module, args, criterion_call);
}

static const ek_module_type data_parallel_criterion_type = {.name = "data_parallel_criterion",
                                                            .size = sizeof(data_parallel_criterion),
                                                            .forward = criterion_forward,
                                                            .destroy = ek_wrapper_destroy};

bool ek_data_parallel_criterion_watch(ek_module *criterion, ek_loss_weight *weight)
{
    if (criterion->type != &data_parallel_criterion_type)
        return false;
    ((data_parallel_criterion *)criterion)->weight = weight;
    return true;
}

ek_module *ek_data_parallel_criterion_with(ek_data_parallel_criterion_options options)
{
    if (options.reduction != EK_EXACT && options.reduction != EK_MEAN_OF_MEANS) {
        EK_FAIL(EK_E_INVALID, "data_parallel_criterion: %d is no reduction",
                (int)options.reduction);
        ek_module_free(options.module);
        return NULL;
    }
    if (options.split != EK_SPLIT_CHUNK && options.split != EK_SPLIT_EVEN) {
        EK_FAIL(
            EK_E_INVALID,
            "data_parallel_criterion: targets are cut as the outputs are; .split is for outputs "
            "without a batch, by EK_SPLIT_CHUNK or EK_SPLIT_EVEN, not %d",
            (int)options.split);
        ek_module_free(options.module);
        return NULL;
    }
    ek_wrapper *wrapper =
        ek_wrapper_new(&data_parallel_criterion_type,
                       &(const ek_data_parallel_options){.module = options.module,
                                                         .device_ids = options.device_ids,
                                                         .dim = options.dim});
    if (!wrapper)
        return NULL;
    data_parallel_criterion *self = (data_parallel_criterion *)wrapper;
    self->reduction = options.reduction;
    self->split = options.split;
    self->is_target_scattered = options.is_target_scattered;
    return &wrapper->module;
}
