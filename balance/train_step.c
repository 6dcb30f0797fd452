/* train_step.c: a whole training step, in micro-batches.
 *
 * With loss_k the mean over part k and d_k what it divides by, the loss of the batch is
 *
 *     sum_k loss_k d_k / sum_k d_k
 *
 * The total is known after the last part only. So each part goes backward with the weight d_k / n,
 * where n, the batch's samples, keeps the numbers in their range, and what has added up is scaled
 * once by n / sum_k d_k: by 1, and not at all, where the loss is a mean over samples. Denominators
 * that lie on devices stay there, and nobody waits for them. */
#include "evenkeel/train.h"

#include <stdlib.h>

#include "balance/loss_weight.h"
#include "balance/micro_batch.h"
#include "balance/step_gradients.h"
#include "comm/nest.h"
#include "core/tensor.h"
#include "core/value.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"
#include "parallel/wrapper.h"

typedef struct train_step {
    const ek_train_options *options;
    ek_step_gradients gradients;
    ek_micro_batches plan;
    bool is_sum;
    double total;       /* of the denominators that the host knows */
    ek_tensor *counted; /* of the others; a reference, NULL: there are none */
    ek_tensor *loss;    /* so far, weighted as the gradients are: f64, a reference, NULL for 0 */
} train_step;

/* ---- one part ---- */

/* Where a plain module's inputs have to be; NULL where it doesn't say. Wrappers move theirs. */
static ek_tensor *first_tensor(ek_module *module)
{
    ek_tensor_list list = {0};
    ek_tensor *first = NULL;
    if (!ek_wrapper_of(module) && ek_module_collect(module, true, true, &list) >= 0 &&
        list.count > 0)
        first = list.tensors[0];
    ek_tensor_list_clear(&list);
    return first;
}

static ek_value move_to(ek_value value, const ek_tensor *there, int dim)
{
    return there ? ek_value_to_device(value, ek_tensor_device(there), dim) : value;
}

/* A list is one argument per element. */
static ek_value run_model(const train_step *step, int index)
{
    const ek_train_options *options = step->options;
    ek_value input = ek_micro_batch(&step->plan, options->input, index);
    if (input.kind == EK_VALUE_ERROR)
        return input;
    input = move_to(input, first_tensor(options->model), options->dim);
    if (input.kind != EK_VALUE_LIST || input.per_device)
        return ek_module_forward(options->model, &(const ek_args){&input, 1, ek_value_none()});
    int count = ek_value_length(input);
    ek_value *inputs = ek_calloc((size_t)count + 1, sizeof *inputs);
    if (!inputs)
        return ek_value_error();
    for (int i = 0; i < count; i++)
        inputs[i] = ek_value_at(input, i);
    ek_value output =
        ek_module_forward(options->model, &(const ek_args){inputs, count, ek_value_none()});
    free(inputs);
    return output;
}

static int ask(const train_step *step, int index, const ek_args *args, ek_loss_weight *weight)
{
    double samples = (double)ek_micro_batch_length(&step->plan, index);
    return ek_loss_weight_ask(step->options->criterion, args, samples, weight);
}

/* The loss as a number, and its weight where there are several parts. */
static ek_tensor *run_criterion(const train_step *step, int index, ek_value output,
                                ek_loss_weight *weight)
{
    const ek_train_options *options = step->options;
    ek_value inputs[2] = {output, ek_micro_batch(&step->plan, options->target, index)};
    ek_args args = {inputs, options->target.kind == EK_VALUE_NONE ? 1 : 2, ek_value_none()};
    bool several = step->plan.parts > 1;
    if (inputs[1].kind == EK_VALUE_ERROR)
        return NULL;
    if (!output.per_device)
        inputs[1] = move_to(inputs[1], ek_nest_first(output), options->dim);
    bool told = several && ek_data_parallel_criterion_watch(options->criterion, weight);
    ek_value loss = ek_module_forward(options->criterion, &args);
    if (told)
        ek_data_parallel_criterion_watch(options->criterion, NULL);
    else if (several && loss.kind != EK_VALUE_ERROR && ask(step, index, &args, weight) < 0)
        return NULL;
    char text[200];
    if (loss.kind == EK_VALUE_ERROR)
        return NULL;
    if (loss.kind != EK_VALUE_TENSOR || ek_tensor_ndim(loss.as.tensor) > 0) {
        EK_FAIL(EK_E_SHAPE,
                "the criterion gives %s, but a training step needs one number; its reduction has "
                "to be a mean or a sum",
                loss.kind == EK_VALUE_TENSOR ? ek_tensor_text(loss.as.tensor, text)
                                             : ek_value_kind_name(loss));
        return NULL;
    }
    return loss.as.tensor;
}

