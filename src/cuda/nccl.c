/* nccl.c: communicators by list of devices, and collectives on the devices' compute streams.
 *
 * A communicator has one part per GPU of its list, and one call of ours issues the work of all
 * parts, inside a group and under one lock, so that parts never meet different calls. */
#include "cuda/nccl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/between.h"
#include "cuda/comm_choice.h"
#include "cuda/nccl_api.h"

#ifdef EK_HAVE_NCCL

enum { GROUPS = 32 };
enum { PATIENCE = 10000 }; /* milliseconds, and queries */

/* The communicators of one list of devices, in its order. */
typedef struct comm_group {
    int count;
    int collective; /* ek_collective, decided and logged */
    ek_dev *devs[EK_MAX_DEVICES];
    ncclComm_t comms[EK_MAX_DEVICES];
    bool open;
    uint64_t used; /* the oldest makes room */
} comm_group;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below, and NCCL's calls */
static comm_group *groups[GROUPS];
static uint64_t uses;

static int check(const ek_dev *dev, const char *call, ncclResult_t result)
{
    if (result == ncclSuccess)
        return 0;
    return EK_FAIL(EK_E_BACKEND, "NCCL: %s on %s: %s", call, dev->name,
                   ek_nccl()->ncclGetErrorString(result));
}

/* ---- communicators: `lock` is held ---- */

static void close_group(comm_group *group)
{
    for (int i = 0; i < group->count && group->open; i++)
        ek_nccl()->ncclCommDestroy(group->comms[i]);
    group->open = false;
}

static bool is_list(const comm_group *group, ek_dev *const *devs, int count)
{
    return group && group->count == count &&
           memcmp(group->devs, devs, (size_t)count * sizeof *devs) == 0;
}

/* The entry of a list, made where there is none; NULL without memory. */
static comm_group *group_of(ek_dev *const *devs, int count)
{
    int at = 0;
    for (int i = 0; i < GROUPS; i++) {
        if (is_list(groups[i], devs, count)) {
            groups[i]->used = ++uses;
            return groups[i];
        }
        if (!groups[i] || (groups[at] && groups[i]->used < groups[at]->used))
            at = i;
    }
    comm_group *group = ek_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    if (groups[at])
        close_group(groups[at]);
    free(groups[at]);
    group->count = count;
    group->collective = -1;
    group->used = ++uses;
    memcpy(group->devs, devs, (size_t)count * sizeof *devs);
    return groups[at] = group;
}

static int open_group(comm_group *group)
{
    int gpus[EK_MAX_DEVICES], restore;
    if (group->open)
        return 0;
    for (int i = 0; i < group->count; i++)
        gpus[i] = ek_cuda_of(group->devs[i])->physical;
    EK_TRY(ek_cuda_enter(group->devs[0], &restore)); /* NCCL changes the current device */
    int rc = check(group->devs[0], "making communicators",
                   ek_nccl()->ncclCommInitAll(group->comms, group->count, gpus));
    ek_cuda_leave(group->devs[0], restore);
    group->open = rc == 0;
    return rc;
}

/* ---- the choice ---- */

/* NULL where NCCL can serve the list, else why not. */
static const char *obstacle(ek_dev *const *devs, int count)
{
    for (int i = 0; i < count; i++)
        for (int other = 0; other < i; other++)
            if (ek_cuda_of(devs[i])->physical == ek_cuda_of(devs[other])->physical)
                return "two of the devices are on one GPU, which NCCL refuses";
    return ek_nccl() ? NULL : ek_nccl_reason();
}

static int choose(ek_dev *const *devs, int count)
{
    int choice = ek_comm_choice_parse(getenv("EVENKEEL_COMM"));
    const char *why = choice == EK_COMM_COPY ? "EVENKEEL_COMM says so" : obstacle(devs, count);
    EK_TRY(choice);
    if (why && choice >= EK_COMM_NCCL)
        return EK_FAIL(EK_E_BACKEND, "EVENKEEL_COMM asks for NCCL among %s and %d more, but %s",
                       devs[0]->name, count - 1, why);
    if (why)
        ek_log_line(EK_LOG_INFO, "%s and %d more communicate by copies: %s", devs[0]->name,
                    count - 1, why);
    else
        ek_log_line(EK_LOG_INFO, "%s and %d more communicate by NCCL%s", devs[0]->name, count - 1,
                    choice == EK_COMM_NCCL_SUM ? ", which also adds" : "");
    if (why)
        return EK_COLLECTIVE_NONE;
    return choice == EK_COMM_NCCL_SUM ? EK_COLLECTIVE_SUMS : EK_COLLECTIVE_MOVES;
}

