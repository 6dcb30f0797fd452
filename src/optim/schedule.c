/* schedule.c: what schedules of all kinds do: make, step, repeat a number of steps, restore.
 *
 * Each step computes a rate from the rate before, so that a schedule continues from a rate that the
 * user has set. The recursions are PyTorch's, in PyTorch's order of operations. If no rate is set,
 * the rate after n steps is a function of n alone, which ek_schedule_set_steps computes. */
#include "optim/schedule.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REPLAYED = 1 << 24 }; /* the most steps to replay, which takes about a second */

bool ek_schedule_check_number(const char *kind, const char *what, double number, double most)
{
    if (number >= 0 && number <= most)
        return true;
    EK_FAIL(EK_E_INVALID,
            isinf(most) ? "%s: %s has to be 0 or more, not %g" : "%s: %s has to be 0 to 1, not %g",
            kind, what, number);
    return false;
}

bool ek_schedule_check_count(const char *kind, const char *what, int64_t count)
{
    if (count >= 1)
        return true;
    EK_FAIL(EK_E_INVALID, "%s: %s has to be at least 1, not %lld", kind, what, (long long)count);
    return false;
}

int ek_schedule_milestones_before(const ek_schedule *schedule, int64_t step)
{
    int count = 0;
    while (count < schedule->milestone_count && schedule->milestones[count] <= step)
        count++;
    return count;
}

static int schedule_check_made(const ek_schedule *schedule)
{
    if (schedule)
        return ek_check_alive("schedule", "the schedule", schedule) < 0
                   ? ek_error_pending()
                   : ek_check_alive("schedule", "the optimizer", schedule->optimizer);
    return ek_error_status() < 0 ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "the schedule is NULL");
}

/* Notes the initial rates of groups that were added since the last call. */
static int schedule_note_groups(ek_schedule *schedule)
{
    ek_optimizer *optimizer = schedule->optimizer;
    int count = optimizer->group_count;
    for (int i = 0; i < schedule->child_count; i++)
        EK_TRY(schedule_note_groups(schedule->children[i]));
    if (count == schedule->group_count)
        return 0;
    double *initial = ek_realloc(schedule->initial, (size_t)count * sizeof *initial);
    if (!initial)
        return EK_E_NO_MEMORY;
    for (int i = schedule->group_count; i < count; i++) {
        if (isnan(optimizer->initial_lr[i]))
            optimizer->initial_lr[i] = optimizer->groups[i].lr;
        initial[i] = optimizer->initial_lr[i];
    }
    schedule->initial = initial;
    schedule->group_count = count;
    return 0;
}

/* ---- rates ---- */

/* Computes a group's rate after `step` steps from the initial rate. */
static int schedule_replay(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    const ek_schedule_kind *kind = schedule->kind;
    *rate = schedule->initial[group];
    if (kind->is_absolute)
        return kind->next(schedule, group, step, rate);
    if (step > MOST_REPLAYED && kind->closed_form) {
        *rate = kind->closed_form(schedule, group, step);
        return 0;
    }
    if (step > MOST_REPLAYED)
        return EK_FAIL(EK_E_INVALID, "%s: %lld steps are too many to repeat; at most %d are",
                       kind->name, (long long)step, MOST_REPLAYED);
    for (int64_t k = 0; k <= step; k++)
        EK_TRY(kind->next(schedule, group, k, rate));
    return 0;
}

int ek_schedule_set_momentum(const ek_schedule *schedule, int64_t step)
{
    return schedule->kind->set_momentum ? schedule->kind->set_momentum(schedule, step) : 0;
}

/* Returns the error of a rate that is negative or NaN. `before` is the rate before the step. If
 * `from_start`, the function computes `before` anew. */
static int schedule_refuse_rate(const ek_schedule *schedule, int group, int64_t step,
                                bool from_start, double before, double rate)
{
    const ek_schedule_kind *kind = schedule->kind;
    if (!kind->failing_child)
        return EK_FAIL(EK_E_INVALID, "%s: step %lld would make the rate of group %d %g", kind->name,
                       (long long)step, group, rate);
    if (from_start && step > 0)
        EK_TRY(schedule_replay(schedule, group, step - 1, &before));
    int child = kind->failing_child(schedule, group, step, before);
    return EK_FAIL(EK_E_INVALID,
                   "%s: step %lld would make the rate of group %d %g, by its schedule %d, %s",
                   kind->name, (long long)step, group, rate, child,
                   schedule->children[child]->kind->name);
}

/* Returns 0 for a rate that is below 0 by rounding alone: each step rounds a handful of numbers
 * that are no larger than the initial rate. */
static double schedule_rounded(const ek_schedule *schedule, int group, int64_t step, double rate)
{
    double error = 8 * (double)(step + 1) * DBL_EPSILON * schedule->initial[group];
    return rate < 0 && rate >= -error ? 0 : rate;
}

/* Sets the groups' rates after step `step`, computed from their rates now, or from their initial
 * rates if `from_start`. On an error nothing has changed. */
