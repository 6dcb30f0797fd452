/* criterion.c: ek_distributed_criterion, which gives each rank the loss of all ranks.
 *
 * A rank's part of the loss is a sum and a weight, as a device's part is. balance/loss_sum.c
 * combines the parts of ranks (Note [Losses of ranks]). */
#include "balance/balance.h"
#include "comm/tree.h"
#include "core/value.h"
#include "evenkeel/ddp.h"
#include "evenkeel/ops.h"
#include "group/world.h"

static const char criterion_name[] = "distributed_criterion";

typedef struct distributed_criterion {
    ek_module module;
    ek_module *child;
    ek_ranks *ranks; /* one reference; NULL with one rank */
    ek_loss_reduction reduction;
    int dim;
} distributed_criterion;

/* ---- this rank's part ---- */

/* Returns how many samples the call has, or a negative status. An output without a batch dimension
 * counts as one sample. */
static int64_t criterion_samples(const distributed_criterion *self, const ek_args *args)
{
    int64_t samples = 0;
    const ek_value output = args->inputs[0];
    int parts = output.per_device ? ek_value_length(output) : 1;
    for (int i = 0; i < parts; i++) {
        int64_t own =
            ek_tree_batch_size(output.per_device ? ek_value_at(output, i) : output, self->dim);
        if (own < -1)
            return own;
        samples += own < 0 ? 1 : own;
    }
    return samples;
}

/* Writes the part, with part->sum NULL if the loss is not a scalar. Returns the criterion's
 * loss. */
static ek_value criterion_ask(const distributed_criterion *self, const ek_args *args,
                              ek_loss_sum *part)
{
    int64_t samples = criterion_samples(self, args);
    if (samples < 0)
        return ek_value_error();
    if (self->reduction == EK_EXACT)
        return ek_loss_sum_ask(self->child, args, (double)samples, part);
    /* In a mean of means each rank that has samples counts once. */
    ek_value loss = ek_criterion_forward(self->child, args);
    if (!ek_loss_is_scalar(loss))
        return loss;
    ek_tensor *weight = ek_scalar(samples > 0, EK_F64, ek_cpu());
    return weight && ek_loss_sum_of(loss.as.tensor, weight, part) >= 0 ? loss : ek_value_error();
}

/* Returns the dtype of the result: f32 if this rank's loss is f64, as a sum over devices is, but
 * the outputs are not. Else the dtype of this rank's loss. */
static ek_dtype criterion_dtype(const ek_args *args, const ek_tensor *loss)
{
    const ek_tensor *output = ek_tree_first(args->inputs[0]);
    bool wide = output && ek_tensor_dtype(output) == EK_F64;
    return ek_tensor_dtype(loss) == EK_F64 && !wide ? EK_F32 : ek_tensor_dtype(loss);
}

static ek_value criterion_of_ranks(const distributed_criterion *self, const ek_args *args)
{
    ek_loss_sum part = {0};
    double weight = 1;
    if (args->count < 1)
        return EK_FAIL_VALUE(EK_E_INVALID, "the model's outputs are missing");
    ek_value loss = criterion_ask(self, args, &part);
    if (loss.kind == EK_VALUE_ERROR || !part.sum)
        return loss;
    if (part.weight && ek_item(part.weight, &weight) < 0)
        return ek_value_error();
    if (weight == 0)
        part.sum = ek_loss_nothing(args, ek_tensor_device(part.sum));
    ek_tensor *all = part.sum ? ek_loss_sum_over_ranks(&part, self->ranks) : NULL;
    return ek_value_of_tensor(all ? ek_to_dtype(all, criterion_dtype(args, loss.as.tensor)) : NULL);
}

/* ---- the module ---- */

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    const distributed_criterion *self = (distributed_criterion *)module;
    if (!self->ranks)
        return ek_criterion_forward(self->child, args);
    ek_value loss = criterion_of_ranks(self, args);
    if (loss.kind == EK_VALUE_ERROR) /* the other ranks wait for this one */
        self->ranks->agree(self->ranks, ek_error_pending());
    return loss;
}

/* Writes the sum and the weight of this rank alone. */
static int criterion_loss_sum(ek_module *module, const ek_args *args, ek_loss_sum *part)
{
    const distributed_criterion *self = (distributed_criterion *)module;
    int64_t samples = args->count < 1 ? 0 : criterion_samples(self, args);
    if (samples < 0)
        return (int)samples;
    ek_value loss = ek_loss_sum_ask(self->child, args, (double)samples, part);
    if (loss.kind == EK_VALUE_TENSOR && !part->sum)
        *part = (ek_loss_sum){.sum = loss.as.tensor}; /* the criterion has not reduced the loss */
    return loss.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

static void criterion_destroy(ek_module *module)
{
    ek_object_release(((distributed_criterion *)module)->ranks);
}

static const ek_module_type criterion_type = {.name = "distributed_criterion",
                                              .size = sizeof(distributed_criterion),
                                              .forward = criterion_forward,
                                              .loss_sum = criterion_loss_sum,
                                              .destroy = criterion_destroy};

/* The function that answers ek_ranks_of_wrapper for other types of modules; NULL: there is none. */
static ek_ranks *(*criterion_others)(ek_module *module, ek_module **child);

static ek_ranks *criterion_ranks(ek_module *module, ek_module **child)
{
    if (module->type != &criterion_type)
        return criterion_others ? criterion_others(module, child) : NULL;
    const distributed_criterion *self = (distributed_criterion *)module;
    *child = self->child;
    return self->reduction == EK_EXACT ? self->ranks : NULL;
}

static ek_module *criterion_wrap(ek_module *module, ek_process_group *group)
{
    return ek_distributed_criterion(module, .process_group = group);
}

__attribute__((constructor)) static void criterion_register(void)
{
    ek_ranks_wrap_criterion = criterion_wrap;
    criterion_others = ek_ranks_of_wrapper;
    ek_ranks_of_wrapper = criterion_ranks;
}

static int criterion_find_ranks(ek_process_group *group, void *user)
{
    distributed_criterion *self = user;
    self->ranks = ek_process_group_ranks(group);
    return self->ranks ? 0 : ek_error_status();
}

static int criterion_start(distributed_criterion *self,
                           const ek_distributed_criterion_options *options)
{
    if (options->reduction != EK_EXACT && options->reduction != EK_MEAN_OF_MEANS)
        return EK_FAIL(EK_E_INVALID, "%s: %d is no reduction (ek_loss_reduction)", criterion_name,
                       (int)options->reduction);
    return ek_group_call(criterion_name, options->process_group, criterion_find_ranks, self);
}

ek_module *ek_distributed_criterion_with(ek_distributed_criterion_options options)
{
    ek_module *child = options.module;
    if (!child)
        return EK_FAIL_NULL(EK_E_INVALID, "%s: module is NULL", criterion_name);
    distributed_criterion *self = (distributed_criterion *)ek_module_new(&criterion_type);
    if (!self) {
        ek_module_discard(child);
        return NULL;
    }
    self->reduction = options.reduction;
    self->dim = options.dim;
    self->module.training = child->training;
    int rc = ek_register_module(&self->module, "", &self->child, child);
    if (rc >= 0)
        rc = criterion_start(self, &options);
    if (rc >= 0)
        return &self->module;
    ek_module_free(&self->module);
    return NULL;
}
