/* schedule_kinds.c: schedules of one formula each. */
#include <math.h>
#include <stdlib.h>

#include "optim/schedule.h"

static const double pi = 3.14159265358979323846;

/* ---- StepLR, MultiStepLR, ExponentialLR ---- */

static int step_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    (void)group;
    if (step > 0 && step % schedule->period == 0)
        *rate *= schedule->gamma;
    return 0;
}

static double step_closed(const ek_schedule *schedule, int group, int64_t step)
{
    return schedule->initial[group] * pow(schedule->gamma, (double)(step / schedule->period));
}

static const ek_schedule_kind step_kind = {.name = "step_lr",
                                           .next = step_next,
                                           .closed_form = step_closed};

ek_schedule *ek_step_lr(ek_optimizer *optimizer, int64_t step_size, double gamma)
{
    if (optimizer && (!ek_schedule_check_count("step_lr", "step_size", step_size) ||
                      !ek_schedule_check_number("step_lr", "gamma", gamma, INFINITY)))
        return NULL;
    return ek_schedule_new(&(ek_schedule){
        .kind = &step_kind, .optimizer = optimizer, .period = step_size, .gamma = gamma});
}

static const ek_schedule_kind exponential_kind = {.name = "exponential_lr",
                                                  .next = step_next,
                                                  .closed_form = step_closed};

ek_schedule *ek_exponential_lr(ek_optimizer *optimizer, double gamma)
{
    if (optimizer && !ek_schedule_check_number("exponential_lr", "gamma", gamma, INFINITY))
        return NULL;
    return ek_schedule_new(&(ek_schedule){
        .kind = &exponential_kind, .optimizer = optimizer, .period = 1, .gamma = gamma});
}

/* Multiplies the rate by gamma once for each milestone that is this step. A milestone may be in the
 * list several times. */
static int multi_step_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    (void)group;
    int times = ek_schedule_milestones_before(schedule, step) -
                ek_schedule_milestones_before(schedule, step - 1);
    if (times > 0)
        *rate *= pow(schedule->gamma, times);
    return 0;
}

static double multi_step_closed(const ek_schedule *schedule, int group, int64_t step)
{
    return schedule->initial[group] *
           pow(schedule->gamma, ek_schedule_milestones_before(schedule, step));
}

static const ek_schedule_kind multi_step_kind = {.name = "multi_step_lr",
                                                 .next = multi_step_next,
                                                 .closed_form = multi_step_closed};

static int milestone_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

ek_schedule *ek_multi_step_lr_of(ek_optimizer *optimizer, double gamma, const int64_t *milestones,
                                 int count)
{
    if (optimizer && !ek_schedule_check_number("multi_step_lr", "gamma", gamma, INFINITY))
        return NULL;
    if (count < 0 || (count > 0 && !milestones)) {
        EK_FAIL(EK_E_INVALID, "multi_step_lr: %d milestones%s", count,
                milestones ? "" : " at NULL");
        return NULL;
    }
    ek_schedule *schedule = ek_schedule_new(&(ek_schedule){.kind = &multi_step_kind,
                                                           .optimizer = optimizer,
                                                           .gamma = gamma,
                                                           .milestones = (int64_t *)milestones,
                                                           .milestone_count = count});
    if (schedule && count > 0)
        qsort(schedule->milestones, (size_t)count, sizeof *milestones, milestone_compare);
    return schedule;
}

/* ---- ConstantLR, LinearLR: `start` and `end` are factors ---- */

static double linear_closed(const ek_schedule *schedule, int group, int64_t step)
{
    int64_t done = step < schedule->period ? step : schedule->period;
    return schedule->initial[group] *
           (schedule->start +
            (schedule->end - schedule->start) * (double)done / (double)schedule->period);
}

/* Multiplies the rate by the quotient of two neighbouring factors. If the last factor was 0,
 * computes the rate from the initial rate. */
