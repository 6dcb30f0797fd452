/* communication.c: see communication.h. */
#include "distributed/communication.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "comm/exchange.h"
#include "core/clock.h"
#include "core/thread.h"
#include "core/trace.h"

static const double grace = 1.5;       /* seconds in which a failure must be drained */
static const double leave_grace = 1.0; /* seconds that others have to leave too, if one is lost */

/* ---- failures and ends of works: the communication thread ---- */

bool ek_dist_work_is_late(const ek_dist_work *work)
{
    return (double)(ek_clock_ns() - work->began) > work->timeout * 1e9;
}

static void communication_end_work(ek_dist_work *work, const ek_error_record *error)
{
    ek_communication *communication = work->group->communication;
    if (!ek_dist_work_is_message(work)) {
        work->group->last_verb = (int)work->verb->id;
        work->group->last_ended = ek_clock_ns();
    }
    pthread_mutex_lock(&communication->lock);
    if (error)
        work->error = *error;
    if (work->group == communication->world && work->error.status >= 0)
        communication->lost = false;
    work->ended = true;
    pthread_cond_broadcast(&communication->ended);
    pthread_mutex_unlock(&communication->lock);
}

void ek_dist_work_end(ek_dist_work *work, int status)
{
    ek_error_record error = {0};
    if (status < 0) {
        ek_error_pending(); /* sets an error if the verb has set none */
        ek_error_take(&error);
    }
    /* A call of a group ends alike on all its ranks: the first of them prints the error. */
    if (status < 0 && error.origin == 0 && !ek_dist_work_is_message(work))
        error.origin = work->group->ranks[0] + 1;
    communication_end_work(work, &error);
}

void ek_dist_work_abort(ek_dist_work *work)
{
    ek_communication *communication = work->group->communication;
    work->failure = communication->failures;
    communication_end_work(work, &communication->failure.error);
}

/* Moves the submitted works to their groups. The lock is held. */
static bool communication_take_submitted(ek_communication *communication)
{
    bool any = communication->submitted;
    while (communication->submitted) {
        ek_dist_work *work = communication->submitted;
        communication->submitted = work->next;
        work->next = NULL;
        if (ek_dist_work_is_message(work)) {
            ek_messages_add(communication, work);
        } else {
            *work->group->end = work;
            work->group->end = &work->next;
        }
    }
    communication->submitted_end = &communication->submitted;
    return any;
}

/* Ends the works of a group that have not started; the first may stay. */
static void communication_abort_waiting(ek_process_group *group)
{
    ek_dist_work **at = &group->first;
    if (group->first && group->first->state != EK_DIST_WORK_SUBMITTED)
        at = &group->first->next;
    ek_dist_work *work = *at;
    *at = NULL;
    group->end = at;
    while (work) {
        ek_dist_work *next = work->next;
        ek_dist_work_abort(work);
        work = next;
    }
}

/* How the ranks that it did not begin on are told of a failure. */
static void communication_describe(const ek_communication *communication, int origin,
                                   const ek_error_record *error, ek_error_record *told)
{
    *told = *error;
    told->origin = origin + 1;
    if (origin == communication->place.rank)
        return;
    told->status = error->status == EK_E_TIMEOUT ? EK_E_TIMEOUT : EK_E_ABORTED;
    snprintf(told->message, sizeof told->message, "rank %d on %s: %.900s", origin,
             communication->hosts[origin], error->message);
}

