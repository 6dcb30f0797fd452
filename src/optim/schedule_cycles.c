/* schedule_cycles.c: schedules that cycle the rate and the momentum, and the schedule that reduces
 * the rate if a measure stops improving. */
#include <math.h>
#include <stdlib.h>

#include "optim/algorithm.h"
#include "optim/schedule.h"

static const double pi = 3.14159265358979323846;

/* Returns the name of the option that is cycled as momentum; NULL if the optimizer has none. */
static const char *cycle_momentum_name(const ek_optimizer *optimizer, bool beta1_too)
{
    const size_t *options = optimizer->algorithm->options;
    if (beta1_too && options[EK_OPTION(beta1)])
        return "beta1";
    return options[EK_OPTION(momentum)] ? "momentum" : NULL;
}

/* Sets the momentum of all groups. */
static int cycle_set_momentum(ek_optimizer *optimizer, double momentum)
{
    const int count = optimizer->group_count;
    double *values = ek_calloc((size_t)count + 1, sizeof *values);
    if (!values)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        values[i] = momentum;
    int status = ek_optimizer_set_all(optimizer, cycle_momentum_name(optimizer, true), values);
    free(values);
    return status;
}

static bool cycle_refuse_momentum(const char *kind, const ek_optimizer *optimizer)
{
    EK_FAIL(EK_E_INVALID,
            "%s: %s has no momentum to cycle; turn it off with .cycle_momentum = false", kind,
            optimizer->algorithm->name);
    return false;
}

/* ---- OneCycleLR (Smith and Topin 2018) ---- */

/* Returns the value at a step on the way from at[0] to at[1], at[2] and, with three phases, at[3].
 */
static double one_cycle_value(const ek_one_cycle_lr_options *o, int64_t step, const double at[4])
{
    const double rise = o->pct_start * (double)o->total_steps;
    const double ends[] = {rise - 1, o->three_phase ? 2 * rise - 2 : (double)(o->total_steps - 1),
                           (double)(o->total_steps - 1)};
    const int last = o->three_phase ? 2 : 1;
    int phase = 0;
    while (phase < last && (double)step > ends[phase])
        phase++;
    const double begin = phase > 0 ? ends[phase - 1] : 0;
    const double part = ((double)step - begin) / (ends[phase] - begin);
    const double from = at[phase], to = at[phase + 1];
    return o->linear ? (to - from) * part + from : to + (from - to) / 2 * (cos(pi * part) + 1);
}

static int one_cycle_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    const ek_one_cycle_lr_options *o = &schedule->one_cycle;
    if (step > o->total_steps)
        return EK_FAIL(EK_E_INVALID, "one_cycle_lr: step %lld is beyond total_steps %lld",
                       (long long)step, (long long)o->total_steps);
    if (o->max_lrs && group >= schedule->max_lr_count)
        return EK_FAIL(EK_E_INVALID, "one_cycle_lr: max_lrs has no rate for group %d", group);
    const double most = o->max_lrs ? o->max_lrs[group] : o->max_lr;
    const double first = most / o->div_factor, last = first / o->final_div_factor;
    const double up_down[] = {first, most, last, last}, three[] = {first, most, first, last};
    *rate = one_cycle_value(o, step, o->three_phase ? three : up_down);
    return 0;
}

/* Makes the schedule's first rate the group's initial rate, also for later schedules. */
static void one_cycle_set_initial(const ek_schedule *schedule, int group, double *initial)
{
    const ek_one_cycle_lr_options *o = &schedule->one_cycle;
    *initial = (o->max_lrs ? o->max_lrs[group] : o->max_lr) / o->div_factor;
}

static int one_cycle_set_momentum(const ek_schedule *schedule, int64_t step)
{
    const ek_one_cycle_lr_options *o = &schedule->one_cycle;
    const double high = o->max_momentum, low = o->base_momentum;
    const double at[] = {high, low, high, high};
    return !o->cycle_momentum
               ? 0
               : cycle_set_momentum(schedule->optimizer, one_cycle_value(o, step, at));
}

static const ek_schedule_kind one_cycle_kind = {.name = "one_cycle_lr",
                                                .next = one_cycle_next,
                                                .is_absolute = true,
                                                .set_initial = one_cycle_set_initial,
                                                .set_momentum = one_cycle_set_momentum};