static int linear_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    const double rise = schedule->end - schedule->start;
    const double before = (double)schedule->period * schedule->start + (double)(step - 1) * rise;
    if (step == 0)
        *rate *= schedule->start;
    else if (step <= schedule->period && before == 0)
        *rate = linear_closed(schedule, group, step);
    else if (step <= schedule->period)
        *rate *= 1 + rise / before;
    return 0;
}

static const ek_schedule_kind linear_kind = {.name = "linear_lr",
                                             .next = linear_next,
                                             .closed_form = linear_closed};

ek_schedule *ek_linear_lr(ek_optimizer *optimizer, double start, double end, int64_t steps)
{
    if (optimizer && (!ek_schedule_check_number("linear_lr", "start", start, 1) ||
                      !ek_schedule_check_number("linear_lr", "end", end, 1) ||
                      !ek_schedule_check_count("linear_lr", "steps", steps)))
        return NULL;
    return ek_schedule_new(&(ek_schedule){
        .kind = &linear_kind, .optimizer = optimizer, .start = start, .end = end, .period = steps});
}

static double constant_closed(const ek_schedule *schedule, int group, int64_t step)
{
    return schedule->initial[group] *
           (schedule->start + (step >= schedule->period ? 1 - schedule->start : 0));
}

static int constant_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    if (step == 0)
        *rate *= schedule->start;
    else if (step == schedule->period)
        *rate = schedule->start == 0 ? constant_closed(schedule, group, step)
                                     : *rate * (1 / schedule->start);
    return 0;
}

static const ek_schedule_kind constant_kind = {.name = "constant_lr",
                                               .next = constant_next,
                                               .closed_form = constant_closed};

ek_schedule *ek_constant_lr(ek_optimizer *optimizer, double factor, int64_t steps)
{
    if (optimizer && (!ek_schedule_check_number("constant_lr", "factor", factor, 1) ||
                      !ek_schedule_check_count("constant_lr", "steps", steps)))
        return NULL;
    return ek_schedule_new(&(ek_schedule){
        .kind = &constant_kind, .optimizer = optimizer, .start = factor, .period = steps});
}

/* ---- PolynomialLR ---- */

static int polynomial_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    (void)group;
    const double steps = (double)schedule->period;
    if (step > 0 && step <= schedule->period)
        *rate *=
            pow((1 - (double)step / steps) / (1 - (double)(step - 1) / steps), schedule->power);
    return 0;
}

static double polynomial_closed(const ek_schedule *schedule, int group, int64_t step)
{
    double done = (double)(step < schedule->period ? step : schedule->period);
    return schedule->initial[group] * pow(1 - done / (double)schedule->period, schedule->power);
}

static const ek_schedule_kind polynomial_kind = {.name = "polynomial_lr",
                                                 .next = polynomial_next,
                                                 .closed_form = polynomial_closed};

ek_schedule *ek_polynomial_lr(ek_optimizer *optimizer, int64_t steps, double power)
{
    if (optimizer && (!ek_schedule_check_count("polynomial_lr", "steps", steps) ||
                      !ek_schedule_check_number("polynomial_lr", "power", power, INFINITY)))
        return NULL;
    return ek_schedule_new(&(ek_schedule){
        .kind = &polynomial_kind, .optimizer = optimizer, .period = steps, .power = power});
}

/* ---- CosineAnnealingLR ---- */

/* Returns 1 + cos(pi * step / T_max), which falls from 2 to 0 in T_max steps. */
static double cosine_height(const ek_schedule *schedule, int64_t step)
{
    return 1 + cos(pi * (double)step / (double)schedule->period);
}

/* Multiplies the rate's distance from the lowest rate by the quotient of two neighbouring heights.
 * Beyond T_max the rate rises again. After a height of 0 the quotient would be infinite, and the
 * rise is computed from the initial rate. */
