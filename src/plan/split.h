/* split.h: the arithmetic of plans: computes sizes from proportions or costs. */
#ifndef EK_PLAN_SPLIT_H
#define EK_PLAN_SPLIT_H

#include "evenkeel/plan.h"

/* Each ek_split function, except ek_split_whole, writes one size (0 or more) per device; the sizes
 * add up to `batch`. */

/* ek_split_chunk writes torch.chunk's sizes, ek_split_even even sizes. */
void ek_split_chunk(int64_t batch, int devices, int64_t *sizes);
void ek_split_even(int64_t batch, int devices, int64_t *sizes);
/* Writes weights (finite, 0 or more, not all 0) as whole numbers without a common divisor, in the
 * same proportions within 2^-48 of the largest. */
void ek_split_whole(int devices, const double *weights, int64_t *whole);
/* Cuts a batch in the proportions of whole numbers (0 or more, not all 0). The largest remainders
 * are rounded up. A batch whose size is the sum of the numbers is cut into exactly these
 * numbers. */
void ek_split_chunks(int64_t batch, int devices, const int64_t *chunks, int64_t *sizes);
/* Does what BalancedDataParallel of transformer-xl does: gives the first device `first` samples and
 * splits the rest evenly. If `first` isn't 0 and another device would then get no more than `first`
 * samples, writes torch.chunk's sizes instead. If `first` is 0, the first of several devices never
 * gets a sample. */
void ek_split_first(int64_t batch, int devices, int64_t first, int64_t *sizes);

/* The cost of n > 0 samples on a device is fixed + per_sample * n; zero samples cost 0. The
 * device takes `most` samples at most. Costs are finite, and per_sample is not negative. */
typedef struct ek_cost {
    double fixed, per_sample;
    int64_t most;
} ek_cost;

/* Writes the sizes whose largest cost is smallest. Every device gets what it can take below this
 * cost. The samples that are left are divided as evenly as possible among the devices that reach
 * this cost, earlier devices first. If the limits don't allow the batch, returns false, and the
 * sizes ignore the limits. */
bool ek_split_level(int64_t batch, int devices, const ek_cost *costs, int64_t *sizes);

/* The number of forwards that are probes. Probes use a guess and small variations of it, so that
 * fixed costs can be told from costs per sample. */
enum { EK_SPLIT_PROBES = 3 };

/* Moves samples between the two devices of each pair: in one direction for probe 0, in the other
 * direction for probe 1. Probe 2 moves none. The number moved is `part` times the samples of the
 * device that has fewer, but at least 1. No device loses its last sample or gets more than
 * room[i]. */
void ek_split_probe(int probe, double part, int devices, const int64_t *room, int64_t *sizes);

#endif
