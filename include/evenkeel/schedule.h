/** @file
 * schedule.h: learning-rate schedules, as in torch.optim.lr_scheduler. Call ek_schedule_step after
 * each epoch (or step); making a schedule sets the rates of step 0. As in PyTorch's chainable
 * forms, a step changes the groups' present rates, which ek_optimizer_set may have set. Only
 * ek_lambda_lr, ek_cosine_annealing_warm_restarts, ek_one_cycle_lr and ek_cyclic_lr compute each
 * rate anew. A group's initial rate is the one it has when its first schedule is made; a group that
 * is added later starts from its own rate.
 *
 * EK_E_INVALID if a rate would become negative or NaN. On an error nothing has changed. A schedule
 * belongs to the caller, who frees it with ek_schedule_free, and must not be stepped after its
 * optimizer is freed. It is for one thread at a time. */
#ifndef EVENKEEL_SCHEDULE_H
#define EVENKEEL_SCHEDULE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/base.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_optimizer ek_optimizer;
typedef struct ek_schedule ek_schedule;

/* ---- one formula; every constructor gives NULL with an error if an argument is out of range ----
 */

/** The rate times gamma every step_size steps. */
EK_API ek_schedule *ek_step_lr(ek_optimizer *optimizer, int64_t step_size, double gamma);
EK_API ek_schedule *ek_multi_step_lr_of(ek_optimizer *optimizer, double gamma,
                                        const int64_t *milestones, int count);
/** ek_multi_step_lr(optimizer, 0.1, 30, 80): the rate times gamma at each milestone;
 * ek_exponential_lr: at each step. */
#define ek_multi_step_lr(optimizer, gamma, ...)                               \
    ek_multi_step_lr_of((optimizer), (gamma), EK_ITEMS(int64_t, __VA_ARGS__), \
                        EK_COUNT(int64_t, __VA_ARGS__))
EK_API ek_schedule *ek_exponential_lr(ek_optimizer *optimizer, double gamma);
/** The rate times `factor` (0 to 1) until step `steps`. */
EK_API ek_schedule *ek_constant_lr(ek_optimizer *optimizer, double factor, int64_t steps);
/** The factor goes from `start` to `end` (both 0 to 1) in `steps` steps. */
EK_API ek_schedule *ek_linear_lr(ek_optimizer *optimizer, double start, double end, int64_t steps);
/** The rate decreases to 0 in `steps` steps, as (1 - step / steps)^power. */
EK_API ek_schedule *ek_polynomial_lr(ek_optimizer *optimizer, int64_t steps, double power);
/** The rate follows a cosine: in `steps` steps down to lr_min, then up again. */
EK_API ek_schedule *ek_cosine_annealing_lr(ek_optimizer *optimizer, int64_t steps, double lr_min);
/** As ek_cosine_annealing_lr, but the rate jumps back up: after `steps` steps, then after `factor`
 * times as many, and so on. */
EK_API ek_schedule *ek_cosine_annealing_warm_restarts(ek_optimizer *optimizer, int64_t steps,
                                                      int64_t factor, double lr_min);
/** Returns a factor for a step, from 0 on, and a group. ek_lambda_lr multiplies the initial rate by
 * it; ek_multiplicative_lr the present rate, from step 1 on. */
typedef double ek_schedule_function(int64_t step, int group, void *user);
EK_API ek_schedule *ek_lambda_lr(ek_optimizer *optimizer, ek_schedule_function *function,
                                 void *user);
EK_API ek_schedule *ek_multiplicative_lr(ek_optimizer *optimizer, ek_schedule_function *function,
                                         void *user);

/* ---- cycles, also of the momentum (beta1 of optimizers that have that instead) ---- */

typedef struct ek_one_cycle_lr_options {
    int begin; /**< no option, see base.h */
    ek_optimizer *optimizer;
    double max_lr;
    int64_t total_steps;         /**< it cannot go further */
    double pct_start EK_IS(0.3); /**< the part of the steps in which rates rise; not 1 step */
    bool linear;                 /**< by straight lines instead of cosines */
    bool cycle_momentum EK_IS(true);
    double base_momentum EK_IS(0.85);
    double max_momentum EK_IS(0.95);
    double div_factor EK_IS(25);        /**< of max_lr, gives the first rate */
    double final_div_factor EK_IS(1e4); /**< of the first rate, gives the last */
    bool three_phase;      /**< back to the first rate as fast as up, and then to the last */
    const double *max_lrs; /**< one per group, in place of max_lr; copied; or NULL */
} ek_one_cycle_lr_options;
#define EK_DEFAULTS_ek_one_cycle_lr_options                                                        \
    EK_DEFAULT(pct_start, 0.3), EK_DEFAULT(cycle_momentum, true), EK_DEFAULT(base_momentum, 0.85), \
        EK_DEFAULT(max_momentum, 0.95), EK_DEFAULT(div_factor, 25),                                \
        EK_DEFAULT(final_div_factor, 1e4)
EK_API ek_schedule *ek_one_cycle_lr_with(ek_one_cycle_lr_options options);
/** ek_one_cycle_lr(optimizer, 0.1, 1000) */
#define ek_one_cycle_lr(...)                                                                 \
    EK_CALL_3(ek_one_cycle_lr_with, ek_one_cycle_lr_options, optimizer, max_lr, total_steps, \
              __VA_ARGS__)

