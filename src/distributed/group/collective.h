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

/* Adds the tensor of a broadcast (op -1) or of a reduction to a work without tensors. A root of -1
 * means that all ranks get the result. */
int ek_dist_work_one(ek_dist_work *work, ek_tensor *tensor, int op, int root);

/* Allocates work->out and in. */
int ek_dist_work_lists(ek_dist_work *work);
/* Allocates work->out, in, gives and takes, and scratch for the comparison of shapes. */
int ek_dist_work_pairs(ek_dist_work *work);

/* Sets work->in to memory for a term of each rank. The terms have the size of the work's first
 * tensor, to which the second function combines them once all have come. This rank's term is
 * work->out[rank]. */
int ek_dist_work_terms(ek_dist_work *work);
void ek_dist_work_combine(ek_dist_work *work, ek_dist_op op);

#endif
