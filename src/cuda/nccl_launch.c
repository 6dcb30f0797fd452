/* nccl_launch.c: launches the ranks of a collective, each on a thread of its device.
 *
 * The section in which a collective is issued (core/lane.h) holds all its devices. So a device's
 * launcher has one rank at a time, and all launchers have one order of collectives. The calling
 * thread launches one rank: that of its own device if it is a device's worker, else the first. It
 * also launches the ranks of devices without a launcher. A launcher waits only for NCCL, never for
 * another launcher. */
#include "cuda/nccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef EK_HAVE_NCCL

enum { PATIENCE = 10 }; /* seconds in which other ranks must return after one has failed */

typedef struct launch {
    ek_nccl_group *group;
    const ek_nccl_step *steps;
    int count;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    bool begun[EK_MAX_DEVICES];    /* the rank's communicator may be in use */
    bool returned[EK_MAX_DEVICES]; /* the rank's steps are issued, or one has failed */
    bool aborted[EK_MAX_DEVICES];  /* the rank's communicator is no more */
    bool given_up;                 /* ranks that have not begun will not begin */
    int waiting;                   /* ranks that have not returned */
    int busy;                      /* launchers that still use this struct */
    int failed;                    /* the first rank that failed; the group's count if none has */
    ek_error_record error;         /* the error of that rank */
} launch;

struct ek_cuda_launcher {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t wake;
    launch *launch; /* NULL: nothing to do */
    int rank;
    bool ends;
};

static int launch_calls(const launch *l, const ek_nccl_step *step, const bool *ranks)
{
    ek_nccl_group *group = l->group;
    int rc = 0;
    for (int i = 0; i < group->count && rc >= 0; i++) {
        int restore;
        if (!ranks[i])
            continue;
        rc = ek_cuda_enter(group->devs[i], &restore);
        if (rc < 0)
            break;
        rc = step->calls(group, i, step->user);
        ek_cuda_leave(group->devs[i], restore);
    }
    return rc;
}

/* Waits for the other ranks for a limited time, and aborts those that don't return because they
 * wait for a failed rank. Ranks that haven't begun by then never begin. l->lock is held. */
static void launch_free_others(launch *l)
{
    ncclComm_t stuck[EK_MAX_DEVICES];
    struct timespec end;
    int count = 0, expired = 0;
    clock_gettime(CLOCK_MONOTONIC, &end); /* the clock of `changed` */
    end.tv_sec += PATIENCE;
    while (l->waiting > 0 && expired != ETIMEDOUT)
        expired = pthread_cond_timedwait(&l->changed, &l->lock, &end);
    l->given_up = l->given_up || l->waiting > 0;
    for (int i = 0; i < l->group->count; i++) {
        if (!l->begun[i] || l->returned[i] || l->aborted[i])
            continue;
        stuck[count++] = l->group->comms[i];
        l->aborted[i] = true;
    }
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < count; i++)
        (void)ek_nccl()->ncclCommAbort(stuck[i]);
    pthread_mutex_lock(&l->lock);
}

/* Marks these ranks as begun. Returns false if the collective was given up before. */
static bool launch_begin(launch *l, const bool *ranks)
{
    pthread_mutex_lock(&l->lock);
    bool begins = !l->given_up;
    for (int i = 0; i < l->group->count; i++)
        l->begun[i] = l->begun[i] || (begins && ranks[i]);
    pthread_mutex_unlock(&l->lock);
    return begins;
}

/* Issues a step of these ranks; `dev` is the device of one of them. */
static int launch_step(const launch *l, const ek_nccl_step *step, const bool *ranks, ek_dev *dev)
{
    if (step->works)
        return launch_calls(l, step, ranks);
    EK_TRY(ek_nccl_check(dev, "starting a group", ek_nccl()->ncclGroupStart()));
    int rc = launch_calls(l, step, ranks);
    ncclResult_t result = ek_nccl()->ncclGroupEnd();
    return rc < 0 ? rc : ek_nccl_check(dev, "ending a group", result);
}

/* Issues all steps of these ranks. */
static void launch_ranks(launch *l, const bool *ranks)
{
    int first = 0;
    while (!ranks[first])
        first++;
    ek_dev *dev = l->group->devs[first];
    /* NCCL ends a group on the current GPU, which must not be a lost one. */
    bool begins = launch_begin(l, ranks);
    int restore, rc = begins ? ek_cuda_enter(dev, &restore) : 0;
    if (begins && rc >= 0) {
        for (int i = 0; i < l->count && rc >= 0; i++)
            rc = launch_step(l, &l->steps[i], ranks, dev);
        ek_cuda_leave(dev, restore);
    }
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < l->group->count; i++) {
        l->waiting -= ranks[i];
        l->returned[i] = l->returned[i] || ranks[i];
    }
    pthread_cond_broadcast(&l->changed);
    if (rc < 0) {
        ek_error_record error;
        ek_error_take(&error);
        if (first < l->failed)
            l->error = error;
        l->failed = first < l->failed ? first : l->failed;
        launch_free_others(l);
    }
    pthread_mutex_unlock(&l->lock);
}

