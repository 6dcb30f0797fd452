/* nccl_ranks.c: see nccl_ranks.h.
 *
 * Communicators are non-blocking: a call of NCCL may return ncclInProgress, and continues in a
 * thread of NCCL's. The call's work is in the stream, and the communicator usable again, once
 * ncclCommGetAsyncError returns something else. So a job is a state machine, which `rail_test`
 * drives: issue a step, poll until it is issued, issue the next step, and at the end record an
 * event. */
#include "cuda/nccl_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/launches.h"
#include "cuda/library.h"
#include "cuda/memory.h"
#include "cuda/nccl.h"
#include "cuda/stream.h"

#ifdef EK_HAVE_NCCL

enum { SHARED_VERSION = 23000 }; /* the first NCCL that can have two ranks on a GPU */

typedef enum rail_step {
    RAIL_OPENING,
    RAIL_IDLE,
    RAIL_FIRST,  /* the first exchange is being issued */
    RAIL_SECOND, /* the second exchange, or the library's step, is being issued */
    RAIL_RUNNING
} rail_step;

struct ek_rail {
    ek_dev *dev;
    ncclComm_t comm;
    int ranks, rank;
    rail_step step;
    ek_rail_job job;
    cudaEvent_t ended; /* event that follows the last job */
};

static const char *rail_reason(void)
{
    return ek_nccl_reason();
}

static bool rail_shares(void)
{
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    int version = 0;
    return allowed && strcmp(allowed, "1") == 0 && ek_nccl() &&
           ek_nccl()->ncclGetVersion(&version) == ncclSuccess && version >= SHARED_VERSION;
}

static int rail_identify(ek_dev *dev, char gpu[EK_RAIL_GPU])
{
    memset(gpu, 0, EK_RAIL_GPU);
    return ek_cuda_check(dev, "asking for its bus",
                         (int)cudaDeviceGetPCIBusId(gpu, EK_RAIL_GPU, ek_cuda_of(dev)->physical));
}

/* Returns 0 if the call succeeded or is still in progress, else an error. */
static int rail_check(const ek_dev *dev, const char *call, ncclResult_t result)
{
    return ek_nccl_check(dev, call, result == ncclInProgress ? ncclSuccess : result);
}

static int rail_make_id(ek_dev *dev, char id[EK_RAIL_ID])
{
    ncclUniqueId made;
    int restore;
    _Static_assert(sizeof made == EK_RAIL_ID, "an id is carried as it is");
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    int rc = ek_nccl_check(dev, "making an id", ek_nccl()->ncclGetUniqueId(&made));
    ek_cuda_leave(dev, restore);
    if (rc >= 0)
        memcpy(id, &made, sizeof made);
    return rc;
}

/* ---- opening and closing ---- */

static void rail_close(ek_rail *rail)
{
    int restore = ek_cuda_enter_anyway(rail->dev);
    /* ncclCommAbort, unlike ncclCommDestroy, needs no other rank. */
    if (rail->comm)
        (void)ek_nccl()->ncclCommAbort(rail->comm);
    if (rail->ended)
        cudaEventDestroy(rail->ended);
    (void)cudaGetLastError();
    ek_cuda_leave(rail->dev, restore);
    free(rail);
}

static int rail_open_communicator(ek_rail *rail, const char id[EK_RAIL_ID])
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId given;
    memcpy(&given, id, sizeof given);
    config.blocking = 0;
    EK_TRY(ek_cuda_make_event(rail->dev, &rail->ended));
    return rail_check(rail->dev, "making a communicator",
                      ek_nccl()->ncclCommInitRankConfig(&rail->comm, rail->ranks, given, rail->rank,
                                                        &config));
}

static int rail_open(ek_dev *dev, const char id[EK_RAIL_ID], int ranks, int rank, ek_rail **opened)
{
    int restore;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    ek_rail *rail = ek_calloc(1, sizeof *rail);
    int rc = rail ? 0 : ek_error_pending();
    if (rail) {
        *rail = (ek_rail){.dev = dev, .ranks = ranks, .rank = rank, .step = RAIL_OPENING};
        rc = rail_open_communicator(rail, id);
    }
    if (rail && rc < 0)
        rail_close(rail);
    ek_cuda_leave(dev, restore);
    *opened = rc < 0 ? NULL : rail;
    return rc;
}

