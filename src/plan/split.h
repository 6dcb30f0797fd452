/* split.h: the arithmetic of plans, from numbers to sizes, without devices. */
#ifndef EK_PLAN_SPLIT_H
#define EK_PLAN_SPLIT_H

#include "evenkeel/plan.h"

/* All write one size per device, zeros included, that add up to `batch` (0 or more). */

/* torch.chunk's sizes. */
void ek_split_chunk(int64_t batch, int devices, int64_t *sizes);
void ek_split_even(int64_t batch, int devices, int64_t *sizes);
/* As the weights (0 or more, finite, at least one not zero): by the largest remainder. */
void ek_split_weights(int64_t batch, int devices, const double *weights, int64_t *sizes);
/* Weights as whole numbers in the same proportions (to 2^-48 of the largest), without a common
 * divisor. */
void ek_split_whole(int devices, const double *weights, int64_t *whole);
/* As ek_split_weights in whole numbers, so that a batch of their sum is cut exactly so. */
void ek_split_chunks(int64_t batch, int devices, const int64_t *chunks, int64_t *sizes);
/* `first` samples for the first device and the rest even, where that gives it less than the others;
 * else torch.chunk's (BalancedDataParallel of transformer-xl). With 0 the first of several devices
 * gets none, also of the smallest batches. */
void ek_split_first(int64_t batch, int devices, int64_t first, int64_t *sizes);

/* What a device's share costs: fixed + per_sample * n for n > 0 samples, of which it takes `most`
 * at the most; nothing for none. Finite, per_sample not negative. */
typedef struct ek_cost {
    double fixed, per_sample;
    int64_t most;
} ek_cost;

/* The sizes with the smallest largest cost. Every device gets what it can take for less than that
 * cost; what is left is divided among those that reach it, as evenly as can be, earlier ones first.
 * False, with the sizes as they would be without limits, where the devices together take less than
 * `batch`. */
bool ek_split_level(int64_t batch, int devices, const ek_cost *costs, int64_t *sizes);

/* The first forwards are probes: a guess, and the same a little otherwise, so that fixed and
 * growing costs can be told apart. */
enum { EK_SPLIT_PROBES = 3 };

/* Moves part of the samples between neighbours: one way with probe 0, the other way with probe 1,
 * not at all with probe 2. `part` of the smaller one's samples are moved, 1 at least. No device
 * loses its last sample or gets above room[i]. */
void ek_split_probe(int probe, double part, int devices, const int64_t *room, int64_t *sizes);

#endif
