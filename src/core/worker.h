/* worker.h: one long-lived thread per device, and groups of jobs on them.
 *
 * Note [Groups are enqueued under one lock]
 *
 * All jobs of one group are enqueued under group_lock. So any two groups have one order on all
 * workers, and never wait for each other in a circle. group_lock is taken before any worker's lock,
 * and is not held while a job runs. */
#ifndef EK_CORE_WORKER_H
#define EK_CORE_WORKER_H

#include "core/device.h"
#include "core/thread.h"

/* Runs job `index` of a group, in a separate scope and with the submitter's modes. Retains objects
 * that must outlive the scope. Returns 0, or a negative status with the thread's error set. */
typedef int ek_job_function(void *user, int index);

/* Runs function(user, i) on the worker of devs[i] for each i, concurrently, and waits for all jobs.
 * cpu has no worker: its jobs run on the calling thread, concurrently with the others. A single
 * job, and the jobs of a group that is started within a job, run on the calling thread one after
 * the other. Jobs can wait for each other (rendezvous.h).
 *
 * When all jobs have ended, the error of one job becomes the caller's: that of the first job by
 * index that failed by itself, else that of the first job that gave up because of another
 * (EK_E_ABORTED). The error's sentence is prefixed "<what> <i> on <device>: " unless `what` is
 * NULL. */
int ek_jobs_run(ek_dev *const *devs, int count, ek_job_function *function, void *user,
                const char *what);

/* Returns true if a worker has been started, so that devices compute concurrently with the caller.
 * Any thread. */
bool ek_workers_exist(void);

/* Ends and joins all workers, for ek_shutdown and for a change of the devices. */
void ek_workers_join(void);

/* ---- work.c: work, that is what one thread does for one device without a break: a job of a group,
 * or the backward on one device ----
 *
 * The wall time of work, less the time that it waits for other threads, is added to the device's
 * busy_ns unless the device has a clock (backend.h). A device with a speed below 1 sleeps in
 * proportion to the CPU time of work. Computation outside of work (a module's forward without a
 * wrapper, an optimizer's step) is neither counted nor slowed. */

typedef struct ek_work {
    ek_dev *dev; /* NULL: this work is within other work, which counts the time */
    uint64_t began, waited;
} ek_work;

void ek_work_begin(ek_work *work, ek_dev *dev);
void ek_work_end(ek_work *work);

/* Calls pthread_cond_wait, whose time does not count as work. */
void ek_work_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

/* If the thread's device is slow, sleeps the time that the device owes: for this thread's work
 * since it began or since the thread last slept, and what was owed before. A debt below
 * least_rest_ns is kept for later. Called with no lock held, before other threads get a result. */
void ek_work_rest(void);

#endif
