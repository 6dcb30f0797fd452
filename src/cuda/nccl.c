/* nccl.c: collectives on the devices' compute streams.
 *
 * A communicator has one rank per GPU of its list. One call of ours issues the work of all ranks,
 * in one group of NCCL's and under one lock, so that ranks never meet in different calls. */
#include "cuda/nccl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/stream.h"

/* ---- the choice: EVENKEEL_COMM ---- */

typedef enum comm_choice {
    COMM_AUTO, /* unset or empty */
    COMM_COPY,
    COMM_NCCL,
    COMM_NCCL_SUM
} comm_choice;

/* The choice that a word stands for; NULL is unset. EK_E_INVALID for other words. */
static int comm_choice_parse(const char *word)
{
    static const char *const words[] = {"", "copy", "nccl", "nccl-sum"};
    for (int i = 0; i < 4; i++)
        if (strcmp(word ? word : "", words[i]) == 0)
            return i;
    return EK_FAIL(EK_E_INVALID,
                   "EVENKEEL_COMM is \"%s\"; it can be nccl, copy, or nccl-sum (NCCL adds, in its "
                   "own order), and unset chooses between nccl and copy",
                   word);
}

/* 1 if a device of the list is no GPU: such lists use copies, and this is logged once. 0 if all are
 * GPUs, negative if EVENKEEL_COMM has an unknown word. */
static int comm_choice_mixed(ek_dev *const *devs, int count)
{
    static atomic_bool told;
    int other = 0;
    while (other < count && devs[other]->id.kind == EK_CUDA)
        other++;
    if (other == count)
        return 0;
    int choice = comm_choice_parse(getenv("EVENKEEL_COMM"));
    EK_TRY(choice);
    if (!atomic_exchange(&told, true))
        ek_log_line(choice >= COMM_NCCL ? EK_LOG_WARNING : EK_LOG_INFO,
                    "%s and %d more communicate by copies%s: %s is no GPU", devs[0]->name,
                    count - 1, choice >= COMM_NCCL ? ", though EVENKEEL_COMM asks for NCCL" : "",
                    devs[other]->name);
    return 1;
}

#ifdef EK_HAVE_NCCL

/* True if NCCL can't serve the list. `why` then is part of a sentence. */
static bool nccl_has_obstacle(ek_dev *const *devs, int count, char why[256])
{
    for (int i = 0; i < count; i++)
        for (int other = 0; other < i; other++)
            if (ek_cuda_of(devs[i])->physical == ek_cuda_of(devs[other])->physical) {
                snprintf(why, 256,
                         "%s and %s are both on GPU %d, and NCCL refuses two parts on one",
                         devs[other]->name, devs[i]->name, ek_cuda_of(devs[i])->physical);
                return true;
            }
    if (!ek_nccl())
        snprintf(why, 256, "%s", ek_nccl_reason());
    return !ek_nccl();
}

static int nccl_choose(ek_dev *const *devs, int count)
{
    int choice = comm_choice_parse(getenv("EVENKEEL_COMM"));
    char why[256] = "EVENKEEL_COMM says so";
    EK_TRY(choice);
    bool copies = choice == COMM_COPY || nccl_has_obstacle(devs, count, why);
    if (copies && choice >= COMM_NCCL)
        return EK_FAIL(EK_E_BACKEND,
                       "EVENKEEL_COMM asks for NCCL among %s and %d more, but %s; unset it, or let "
                       "it be copy",
                       devs[0]->name, count - 1, why);
    if (copies)
        ek_log_line(EK_LOG_INFO, "%s and %d more communicate by copies: %s", devs[0]->name,
                    count - 1, why);
    else
        ek_log_line(EK_LOG_INFO, "%s and %d more communicate by NCCL%s", devs[0]->name, count - 1,
                    choice == COMM_NCCL_SUM ? ", which also adds" : "");
    if (copies)
        return EK_COLLECTIVE_NONE;
    return choice == COMM_NCCL_SUM ? EK_COLLECTIVE_SUMS : EK_COLLECTIVE_MOVES;
}

int ek_cuda_collective(ek_dev *const *devs, int count)
{
    int mixed = comm_choice_mixed(devs, count);
    if (mixed != 0)
        return mixed < 0 ? mixed : EK_COLLECTIVE_NONE;
    ek_nccl_lock();
    ek_nccl_group *group = ek_nccl_group_of(devs, count);
    int collective = group ? group->collective : EK_E_NO_MEMORY;
    if (group && collective < 0) {
        collective = nccl_choose(devs, count);
        group->collective = collective < 0 ? -1 : collective;
    }
    ek_nccl_unlock();
    return collective;
}

/* ---- collectives ---- */

/* One group of calls among a list of devices. */
typedef struct nccl_call {
    ek_nccl_group *group;
    ek_dev *dev; /* the device that is current */
    int restore;
} nccl_call;

static void nccl_leave(const nccl_call *call)
{
    ek_nccl_unlock();
    ek_cuda_leave(call->dev, call->restore);
}

/* Takes ek_nccl_lock and the issue lock, and starts a group. After an error neither is held. */
static int nccl_begin(nccl_call *call, ek_dev *const *devs, int count)
{
    for (int i = 0; i < count; i++) {
        EK_TRY(ek_cuda_usable(devs[i]));
        EK_TRY(ek_cuda_fault_check(devs[i]));
    }
    call->dev = devs[0];
    EK_TRY(ek_cuda_enter(call->dev, &call->restore));
    ek_nccl_lock();
    call->group = ek_nccl_group_of(devs, count);
    int rc = call->group ? ek_nccl_open(call->group) : ek_error_pending();
    if (rc >= 0) {
        ek_cuda_issue_collective();
        rc = ek_nccl_check(call->dev, "starting a group", ek_nccl()->ncclGroupStart());
        if (rc < 0)
            ek_cuda_issue_end();
    }
    if (rc < 0)
        nccl_leave(call);
    return rc;
}

