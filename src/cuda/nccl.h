/* nccl.h: collectives by NCCL among devices on different GPUs.
 *
 * EVENKEEL_COMM chooses: `nccl`, `copy` (peer or staged copies by pairs), or `nccl-sum` (NCCL also
 * adds, in its own order). If it is unset, NCCL is used if it is found and the devices are
 * different GPUs, because NCCL refuses two ranks on one GPU; else copies are used. Lists with
 * devices of the host always use copies. The choice is logged once per list of devices. */
#ifndef EK_CUDA_NCCL_H
#define EK_CUDA_NCCL_H

#include "cuda/library.h"
#include "cuda/runtime.h"

/* The backend's slots of these names. Without NCCL's header only ek_cuda_collective exists, which
 * then chooses copies. */
int ek_cuda_collective(ek_dev *const *devs, int count);
int ek_cuda_exchange(ek_dev *const *devs, int count, const ek_exchange_step *steps, int step_count);

/* Closes the communicators of this device. All work of the device has ended. */
void ek_cuda_nccl_close(ek_cuda_device *device);

/* ---- communicators by list of devices ----
 *
 * Note [Lost members of a collective]. A rank whose peer is lost waits for ever, and so does all
 * work that is issued to its device afterwards. NCCL doesn't report this if all GPUs belong to one
 * process. So every wait of the host (stream.h) checks all communicators at intervals. If a member
 * is lost, or NCCL reports an error, the communicator is aborted. The next call of a device whose
 * rank had not ended then returns an error. */

#ifdef EK_HAVE_NCCL

/* The communicators of one list of devices, in the list's order. The section (core/lane.h) in which
 * a collective is issued guards `comms` and `ended`; the lock of all groups guards the rest. */
typedef struct ek_nccl_group {
    int count;
    int collective; /* an ek_collective, once chosen and logged; negative before */
    ek_dev *devs[EK_MAX_DEVICES];
    ncclComm_t comms[EK_MAX_DEVICES];
    /* event that follows each device's rank of the last collective */
    cudaEvent_t ended[EK_MAX_DEVICES];
    bool open;     /* `comms` and `ended` exist */
    bool busy;     /* a section uses the group, so that no other thread may end it */
    uint64_t used; /* number of the last use; the group used longest ago makes room */
} ek_nccl_group;

/* Returns which collectives a list uses: the choice that its group has stored, else that of
 * `choose`. */
int ek_nccl_collective(ek_dev *const *devs, int count, int (*choose)(ek_dev *const *, int));

/* Returns the list's group, open and busy until ek_nccl_give; NULL with an error. The list's
 * section is open. No lock is held until ek_nccl_give. */
ek_nccl_group *ek_nccl_take(ek_dev *const *devs, int count);

/* Ends the use of a group; rc is the outcome of the collective's calls. Records the group's events
 * on all devices. After an error, gives earlier work time to end and then aborts the communicators,
 * because some ranks may wait for others for ever; the next ek_nccl_take makes new communicators.
 * Returns rc, or the error of the records. */
int ek_nccl_give(ek_nccl_group *group, int rc);

/* A step of every rank. `calls` makes the calls of NCCL for one rank, whose GPU is current, within
 * a group of NCCL's; if `works`, it issues other work of the rank's device, without a group. */
typedef struct ek_nccl_step {
    int (*calls)(const ek_nccl_group *group, int rank, const void *user);
    const void *user;
    bool works;
} ek_nccl_step;

/* Launches all ranks, each by the launcher of its device or by the calling thread (nccl_launch.c).
 * Returns when all steps of all ranks are issued; if one fails, when no other rank waits for it any
 * more. The error is that of the first rank that failed. The section of the group's list is open.
 */
int ek_nccl_launch(ek_nccl_group *group, const ek_nccl_step *steps, int count);
/* Ends the device's launcher. No section of the device is open. */
void ek_nccl_launcher_close(ek_cuda_device *device);

/* Returns the stream to which a device's rank of a collective is issued. */
static inline cudaStream_t ek_nccl_stream(const ek_dev *dev)
{
    return ek_cuda_of(dev)->exchange;
}

/* Returns NCCL's name of a dtype. A bool is sent as a byte. */
ncclDataType_t ek_nccl_dtype(ek_dtype dtype);

/* Turns NCCL's result into a status. */
int ek_nccl_check(const ek_dev *dev, const char *call, ncclResult_t result);

#endif

#endif