static int cosine_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    int64_t period = schedule->period, after = step - 1 - period;
    double lowest = schedule->lr_min, initial = schedule->initial[group];
    if (step == 0)
        return 0;
    if (after >= 0 && after % period == 0 && after / period % 2 == 0)
        *rate = *rate + (initial - lowest) * (1 - cos(pi / (double)period)) / 2;
    else
        *rate =
            cosine_height(schedule, step) / cosine_height(schedule, step - 1) * (*rate - lowest) +
            lowest;
    return 0;
}

static double cosine_closed(const ek_schedule *schedule, int group, int64_t step)
{
    return schedule->lr_min +
           (schedule->initial[group] - schedule->lr_min) * cosine_height(schedule, step) / 2;
}

static const ek_schedule_kind cosine_kind = {.name = "cosine_annealing_lr",
                                             .next = cosine_next,
                                             .closed_form = cosine_closed};

ek_schedule *ek_cosine_annealing_lr(ek_optimizer *optimizer, int64_t steps, double lr_min)
{
    if (optimizer && (!ek_schedule_check_count("cosine_annealing_lr", "steps", steps) ||
                      !ek_schedule_check_number("cosine_annealing_lr", "lr_min", lr_min, INFINITY)))
        return NULL;
    return ek_schedule_new(&(ek_schedule){
        .kind = &cosine_kind, .optimizer = optimizer, .period = steps, .lr_min = lr_min});
}

/* ---- CosineAnnealingWarmRestarts ---- */

static int restarts_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    int64_t period = schedule->period;
    if (schedule->multiplier == 1)
        step %= period;
    while (step >= period) {
        step -= period;
        if (period > INT64_MAX / schedule->multiplier)
            break;
        period *= schedule->multiplier;
    }
    *rate = schedule->lr_min + (schedule->initial[group] - schedule->lr_min) *
                                   (1 + cos(pi * (double)step / (double)period)) / 2;
    return 0;
}

static const ek_schedule_kind restarts_kind = {.name = "cosine_annealing_warm_restarts",
                                               .next = restarts_next,
                                               .is_absolute = true};

ek_schedule *ek_cosine_annealing_warm_restarts(ek_optimizer *optimizer, int64_t steps,
                                               int64_t factor, double lr_min)
{
    const char *name = restarts_kind.name;
    if (optimizer && (!ek_schedule_check_count(name, "steps", steps) ||
                      !ek_schedule_check_count(name, "factor", factor) ||
                      !ek_schedule_check_number(name, "lr_min", lr_min, INFINITY)))
        return NULL;
    return ek_schedule_new(&(ek_schedule){.kind = &restarts_kind,
                                          .optimizer = optimizer,
                                          .period = steps,
                                          .multiplier = factor,
                                          .lr_min = lr_min});
}

/* ---- LambdaLR, MultiplicativeLR ---- */

static int lambda_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    *rate = schedule->initial[group] * schedule->function(step, group, schedule->user);
    return 0;
}

static int multiplicative_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    if (step > 0)
        *rate *= schedule->function(step, group, schedule->user);
    return 0;
}

static const ek_schedule_kind lambda_kind = {.name = "lambda_lr",
                                             .next = lambda_next,
                                             .is_absolute = true};
static const ek_schedule_kind multiplicative_kind = {.name = "multiplicative_lr",
                                                     .next = multiplicative_next};

static ek_schedule *function_schedule(const ek_schedule_kind *kind, ek_optimizer *optimizer,
                                      ek_schedule_function *function, void *user)
{
    if (optimizer && !function) {
        EK_FAIL(EK_E_INVALID, "%s: the function is NULL", kind->name);
        return NULL;
    }
    return ek_schedule_new(
        &(ek_schedule){.kind = kind, .optimizer = optimizer, .function = function, .user = user});
}

ek_schedule *ek_lambda_lr(ek_optimizer *optimizer, ek_schedule_function *function, void *user)
{
    return function_schedule(&lambda_kind, optimizer, function, user);
}

ek_schedule *ek_multiplicative_lr(ek_optimizer *optimizer, ek_schedule_function *function,
                                  void *user)
{
    return function_schedule(&multiplicative_kind, optimizer, function, user);
}