/* ---- launchers ---- */

static void *launcher_main(void *user)
{
    ek_cuda_launcher *launcher = user;
    ek_thread_self()->modes.stream = EK_STREAM_EXCHANGE;
    for (;;) {
        pthread_mutex_lock(&launcher->lock);
        while (!launcher->launch && !launcher->ends)
            pthread_cond_wait(&launcher->wake, &launcher->lock);
        launch *l = launcher->launch;
        launcher->launch = NULL;
        int rank = launcher->rank;
        pthread_mutex_unlock(&launcher->lock);
        if (!l)
            return NULL;
        bool ranks[EK_MAX_DEVICES] = {false};
        ranks[rank] = true;
        launch_ranks(l, ranks);
        /* The launch lies on the caller's stack, so that this thread last uses it under its lock.
         */
        pthread_mutex_lock(&l->lock);
        l->busy--;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
}

/* Returns the device's launcher, which starts with its first use; NULL if it can't start. */
static ek_cuda_launcher *launcher_of(ek_dev *dev)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    if (device->launcher)
        return device->launcher;
    ek_cuda_launcher *launcher = calloc(1, sizeof *launcher);
    if (!launcher)
        return NULL;
    pthread_mutex_init(&launcher->lock, NULL);
    pthread_cond_init(&launcher->wake, NULL);
    if (pthread_create(&launcher->thread, NULL, launcher_main, launcher) != 0) {
        pthread_cond_destroy(&launcher->wake);
        pthread_mutex_destroy(&launcher->lock);
        free(launcher);
        return NULL;
    }
    char name[16];
    snprintf(name, sizeof name, "ek-nccl-%.7s", dev->name + 5); /* without "cuda:" */
    pthread_setname_np(launcher->thread, name);
    return device->launcher = launcher;
}

void ek_nccl_launcher_close(ek_cuda_device *device)
{
    ek_cuda_launcher *launcher = device->launcher;
    if (!launcher)
        return;
    pthread_mutex_lock(&launcher->lock);
    launcher->ends = true;
    pthread_cond_signal(&launcher->wake);
    pthread_mutex_unlock(&launcher->lock);
    pthread_join(launcher->thread, NULL);
    pthread_cond_destroy(&launcher->wake);
    pthread_mutex_destroy(&launcher->lock);
    free(launcher);
    device->launcher = NULL;
}

static bool launch_give(launch *l, int rank)
{
    ek_cuda_launcher *launcher = launcher_of(l->group->devs[rank]);
    if (!launcher)
        return false;
    pthread_mutex_lock(&l->lock);
    l->busy++;
    pthread_mutex_unlock(&l->lock);
    pthread_mutex_lock(&launcher->lock);
    launcher->launch = l;
    launcher->rank = rank;
    pthread_cond_signal(&launcher->wake);
    pthread_mutex_unlock(&launcher->lock);
    return true;
}

int ek_nccl_launch(ek_nccl_group *group, const ek_nccl_step *steps, int count)
{
    launch l = {.group = group,
                .steps = steps,
                .count = count,
                .waiting = group->count,
                .failed = group->count};
    bool here[EK_MAX_DEVICES] = {false};
    ek_error_record before; /* an earlier error stays the pending error */
    pthread_condattr_t steady;
    int own = 0;
    for (int i = 0; i < group->count; i++)
        if (ek_thread_self()->own_device == group->devs[i])
            own = i;
    pthread_mutex_init(&l.lock, NULL);
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&l.changed, &steady);
    pthread_condattr_destroy(&steady);
    ek_error_take(&before);
    for (int i = 0; i < group->count; i++)
        here[i] = i == own || !launch_give(&l, i); /* without a launcher the caller does */
    launch_ranks(&l, here);
    pthread_mutex_lock(&l.lock);
    while (l.busy > 0)
        pthread_cond_wait(&l.changed, &l.lock);
    pthread_mutex_unlock(&l.lock);
    pthread_cond_destroy(&l.changed);
    pthread_mutex_destroy(&l.lock);
    for (int i = 0; i < group->count; i++)
        if (l.aborted[i])
            group->comms[i] = NULL;
    bool failed = l.failed < group->count;
    ek_error_raise(before.status ? &before : &l.error);
    return failed ? l.error.status : 0;
}

#endif
