/* transfer.h: copies.
 *
 * Copies between host and device, in the device's order: a small copy uses the compute stream and a
 * small pinned buffer. A large copy uses the copy stream, in chunks. The copy stream first waits
 * for the compute stream, because the memory may be in use, and the compute stream waits for the
 * copy stream afterwards. An upload returns when the source has been read, a download when the
 * result is there.
 *
 * Copies in EK_STREAM_UPLOAD use the upload stream, which waits for no kernel. The target is free
 * in the upload stream's order, and the sender makes the compute stream wait (stream.h).
 *
 * Copies in EK_STREAM_COMMUNICATE write to pinned memory, from which other processes get the data.
 * The caller's events order them, as with uploads.
 *
 * Copies between devices: a copy on one GPU, and a peer copy between GPUs that reach each other,
 * both in the destination's stream of the thread's work (stream.h). Other copies are staged through
 * pinned memory of the host. The host waits for no copy between devices. */
#ifndef EK_CUDA_TRANSFER_H
#define EK_CUDA_TRANSFER_H

#include "cuda/memory.h"

enum { EK_CUDA_STAGING = 2 }; /* buffers of a staged copy */

typedef struct ek_cuda_transfer {
    ek_cuda_ring small, large;
    cudaEvent_t copied; /* event in the copy stream, recorded for each copy */
    /* Buffers for copies from this device to GPUs that it doesn't reach, and the events on either
     * side. Guarded by `lock`. */
    pthread_mutex_t lock;
    void *staging[EK_CUDA_STAGING];
    cudaEvent_t filled[EK_CUDA_STAGING];  /* recorded by the source of a copy */
    cudaEvent_t drained[EK_CUDA_STAGING]; /* recorded by the target of a copy */
} ek_cuda_transfer;

/* The backend's slots of these names. */
int ek_cuda_upload(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes);
int ek_cuda_download(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes);
int ek_cuda_copy_bytes(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                       size_t nbytes);
bool ek_cuda_reaches(const ek_dev *dev, const ek_dev *other);

/* Make and free a device's buffers and events. The device is current, and idle when it closes. */
int ek_cuda_transfer_open(ek_cuda_device *device);
void ek_cuda_transfer_close(ek_cuda_device *device);

/* Returns true if kernels and copies of either GPU can use the other's memory. Each pair is tried
 * once (peer.c). */
bool ek_cuda_peers(const ek_cuda_device *a, const ek_cuda_device *b);

#endif
