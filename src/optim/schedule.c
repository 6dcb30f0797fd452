/* schedule.c: learning rates. Each step's rate is computed from the rate before it.
 *
 * The recursions are PyTorch's, in its order of operations, so that they go on from a rate that the
 * user set in between. */
#include <math.h>
#include <stdlib.h>

#include "optim/optimizer.h"

enum { MOST_REPLAYED = 1 << 24 }; /* most steps to replay: about a second */

typedef struct schedule_kind {
    const char *name;
    /* A group's rate after a step, from the rate before and the initial rate. */
    double (*next)(const ek_schedule *schedule, int64_t step, double initial, double rate);
    /* A group's rate after a step, from its initial rate alone; rounding differs from `next`. */
    double (*closed_form)(const ek_schedule *schedule, int64_t step, double initial);
} schedule_kind;

struct ek_schedule {
    const schedule_kind *kind;
    ek_optimizer *optimizer;
    int64_t count;   /* count of steps taken */
    double *initial; /* rates of the groups when first seen */
    int group_count;
    int64_t period; /* StepLR's step_size, CosineAnnealingLR's T_max */
    double gamma, lr_min;
};

static double schedule_step_next(const ek_schedule *schedule, int64_t step, double initial,
                                 double rate)
{
    (void)initial;
    return step % schedule->period == 0 ? rate * schedule->gamma : rate;
}

static double schedule_step_closed(const ek_schedule *schedule, int64_t step, double initial)
{
    return initial * pow(schedule->gamma, (double)(step / schedule->period));
}

static const schedule_kind step_kind = {"step_lr", schedule_step_next, schedule_step_closed};

static const double pi = 3.14159265358979323846;

/* 1 + cos(pi * step / T_max), which falls from 2 to 0 in T_max steps. */
static double schedule_height(const ek_schedule *schedule, int64_t step)
{
    return 1 + cos(pi * (double)step / (double)schedule->period);
}

/* Beyond T_max the rate rises again. At the lowest rate schedule_height is 0, by which nothing can
 * be divided, so the next rate is computed from `initial`. */
static double schedule_cosine_next(const ek_schedule *schedule, int64_t step, double initial,
                                   double rate)
{
    int64_t period = schedule->period, after = step - 1 - period;
    double lowest = schedule->lr_min;
    if (after >= 0 && after % period == 0 && after / period % 2 == 0)
        return rate + (initial - lowest) * (1 - cos(pi / (double)period)) / 2;
    return schedule_height(schedule, step) / schedule_height(schedule, step - 1) * (rate - lowest) +
           lowest;
}

static double schedule_cosine_closed(const ek_schedule *schedule, int64_t step, double initial)
{
    return schedule->lr_min + (initial - schedule->lr_min) * schedule_height(schedule, step) / 2;
}

static const schedule_kind cosine_kind = {"cosine_annealing_lr", schedule_cosine_next,
                                          schedule_cosine_closed};

/* Notes the rates of groups that were added since the last call. */
static int schedule_note_groups(ek_schedule *schedule)
{
    int count = ek_optimizer_group_count(schedule->optimizer);
    if (count == schedule->group_count)
        return 0;
    double *initial = ek_realloc(schedule->initial, (size_t)count * sizeof *initial);
    if (!initial)
        return EK_E_NO_MEMORY;
    for (int i = schedule->group_count; i < count; i++)
        initial[i] = ek_optimizer_lr(schedule->optimizer, i);
    schedule->initial = initial;
    schedule->group_count = count;
    return 0;
}

/* Makes a schedule with these settings. `what` is the period's name, which has to be at least 1;
 * the number called `name` has to be 0 or more. */
static ek_schedule *schedule_new(const ek_schedule *settings, const char *what, const char *name,
                                 double number)
{
    const char *kind = settings->kind->name;
    if (!settings->optimizer)
        return ek_error_status() < 0
                   ? NULL
                   : EK_FAIL_NULL(EK_E_INVALID, "%s: the optimizer is NULL", kind);
    if (settings->period < 1)
        return EK_FAIL_NULL(EK_E_INVALID, "%s: %s has to be at least 1, not %lld", kind, what,
                            (long long)settings->period);
    if (!(number >= 0))
        return EK_FAIL_NULL(EK_E_INVALID, "%s: %s has to be 0 or more, not %g", kind, name, number);
    ek_schedule *schedule = ek_calloc(1, sizeof *schedule);
    if (!schedule)
        return NULL;
    *schedule = *settings;
    if (schedule_note_groups(schedule) < 0) {
        free(schedule);
        return NULL;
    }
    return schedule;
}

