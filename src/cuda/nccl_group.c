/* nccl_group.c: see nccl.h. */
#include "cuda/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/memory.h"
#include "cuda/stream.h"

#ifdef EK_HAVE_NCCL

enum { GROUPS = 32 };
enum { PATIENCE = 10000 }; /* most milliseconds in which earlier work may end */

static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER; /* guards this file's state */
static ek_nccl_group *groups[GROUPS];
static uint64_t uses;
static int open_groups;

int ek_nccl_check(const ek_dev *dev, const char *call, ncclResult_t result)
{
    if (result == ncclSuccess)
        return 0;
    return EK_FAIL(EK_E_BACKEND, "NCCL: %s on %s: %s", call, dev->name,
                   ek_nccl()->ncclGetErrorString(result));
}

/* ---- whether a group is broken ---- */

/* Returns true if the device is lost. Queries its stream, because no other call may have noticed
 * the loss. */
static bool group_is_lost(ek_dev *dev)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    int restore;
    if (ek_cuda_is_lost(dev))
        return true;
    int error = ek_cuda_guard_enter(device->physical, &restore);
    if (error == 0) {
        error = (int)cudaStreamQuery(device->compute);
        (void)ek_cuda_guard_leave(device->physical, restore);
    }
    ek_cuda_note(dev, "its part in a collective", error == cudaErrorNotReady ? 0 : error);
    (void)cudaGetLastError(); /* clears "not ready", which is no error */
    return ek_cuda_is_lost(dev);
}

/* Returns true if the group is unusable, with the reason as part of a sentence. */
static bool group_is_broken(ek_nccl_group *group, char reason[256])
{
    for (int i = 0; i < group->count; i++)
        if (group_is_lost(group->devs[i])) {
            ek_cuda_lost_text(group->devs[i], reason);
            return true;
        }
    for (int i = 0; i < group->count; i++) {
        ncclResult_t late = ncclSuccess, asked;
        if (!group->comms[i]) /* aborted already (nccl_launch.c) */
            continue;
        asked = ek_nccl()->ncclCommGetAsyncError(group->comms[i], &late);
        if (asked != ncclSuccess)
            late = asked;
        if (late != ncclSuccess && late != ncclInProgress) {
            snprintf(reason, 256, "NCCL reports on %s: %s", group->devs[i]->name,
                     ek_nccl()->ncclGetErrorString(late));
            return true;
        }
    }
    return false;
}

/* ---- the end of communicators ---- */

static void group_watch_all(void);

/* Counts open groups. While there are open groups, waits of the host check them. groups_lock is
 * held. */
static void group_count_open(int change)
{
    open_groups += change;
    ek_cuda_wait_watched(open_groups > 0 ? group_watch_all : NULL);
}

/* Makes a GPU of the group that isn't lost current, and returns its number; -1 if all are lost.
 * NCCL restores the GPU that was current before its call, and would make a context on GPU 0 for a
 * thread without a context. */
static int group_enter_one(const ek_nccl_group *group, int *restore)
{
    int at = 0;
    while (at < group->count - 1 && ek_cuda_is_lost(group->devs[at]))
        at++;
    int physical = ek_cuda_of(group->devs[at])->physical;
    return ek_cuda_guard_enter(physical, restore) == 0 ? physical : -1;
}

static void group_leave_one(int physical, int restore)
{
    if (physical >= 0)
        (void)ek_cuda_guard_leave(physical, restore);
    (void)cudaGetLastError();
}

/* Ends the group's communicators by `end` (NULL if there are none yet), and frees its events. */
static void group_end_all(ek_nccl_group *group, __typeof__(ncclCommAbort) *end)
{
    int restore, physical = group_enter_one(group, &restore);
    for (int i = 0; i < group->count; i++) {
        if (end && group->comms[i]) /* a rank may be aborted already (nccl_launch.c) */
            (void)end(group->comms[i]);
        if (group->ended[i])
            cudaEventDestroy(group->ended[i]);
        group->ended[i] = NULL;
    }
    group_leave_one(physical, restore);
    if (group->open)
        group_count_open(-1);
    group->open = false;
}

