/* nccl.c: collectives on the devices' compute streams.
 *
 * A communicator has one part per GPU of its list, and one call of ours issues the work of all
 * parts, inside a group and under one lock, so that parts never meet different calls. */
#include "cuda/nccl.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/between.h"
#include "cuda/comm_choice.h"
#include "cuda/nccl_group.h"

#ifdef EK_HAVE_NCCL

/* ---- the choice ---- */

/* Why NCCL cannot serve the list, as part of a sentence; false if it can. */
static bool has_obstacle(ek_dev *const *devs, int count, char why[256])
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

static int choose(ek_dev *const *devs, int count)
{
    int choice = ek_comm_choice_parse(getenv("EVENKEEL_COMM"));
    char why[256] = "EVENKEEL_COMM says so";
    EK_TRY(choice);
    bool copies = choice == EK_COMM_COPY || has_obstacle(devs, count, why);
    if (copies && choice >= EK_COMM_NCCL)
        return EK_FAIL(EK_E_BACKEND,
                       "EVENKEEL_COMM asks for NCCL among %s and %d more, but %s; unset it, or let "
                       "it be copy",
                       devs[0]->name, count - 1, why);
    if (copies)
        ek_log_line(EK_LOG_INFO, "%s and %d more communicate by copies: %s", devs[0]->name,
                    count - 1, why);
    else
        ek_log_line(EK_LOG_INFO, "%s and %d more communicate by NCCL%s", devs[0]->name, count - 1,
                    choice == EK_COMM_NCCL_SUM ? ", which also adds" : "");
    if (copies)
        return EK_COLLECTIVE_NONE;
    return choice == EK_COMM_NCCL_SUM ? EK_COLLECTIVE_SUMS : EK_COLLECTIVE_MOVES;
}

int ek_cuda_collective(ek_dev *const *devs, int count)
{
    int mixed = ek_comm_choice_mixed(devs, count);
    if (mixed != 0)
        return mixed < 0 ? mixed : EK_COLLECTIVE_NONE;
    ek_nccl_lock();
    ek_nccl_group *group = ek_nccl_group_of(devs, count);
    int collective = group ? group->collective : EK_E_NO_MEMORY;
    if (group && collective < 0) {
        collective = choose(devs, count);
        group->collective = collective < 0 ? -1 : collective;
    }
    ek_nccl_unlock();
    return collective;
}

/* ---- collectives ---- */

static cudaStream_t stream_of(const ek_dev *dev)
{
    return ek_cuda_of(dev)->compute;
}

/* Begins a group of calls: the lock is taken, and the caller's CUDA device kept. */
static int begin(ek_dev *const *devs, int count, int *restore)
{
    for (int i = 0; i < count; i++) {
        EK_TRY(ek_cuda_usable(devs[i]));
        EK_TRY(ek_cuda_fault_check(devs[i]));
    }
    EK_TRY(ek_cuda_enter(devs[0], restore));
    ek_nccl_lock();
    return 0;
}

static int end(ek_dev *dev, int restore, int rc)
{
    ek_nccl_unlock();
    ek_cuda_leave(dev, restore);
    return rc;
}

/* The calls of a group between these; a group that was started is ended also after an error. */
static int group_start(const ek_dev *dev)
{
    ek_cuda_parts_begin();
    int rc = ek_nccl_check(dev, "starting a group", ek_nccl()->ncclGroupStart());
    if (rc < 0)
        ek_cuda_parts_end();
    return rc;
}

static int group_end(ek_nccl_group *group, int rc)
{
    ncclResult_t result = ek_nccl()->ncclGroupEnd();
    ek_cuda_parts_end();
    if (rc >= 0)
        rc = ek_nccl_check(group->devs[0], "ending a group", result);
    if (rc >= 0)
        rc = ek_nccl_issued(group);
    if (rc < 0)
        ek_nccl_give_up(group);
    return rc;
}

static int issue_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes)
{
    ek_nccl_group *group = ek_nccl_group_of(devs, count);
    if (!group)
        return ek_error_pending();
    EK_TRY(ek_nccl_open(group));
    EK_TRY(group_start(devs[0]));
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        rc = ek_nccl_check(devs[i], "broadcast",
                           ek_nccl()->ncclBroadcast(data[0], data[i], nbytes, ncclUint8, 0,
                                                    group->comms[i], stream_of(devs[i])));
    return group_end(group, rc);
}

