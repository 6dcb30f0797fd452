/* worker.h: one long-lived thread per device, and gangs of jobs on them.
 *
 * Lock rule: the gang lock orders gangs (all jobs of one gang are enqueued under it, so two gangs
 * meet on every worker in the same order); it is taken before any queue's lock and never held while
 * a job runs. */
#ifndef EK_CORE_WORKER_H
#define EK_CORE_WORKER_H

#include "core/device.h"
#include "core/thread.h"

/* A job: part `index` of a gang. Returns 0 or a negative status with its thread's error set. It
 * runs in a scope of its own with the submitter's modes; what shall outlive it is retained by it.
 */
typedef int ek_gang_function(void *user, int index);

/* Runs function(user, i) on the worker of devs[i] for each i, side by side, and waits for all. With
 * one part, or in a gang's part already, parts run on the calling thread in order. Errors: after
 * all have ended the first by index becomes the caller's, rather one that is not EK_E_ABORTED
 * (given up because of another), prefixed "<what> <i> on <device>: " where `what` is not NULL. cpu
 * has no worker: its parts run on the calling thread while the others work. Parts can wait for each
 * other: see rendezvous.h. */
int ek_gang_run(ek_dev *const *devs, int count, ek_gang_function *function, void *user,
                const char *what);

/* True if at least one worker has been started: devices compute beside the caller. Any thread.
 */
bool ek_workers_exist(void);

/* Joins all workers (shutdown). */
void ek_workers_join(void);

#endif
