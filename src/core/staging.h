/* staging.h: memory of the host from which a device is fed, and copies from there.
 *
 * Pinned memory is read by a GPU itself, while the caller goes on; a copy from plain memory goes
 * through buffers. Either way the copy runs in EK_STREAM_UPLOAD, into memory of that stream, beside
 * what the device computes. */
#ifndef EK_CORE_STAGING_H
#define EK_CORE_STAGING_H

#include "core/tensor.h"

/* A tensor that the CPU fills and that is then sent to `dev` once. It lies on `dev` itself if the
 * CPU can write to its memory, else on cpu, in pinned memory if the backend has that. In the scope,
 * uninitialised, row-major. Any thread. */
ek_tensor *ek_staging_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape);

/* Starts to copy a dense tensor of the host's memory to `dev`; returns the copy, laid out alike,
 * without history, in the scope. Returns `staged` itself if it lies on `dev`. Does not wait for the
 * device's work. A pinned `staged` may be released at once, but nobody may write to it any more;
 * any other may be written to. The copy may be released at any time, but not used before
 * ek_staging_receive. */
ek_tensor *ek_staging_send(ek_tensor *staged, ek_dev *dev);

/* Makes a sent tensor ready for use: work issued to `dev` from now on comes after its copy. Returns
 * `sent`. May be called again; for one thread at a time. */
ek_tensor *ek_staging_receive(ek_tensor *sent, ek_dev *dev);

/* ek_staging_send and ek_staging_receive, for a tensor that is needed now. */
ek_tensor *ek_staging_copy(ek_tensor *staged, ek_dev *dev);

/* True if ek_staging_copy is the best way to copy the tensor to `dev`. */
bool ek_staging_copies(const ek_tensor *tensor, const ek_dev *dev);

#endif
