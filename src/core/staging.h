/* staging.h: memory of the host from which a device is fed, and into which it gives; copies from
 * there and to there.
 *
 * Pinned memory is read and written by a GPU itself, while the caller goes on; a copy from plain
 * memory goes through buffers. Copies to the device run in EK_STREAM_UPLOAD, those to the host in
 * EK_STREAM_COMMUNICATE, beside what the device computes. The ledger of cpu counts pinned memory.
 */
#ifndef EK_CORE_STAGING_H
#define EK_CORE_STAGING_H

#include "core/tensor.h"

/* A tensor that the CPU fills and that is then sent to `dev`, or that `dev` fills. It lies on `dev`
 * itself if the CPU can write to its memory, else on cpu, in pinned memory if the backend has that.
 * In the scope, uninitialised, row-major. Any thread. */
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

/* ---- to the host, and back to where it was ----
 *
 * `host` is a tensor of ek_staging_new for the device, or a part of one; both tensors are dense and
 * laid out alike. *event (NULL at first) is the caller's, who frees it: ek_dev_free_event. */

/* Starts to copy `from` to the host, once the device's work that has been issued is done. Nobody
 * may write to `from` or release it before ek_dev_event_done is 1, or before EK_STREAM_COMPUTE has
 * been made to wait for the event. */
int ek_staging_fetch(ek_tensor *host, const ek_tensor *from, ek_event **event);

/* Copies `host` to `to` in order with the device's work, and doesn't wait. `host` may be released
 * at once, but nobody may write to it any more. */
int ek_staging_deliver(ek_tensor *to, const ek_tensor *host, ek_event **event);

#endif
