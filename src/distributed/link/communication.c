/* communication.c: see communication.h. */
#include "link/communication.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "comm/exchange.h"
#include "core/clock.h"
#include "core/thread.h"
#include "core/trace.h"
#include "link/packet.h"

/* Seconds that other ranks have to end too: if this program ends without ek_shutdown, and if a call
 * has timed out. */
static const double leave_grace = 1.0, leave_grace_of_lost = 0.5;

/* Microseconds that the rank on which the last failure began has to print the error and to end the
 * job. */
enum { PRINT_GRACE = 500000 };

/* ---- the communication thread ---- */

/* Naps between rounds of the thread's loop without progress, in microseconds. While works are under
 * way, naps are short and grow. If a thread waits for a work, that thread's core is free, and the
 * first NAP_AFTER rounds have no naps. While there are no works, naps are long, because all other
 * threads compute. */
enum { NAP_AFTER = 200, NAP_SHORTEST = 50, NAP_LONGEST = 500, NAP_IDLE = 5000 }; /* rounds; us */

static bool communication_is_busy(const ek_communication *communication)
{
    if (communication->failing)
        return true;
    for (ek_process_group *group = communication->groups; group; group = group->next)
        if ((group->agreement && !ek_process_group_is_given_up(group)) ||
            (group->first && !group->first->awaits_caller))
            return true;
    return ek_messages_are_open(communication);
}

/* Sleeps, after `turns` rounds without progress, unless something was submitted or woke the
 * thread. */
static void communication_nap(ek_communication *communication, int turns)
{
    bool busy = communication_is_busy(communication);
    pthread_mutex_lock(&communication->lock);
    if (communication->waiting > 0)
        turns -= NAP_AFTER;
    int nap = NAP_SHORTEST + turns < NAP_LONGEST ? NAP_SHORTEST + turns : NAP_LONGEST;
    const int idle = communication->serving > 0 ? NAP_LONGEST : NAP_IDLE; /* others may read */
    bool news = communication->submitted || communication->raise || communication->woken;
    if (!news && (turns > 0 || !busy)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (busy ? nap : idle) * 1000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&communication->wake, &communication->lock, &until);
    }
    communication->woken = false;
    pthread_mutex_unlock(&communication->lock);
}

/* Tells whether parts of messages have moved since the last call. */
static bool communication_has_moved(ek_communication *communication)
{
    const ek_transport *transport = communication->transport;
    uint64_t moved = transport->moved(communication->messages, EK_TRANSPORT_ANY);
    for (const ek_process_group *group = communication->groups; group; group = group->next)
        moved += transport->moved(group->communicator, EK_TRANSPORT_ANY);
    bool changed = moved != communication->moved;
    communication->moved = moved;
    return changed;
}

static bool communication_turn(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    bool any = ek_communication_take_submitted(communication);
    bool raise = communication->raise && !communication->failing;
    ek_failure raised = communication->raised;
    pthread_mutex_unlock(&communication->lock);
    if (raise)
        ek_communication_fail(communication, raised.origin, &raised.error);
    any |= raise;
    any |= ek_notices_turn(communication);
    bool goes_on = ek_messages_turn(communication);
    ek_process_group *next;
    for (ek_process_group *group = communication->groups; group && !communication->broken;
         group = next) {
        next = group->next; /* ek_group_turn may close the group */
        goes_on |= ek_group_turn(group);
    }
    goes_on |= communication_has_moved(communication);
    if (goes_on && communication->failing)
        communication->progress = ek_clock_ns();
    return any | goes_on | ek_communication_drain(communication);
}

/* Returns true once all ranks have agreed to end, and all groups but the world are closed. */
static bool communication_is_over(const ek_communication *communication)
{
    return communication->shut && (!communication->groups || !communication->groups->next);
}

