/* train_step.c: a whole training step, in micro-batches.
 *
 * The loss of the batch is sum_k s_k / sum_k w_k over its parts' sums and weights (loss_sum.c). The
 * sum of the weights is known after the last part only. So the backward of each part's sum has the
 * factor 1 / n, where n is the batch's number of samples, which keeps gradients in their range. At
 * the end gradients are scaled once, by n / sum_k w_k. If the loss is a mean over samples, this
 * factor is 1, and nothing is scaled. Weights on GPUs stay there: the host doesn't wait for them.
 *
 * Note [Micro-batches of ranks]
 *
 * A model that averages its gradients over ranks does so in the last part's backward. All ranks
 * make equally many parts, some of which may be empty, because each forward may meet the other
 * ranks. Gradients must have their final scale before they are averaged. The sum of the weights is
 * known after the last forward, so that the gradients so far are scaled before the last backward.
 * With an ek_distributed_criterion the sum is over the parts of all ranks. */
#include "evenkeel/train.h"

#include <stdlib.h>

#include "balance/balance.h"
#include "comm/tree.h"
#include "core/tensor.h"
#include "core/value.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"
#include "optim/optimizer.h"

typedef struct train_step {
    const ek_train_options *options;
    ek_step_gradients *gradients;
    int parts;
    int64_t part_size, samples; /* along options->dim; the last part may be smaller */
    double divisor;     /* The sums' gradients are divided by it; at first it is `samples`. */
    bool averages_each; /* the model averages the gradients of each part over ranks */
    ek_loss_sum total;  /* sum and weight of the parts so far; references */
    /* Note [Micro-batches of ranks] */
    bool distributed;          /* the model or the criterion goes over ranks */
    ek_ranks *averages, *adds; /* the model's ranks; the criterion's; NULL: none */
    double loss; /* set before the last backward, if there are ranks and several parts */
} train_step;

/* ---- micro-batches ---- */

/* Finds the size and number of parts as torch.chunk does. If nothing can be cut, there is one part.
 * If `distributed`, there are options->micro_batches parts, of which the last may be empty. */
static int step_plan(train_step *step)
{
    const ek_train_options *options = step->options;
    int wanted = options->micro_batches;
    step->parts = 1;
    if (wanted <= 1)
        return 0;
    ek_tree_survey survey = {.size = -1};
    EK_TRY(ek_tree_look(options->input, options->dim, &survey));
    EK_TRY(ek_tree_look(options->target, options->dim, &survey));
    if (survey.parts > 0)
        return EK_FAIL(EK_E_INVALID,
                       "a list that is scattered already cannot be cut into %d micro-batches; give "
                       "the whole batch, the model scatters each part",
                       wanted);
    if (survey.size < 0 || (survey.size == 0 && !step->distributed))
        return 0;
    step->samples = survey.size;
    step->divisor = survey.size > 0 ? (double)survey.size : 1;
    step->part_size = (survey.size + wanted - 1) / wanted;
    step->parts =
        step->distributed ? wanted : (int)((survey.size + step->part_size - 1) / step->part_size);
    return 0;
}

static int64_t step_part_length(const train_step *step, int index)
{
    int64_t left = step->samples - index * step->part_size;
    left = left < 0 ? 0 : left;
    return left < step->part_size ? left : step->part_size;
}

static int64_t step_part_begin(const train_step *step, int index)
{
    int64_t begin = index * step->part_size;
    return begin < step->samples ? begin : step->samples;
}

typedef struct part_cut {
    const train_step *step;
    int index;
} part_cut;

static bool step_cut_tensor(ek_value *value, void *user)
{
    const part_cut *cut = user;
    const train_step *step = cut->step;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    const int dim = ek_value_batch_dim(*value, step->options->dim);
    ek_tensor *part = ek_narrow(value->as.tensor, dim, step_part_begin(step, cut->index),
                                step_part_length(step, cut->index));
    *value = ek_value_batched(ek_value_with_tensor(*value, part), dim);
    return true;
}

/* Returns part `index` of a tree of tensors: each tensor is cut to a view, other leaves stay. */
static ek_value step_part_of(const train_step *step, ek_value value, int index)
{
    return step->parts == 1 ? value
                            : ek_value_map(value, step_cut_tensor, &(part_cut){step, index});
}

/* ---- one part ---- */

/* Returns the first tensor of a module, on whose device inputs must lie. NULL if the module has no
 * tensors, and for wrappers, which move their inputs. */
