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

/* ---- work.c: the work that one thread does for one device at a stretch: a job of a group, or the
 * backward on one device ----
 *
 * The wall time of such stretches, without the time that they wait for other threads, adds up to
 * the device's busy_ns. A device of a speed below 1 sleeps in proportion to their CPU time. Other
 * work (a plain module's forward, an optimizer's step) is neither counted nor slowed. */

typedef struct ek_work {
    ek_dev *dev; /* NULL: nested in another stretch, which counts the time */
    uint64_t began, waited;
} ek_work;

void ek_work_begin(ek_work *work, ek_dev *dev);
void ek_work_end(ek_work *work);

/* pthread_cond_wait, whose time does not count as work. */
void ek_work_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

/* Sleeps the time that a slow device owes for this thread's work since the work began or the thread
 * last slept. A short debt is kept for later. Called with no lock held, before other threads get a
 * result. */
void ek_work_rest(void);

#endif
