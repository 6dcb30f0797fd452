/* algorithm.h: what an algorithm is made of, and the options of optimizers as a table. */
#ifndef EK_OPTIM_ALGORITHM_H
#define EK_OPTIM_ALGORITHM_H

#include "kernels/params.h"
#include "optim/optimizer.h"

_Static_assert((int)EK_STATES == (int)EK_STEP_STATES, "states of parameters and of rules");

struct ek_algorithm {
    const char *name;
    unsigned options;                   /* a bit per EK_OPTION_* that it has */
    ek_optimizer_options defaults;      /* numbers as they are used: 0 means 0 */
    const char *state_names[EK_STATES]; /* NULL at the end */
    const char *carried; /* the name of the number that a parameter carries, or NULL */

    /* Optional: what options have to be together. */
    int (*check)(const ek_optimizer_options *options);

    /* Optional: a bit per state that these options need. NULL: all. */
    unsigned (*states)(const ek_optimizer_options *options);

    /* Optional: parameters of equal phase may share a kernel call. `step` counts from 1. NULL: all
     * steps are equal. */
    int64_t (*phase)(const ek_optimizer_options *options, int64_t step);

    /* The rule of a step, which has as many states as these options need, and its numbers, all 0
     * before. *carried is as the step before left it, and not read by the first. */
    ek_step_rule (*step)(const ek_optimizer_options *options, int64_t step, double *carried,
                         ek_step_numbers *numbers);
};

/* A bit per state that these options need. */
unsigned ek_states_of(const ek_algorithm *algorithm, const ek_optimizer_options *options);

/* Makes an optimizer. If options->module is set, its parameters become group 0. */
ek_optimizer *ek_optimizer_new(const ek_algorithm *algorithm, const ek_optimizer_options *options);

/* ---- options.c ---- */

/* In the order of ek_optimizer_options. */
enum {
    EK_OPTION_LR,
    EK_OPTION_MOMENTUM,
    EK_OPTION_DAMPENING,
    EK_OPTION_WEIGHT_DECAY,
    EK_OPTION_NESTEROV,
    EK_OPTION_BETA1,
    EK_OPTION_BETA2,
    EK_OPTION_EPS,
    EK_OPTION_AMSGRAD,
    EK_OPTION_MAXIMIZE,
    EK_OPTION_ALPHA,
    EK_OPTION_CENTERED,
    EK_OPTION_LR_DECAY,
    EK_OPTION_INITIAL_ACCUMULATOR_VALUE,
    EK_OPTION_RHO,
    EK_OPTION_MOMENTUM_DECAY,
    EK_OPTION_ETA_MINUS,
    EK_OPTION_ETA_PLUS,
    EK_OPTION_STEP_MIN,
    EK_OPTION_STEP_MAX,
    EK_OPTION_LAMBD,
    EK_OPTION_T0,
    EK_OPTIMIZER_OPTION_COUNT
};

double ek_option_get(const ek_optimizer_options *of, int option);

/* Checks `given` and fills *resolved with the numbers to use. Options that are left out come from
 * `defaults`. */
int ek_options_resolve(const ek_algorithm *algorithm, const ek_optimizer_options *given,
                       const ek_optimizer_options *defaults, ek_optimizer_options *resolved);
int ek_options_check(const ek_algorithm *algorithm, const ek_optimizer_options *of);

#endif