static bool one_cycle_check(const ek_one_cycle_lr_options *o)
{
    const char *name = one_cycle_kind.name;
    if (!ek_schedule_check_count(name, "total_steps", o->total_steps) ||
        !ek_schedule_check_number(name, "max_lr", o->max_lr, INFINITY) ||
        !ek_schedule_check_number(name, "pct_start", o->pct_start, 1))
        return false;
    for (int i = 0; o->max_lrs && i < o->optimizer->group_count; i++)
        if (!ek_schedule_check_number(name, "a rate of max_lrs", o->max_lrs[i], INFINITY))
            return false;
    if (!(o->div_factor > 0 && o->final_div_factor > 0)) {
        EK_FAIL(EK_E_INVALID,
                "one_cycle_lr: div_factor %g and final_div_factor %g have to be more than 0",
                o->div_factor, o->final_div_factor);
        return false;
    }
    /* A rise of less than one step is skipped, as in PyTorch. A rise of one step would be 0 / 0. */
    if (o->pct_start * (double)o->total_steps == 1) {
        EK_FAIL(EK_E_INVALID,
                "one_cycle_lr: pct_start %g of total_steps %lld is 1 step; rates need more than "
                "that to rise",
                o->pct_start, (long long)o->total_steps);
        return false;
    }
    return !o->cycle_momentum || cycle_momentum_name(o->optimizer, true) ||
           cycle_refuse_momentum(name, o->optimizer);
}

ek_schedule *ek_one_cycle_lr_with(ek_one_cycle_lr_options options)
{
    ek_optimizer *optimizer = options.optimizer;
    if (optimizer && !one_cycle_check(&options))
        return NULL;
    return ek_schedule_new(&(ek_schedule){.kind = &one_cycle_kind,
                                          .optimizer = optimizer,
                                          .one_cycle = options,
                                          .max_lr_count = optimizer ? optimizer->group_count : 0});
}

/* ---- CyclicLR (Smith 2017) ---- */

/* Returns how far the step is from the base (0) towards the top (1). In some modes the top sinks
 * from cycle to cycle. */
static double cyclic_height(const ek_cyclic_lr_options *o, int64_t step)
{
    const double total = (double)o->step_size_up + (double)o->step_size_down;
    const double ratio = (double)o->step_size_up / total;
    const double cycle = floor(1 + (double)step / total);
    const double x = 1 + (double)step / total - cycle;
    const double height = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
    switch (o->mode) {
    case EK_CYCLIC_TRIANGULAR2:
        return height * (1 / pow(2, cycle - 1));
    case EK_CYCLIC_EXP_RANGE:
        return height * pow(o->gamma, (double)step);
    default:
        return height;
    }
}

static int cyclic_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    const ek_cyclic_lr_options *o = &schedule->cyclic;
    (void)group;
    *rate = o->base_lr + (o->max_lr - o->base_lr) * cyclic_height(o, step);
    return 0;
}

static void cyclic_set_initial(const ek_schedule *schedule, int group, double *initial)
{
    (void)group;
    if (isnan(*initial))
        *initial = schedule->cyclic.base_lr;
}

static int cyclic_set_momentum(const ek_schedule *schedule, int64_t step)
{
    const ek_cyclic_lr_options *o = &schedule->cyclic;
    if (!o->cycle_momentum)
        return 0;
    return cycle_set_momentum(schedule->optimizer,
                              o->max_momentum -
                                  (o->max_momentum - o->base_momentum) * cyclic_height(o, step));
}

static const ek_schedule_kind cyclic_kind = {.name = "cyclic_lr",
                                             .next = cyclic_next,
                                             .is_absolute = true,
                                             .set_initial = cyclic_set_initial,
                                             .set_momentum = cyclic_set_momentum};

static bool cyclic_check(const ek_cyclic_lr_options *o)
{
    const char *name = cyclic_kind.name;
    if (!ek_schedule_check_number(name, "base_lr", o->base_lr, INFINITY) ||
        !ek_schedule_check_number(name, "max_lr", o->max_lr, INFINITY) ||
        !ek_schedule_check_count(name, "step_size_up", o->step_size_up) ||
        !ek_schedule_check_count(name, "step_size_down", o->step_size_down) ||
        !ek_schedule_check_number(name, "gamma", o->gamma, INFINITY))
        return false;
    if ((unsigned)o->mode > EK_CYCLIC_EXP_RANGE) {
        EK_FAIL(EK_E_INVALID, "cyclic_lr: there is no mode %d", (int)o->mode);
        return false;
    }
    return !o->cycle_momentum || cycle_momentum_name(o->optimizer, false) ||
           cycle_refuse_momentum(name, o->optimizer);
}

