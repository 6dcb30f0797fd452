/* draws.h: replicas that draw random numbers as one module of the whole batch does.
 *
 * If the calling thread's default generator has Philox, each replica draws from a copy of it, which
 * numbers the elements of tensors as those of the whole batch. Afterwards the generator goes on
 * behind all that the replicas have drawn. For a Mersenne Twister, and for one part that is the
 * whole batch, all of these calls do nothing.
 *
 *     ek_draws draws;
 *     EK_TRY(ek_draws_begin(&draws, dim, args, count));
 *     ...each replica, on its thread:
 *         ek_generator *before = ek_draws_enter(&draws, index);
 *         ...
 *         ek_draws_leave(&draws, before);
 *     ek_draws_end(&draws); */
#ifndef EK_PARALLEL_DRAWS_H
#define EK_PARALLEL_DRAWS_H

#include "core/generator.h"
#include "evenkeel/nn.h"

typedef struct ek_draws {
    int count; /* parts; 0: nothing is done */
    /* Owned: a copy for each part, then the generator as it was and as it is meanwhile. */
    ek_generator *parts;
} ek_draws;

/* Begins a call of `count` replicas on parts of this rank's batch, cut along `dim`. */
int ek_draws_begin(ek_draws *draws, int dim, const ek_args *args, int count);
ek_generator *ek_draws_enter(ek_draws *draws, int index);
void ek_draws_leave(const ek_draws *draws, ek_generator *before);
void ek_draws_end(ek_draws *draws);

/* How many samples a part has: the size along dim of its first tensor that has it, 1 if none has.
 * Negative with an error. */
int64_t ek_draws_samples(const ek_args *args, int dim);

#endif
