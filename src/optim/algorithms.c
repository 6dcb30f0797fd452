/* algorithms.c: the algorithms' options, and the kernels that compute their formulas.
 *
 * SGD with momentum, as torch.optim.SGD:
 *
 *     g += weight_decay * p;  b = momentum * b + (1 - dampening) * g  (b = g at first);
 *     p -= lr * (nesterov ? g + momentum * b : b)
 *
 * Adam (Kingma and Ba 2015), AMSGrad (Reddi et al. 2018) and AdamW (Loshchilov and Hutter 2019), as
 * torch.optim.Adam and AdamW:
 *
 *     g += weight_decay * p  (Adam)  or  p -= lr * weight_decay * p  (AdamW);
 *     m += (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2;
 *     p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 * With amsgrad, max_v = max(max_v, v) takes the place of v in the last line. */
#include <math.h>

#include "kernels/kernels.h"
#include "optim/optimizer.h"

/* ---- SGD ---- */

static int sgd_resolve(const ek_algorithm *algorithm, const ek_optimizer_options *given,
                       const ek_optimizer_options *defaults, ek_optimizer_options *resolved)
{
    (void)algorithm;
    if (EK_GIVEN(given, beta1, 6) != 0 || EK_GIVEN(given, beta2, 7) != 0 ||
        EK_GIVEN(given, eps, 8) != 0 || given->amsgrad)
        return EK_FAIL(EK_E_INVALID, "sgd has no beta1, beta2, eps or amsgrad; adam has");
    ek_optimizer_options o = {
        .lr = ek_number_or(EK_GIVEN(given, lr, 1), defaults->lr),
        .momentum = ek_number_or(EK_GIVEN(given, momentum, 2), defaults->momentum),
        .dampening = ek_number_or(EK_GIVEN(given, dampening, 3), defaults->dampening),
        .weight_decay = ek_number_or(EK_GIVEN(given, weight_decay, 4), defaults->weight_decay),
        .nesterov = given->nesterov || defaults->nesterov,
        .maximize = given->maximize || defaults->maximize};
    EK_TRY(ek_optimizer_check_option("sgd", "learning rate", o.lr));
    EK_TRY(ek_optimizer_check_option("sgd", "momentum", o.momentum));
    EK_TRY(ek_optimizer_check_option("sgd", "weight_decay", o.weight_decay));
    if (isnan(o.dampening))
        return EK_FAIL(EK_E_INVALID, "sgd: dampening is not a number");
    if (o.nesterov && (o.momentum <= 0 || o.dampening != 0))
        return EK_FAIL(EK_E_INVALID,
                       "sgd: Nesterov momentum requires a momentum and zero dampening, not "
                       "momentum %g and dampening %g",
                       o.momentum, o.dampening);
    *resolved = o;
    return 0;
}

static int sgd_state_count(const ek_optimizer_options *options)
{
    return options->momentum != 0;
}

/* Only the first step differs, because it makes the momentum buffer. */
static int64_t sgd_phase(const ek_optimizer_options *options, int64_t step)
{
    return options->momentum != 0 && step == 1;
}

static bool sgd_keeps_zeros(const ek_optimizer_options *options)
{
    (void)options;
    return true;
}

static int sgd_update(const ek_algorithm *algorithm, const ek_optimizer_options *options,
                      int64_t step, int count, ek_tensor *const *parameters,
                      ek_tensor *const *gradients, ek_tensor *const *const *state)
{
    (void)algorithm;
    const ek_sgd_params params = {.lr = options->lr,
                                  .momentum = options->momentum,
                                  .dampening = options->dampening,
                                  .weight_decay = options->weight_decay,
                                  .nesterov = options->nesterov,
                                  .maximize = options->maximize,
                                  .first = step == 1};
    return ek_kernels_of(parameters[0])
        ->sgd_step_list(ek_tensor_dev(parameters[0]), count, parameters, gradients, state[0],
                        &params);
}

static const ek_algorithm sgd = {.name = "sgd",
                                 .defaults = {.lr = 1e-3},
                                 .state_names = {"momentum_buffer"},
                                 .resolve = sgd_resolve,
                                 .state_count = sgd_state_count,
                                 .phase = sgd_phase,
                                 .keeps_zeros = sgd_keeps_zeros,
                                 .update = sgd_update};

