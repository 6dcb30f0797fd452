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

/* ---- communicators by list of devices, and what becomes of them when a device is lost ----
 *
 * A part of a collective whose peer is gone waits for ever, and all that is issued to its device
 * afterwards waits behind it. NCCL says nothing of it if all GPUs are one process's. So whoever
 * waits for a device (stream.h) looks after all communicators; if a member is lost, or NCCL
 * reports an error, they are aborted, and devices whose part had not ended are told so, once. */

#ifdef EK_HAVE_NCCL

/* The communicators of one list of devices, in its order. */
typedef struct ek_nccl_group {
    int count;
    int collective; /* ek_collective, decided and logged; negative before */
    ek_dev *devs[EK_MAX_DEVICES];
    ncclComm_t comms[EK_MAX_DEVICES];
    cudaEvent_t ended[EK_MAX_DEVICES]; /* each device's part of the last collective */
    bool open;                         /* there are communicators and events */
    uint64_t used;                     /* the oldest makes room */
} ek_nccl_group;

/* One thread at a time has the groups, and calls NCCL. */
void ek_nccl_lock(void);
void ek_nccl_unlock(void);

/* ---- while it has them ---- */

/* The entry of a list, made if there is none; NULL without memory. */
ek_nccl_group *ek_nccl_group_of(ek_dev *const *devs, int count);

int ek_nccl_open(ek_nccl_group *group);

/* A collective has been issued to all streams. */
int ek_nccl_issued(ek_nccl_group *group);

/* After an error a collective's parts may run on some of the devices and wait for the others for
 * ever, and nobody says what became of its communicators: they go, and the next call makes new
 * ones. Work that was issued before is given the time to end. */
void ek_nccl_give_up(ek_nccl_group *group);

/* Where a device's part of a collective is issued. */
static inline cudaStream_t ek_nccl_stream(const ek_dev *dev)
{
    return ek_cuda_of(dev)->compute;
}

/* A status from one of NCCL's. */
int ek_nccl_check(const ek_dev *dev, const char *call, ncclResult_t result);

#endif

#endif