static int add_to(ek_tensor **sum, ek_tensor *term)
{
    if (*sum && term)
        term = ek_add(*sum, ek_to_device(term, ek_tensor_device(*sum)));
    if (!term)
        return ek_error_pending();
    ek_release(*sum);
    *sum = ek_keep(term);
    return 0;
}

/* The loss's weight is a number. Parts without anything to average add nothing; where all are such
 * the last one makes the step what it is for one whole batch. */
static int weigh_by_number(train_step *step, ek_tensor *loss, double denominator, bool last,
                           double *factor)
{
    step->total += denominator;
    *factor = step->is_sum || step->plan.parts == 1 ? 1 : denominator / (double)step->plan.total;
    if (denominator == 0 && last && step->total == 0 && !step->counted)
        *factor = 1;
    bool enabled = ek_set_grad_enabled(false);
    ek_tensor *term = ek_to_dtype(ek_detach(loss), EK_F64);
    int rc = *factor == 0 ? 0 : add_to(&step->loss, ek_mul_scalar(term, *factor));
    ek_set_grad_enabled(enabled);
    return rc;
}

static int add_counted(train_step *step, ek_tensor *loss, ek_tensor *counted, ek_tensor **share)
{
    ek_device device = ek_tensor_device(loss);
    EK_TRY(add_to(&step->counted, counted));
    ek_tensor *wide = ek_mul_scalar(ek_to_device(counted, device), 1 / (double)step->plan.total);
    ek_tensor *zero = ek_scalar(0, EK_F64, device);
    ek_tensor *term = ek_mul(ek_to_dtype(ek_detach(loss), EK_F64), wide);
    EK_TRY(add_to(&step->loss, ek_where(ek_ne(wide, zero), term, zero)));
    *share = ek_to_dtype(wide, ek_tensor_dtype(loss));
    return *share ? 0 : ek_error_pending();
}

/* The same where it lies on a device. */
static int weigh_by_tensor(train_step *step, ek_tensor *loss, ek_tensor *counted, ek_tensor **share)
{
    bool enabled = ek_set_grad_enabled(false);
    int rc = add_counted(step, loss, counted, share);
    ek_set_grad_enabled(enabled);
    return rc;
}

