/* differentiable.h: sums and joins over ranks as operations of the graph.
 *
 * Each operation is a function of all ranks' tensors, and its backward is the adjoint of that
 * function. The adjoint of a sum is the sum, and that of a mean is the mean. The adjoint of a join
 * is a split, which gives each rank its part of the sum of all ranks' gradients. The adjoint of a
 * split is the join. So the backwards of all ranks together compute the gradients of the sum of
 * their losses, to any order.
 *
 * Note [All ranks record, or none]
 *
 * The backward of an operation between ranks is a call of all ranks too, so that the operation must
 * be in the graphs of all ranks. Each descriptor tells whether its rank's tensor requires a
 * gradient. If a tensor requires one, all ranks record the operation. A rank whose tensor requires
 * none records a leaf in place of the tensor, which gets no gradient. If a tensor requires a
 * gradient, but gradient mode is off on a rank, the call is an error on all ranks. */
#ifndef EK_GROUP_DIFFERENTIABLE_H
#define EK_GROUP_DIFFERENTIABLE_H

#include "link/communication.h"

/* Verbs by which ranks tell each other their parts of a join. Each verb has the name of the call
 * that joins. */
extern const ek_verb ek_verb_join, ek_verb_gather_value, ek_verb_presence;

/* Joins as ek_dist_join does, in the body of a call (world.h) on a group of which this rank is a
 * member. `sizes` has each rank's size along dim, which saves an agreement, or is NULL if the ranks
 * don't know the sizes. If `sizes` is given, dim must be 0 or more, and dtypes and other dimensions
 * must be equal on all ranks. */
ek_tensor *ek_join(const ek_verb *verb, ek_tensor *x, int dim, const int64_t *sizes,
                   ek_process_group *group);
/* Makes a call of ek_join. If this rank is not in the group, returns x. */
ek_tensor *ek_join_call(ek_tensor *x, int dim, const int64_t *sizes, ek_process_group *group);

/* ---- calls of the program and of backward ---- */

/* Makes a call of all ranks (world.h) whose body returns run(group, x, how). If this rank is not in
 * the group, returns x. */
ek_tensor *ek_meeting_call(const char *what, ek_process_group *group,
                           ek_tensor *(*run)(ek_process_group *group, ek_tensor *x,
                                             const void *how),
                           ek_tensor *x, const void *how);

/* ---- who records ---- */

void ek_meeting_descriptor(ek_dist_work *work, const ek_tensor *x);
/* On the communication thread, after the agreement: sets work->result to 1 if the ranks record,
 * else to 0. */
int ek_meeting_agree(ek_dist_work *work);
/* Returns the tensor that is recorded as the input: x, or a leaf in place of x. *wanted tells
 * whether x needs a gradient. */
ek_tensor *ek_meeting_input(ek_tensor *x, int records, bool *wanted);

#endif