static ek_tensor *step_first_tensor(ek_module *module)
{
    ek_tensor_list list = {0};
    ek_tensor *first = NULL;
    ek_module *child;
    ek_ranks_around(module, &child);
    if (!ek_wrapper_of(child) && ek_module_collect(module, true, true, &list) >= 0 &&
        list.count > 0)
        first = list.tensors[0];
    ek_tensor_list_clear(&list);
    return first;
}

static ek_value step_run_model(const train_step *step, int index)
{
    const ek_train_options *options = step->options;
    ek_value input = step_part_of(step, options->input, index);
    if (input.kind == EK_VALUE_ERROR)
        return input;
    ek_tensor *first = step_first_tensor(options->model);
    if (first)
        input = ek_value_to_device(input, ek_tensor_device(first), options->dim);
    input = ek_spread(&input, 1);
    if (input.kind == EK_VALUE_ERROR)
        return input;
    const ek_args args = {ek_value_items(input), ek_value_length(input), ek_value_none()};
    return ek_module_forward(options->model, &args);
}

/* If a part's weight is 0, replaces its sum by a sum with gradients 0. The backward of an empty
 * part must run, because the backwards of other ranks' parts may meet it. */
static int step_leave_empty_out(const ek_args *args, ek_loss_sum *part)
{
    double weight = 1;
    if (part->weight)
        EK_TRY(ek_item(part->weight, &weight));
    if (weight == 0)
        part->sum = ek_loss_nothing(args, ek_tensor_device(part->sum));
    return part->sum ? 0 : ek_error_pending();
}

