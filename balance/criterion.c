/* criterion.c: computes the loss on the devices of the outputs, and adds scalars on the first
 * device.
 *
 * The road of a loss, from the top down:
 *
 *     ek_train_step        train_step.c: the loss of each micro-batch is a part of the batch's
 *     criterion_forward    here: the loss of each device is a part of the call's
 *     criterion_parts      finds the outputs' devices, cuts the targets as the outputs are cut
 *     ek_wrapper_run       wrapper_call.c: runs replicas of the criterion concurrently
 *     criterion_part       on each device: calls the criterion
 *     ek_loss_sum_ask      loss_sum.c: its slot `loss_sum`, or its mean times its `denominator`
 *     ek_criterion_args    module_call.c: spreads lists, moves targets
 *     criterion_join       adds scalars on the first device; other losses stay on their devices
 *     ek_loss_sums_mean    loss_sum.c: adds sums and weights (ek_loss_sums_add), and divides once
 *
 * A training step in micro-batches wants the sum itself. There criterion_loss_sum takes the place
 * of criterion_forward, and ek_loss_sums_add that of criterion_join. */
#include <stdlib.h>

#include "balance/balance.h"
#include "comm/tree.h"
#include "core/tensor.h"
#include "core/value.h"
#include "evenkeel/balance.h"
#include "evenkeel/ops.h"
#include "plan/split.h"

/* ---- ek_data_parallel_criterion: one device's part ---- */

typedef struct data_parallel_criterion {
    ek_wrapper wrapper;
    ek_loss_reduction reduction;
    bool is_target_scattered;
    ek_split_policy split;
} data_parallel_criterion;

/* Returns how many samples an output has, or 1 if the output has no batch dimension. */
static int64_t criterion_samples_of(ek_value output, int dim)
{
    int64_t size = ek_tree_batch_size(output, dim);
    return size == -1 ? 1 : size;
}

/* Calls the criterion. Returns the list (loss, sum, weight); sum and weight are none if the loss
 * isn't a scalar. */
static ek_value criterion_weighed_loss(ek_module *criterion, const ek_args *args, int64_t samples)
{
    ek_loss_sum part;
    if (samples < 0)
        return ek_value_error();
    ek_value loss = ek_loss_sum_ask(criterion, args, (double)samples, &part);
    return loss.kind == EK_VALUE_ERROR ? loss : EK_LIST(loss, part.sum, part.weight);
}

static ek_loss_sum criterion_part_in(ek_value weighed)
{
    return (ek_loss_sum){ek_value_at(weighed, 1).as.tensor, ek_value_at(weighed, 2).as.tensor};
}

/* The form of the criterion's result on each device. */
typedef struct criterion_mode {
    int dim;     /* the batch dimension */
    bool weighs; /* true: (loss, sum, weight); false: the loss alone */
} criterion_mode;

static ek_value criterion_part(ek_module *criterion, const ek_args *args, void *user)
{
    const criterion_mode *mode = user;
    if (!mode->weighs)
        return ek_criterion_forward(criterion, args);
    return criterion_weighed_loss(criterion, args,
                                  criterion_samples_of(args->inputs[0], mode->dim));
}

/* ---- the criterion's call on all devices ---- */

/* Writes the devices of the outputs as indices into device_ids. Fails unless outputs lie on
 * different devices, in the order of device_ids. */
static int criterion_find_ranks(const data_parallel_criterion *self, ek_value outputs,
                                ek_rank_list *ranks)
{
    const ek_wrapper *wrapper = &self->wrapper;
    int parts = ek_value_length(outputs), devices = wrapper->devices.count;
    if (parts < 1 || parts > devices)
        return EK_FAIL(EK_E_INVALID, "%d outputs for %d devices", parts, devices);
    ranks->count = 0;
    for (int i = 0, rank = 0; i < parts; i++, rank++) {
        const ek_tensor *first = ek_tree_first(ek_value_at(outputs, i));
        if (!first)
            return EK_FAIL(EK_E_INVALID, "output %d holds no tensor", i);
        while (rank < devices && wrapper->devs[rank] != ek_tensor_dev(first))
            rank++;
        if (rank == devices)
            return EK_FAIL(EK_E_DEVICE,
                           "output %d is on %s, which isn't in device_ids "
                           "or stands before the device of output %d there; the model and the "
                           "criterion need the same devices",
                           i, ek_tensor_dev(first)->name, i - (i > 0));
        ranks->at[ranks->count++] = rank;
    }
    return 0;
}

/* Copies the call's inputs. With is_target_scattered, marks targets as per device. */
static int criterion_mark_scattered(const data_parallel_criterion *self, int parts,
                                    const ek_args *args, ek_value *inputs)
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

