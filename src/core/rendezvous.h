/* rendezvous.h: where the jobs of a group (worker.h) wait for each other.
 *
 * Note [A rendezvous cannot hang]
 *
 * A rendezvous is complete when every job of the group has arrived at it. The last one to arrive
 * does the common work while the others wait; then all go on with what it left for them. A job that
 * has ended, well or not, can no longer arrive: whoever waits for it gets its error. So nobody
 * waits for ever, unless a job does not end.
 *
 * Lock rule: a barrier's lock is taken with no other lock held, and is not held while jobs compute.
 */
#ifndef EK_CORE_RENDEZVOUS_H
#define EK_CORE_RENDEZVOUS_H

#include "core/thread.h"

/* The common work: brought[i] is what job i brought. Runs once, on the thread of the last job to
 * arrive, in a scope of its own; retains what shall outlive it. Returns 0 or a negative status with
 * the error set, which every job gets. */
typedef int ek_rendezvous_function(void *const *brought, int count);

/* How many jobs meet when the calling thread calls ek_rendezvous: those of its group, or of the
 * group around a group of one; 1 on threads without a group. */
int ek_rendezvous_count(void);

/* Meets the other jobs. `place` and `name` (static) tell one rendezvous from another. With one job
 * the work is done at once. Errors, after which all later rendezvous of the group fail too:
 *   EK_E_ABORTED with its sentence, if another job has failed;
 *   EK_E_STATE, if another job ended well without arriving, or waits at another rendezvous (both
 *   names are said);
 *   EK_E_STATE, if jobs cannot meet: they run one after the other (a group within a group, two jobs
 *   on cpu), modes carry EK_MODE_ALONE, or backward runs. */
int ek_rendezvous(const char *name, uint64_t place, void *mine, ek_rendezvous_function *function);

/* ---- for groups of jobs ---- */

typedef struct ek_barrier ek_barrier; /* where the jobs of one group meet */

/* For jobs on devs[0 .. count), called `what` (NULL: "part") in sentences. devs and errors are
 * borrowed; errors[i] is written before job i leaves. in_turn: the jobs run one after the other.
 * NULL with an error. */
ek_barrier *ek_barrier_new(ek_dev *const *devs, int count, const char *what,
                           const ek_error_record *errors, bool in_turn);
void ek_barrier_free(ek_barrier *barrier);

/* The calling thread becomes job `index`, and with leave again what ek_barrier_enter returned. */
ek_seat ek_barrier_enter(ek_barrier *barrier, int index);
void ek_barrier_leave(ek_barrier *barrier, int index, ek_seat before);

#endif