void ek_communication_fail(ek_communication *communication, int origin,
                           const ek_error_record *error)
{
    if (communication->failing || communication->broken)
        return;
    pthread_mutex_lock(&communication->lock);
    communication_take_submitted(communication);
    communication->failing = true;
    communication->failures++;
    communication->lost = communication->lost || error->status == EK_E_TIMEOUT;
    communication->untold = !communication->raise; /* a rank that is raising has its own error */
    communication->raise = false;
    communication->failure.origin = origin;
    communication_describe(communication, origin, error, &communication->failure.error);
    communication->draining = ek_clock_ns();
    pthread_mutex_unlock(&communication->lock);
    ek_log_line(EK_LOG_WARNING, "job failed: %s", communication->failure.error.message);
    if (origin == communication->place.rank)
        ek_notices_tell(communication, error);
    for (ek_process_group *group = communication->groups; group; group = group->next)
        communication_abort_waiting(group);
    ek_messages_abort(communication);
}

/* Ends all works with the failure, for good. Their memory may still be used by transfers. */
static void communication_give_up(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    communication_take_submitted(communication);
    communication->broken = true;
    communication->raise = false;
    pthread_mutex_unlock(&communication->lock);
    for (ek_process_group *group = communication->groups; group; group = group->next) {
        communication_abort_waiting(group);
        ek_dist_work *work = group->first;
        group->first = NULL;
        group->end = &group->first;
        if (work) {
            work->abandoned = true;
            ek_dist_work_abort(work);
        }
    }
    ek_messages_abort(communication);
}

void ek_communication_break(ek_communication *communication, const char *what, int status)
{
    ek_error_record error = {.status = EK_E_BACKEND};
    snprintf(error.message, sizeof error.message, "%s: %s: %s", communication->transport->name,
             what, communication->transport->reason(status));
    ek_communication_fail(communication, communication->place.rank, &error);
    communication_give_up(communication);
}

/* A failure is over once all groups are clean. */
static bool communication_drain(ek_communication *communication)
{
    if (!communication->failing || communication->broken)
        return false;
    bool clean = true;
    for (ek_process_group *group = communication->groups; group; group = group->next)
        clean = clean && group->clean > communication->epoch &&
                !(group->first && group->first->state == EK_DIST_WORK_REFUSED);
    if (!clean) {
        if ((double)(ek_clock_ns() - communication->draining) > grace * 1e9)
            communication_give_up(communication);
        else
            return false;
    }
    pthread_mutex_lock(&communication->lock);
    communication->epoch++;
    communication->failing = false;
    pthread_cond_broadcast(&communication->ended);
    pthread_mutex_unlock(&communication->lock);
    return true;
}

/* ---- the communication thread ---- */

/* Naps between turns in which nothing went on: none at first, then short ones while works are
 * under way, and longer ones while there is nothing to do but to listen. */
enum { NAP_AFTER = 200, NAP_SHORTEST = 50, NAP_LONGEST = 500, NAP_IDLE = 5000 }; /* turns; us */

static bool communication_is_busy(const ek_communication *communication)
{
    if (communication->failing)
        return true;
    for (ek_process_group *group = communication->groups; group; group = group->next)
        if (group->first || group->agreement)
            return true;
    return false;
}

/* Sleeps unless works were submitted. */
static void communication_nap(ek_communication *communication, int microseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += microseconds * 1000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&communication->lock);
    if (!communication->submitted && !communication->raise)
        pthread_cond_timedwait(&communication->wake, &communication->lock, &until);
    pthread_mutex_unlock(&communication->lock);
}

static bool communication_turn(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    bool any = communication_take_submitted(communication);
    bool raise = communication->raise && !communication->failing;
    ek_failure raised = communication->raised;
    pthread_mutex_unlock(&communication->lock);
    if (raise)
        ek_communication_fail(communication, raised.origin, &raised.error);
    any |= raise;
    any |= ek_notices_turn(communication);
    any |= ek_messages_turn(communication);
    ek_process_group *next;
    for (ek_process_group *group = communication->groups; group && !communication->broken;
         group = next) {
        next = group->next; /* a group may be destroyed in its turn */
        any |= ek_group_turn(group);
    }
    return any | communication_drain(communication);
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
    size_t size = (size_t)place->size;
    communication->hosts = ek_calloc(size, sizeof *communication->hosts);
    size_t *bounds = ek_calloc(size + 1, sizeof *bounds);
    if (communication->hosts && bounds) {
        for (size_t r = 0; r <= size; r++)
            bounds[r] = r * sizeof *communication->hosts;
        gethostname(communication->hosts[place->rank], sizeof *communication->hosts - 1);
        ek_request *request = NULL;
        rc =
            transport->all_gather(communication->everybody, communication->hosts, bounds, &request);
        while (rc == 0 && (rc = transport->test(&request, NULL)) == 0)
            usleep(NAP_SHORTEST);
        if (rc < 0)
            EK_FAIL(EK_E_BACKEND, "%s cannot carry names of machines: %s", transport->name,
                    transport->reason(rc));
    }
    free(bounds);
    return ek_error_status();
}