static int communication_open_all(ek_communication *communication)
{
    const ek_transport *transport = communication->transport;
    ek_world_place *place = &communication->place;
    int rc = transport->open(communication->context, &communication->everybody, place);
    if (rc < 0)
        return EK_FAIL(EK_E_BACKEND, "%s cannot start: %s", transport->name, transport->reason(rc));
    if ((rc = transport->split(communication->everybody, 0, place->rank, &communication->notices)) <
            0 ||
        (rc = transport->split(communication->everybody, 0, place->rank,
                               &communication->messages)) < 0)
        return EK_FAIL(EK_E_BACKEND, "%s makes no communicator: %s", transport->name,
                       transport->reason(rc));
    return ek_identities_gather(communication);
}

static void communication_close_all(ek_communication *communication)
{
    const ek_transport *transport = communication->transport;
    ek_notices_close(communication);
    ek_inquiries_close(communication);
    ek_messages_close(communication);
    if (communication->notices)
        transport->close_communicator(communication->notices);
    if (communication->messages)
        transport->close_communicator(communication->messages);
    if (communication->everybody)
        transport->close(communication->everybody);
}

static void *communication_main(void *user)
{
    ek_communication *communication = user;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* nanoseconds; naps would be longer otherwise */
    int rc = communication_open_all(communication);
    pthread_mutex_lock(&communication->lock);
    if (rc < 0)
        ek_error_take(&communication->failure.error);
    communication->opened = true;
    pthread_cond_broadcast(&communication->ended);
    /* The thread in ek_communication_open makes the world's group from the place. Until then
     * nothing is submitted. */
    while (rc >= 0 && !communication->world && !communication->shut)
        pthread_cond_wait(&communication->wake, &communication->lock);
    pthread_mutex_unlock(&communication->lock);
    int turns = 0;
    while (rc >= 0 && !communication_is_over(communication)) {
        if (communication_turn(communication)) {
            turns = 0;
            continue;
        }
        if (communication->leave || (communication->shut && communication->broken))
            break;
        communication_nap(communication, ++turns);
    }
    if (rc >= 0 && !communication_is_over(communication))
        communication->transport->end(communication->everybody, 1);
    else
        communication_close_all(communication);
    return NULL;
}

/* ---- opening and closing ---- */

enum { OPEN_LOOK = 50000000 }; /* nanoseconds between calls of `look` */

static void communication_free(ek_communication *communication)
{
    while (communication->abandoned) {
        ek_dist_work *work = communication->abandoned;
        communication->abandoned = work->next;
        work->abandoned = false;
        ek_dist_work_free(work);
    }
    ek_notices_close(communication);
    ek_inquiries_close(communication);
    ek_messages_close(communication);
    ek_packet_drop(&communication->outbox);
    ek_packet_drop(&communication->inbox);
    ek_communication_free_groups(communication);
    pthread_cond_destroy(&communication->ended);
    pthread_cond_destroy(&communication->wake);
    pthread_mutex_destroy(&communication->lock);
    free(communication->hosts);
    free(communication->identities);
    free(communication->waits.of);
    free(communication);
}

static int communication_make_locks(ek_communication *communication)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    bool lock = pthread_mutex_init(&communication->lock, NULL) == 0;
    bool wake = lock && pthread_cond_init(&communication->wake, &monotonic) == 0;
    bool ended = wake && pthread_cond_init(&communication->ended, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    if (ended)
        return 0;
    if (wake)
        pthread_cond_destroy(&communication->wake);
    if (lock)
        pthread_mutex_destroy(&communication->lock);
    return EK_FAIL(EK_E_NO_MEMORY, "no lock for communication can be had");
}

static ek_communication *communication_new(const ek_transport *transport, void *context)
{
    ek_communication *communication = ek_calloc(1, sizeof *communication);
    if (!communication)
        return NULL;
    communication->transport = transport;
    communication->context = context;
    communication->submitted_end = &communication->submitted;
    if (communication_make_locks(communication) >= 0)
        return communication;
    free(communication);
    return NULL;
}

/* Makes the world's group, the board and the mailbox from the place in the world, while the
 * communication thread waits. */