int ek_cuda_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes)
{
    int restore;
    EK_TRY(begin(devs, count, &restore));
    return end(devs[0], restore, issue_broadcast(devs, count, data, nbytes));
}

/* The devices of the moves, each once, ascending, so that an exchange among the same devices finds
 * its communicators again. */
static int parties(const ek_block_move *moves, int count, ek_dev **devs)
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

static int place_of(ek_dev *const *devs, const ek_dev *dev)
{
    int place = 0;
    while (devs[place] != dev)
        place++;
    return place;
}

static int issue_move(const ek_nccl_group *group, const ek_block_move *move)
{
    int from = place_of(group->devs, move->from), to = place_of(group->devs, move->to);
    EK_TRY(ek_nccl_check(move->from, "send",
                         ek_nccl()->ncclSend(move->source, move->nbytes, ncclUint8, to,
                                             group->comms[from], stream_of(move->from))));
    return ek_nccl_check(move->to, "receive",
                         ek_nccl()->ncclRecv(move->target, move->nbytes, ncclUint8, from,
                                             group->comms[to], stream_of(move->to)));
}

static int issue_exchange(ek_dev *const *devs, int n, const ek_block_move *moves, int count)
{
    ek_nccl_group *group = ek_nccl_group_of(devs, n);
    if (!group)
        return ek_error_pending();
    EK_TRY(ek_nccl_open(group));
    EK_TRY(group_start(devs[0]));
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        if (moves[i].nbytes > 0)
            rc = issue_move(group, &moves[i]);
    return group_end(group, rc);
}

int ek_cuda_exchange(const ek_block_move *moves, int count)
{
    ek_dev *devs[EK_MAX_DEVICES];
    int restore, n = parties(moves, count, devs);
    if (n == 0)
        return 0;
    EK_TRY(begin(devs, n, &restore));
    return end(devs[0], restore, issue_exchange(devs, n, moves, count));
}

static int nccl_dtype(ek_dtype dtype, ncclDataType_t *type)
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

static int issue_sum(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
                     ncclDataType_t type)
{
    ek_nccl_group *group = ek_nccl_group_of(devs, count);
    if (!group)
        return ek_error_pending();
    EK_TRY(ek_nccl_open(group));
    EK_TRY(group_start(devs[0]));
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        rc = ek_nccl_check(devs[i], "reduce",
                           ek_nccl()->ncclReduce(data[i], i == 0 ? out : NULL, (size_t)elements,
                                                 type, ncclSum, 0, group->comms[i],
                                                 stream_of(devs[i])));
    return group_end(group, rc);
}

int ek_cuda_sum(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
                ek_dtype dtype)
{
    ncclDataType_t type = ncclFloat32;
    int restore;
    EK_TRY(nccl_dtype(dtype, &type));
    EK_TRY(begin(devs, count, &restore));
    return end(devs[0], restore, issue_sum(devs, count, data, out, elements, type));
}

#else /* a build without NCCL's header: copies by pairs */

int ek_cuda_collective(ek_dev *const *devs, int count)
{
    int mixed = ek_comm_choice_mixed(devs, count), choice;
    if (mixed != 0)
        return mixed < 0 ? mixed : EK_COLLECTIVE_NONE;
    EK_TRY(choice = ek_comm_choice_parse(getenv("EVENKEEL_COMM")));
    if (choice >= EK_COMM_NCCL)
        return EK_FAIL(EK_E_BACKEND, "EVENKEEL_COMM asks for NCCL among %s and %d more, but %s",
                       devs[0]->name, count - 1, ek_nccl_reason());
    return EK_COLLECTIVE_NONE;
}

int ek_cuda_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes)
{
    (void)count, (void)data, (void)nbytes;
    return EK_FAIL(EK_E_BACKEND, "broadcast from %s: %s", devs[0]->name, ek_nccl_reason());
}

int ek_cuda_exchange(const ek_block_move *moves, int count)
{
    (void)count;
    return EK_FAIL(EK_E_BACKEND, "sending from %s: %s", moves[0].from->name, ek_nccl_reason());
}

int ek_cuda_sum(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
                ek_dtype dtype)
{
    (void)count, (void)data, (void)out, (void)elements, (void)dtype;
    return EK_FAIL(EK_E_BACKEND, "sum on %s: %s", devs[0]->name, ek_nccl_reason());
}

#endif
