/* loss_sum.c: losses of parts of a batch, each a sum and a weight (ek_loss_sum), and their mean.
 *
 * With s_i the sum of part i and w_i its weight, the loss of all parts is
 *
 *     sum_i s_i / sum_i w_i
 *
 * which equals the loss of one device, in value and gradients, for any parts: devices in
 * criterion.c, micro-batches in train_step.c. Sums and weights are f64: a mean that is multiplied
 * by its weight and divided by the weight of all parts is rounded once, when its gradient is
 * converted back.
 *
 * An empty part's mean is 0 / 0, and no factor makes its gradient finite. If the host knows the
 * weight, an empty part's sum is 0. If the weight lies on a GPU, for which the host doesn't wait,
 * the GPU replaces the sum by 0 (loss_sum_of_counted) and the gradients of the criterion's inputs
 * by 0 (loss_guard), also if all parts are empty.
 *
 * Note [Losses of ranks]
 *
 * Ranks average their gradients. With s the sum of rank r, N the number of ranks and D the weight
 * of all ranks, rank r's loss has the gradient of N s / D, so that the average is the gradient of
 * the loss of all ranks. The value of rank r's loss is the loss of all ranks. */
#include "autograd/graph.h"
#include "balance/balance.h"
#include "core/tensor.h"
#include "core/value.h"
#include "evenkeel/autograd.h"
#include "evenkeel/comm.h"
#include "evenkeel/ops.h"

/* ---- asking a criterion for a sum and a weight ---- */

bool ek_loss_is_scalar(ek_value loss)
{
    return loss.kind == EK_VALUE_TENSOR && ek_tensor_ndim(loss.as.tensor) == 0;
}

int ek_loss_sum_of(ek_tensor *loss, ek_tensor *weight, ek_loss_sum *part)
{
    *part = (ek_loss_sum){ek_to_dtype(loss, EK_F64), weight};
    if (weight)
        part->sum = ek_mul(part->sum, ek_to_device(weight, ek_tensor_device(loss)));
    return part->sum ? 0 : ek_error_pending();
}

/* Returns the sum or weight that a criterion computed as an f64 scalar. Fails if it isn't one
 * number. */
static ek_tensor *loss_told_number(const ek_module *criterion, const char *what, ek_tensor *number)
{
    char text[200];
    if (number && ek_count(number) != 1)
        return EK_FAIL_NULL(EK_E_SHAPE, "%s: the %s of its loss has to be one number, not %s",
                            criterion->type->name, what, ek_tensor_text(number, text));
    bool is_scalar = number && ek_tensor_ndim(number) == 0;
    return ek_to_dtype(is_scalar ? number : ek_reshape(number, ek_scalar_shape()), EK_F64);
}

/* Returns the weight of a criterion's mean: its type's `denominator`, or `samples` without one. */
static ek_tensor *loss_denominator(ek_module *criterion, const ek_args *args, double samples)
{
    if (!criterion->type->denominator)
        return ek_scalar(samples, EK_F64, ek_cpu());
    bool enabled = ek_set_grad_enabled(false);
    ek_tensor *weight = criterion->type->denominator(criterion, args);
    weight = loss_told_number(criterion, "weight", weight);
    ek_set_grad_enabled(enabled);
    return weight;
}

static ek_value call_loss_sum(ek_module *criterion, const ek_args *args)
{
    ek_loss_sum loss = {0};
    if (criterion->type->loss_sum(criterion, args, &loss) < 0)
        return ek_value_error();
    if (!loss.sum && ek_error_status() == 0)
        EK_FAIL(EK_E_INVALID, "loss_sum gave no sum");
    return EK_LIST(loss.sum, loss.weight);
}

static ek_value ask_loss_sum(ek_module *criterion, const ek_args *args, ek_loss_sum *part)
{
    ek_value told = ek_module_call(criterion, args, call_loss_sum);
    if (told.kind == EK_VALUE_ERROR)
        return told;
    ek_value sum = ek_value_at(told, 0), weight = ek_value_at(told, 1);
    if (weight.kind == EK_VALUE_NONE && !ek_loss_is_scalar(sum))
        return sum;
    part->sum = loss_told_number(criterion, "sum", sum.as.tensor);
    if (weight.kind == EK_VALUE_TENSOR)
        part->weight = ek_detach(loss_told_number(criterion, "weight", weight.as.tensor));
    bool whole = part->sum && (part->weight || weight.kind == EK_VALUE_NONE);
    return whole ? sum : ek_value_error();
}

/* ---- a mean on a GPU, of a part that may be empty ---- */

