/* draws.h: replicas that together draw the random numbers of one module on the whole batch.
 *
 * If the calling thread's default generator is a Philox generator, each replica draws from a copy
 * of it, in which the elements of tensors have their numbers in the whole batch. Afterwards the
 * generator continues after everything that the replicas have drawn. These calls do nothing with a
 * Mersenne Twister, and if the only part is the whole batch.
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
    /* Owned: a copy of the generator for each part, then its state before the call, then its state
     * during the call. */
    ek_generator *parts;
} ek_draws;

/* Begins a call of `count` replicas on parts of this rank's batch, cut along `dim`. */
int ek_draws_begin(ek_draws *draws, int dim, const ek_args *args, int count);
ek_generator *ek_draws_enter(ek_draws *draws, int index);
void ek_draws_leave(const ek_draws *draws, ek_generator *before);
void ek_draws_end(ek_draws *draws);

/* Returns how many samples a part has: the size along dim of its first tensor with that dimension;
 * 1 if no tensor has that dimension. Negative with an error. */
int64_t ek_draws_samples(const ek_args *args, int dim);

#endif