static void communication_close_all(ek_communication *communication)
{
    const ek_transport *transport = communication->transport;
    ek_notices_close(communication);
    ek_messages_close(communication);
    if (communication->notices)
        transport->close_communicator(communication->notices);
    if (communication->messages)
        transport->close_communicator(communication->messages);
    if (communication->everybody)
        transport->close(communication->everybody);
}

static bool communication_must_leave(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    bool leave = communication->leave;
    pthread_mutex_unlock(&communication->lock);
    return leave;
}

static void *communication_main(void *user)
{
    ek_communication *communication = user;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: naps are short */
    int rc = communication_open_all(communication);
    pthread_mutex_lock(&communication->lock);
    if (rc < 0)
        ek_error_take(&communication->failure.error);
    communication->opened = true;
    pthread_cond_broadcast(&communication->ended);
    /* The caller makes the world's group from what is known now, and submits nothing before. */
    while (rc >= 0 && !communication->world && !communication->shut)
        pthread_cond_wait(&communication->wake, &communication->lock);
    pthread_mutex_unlock(&communication->lock);
    int idle = 0;
    while (rc >= 0 && !communication->shut) {
        if (communication_turn(communication)) {
            idle = 0;
            continue;
        }
        if (communication_must_leave(communication))
            break;
        idle++;
        int nap = NAP_SHORTEST + (idle - NAP_AFTER);
        int longest = communication_is_busy(communication) ? NAP_LONGEST : NAP_IDLE;
        if (idle > NAP_AFTER)
            communication_nap(communication, nap < longest ? nap : longest);
    }
    if (rc >= 0 && !communication->shut)
        communication->transport->end(communication->everybody, 1);
    else
        communication_close_all(communication);
    return NULL;
}

/* ---- opening and closing ---- */

static void communication_free_group(ek_process_group *group)
{
    if (!group)
        return;
    ek_object_release(group->view);
    free(group->ranks);
    free(group->cards);
    free(group->bounds);
    free(group);
}

static ek_process_group *communication_group_new(ek_communication *communication, int number,
                                                 const int *ranks, int count, double timeout)
{
    ek_process_group *group = ek_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->communication = communication;
    group->number = number;
    group->size = count;
    group->rank = group->last_verb = -1;
    group->timeout = timeout;
    group->end = &group->first;
    group->ranks = ek_calloc((size_t)count, sizeof(int));
    group->cards = ek_calloc((size_t)count, sizeof(ek_card));
    group->bounds = ek_calloc((size_t)count + 1, sizeof(size_t));
    if (!group->ranks || !group->cards || !group->bounds) {
        communication_free_group(group);
        return NULL;
    }
    for (int r = 0; r < count; r++) {
        group->ranks[r] = ranks ? ranks[r] : r;
        if (group->ranks[r] == communication->place.rank)
            group->rank = r;
        group->bounds[r + 1] = (size_t)(r + 1) * sizeof(ek_card);
    }
    if (number == 0)
        snprintf(group->name, sizeof group->name, "the world");
    else
        snprintf(group->name, sizeof group->name, "group %d", number);
    return group;
}

