/* world.h: the process groups of this process, for the calls of the public headers. */
#ifndef EK_DISTRIBUTED_WORLD_H
#define EK_DISTRIBUTED_WORLD_H

#include "distributed/communication.h"

/* Finds the group of a call: `given`, or the world for NULL. 1: this rank takes part in it. 0: it
 * isn't in the group, and a log line says so. EK_E_STATE without a world. */
int ek_world_group(const char *what, ek_process_group *given, ek_process_group **group);

/* Rank in the group of a rank of the world. EK_E_INVALID, for the call `what`, if it isn't in it.
 */
int ek_world_root(const char *what, const ek_process_group *group, int rank);

/* The outcome of a call on a group (NULL: the world): if this rank has failed before the others
 * knew, they get its error. */
int ek_world_outcome(const ek_process_group *group, int rc);

/* A group (NULL: the world) as other folders see it (comm/ranks.h): one reference. NULL without an
 * error if this rank is alone or not in the group, NULL with an error if there is no memory. */
struct ek_ranks *ek_process_group_ranks(ek_process_group *group);

/* Ends what the function above has made: the group is about to be freed. */
void ek_process_group_forget_ranks(ek_process_group *group);

/* The ranks as owners of parameters that are divided between them (autograd/shards.h). One
 * reference; NULL with an error. */
struct ek_owners *ek_ranks_owners(struct ek_ranks *ranks);

/* The world's communication; NULL: there is one rank. */
ek_communication *ek_world_communication(void);

#endif
