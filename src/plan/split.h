/* split.h: the arithmetic of plans: from proportions or costs to sizes. */
#ifndef EK_PLAN_SPLIT_H
#define EK_PLAN_SPLIT_H

#include "evenkeel/plan.h"

/* Each ek_split function writes one size (0 or more) per device; they add up to `batch`. */

/* Writes torch.chunk's sizes, or even ones. */
void ek_split_chunk(int64_t batch, int devices, int64_t *sizes);
void ek_split_even(int64_t batch, int devices, int64_t *sizes);
/* Writes weights (finite, 0 or more, not all 0) as whole numbers without a common divisor, in the
 * same proportions within 2^-48 of the largest. */
void ek_split_whole(int devices, const double *weights, int64_t *whole);
/* Cuts in the proportions of whole numbers (0 or more, not all 0). The largest remainders are
 * rounded up, so a batch of the numbers' sum is cut exactly so. */
void ek_split_chunks(int64_t batch, int devices, const int64_t *chunks, int64_t *sizes);
/* Gives the first device `first` samples and splits the rest evenly, if each other device gets more
 * than `first` by this; else writes torch.chunk's sizes. This is BalancedDataParallel of
 * transformer-xl. With 0 the first of several devices never gets a sample. */
void ek_split_first(int64_t batch, int devices, int64_t first, int64_t *sizes);

/* The cost of n > 0 samples on a device is fixed + per_sample * n; zero samples cost 0. The
 * device takes `most` samples at most. Costs are finite, and per_sample is not negative. */
typedef struct ek_cost {
    double fixed, per_sample;
    int64_t most;
} ek_cost;

/* Writes the sizes whose largest cost is smallest. Every device gets what it can take below that
 * cost. What is left is divided as evenly as possible among the devices that reach that cost,
 * earlier devices first. Returns false if the limits don't allow the batch; the sizes then ignore
 * the limits. */
bool ek_split_level(int64_t batch, int devices, const ek_cost *costs, int64_t *sizes);

/* The number of forwards that are probes. Probes run a guess and small variations of it, which
 * separates fixed costs from costs per sample. */
enum { EK_SPLIT_PROBES = 3 };

/* Moves samples between the two devices of each pair: in one direction for probe 0, in the other
 * for probe 1, none for probe 2. Moves `part` times the samples of the device that has fewer, but
 * at least 1. No device loses its last sample or gets more than room[i]. */
void ek_split_probe(int probe, double part, int devices, const int64_t *room, int64_t *sizes);

#endif