static void communication_free(ek_communication *communication)
{
    while (communication->abandoned) {
        ek_dist_work *work = communication->abandoned;
        communication->abandoned = work->next;
        work->abandoned = false;
        ek_dist_work_free(work);
    }
    ek_notices_close(communication);
    ek_messages_close(communication);
    communication_free_group(communication->world);
    pthread_cond_destroy(&communication->ended);
    pthread_cond_destroy(&communication->wake);
    pthread_mutex_destroy(&communication->lock);
    free(communication->hosts);
    free(communication);
}

static ek_communication *communication_new(const ek_transport *transport, void *context)
{
    ek_communication *communication = ek_calloc(1, sizeof *communication);
    if (!communication)
        return NULL;
    communication->transport = transport;
    communication->context = context;
    communication->submitted_end = &communication->submitted;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&communication->lock, NULL);
    pthread_cond_init(&communication->wake, &monotonic);
    pthread_cond_init(&communication->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return communication;
}

/* Makes what needs the place in the world. The thread waits meanwhile. */
static int communication_set_up(ek_communication *communication, int several, double timeout)
{
    const ek_world_place *place = &communication->place;
    if (several > 0 && several != place->size)
        return EK_FAIL(EK_E_BACKEND,
                       "the launcher has started %d processes, but %s knows of %d; start the "
                       "program with the launcher of the same MPI",
                       several, communication->transport->name, place->size);
    ek_process_group *world = communication_group_new(communication, 0, NULL, place->size, timeout);
    if (!world)
        return ek_error_pending();
    world->communicator = communication->everybody;
    communication->board = ek_notices_open(communication);
    communication->post = ek_messages_open(communication);
    if (!communication->board || !communication->post) {
        communication_free_group(world);
        return ek_error_pending();
    }
    communication->groups = world;
    pthread_mutex_lock(&communication->lock);
    communication->world = world;
    pthread_cond_signal(&communication->wake);
    pthread_mutex_unlock(&communication->lock);
    return 0;
}

/* False if the other processes do not come in time. */
static bool communication_await_open(ek_communication *communication, double timeout)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double seconds = timeout < 1e9 ? timeout : 1e9;
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    int rc = 0;
    pthread_mutex_lock(&communication->lock);
    while (!communication->opened && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&communication->ended, &communication->lock, &until);
    bool opened = communication->opened;
    pthread_mutex_unlock(&communication->lock);
    return opened;
}

