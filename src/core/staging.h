/* staging.h: memory of the host from which a device is fed.
 *
 * Copies from plain memory to a GPU wait, or go through buffers. Page-locked memory is read by the
 * GPU itself, while the caller goes on. */
#ifndef EK_CORE_STAGING_H
#define EK_CORE_STAGING_H

#include "core/tensor.h"

/* A tensor to be filled by the CPU and then sent to `dev` once: on `dev` itself where the CPU can
 * write to its memory, else on cpu, page-locked where the device's backend can do that. In the
 * scope, uninitialised, row-major. Any thread. */
ek_tensor *ek_staging_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape);

/* The tensor on `dev`: `staged` itself if it lies there, else a copy, in order with the device's
 * other work. Does not wait for it where `staged` is page-locked: `staged` may be released at once,
 * but nobody writes to it any more. In the scope. */
ek_tensor *ek_staging_send(ek_tensor *staged, ek_dev *dev);

#endif
