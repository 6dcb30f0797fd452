/* minimize.c: the step that follows from a loss, and its second half, which ek_train_step shares.
 */
#include "evenkeel/autograd.h"
#include "evenkeel/scaler.h"
#include "optim/optimizer.h"

int ek_step_clipped(ek_optimizer *optimizer, double max_norm)
{
    if (max_norm > 0)
        EK_TRY(ek_clip_grad_norm(optimizer, max_norm, .error_if_nonfinite = true));
    return ek_step(optimizer);
}

static int minimize_check(const ek_minimize_options *options)
{
    EK_TRY(ek_optimizer_check(options->optimizer));
    EK_TRY(ek_fork_check());
    EK_TRY(ek_check_given("minimize", "the loss", options->loss));
    return ek_optimizer_check_step(options->optimizer, "minimize: ", options->max_norm);
}

static int minimize_run(const ek_minimize_options *options, double *value)
{
    ek_tensor *loss = options->loss;
    if (options->scaler && !(loss = ek_grad_scaler_scale(options->scaler, loss)))
        return ek_error_pending();
    if (!options->accumulate)
        ek_zero_grad(options->optimizer);
    EK_TRY(ek_backward(loss));
    /* The loss is read before the step, so that after an error parameters are unchanged. */
    if (options->value)
        EK_TRY(ek_item(options->loss, value));
    return options->scaler
               ? ek_grad_scaler_step_clipped(options->scaler, options->optimizer, options->max_norm)
               : ek_step_clipped(options->optimizer, options->max_norm);
}

int ek_minimize_with(ek_minimize_options options)
{
    double value = 0;
    EK_TRY(minimize_check(&options));
    ek_scope scope = ek_scope_begin();
    int rc = minimize_run(&options, &value);
    ek_scope_end(&scope);
    if (rc >= 0 && options.value)
        *options.value = value;
    return rc;
}
