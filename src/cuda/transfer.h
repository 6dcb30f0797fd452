/* transfer.h: copies, and the order between devices' streams.
 *
 * Between host and device: small ones go by the compute stream through a small pinned buffer; large
 * ones in chunks by the copy stream, which waits for the compute stream first (the memory may have
 * been in use) and for which the compute stream waits afterwards, so that kernels issued by other
 * threads in the meantime run beside the copy. An upload returns when the source has been read, a
 * download when the result is there.
 *
 * Between devices, by the destination's compute stream: on one GPU a plain copy, between GPUs that
 * reach each other a peer copy, and else through pinned memory of the host, without a host wait.
 *
 * Events are made once per device and recorded again and again, by any thread without a lock. That
 * is sound because a wait takes the event's latest record at the time it is issued: where another
 * thread recorded it again in between, the wait is for more work than needed, all of it issued
 * already: waits only ever look back in the order of issue, so no circle can come of them (but with
 * collectives: between.h). */
#ifndef EK_CUDA_TRANSFER_H
#define EK_CUDA_TRANSFER_H

#include "cuda/ring.h"

enum { EK_CUDA_BRIDGE = 2 };

typedef struct ek_cuda_transfer {
    ek_cuda_ring small, large;
    cudaEvent_t copied; /* the copy stream up to when it was last recorded */
    /* For copies from this device to GPUs that it doesn't reach: buffers, guarded by `lock` while
     * copies through them are issued, and their events on either side. */
    pthread_mutex_t lock;
    void *bridge[EK_CUDA_BRIDGE];
    cudaEvent_t filled[EK_CUDA_BRIDGE];  /* of the device that is read */
    cudaEvent_t drained[EK_CUDA_BRIDGE]; /* of the device that is written */
} ek_cuda_transfer;

/* The backend's slots of these names. */
int ek_cuda_copy_bytes(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                       size_t nbytes);
int ek_cuda_order(ek_dev *waiter, ek_dev *awaited);
bool ek_cuda_reaches(const ek_dev *dev, const ek_dev *other);

/* From page-locked memory, in order with the device's work; returns at once. `done` follows the
 * copy. */
int ek_cuda_upload_locked(ek_dev *dev, void *to, const void *from, size_t nbytes, cudaEvent_t done);

/* Buffers and events of a device, which is current; where it closes nothing runs. */
int ek_cuda_transfer_open(ek_cuda_device *device);
void ek_cuda_transfer_close(ek_cuda_device *device);

/* Copies between GPUs that don't reach each other: bridge.c. */
int ek_cuda_bridge_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                        size_t nbytes);

/* Whether kernels and copies of each of two GPUs can use the other's memory; tried out once per
 * pair: peer.c. */
bool ek_cuda_peers(const ek_cuda_device *a, const ek_cuda_device *b);

/* For errors in the midst of a copy: waits until none of its parts runs. Keeps rc. */
int ek_cuda_settle(const ek_cuda_device *device, int rc);

#endif