ek_schedule *ek_cyclic_lr_with(ek_cyclic_lr_options options)
{
    if (options.step_size_down == EK_UNSET)
        options.step_size_down = options.step_size_up;
    if (options.optimizer && !cyclic_check(&options))
        return NULL;
    return ek_schedule_new(
        &(ek_schedule){.kind = &cyclic_kind, .optimizer = options.optimizer, .cyclic = options});
}

/* ---- ReduceLROnPlateau ---- */

static int plateau_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    (void)schedule;
    (void)group;
    (void)step;
    (void)rate;
    return 0;
}

const ek_schedule_kind ek_schedule_plateau_kind = {.name = "reduce_lr_on_plateau",
                                                   .next = plateau_next};

ek_schedule *ek_reduce_lr_on_plateau_with(ek_reduce_lr_on_plateau_options o)
{
    const char *name = ek_schedule_plateau_kind.name;
    if (o.optimizer && !(o.factor >= 0 && o.factor < 1)) {
        EK_FAIL(EK_E_INVALID, "%s: factor has to be 0 or more and less than 1, not %g", name,
                o.factor);
        return NULL;
    }
    if (o.optimizer && (o.patience < 0 || o.cooldown < 0)) {
        EK_FAIL(EK_E_INVALID, "%s: patience %lld and cooldown %lld have to be 0 or more", name,
                (long long)o.patience, (long long)o.cooldown);
        return NULL;
    }
    if (o.optimizer && (!ek_schedule_check_number(name, "threshold", o.threshold, INFINITY) ||
                        !ek_schedule_check_number(name, "min_lr", o.min_lr, INFINITY) ||
                        !ek_schedule_check_number(name, "eps", o.eps, INFINITY)))
        return NULL;
    ek_schedule *schedule = ek_schedule_new(
        &(ek_schedule){.kind = &ek_schedule_plateau_kind, .optimizer = o.optimizer, .plateau = o});
    if (schedule)
        schedule->memory[EK_PLATEAU_BEST] = o.higher ? -INFINITY : INFINITY;
    return schedule;
}

static bool plateau_is_better(const ek_reduce_lr_on_plateau_options *o, double measure, double best)
{
    if (o->absolute)
        return o->higher ? measure > best + o->threshold : measure < best - o->threshold;
    return o->higher ? measure > best * (1 + o->threshold) : measure < best * (1 - o->threshold);
}

static void plateau_reduce(ek_schedule *schedule)
{
    const ek_reduce_lr_on_plateau_options *o = &schedule->plateau;
    for (int i = 0; i < schedule->optimizer->group_count; i++) {
        double *rate = &schedule->optimizer->groups[i].lr;
        double reduced = *rate * o->factor > o->min_lr ? *rate * o->factor : o->min_lr;
        if (*rate - reduced > o->eps)
            *rate = reduced;
    }
}

int ek_schedule_step_measure(ek_schedule *schedule, double measure)
{
    if (!schedule || schedule->kind != &ek_schedule_plateau_kind)
        return ek_schedule_step(schedule);
    const ek_reduce_lr_on_plateau_options *o = &schedule->plateau;
    double *memory = schedule->memory;
    schedule->count++;
    if (plateau_is_better(o, measure, memory[EK_PLATEAU_BEST])) {
        memory[EK_PLATEAU_BEST] = measure;
        memory[EK_PLATEAU_BAD] = 0;
    } else {
        memory[EK_PLATEAU_BAD]++;
    }
    if (memory[EK_PLATEAU_COOLDOWN] > 0) {
        memory[EK_PLATEAU_COOLDOWN]--;
        memory[EK_PLATEAU_BAD] = 0;
    }
    if (memory[EK_PLATEAU_BAD] > (double)o->patience) {
        plateau_reduce(schedule);
        memory[EK_PLATEAU_COOLDOWN] = (double)o->cooldown;
        memory[EK_PLATEAU_BAD] = 0;
    }
    return 0;
}
