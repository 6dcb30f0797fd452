/* world.h: the process groups of this process, for the calls of the public headers. */
#ifndef EK_GROUP_WORLD_H
#define EK_GROUP_WORLD_H

#include "link/communication.h"

/* Note [One boundary]
 *
 * A rank that fails in a call lets the other ranks wait for it, unless it tells them. Each call of
 * a public header on a group, each backward of a node between ranks and each function of an
 * ek_ranks runs its body behind ek_group_call, which makes the body's error all ranks'. Bodies
 * return their errors as everywhere, and may nest such calls: an error is told once. What a failed
 * body leaves to be destroyed, if that gives up a group, is destroyed by the caller of
 * ek_group_call: ranks that don't know of the error yet would find the group given up.
 *
 * Runs `body` with the group `given`, or the world for NULL. Returns what the body does; 0 if this
 * rank isn't in the group, which a log line says. EK_E_STATE without a world. `what` begins
 * sentences. */
int ek_group_call(const char *what, ek_process_group *given,
                  int (*body)(ek_process_group *group, void *user), void *user);

/* Rank in the group of a rank of the world. EK_E_INVALID, for the call `what`, if it isn't in it.
 */
int ek_world_root(const char *what, const ek_process_group *group, int rank);

/* Returns one reference to the group's ek_ranks (core/ranks.h), by which other folders use it. A
 * group of NULL is the world. NULL without an error: this rank is alone or not in the group. NULL
 * with an error: there is no memory. */
struct ek_ranks *ek_process_group_ranks(ek_process_group *group);

/* The world's communication; NULL: there is one rank. */
ek_communication *ek_world_communication(void);
/* Sets the world: a communication, or the group of a process without others; both NULL: none. */
void ek_world_set(ek_communication *communication, ek_process_group *alone);

/* Destroys a group that ek_dist_new_group has made; EK_E_INVALID for others. And all of them. */
int ek_world_destroy_group(ek_process_group *group);
void ek_world_destroy_groups(void);

#endif
