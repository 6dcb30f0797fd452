/* sgd.c: stochastic gradient descent with momentum, as torch.optim.SGD:
 *
 *     g += weight_decay p;  b = momentum b + (1 - dampening) g  (b = g at first);
 *     p -= lr (nesterov ? g + momentum b : b) */
#include "kernels/kernels.h"
#include "optim/optimizer.h"

static int sgd_resolve(const ek_optimizer_options *given, const ek_optimizer_options *defaults,
                       ek_optimizer_options *resolved)
{
    static const ek_optimizer_options own = {.lr = 1e-3};
    if (!defaults)
        defaults = &own;
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
    if (!(o.lr >= 0))
        return EK_FAIL(EK_E_INVALID, "sgd: invalid learning rate %g, it has to be 0 or more", o.lr);
    if (!(o.momentum >= 0))
        return EK_FAIL(EK_E_INVALID, "sgd: invalid momentum %g, it has to be 0 or more",
                       o.momentum);
    if (!(o.weight_decay >= 0))
        return EK_FAIL(EK_E_INVALID, "sgd: invalid weight_decay %g, it has to be 0 or more",
                       o.weight_decay);
    if (o.dampening != o.dampening)
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

/* Only the first step, which makes the momentum buffer, differs. */
static int64_t sgd_phase(const ek_optimizer_options *options, int64_t step)
{
    return options->momentum != 0 && step == 1;
}

static bool sgd_keeps_zeros(const ek_optimizer_options *options)
{
    (void)options;
    return true;
}

static int sgd_update(const ek_optimizer_options *options, int64_t step, int count,
                      ek_tensor *const *parameters, ek_tensor *const *gradients,
                      ek_tensor *const *const *state)
{
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