static int run_part(train_step *step, int index)
{
    ek_loss_weight weight = {.is_sum = step->plan.parts == 1, .number = 1};
    ek_value output = run_model(step, index);
    if (output.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    ek_tensor *loss = run_criterion(step, index, output, &weight);
    if (weight.counted && !ek_scope_adopt(weight.counted))
        return ek_error_pending();
    if (!loss)
        return ek_error_pending();
    step->is_sum = weight.is_sum;
    if (weight.counted && !weight.is_sum) {
        ek_tensor *share;
        EK_TRY(weigh_by_tensor(step, loss, weight.counted, &share));
        return ek_backward(loss, .gradient = share);
    }
    double factor;
    bool last = index == step->plan.parts - 1;
    EK_TRY(weigh_by_number(step, loss, weight.is_sum ? 1 : weight.number, last, &factor));
    if (factor == 0)
        return 0;
    if (factor == 1)
        return ek_backward(loss);
    ek_tensor *gradient = ek_scalar(factor, ek_tensor_dtype(loss), ek_tensor_device(loss));
    return gradient ? ek_backward(loss, .gradient = gradient) : ek_error_pending();
}

/* ---- after the last ---- */

/* What the loss is multiplied by at the end: a number, or a f64 scalar that lies on a device; and
 * what gradients are multiplied by then. Without anything to average only the loss is NaN. */
static int final_factor(const train_step *step, double *number, ek_tensor **scalar,
                        ek_tensor **of_gradients)
{
    double samples = (double)step->plan.total;
    *number = 1;
    *scalar = *of_gradients = NULL;
    if (step->plan.parts == 1 || step->is_sum)
        return 0;
    if (!step->counted) {
        *number = step->total == 0 ? 1 : samples / step->total;
        return 0;
    }
    ek_device device = ek_tensor_device(step->counted);
    ek_tensor *all = ek_add_scalar(step->counted, step->total);
    *scalar = ek_div(ek_scalar(samples, EK_F64, device), all);
    *of_gradients =
        ek_where(ek_ne(all, ek_scalar(0, EK_F64, device)), *scalar, ek_scalar(1, EK_F64, device));
    return *of_gradients ? 0 : ek_error_pending();
}

static int read_loss(const train_step *step, double number, ek_tensor *scalar, double *loss)
{
    double of_scalar = 1;
    *loss = 0;
    if (step->loss)
        EK_TRY(ek_item(step->loss, loss));
    if (scalar)
        EK_TRY(ek_item(scalar, &of_scalar));
    *loss *= number * of_scalar;
    return 0;
}

static int finish(train_step *step, double *loss)
{
    const ek_train_options *options = step->options;
    double number, value;
    ek_tensor *scalar, *of_gradients;
    bool enabled = ek_set_grad_enabled(false);
    int rc = final_factor(step, &number, &scalar, &of_gradients);
    ek_set_grad_enabled(enabled);
    EK_TRY(rc);
    if (of_gradients || number != 1)
        EK_TRY(ek_step_gradients_scale(&step->gradients, number, of_gradients));
    EK_TRY(ek_step_gradients_add_earlier(&step->gradients));
    /* Before the step, so that an error found here leaves parameters as they are. */
    if (loss)
        EK_TRY(read_loss(step, number, scalar, &value));
    if (!options->accumulate_only) {
        if (options->max_norm > 0)
            EK_TRY(ek_clip_grad_norm(options->optimizer, options->max_norm,
                                     .error_if_nonfinite = true));
        EK_TRY(ek_step(options->optimizer));
    }
    if (loss)
        *loss = value;
    return 0;
}

/* ---- the step ---- */

static int run(train_step *step, double *loss)
{
    const ek_train_options *options = step->options;
    EK_TRY(ek_micro_batches_plan(options->input, options->target, options->dim,
                                 options->micro_batches, &step->plan));
    if (!options->accumulate_only)
        ek_zero_grad(options->optimizer);
    if (step->plan.parts > 1)
        EK_TRY(ek_step_gradients_set_aside(&step->gradients));
    for (int k = 0; k < step->plan.parts; k++) {
        /* A part's activations are gone before the next. */
        ek_scope scope = ek_scope_begin();
        int rc = run_part(step, k);
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return finish(step, loss);
}

static int check(const ek_train_options *options)
{
    EK_TRY(ek_error_status());
    if (!options->model || !options->criterion || !options->optimizer)
        return EK_FAIL(EK_E_INVALID, "train_step: the %s missing",
                       !options->model       ? "model is"
                       : !options->criterion ? "criterion is"
                                             : "optimizer is");
    if (options->input.kind == EK_VALUE_NONE)
        return EK_FAIL(EK_E_INVALID, "train_step: the input is missing");
    if (options->micro_batches < 0)
        return EK_FAIL(EK_E_INVALID, "train_step: %d micro-batches; it has to be 0 or more",
                       options->micro_batches);
    if (!(options->max_norm >= 0))
        return EK_FAIL(EK_E_INVALID, "train_step: max_norm has to be 0 (no limit) or more, not %g",
                       options->max_norm);
    return 0;
}

static int run_alone(ek_train_options options, double *loss)
{
    const int before = ek_error_status();
    train_step step = {.options = &options};
    EK_TRY(ek_step_gradients_open(options.optimizer, options.model, &step.gradients));
    ek_scope scope = ek_scope_begin();
    int rc = run(&step, loss);
    ek_release(step.loss);
    ek_release(step.counted);
    ek_scope_end(&scope);
    if (rc < 0) {
        ek_step_gradients_remove(&step.gradients);
        ek_error_prefix(before, "train_step");
    }
    ek_step_gradients_close(&step.gradients);
    return rc < 0 ? rc : 0;
}

/* Wrappers are this thread's from the first forward to the end of the step. */
int ek_train_step_with(ek_train_options options, double *loss)
{
    const int before = ek_error_status();
    EK_TRY(check(&options));
    ek_wrapper *wrappers[] = {ek_wrapper_of(options.model), ek_wrapper_of(options.criterion)};
    int entered = 0, rc = 0;
    for (; entered < 2 && rc >= 0; entered += rc >= 0)
        rc = wrappers[entered] ? ek_wrapper_enter(wrappers[entered]) : 0;
    if (rc >= 0)
        rc = run_alone(options, loss);
    else
        ek_error_prefix(before, "train_step");
    while (entered-- > 0)
        if (wrappers[entered])
            ek_wrapper_leave(wrappers[entered]);
    return rc;
}
