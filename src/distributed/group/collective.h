/* collective.h: the calls that all ranks of a group make together, as works (communication.h). */
#ifndef EK_GROUP_COLLECTIVE_H
#define EK_GROUP_COLLECTIVE_H

#include "link/communication.h"

/* One tensor on every rank: barrier (none), broadcast, all_reduce, reduce. The descriptor has the
 * shape, root and operation. */
extern const ek_verb ek_verb_barrier, ek_verb_broadcast, ek_verb_all_reduce, ek_verb_reduce;

/* A tensor for each pair of ranks: work->out and in, with their shapes in gives and takes. If two
 * ranks do not agree about what one gives to the other, nothing is moved and all ranks fail. */
extern const ek_verb ek_verb_all_gather, ek_verb_gather, ek_verb_scatter, ek_verb_all_to_all;
extern const ek_verb ek_verb_reduce_scatter;

/* Allocates out, in, gives and takes, and scratch for the comparison of shapes. */
int ek_dist_work_pairs(ek_dist_work *work);

/* Fills the descriptor's dtype and shape from the work's first tensor, and its payload with the
 * elements if they fit. */
void ek_dist_work_descriptor(ek_dist_work *work);

/* Allocates what the sum of the work's first tensor needs. */
int ek_dist_work_sum(ek_dist_work *work);

#endif
