/* worker.h: one long-lived thread per device, and groups of jobs on them.
 *
 * Lock rule: the group lock orders groups: all jobs of one group are enqueued under it, so that two
 * groups meet on every worker in the same order. It is taken before any worker's lock, and is not
 * held while a job runs. */
#ifndef EK_CORE_WORKER_H
#define EK_CORE_WORKER_H

#include "core/device.h"
#include "core/thread.h"

/* A job: number `index` of its group. Returns 0 or a negative status with its thread's error set.
 * It runs in a scope of its own with the submitter's modes; it retains what shall outlive it. */
typedef int ek_gang_function(void *user, int index);

/* Runs function(user, i) on the worker of devs[i] for each i, side by side, and waits for all. A
 * single job, and jobs of a group within a job, run on the calling thread in order. cpu has no
 * worker: its jobs run on the calling thread while the others work. Jobs can wait for each other:
 * see rendezvous.h.
 *
 * Errors: after all have ended the first by index becomes the caller's, prefixed "<what> <i> on
 * <device>: " unless `what` is NULL. Those that gave up because of another (EK_E_ABORTED) come
 * last. */
int ek_gang_run(ek_dev *const *devs, int count, ek_gang_function *function, void *user,
                const char *what);

/* True if a worker has been started: devices compute beside the caller. Any thread. */
bool ek_workers_exist(void);

/* Joins all workers (shutdown). */
void ek_workers_join(void);

#endif