ek_schedule *ek_step_lr(ek_optimizer *optimizer, int64_t step_size, double gamma)
{
    const ek_schedule settings = {.kind = &step_kind,
                                  .optimizer = optimizer,
                                  .period = step_size,
                                  .gamma = gamma};
    return schedule_new(&settings, "step_size", "gamma", gamma);
}

ek_schedule *ek_cosine_annealing_lr(ek_optimizer *optimizer, int64_t steps, double lr_min)
{
    const ek_schedule settings = {.kind = &cosine_kind,
                                  .optimizer = optimizer,
                                  .period = steps,
                                  .lr_min = lr_min};
    return schedule_new(&settings, "steps", "lr_min", lr_min);
}

static int schedule_check_made(const ek_schedule *schedule)
{
    if (schedule)
        return 0;
    return ek_error_status() < 0 ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "the schedule is NULL");
}

/* A group's rate after `step` steps, computed from `initial`. */
static double schedule_replay(const ek_schedule *schedule, int64_t step, double initial)
{
    double rate = initial;
    if (step > MOST_REPLAYED)
        return schedule->kind->closed_form(schedule, step, initial);
    for (int64_t k = 1; k <= step; k++)
        rate = schedule->kind->next(schedule, k, initial, rate);
    return rate;
}

/* Sets the groups' rates after step `step`, computed from their rates now, or from their initial
 * rates if `from_start`. On an error nothing has changed. */
static int schedule_set_rates(ek_schedule *schedule, int64_t step, bool from_start)
{
    int count = schedule->group_count;
    double *rates = ek_calloc((size_t)count + 1, sizeof *rates);
    int status = rates ? 0 : EK_E_NO_MEMORY;
    for (int i = 0; i < count && status == 0; i++) {
        double initial = schedule->initial[i];
        rates[i] = from_start ? schedule_replay(schedule, step, initial)
                              : schedule->kind->next(schedule, step, initial,
                                                     ek_optimizer_lr(schedule->optimizer, i));
        if (!(rates[i] >= 0))
            status = EK_FAIL(EK_E_INVALID, "%s: step %lld would make the rate of group %d %g",
                             schedule->kind->name, (long long)step, i, rates[i]);
    }
    for (int i = 0; i < count && status == 0; i++)
        status = ek_optimizer_set_lr(schedule->optimizer, i, rates[i]);
    if (status == 0)
        schedule->count = step;
    free(rates);
    return status;
}

int ek_schedule_step(ek_schedule *schedule)
{
    EK_TRY(schedule_check_made(schedule));
    EK_TRY(schedule_note_groups(schedule));
    return schedule_set_rates(schedule, schedule->count + 1, false);
}

/* ---- for checkpoints ---- */

int64_t ek_schedule_steps(const ek_schedule *schedule)
{
    EK_TRY(schedule_check_made(schedule));
    return schedule->count;
}

int ek_schedule_set_steps(ek_schedule *schedule, int64_t steps)
{
    EK_TRY(schedule_check_made(schedule));
    if (steps < 0 || steps == INT64_MAX)
        return EK_FAIL(EK_E_INVALID, "schedule_set_steps: a schedule after %lld steps",
                       (long long)steps);
    EK_TRY(schedule_note_groups(schedule));
    return schedule_set_rates(schedule, steps, true);
}

ek_optimizer *ek_schedule_optimizer(const ek_schedule *schedule)
{
    return schedule->optimizer;
}

const double *ek_schedule_initial(const ek_schedule *schedule, int *count)
{
    *count = schedule->group_count;
    return schedule->initial;
}

int ek_schedule_restore(ek_schedule *schedule, int64_t steps, const double *initial, int count)
{
    double *rates = ek_calloc((size_t)count, sizeof *rates);
    if (!rates)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        rates[i] = initial[i];
    free(schedule->initial);
    schedule->initial = rates;
    schedule->group_count = count;
    schedule->count = steps;
    return 0;
}

void ek_schedule_free(ek_schedule *schedule)
{
    if (schedule)
        free(schedule->initial);
    free(schedule);
}
