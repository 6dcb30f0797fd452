/* transfer.h: copies, and the order between devices' streams. */
#ifndef EK_CUDA_TRANSFER_H
#define EK_CUDA_TRANSFER_H

#include "cuda/runtime.h"

/* The backend's slots of these names. */
int ek_cuda_transfer(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);
int ek_cuda_order(ek_dev *waiter, ek_dev *awaited);
bool ek_cuda_reaches(const ek_dev *dev, const ek_dev *other);

/* Pinned buffers and events of a device that closes; nothing runs. */
void ek_cuda_transfer_close(ek_cuda_device *device);

#endif
