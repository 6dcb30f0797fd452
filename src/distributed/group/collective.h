/* collective.h: works of the calls that all ranks of a group make together (communication.h). */
#ifndef EK_GROUP_COLLECTIVE_H
#define EK_GROUP_COLLECTIVE_H

#include "link/communication.h"

/* Calls with one tensor on every rank, or none (barrier). The descriptor has the shape, root and
 * operation. */
extern const ek_verb ek_verb_barrier, ek_verb_broadcast, ek_verb_all_reduce, ek_verb_reduce;

/* Calls with a tensor for each pair of ranks: work->out and in, with their shapes in work->gives
 * and takes. If two ranks do not agree about the shape that one gives to the other, nothing is
 * moved and all ranks fail. */
extern const ek_verb ek_verb_all_gather, ek_verb_gather, ek_verb_scatter, ek_verb_all_to_all;
extern const ek_verb ek_verb_reduce_scatter;

/* Adds the tensor of a broadcast (op -1) or of a reduction to a work without tensors. In a
 * reduction a root of -1 means that all ranks get the result. */
int ek_dist_work_one(ek_dist_work *work, ek_tensor *tensor, int op, int root);

/* Member `ready` of verbs whose go_on is that of ek_verb_all_reduce. */
ek_readiness ek_dist_work_sum_ready(ek_dist_work *work);

/* Allocates work->out and in. */
int ek_dist_work_lists(ek_dist_work *work);
/* Allocates work->out, in, gives and takes, and scratch for the comparison of shapes. */
int ek_dist_work_pairs(ek_dist_work *work);

/* Sets work->in to memory for a term of each rank. The terms have the size of the work's first
 * tensor. Once all terms have come, ek_dist_work_combine writes their combination to that tensor.
 * This rank's own term is work->out[rank]. */
int ek_dist_work_terms(ek_dist_work *work);
void ek_dist_work_combine(ek_dist_work *work, ek_dist_op op);

#endif