int ek_cuda_collective(ek_dev *const *devs, int count)
{
    pthread_mutex_lock(&lock);
    comm_group *group = group_of(devs, count);
    int collective = group ? group->collective : EK_E_NO_MEMORY;
    if (group && collective < 0) {
        collective = choose(devs, count);
        group->collective = collective < 0 ? -1 : collective;
    }
    pthread_mutex_unlock(&lock);
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
    for (int i = 0; i < count; i++)
        EK_TRY(ek_cuda_usable(devs[i]));
    EK_TRY(ek_cuda_enter(devs[0], restore));
    pthread_mutex_lock(&lock);
    return 0;
}

static int end(ek_dev *dev, int restore, int rc)
{
    pthread_mutex_unlock(&lock);
    ek_cuda_leave(dev, restore);
    return rc;
}

/* The calls of a group between these; a group that was started is ended also after an error. */
static int group_start(const ek_dev *dev)
{
    ek_cuda_parts_begin();
    int rc = check(dev, "starting a group", ek_nccl()->ncclGroupStart());
    if (rc < 0)
        ek_cuda_parts_end();
    return rc;
}

/* After an error a group's parts may run on some of the devices and wait for the others for ever,
 * and nobody says what became of its communicators: they go, and the next call makes new ones. Work
 * that was issued before is given the time to end. */
static void give_up(comm_group *group)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0, waited = 0; i < group->count && waited < PATIENCE; waited++) {
        if (cudaStreamQuery(stream_of(group->devs[i])) != cudaErrorNotReady)
            i++;
        else
            nanosleep(&moment, NULL);
    }
    (void)cudaGetLastError();
    for (int i = 0; i < group->count; i++)
        (void)ek_nccl()->ncclCommAbort(group->comms[i]);
    group->open = false;
}

static int group_end(comm_group *group, int rc)
{
    ncclResult_t result = ek_nccl()->ncclGroupEnd();
    ek_cuda_parts_end();
    if (rc >= 0)
        rc = check(group->devs[0], "ending a group", result);
    if (rc < 0)
        give_up(group);
    return rc;
}

static int issue_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes)
{
    comm_group *group = group_of(devs, count);
    if (!group)
        return ek_error_pending();
    EK_TRY(open_group(group));
    EK_TRY(group_start(devs[0]));
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        rc = check(devs[i], "broadcast",
                   ek_nccl()->ncclBroadcast(data[0], data[i], nbytes, ncclUint8, 0, group->comms[i],
                                            stream_of(devs[i])));
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
static int parties(const ek_move *moves, int count, ek_dev **devs)
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

static int issue_move(const comm_group *group, const ek_move *move)
{
    int from = place_of(group->devs, move->from), to = place_of(group->devs, move->to);
    EK_TRY(check(move->from, "send",
                 ek_nccl()->ncclSend(move->source, move->nbytes, ncclUint8, to, group->comms[from],
                                     stream_of(move->from))));
    return check(move->to, "receive",
                 ek_nccl()->ncclRecv(move->target, move->nbytes, ncclUint8, from, group->comms[to],
                                     stream_of(move->to)));
}

static int issue_exchange(ek_dev *const *devs, int n, const ek_move *moves, int count)
{
    comm_group *group = group_of(devs, n);
    if (!group)
        return ek_error_pending();
    EK_TRY(open_group(group));
    EK_TRY(group_start(devs[0]));
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        if (moves[i].nbytes > 0)
            rc = issue_move(group, &moves[i]);
    return group_end(group, rc);
}

int ek_cuda_exchange(const ek_move *moves, int count)
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
    comm_group *group = group_of(devs, count);
    if (!group)
        return ek_error_pending();
    EK_TRY(open_group(group));
    EK_TRY(group_start(devs[0]));
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        rc = check(devs[i], "reduce",
                   ek_nccl()->ncclReduce(data[i], i == 0 ? out : NULL, (size_t)elements, type,
                                         ncclSum, 0, group->comms[i], stream_of(devs[i])));
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

void ek_cuda_nccl_close(ek_cuda_device *device)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < GROUPS; i++) {
        bool has = false;
        for (int k = 0; groups[i] && k < groups[i]->count; k++)
            has = has || groups[i]->devs[k] == device->dev;
        if (!has)
            continue;
        close_group(groups[i]);
        free(groups[i]);
        groups[i] = NULL;
    }
    pthread_mutex_unlock(&lock);
}

#else /* a build without NCCL's header: copies by pairs */

int ek_cuda_collective(ek_dev *const *devs, int count)
{
    int choice = ek_comm_choice_parse(getenv("EVENKEEL_COMM"));
    EK_TRY(choice);
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

int ek_cuda_exchange(const ek_move *moves, int count)
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

void ek_cuda_nccl_close(ek_cuda_device *device)
{
    (void)device;
}

#endif
