/* adam.c: Adam (Kingma and Ba 2015), AMSGrad (Reddi et al. 2018) and AdamW (Loshchilov and Hutter
 * 2019), as torch.optim.Adam and AdamW:
 *
 *     g += weight_decay p  (Adam)  or  p -= lr weight_decay p  (AdamW);
 *     m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;  (amsgrad: v' = max(v', v) below)
 *     p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps) */
#include "kernels/kernels.h"
#include "optim/optimizer.h"

static int resolve(const char *name, const ek_optimizer_options *given,
                   const ek_optimizer_options *defaults, ek_optimizer_options *resolved)
{
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
    if (!(o.lr >= 0))
        return EK_FAIL(EK_E_INVALID, "%s: invalid learning rate %g, it has to be 0 or more", name,
                       o.lr);
    if (!(o.eps >= 0))
        return EK_FAIL(EK_E_INVALID, "%s: invalid eps %g, it has to be 0 or more", name, o.eps);
    if (!(o.beta1 >= 0 && o.beta1 < 1))
        return EK_FAIL(EK_E_INVALID, "%s: invalid beta1 %g, it has to be in [0, 1)", name, o.beta1);
    if (!(o.beta2 >= 0 && o.beta2 < 1))
        return EK_FAIL(EK_E_INVALID, "%s: invalid beta2 %g, it has to be in [0, 1)", name, o.beta2);
    if (!(o.weight_decay >= 0))
        return EK_FAIL(EK_E_INVALID, "%s: invalid weight_decay %g, it has to be 0 or more", name,
                       o.weight_decay);
    *resolved = o;
    return 0;
}

static int adam_resolve(const ek_optimizer_options *given, const ek_optimizer_options *defaults,
                        ek_optimizer_options *resolved)
{
    static const ek_optimizer_options own = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    return resolve("adam", given, defaults ? defaults : &own, resolved);
}

static int adamw_resolve(const ek_optimizer_options *given, const ek_optimizer_options *defaults,
                         ek_optimizer_options *resolved)
{
    static const ek_optimizer_options own = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2};
    return resolve("adamw", given, defaults ? defaults : &own, resolved);
}

static int adam_state_count(const ek_optimizer_options *options)
{
    return options->amsgrad ? 3 : 2;
}

/* The bias corrections are those of the step. */
static int64_t adam_phase(const ek_optimizer_options *options, int64_t step)
{
    (void)options;
    return step;
}

/* With eps 0 a zero moment over a zero deviation is not a number. */
static bool adam_keeps_zeros(const ek_optimizer_options *options)
{
    return options->eps > 0;
}

static int update(bool decoupled, const ek_optimizer_options *options, int64_t step, int count,
                  ek_tensor *const *parameters, ek_tensor *const *gradients,
                  ek_tensor *const *const *state)
{
    const ek_adam_params params = {.lr = options->lr,
                                   .beta1 = options->beta1,
                                   .beta2 = options->beta2,
                                   .eps = options->eps,
                                   .weight_decay = options->weight_decay,
                                   .decoupled = decoupled,
                                   .maximize = options->maximize,
                                   .step = step};
    return ek_kernels_of(parameters[0])
        ->adam_step_list(ek_tensor_dev(parameters[0]), count, parameters, gradients, state[0],
                         state[1], state[2], &params);
}

static int adam_update(const ek_optimizer_options *options, int64_t step, int count,
                       ek_tensor *const *parameters, ek_tensor *const *gradients,
                       ek_tensor *const *const *state)
{
    return update(false, options, step, count, parameters, gradients, state);
}

static int adamw_update(const ek_optimizer_options *options, int64_t step, int count,
                        ek_tensor *const *parameters, ek_tensor *const *gradients,
                        ek_tensor *const *const *state)
{
    return update(true, options, step, count, parameters, gradients, state);
}

#define EK_ADAM(algorithm)                                                                    \
    {                                                                                         \
        .name = #algorithm, .state_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},       \
        .resolve = algorithm##_resolve, .state_count = adam_state_count, .phase = adam_phase, \
        .keeps_zeros = adam_keeps_zeros, .update = algorithm##_update                         \
    }
static const ek_algorithm adam = EK_ADAM(adam);
static const ek_algorithm adamw = EK_ADAM(adamw);

ek_optimizer *ek_adam_with(ek_optimizer_options options)
{
    return ek_optimizer_new(&adam, &options);
}

ek_optimizer *ek_adamw_with(ek_optimizer_options options)
{
    return ek_optimizer_new(&adamw, &options);
}
