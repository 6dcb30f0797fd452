/* parallel.h: the one place that owns OpenMP.
 *
 * Each thread that computes for a device uses a team of dev->threads. A kernel's result may not
 * depend on the team's size: reductions split their work by its shape and never by the number of
 * threads. */
#ifndef EK_HOST_PARALLEL_H
#define EK_HOST_PARALLEL_H

#include "core/device.h"
#include "core/multiversion.h"

/* Part [begin, end) of the work. */
typedef void ek_parallel_body(void *context, int64_t begin, int64_t end);

/* Runs body over [0, count) on the device's threads. Each index is in one part. Parts are
 * contiguous and have at least `grain` indices, except the last; there are no more parts than
 * threads. A single part runs inline, and so does all work inside of a team. */
void ek_parallel_for(ek_dev *dev, int64_t count, int64_t grain, ek_parallel_body *body,
                     void *context);

/* Waits, within a body, until other threads have counted *done up to `count`. A piece may only
 * wait for pieces that were taken before it; otherwise no thread might be computing them. */
void ek_parallel_wait(_Atomic int64_t *done, int64_t count);

/* The size of the calling thread's team for the device: dev->threads, or fewer if the system has no
 * more threads. */
int ek_parallel_threads(const ek_dev *dev);

/* Starts the calling thread's team for the device, and sets its size for libraries that ask OpenMP
 * (oneDNN). */
void ek_parallel_enter(const ek_dev *dev);

#endif
