/* part.h: a part is the work that one thread does for one device at a stretch: a job of a group,
 * or the backward on one device.
 *
 * The wall time of a device's parts, without the time that they wait for other threads, adds up
 * to the device's busy_ns. A device of a speed below 1 sleeps in proportion to the CPU time of
 * its parts. Other work (a plain module's forward, an optimizer's step) is neither counted nor
 * slowed. */
#ifndef EK_CORE_PART_H
#define EK_CORE_PART_H

#include "core/device.h"

typedef struct ek_part {
    ek_dev *dev; /* NULL: nested in another part, which counts the time */
    uint64_t began, waited;
} ek_part;

void ek_part_begin(ek_part *part, ek_dev *dev);
void ek_part_end(ek_part *part);

/* pthread_cond_wait, whose time does not count as the part's work. */
void ek_part_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

/* Sleeps the time that a slow device owes for its work since the part began or last slept. A short
 * debt is kept for later. Called with no lock held, before other threads get a result. */
void ek_part_rest(void);

#endif