/* Ends the group, also after an error, and gives both locks back. */
static int nccl_end(const nccl_call *call, int rc)
{
    ncclResult_t result = ek_nccl()->ncclGroupEnd();
    ek_cuda_issue_end();
    if (rc >= 0)
        rc = ek_nccl_check(call->dev, "ending a group", result);
    if (rc >= 0)
        rc = ek_nccl_issued(call->group);
    if (rc < 0)
        ek_nccl_give_up(call->group);
    nccl_leave(call);
    return rc;
}

int ek_cuda_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes)
{
    nccl_call call;
    EK_TRY(nccl_begin(&call, devs, count));
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        rc = ek_nccl_check(devs[i], "broadcast",
                           ek_nccl()->ncclBroadcast(data[0], data[i], nbytes, ncclUint8, 0,
                                                    call.group->comms[i], ek_nccl_stream(devs[i])));
    return nccl_end(&call, rc);
}

/* Collects the devices of the moves, each once. They ascend, so that an exchange among the same
 * devices finds its communicators again. */
static int nccl_move_devices(const ek_block_move *moves, int count, ek_dev **devs)
{
    bool seen[EK_MAX_DEVICES] = {false};
    ek_dev *by_index[EK_MAX_DEVICES];
    int n = 0;
    for (int i = 0; i < count; i++) {
        ek_dev *const both[] = {moves[i].from, moves[i].to};
        for (int k = 0; k < 2; k++) {
            seen[both[k]->id.index] = true;
            by_index[both[k]->id.index] = both[k];
        }
    }
    for (int i = 0; i < EK_MAX_DEVICES; i++)
        if (seen[i])
            devs[n++] = by_index[i];
    return n;
}

static int nccl_rank_of(ek_dev *const *devs, const ek_dev *dev)
{
    int rank = 0;
    while (devs[rank] != dev)
        rank++;
    return rank;
}

static int nccl_issue_move(const ek_nccl_group *group, const ek_block_move *move)
{
    int from = nccl_rank_of(group->devs, move->from), to = nccl_rank_of(group->devs, move->to);
    EK_TRY(ek_nccl_check(move->from, "send",
                         ek_nccl()->ncclSend(move->source, move->nbytes, ncclUint8, to,
                                             group->comms[from], ek_nccl_stream(move->from))));
    return ek_nccl_check(move->to, "receive",
                         ek_nccl()->ncclRecv(move->target, move->nbytes, ncclUint8, from,
                                             group->comms[to], ek_nccl_stream(move->to)));
}

int ek_cuda_exchange(const ek_block_move *moves, int count)
{
    ek_dev *devs[EK_MAX_DEVICES];
    nccl_call call;
    int rc = 0, n = nccl_move_devices(moves, count, devs);
    if (n == 0)
        return 0;
    EK_TRY(nccl_begin(&call, devs, n));
    for (int i = 0; i < count && rc >= 0; i++)
        if (moves[i].nbytes > 0)
            rc = nccl_issue_move(call.group, &moves[i]);
    return nccl_end(&call, rc);
}

int ek_nccl_dtype(ek_dtype dtype, ncclDataType_t *type)
{
    switch (dtype) {
    case EK_F32:
        *type = ncclFloat32;
        return 0;
    case EK_F64:
        *type = ncclFloat64;
        return 0;
    case EK_BF16:
        *type = ncclBfloat16;
        return 0;
    case EK_I64:
        *type = ncclInt64;
        return 0;
    case EK_U8:
        *type = ncclUint8;
        return 0;
    }
    return EK_FAIL(EK_E_DTYPE, "NCCL adds no %s", ek_dtype_name(dtype));
}

int ek_cuda_sum(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
                ek_dtype dtype)
{
    ncclDataType_t type = ncclFloat32;
    nccl_call call;
    int rc = 0;
    EK_TRY(ek_nccl_dtype(dtype, &type));
    EK_TRY(nccl_begin(&call, devs, count));
    for (int i = 0; i < count && rc >= 0; i++)
        rc = ek_nccl_check(devs[i], "reduce",
                           ek_nccl()->ncclReduce(data[i], i == 0 ? out : NULL, (size_t)elements,
                                                 type, ncclSum, 0, call.group->comms[i],
                                                 ek_nccl_stream(devs[i])));
    return nccl_end(&call, rc);
}

#else /* a build without NCCL's header: copies by pairs */

int ek_cuda_collective(ek_dev *const *devs, int count)
{
    int mixed = comm_choice_mixed(devs, count), choice;
    if (mixed != 0)
        return mixed < 0 ? mixed : EK_COLLECTIVE_NONE;
    EK_TRY(choice = comm_choice_parse(getenv("EVENKEEL_COMM")));
    if (choice >= COMM_NCCL)
        return EK_FAIL(EK_E_BACKEND, "EVENKEEL_COMM asks for NCCL among %s and %d more, but %s",
                       devs[0]->name, count - 1, ek_nccl_reason());
    return EK_COLLECTIVE_NONE;
}

void ek_cuda_nccl_close(ek_cuda_device *device)
{
    (void)device;
}

#endif