static int communication_set_up(ek_communication *communication, int several, double timeout)
{
    const ek_world_place *place = &communication->place;
    if (several > 0 && several != place->size)
        return EK_FAIL(EK_E_BACKEND,
                       "the launcher has started %d processes, but %s knows of %d; start the "
                       "program with the launcher of the same MPI (under Slurm: srun --mpi=pmix)",
                       several, communication->transport->name, place->size);
    communication->waits.of = ek_calloc((size_t)place->size, sizeof *communication->waits.of);
    ek_process_group *world =
        communication->waits.of ? ek_process_group_new(communication, 0, NULL, place->size, timeout)
                                : NULL;
    if (!world)
        return ek_error_pending();
    world->communicator = communication->everybody;
    communication->board = ek_notices_open(communication);
    communication->inquiries = ek_inquiries_open(communication);
    communication->mailbox = ek_messages_open(communication);
    if (!communication->board || !communication->inquiries || !communication->mailbox) {
        ek_process_group_free(world);
        return ek_error_pending();
    }
    communication->groups = world;
    pthread_mutex_lock(&communication->lock);
    communication->world = world;
    pthread_cond_signal(&communication->wake);
    pthread_mutex_unlock(&communication->lock);
    return 0;
}

/* Waits until the transport is open or has failed to open. Returns false if the other processes do
 * not come in time. */
static bool communication_await_open(ek_communication *communication, double timeout,
                                     void (*look)(void *user), void *user)
{
    double seconds = timeout < 1e9 ? timeout : 1e9;
    uint64_t until = ek_clock_ns() + (uint64_t)(seconds * 1e9);
    pthread_mutex_lock(&communication->lock);
    for (uint64_t now; !communication->opened && (now = ek_clock_ns()) < until;) {
        uint64_t then = until - now < OPEN_LOOK ? until : now + OPEN_LOOK;
        struct timespec next = {.tv_sec = (time_t)(then / 1000000000),
                                .tv_nsec = (long)(then % 1000000000)};
        pthread_cond_timedwait(&communication->ended, &communication->lock, &next);
        if (look)
            look(user);
    }
    bool opened = communication->opened;
    pthread_mutex_unlock(&communication->lock);
    return opened;
}

int ek_communication_open(const ek_transport *transport, void *context, int several, double timeout,
                          bool check, void (*look)(void *user), void *user,
                          ek_communication **communication)
{
    *communication = NULL;
    ek_communication *opened = communication_new(transport, context);
    if (!opened)
        return ek_error_pending();
    opened->check = check;
    if (pthread_create(&opened->thread, NULL, communication_main, opened) != 0) {
        communication_free(opened);
        return EK_FAIL(EK_E_NO_MEMORY, "no thread for communication can be had");
    }
    pthread_setname_np(opened->thread, EK_COMMUNICATION_THREAD);
    if (!communication_await_open(opened, timeout, look, user)) {
        pthread_detach(
            opened->thread); /* the thread still waits in the transport, and uses `opened` */
        return EK_FAIL(EK_E_TIMEOUT, "init_process_group waited %.1f s", timeout);
    }
    int rc = opened->failure.error.status ? ek_error_raise(&opened->failure.error)
                                          : communication_set_up(opened, several, timeout);
    if (rc < 0) {
        pthread_mutex_lock(&opened->lock);
        opened->shut = true;
        pthread_cond_signal(&opened->wake);
        pthread_mutex_unlock(&opened->lock);
        pthread_join(opened->thread, NULL);
        communication_free(opened);
        return rc;
    }
    *communication = opened;
    return 0;
}

static int communication_go_on_shutdown(ek_dist_work *work)
{
    work->group->communication->shut = true;
    return 0;
}
static const ek_verb communication_shutdown = {EK_VERB_SHUTDOWN,
                                               .go_on = communication_go_on_shutdown};

