/* locked.h: page-locked memory of the host, from which a GPU reads by itself.
 *
 * Page-locking takes long and may wait for the GPU, so blocks are kept: one that is given back is
 * handed out again once the copies from it, which an event follows, are done. Blocks belong to a
 * physical device, not to a logical one, and outlive both where somebody still holds them. The
 * ledger counts none of them. */
#ifndef EK_CUDA_LOCKED_H
#define EK_CUDA_LOCKED_H

#include "cuda/runtime.h"

/* The backend's slots of these names. */
int ek_cuda_locked_alloc(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_locked_free(void *pointer);
int ek_cuda_send(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes);

/* Gives back the blocks of this device's GPU that nobody holds, after what is read from them. */
void ek_cuda_locked_close(const ek_cuda_device *device);

#endif