typedef enum ek_cyclic_mode {
    EK_CYCLIC_TRIANGULAR,
    EK_CYCLIC_TRIANGULAR2, /**< half as high in each cycle */
    EK_CYCLIC_EXP_RANGE    /**< times gamma^step */
} ek_cyclic_mode;
typedef struct ek_cyclic_lr_options {
    int begin; /**< no option, see base.h */
    ek_optimizer *optimizer;
    double base_lr, max_lr;
    int64_t step_size_up EK_IS(2000);
    int64_t step_size_down EK_IS(EK_UNSET); /**< EK_UNSET: step_size_up */
    ek_cyclic_mode mode;
    double gamma EK_IS(1);
    bool cycle_momentum EK_IS(true); /**< EK_E_INVALID if the optimizer has no momentum */
    double base_momentum EK_IS(0.8);
    double max_momentum EK_IS(0.9);
} ek_cyclic_lr_options;
#define EK_DEFAULTS_ek_cyclic_lr_options                                                        \
    EK_DEFAULT(step_size_up, 2000), EK_DEFAULT(step_size_down, EK_UNSET), EK_DEFAULT(gamma, 1), \
        EK_DEFAULT(cycle_momentum, true), EK_DEFAULT(base_momentum, 0.8),                       \
        EK_DEFAULT(max_momentum, 0.9)
EK_API ek_schedule *ek_cyclic_lr_with(ek_cyclic_lr_options options);
/** ek_cyclic_lr(optimizer, 0.01, 0.1, .step_size_up = 500) */
#define ek_cyclic_lr(...) \
    EK_CALL_3(ek_cyclic_lr_with, ek_cyclic_lr_options, optimizer, base_lr, max_lr, __VA_ARGS__)

/* ---- by what is measured ---- */

typedef struct ek_reduce_lr_on_plateau_options {
    int begin; /**< no option, see base.h */
    ek_optimizer *optimizer;
    double factor EK_IS(0.1);     /**< less than 1 */
    int64_t patience EK_IS(10);   /**< steps without an improvement before a reduction */
    bool higher;                  /**< higher measures are better */
    double threshold EK_IS(1e-4); /**< a smaller improvement is none */
    bool absolute;    /**< the threshold is a difference, not a fraction of the best measure */
    int64_t cooldown; /**< steps after a reduction that don't count */
    double min_lr;
    double eps EK_IS(1e-8); /**< smaller changes of the rate are not made */
} ek_reduce_lr_on_plateau_options;
#define EK_DEFAULTS_ek_reduce_lr_on_plateau_options                                 \
    EK_DEFAULT(factor, 0.1), EK_DEFAULT(patience, 10), EK_DEFAULT(threshold, 1e-4), \
        EK_DEFAULT(eps, 1e-8)
EK_API ek_schedule *ek_reduce_lr_on_plateau_with(ek_reduce_lr_on_plateau_options options);
/** The rate times `factor` if a measure has not improved for more than `patience` steps. */
#define ek_reduce_lr_on_plateau(...) \
    EK_CALL_1(ek_reduce_lr_on_plateau_with, ek_reduce_lr_on_plateau_options, optimizer, __VA_ARGS__)
/** Steps an ek_reduce_lr_on_plateau, which ek_schedule_step refuses; steps other schedules as
 * ek_schedule_step does. */
EK_API int ek_schedule_step_measure(ek_schedule *schedule, double measure);

/* ---- several: they own the schedules given, also on an error. All must be of one optimizer and
 * none an ek_reduce_lr_on_plateau. ---- */

/** One after the other: schedule i + 1 begins at step milestones[i], which rise. */
EK_API ek_schedule *ek_sequential_lr(ek_schedule *const *schedules, int count,
                                     const int64_t *milestones);
EK_API ek_schedule *ek_chained_lr_of(ek_schedule *const *schedules, int count);
/** ek_chained_lr(a, b): all in each step. */
#define ek_chained_lr(...) \
    ek_chained_lr_of(EK_ITEMS(ek_schedule *, __VA_ARGS__), EK_COUNT(ek_schedule *, __VA_ARGS__))
/** The rate rises from `start` (0 to 1) times the initial rate to the initial rate in `steps`
 * steps; then `after` follows, or with NULL nothing: ek_warm_up_lr(optimizer, 0.01, 500,
 * ek_cosine_annealing_lr(optimizer, 9500, 0)). */
EK_API ek_schedule *ek_warm_up_lr(ek_optimizer *optimizer, double start, int64_t steps,
                                  ek_schedule *after);

/* ---- all ---- */

/** Makes one step and sets the rates. EK_E_INVALID for ek_reduce_lr_on_plateau, and beyond
 * total_steps of ek_one_cycle_lr. */
EK_API int ek_schedule_step(ek_schedule *schedule);
/** How often the schedule has stepped. ek_schedule_set_steps restores this number from a
 * checkpoint: the rates become those after so many steps from the groups' first rates, whatever was
 * set by hand since. They equal the rates of stepping to the bit; within rounding for more than
 * 2^24 steps. EK_E_INVALID for ek_reduce_lr_on_plateau, which a number of steps doesn't describe:
 * archives (archive.h) restore it. */
EK_API int64_t ek_schedule_steps(const ek_schedule *schedule);
EK_API int ek_schedule_set_steps(ek_schedule *schedule, int64_t steps);
/** NULL is ignored. */
EK_API void ek_schedule_free(ek_schedule *schedule);
#define ek_schedule_free(schedule) ek_schedule_free(EK_PLACED(schedule))

EK_END_DECLARATIONS
#endif
