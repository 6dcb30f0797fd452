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

/* Runs body over [0, count), each index once, in contiguous parts of at least `grain` (except the
 * last), on the device's threads, in no more parts than threads; inline if one part remains or a
 * team is active already. */
void ek_parallel_for(ek_dev *dev, int64_t count, int64_t grain, ek_parallel_body *body,
                     void *context);

/* How many cores this process may use; at least 1. */
int ek_parallel_cores(void);

/* How many threads the calling thread's team for the device has: those that the device is to
 * compute with, or what can be had where that turned out to be less. */
int ek_parallel_threads(const ek_dev *dev);

/* Starts the calling thread's team for the device, and sets its size for libraries that ask OpenMP
 * (oneDNN). */
void ek_parallel_enter(const ek_dev *dev);

#endif
