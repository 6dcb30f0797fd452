/* nccl.h: collectives by NCCL among devices that are each a GPU of their own.
 *
 * EVENKEEL_COMM chooses: `nccl`, `copy` (peer or staged copies by pairs), or `nccl-sum` (NCCL also
 * adds, in its own order). If it is unset, NCCL is used if it is found and the devices are
 * different GPUs, because NCCL refuses two ranks on one GPU; else copies are used. Lists with
 * devices of the host always use copies. The choice is logged once per list of devices. */
#ifndef EK_CUDA_NCCL_H
#define EK_CUDA_NCCL_H

#include "cuda/library.h"
#include "cuda/runtime.h"

/* The backend's slots of these names. Without NCCL's header only the first exists, and chooses
 * copies. */
int ek_cuda_collective(ek_dev *const *devs, int count);
int ek_cuda_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes);
int ek_cuda_exchange(const ek_block_move *moves, int count);
int ek_cuda_sum(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
                ek_dtype dtype);

/* Closes the communicators of this device, whose work has all ended. */
void ek_cuda_nccl_close(ek_cuda_device *device);

/* ---- communicators by list of devices ----
 *
 * Note [Lost members of a collective]. A rank whose peer is lost waits for ever, and so does all
 * work that is issued to its device afterwards. NCCL says nothing of it if all GPUs are one
 * process's. So every wait of the host (stream.h) looks after all communicators now and then. If a
 * member is lost, or NCCL reports an error, the communicator is aborted. Devices whose rank had not
 * ended then get an error from their next call. */

#ifdef EK_HAVE_NCCL

/* The communicators of one list of devices, in its order. */
typedef struct ek_nccl_group {
    int count;
    int collective; /* an ek_collective, once chosen and logged; negative before */
    ek_dev *devs[EK_MAX_DEVICES];
    ncclComm_t comms[EK_MAX_DEVICES];
    /* event that follows each device's rank of the last collective */
    cudaEvent_t ended[EK_MAX_DEVICES];
    bool open;     /* `comms` and `ended` exist */
    uint64_t used; /* number of the last use; the oldest group makes room */
} ek_nccl_group;

/* The lock of all groups and of NCCL's calls. */
void ek_nccl_lock(void);
void ek_nccl_unlock(void);

/* The group of a list, made if there is none; borrowed, NULL without memory. ek_nccl_lock is held
 * for this and for the functions of a group. */
ek_nccl_group *ek_nccl_group_of(ek_dev *const *devs, int count);

int ek_nccl_open(ek_nccl_group *group);

/* Records the events that follow a collective, which has been issued to all streams. */
int ek_nccl_issued(ek_nccl_group *group);

/* Aborts the group's communicators after an error, because some ranks may wait for others for ever.
 * Work that was issued before gets time to end. The next call makes new communicators. */
void ek_nccl_give_up(ek_nccl_group *group);

/* The stream to which a device's rank of a collective is issued. */
static inline cudaStream_t ek_nccl_stream(const ek_dev *dev)
{
    return ek_cuda_of(dev)->compute;
}

/* NCCL's name of a dtype; EK_E_DTYPE if it has none. */
int ek_nccl_dtype(ek_dtype dtype, ncclDataType_t *type);

/* Turns NCCL's result into a status. */
int ek_nccl_check(const ek_dev *dev, const char *call, ncclResult_t result);

#endif

#endif
