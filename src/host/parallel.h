/* parallel.h: the one place that owns threads of kernels.
 *
 * Each thread that computes for a device uses a team of dev->threads. They are plain threads: those
 * of GNU OpenMP spin for milliseconds for others, which may not be running on busy cores. Own
 * kernels' results don't depend on the team's size: reductions split their work by its shape. What
 * oneDNN computes in parts, one for each thread (dnn_conv.c), does: a weight gradient is the sum of
 * the parts' sums. */
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
/* ek_parallel_for of parts each of which is worth a thread, even one that sleeps. */
void ek_parallel_parts(ek_dev *dev, int64_t count, ek_parallel_body *body, void *context);

/* Waits, within a body, until other threads have counted *done up to `count`. A piece may only
 * wait for pieces that were taken before it; otherwise no thread might be computing them. */
void ek_parallel_wait(_Atomic int64_t *done, int64_t count);

/* The size of the calling thread's team for the device: dev->threads, or fewer if the system has no
 * more threads. */
int ek_parallel_threads(const ek_dev *dev);

/* Has libraries that ask OpenMP (oneDNN) compute on the calling thread alone, until
 * ek_parallel_alone_end gets what this returned. Threads of teams always do. */
int ek_parallel_alone_begin(void);
void ek_parallel_alone_end(int before);

#endif