/* ---- steps of a job ---- */

static cudaStream_t rail_stream(const ek_rail *rail)
{
    return ek_cuda_of(rail->dev)->communicate;
}

static int rail_issue_pairs(const ek_rail *rail, const ek_bytes *out, const ek_bytes *in)
{
    for (int r = 0; r < rail->ranks; r++) {
        if (r == rail->rank)
            continue;
        if (out[r].nbytes > 0)
            EK_TRY(rail_check(rail->dev, "send",
                              ek_nccl()->ncclSend(out[r].data, out[r].nbytes, ncclUint8, r,
                                                  rail->comm, rail_stream(rail))));
        if (in[r].nbytes > 0)
            EK_TRY(rail_check(rail->dev, "receive",
                              ek_nccl()->ncclRecv(in[r].data, in[r].nbytes, ncclUint8, r,
                                                  rail->comm, rail_stream(rail))));
    }
    return 0;
}

static int rail_issue_exchange(const ek_rail *rail, const ek_bytes *out, const ek_bytes *in)
{
    const ek_bytes *own = &in[rail->rank], *from = &out[rail->rank];
    if (own->nbytes > 0 && own->data && own->data != from->data)
        EK_TRY(ek_cuda_check(rail->dev, "a copy on one GPU",
                             (int)cudaMemcpyAsync(own->data, from->data, own->nbytes,
                                                  cudaMemcpyDeviceToDevice, rail_stream(rail))));
    EK_TRY(rail_check(rail->dev, "starting a group", ek_nccl()->ncclGroupStart()));
    int rc = rail_issue_pairs(rail, out, in);
    int ended = rail_check(rail->dev, "ending a group", ek_nccl()->ncclGroupEnd());
    return rc < 0 ? rc : ended;
}

static int rail_library_op(ek_dist_op op, ncclRedOp_t *wanted)
{
    static const ncclRedOp_t ops[] = {[EK_DIST_SUM] = ncclSum,
                                      [EK_DIST_AVG] = ncclAvg,
                                      [EK_DIST_PRODUCT] = ncclProd,
                                      [EK_DIST_MIN] = ncclMin,
                                      [EK_DIST_MAX] = ncclMax};
    if (op > EK_DIST_MAX)
        return EK_FAIL(EK_E_INVALID, "NCCL has no bitwise operations");
    *wanted = ops[op];
    return 0;
}

/* Issues a broadcast, or a reduction in NCCL's order. */
static int rail_issue_library(const ek_rail *rail)
{
    const ek_rail_job *job = &rail->job;
    ncclRedOp_t op = ncclSum;
    if (job->root >= 0)
        return rail_check(rail->dev, "broadcast",
                          ek_nccl()->ncclBroadcast(job->data, job->data, job->nbytes, ncclUint8,
                                                   job->root, rail->comm, rail_stream(rail)));
    EK_TRY(rail_library_op(job->op, &op));
    if (job->dtype == EK_BOOL) /* "or" and "and": results stay 0 and 1 */
        op = op == ncclSum ? ncclMax : op == ncclProd ? ncclMin : op;
    return rail_check(rail->dev, "all-reduce",
                      ek_nccl()->ncclAllReduce(job->data, job->data, (size_t)job->count,
                                               ek_nccl_dtype(job->dtype), op, rail->comm,
                                               rail_stream(rail)));
}

