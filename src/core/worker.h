/* worker.h: one long-lived thread per device, and groups of jobs on them.
 *
 * Note [Groups are enqueued under one lock]
 *
 * All jobs of one group are enqueued under group_lock. So two groups have the same order on every
 * worker, and never wait for each other in a circle. group_lock is taken before any worker's lock,
 * and is not held while a job runs. */
#ifndef EK_CORE_WORKER_H
#define EK_CORE_WORKER_H

#include "core/device.h"
#include "core/thread.h"

/* Job `index` of a group. It runs in a scope of its own with the submitter's modes, and retains
 * what shall outlive the scope. Returns 0, or a negative status with the thread's error set. */
typedef int ek_job_function(void *user, int index);

/* Runs function(user, i) on the worker of devs[i] for each i, side by side, and waits for all. cpu
 * has no worker: its jobs run on the calling thread, beside the others. A single job, and the jobs
 * of a group that is started within a job, run on the calling thread one after the other. Jobs can
 * wait for each other: rendezvous.h.
 *
 * When all jobs have ended, the error of one becomes the caller's: the first by index that failed
 * by itself, else the first that gave up because of another (EK_E_ABORTED). Its sentence is
 * prefixed "<what> <i> on <device>: " unless `what` is NULL. */
int ek_jobs_run(ek_dev *const *devs, int count, ek_job_function *function, void *user,
                const char *what);

/* True if a worker has been started, so that devices compute beside the caller. Any thread. */
bool ek_workers_exist(void);

/* Ends and joins all workers, for ek_shutdown and for a change of the devices. */
void ek_workers_join(void);

#endif
