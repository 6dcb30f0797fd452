/* nccl.c: collectives on the devices' exchange streams.
 *
 * A communicator has one rank per GPU of its list. One call issues the work of all ranks within one
 * section (core/lane.h). So all devices have one order of collectives, even of different lists, and
 * ranks never wait for each other in different calls. */
#include "cuda/nccl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/lane.h"
#include "cuda/stream.h"

/* ---- the choice: EVENKEEL_COMM ---- */

typedef enum comm_choice {
    COMM_AUTO, /* unset or empty */
    COMM_COPY,
    COMM_NCCL,
    COMM_NCCL_SUM
} comm_choice;

/* Returns the choice that a word names; NULL means unset. EK_E_INVALID for unknown words. */
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

/* Returns 1 if a device of the list is no GPU: the list then uses copies, which is logged once.
 * Returns 0 if all are GPUs, negative if EVENKEEL_COMM has an unknown word. */
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

/* Returns true if NCCL can't serve the list, with the reason as part of a sentence in `why`. */
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
    return ek_nccl_collective(devs, count, nccl_choose);
}

/* ---- collectives ---- */

/* Issues steps among a list of devices. */
static int nccl_issue(ek_dev *const *devs, int count, const ek_nccl_step *steps, int step_count)
{
    ek_section section;
    int restore, rc;
    for (int i = 0; i < count; i++) {
        EK_TRY(ek_cuda_usable(devs[i]));
        EK_TRY(ek_cuda_fault_check(devs[i]));
    }
    EK_TRY(ek_cuda_enter(devs[0], &restore));
    ek_section_begin(&section, devs, count, false);
    ek_nccl_group *group = ek_nccl_take(devs, count);
    if (group) {
        ek_cuda_launch_begin();
        rc = ek_nccl_launch(group, steps, step_count);
        ek_cuda_launch_end();
        rc = ek_nccl_give(group, rc);
    } else {
        rc = ek_error_pending();
    }
    ek_section_end(&section);
    ek_cuda_leave(devs[0], restore);
    return rc;
}

static int nccl_call_broadcast(const ek_nccl_group *group, int rank, const void *user)
{
    const ek_exchange_step *step = user;
    ek_dev *dev = group->devs[rank];
    return ek_nccl_check(dev, "broadcast",
                         ek_nccl()->ncclBroadcast(step->data[0], step->data[rank], step->nbytes,
                                                  ncclUint8, 0, group->comms[rank],
                                                  ek_nccl_stream(dev)));
}

static int nccl_rank_of(ek_dev *const *devs, const ek_dev *dev)
{
    int rank = 0;
    while (devs[rank] != dev)
        rank++;
    return rank;
}

/* Issues a rank's sends and receives in the order of the moves, which is the order of all ranks. */
static int nccl_call_moves(const ek_nccl_group *group, int rank, const void *user)
{
    const ek_exchange_step *step = user;
    ek_dev *dev = group->devs[rank];
    for (int i = 0; i < step->count; i++) {
        const ek_block_move *move = &step->moves[i];
        if (move->nbytes > 0 && move->from == dev)
            EK_TRY(ek_nccl_check(dev, "send",
                                 ek_nccl()->ncclSend(move->source, move->nbytes, ncclUint8,
                                                     nccl_rank_of(group->devs, move->to),
                                                     group->comms[rank], ek_nccl_stream(dev))));
        if (move->nbytes > 0 && move->to == dev)
            EK_TRY(ek_nccl_check(dev, "receive",
                                 ek_nccl()->ncclRecv(move->target, move->nbytes, ncclUint8,
                                                     nccl_rank_of(group->devs, move->from),
                                                     group->comms[rank], ek_nccl_stream(dev))));
    }
    return 0;
}

ncclDataType_t ek_nccl_dtype(ek_dtype dtype)
{
    static const ncclDataType_t types[EK_DTYPES] = {
        [EK_F32] = ncclFloat32, [EK_F64] = ncclFloat64, [EK_BF16] = ncclBfloat16,
        [EK_I64] = ncclInt64,   [EK_U8] = ncclUint8,    [EK_F16] = ncclFloat16,
        [EK_I32] = ncclInt32,   [EK_BOOL] = ncclUint8};
    return types[dtype];
}

static int nccl_call_sum(const ek_nccl_group *group, int rank, const void *user)
{
    const ek_block_sum *sum = ((const ek_exchange_step *)user)->sum;
    ek_dev *dev = group->devs[rank];
    return ek_nccl_check(dev, "reduce",
                         ek_nccl()->ncclReduce(sum->data[rank], rank == sum->root ? sum->out : NULL,
                                               (size_t)sum->elements, ek_nccl_dtype(sum->dtype),
                                               sum->dtype == EK_BOOL ? ncclMax : ncclSum, sum->root,
                                               group->comms[rank], ek_nccl_stream(dev)));
}

static int nccl_call_work(const ek_nccl_group *group, int rank, const void *user)
{
    const ek_exchange_step *step = user;
    return step->work(step->user, group->devs[rank]);
}

int ek_cuda_exchange(ek_dev *const *devs, int count, const ek_exchange_step *steps, int step_count)
{
    ek_nccl_step *own = ek_calloc((size_t)step_count, sizeof *own);
    if (!own)
        return ek_error_pending();
    for (int i = 0; i < step_count; i++)
        own[i] = (ek_nccl_step){steps[i].work   ? nccl_call_work
                                : steps[i].sum  ? nccl_call_sum
                                : steps[i].data ? nccl_call_broadcast
                                                : nccl_call_moves,
                                &steps[i], steps[i].work != NULL};
    int rc = nccl_issue(devs, count, own, step_count);
    free(own);
    return rc;
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
