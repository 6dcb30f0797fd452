/* differentiable.h: sums and joins over ranks as operations of the graph.
 *
 * Each operation is a function of all ranks' tensors, and its backward is the adjoint of that
 * function: a sum's is the sum, a mean's the mean. A join's is a split, which gives each rank its
 * part of the sum of all ranks' gradients, and a split's is the join again. So the backwards of all
 * ranks together compute the gradients of the sum of their losses, to any order.
 *
 * Note [All ranks record, or none]
 *
 * The backward of an operation between ranks meets them again, so that it must be in all their
 * graphs. Each descriptor tells whether its rank's tensor requires a gradient. If one does, all
 * ranks record. A rank whose own tensor requires none records a leaf in its place, which gets no
 * gradient. A rank without gradient mode could not follow: that is an error on all ranks. */
#ifndef EK_GROUP_DIFFERENTIABLE_H
#define EK_GROUP_DIFFERENTIABLE_H

#include "link/communication.h"

/* The work by which ranks tell each other what they join, under the name of the call that joins. */
extern const ek_verb ek_verb_join, ek_verb_gather_value, ek_verb_presence;

/* Joins as ek_dist_join does, on a group of which this rank is a member, in the body of a call
 * (world.h). If all ranks know each other's sizes along dim, `sizes` has them, which saves an
 * agreement: then dim >= 0, and dtypes and other dimensions agree. Else `sizes` is NULL. */
ek_tensor *ek_join(const ek_verb *verb, ek_tensor *x, int dim, const int64_t *sizes,
                   ek_process_group *group);
/* Makes a call of ek_join. On a rank that is not in the group the result is x. */
ek_tensor *ek_join_call(ek_tensor *x, int dim, const int64_t *sizes, ek_process_group *group);

/* ---- calls of the program and of backward ---- */

/* Makes a call of all ranks (world.h) whose body returns run(group, x, how). On a rank that is not
 * in the group the result is x. */
ek_tensor *ek_meeting_call(const char *what, ek_process_group *group,
                           ek_tensor *(*run)(ek_process_group *group, ek_tensor *x,
                                             const void *how),
                           ek_tensor *x, const void *how);

/* ---- who records ---- */

void ek_meeting_descriptor(ek_dist_work *work, const ek_tensor *x);
/* On the communication thread, once all descriptors are here: work->result becomes 1 if ranks
 * record. */
int ek_meeting_agree(ek_dist_work *work);
/* What is recorded as the input x if ranks record. *wanted: its gradient is. */
ek_tensor *ek_meeting_input(ek_tensor *x, int records, bool *wanted);

#endif