ek_optimizer *ek_sgd_with(ek_optimizer_options options)
{
    return ek_optimizer_new(&sgd, &options);
}

/* ---- Adam ---- */

static int adam_resolve(const ek_algorithm *algorithm, const ek_optimizer_options *given,
                        const ek_optimizer_options *defaults, ek_optimizer_options *resolved)
{
    const char *name = algorithm->name;
    if (EK_GIVEN(given, momentum, 2) != 0 || EK_GIVEN(given, dampening, 3) != 0 || given->nesterov)
        return EK_FAIL(EK_E_INVALID, "%s has no momentum, dampening or nesterov; sgd has", name);
    ek_optimizer_options o = {.lr = ek_number_or(EK_GIVEN(given, lr, 1), defaults->lr),
                              .beta1 = ek_number_or(EK_GIVEN(given, beta1, 6), defaults->beta1),
                              .beta2 = ek_number_or(EK_GIVEN(given, beta2, 7), defaults->beta2),
                              .eps = ek_number_or(EK_GIVEN(given, eps, 8), defaults->eps),
                              .weight_decay = ek_number_or(EK_GIVEN(given, weight_decay, 4),
                                                           defaults->weight_decay),
                              .amsgrad = given->amsgrad || defaults->amsgrad,
                              .maximize = given->maximize || defaults->maximize};
    const double betas[] = {o.beta1, o.beta2};
    EK_TRY(ek_optimizer_check_option(name, "learning rate", o.lr));
    EK_TRY(ek_optimizer_check_option(name, "eps", o.eps));
    for (int i = 0; i < 2; i++)
        if (!(betas[i] >= 0 && betas[i] < 1))
            return EK_FAIL(EK_E_INVALID, "%s: invalid beta%d %g, it has to be in [0, 1)", name,
                           i + 1, betas[i]);
    EK_TRY(ek_optimizer_check_option(name, "weight_decay", o.weight_decay));
    *resolved = o;
    return 0;
}

static int adam_state_count(const ek_optimizer_options *options)
{
    return options->amsgrad ? 3 : 2;
}

/* Each step is a phase, because bias corrections depend on the step. */
static int64_t adam_phase(const ek_optimizer_options *options, int64_t step)
{
    (void)options;
    return step;
}

/* With eps 0 the padding between the tensors of a slab would become NaN: 0 / 0. */
static bool adam_keeps_zeros(const ek_optimizer_options *options)
{
    return options->eps > 0;
}

static int adam_update(const ek_algorithm *algorithm, const ek_optimizer_options *options,
                       int64_t step, int count, ek_tensor *const *parameters,
                       ek_tensor *const *gradients, ek_tensor *const *const *state)
{
    const ek_adam_params params = {.lr = options->lr,
                                   .beta1 = options->beta1,
                                   .beta2 = options->beta2,
                                   .eps = options->eps,
                                   .weight_decay = options->weight_decay,
                                   .decoupled = algorithm->decoupled,
                                   .maximize = options->maximize,
                                   .step = step};
    return ek_kernels_of(parameters[0])
        ->adam_step_list(ek_tensor_dev(parameters[0]), count, parameters, gradients, state[0],
                         state[1], state[2], &params);
}

/* The part that Adam and AdamW have in common. */
#define EK_ADAM                                                                            \
    .state_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .resolve = adam_resolve,   \
    .state_count = adam_state_count, .phase = adam_phase, .keeps_zeros = adam_keeps_zeros, \
    .update = adam_update
static const ek_algorithm adam = {
    EK_ADAM, .name = "adam", .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}};
static const ek_algorithm adamw = {
    EK_ADAM, .name = "adamw", .decoupled = true,
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2}};

ek_optimizer *ek_adam_with(ek_optimizer_options options)
{
    return ek_optimizer_new(&adam, &options);
}

ek_optimizer *ek_adamw_with(ek_optimizer_options options)
{
    return ek_optimizer_new(&adamw, &options);
}
