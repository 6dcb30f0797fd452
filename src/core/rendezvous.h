/* rendezvous.h: where the jobs of a group (worker.h) wait for each other.
 *
 * Note [A rendezvous cannot hang]
 *
 * A rendezvous is complete when every job of the group has arrived at it. The last job to arrive
 * does the common work while the others wait; then all jobs continue with the results. A job that
 * has ended can no longer arrive: every job that waits for it gets an error. So no job waits for
 * ever if all jobs end.
 *
 * Lock rule: a barrier's lock is taken with no other lock held, and not held while jobs compute. */
#ifndef EK_CORE_RENDEZVOUS_H
#define EK_CORE_RENDEZVOUS_H

#include "core/thread.h"

/* The common work; brought[i] is the `mine` of job i. Runs once, on the thread of the last job to
 * arrive, in a separate scope; retains what must outlive that scope. Returns 0, or a negative
 * status with the error set, which every job then gets. */
typedef int ek_rendezvous_function(void *const *brought, int count);

/* Returns how many jobs the calling thread's group has, for all of which ek_rendezvous waits; 1
 * without a group. The job of a group of one counts as a job of the group around that group. */
int ek_rendezvous_count(void);

/* Waits for all jobs of the group, of which one does the common work. `name` (a static string) and
 * `place` tell one rendezvous from another. A single job does the common work at once. Errors, of
 * which the first two make all later rendezvous of the group fail, too:
 *   EK_E_ABORTED with its sentence, if another job has failed;
 *   EK_E_STATE, if another job ended well without arriving, or waits at another rendezvous (both
 *   names are said);
 *   EK_E_STATE, if the jobs cannot wait for each other, because they run one after the other (a
 *   group within a group, two jobs on one device), modes carry EK_MODE_ALONE, or backward runs. */
int ek_rendezvous(const char *name, uint64_t place, void *mine, ek_rendezvous_function *function);

/* ---- for groups of jobs ---- */

typedef struct ek_barrier ek_barrier; /* a rendezvous point of one group's jobs */

/* Makes a barrier for jobs on devs[0 .. count). Error messages call a job `what` (NULL: "part").
 * devs and errors are borrowed; errors[i] is written before job i leaves. `in_turn` tells that the
 * jobs run one after the other. Returns NULL with an error if memory is short. */
ek_barrier *ek_barrier_new(ek_dev *const *devs, int count, const char *what,
                           const ek_error_record *errors, bool in_turn);
void ek_barrier_free(ek_barrier *barrier);

/* ek_barrier_enter makes the calling thread job `index` and returns the thread's earlier rank;
 * ek_barrier_leave ends the job and restores that rank. */
ek_group_rank ek_barrier_enter(ek_barrier *barrier, int index);
void ek_barrier_leave(ek_barrier *barrier, int index, ek_group_rank before);

#endif