/* Writes even sizes for targets if EK_SPLIT_EVEN is to cut them, and no output has a batch. */
static int criterion_find_sizes(const data_parallel_criterion *self, const ek_args *args,
                                ek_wrapper_cut *cut)
{
    ek_tree_survey survey = {.size = -1};
    if (self->split != EK_SPLIT_EVEN)
        return 0;
    for (int i = 0; i < args->count; i++)
        EK_TRY(ek_tree_look(args->inputs[i], self->wrapper.dim, &survey));
    EK_TRY(ek_tree_look(args->keywords, self->wrapper.dim, &survey));
    if (survey.size < cut->ranks.count || survey.sizes_known)
        return 0;
    ek_split_even(survey.size, cut->ranks.count, cut->sizes);
    cut->sized = true;
    return 0;
}

/* Cuts targets and keywords as the outputs are cut. */
static int criterion_scatter(data_parallel_criterion *self, const ek_args *args,
                             ek_wrapper_call *call)
{
    ek_wrapper_cut cut = {0};
    EK_TRY(criterion_find_ranks(self, args->inputs[0], &cut.ranks));
    ek_value *inputs = ek_calloc((size_t)args->count, sizeof *inputs);
    const ek_args marked = {inputs, args->count, args->keywords};
    int rc =
        inputs ? criterion_mark_scattered(self, cut.ranks.count, args, inputs) : ek_error_pending();
    if (rc >= 0)
        rc = criterion_find_sizes(self, &marked, &cut);
    if (rc >= 0)
        rc = ek_wrapper_scatter(&self->wrapper, &cut, &marked, call);
    free(inputs);
    return rc;
}

/* Writes a loss, or a list (loss, sum, weight), per output; returns their number. */
static int criterion_parts(data_parallel_criterion *self, const ek_args *args, bool weighs,
                           ek_value *losses)
{
    ek_wrapper_call call;
    criterion_mode mode = {self->wrapper.dim, weighs};
    EK_TRY(ek_wrapper_begin(&self->wrapper));
    EK_TRY(criterion_scatter(self, args, &call));
    int parts = call.ranks.count;
    int rc = ek_wrapper_run(&self->wrapper, &call, criterion_part, &mode, losses);
    return rc < 0 ? rc : parts;
}

/* Calls the criterion without replicas, with (output..., targets...), on the first device. */
static ek_value criterion_plain(data_parallel_criterion *self, const ek_args *args, bool weighs)
{
    criterion_mode mode = {self->wrapper.dim, weighs};
    ek_value *inputs = ek_calloc((size_t)args->count, sizeof *inputs);
    if (!inputs)
        return ek_value_error();
    for (int i = 0; i < args->count; i++) {
        inputs[i] = args->inputs[i];
        if (i > 0 && self->is_target_scattered && inputs[i].kind == EK_VALUE_LIST)
            inputs[i].per_device = true;
    }
    if (inputs[0].per_device && ek_value_length(inputs[0]) == 1)
        inputs[0] = ek_value_at(inputs[0], 0);
    ek_value loss =
        ek_wrapper_call_plain(&self->wrapper, &(const ek_args){inputs, args->count, args->keywords},
                              criterion_part, &mode);
    free(inputs);
    return loss;
}

/* Joins scalar losses to their mean on the first device, so that the losses of several forwards lie
 * on one device. Other losses stay on their devices, as a list. */
static ek_value criterion_join(const data_parallel_criterion *self, ek_value *parts, int count,
                               bool weighed)
{
    ek_loss_sum sums[EK_MAX_DEVICES];
    int scalars = 0;
    for (int i = 0; i < count; i++) {
        sums[i] = weighed ? criterion_part_in(parts[i]) : (ek_loss_sum){0};
        parts[i] = weighed ? ek_value_at(parts[i], 0) : parts[i];
        scalars += weighed ? sums[i].sum != NULL : ek_loss_is_scalar(parts[i]);
    }
    if (scalars == 0)
        return ek_value_per_device(parts, count);
    if (scalars < count)
        return EK_FAIL_VALUE(EK_E_SHAPE, "%d of %d devices gave a scalar loss", scalars, count);
    for (int i = 0; i < count && !weighed; i++) /* a mean of means: equal weights */
        if (ek_loss_sum_of(parts[i].as.tensor, ek_scalar(1, EK_F64, ek_cpu()), &sums[i]) < 0)
            return ek_value_error();
    ek_tensor *loss = ek_loss_sums_mean(sums, count, self->wrapper.devices.devices[0]);
    return ek_value_of_tensor(ek_to_dtype(loss, ek_tensor_dtype(parts[0].as.tensor)));
}

/* ---- the module ---- */

static bool criterion_is_plain_call(const data_parallel_criterion *self, const ek_args *args)
{
    return ek_wrapper_is_plain(&self->wrapper) || !args->inputs[0].per_device;
}

static int criterion_check_call(const ek_args *args)
{
    return args->count < 1 ? EK_FAIL(EK_E_INVALID, "the model's outputs are missing") : 0;
}

