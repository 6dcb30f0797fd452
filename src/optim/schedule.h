/* schedule.h: what schedules are made of. */
#ifndef EK_OPTIM_SCHEDULE_H
#define EK_OPTIM_SCHEDULE_H

#include "optim/optimizer.h"

typedef struct ek_schedule_kind {
    const char *name;

    /* Replaces a group's rate by that after `step` steps, from 0 on. Returns 0 or an error. */
    int (*next)(const ek_schedule *schedule, int group, int64_t step, double *rate);

    /* True if `next` doesn't read the rate before. */
    bool is_absolute;

    /* True if the rates of step 0 are set before a schedule is made: by those that it is made of.
     */
    bool has_begun;

    /* Optional: changes a group's initial rate before a schedule is made. */
    void (*set_initial)(const ek_schedule *schedule, int group, double *initial);

    /* Optional: the rate after `step` steps from the initial rate alone; rounding differs from
     * `next`. A schedule that begins in ek_sequential_lr sets it, as in PyTorch. */
    double (*closed_form)(const ek_schedule *schedule, int group, int64_t step);

    /* For schedules that are made of others: the index of the one that turns a group's rate, `rate`
     * before the step, negative. */
    int (*culprit)(const ek_schedule *schedule, int group, int64_t step, double rate);

    /* Optional: sets the groups' momentum as after `step` steps. */
    int (*set_momentum)(const ek_schedule *schedule, int64_t step);
} ek_schedule_kind;

enum { EK_PLATEAU_BEST, EK_PLATEAU_BAD, EK_PLATEAU_COOLDOWN, EK_PLATEAU_MEMORY };

/* Which of the settings a kind reads, and as what, its constructor says. */
struct ek_schedule {
    const ek_schedule_kind *kind;
    ek_optimizer *optimizer; /* borrowed */
    int64_t count;           /* count of steps taken */
    double *initial;         /* initial rates of the groups that the schedule has seen */
    int group_count;

    int64_t period, down; /* steps */
    int64_t multiplier;
    double gamma, lr_min, start, end, power;
    int64_t *milestones; /* owned, sorted */
    int milestone_count;
    ek_schedule_function *function;
    void *user;
    struct ek_schedule **children; /* owned */
    int child_count;
    ek_one_cycle_lr_options one_cycle; /* max_lrs: owned, by group; optimizer unused */
    int max_lr_count;
    ek_cyclic_lr_options cyclic;
    ek_reduce_lr_on_plateau_options plateau;
    double memory[EK_PLATEAU_MEMORY];
};

/* Makes a schedule with these settings, whose arrays are copied but for `children`, which it owns,
 * also on an error. Sets the rates of step 0. NULL with an error, after which the optimizer is as
 * before. */
ek_schedule *ek_schedule_new(const ek_schedule *settings);

/* Errors of constructors: NULL unless the number is 0 or more (at most 1), or the count 1 or more.
 */
bool ek_schedule_check_number(const char *kind, const char *what, double number, double most);
bool ek_schedule_check_count(const char *kind, const char *what, int64_t count);

/* How many of the schedule's milestones are `step` or before. */
int ek_schedule_milestones_before(const ek_schedule *schedule, int64_t step);

int ek_schedule_set_momentum(const ek_schedule *schedule, int64_t step);

extern const ek_schedule_kind ek_schedule_plateau_kind;

#endif
