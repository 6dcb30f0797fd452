/* stream.h: order between devices and their streams, and copies: the backend's functions, or the
 * defaults of those that it lacks (backend.h). */
#ifndef EK_CORE_STREAM_H
#define EK_CORE_STREAM_H

#include "core/backend.h"

/* Makes work issued to `waiter` from now on come after all that was issued to `awaited` before. */
int ek_dev_wait(ek_dev *waiter, ek_dev *awaited);

/* Returns when all work issued to the device is done. */
int ek_dev_synchronize(ek_dev *dev);

/* True if the device has several streams. */
bool ek_dev_has_streams(const ek_dev *dev);

/* Record an event and wait for it, as the backend's `event_record` and `event_wait` (backend.h).
 * They do nothing if the device has one stream. */
void ek_dev_record_event(ek_dev *dev, ek_stream stream, ek_event **event);
void ek_dev_wait_event(ek_dev *dev, ek_stream stream, ek_event *event);

/* Copies contiguous bytes from a device of the host to `dev` in EK_STREAM_UPLOAD, as the backend's
 * `upload`; if the device has one stream, as ek_dev_copy. */
int ek_dev_upload(ek_dev *dev, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);

/* Copies contiguous bytes between any two devices, after all earlier work of both and before all
 * later work of both. If one side is memory of the host, it returns when the host may change the
 * source or has all of the result. */
int ek_dev_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);

/* True if kernels of `dev` can use the memory of `other` as their own (after ek_dev_wait). */
bool ek_dev_reaches(const ek_dev *dev, const ek_dev *other);

/* The collectives to use among these devices (ek_collective), or a negative status. */
int ek_dev_collective(ek_dev *const *devs, int count);

/* Collectives (backend.h) among devices for which ek_dev_collective has offered them. Without the
 * backend's own, broadcast and exchange copy from device to device. ek_dev_sum needs
 * EK_COLLECTIVE_SUMS. */
int ek_dev_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes);
int ek_dev_exchange(const ek_block_move *moves, int count);
int ek_dev_sum(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
               ek_dtype dtype);

/* True if the CPU can read and write the device's memory directly. */
bool ek_dev_is_host(const ek_dev *dev);

#endif
