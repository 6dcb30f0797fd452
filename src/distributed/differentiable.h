/* differentiable.h: joins of the ranks' tensors, for the files of this folder.
 *
 * Errors of one rank alone become those of all ranks (ek_world_outcome). */
#ifndef EK_DISTRIBUTED_DIFFERENTIABLE_H
#define EK_DISTRIBUTED_DIFFERENTIABLE_H

#include "distributed/communication.h"

/* The work by which ranks tell each other what they join, under the name of the call that joins. */
extern const ek_verb ek_verb_join, ek_verb_gather_value, ek_verb_presence;

/* ek_dist_join on a group with this rank in it, which may be the only one. */
ek_tensor *ek_join(const ek_verb *verb, ek_tensor *x, int dim, ek_process_group *group);

/* The same if all ranks know each other's sizes along dim, which saves an agreement: sizes[r] is
 * that of rank r. dim >= 0; dtypes and other dimensions agree. */
ek_tensor *ek_join_sizes(ek_tensor *x, int dim, const int64_t *sizes, ek_process_group *group);

#endif
