/* part.h: a stretch of work that one thread does for one device: a gang's part, or a backward on
 * one device. What its wall time without waiting for others adds up to is the device's busy_ns, and
 * a device of a speed below 1 sleeps in proportion to the thread's CPU time. Work that a thread
 * issues outside of parts (a plain module's forward, an optimizer's step) is neither counted nor
 * slowed. */
#ifndef EK_CORE_PART_H
#define EK_CORE_PART_H

#include "core/device.h"

typedef struct ek_part {
    ek_dev *dev; /* NULL: within another part, whose time this is */
    uint64_t began, waited;
} ek_part;

void ek_part_begin(ek_part *part, ek_dev *dev);
void ek_part_end(ek_part *part);

/* pthread_cond_wait; the time is none of the part's. */
void ek_part_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

/* Sleeps what a slow device owes for the work since the part began or last rested, where that is
 * worth it; what is not, is owed. Before a result is handed to others. Not with a lock held. */
void ek_part_rest(void);

#endif