int ek_communication_open(const ek_transport *transport, void *context, int several, double timeout,
                          bool check, ek_communication **communication)
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
    pthread_setname_np(opened->thread, "ek communicate");
    if (!communication_await_open(opened, timeout)) {
        pthread_detach(opened->thread); /* it waits in the transport, and keeps its memory */
        return EK_FAIL(EK_E_TIMEOUT,
                       "init_process_group waited %.1f s: not all processes of the job have called "
                       "it",
                       timeout);
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

void ek_communication_wake(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    pthread_cond_signal(&communication->wake);
    pthread_mutex_unlock(&communication->lock);
}

static int communication_go_on_shutdown(ek_dist_work *work)
{
    work->group->communication->shut = true;
    return 0;
}
static const ek_verb communication_shutdown = {.id = EK_VERB_SHUTDOWN,
                                               .go_on = communication_go_on_shutdown};

static bool communication_is_broken(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    bool broken = communication->broken;
    pthread_mutex_unlock(&communication->lock);
    return broken;
}

/* Runs a work of the group that ends something. A failure of another rank that is yet to be told
 * ends the first attempt, on this rank alone or on all, so that there is a second: otherwise ranks
 * that were told before would wait for this one. Returns the outcome of the last attempt. The
 * pending error is the one from before, or what the first attempt has brought. */
static int communication_run_end(ek_process_group *group, const ek_verb *verb)
{
    int rc = -1, attempts = 0;
    do {
        ek_error_record before;
        ek_error_take(&before);
        ek_dist_work *work = ek_dist_work_new(group, verb);
        rc = work ? ek_dist_work_run(work) : ek_error_pending();
        if (before.status < 0) {
            ek_error_clear();
            ek_error_raise(&before);
        }
    } while (rc < 0 && ++attempts < 2 && !communication_is_broken(group->communication));
    return rc;
}

/* The last chance to print an error that began on this rank. */
static void communication_print(const ek_communication *communication, const ek_error_record *error)
{
    if (error->origin == communication->place.rank + 1)
        fprintf(stderr, "evenkeel: %s\n", error->message);
}

/* All ranks agree to end. EK_E_TIMEOUT if one does not come. */
static int communication_shut(ek_communication *communication, bool soon)
{
    int rc = -1;
    bool late = false;
    /* A failure of another rank that is yet to be told ends the first attempt. */
    for (int attempt = 0; attempt < 2 && rc < 0 && !late; attempt++) {
        ek_dist_work *work = ek_dist_work_new(communication->world, &communication_shutdown);
        if (work && (soon || communication->lost) && work->timeout > leave_grace)
            work->timeout = leave_grace;
        bool submitted = work && ek_dist_work_submit(work) >= 0;
        rc = submitted ? ek_dist_wait(work) : ek_error_pending();
        ek_error_record error;
        ek_error_take(&error);
        late = (submitted && rc == EK_E_TIMEOUT) || communication_is_broken(communication);
        if (rc < 0 && submitted)
            communication_print(communication, &error);
    }
    return rc;
}

int ek_communication_close(ek_communication *communication, bool soon)
{
    if (!communication)
        return 0;
    ek_error_record before;
    ek_error_take(&before);
    int rc = communication_is_broken(communication) ? EK_E_ABORTED
                                                    : communication_shut(communication, soon);
    if (rc < 0) /* nobody can ask for it any more */
        communication_print(communication, &before);
    ek_error_raise(&before);
    if (rc < 0) {
        pthread_mutex_lock(&communication->lock);
        communication->leave = true;
        pthread_cond_signal(&communication->wake);
        pthread_mutex_unlock(&communication->lock);
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    if (rc >= 0)
        pthread_join(communication->thread, NULL);
    else if (pthread_timedjoin_np(communication->thread, NULL, &until) != 0)
        return rc; /* it waits in the transport for ever, and keeps its memory */
    communication_free(communication);
    return rc;
}

/* ---- groups ---- */

static int communication_go_on_new_group(ek_dist_work *work)
{
    ek_process_group *group = work->user;
    ek_communication *communication = group->communication;
    int rc = communication->transport->split(communication->everybody, group->rank < 0 ? -1 : 0,
                                             group->rank, &group->communicator);
    if (rc < 0)
        return EK_FAIL(EK_E_BACKEND, "new_group: %s makes no communicator: %s",
                       communication->transport->name, communication->transport->reason(rc));
    group->clean = communication->epoch;
    if (group->rank >= 0) {
        ek_process_group **at = &communication->groups;
        while (*at)
            at = &(*at)->next;
        *at = group;
    }
    return 0;
}
static const ek_verb communication_make_group = {.id = EK_VERB_NEW_GROUP,
                                                 .go_on = communication_go_on_new_group};

ek_process_group *ek_communication_new_group(ek_communication *communication, const int *ranks,
                                             int count, double timeout)
{
    ek_process_group *group =
        communication_group_new(communication, ++communication->groups_made, ranks, count, timeout);
    ek_dist_work *work =
        group ? ek_dist_work_new(communication->world, &communication_make_group) : NULL;
    if (!work) {
        communication_free_group(group);
        return NULL;
    }
    work->user = group;
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
    for (int r = 0; r < count; r++)
        hash = (hash ^ (uint64_t)group->ranks[r]) * UINT64_C(1099511628211);
    work->card.ndim = 2;
    work->card.shape[0] = count;
    work->card.shape[1] = (int64_t)(hash >> 1);
    if (ek_dist_work_run(work) < 0) {
        communication_free_group(group);
        return NULL;
    }
    return group;
}

static int communication_go_on_destroy(ek_dist_work *work)
{
    ek_process_group *group = work->group;
    ek_communication *communication = group->communication;
    ek_process_group **at = &communication->groups;
    while (*at && *at != group)
        at = &(*at)->next;
    if (*at)
        *at = group->next;
    communication->transport->close_communicator(group->communicator);
    group->communicator = NULL;
    return 0;
}
static const ek_verb communication_destroy_group = {.id = EK_VERB_DESTROY_GROUP,
                                                    .go_on = communication_go_on_destroy};

/* True on all ranks if one of them did not come in time: nobody waits for it once more. */
static bool communication_is_lost(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    bool lost = communication->lost;
    pthread_mutex_unlock(&communication->lock);
    return lost;
}

int ek_communication_destroy_group(ek_process_group *group)
{
    bool waits = group->rank >= 0 && !communication_is_lost(group->communication);
    int rc = waits ? communication_run_end(group, &communication_destroy_group) : 0;
    if (!group->communicator) /* else its communicator stays open, until the job ends */
        communication_free_group(group);
    return rc;
}

/* ---- works: the caller's thread ---- */

const char *ek_verb_name(int id)
{
#define EK_VERB_TEXT(name, text) text,
    static const char *const names[] = {EK_VERBS(EK_VERB_TEXT)};
#undef EK_VERB_TEXT
    return (unsigned)id < EK_VERB_COUNT ? names[id] : "an unknown call";
}

ek_dist_work *ek_dist_work_new(ek_process_group *group, const ek_verb *verb)
{
    ek_dist_work *work = ek_calloc(1, sizeof *work);
    if (!work)
        return NULL;
    work->group = group;
    work->verb = verb;
    work->timeout = group->timeout;
    work->card.verb = verb->id;
    work->card.op = work->card.dtype = work->card.root = -1;
    return work;
}

void ek_dist_work_free(ek_dist_work *work)
{
    if (!work)
        return;
    if (work->abandoned) {
        ek_communication *communication = work->group->communication;
        pthread_mutex_lock(&communication->lock);
        work->next = communication->abandoned;
        communication->abandoned = work;
        pthread_mutex_unlock(&communication->lock);
        return;
    }
    for (int i = 0; i < work->count; i++) {
        ek_object_release(work->tensors[i].tensor);
        ek_object_release(work->tensors[i].memory);
    }
    free(work->tensors);
    free(work->scratch);
    free(work->room);
    free(work->out);
    free(work->in);
    free(work->gives);
    free(work->takes);
    free(work);
}

/* Device memory, strides and gaps are for this side alone: on the wire a tensor is row-major. */
static ek_tensor *communication_stage(ek_tensor *tensor, bool sends)
{
    const ek_dev *dev = ek_tensor_dev(tensor);
    if (dev->id.kind != EK_CUDA && ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS))
        return ek_object_retain(tensor);
    ek_shape shape = {.ndim = tensor->ndim};
    memcpy(shape.dims, tensor->shape, sizeof shape.dims);
    ek_scope scope = ek_scope_begin();
    ek_tensor *memory = ek_tensor_new(ek_dev_get(ek_cpu()), tensor->dtype, &shape, EK_CONTIGUOUS);
    if (memory && sends && ek_comm_copy(memory, tensor) < 0)
        memory = NULL;
    if (memory && sends && ek_synchronize(dev->id) < 0)
        memory = NULL;
    ek_object_retain(memory);
    ek_scope_end(&scope);
    return memory;
}

int ek_dist_work_add(ek_dist_work *work, ek_tensor *tensor, bool sends, bool receives)
{
    ek_dist_work_tensor *one = &work->tensors[work->count];
    one->memory = communication_stage(tensor, sends);
    if (!one->memory)
        return ek_error_pending();
    one->tensor = ek_object_retain(tensor);
    one->receives = receives;
    one->version = atomic_load(&tensor->version->count);
    work->count++;
    return 0;
}

int ek_dist_work_submit(ek_dist_work *work)
{
    ek_communication *communication = work->group->communication;
    work->began = ek_clock_ns();
    pthread_mutex_lock(&communication->lock);
    bool refused = communication->untold || communication->broken;
    ek_error_record error = communication->failure.error;
    communication->untold = false;
    if (!refused) {
        *communication->submitted_end = work;
        communication->submitted_end = &work->next;
        pthread_cond_signal(&communication->wake);
    }
    pthread_mutex_unlock(&communication->lock);
    if (!refused)
        return 0;
    error.told = true;
    ek_dist_work_free(work);
    return ek_error_raise(&error);
}

/* Copies what came to the user's tensors. */
static int communication_receive(ek_dist_work *work)
{
    for (int i = 0; i < work->count; i++) {
        ek_dist_work_tensor *one = &work->tensors[i];
        bool staged = one->memory != one->tensor;
        if (atomic_load(&one->tensor->version->count) != one->version)
            return EK_FAIL(EK_E_MODIFIED,
                           "%s: the tensor was written to between the call and ek_dist_wait",
                           ek_verb_name(work->verb->id));
        if (!one->receives)
            continue;
        if (staged)
            EK_TRY(ek_comm_copy(one->tensor, one->memory));
        ek_tensor_written(one->tensor, ek_verb_name(work->verb->id));
    }
    return 0;
}

int ek_dist_wait(ek_dist_work *work)
{
    if (!work)
        return 0;
    EK_TRY(ek_fork_check());
    ek_communication *communication = work->group->communication;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_WAIT, ek_verb_name(work->verb->id), NULL, NULL);
    pthread_mutex_lock(&communication->lock);
    while (!work->ended)
        pthread_cond_wait(&communication->ended, &communication->lock);
    if (work->failure == communication->failures)
        communication->untold = false;
    pthread_mutex_unlock(&communication->lock);
    ek_span_end(&span);
    work->error.told = true; /* works fail on all ranks */
    int rc = work->error.status < 0 ? ek_error_raise(&work->error) : communication_receive(work);
    int result = work->result;
    ek_dist_work_free(work);
    return rc < 0 ? rc : result;
}

