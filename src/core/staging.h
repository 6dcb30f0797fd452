/* staging.h: copies between a device and memory of the host that is made for such copies.
 *
 * A GPU reads and writes pinned memory directly, while the caller continues; a copy from pageable
 * memory goes through buffers. Copies to the device run in EK_STREAM_UPLOAD, copies to the host in
 * EK_STREAM_COMMUNICATE, both concurrent with what the device computes. Pinned memory counts in the
 * ledger of cpu. */
#ifndef EK_CORE_STAGING_H
#define EK_CORE_STAGING_H

#include "core/tensor.h"

/* Makes a tensor that the CPU fills before it is sent to `dev`, or that `dev` fills. The tensor
 * lies on `dev` if the CPU can write to the device's memory, else on cpu, in pinned memory if the
 * backend has any. In the scope, uninitialised, row-major. Any thread. */
ek_tensor *ek_staging_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape);

/* Starts to copy a dense tensor of the host's memory to `dev`. Returns the copy, which has the
 * layout of `staged` and no history, in the scope. If `staged` lies on `dev` already, returns
 * `staged`. Does not wait for the device's work. If `staged` is pinned, it may be released at once,
 * but nobody may write to it any more; if it is pageable, it may be written to. The copy may be
 * released at any time, and may be used after ek_staging_receive. */
ek_tensor *ek_staging_send(ek_tensor *staged, ek_dev *dev);

/* Makes work issued to `dev` from now on wait for the copy of `sent`. Returns `sent`. May be called
 * several times, by one thread at a time. */
ek_tensor *ek_staging_receive(ek_tensor *sent, ek_dev *dev);

/* Sends and receives a tensor that is needed at once. */
ek_tensor *ek_staging_copy(ek_tensor *staged, ek_dev *dev);

/* Returns true if ek_staging_copy is the best way to copy the tensor to `dev`. */
bool ek_staging_copies(const ek_tensor *tensor, const ek_dev *dev);

/* ---- to the host, and back to the device ----
 *
 * `host` is a tensor of ek_staging_new for the device, or a part of one; both tensors are dense and
 * laid out alike. *event (NULL at first) belongs to the caller, who frees it by
 * ek_dev_free_event. */

/* Starts to copy `from` to the host, after the work issued to the device so far. Nobody may write
 * to `from` or release it until ek_dev_event_done is 1, or until EK_STREAM_COMPUTE waits for the
 * event. */
int ek_staging_fetch(ek_tensor *host, const ek_tensor *from, ek_event **event);

/* Copies `host` to `to` in order with the device's work. Doesn't wait. `host` may be released at
 * once, but nobody may write to it any more. */
int ek_staging_deliver(ek_tensor *to, const ek_tensor *host, ek_event **event);

#endif
