/* algorithms.c: a row per algorithm. A row has the options, the names of the states, and a function
 * that returns a step's rule (kernels/steps.h) and writes the numbers that the rule computes with.
 * Each algorithm is torch.optim's of the same name.
 *
 * SGD with momentum:
 *
 *     g += weight_decay * p;  b = momentum * b + (1 - dampening) * g  (b = g at first);
 *     p -= lr * (nesterov ? g + momentum * b : b)
 *
 * Adam (Kingma and Ba 2015), AMSGrad (Reddi et al. 2018) and AdamW (Loshchilov and Hutter 2019):
 *
 *     g += weight_decay * p  (Adam)  or  p -= lr * weight_decay * p  (AdamW);
 *     m += (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2;
 *     p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 * With amsgrad, max_v = max(max_v, v) takes the place of v in the last line. */
#include <math.h>

#include "optim/algorithm.h"
#include "optim/lbfgs.h"

/* The offset of an option in the algorithm's own struct. */
#define AT(algorithm, member) [EK_OPTION(member)] = offsetof(ek_##algorithm##_options, member)
#define BETAS(algorithm) AT(algorithm, beta1), AT(algorithm, beta2), AT(algorithm, eps)
#define COMMON(algorithm) AT(algorithm, lr), AT(algorithm, weight_decay), AT(algorithm, maximize)

/* Defines an algorithm and its constructor. */
#define ALGORITHM(algorithm, ...)                                            \
    static const ek_algorithm algorithm = {.name = #algorithm, __VA_ARGS__}; \
    ek_optimizer *ek_##algorithm##_with(ek_##algorithm##_options options)    \
    {                                                                        \
        return ek_optimizer_new(&algorithm, &options, options.module);       \
    }

/* ---- what several have in common ---- */

/* Returns a phase per step, for algorithms whose numbers change with every step. */
static int64_t phase_each(const ek_optimizer_options *o, int64_t step)
{
    (void)o;
    return step;
}

/* Returns a phase for the first step and another phase for all other steps. */
static int64_t phase_first(const ek_optimizer_options *o, int64_t step)
{
    (void)o;
    return step == 1;
}

/* Writes sign, decay, rate and eps. */
static void numbers_common(const ek_optimizer_options *o, ek_step_numbers *n)
{
    n->sign = o->maximize ? -1 : 1;
    n->decay = o->weight_decay;
    n->rate = o->lr;
    n->eps = o->eps;
}

/* Writes the numbers of numbers_common and those of Adam's two averages. */
static void numbers_moments(const ek_optimizer_options *o, ek_step_numbers *n)
{
    numbers_common(o, n);
    n->shrink = 1;
    n->keep1 = o->beta1;
    n->add1 = 1 - o->beta1;
    n->keep2 = o->beta2;
    n->add2 = 1 - o->beta2;
}

/* ---- SGD ---- */

static int sgd_check(const ek_optimizer_options *o)
{
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0))
        return EK_FAIL(EK_E_INVALID,
                       "sgd: Nesterov momentum requires a momentum and zero dampening, not "
                       "momentum %g and dampening %g",
                       o->momentum, o->dampening);
    return 0;
}

static unsigned sgd_states(const ek_optimizer_options *o)
{
    return o->momentum != 0;
}

/* The first step makes the momentum buffer. */
static int64_t sgd_phase(const ek_optimizer_options *o, int64_t step)
{
    return o->momentum != 0 && step == 1;
}

static ek_step_rule sgd_step(const ek_optimizer_options *o, int64_t step, double *carried,
                             ek_step_numbers *n)
{
    (void)carried;
    numbers_common(o, n);
    n->keep1 = o->momentum;
    n->add1 = 1 - o->dampening;
    n->initial = o->nesterov ? o->momentum : 0;
    return o->momentum == 0 ? EK_STEP_SGD
           : step == 1      ? EK_STEP_SGD_FIRST
           : o->nesterov    ? EK_STEP_SGD_NESTEROV
                            : EK_STEP_SGD_HEAVY;
}

ALGORITHM(sgd, .options = {COMMON(sgd), AT(sgd, momentum), AT(sgd, dampening), AT(sgd, nesterov)},
          .state_names = {"momentum_buffer"}, .check = sgd_check, .states = sgd_states,
          .phase = sgd_phase, .step = sgd_step)

/* ---- Adam, AdamW ---- */

static unsigned adam_states(const ek_optimizer_options *o)
{
    return o->amsgrad ? 7 : 3;
}