/* Saved: the part's weight. */
static int loss_guard_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *weight = ek_node_saved(node, 0), *gradient = gradients[0];
    if (!weight)
        return ek_error_pending();
    ek_tensor *none = ek_scalar(0, ek_tensor_dtype(weight), ek_tensor_device(weight));
    ek_tensor *zero = ek_scalar(0, ek_tensor_dtype(gradient), ek_tensor_device(gradient));
    results[0] = ek_where(ek_ne(weight, none), gradient, zero);
    return ek_error_status();
}

static const ek_operation loss_guard_operation = {.name = "loss_guard",
                                                  .backward = loss_guard_backward};

/* The ek_value_replacement of a criterion's inputs. `user` is the weight. */
static bool loss_guard(ek_value *value, void *user)
{
    if (value->kind != EK_VALUE_TENSOR || !value->as.tensor->requires_grad)
        return false;
    ek_tensor *x = value->as.tensor, *weight = ek_to_device(user, ek_tensor_device(x));
    ek_tensor *guarded = weight ? EK_RECORD(ek_tensor_alias(x), &loss_guard_operation, EK_INPUTS(x),
                                            EK_SAVED(weight))
                                : NULL;
    *value = ek_value_with_tensor(*value, guarded);
    return true;
}

/* Calls the forward of a criterion whose mean divides by `weight`. */
static ek_value loss_forward(ek_module *criterion, const ek_args *args, ek_tensor *weight)
{
    if (!weight || ek_dev_is_host(ek_tensor_dev(weight)))
        return ek_module_forward(criterion, args);
    ek_value inputs = ek_value_list(args->inputs, args->count);
    inputs = ek_value_map(inputs, loss_guard, weight);
    if (inputs.kind == EK_VALUE_ERROR)
        return inputs;
    ek_args guarded = {ek_value_items(inputs), args->count, args->keywords};
    return ek_module_forward(criterion, &guarded);
}

ek_value ek_loss_sum_ask(ek_module *criterion, const ek_args *args, double samples,
                         ek_loss_sum *part)
{
    const ek_module_type *type = criterion->type;
    ek_args own;
    *part = (ek_loss_sum){0};
    if (ek_criterion_args(criterion, args, &own) < 0)
        return ek_value_error();
    if (type->loss_sum)
        return ask_loss_sum(criterion, &own, part);
    ek_tensor *weight = NULL;
    bool is_sum = type->is_sum && type->is_sum(criterion);
    if (!is_sum && !(weight = loss_denominator(criterion, &own, samples)))
        return ek_value_error();
    ek_value loss = loss_forward(criterion, &own, weight);
    if (!ek_loss_is_scalar(loss))
        return loss;
    return ek_loss_sum_of(loss.as.tensor, weight, part) < 0 ? ek_value_error() : loss;
}

/* ---- joining parts ---- */

static bool loss_weight_is_known(const ek_loss_sum *part)
{
    return part->weight && ek_dev_is_host(ek_tensor_dev(part->weight));
}

int ek_loss_sum_is_empty(const ek_loss_sum *part)
{
    double weight;
    if (!loss_weight_is_known(part))
        return 0;
    EK_TRY(ek_item(part->weight, &weight));
    return weight == 0;
}

/* Returns the sum of a part. If the weight lies on a GPU and is 0, the sum becomes 0 there, because
 * the host doesn't know that the part is empty. */
static ek_tensor *loss_sum_of_counted(const ek_loss_sum *part)
{
    if (!part->weight || loss_weight_is_known(part))
        return part->sum;
    ek_device device = ek_tensor_device(part->sum);
    ek_tensor *zero = ek_scalar(0, EK_F64, device);
    return ek_where(ek_ne(ek_to_device(part->weight, device), zero), part->sum, zero);
}

/* Adds the weights: on cpu if the host knows all of them, else on root. */
static ek_tensor *loss_add_weights(const ek_loss_sum *parts, int count, ek_device root)
{
    ek_tensor *weights[EK_MAX_DEVICES];
    bool known = true;
    for (int i = 0; i < count; i++)
        known = known && loss_weight_is_known(&parts[i]);
    ek_device device = known ? ek_cpu() : root;
    for (int i = 0; i < count; i++)
        if (!(weights[i] = ek_to_device(parts[i].weight, device)))
            return NULL;
    return ek_reduce_add(weights, count, device);
}

