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

/* The communicators of one list of devices, in its order. The section (core/lane.h) in which a
 * collective is issued guards `comms` and `ended`; the lock of all groups guards the rest. */
typedef struct ek_nccl_group {
    int count;
    int collective; /* an ek_collective, once chosen and logged; negative before */
    ek_dev *devs[EK_MAX_DEVICES];
    ncclComm_t comms[EK_MAX_DEVICES];
    /* event that follows each device's rank of the last collective */
    cudaEvent_t ended[EK_MAX_DEVICES];
    bool open;     /* `comms` and `ended` exist */
    bool busy;     /* a section uses the group: nobody else ends it */
    uint64_t used; /* number of the last use; the oldest group makes room */
} ek_nccl_group;

/* Which collectives a list uses: what its group has kept, else what `choose` says. */
int ek_nccl_collective(ek_dev *const *devs, int count, int (*choose)(ek_dev *const *, int));

/* The list's group, open and busy until ek_nccl_give; NULL with an error. The list's section is
 * open. No lock is held in between. */
ek_nccl_group *ek_nccl_take(ek_dev *const *devs, int count);

/* Ends the use of a group: rc is the outcome of a collective's calls. Records the events that
 * follow it on all devices. After an error it aborts the communicators, because some ranks may wait
 * for others for ever; work that was issued before gets time to end, and the next ek_nccl_take
 * makes new communicators. Returns rc, or the error of the records. */
int ek_nccl_give(ek_nccl_group *group, int rc);

/* What NCCL is called for, for one rank of a collective; the rank's GPU is current. */
typedef int ek_nccl_calls(const ek_nccl_group *group, int rank, const void *user);

/* Launches all ranks, each by the launcher of its device (nccl_launch.c), and returns when NCCL has
 * taken all, or one has failed and none is left that waits for it. The error is that of the first
 * rank that failed. The section of the group's list is open. */
int ek_nccl_launch(ek_nccl_group *group, ek_nccl_calls *calls, const void *user);
/* Ends the device's launcher. No section of the device is open. */
void ek_nccl_launcher_close(ek_cuda_device *device);

/* The stream to which a device's rank of a collective is issued. */
static inline cudaStream_t ek_nccl_stream(const ek_dev *dev)
{
    return ek_cuda_of(dev)->exchange;
}

/* NCCL's name of a dtype. A bool travels as a byte. */
ncclDataType_t ek_nccl_dtype(ek_dtype dtype);

/* Turns NCCL's result into a status. */
int ek_nccl_check(const ek_dev *dev, const char *call, ncclResult_t result);

#endif

#endif