/* Computes the part's loss as a sum and a weight. The loss of a single part has no weight. */
static int step_run_criterion(const train_step *step, int index, ek_value output, ek_loss_sum *part)
{
    const ek_train_options *options = step->options;
    ek_value inputs[2] = {output, step_part_of(step, options->target, index)};
    ek_args args = {inputs, options->target.kind == EK_VALUE_NONE ? 1 : 2, ek_value_none()};
    char text[200];
    ek_tensor *first = output.per_device ? NULL : ek_tree_first(output);
    if (first)
        inputs[1] = ek_value_to_device(inputs[1], ek_tensor_device(first), options->dim);
    if (inputs[1].kind == EK_VALUE_ERROR)
        return ek_error_pending();
    bool whole = step->parts == 1;
    double samples = (double)step_part_length(step, index);
    ek_value loss = whole ? ek_criterion_forward(options->criterion, &args)
                          : ek_loss_sum_ask(options->criterion, &args, samples, part);
    if (loss.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    if (whole && ek_loss_is_scalar(loss))
        return ek_loss_sum_of(loss.as.tensor, NULL, part);
    if (!whole && part->sum)
        return step->distributed ? step_leave_empty_out(&args, part) : 0;
    return EK_FAIL(EK_E_SHAPE,
                   "the criterion gives %s, but a training step needs one number; its reduction "
                   "has to be a mean or a sum",
                   loss.kind == EK_VALUE_TENSOR ? ek_tensor_text(loss.as.tensor, text)
                                                : ek_value_kind_name(loss));
}

static int step_add_to_total(train_step *step, const ek_loss_sum *part)
{
    ek_loss_sum parts[2] = {step->total, {ek_detach(part->sum), part->weight}}, total;
    bool first = !step->total.sum;
    ek_device root = ek_tensor_device(first ? part->sum : step->total.sum);
    EK_TRY(ek_loss_sums_add(parts + first, 2 - first, root, &total));
    ek_release(step->total.sum);
    ek_release(step->total.weight);
    step->total = (ek_loss_sum){ek_keep(total.sum), ek_keep(total.weight)};
    return 0;
}

/* If each part was averaged over ranks, and ranks don't add up their losses, the gradients so far
 * can only be scaled alike. */
static int step_check_scale(const train_step *step, double scale)
{
    double most = scale, least = -scale;
    if (!step->averages_each || step->adds)
        return 0;
    EK_TRY(ek_ranks_combine(step->averages, 0, &most, true));
    EK_TRY(ek_ranks_combine(step->averages, 0, &least, true));
    if (most == -least)
        return 0;
    return ek_ranks_alike(
        EK_FAIL(EK_E_INVALID,
                "the losses of the ranks' parts have unequal weights; with parameters sharded over "
                "ranks, micro-batches need an ek_distributed_criterion then"));
}

/* Called after the last forward. Computes the loss, and the factor of all sums' gradients. The
 * gradients so far have the factor `share`, and are scaled by factor / share. */
static int step_scale_earlier(train_step *step, double share, double *factor)
{
    const ek_loss_sum *total = &step->total;
    double sum, weight = 1;
    if (step->adds) {
        EK_TRY(ek_loss_sum_of_ranks(total, step->adds, &step->loss, factor));
    } else {
        EK_TRY(ek_item(total->sum, &sum));
        if (total->weight)
            EK_TRY(ek_item(total->weight, &weight));
        step->loss = sum / weight;
        *factor = weight == 0 ? 0 : 1 / weight;
    }
    EK_TRY(step_check_scale(step, *factor / share));
    return ek_step_gradients_scale(step->gradients, *factor / share, NULL);
}

/* Runs the backward of a part (Note [Micro-batches of ranks]). */
static int step_backward_of_ranks(train_step *step, const ek_loss_sum *part, int index)
{
    bool last = index == step->parts - 1;
    double share = part->weight ? 1 / step->divisor : 1;
    if (last)
        EK_TRY(step_scale_earlier(step, share, &share));
    ek_tensor *gradient = ek_scalar(share, EK_F64, ek_tensor_device(part->sum));
    return gradient ? ek_backward(part->sum, .gradient = gradient) : ek_error_pending();
}

/* Runs the forward of one part. The scope frees the outputs, so that backward may reuse the memory
 * of those that the graph doesn't need. */
static int step_forward(const train_step *step, int index, ek_loss_sum *part)
{
    ek_scope scope = ek_scope_begin();
    ek_value output = step_run_model(step, index);
    int rc = output.kind == EK_VALUE_ERROR ? ek_error_pending()
                                           : step_run_criterion(step, index, output, part);
    ek_tensor *weight = rc >= 0 ? ek_keep(part->weight) : NULL;
    part->sum = ek_scope_return(&scope, rc >= 0 ? part->sum : NULL);
    part->weight = ek_scope_adopt(weight);
    return rc < 0 ? rc : ek_error_status();
}

/* Runs forward and backward of one part. Without ranks, a part that the host knows to be empty has
 * no backward. If all parts are empty, the backward of the last part runs, so that gradients are
 * those of one whole batch. */
static int step_run_part(train_step *step, int index)
{
    ek_loss_sum part = {0};
    EK_TRY(step_forward(step, index, &part));
    ek_device device = ek_tensor_device(part.sum);
    EK_TRY(ek_loss_sums_add(&part, 1, device, &part)); /* on GPUs an empty part's NaN becomes 0 */
    EK_TRY(step_add_to_total(step, &part));
    if (step->distributed && step->parts > 1)
        return step_backward_of_ranks(step, &part, index);
    int empty = ek_loss_sum_is_empty(&part), all_empty = ek_loss_sum_is_empty(&step->total);
    EK_TRY(empty < 0 ? empty : all_empty);
    if (empty && !(all_empty && index == step->parts - 1))
        return 0;
    double share = part.weight ? 1 / step->divisor : 1;
    ek_tensor *gradient = ek_scalar(share, EK_F64, device);
    return gradient ? ek_backward(part.sum, .gradient = gradient) : ek_error_pending();
}

/* ---- after the last part ---- */

/* Computes the factor for all gradients: *scalar if the weight lies on a GPU, else *number. If
 * there is no weight, the factor is 1. If the weight is 0, the factor is 1, so that only the loss
 * is NaN. */
static int step_final_factor(const train_step *step, double *number, ek_tensor **scalar)
{
    ek_tensor *weight = step->total.weight;
    *number = 1;
    *scalar = NULL;
    if (!weight)
        return 0;
    ek_device device = ek_tensor_device(weight);
    if (ek_dev_is_host(ek_tensor_dev(weight))) {
        double of_all;
        EK_TRY(ek_item(weight, &of_all));
        *number = of_all == 0 ? 1 : step->divisor / of_all;
        return 0;
    }
    ek_tensor *factor = ek_div(ek_scalar(step->divisor, EK_F64, device), weight);
    *scalar =
        ek_where(ek_ne(weight, ek_scalar(0, EK_F64, device)), factor, ek_scalar(1, EK_F64, device));
    return *scalar ? 0 : ek_error_pending();
}

static int step_scale_gradients(const train_step *step)
{
    double number;
    ek_tensor *scalar;
    bool enabled = ek_set_grad_enabled(false);
    int rc = step_final_factor(step, &number, &scalar);
    ek_set_grad_enabled(enabled);
    EK_TRY(rc);
    return scalar || number != 1 ? ek_step_gradients_scale(step->gradients, number, scalar) : 0;
}

static int step_finish(train_step *step, double *loss)
{
    const ek_train_options *options = step->options;
    double value;
    bool scaled = step->distributed && step->parts > 1;
    if (!scaled)
        EK_TRY(step_scale_gradients(step));
    EK_TRY(ek_step_gradients_add_earlier(step->gradients));
    /* The loss is read before the step, so that after an error parameters are unchanged. */
    if (scaled)
        value = step->loss;
    else if (loss)
        EK_TRY(
            ek_item(ek_loss_sums_mean(&step->total, 1, ek_tensor_device(step->total.sum)), &value));
    if (!options->accumulate_only) {
        EK_TRY(ek_step_clipped(options->optimizer, options->max_norm));
    }
    if (loss)
        *loss = value;
    return 0;
}

/* ---- the step ---- */

/* If the model averages the gradients of each part (ek_distributed_data_parallel with
 * EK_SHARD_PARAMETERS), all ranks' sums need one factor: step->divisor becomes their mean number of
 * samples. */
static int step_share_samples(train_step *step)
{
    if (!step->averages || step->parts < 2)
        return 0;
    ek_module *model = step->options->model;
    const bool before = ek_ranks_set_sync(model, false);
    step->averages_each = ek_ranks_set_sync(model, before) && before;
    double samples = (double)step->samples;
    if (!step->averages_each || !step->adds)
        return 0;
    EK_TRY(ek_ranks_combine(step->averages, 0, &samples, false));
    step->divisor = samples > 0 ? samples / step->averages->size : 1;
    return 0;
}

static int step_run(train_step *step, double *loss)
{
    const ek_train_options *options = step->options;
    EK_TRY(step_plan(step));
    if (!options->accumulate_only)
        ek_zero_grad(options->optimizer);
    if (step->parts > 1)
        EK_TRY(ek_step_gradients_set_aside(step->gradients));
    EK_TRY(step_share_samples(step));
    for (int k = 0; k < step->parts; k++) {
        /* The scope frees a part's activations before the next part. */
        ek_scope scope = ek_scope_begin();
        bool waits = step->averages && k < step->parts - 1;
        bool before = waits && ek_ranks_set_sync(options->model, false);
        int rc = step_run_part(step, k);
        if (waits)
            ek_ranks_set_sync(options->model, before);
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return step_finish(step, loss);
}

static int step_check(const ek_train_options *options)
{
    EK_TRY(ek_error_status());
    if (!options->model || !options->criterion || !options->optimizer)
        return EK_FAIL(EK_E_INVALID, "train_step: the %s missing",
                       !options->model       ? "model is"
                       : !options->criterion ? "criterion is"
                                             : "optimizer is");
    if (!options->accumulate_only)
        EK_TRY(ek_optimizer_check_step(options->optimizer, "train_step: ", options->max_norm));
    if (options->input.kind == EK_VALUE_NONE)
        return EK_FAIL(EK_E_INVALID, "train_step: the input is missing");
    if (options->micro_batches < 0)
        return EK_FAIL(EK_E_INVALID, "train_step: %d micro-batches; it has to be 0 or more",
                       options->micro_batches);
    return 0;
}

static int step_run_alone(ek_train_options options, double *loss)
{
    const int before = ek_error_status();
    train_step step = {.options = &options};
    ek_module *child;
    step.averages = ek_ranks_around(options.model, &child);
    step.adds = ek_ranks_around(options.criterion, &child);
    step.distributed = step.averages || step.adds;
    step.gradients = ek_step_gradients_new(options.model, options.optimizer);
    if (!step.gradients)
        return ek_error_pending();
    ek_scope scope = ek_scope_begin();
    int rc = step_run(&step, loss);
    ek_release(step.total.sum);
    ek_release(step.total.weight);
    ek_scope_end(&scope);
    if (rc < 0) {
        ek_step_gradients_remove(step.gradients);
        ek_error_prefix(before, "train_step");
        ek_ranks *ranks = step.averages ? step.averages : step.adds;
        if (ranks) /* the others wait for this rank */
            ranks->agree(ranks, rc);
    }
    ek_step_gradients_free(step.gradients);
    return rc < 0 ? rc : 0;
}

/* Holds the wrappers' call locks from the first forward to the end of the step. */
int ek_train_step_with(double *loss, ek_train_options options)
{
    const int before = ek_error_status();
    EK_TRY(step_check(&options));
    ek_module *model, *criterion;
    ek_ranks_around(options.model, &model);
    ek_ranks_around(options.criterion, &criterion);
    ek_wrapper *wrappers[] = {ek_wrapper_of(model), ek_wrapper_of(criterion)};
    int entered = 0, rc = 0;
    for (; entered < 2 && rc >= 0; entered += rc >= 0)
        rc = wrappers[entered] ? ek_wrapper_enter(wrappers[entered]) : 0;
    if (rc >= 0)
        rc = step_run_alone(options, loss);
    else
        ek_error_prefix(before, "train_step");
    while (entered-- > 0)
        if (wrappers[entered])
            ek_wrapper_leave(wrappers[entered]);
    return rc;
}