/* Writes the devices that are not lost: "cuda:0, cuda:1 and 2 more". */
static void group_name_rest(const ek_nccl_group *group, char text[128])
{
    size_t used = 0;
    int more = 0;
    text[0] = '\0';
    for (int i = 0; i < group->count; i++) {
        if (ek_cuda_is_lost(group->devs[i]))
            continue;
        if (used < 80)
            used += (size_t)snprintf(text + used, 128 - used, "%s%s", used ? ", " : "",
                                     group->devs[i]->name);
        else
            more++;
    }
    if (more)
        snprintf(text + used, 128 - used, " and %d more", more);
}

/* Aborts the group. If there is a reason, devices whose rank had not ended get it as the error of
 * their next call. */
static void group_abort(ek_nccl_group *group, const char *reason)
{
    bool missing[EK_MAX_DEVICES] = {false};
    char rest[128], sentence[640];
    for (int i = 0; i < group->count; i++)
        missing[i] = reason && !ek_cuda_is_lost(group->devs[i]) &&
                     cudaEventQuery(group->ended[i]) == cudaErrorNotReady;
    (void)cudaGetLastError();
    group_name_rest(group, rest);
    for (int i = 0; i < group->count; i++) {
        if (!missing[i])
            continue;
        snprintf(sentence, sizeof sentence,
                 "a collective of %d devices was given up on %s, and what it should have brought "
                 "there is missing: %s; %s can be used as before, in a new data-parallel module "
                 "for example",
                 group->count, group->devs[i]->name, reason, rest[0] ? rest : "no device of them");
        ek_cuda_tell(ek_cuda_of(group->devs[i]), sentence);
    }
    group_end_all(group, ek_nccl()->ncclCommAbort);
}

/* Aborts all broken groups that no section uses. groups_lock is held. */
static void group_look_after_all(void)
{
    char reason[256];
    for (int i = 0; i < GROUPS; i++)
        if (groups[i] && groups[i]->open && !groups[i]->busy && group_is_broken(groups[i], reason))
            group_abort(groups[i], reason);
}

static void group_watch_all(void)
{
    /* The thread that holds groups_lock checks all groups whenever it waits. */
    if (pthread_mutex_trylock(&groups_lock) != 0)
        return;
    group_look_after_all();
    pthread_mutex_unlock(&groups_lock);
}

/* Waits until the group's collectives are complete, and with them earlier ones of other groups on
 * its devices. Returns false if the group was aborted meanwhile. */
static bool group_has_ended(const ek_nccl_group *group)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < group->count && group->open;) {
        if (cudaEventQuery(group->ended[i]) != cudaErrorNotReady) {
            i++;
            continue;
        }
        group_look_after_all();
        nanosleep(&moment, NULL);
    }
    (void)cudaGetLastError();
    return group->open;
}

static void group_close(ek_nccl_group *group)
{
    group_look_after_all(); /* a communicator that has lost a member must be aborted */
    if (!group->open)
        return;
    int restore, physical = group_enter_one(group, &restore);
    if (group_has_ended(group))
        group_end_all(group, ek_nccl()->ncclCommDestroy);
    group_leave_one(physical, restore);
}

/* Aborts a group after an error in its section, in which some ranks may be launched and wait for
 * others. Earlier collectives, after which the events were recorded, get time to end. */
static void group_give_up(ek_nccl_group *group)
{
    const struct timespec moment = {0, 1000000};
    char reason[256];
    bool broken = group_is_broken(group, reason);
    for (int i = 0, waited = 0; i < group->count && waited < PATIENCE && !broken; waited++) {
        if (cudaEventQuery(group->ended[i]) != cudaErrorNotReady) {
            i++;
        } else {
            nanosleep(&moment, NULL);
            broken = waited % 8 == 7 && group_is_broken(group, reason);
        }
    }
    (void)cudaGetLastError();
    pthread_mutex_lock(&groups_lock);
    group_abort(group, broken ? reason : NULL);
    pthread_mutex_unlock(&groups_lock);
}

/* ---- making groups and their communicators ---- */

static bool group_is_list(const ek_nccl_group *group, ek_dev *const *devs, int count)
{
    return group && group->count == count &&
           memcmp(group->devs, devs, (size_t)count * sizeof *devs) == 0;
}

/* Returns the group of a list, which is made if necessary; NULL with an error. groups_lock is held.
 */
