/* work.h: the work that one thread does for one device at a stretch: a job of a group, or the
 * backward on one device.
 *
 * The wall time of such stretches, without the time that they wait for other threads, adds up to
 * the device's busy_ns. A device of a speed below 1 sleeps in proportion to their CPU time. Other
 * work (a plain module's forward, an optimizer's step) is neither counted nor slowed. */
#ifndef EK_CORE_WORK_H
#define EK_CORE_WORK_H

#include "core/device.h"

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
