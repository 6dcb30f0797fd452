/* world.h: the process groups of this process, and the boundary of calls on them. */
#ifndef EK_GROUP_WORLD_H
#define EK_GROUP_WORLD_H

#include "link/communication.h"

/* Note [One boundary]
 *
 * If a rank fails in a call, the other ranks wait for that rank until they learn of the failure. So
 * each call of a public header on a group, each backward of a node between ranks and each function
 * of an ek_ranks runs its body behind ek_group_call, which makes the body's error an error of all
 * ranks. A body returns its errors as any function does, and may call ek_group_call again: the
 * other ranks are told of an error only once. If a failed body leaves an object whose end gives up
 * a group, the caller of ek_group_call destroys the object afterwards, because ranks that don't
 * know of the error yet would find the group given up.
 *
 * Runs `body` with the group `given`, or with the world for NULL, and returns what the body
 * returns. If this rank isn't in the group, writes a log line and returns 0. Without a world
 * returns EK_E_STATE. `what` begins the sentences of errors. */
int ek_group_call(const char *what, ek_process_group *given,
                  int (*body)(ek_process_group *group, void *user), void *user);

/* Takes a rank in the world, and returns the same process's rank in the group. If the process is
 * not in the group, returns EK_E_INVALID for the call `what`. */
int ek_world_root(const char *what, const ek_process_group *group, int rank);

/* Returns one reference to the group's ek_ranks (core/ranks.h), by which other folders use the
 * group. A group of NULL is the world. Returns NULL without an error if this rank is alone or not
 * in the group, and NULL with an error if there is no memory. */
struct ek_ranks *ek_process_group_ranks(ek_process_group *group);

/* Returns the world's communication, or NULL if there is one rank. */
ek_communication *ek_world_communication(void);
/* Sets the world: a communication, or the group of a process that is alone. If both are NULL, there
 * is no world. */
void ek_world_set(ek_communication *communication, ek_process_group *alone);

/* Destroy one group that ek_dist_new_group has made (EK_E_INVALID for other groups), or all of
 * them. */
int ek_world_destroy_group(ek_process_group *group);
void ek_world_destroy_groups(void);

#endif