static ek_nccl_group *group_of(ek_dev *const *devs, int count)
{
    int at = -1;
    for (int i = 0; i < GROUPS; i++) {
        if (group_is_list(groups[i], devs, count)) {
            groups[i]->used = ++uses;
            return groups[i];
        }
        uint64_t oldest = at < 0 ? UINT64_MAX : groups[at] ? groups[at]->used : 0;
        if (!groups[i] || (!groups[i]->busy && groups[i]->used < oldest))
            at = i;
    }
    if (at < 0) {
        (void)EK_FAIL(EK_E_BACKEND,
                      "%d lists of devices are in the midst of collectives; %s and %d more have to "
                      "wait until one of them has ended",
                      GROUPS, devs[0]->name, count - 1);
        return NULL;
    }
    ek_nccl_group *group = ek_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    if (groups[at])
        group_close(groups[at]);
    free(groups[at]);
    group->count = count;
    group->collective = -1;
    group->used = ++uses;
    memcpy(group->devs, devs, (size_t)count * sizeof *devs);
    return groups[at] = group;
}

int ek_nccl_collective(ek_dev *const *devs, int count, int (*choose)(ek_dev *const *, int))
{
    pthread_mutex_lock(&groups_lock);
    ek_nccl_group *group = group_of(devs, count);
    int collective = group ? group->collective : ek_error_pending();
    if (group && collective < 0) {
        collective = choose(devs, count);
        group->collective = collective < 0 ? -1 : collective;
    }
    pthread_mutex_unlock(&groups_lock);
    return collective;
}

/* Makes an event with the device's GPU current, to which the event then belongs. */
static int group_make_event(ek_dev *dev, cudaEvent_t *event)
{
    int restore;
    EK_TRY(ek_cuda_enter(dev, &restore));
    int rc = ek_cuda_make_event(dev, event);
    ek_cuda_leave(dev, restore);
    return rc;
}

/* Makes the communicators of a busy group. This may take seconds and doesn't block other groups. */
static int group_open(ek_nccl_group *group)
{
    int gpus[EK_MAX_DEVICES], restore, rc = 0;
    /* A device may have been lost while this thread waited for the section. */
    for (int i = 0; i < group->count; i++)
        EK_TRY(ek_cuda_usable(group->devs[i]));
    for (int i = 0; i < group->count && rc >= 0; i++) {
        gpus[i] = ek_cuda_of(group->devs[i])->physical;
        rc = group_make_event(group->devs[i], &group->ended[i]);
    }
    if (rc >= 0)
        rc = ek_cuda_enter(group->devs[0], &restore); /* NCCL changes the current GPU */
    if (rc >= 0) {
        rc = ek_nccl_check(group->devs[0], "making communicators",
                           ek_nccl()->ncclCommInitAll(group->comms, group->count, gpus));
        ek_cuda_leave(group->devs[0], restore);
    }
    pthread_mutex_lock(&groups_lock);
    if (rc < 0) {
        group_end_all(group, NULL);
    } else {
        group->open = true;
        group_count_open(1);
    }
    pthread_mutex_unlock(&groups_lock);
    for (int i = 0; i < group->count && rc >= 0; i++)
        ek_cuda_memory_measure(group->devs[i]);
    return rc;
}

static void group_set_busy(ek_nccl_group *group, bool busy)
{
    pthread_mutex_lock(&groups_lock);
    group->busy = busy;
    pthread_mutex_unlock(&groups_lock);
}

ek_nccl_group *ek_nccl_take(ek_dev *const *devs, int count)
{
    pthread_mutex_lock(&groups_lock);
    ek_nccl_group *group = group_of(devs, count);
    bool open = group && group->open;
    if (group)
        group->busy = true;
    pthread_mutex_unlock(&groups_lock);
    if (!group || open || group_open(group) >= 0)
        return group;
    group_set_busy(group, false);
    return NULL;
}

int ek_nccl_give(ek_nccl_group *group, int rc)
{
    for (int i = 0; i < group->count && rc >= 0; i++)
        rc = ek_cuda_record(group->devs[i], group->ended[i], ek_nccl_stream(group->devs[i]));
    if (rc < 0)
        group_give_up(group);
    group_set_busy(group, false);
    return rc;
}

void ek_cuda_nccl_close(ek_cuda_device *device)
{
    ek_nccl_launcher_close(device);
    pthread_mutex_lock(&groups_lock);
    for (int i = 0; i < GROUPS; i++) {
        bool has = false;
        for (int k = 0; groups[i] && k < groups[i]->count; k++)
            has = has || groups[i]->devs[k] == device->dev;
        if (!has)
            continue;
        group_close(groups[i]);
        free(groups[i]);
        groups[i] = NULL;
    }
    pthread_mutex_unlock(&groups_lock);
}

#endif