static int schedule_set_rates(ek_schedule *schedule, int64_t step, bool from_start)
{
    ek_optimizer *optimizer = schedule->optimizer;
    int count = schedule->group_count;
    double *rates = ek_calloc((size_t)count + 1, sizeof *rates);
    int status = rates ? 0 : EK_E_NO_MEMORY;
    for (int i = 0; i < count && status == 0; i++) {
        double before = from_start ? schedule->initial[i] : optimizer->groups[i].lr;
        rates[i] = before;
        status = from_start ? schedule_replay(schedule, i, step, &rates[i])
                            : schedule->kind->next(schedule, i, step, &rates[i]);
        rates[i] = schedule_rounded(schedule, i, step, rates[i]);
        if (status == 0 && !(rates[i] >= 0))
            status = schedule_refuse_rate(schedule, i, step, from_start, before, rates[i]);
    }
    if (status == 0)
        status = ek_schedule_set_momentum(schedule, step);
    for (int i = 0; i < count && status == 0; i++)
        optimizer->groups[i].lr = rates[i];
    if (status == 0)
        schedule->count = step;
    free(rates);
    return status;
}

int ek_schedule_step(ek_schedule *schedule)
{
    EK_TRY(schedule_check_made(schedule));
    if (schedule->kind == &ek_schedule_plateau_kind)
        return EK_FAIL(EK_E_INVALID, "%s steps by what is measured: call ek_schedule_step_measure",
                       schedule->kind->name);
    EK_TRY(schedule_note_groups(schedule));
    return schedule_set_rates(schedule, schedule->count + 1, false);
}

/* ---- making and freeing ---- */

/* Returns a copy of `count` elements, which the caller frees; NULL with an error. */
static void *schedule_copy(const void *elements, int count, size_t size)
{
    const size_t bytes = (size_t)count * size;
    void *copy = ek_calloc(1, bytes + 1);
    if (copy && count > 0)
        memcpy(copy, elements, bytes);
    return copy;
}

static bool schedule_copy_arrays(ek_schedule *schedule, const ek_schedule *settings)
{
    const double *rates = settings->one_cycle.max_lrs;
    schedule->milestones = schedule_copy(settings->milestones, settings->milestone_count,
                                         sizeof *schedule->milestones);
    schedule->one_cycle.max_lrs =
        rates ? schedule_copy(rates, settings->max_lr_count, sizeof *rates) : NULL;
    return schedule->milestones && (!rates || schedule->one_cycle.max_lrs);
}

/* Sets the initial rates of groups, and the rates of step 0. On an error the optimizer is
 * unchanged. */
static int schedule_begin(ek_schedule *schedule)
{
    ek_optimizer *optimizer = schedule->optimizer;
    const int count = optimizer->group_count;
    double *before = ek_calloc((size_t)count + 1, sizeof *before);
    if (!before)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        before[i] = optimizer->initial_lr[i];
        if (schedule->kind->set_initial)
            schedule->kind->set_initial(schedule, i, &optimizer->initial_lr[i]);
    }
    int status = schedule_note_groups(schedule);
    if (status == 0 && !schedule->kind->has_begun)
        status = schedule_set_rates(schedule, 0, false);
    for (int i = 0; i < count && status < 0; i++)
        optimizer->initial_lr[i] = before[i];
    free(before);
    return status;
}

ek_schedule *ek_schedule_new(const ek_schedule *settings)
{
    ek_schedule *schedule = NULL;
    if (ek_check_alive(settings->kind->name, "the optimizer", settings->optimizer) < 0)
        schedule = NULL;
    else if (settings->optimizer)
        schedule = ek_calloc(1, sizeof *schedule);
    else if (ek_error_status() == 0)
        EK_FAIL(EK_E_INVALID, "%s: the optimizer is NULL", settings->kind->name);
    if (!schedule) {
        for (int i = 0; i < settings->child_count; i++)
            ek_schedule_free(settings->children[i]);
        free(settings->children);
        return NULL;
    }
    *schedule = *settings;
    if (schedule_copy_arrays(schedule, settings) && schedule_begin(schedule) == 0)
        return schedule;
    ek_schedule_free(schedule);
    return NULL;
}

void ek_schedule_free(ek_schedule *schedule)
{
    EK_RELEASES("ek_schedule_free", schedule);
    for (int i = 0; i < schedule->child_count; i++)
        ek_schedule_free(schedule->children[i]);
    free(schedule->children);
    free(schedule->milestones);
    free((double *)schedule->one_cycle.max_lrs);
    free(schedule->initial);
    ek_retire(schedule, sizeof *schedule, "schedule", schedule);
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
    if (schedule->kind == &ek_schedule_plateau_kind)
        return EK_FAIL(EK_E_INVALID,
                       "%s depends on what was measured, not on the number of steps: restore it "
                       "from an archive",
                       schedule->kind->name);
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

ek_schedule *ek_schedule_child(const ek_schedule *schedule, int index)
{
    return index < schedule->child_count ? schedule->children[index] : NULL;
}

double *ek_schedule_memory(ek_schedule *schedule, int *count)
{
    *count = schedule->kind == &ek_schedule_plateau_kind ? EK_PLATEAU_MEMORY : 0;
    return schedule->memory;
}

int ek_schedule_restore(ek_schedule *schedule, int64_t steps, const double *initial, int count)
{
    double *rates = schedule_copy(initial, count, sizeof *rates);
    int status = rates ? ek_schedule_set_momentum(schedule, steps) : EK_E_NO_MEMORY;
    if (status < 0) {
        free(rates);
        return status;
    }
    free(schedule->initial);
    schedule->initial = rates;
    schedule->group_count = count;
    schedule->count = steps;
    return 0;
}