static ek_step_rule adam_step(const ek_optimizer_options *o, int64_t step, double *carried,
                              ek_step_numbers *n)
{
    (void)carried;
    numbers_moments(o, n);
    n->rate = o->lr / (1 - pow(o->beta1, (double)step));
    n->correction = sqrt(1 - pow(o->beta2, (double)step));
    return o->amsgrad ? EK_STEP_AMSGRAD : EK_STEP_ADAM;
}

/* AdamW's decay isn't part of the gradient. */
static ek_step_rule adamw_step(const ek_optimizer_options *o, int64_t step, double *carried,
                               ek_step_numbers *n)
{
    ek_step_rule rule = adam_step(o, step, carried, n);
    n->shrink = 1 - o->lr * o->weight_decay;
    n->decay = 0;
    return rule;
}

#define ADAM                                    \
    .phase = phase_each, .states = adam_states, \
    .state_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
ALGORITHM(adam, ADAM, .options = {COMMON(adam), BETAS(adam), AT(adam, amsgrad)}, .step = adam_step)
ALGORITHM(adamw, ADAM, .options = {COMMON(adamw), BETAS(adamw), AT(adamw, amsgrad)},
          .step = adamw_step)

/* ---- Adamax (Kingma and Ba 2015) ---- */

static ek_step_rule adamax_step(const ek_optimizer_options *o, int64_t step, double *carried,
                                ek_step_numbers *n)
{
    (void)carried;
    numbers_moments(o, n);
    n->rate = o->lr / (1 - pow(o->beta1, (double)step));
    return EK_STEP_ADAMAX;
}

ALGORITHM(adamax, .options = {COMMON(adamax), BETAS(adamax)}, .state_names = {"exp_avg", "exp_inf"},
          .phase = phase_each, .step = adamax_step)

/* ---- NAdam (Dozat 2016): carries the product of all steps' mu ---- */

static double nadam_mu(const ek_optimizer_options *o, int64_t step)
{
    return o->beta1 * (1 - 0.5 * pow(0.96, (double)step * o->momentum_decay));
}

static ek_step_rule nadam_step(const ek_optimizer_options *o, int64_t step, double *carried,
                               ek_step_numbers *n)
{
    const double mu = nadam_mu(o, step), next = nadam_mu(o, step + 1);
    const double product = (step == 1 ? 1 : *carried) * mu;
    numbers_moments(o, n);
    n->correction = 1 - pow(o->beta2, (double)step);
    n->initial = o->lr * (1 - mu) / (1 - product);
    /* PyTorch 2's formula; 1.13 multiplies by mu twice. */
    n->rate = o->lr * next / (1 - product * next);
    *carried = product;
    return EK_STEP_NADAM;
}

ALGORITHM(nadam, .options = {COMMON(nadam), BETAS(nadam), AT(nadam, momentum_decay)},
          .state_names = {"exp_avg", "exp_avg_sq"}, .carried = "mu_product", .phase = phase_each,
          .step = nadam_step)

/* ---- RAdam (Liu et al. 2020): without the root until its variance is tractable ---- */

static ek_step_rule radam_step(const ek_optimizer_options *o, int64_t step, double *carried,
                               ek_step_numbers *n)
{
    (void)carried;
    const double t = (double)step, power = pow(o->beta2, t), correction = 1 - power;
    const double most = 2 / (1 - o->beta2) - 1, length = most - 2 * t * power / correction;
    numbers_moments(o, n);
    n->low = 1 - pow(o->beta1, t);
    n->correction = sqrt(correction);
    if (!(length > 5))
        return EK_STEP_RADAM_WARM_UP;
    n->high = sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    return EK_STEP_RADAM;
}

ALGORITHM(radam, .options = {COMMON(radam), BETAS(radam)}, .state_names = {"exp_avg", "exp_avg_sq"},
          .phase = phase_each, .step = radam_step)

/* ---- RMSprop (Hinton's lectures; centered: Graves 2013) ---- */

static unsigned rmsprop_states(const ek_optimizer_options *o)
{
    return 1u | (o->momentum > 0) << 1 | (o->centered != 0) << 2;
}

static ek_step_rule rmsprop_step(const ek_optimizer_options *o, int64_t step, double *carried,
                                 ek_step_numbers *n)
{
    (void)step;
    (void)carried;
    numbers_common(o, n);
    n->keep1 = o->momentum;
    n->keep2 = o->alpha;
    n->add2 = 1 - o->alpha;
    if (o->centered)
        return o->momentum > 0 ? EK_STEP_RMSPROP_CENTERED_MOMENTUM : EK_STEP_RMSPROP_CENTERED;
    return o->momentum > 0 ? EK_STEP_RMSPROP_MOMENTUM : EK_STEP_RMSPROP;
}

