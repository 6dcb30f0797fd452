/* staging.h: memory of the host from which a device is fed, and what is sent from there.
 *
 * Copies from plain memory to a GPU go through buffers. Page-locked memory is read by the GPU
 * itself, while the caller goes on. Either way a copy has its own queue and memory that is free in
 * that queue's order: it runs beside what the device computes. */
#ifndef EK_CORE_STAGING_H
#define EK_CORE_STAGING_H

#include "core/tensor.h"

/* A tensor to be filled by the CPU and then sent to `dev` once: on `dev` itself if the CPU can
 * write to its memory, else on cpu, page-locked where the device's backend can do that. In the
 * scope, uninitialised, row-major. Any thread. */
ek_tensor *ek_staging_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape);

/* A copy on `dev` of a dense tensor of the host's memory, laid out alike, without history; or
 * `staged` itself if it lies there. Waits for none of the device's work. If `staged` is
 * page-locked it may be released at once, but nobody writes to it any more; else it may be written
 * to. Nobody uses the copy before ek_staging_receive, but it may be released. In the scope. */
ek_tensor *ek_staging_send(ek_tensor *staged, ek_dev *dev);

/* What was sent, for use: work that is issued to `dev` from now on comes after the copy. Any number
 * of times; one thread at a time. */
ek_tensor *ek_staging_receive(ek_tensor *sent, ek_dev *dev);

/* Both: for tensors that are needed now. */
ek_tensor *ek_staging_bring(ek_tensor *staged, ek_dev *dev);

/* Whether ek_staging_bring is the way to copy the tensor to `dev`. */
bool ek_staging_brings(const ek_tensor *tensor, const ek_dev *dev);

#endif
