/* transfer.h: copies.
 *
 * Between host and device, in the device's order: small ones go by the compute stream through a
 * small pinned buffer; large ones in chunks by the copy stream, which waits for the compute stream
 * first (the memory may have been in use) and for which the compute stream waits afterwards. An
 * upload returns when the source has been read, a download when the result is there.
 *
 * What is sent in EK_QUEUE_UPLOAD goes by a stream of its own, which waits for no kernel: its
 * memory is free there, and who sent it says when the compute stream has to wait (stream.h).
 *
 * Between devices, by the destination's compute stream: on one GPU a plain copy, between GPUs that
 * reach each other a peer copy, and else through pinned memory of the host, without a host wait. */
#ifndef EK_CUDA_TRANSFER_H
#define EK_CUDA_TRANSFER_H

#include "cuda/memory.h"

enum { EK_CUDA_STAGING = 2 }; /* buffers of a staged copy */

typedef struct ek_cuda_transfer {
    ek_cuda_ring small, large;
    cudaEvent_t copied; /* the copy stream up to when it was last recorded */
    /* For copies from this device to GPUs that it doesn't reach: buffers, guarded by `lock` while
     * copies through them are issued, and their events on either side. */
    pthread_mutex_t lock;
    void *staging[EK_CUDA_STAGING];
    cudaEvent_t filled[EK_CUDA_STAGING];  /* of the device that is read */
    cudaEvent_t drained[EK_CUDA_STAGING]; /* of the device that is written */
} ek_cuda_transfer;

/* The backend's slots of these names. */
int ek_cuda_send(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes);
int ek_cuda_copy_bytes(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                       size_t nbytes);
bool ek_cuda_reaches(const ek_dev *dev, const ek_dev *other);

/* Buffers and events of a device, which is current; if it closes nothing runs. */
int ek_cuda_transfer_open(ek_cuda_device *device);
void ek_cuda_transfer_close(ek_cuda_device *device);

/* Whether kernels and copies of each of two GPUs can use the other's memory; tried out once per
 * pair: peer.c. */
bool ek_cuda_peers(const ek_cuda_device *a, const ek_cuda_device *b);

#endif