int ek_dist_is_completed(const ek_dist_work *work)
{
    if (!work)
        return 1;
    EK_TRY(ek_fork_check());
    ek_communication *communication = work->group->communication;
    pthread_mutex_lock(&communication->lock);
    bool ended = work->ended;
    pthread_mutex_unlock(&communication->lock);
    return ended;
}

int ek_dist_work_run(ek_dist_work *work)
{
    EK_TRY(ek_dist_work_submit(work));
    return ek_dist_wait(work);
}

int ek_communication_raise(ek_communication *communication, const ek_error_record *error)
{
    pthread_mutex_lock(&communication->lock);
    /* A failure that this rank has been told of is over before its next one begins. */
    while (communication->failing && !communication->untold && !communication->broken)
        pthread_cond_wait(&communication->ended, &communication->lock);
    uint32_t epoch = communication->epoch;
    /* One that it has not been told of yet takes the place of its own. */
    if (!communication->untold && !communication->broken) {
        communication->raised = (ek_failure){communication->place.rank, *error};
        communication->raise = true;
        pthread_cond_signal(&communication->wake);
    }
    communication->untold = false;
    /* Another failure may begin before this thread goes on; its next call tells of that. */
    while ((communication->raise || communication->failing) && communication->epoch == epoch &&
           !communication->broken)
        pthread_cond_wait(&communication->ended, &communication->lock);
    pthread_mutex_unlock(&communication->lock);
    return error->status;
}
