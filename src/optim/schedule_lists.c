/* schedule_lists.c: schedules with children. A list computes each child's step from the list's
 * count, and ignores the child's count. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optim/schedule.h"

/* Frees the schedules (one that is in the list twice only once) and returns NULL. */
static ek_schedule *list_refuse(ek_schedule *const *schedules, int count)
{
    for (int i = 0; i < count; i++) {
        bool repeated = false;
        for (int k = 0; k < i; k++)
            repeated = repeated || schedules[k] == schedules[i];
        if (!repeated)
            ek_schedule_free(schedules[i]);
    }
    return NULL;
}

static int list_check(const char *kind, ek_schedule *const *schedules, int count)
{
    if (count < 1 || !schedules)
        return EK_FAIL(EK_E_INVALID, "%s: at least one schedule is needed", kind);
    for (int i = 0; i < count; i++) {
        if (!schedules[i])
            return ek_error_status() < 0
                       ? ek_error_pending()
                       : EK_FAIL(EK_E_INVALID, "%s: schedule %d is NULL", kind, i);
        if (schedules[i]->optimizer != schedules[0]->optimizer)
            return EK_FAIL(EK_E_INVALID, "%s: schedules 0 and %d are of different optimizers", kind,
                           i);
        if (schedules[i]->kind == &ek_schedule_plateau_kind)
            return EK_FAIL(EK_E_INVALID, "%s: schedule %d is a %s, which needs a measure", kind, i,
                           schedules[i]->kind->name);
        for (int k = 0; k < i; k++)
            if (schedules[k] == schedules[i])
                return EK_FAIL(EK_E_INVALID, "%s: schedules %d and %d are the same", kind, k, i);
    }
    return 0;
}

static ek_schedule *list_new(ek_schedule *settings, ek_schedule *const *schedules, int count)
{
    ek_schedule **children = ek_calloc((size_t)count, sizeof *children);
    if (!children)
        return list_refuse(schedules, count);
    memcpy(children, schedules, (size_t)count * sizeof *children);
    settings->children = children;
    settings->child_count = count;
    settings->optimizer = schedules[0]->optimizer;
    return ek_schedule_new(settings);
}

/* ---- SequentialLR ---- */

/* Returns the child that sets the rates of step *step, and writes the child's own step. */
static const ek_schedule *sequential_current(const ek_schedule *schedule, int64_t *step)
{
    int index = ek_schedule_milestones_before(schedule, *step);
    if (index > 0)
        *step -= schedule->milestones[index - 1];
    return schedule->children[index];
}

/* Lets the current child set the rate. The first child begins with the initial rate. Another child
 * begins with the rate of its closed form, if the child has one. */
static int sequential_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    const ek_schedule *child = sequential_current(schedule, &step);
    if (step == 0 && child == schedule->children[0])
        *rate = schedule->initial[group];
    else if (step == 0 && child->kind->closed_form) {
        *rate = child->kind->closed_form(child, group, 0);
        return 0;
    }
    return child->kind->next(child, group, step, rate);
}

static int sequential_set_momentum(const ek_schedule *schedule, int64_t step)
{
    const ek_schedule *child = sequential_current(schedule, &step);
    return ek_schedule_set_momentum(child, step);
}

static int sequential_failing_child(const ek_schedule *schedule, int group, int64_t step,
                                    double rate)
{
    (void)group, (void)rate;
    return ek_schedule_milestones_before(schedule, step);
}

static const ek_schedule_kind sequential_kind = {.name = "sequential_lr",
                                                 .next = sequential_next,
                                                 .failing_child = sequential_failing_child,
                                                 .set_momentum = sequential_set_momentum};

ek_schedule *ek_sequential_lr(ek_schedule *const *schedules, int count, const int64_t *milestones)
{
    int status = list_check("sequential_lr", schedules, count);
    if (status == 0 && count > 1 && !milestones)
        status = EK_FAIL(EK_E_INVALID, "sequential_lr: the milestones are NULL");
    for (int i = 0; status == 0 && i < count - 1; i++)
        if (milestones[i] <= (i > 0 ? milestones[i - 1] : 0))
            status = EK_FAIL(EK_E_INVALID,
                             "sequential_lr: milestones have to be 1 or more and rise, but number "
                             "%d is %lld",
                             i, (long long)milestones[i]);
    if (status < 0)
        return schedules ? list_refuse(schedules, count) : NULL;
    ek_schedule settings = {.kind = &sequential_kind,
                            .milestones = (int64_t *)milestones,
                            .milestone_count = count - 1};
    return list_new(&settings, schedules, count);
}

/* ---- ChainedScheduler ---- */

static int chained_next(const ek_schedule *schedule, int group, int64_t step, double *rate)
{
    for (int i = 0; i < schedule->child_count; i++)
        EK_TRY(schedule->children[i]->kind->next(schedule->children[i], group, step, rate));
    return 0;
}

static int chained_failing_child(const ek_schedule *schedule, int group, int64_t step, double rate)
{
    for (int i = 0; i < schedule->child_count - 1; i++) {
        const ek_schedule *child = schedule->children[i];
        if (child->kind->next(child, group, step, &rate) < 0 || !(rate >= 0))
            return i;
    }
    return schedule->child_count - 1;
}

static int chained_set_momentum(const ek_schedule *schedule, int64_t step)
{
    for (int i = 0; i < schedule->child_count; i++)
        EK_TRY(ek_schedule_set_momentum(schedule->children[i], step));
    return 0;
}

static const ek_schedule_kind chained_kind = {.name = "chained_lr",
                                              .next = chained_next,
                                              .failing_child = chained_failing_child,
                                              .has_begun = true,
                                              .set_momentum = chained_set_momentum};

ek_schedule *ek_chained_lr_of(ek_schedule *const *schedules, int count)
{
    if (list_check("chained_lr", schedules, count) < 0)
        return schedules ? list_refuse(schedules, count) : NULL;
    ek_schedule settings = {.kind = &chained_kind};
    return list_new(&settings, schedules, count);
}

/* ---- a warm-up ---- */

ek_schedule *ek_warm_up_lr(ek_optimizer *optimizer, double start, int64_t steps, ek_schedule *after)
{
    if (!after && ek_error_status() < 0)
        return NULL;
    ek_schedule *rise = ek_linear_lr(optimizer, start, 1, steps);
    if (!rise || !after) {
        ek_schedule_free(rise ? NULL : after);
        return rise;
    }
    ek_schedule *const both[] = {rise, after};
    return ek_sequential_lr(both, 2, &steps);
}
