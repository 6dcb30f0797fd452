/* schedule.h: the kinds of schedules, and the struct of all kinds. */
#ifndef EK_OPTIM_SCHEDULE_H
#define EK_OPTIM_SCHEDULE_H

#include "optim/optimizer.h"

typedef struct ek_schedule_kind {
    const char *name;

    /* Replaces a group's rate before step `step` by the rate after the step. Step 0 sets the first
     * rate. Returns 0 or a negative status. */
    int (*next)(const ek_schedule *schedule, int group, int64_t step, double *rate);

    /* True if `next` doesn't read the old rate. */
    bool is_absolute;

    /* True for schedules whose children, which were made before, have set the rates of step 0. */
    bool has_begun;

    /* Optional: changes a group's initial rate when a schedule is made. */
    void (*set_initial)(const ek_schedule *schedule, int group, double *initial);

    /* Optional: computes the rate after `step` steps from the initial rate alone, with other
     * rounding than `next`. As in PyTorch, a child of ek_sequential_lr begins with this rate. */
    double (*closed_form)(const ek_schedule *schedule, int group, int64_t step);

    /* For schedules with children: returns the index of the child that makes a group's rate
     * negative. `rate` is the rate before the step. */
    int (*failing_child)(const ek_schedule *schedule, int group, int64_t step, double rate);

    /* Optional: sets the groups' momentum to the schedule's momentum after `step` steps. */
    int (*set_momentum)(const ek_schedule *schedule, int64_t step);
} ek_schedule_kind;

enum { EK_PLATEAU_BEST, EK_PLATEAU_BAD, EK_PLATEAU_COOLDOWN, EK_PLATEAU_MEMORY };

/* A schedule of any kind. Each constructor sets the members that its kind reads. */
struct ek_schedule {
    const ek_schedule_kind *kind;
    ek_optimizer *optimizer; /* borrowed */
    int64_t count;           /* count of steps taken */
    double *initial;         /* initial rates of the groups that the schedule has seen */
    int group_count;

    int64_t period; /* steps */
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

/* Makes a schedule with a copy of these settings, and sets the rates of step 0. Takes over
 * `children`. On an error frees them, leaves the optimizer unchanged and returns NULL. */
ek_schedule *ek_schedule_new(const ek_schedule *settings);

/* Return false, with an error, if a setting is out of its range: a number must be from 0 to `most`,
 * a count 1 or more. */
bool ek_schedule_check_number(const char *kind, const char *what, double number, double most);
bool ek_schedule_check_count(const char *kind, const char *what, int64_t count);

/* Returns how many milestones of the schedule are `step` or less. */
int ek_schedule_milestones_before(const ek_schedule *schedule, int64_t step);

/* If the kind of schedule has a momentum, sets the groups' momentum to that after `step` steps. */
int ek_schedule_set_momentum(const ek_schedule *schedule, int64_t step);

extern const ek_schedule_kind ek_schedule_plateau_kind;

#endif