ALGORITHM(rmsprop,
          .options = {COMMON(rmsprop), AT(rmsprop, alpha), AT(rmsprop, eps), AT(rmsprop, momentum),
                      AT(rmsprop, centered)},
          .state_names = {"square_avg", "momentum_buffer", "grad_avg"}, .states = rmsprop_states,
          .step = rmsprop_step)

/* ---- Adagrad (Duchi et al. 2011) ---- */

static int64_t adagrad_phase(const ek_optimizer_options *o, int64_t step)
{
    return o->lr_decay != 0 ? step : step == 1;
}

static ek_step_rule adagrad_step(const ek_optimizer_options *o, int64_t step, double *carried,
                                 ek_step_numbers *n)
{
    (void)carried;
    numbers_common(o, n);
    n->rate = o->lr / (1 + (double)(step - 1) * o->lr_decay);
    n->initial = step == 1 ? o->initial_accumulator_value : 0;
    return EK_STEP_ADAGRAD;
}

ALGORITHM(adagrad,
          .options = {COMMON(adagrad), AT(adagrad, eps), AT(adagrad, lr_decay),
                      AT(adagrad, initial_accumulator_value)},
          .state_names = {"sum"}, .phase = adagrad_phase, .step = adagrad_step)

/* ---- Adadelta (Zeiler 2012) ---- */

static ek_step_rule adadelta_step(const ek_optimizer_options *o, int64_t step, double *carried,
                                  ek_step_numbers *n)
{
    (void)step;
    (void)carried;
    numbers_common(o, n);
    n->keep2 = o->rho;
    n->add2 = 1 - o->rho;
    return EK_STEP_ADADELTA;
}

ALGORITHM(adadelta, .options = {COMMON(adadelta), AT(adadelta, rho), AT(adadelta, eps)},
          .state_names = {"square_avg", "acc_delta"}, .step = adadelta_step)

/* ---- Rprop (Riedmiller and Braun 1993) ---- */

static ek_step_rule rprop_step(const ek_optimizer_options *o, int64_t step, double *carried,
                               ek_step_numbers *n)
{
    (void)carried;
    numbers_common(o, n);
    n->keep1 = o->eta_minus;
    n->keep2 = o->eta_plus;
    n->low = o->step_min;
    n->high = o->step_max;
    n->initial = step == 1 ? o->lr : 0;
    return EK_STEP_RPROP;
}

ALGORITHM(rprop,
          .options = {AT(rprop, lr), AT(rprop, maximize), AT(rprop, eta_minus), AT(rprop, eta_plus),
                      AT(rprop, step_min), AT(rprop, step_max)},
          .state_names = {"prev", "step_size"}, .phase = phase_first, .step = rprop_step)

/* ---- ASGD (Polyak and Juditsky 1992): carries the next step's rate ---- */

static ek_step_rule asgd_step(const ek_optimizer_options *o, int64_t step, double *carried,
                              ek_step_numbers *n)
{
    const double rate = step == 1 ? o->lr : *carried, after = (double)(step - 1) - o->t0;
    numbers_common(o, n);
    n->rate = rate;
    n->shrink = 1 - o->lambd * rate;
    n->add1 = after > 1 ? 1 / after : 1;
    *carried = o->lr / pow(1 + o->lambd * o->lr * (double)step, o->alpha);
    return EK_STEP_ASGD;
}

ALGORITHM(asgd, .options = {COMMON(asgd), AT(asgd, lambd), AT(asgd, alpha), AT(asgd, t0)},
          .state_names = {"ax"}, .carried = "eta", .phase = phase_each, .step = asgd_step)

/* ---- L-BFGS: lbfgs.c ---- */

static void lbfgs_complete(ek_optimizer_options *o)
{
    if (o->max_eval == EK_UNSET)
        o->max_eval = floor(o->max_iter * 5 / 4);
}

static const ek_vector_algorithm lbfgs_vector = {.memory = sizeof(ek_lbfgs),
                                                 .minimise = ek_lbfgs_minimise,
                                                 .state_name = ek_lbfgs_state_name,
                                                 .state = ek_lbfgs_state,
                                                 .set_state = ek_lbfgs_set_state,
                                                 .clear = ek_lbfgs_clear};

ALGORITHM(lbfgs,
          .options = {AT(lbfgs, lr), AT(lbfgs, max_iter), AT(lbfgs, max_eval),
                      AT(lbfgs, tolerance_grad), AT(lbfgs, tolerance_change),
                      AT(lbfgs, history_size), AT(lbfgs, line_search)},
          .complete = lbfgs_complete, .vector = &lbfgs_vector)