static ek_value criterion_call(ek_module *module, const ek_args *args)
{
    data_parallel_criterion *self = (data_parallel_criterion *)module;
    ek_value parts[EK_MAX_DEVICES];
    if (criterion_check_call(args) < 0)
        return ek_value_error();
    if (criterion_is_plain_call(self, args))
        return criterion_plain(self, args, false);
    /* The mean of a single part is the loss: no weight is needed. */
    bool weighs = self->reduction == EK_EXACT && ek_value_length(args->inputs[0]) > 1;
    int count = criterion_parts(self, args, weighs, parts);
    return count < 0 ? ek_value_error() : criterion_join(self, parts, count, weighs);
}

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    return ek_wrapper_call_alone((ek_wrapper *)module, args, criterion_call);
}

/* Computes the loss of a micro-batch as a mean of means, whose weight is the number of samples. */
static int criterion_sum_of_means(data_parallel_criterion *self, const ek_args *args,
                                  ek_loss_sum *total)
{
    ek_module *child = self->wrapper.child;
    ek_tensor *weight = NULL;
    double samples = 0;
    for (int i = 0; i < ek_value_length(args->inputs[0]); i++) {
        int64_t own = criterion_samples_of(ek_value_at(args->inputs[0], i), self->wrapper.dim);
        if (own < 0)
            return (int)own;
        samples += (double)own;
    }
    ek_value loss = criterion_call(&self->wrapper.module, args);
    if (!ek_loss_is_scalar(loss))
        return loss.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
    if (!child->type->is_sum || !child->type->is_sum(child))
        weight = ek_scalar(samples, EK_F64, ek_cpu());
    return ek_loss_sum_of(loss.as.tensor, weight, total);
}

/* Adds the losses of all devices. If losses aren't scalar, total->sum stays NULL. */
static int criterion_sum_of_parts(data_parallel_criterion *self, const ek_args *args,
                                  ek_loss_sum *total)
{
    ek_value parts[EK_MAX_DEVICES];
    ek_loss_sum sums[EK_MAX_DEVICES];
    int count = criterion_parts(self, args, true, parts);
    EK_TRY(count);
    for (int i = 0; i < count; i++) {
        sums[i] = criterion_part_in(parts[i]);
        if (!sums[i].sum)
            return 0;
    }
    return ek_loss_sums_add(sums, count, self->wrapper.devices.devices[0], total);
}

static ek_value criterion_sum_call(ek_module *module, const ek_args *args)
{
    data_parallel_criterion *self = (data_parallel_criterion *)module;
    ek_loss_sum total = {0};
    if (criterion_check_call(args) < 0)
        return ek_value_error();
    if (criterion_is_plain_call(self, args))
        return criterion_plain(self, args, true);
    int rc = self->reduction == EK_EXACT ? criterion_sum_of_parts(self, args, &total)
                                         : criterion_sum_of_means(self, args, &total);
    return rc < 0 ? ek_value_error() : EK_LIST(ek_value_none(), total.sum, total.weight);
}

static int criterion_loss_sum(ek_module *module, const ek_args *args, ek_loss_sum *total)
{
    ek_value weighed = ek_wrapper_call_alone((ek_wrapper *)module, args, criterion_sum_call);
    if (weighed.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    *total = criterion_part_in(weighed);
    if (total->sum)
        return 0;
    return EK_FAIL(EK_E_SHAPE, "the criterion gives losses that are no numbers; its reduction has "
                               "to be a mean or a sum");
}

static const ek_module_type data_parallel_criterion_type = {.name = "data_parallel_criterion",
                                                            .size = sizeof(data_parallel_criterion),
                                                            .forward = criterion_forward,
                                                            .destroy = ek_wrapper_destroy,
                                                            .family = ek_wrapper_family,
                                                            .loss_sum = criterion_loss_sum};

ek_module *ek_data_parallel_criterion_with(ek_data_parallel_criterion_options options)
{
    if (options.reduction != EK_EXACT && options.reduction != EK_MEAN_OF_MEANS) {
        EK_FAIL(EK_E_INVALID, "data_parallel_criterion: %d is no reduction",
                (int)options.reduction);
        ek_module_discard(options.module);
        return NULL;
    }
    if (options.split != EK_SPLIT_CHUNK && options.split != EK_SPLIT_EVEN) {
        EK_FAIL(
            EK_E_INVALID,
            "data_parallel_criterion: targets are cut as the outputs are; .split is for outputs "
            "without a batch, by EK_SPLIT_CHUNK or EK_SPLIT_EVEN, not %d",
            (int)options.split);
        ek_module_discard(options.module);
        return NULL;
    }
    ek_data_parallel_options plain = EK_DEFAULTS(ek_data_parallel_options);
    plain.module = options.module;
    plain.device_ids = options.device_ids;
    plain.dim = options.dim;
    ek_wrapper *wrapper = ek_wrapper_new(&data_parallel_criterion_type, &plain);
    if (!wrapper)
        return NULL;
    data_parallel_criterion *self = (data_parallel_criterion *)wrapper;
    self->reduction = options.reduction;
    self->split = options.split;
    self->is_target_scattered = options.is_target_scattered;
    return &wrapper->module;
}
