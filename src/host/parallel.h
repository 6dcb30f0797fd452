/* parallel.h: the threads of all kernels.
 *
 * Each thread that computes for a device uses a team of dev->threads threads. They are POSIX
 * threads, because those of GNU OpenMP spin for milliseconds while they wait for threads that may
 * not be running on busy cores. Results of this library's kernels don't depend on the team's size:
 * reductions split their work by its shape. Results of oneDNN in parts, one for each thread
 * (dnn_conv.c), do: a weight gradient is the sum of the parts' sums. */
#ifndef EK_HOST_PARALLEL_H
#define EK_HOST_PARALLEL_H

#include "core/device.h"
#include "core/multiversion.h"

/* Computes part [begin, end) of the indices. */
typedef void ek_parallel_body(void *context, int64_t begin, int64_t end);

/* Runs body over [0, count) on the device's threads. Each index is in one part. Parts are
 * contiguous and have at least `grain` indices, except the last; there are at most as many parts as
 * threads. If there is a single part, or if the calling thread computes a part of a team, body runs
 * on the calling thread alone. */
void ek_parallel_for(ek_dev *dev, int64_t count, int64_t grain, ek_parallel_body *body,
                     void *context);
/* Does what ek_parallel_for does with a grain of 1, for indices that are each worth a thread, even
 * one that sleeps. */
void ek_parallel_parts(ek_dev *dev, int64_t count, ek_parallel_body *body, void *context);

/* Waits until other threads have counted *done up to `count`. Within a body a piece may wait only
 * for pieces that were taken earlier, because perhaps no thread computes later pieces. */
void ek_parallel_wait(_Atomic int64_t *done, int64_t count);

/* Returns the size of the calling thread's team for the device: dev->threads, or fewer if the
 * system gives fewer threads. */
int ek_parallel_threads(const ek_dev *dev);

/* Makes libraries that use OpenMP (oneDNN) compute on the calling thread alone, until
 * ek_parallel_alone_end, which gets the returned number. On the threads that belong to a team, such
 * libraries always compute alone. */
int ek_parallel_alone_begin(void);
void ek_parallel_alone_end(int before);

#endif