int ek_loss_sums_add(const ek_loss_sum *parts, int count, ek_device root, ek_loss_sum *total)
{
    ek_tensor *sums[EK_MAX_DEVICES];
    int empty[EK_MAX_DEVICES], empties = 0;
    bool weighted = true;
    for (int i = 0; i < count; i++) {
        empty[i] = ek_loss_sum_is_empty(&parts[i]);
        EK_TRY(empty[i]);
        empties += empty[i];
        weighted = weighted && parts[i].weight;
    }
    for (int i = 0; i < count; i++) {
        sums[i] = empty[i] && empties < count ? ek_scalar(0, EK_F64, ek_tensor_device(parts[i].sum))
                                              : loss_sum_of_counted(&parts[i]);
        if (!sums[i])
            return ek_error_pending();
    }
    ek_tensor *weight = weighted ? loss_add_weights(parts, count, root) : NULL;
    ek_tensor *sum = ek_reduce_add(sums, count, ek_tensor_device(sums[0]));
    *total = (ek_loss_sum){ek_to_device(sum, root), weight};
    return total->sum && (weight || !weighted) ? 0 : ek_error_pending();
}

ek_tensor *ek_loss_sums_mean(const ek_loss_sum *parts, int count, ek_device root)
{
    ek_loss_sum total;
    if (ek_loss_sums_add(parts, count, root, &total) < 0)
        return NULL;
    return total.weight ? ek_div(total.sum, ek_to_device(total.weight, root)) : total.sum;
}

/* ---- parts of ranks: Note [Losses of ranks] ---- */

/* Input: this rank's sum. The attribute is N / D. */
static int loss_of_ranks_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = ek_mul_scalar(gradients[0], *(const double *)ek_node_attributes(node));
    return ek_error_status();
}

static const ek_operation loss_of_ranks_operation = {.name = "loss_of_ranks",
                                                     .backward = loss_of_ranks_backward};

/* Returns the numbers that ranks add: sum, weight, and 1 for a part that has a weight. */
static ek_tensor *loss_told(const ek_loss_sum *part)
{
    double numbers[3] = {0};
    if (ek_item(part->sum, &numbers[0]) < 0 ||
        (part->weight && ek_item(part->weight, &numbers[1]) < 0))
        return NULL;
    numbers[2] = part->weight != NULL;
    if (part->weight && numbers[1] == 0)
        numbers[0] = 0;
    return ek_from_data(numbers, EK_SHAPE(3), EK_F64, .device = ek_cpu());
}

int ek_loss_sum_of_ranks(const ek_loss_sum *part, ek_ranks *ranks, double *value, double *factor)
{
    double told[3];
    bool enabled = ek_set_grad_enabled(false);
    ek_tensor *all = ranks->sum(ranks, part->sum ? loss_told(part) : NULL);
    ek_set_grad_enabled(enabled);
    if (!all || ek_to_data(all, told, sizeof told) < 0)
        return ek_error_pending();
    if (told[2] != 0 && told[2] != ranks->size)
        return ek_ranks_alike(EK_FAIL(EK_E_INVALID, "the loss of some ranks is a sum and that of "
                                                    "others a mean; all ranks need the same "
                                                    "criterion"));
    *value = told[2] != 0 ? told[0] / told[1] : told[0];
    /* If all weights are 0, the value is NaN as on one device, and gradients are finite. */
    *factor = told[2] == 0 ? ranks->size : told[1] == 0 ? 0 : ranks->size / told[1];
    return 0;
}

ek_tensor *ek_loss_sum_over_ranks(const ek_loss_sum *part, ek_ranks *ranks)
{
    double value, factor;
    if (ek_loss_sum_of_ranks(part, ranks, &value, &factor) < 0)
        return NULL;
    ek_tensor *loss = ek_scalar(value, EK_F64, ek_tensor_device(part->sum));
    return EK_RECORD(loss, &loss_of_ranks_operation, EK_INPUTS(part->sum), EK_ATTRIBUTES(factor));
}

/* ---- a part that does not count ---- */

typedef struct loss_nothing {
    ek_device device;
    ek_tensor *sum;
} loss_nothing;

static bool loss_add_nothing(ek_value *value, void *user)
{
    loss_nothing *nothing = user;
    if (value->kind != EK_VALUE_TENSOR || !value->as.tensor->requires_grad)
        return false;
    ek_tensor *none = ek_narrow(ek_reshape(value->as.tensor, EK_SHAPE(-1)), 0, 0, 0);
    none = ek_to_device(ek_to_dtype(ek_sum(none), EK_F64), nothing->device);
    nothing->sum = ek_add(nothing->sum, none);
    if (!nothing->sum)
        *value = ek_value_error();
    return !nothing->sum;
}

ek_tensor *ek_loss_nothing(const ek_args *args, ek_device device)
{
    loss_nothing nothing = {device, ek_scalar(0, EK_F64, device)};
    for (int i = 0; i < args->count && nothing.sum; i++)
        if (ek_value_map(args->inputs[i], loss_add_nothing, &nothing).kind == EK_VALUE_ERROR)
            return NULL;
    return nothing.sum;
}
