/* roster.h: which processes of the job have come to ek_dist_init_process_group.
 *
 * Before MPI connects the processes, none can ask another. But what runs on the same machine can be
 * seen: a process of the job has its rank in its environment, is a descendant of the same launcher,
 * and has a communication thread once it has come. */
#ifndef EK_LAUNCH_ROSTER_H
#define EK_LAUNCH_ROSTER_H

#include <stdbool.h>
#include <stddef.h>

#include "launch/launcher.h"

/* Writes who of the job's ranks has not come, as far as it can be seen from this machine: "rank 1
 * on node7 has not called it (process 4711)". True if a rank of this machine has no process: it has
 * ended, or has not begun. Errors that are pending stay as they are. */
bool ek_roster_describe(const ek_launched *launched, char *text, size_t room);

#endif