static int rail_issue_combination(const ek_rail *rail)
{
    const ek_rail_job *job = &rail->job;
    const ek_cuda_device *device = ek_cuda_of(rail->dev);
    const ek_cuda_stream stream = {.handle = rail_stream(rail),
                                   .fault = device->fault_on_device,
                                   .multiprocessors = device->multiprocessors};
    const ek_cuda_combination combination = {.dtype = job->dtype,
                                             .op = (int)job->op,
                                             .terms = job->terms,
                                             .own = job->own,
                                             .stride = job->stride,
                                             .ranks = rail->ranks,
                                             .rank = rail->rank,
                                             .out = job->sum,
                                             .count = job->count};
    return ek_cuda_check(rail->dev, "adding what ranks have sent",
                         ek_cuda_launch_combine(&stream, &combination));
}

/* ---- the state machine: the rail's GPU is current ---- */

static int rail_issue_first(ek_rail *rail)
{
    rail->step = rail->job.out ? RAIL_FIRST : RAIL_SECOND;
    return rail->job.out ? rail_issue_exchange(rail, rail->job.out, rail->job.in)
                         : rail_issue_library(rail);
}

static int rail_issue_second(ek_rail *rail)
{
    const ek_rail_job *job = &rail->job;
    rail->step = RAIL_SECOND;
    if (job->sum && job->count > 0)
        EK_TRY(rail_issue_combination(rail));
    return job->out_after ? rail_issue_exchange(rail, job->out_after, job->in_after) : 0;
}

/* Returns 1 if NCCL has issued all of the rail's work, 0 if not yet, negative on error. */
static int rail_is_issued(const ek_rail *rail)
{
    ncclResult_t state = ncclSuccess;
    EK_TRY(ek_nccl_check(rail->dev, "asking for errors",
                         ek_nccl()->ncclCommGetAsyncError(rail->comm, &state)));
    EK_TRY(rail_check(rail->dev, "a job between ranks", state));
    return state != ncclInProgress;
}

static int rail_go_on(ek_rail *rail)
{
    while (rail->step != RAIL_IDLE && rail->step != RAIL_RUNNING) {
        int issued = rail_is_issued(rail);
        if (issued <= 0)
            return issued < 0 ? issued : EK_RAIL_BUSY;
        if (rail->step == RAIL_FIRST) {
            EK_TRY(rail_issue_second(rail));
        } else if (rail->step == RAIL_SECOND) {
            EK_TRY(ek_cuda_record(rail->dev, rail->ended, rail_stream(rail)));
            rail->step = RAIL_RUNNING;
        } else {
            rail->step = RAIL_IDLE;
            ek_cuda_memory_measure(rail->dev); /* which has a communicator now */
        }
    }
    if (rail->step == RAIL_IDLE)
        return EK_RAIL_DONE;
    EK_TRY(rail_is_issued(rail)); /* errors of other ranks arrive while the job runs */
    cudaError_t error = cudaEventQuery(rail->ended);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* clears "not ready", which is no error */
        return EK_RAIL_ISSUED;
    }
    EK_TRY(ek_cuda_check(rail->dev, "a job between ranks", (int)error));
    rail->step = RAIL_IDLE;
    return EK_RAIL_DONE;
}

static int rail_begin(ek_rail *rail, const ek_rail_job *job)
{
    int restore;
    EK_TRY(ek_cuda_usable(rail->dev));
    EK_TRY(ek_cuda_enter(rail->dev, &restore));
    rail->job = *job;
    int rc = rail_issue_first(rail);
    ek_cuda_leave(rail->dev, restore);
    return rc;
}

static int rail_test(ek_rail *rail)
{
    int restore;
    EK_TRY(ek_cuda_usable(rail->dev));
    EK_TRY(ek_cuda_enter(rail->dev, &restore));
    int rc = rail_go_on(rail);
    ek_cuda_leave(rail->dev, restore);
    return rc;
}

const ek_rail_backend ek_cuda_rails = {.reason = rail_reason,
                                       .shares = rail_shares,
                                       .identify = rail_identify,
                                       .make_id = rail_make_id,
                                       .open = rail_open,
                                       .begin = rail_begin,
                                       .test = rail_test,
                                       .close = rail_close};

#else /* a build without NCCL's header */

const ek_rail_backend ek_cuda_rails = {.reason = ek_nccl_reason};

#endif
