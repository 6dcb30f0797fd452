/* nccl.h: collectives of GPUs by NCCL, where each logical device is a GPU of its own.
 *
 * EVENKEEL_COMM says what is used: `nccl`, `copy` (peer or staged copies by pairs), or `nccl-sum`,
 * which also leaves the order of additions to NCCL. Unset: NCCL if it is found and the devices
 * are different GPUs (it refuses two parts on one), else copies. The choice is logged once per list
 * of devices. Lists of GPUs and devices of the host together use copies, whatever it says. */
#ifndef EK_CUDA_NCCL_H
#define EK_CUDA_NCCL_H

#include "cuda/library.h"
#include "cuda/runtime.h"

/* The backend's slots of these names; without NCCL's header only the first, which chooses copies.
 */
int ek_cuda_collective(ek_dev *const *devs, int count);
int ek_cuda_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes);
int ek_cuda_exchange(const ek_block_move *moves, int count);
int ek_cuda_sum(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
                ek_dtype dtype);

/* Ends what involves this device; nothing of it runs. */
void ek_cuda_nccl_close(ek_cuda_device *device);

#endif
