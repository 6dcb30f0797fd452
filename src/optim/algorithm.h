/* algorithm.h: the struct of an algorithm, and this folder's functions that read options and
 * states. */
#ifndef EK_OPTIM_ALGORITHM_H
#define EK_OPTIM_ALGORITHM_H

#include "kernels/params.h"
#include "optim/optimizer.h"

_Static_assert((int)EK_STATES == (int)EK_STEP_STATES, "states of parameters and of rules");

/* An algorithm that steps all parameters as one vector and evaluates the loss itself. The
 * parameters are one group, and the state belongs to all of them together. Checkpoints keep the
 * state with the first parameter. */
typedef struct ek_vector_algorithm {
    size_t memory; /* the size of optimizer->memory, which is zeros at first */
    /* Makes a whole step, and writes the loss before the step. On an error nothing has changed. */
    int (*minimise)(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss);
    /* Returns the name of the index-th state; NULL past the last. */
    const char *(*state_name)(int index);
    /* Returns a state by name, owned by the optimizer or in the scope; NULL, without an error, if
     * there is none. */
    ek_tensor *(*state)(const ek_optimizer *optimizer, const char *name);
    int (*set_state)(ek_optimizer *optimizer, int64_t steps, const char *const *names,
                     ek_tensor *const *states, int count);
    void (*clear)(void *memory); /* frees what optimizer->memory owns */
} ek_vector_algorithm;

struct ek_algorithm {
    const char *name;
    /* Offsets of the options in the algorithm's own struct, by EK_OPTION. An option that the
     * algorithm lacks has offset 0. */
    size_t options[EK_OPTIMIZER_OPTION_COUNT];
    const char *state_names[EK_STATES]; /* NULL at the end */
    const char *carried;                /* the name of slot->carried; NULL: unused */

    /* Replaces states, phase and step. NULL for algorithms that step each element separately. */
    const ek_vector_algorithm *vector;

    /* Optional: replaces options that are EK_UNSET by numbers that depend on other options. */
    void (*complete)(ek_optimizer_options *options);

    /* Optional: checks the options against each other. */
    int (*check)(const ek_optimizer_options *options);

    /* Optional: returns a bit per state that these options need. If NULL, all options need all
     * states. */
    unsigned (*states)(const ek_optimizer_options *options);

    /* Optional: returns the phase of a step. Parameters of one group and one phase may share a
     * kernel call. `step` counts from 1. If NULL, all steps are of one phase. */
    int64_t (*phase)(const ek_optimizer_options *options, int64_t step);

    /* Returns the rule of a step, which has as many states as these options need, and writes the
     * rule's numbers, which are 0 before. *carried is what the parameter's last step wrote. The
     * first step doesn't read *carried. */
    ek_step_rule (*step)(const ek_optimizer_options *options, int64_t step, double *carried,
                         ek_step_numbers *numbers);
};

/* Returns a bit per state that these options need. */
unsigned ek_states_of(const ek_algorithm *algorithm, const ek_optimizer_options *options);

/* Makes an optimizer. `given` is the algorithm's own struct of options. If `module` is not NULL,
 * its parameters become group 0. */
ek_optimizer *ek_optimizer_new(const ek_algorithm *algorithm, const void *given, ek_module *module);

/* ---- state.c ---- */

/* Sets *place to a state that a caller gives. Returns EK_E_INVALID if the state is NULL, or if
 * *place is not, because the state was given before. */
int ek_state_take(const ek_algorithm *algorithm, const char *name, ek_tensor *state,
                  ek_tensor **place);

/* ---- step.c ---- */

/* Calls the closure with gradients enabled. Returns 0, or the error of the closure. */
int ek_closure_evaluate(ek_closure *closure, void *user, double *loss);

/* ---- options.c ---- */

/* Reads and checks the algorithm's own struct of options. */
int ek_options_read(const ek_algorithm *algorithm, const void *given,
                    ek_optimizer_options *options);

#endif
