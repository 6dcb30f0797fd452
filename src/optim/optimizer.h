/* optimizer.h: what the algorithms and the stepping share. */
#ifndef EK_OPTIM_OPTIMIZER_H
#define EK_OPTIM_OPTIMIZER_H

#include "core/tensor.h"
#include "evenkeel/optim.h"
#include "nn/identity.h"

enum { EK_STATES = 3 }; /* at most, of one parameter */

typedef struct ek_algorithm {
    const char *name;
    const char *state_names[EK_STATES]; /* NULL at the end */

    /* Checks `given` and fills *resolved with plain numbers: what is left out comes from
     * `defaults`, or where that is NULL from the algorithm's own. */
    int (*resolve)(const ek_optimizer_options *given, const ek_optimizer_options *defaults,
                   ek_optimizer_options *resolved);

    /* How many of the states these options need. */
    int (*state_count)(const ek_optimizer_options *options);

    /* Parameters may share a kernel call where this number is equal; `step` counts from 1. */
    int64_t (*phase)(const ek_optimizer_options *options, int64_t step);

    /* True where zeros with a zero gradient and zero state stay zeros: a slab's padding. */
    bool (*keeps_zeros)(const ek_optimizer_options *options);

    /* One update of each of `count` flat ranges, of one device and dtype. state[s] has as many;
     * what the options don't need is NULL. */
    int (*update)(const ek_optimizer_options *options, int64_t step, int count,
                  ek_tensor *const *parameters, ek_tensor *const *gradients,
                  ek_tensor *const *const *state);
} ek_algorithm;

/* One parameter. */
typedef struct ek_slot {
    ek_tensor *parameter; /* a reference */
    int group;
    int64_t step;                /* how many updates it had */
    ek_tensor *state[EK_STATES]; /* references; NULL or zeros before the first update */
} ek_slot;

struct ek_optimizer {
    const ek_algorithm *algorithm;
    ek_optimizer_options defaults; /* resolved, for groups to come */
    ek_optimizer_options *groups;  /* resolved */
    int group_count;
    ek_slot *slots;
    int slot_count;
    ek_identity_map index; /* parameter to slot number + 1 */
    int *order; /* slots by group and place in memory: the segment table's rows (step.c) */
};

/* Makes an optimizer of `options`, with the module's parameters as group 0 where there is one. */
ek_optimizer *ek_optimizer_new(const ek_algorithm *algorithm, const ek_optimizer_options *options);

/* A numeric option: `fallback` where it was left out, 0 for EK_ZERO. */
static inline double ek_optimizer_option(double value, double fallback)
{
    return value == 0 ? fallback : value == EK_ZERO ? 0 : value;
}

/* Memory for all states of the slot (zeros where there was none) in the place where the next step
 * will look for it: with its neighbours', laid out as the parameters. */
int ek_optimizer_reserve_state(ek_optimizer *optimizer, const ek_slot *slot);

/* The tensor as a flat handle in the scope; it must be dense. `count` may reach beyond its end,
 * over a slab's following members. */
ek_tensor *ek_flat_range(const ek_tensor *tensor, int64_t count);

#endif
