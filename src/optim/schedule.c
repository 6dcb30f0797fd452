/* schedule.c: learning rates as closed forms of how often the schedule has stepped. */
#include <math.h>
#include <stdlib.h>

#include "optim/optimizer.h"
#include "optim/schedule.h"

struct ek_schedule {
    ek_optimizer *optimizer;
    double (*rate)(const ek_schedule *schedule, double initial);
    int64_t count;   /* of steps taken */
    double *initial; /* rates of the groups, as they were when first seen */
    int group_count;
    int64_t period; /* StepLR's step_size, CosineAnnealingLR's T_max */
    double gamma, lr_min;
};

static double step_rate(const ek_schedule *schedule, double initial)
{
    return initial * pow(schedule->gamma, (double)(schedule->count / schedule->period));
}

/* Beyond T_max it rises again, as torch's closed form does. */
static double cosine_rate(const ek_schedule *schedule, double initial)
{
    static const double pi = 3.14159265358979323846;
    double angle = pi * (double)schedule->count / (double)schedule->period;
    return schedule->lr_min + (initial - schedule->lr_min) * (1 + cos(angle)) / 2;
}

/* Notes the rates of groups that were added since the last look. */
static int note_groups(ek_schedule *schedule)
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

static ek_schedule *schedule_new(const ek_schedule *settings)
{
    ek_schedule *schedule = ek_calloc(1, sizeof *schedule);
    if (!schedule)
        return NULL;
    *schedule = *settings;
    if (note_groups(schedule) < 0) {
        free(schedule);
        return NULL;
    }
    return schedule;
}

/* An error unless there is an optimizer and the period is at least 1. */
static bool usable(const char *name, const ek_optimizer *optimizer, const char *what,
                   int64_t period)
{
    if (!optimizer && ek_error_status() == 0)
        EK_FAIL(EK_E_INVALID, "%s: the optimizer is NULL", name);
    else if (optimizer && period < 1)
        EK_FAIL(EK_E_INVALID, "%s: %s has to be at least 1, not %lld", name, what,
                (long long)period);
    return optimizer && period >= 1;
}

ek_schedule *ek_step_schedule(ek_optimizer *optimizer, int64_t step_size, double gamma)
{
    if (!usable("step_schedule", optimizer, "step_size", step_size))
        return NULL;
    if (!(gamma >= 0)) {
        EK_FAIL(EK_E_INVALID, "step_schedule: gamma has to be 0 or more, not %g", gamma);
        return NULL;
    }
    return schedule_new(&(const ek_schedule){
        .optimizer = optimizer, .rate = step_rate, .period = step_size, .gamma = gamma});
}

ek_schedule *ek_cosine_schedule(ek_optimizer *optimizer, int64_t steps, double lr_min)
{
    if (!usable("cosine_schedule", optimizer, "steps", steps))
        return NULL;
    if (!(lr_min >= 0)) {
        EK_FAIL(EK_E_INVALID, "cosine_schedule: lr_min has to be 0 or more, not %g", lr_min);
        return NULL;
    }
    return schedule_new(&(const ek_schedule){
        .optimizer = optimizer, .rate = cosine_rate, .period = steps, .lr_min = lr_min});
}

static int check_made(const ek_schedule *schedule)
{
    if (schedule)
        return 0;
    return ek_error_status() < 0 ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "the schedule is NULL");
}

/* The groups' rates after `count` steps. */
static int set_rates(ek_schedule *schedule, int64_t count)
{
    schedule->count = count;
    for (int i = 0; i < schedule->group_count; i++)
        EK_TRY(ek_optimizer_set_lr(schedule->optimizer, i,
                                   schedule->rate(schedule, schedule->initial[i])));
    return 0;
}

int ek_schedule_step(ek_schedule *schedule)
{
    EK_TRY(check_made(schedule));
    EK_TRY(note_groups(schedule));
    return set_rates(schedule, schedule->count + 1);
}

/* ---- for checkpoints ---- */

int64_t ek_schedule_steps(const ek_schedule *schedule)
{
    EK_TRY(check_made(schedule));
    return schedule->count;
}

int ek_schedule_set_steps(ek_schedule *schedule, int64_t steps)
{
    EK_TRY(check_made(schedule));
    if (steps < 0 || steps == INT64_MAX)
        return EK_FAIL(EK_E_INVALID, "schedule_set_steps: a schedule after %lld steps",
                       (long long)steps);
    EK_TRY(note_groups(schedule));
    return set_rates(schedule, steps);
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