void ek_communication_print(const ek_communication *communication, const ek_error_record *error,
                            FILE *stream)
{
    int rank = communication->place.rank;
    fprintf(stream, "evenkeel: rank %d on %s: %s\n", rank, communication->hosts[rank],
            error->message);
}

/* Prints an error that began on this rank, because no later call can return it. */
static void communication_print_own(const ek_communication *communication,
                                    const ek_error_record *error)
{
    if (error->status < 0 && error->origin == communication->place.rank + 1)
        ek_communication_print(communication, error, stderr);
}

/* If the last failure began on another rank, gives that rank time to print the error and to end the
 * job, which ends this process too. If this process still runs afterwards, prints the error. */
static void communication_await_print(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    bool elsewhere =
        communication->failures > 0 && communication->failure.origin != communication->place.rank;
    ek_error_record error = communication->failure.error;
    pthread_mutex_unlock(&communication->lock);
    if (!elsewhere)
        return;
    usleep(PRINT_GRACE);
    ek_communication_print(communication, &error, stderr);
}

/* Waits until all ranks agree to end. Returns 0 or a negative status, EK_E_TIMEOUT if a rank does
 * not come. */
static int communication_shut(ek_communication *communication, bool soon)
{
    int rc = -1;
    bool late = false;
    /* The first attempt fails if another rank has failed and this rank has not returned that error
     * yet. */
    for (int attempt = 0; attempt < 2 && rc < 0 && !late; attempt++) {
        ek_dist_work *work = ek_dist_work_new(communication->world, &communication_shutdown, 0);
        if (work && (soon || communication->lost)) {
            double seconds = communication->lost ? leave_grace_of_lost : leave_grace;
            work->timeout = work->timeout < seconds ? work->timeout : seconds;
        }
        bool submitted = work && ek_dist_work_submit(work) >= 0;
        rc = submitted ? ek_dist_wait(work) : ek_error_pending();
        ek_error_record error;
        ek_error_take(&error);
        late = (submitted && rc == EK_E_TIMEOUT) || communication->broken;
        if (rc < 0 && submitted)
            communication_print_own(communication, &error);
    }
    return rc;
}

/* Waits for savings, and, while the other ranks still answer, for readings that nobody has waited
 * for. */
static void communication_await_readings(ek_communication *communication)
{
    if (communication->world->await_saves)
        communication->world->await_saves(communication->world);
    pthread_mutex_lock(&communication->lock);
    while (communication->reading > 0 && !communication->broken)
        pthread_cond_wait(&communication->ended, &communication->lock);
    pthread_mutex_unlock(&communication->lock);
}

/* Seconds that the transport has to end after all ranks have agreed to. MPICH over UCX sometimes
 * never returns from MPI_Finalize on several machines. */
enum { CLOSE_GRACE = 5 };

int ek_communication_close(ek_communication *communication, bool soon)
{
    if (!communication)
        return 0;
    ek_error_record before;
    ek_error_take(&before);
    communication_await_readings(communication);
    int rc = communication->broken ? EK_E_ABORTED : communication_shut(communication, soon);
    if (rc < 0) { /* no later call can return the error */
        communication_print_own(communication, &before);
        communication_await_print(communication);
    }
    ek_error_raise(&before);
    if (rc < 0) {
        pthread_mutex_lock(&communication->lock);
        communication->leave = true;
        pthread_cond_signal(&communication->wake);
        pthread_mutex_unlock(&communication->lock);
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += rc < 0 ? 2 : CLOSE_GRACE;
    if (pthread_timedjoin_np(communication->thread, NULL, &until) == 0) {
        communication_free(communication);
    } else if (rc >= 0) { /* the thread stays in the transport and uses the communication */
        const char *host = communication->hosts[communication->place.rank];
        fprintf(stderr,
                "evenkeel: rank %d on %s: all ranks have ended well, but %s has not ended after "
                "%d s; the program goes on without it\n",
                communication->place.rank, host, communication->transport->name, CLOSE_GRACE);
    }
    return rc;
}
