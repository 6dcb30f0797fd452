/* failure.c: failures of the job (communication.h, Note [Failures drain themselves]), and the ends
 * of works. */
#include "link/communication.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"

/* Seconds without progress after which a failure counts as stuck. The second number is for a
 * time-out in which a rank did not answer. */
static const double grace = 1.5, grace_of_silent = 0.3;

/* ---- failures and ends of works: the communication thread ---- */

bool ek_dist_work_is_late(ek_dist_work *work)
{
    const ek_communication *communication = work->group->communication;
    const ek_communicator *communicator =
        ek_dist_work_is_message(work) ? communication->messages : work->group->communicator;
    uint64_t moved = communication->transport->moved(communicator, EK_TRANSPORT_ANY);
    if (work->state == EK_DIST_WORK_COMMITTED && moved != work->moved) {
        work->moved = moved;
        work->began = ek_clock_ns();
    }
    return (double)(ek_clock_ns() - work->began) > work->timeout * 1e9;
}

static void failure_end_work(ek_dist_work *work, const ek_error_record *error)
{
    ek_communication *communication = work->group->communication;
    communication->peers.forget(communication, work);
    if (!ek_dist_work_is_message(work)) {
        work->group->last_verb = (int)work->verb->id;
        work->group->last_ended = ek_clock_ns();
    }
    pthread_mutex_lock(&communication->lock);
    if (error)
        work->error = *error;
    if (work->group == communication->world && work->error.status >= 0)
        communication->lost = false;
    communication->gradual -= work->verb->gradual;
    communication->reading -= work->verb->id == EK_VERB_READ;
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
    /* A call of a group fails alike on all its ranks. The group's first rank counts as the origin
     * of the error, so that one rank prints the error. */
    if (status < 0 && error.origin == 0 && !ek_dist_work_is_message(work))
        error.origin = work->group->ranks[0] + 1;
    failure_end_work(work, &error);
}

void ek_dist_work_abort(ek_dist_work *work)
{
    ek_communication *communication = work->group->communication;
    work->failure = communication->failures;
    failure_end_work(work, &communication->failure.error);
}

bool ek_communication_take_submitted(ek_communication *communication)
{
    bool any = communication->submitted;
    while (communication->submitted) {
        ek_dist_work *work = communication->submitted;
        communication->submitted = work->next;
        work->next = NULL;
        if (ek_dist_work_is_message(work)) {
            communication->peers.add(communication, work);
        } else {
            *work->group->end = work;
            work->group->end = &work->next;
        }
    }
    communication->submitted_end = &communication->submitted;
    return any;
}

/* Ends the group's works with the error of the failure, but not the first work if its agreement has
 * begun. */
static void failure_abort_waiting(ek_process_group *group)
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

/* Writes the error of a failure as this rank gets it. Ranks other than `origin` get a sentence that
 * begins with the origin's name, and the status EK_E_TIMEOUT or EK_E_ABORTED. */
static void failure_describe(const ek_communication *communication, int origin,
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
    ek_communication_take_submitted(communication);
    communication->failing = true;
    communication->failures++;
    communication->lost = communication->lost || error->status == EK_E_TIMEOUT;
    /* If a thread of this rank is in ek_communication_raise, that call returns its own error. */
    communication->unreported = !communication->raise;
    communication->raise = false;
    communication->failure.origin = origin;
    failure_describe(communication, origin, error, &communication->failure.error);
    communication->draining = communication->progress = ek_clock_ns();
    pthread_cond_broadcast(&communication->ended); /* wakes ek_communication_take_failure */
    pthread_mutex_unlock(&communication->lock);
    ek_log_line(EK_LOG_WARNING, "job failed: %s", communication->failure.error.message);
    if (origin == communication->place.rank)
        communication->peers.tell(communication, error);
    for (ek_process_group *group = communication->groups; group; group = group->next)
        failure_abort_waiting(group);
    communication->peers.abort(communication);
}

void ek_communication_fail_here(ek_communication *communication)
{
    ek_error_record error;
    ek_error_take(&error);
    ek_communication_fail(communication, communication->place.rank, &error);
}

/* Breaks the world: ends all works with the error of the failure. Transfers may still use the
 * memory of the works. */
static void failure_give_up(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    ek_communication_take_submitted(communication);
    communication->broken = true;
    communication->raise = false;
    pthread_cond_broadcast(&communication->ended);
    pthread_mutex_unlock(&communication->lock);
    for (ek_process_group *group = communication->groups; group; group = group->next) {
        failure_abort_waiting(group);
        ek_dist_work *work = group->first;
        group->first = NULL;
        group->end = &group->first;
        if (work) {
            work->abandoned = true;
            ek_dist_work_abort(work);
        }
    }
    communication->peers.abort(communication);
}

void ek_communication_break(ek_communication *communication, const char *what, int status)
{
    const ek_transport *transport = communication->transport;
    ek_error_record error = {.status = EK_E_BACKEND};
    char peer[96] = "";
    int rank = transport->blamed();
    if (rank >= 0)
        snprintf(peer, sizeof peer, " to or from rank %d on %s", rank, communication->hosts[rank]);
    snprintf(error.message, sizeof error.message, "%s: %s%s: %s", transport->name, what, peer,
             transport->reason(status));
    ek_communication_fail(communication, communication->place.rank, &error);
    failure_give_up(communication);
}

void ek_communication_break_here(ek_communication *communication)
{
    ek_communication_fail_here(communication);
    failure_give_up(communication);
}

/* Tells whether a failure can't be drained any more (Note [Failures drain themselves]). */
static bool failure_is_stuck(ek_communication *communication)
{
    double quiet = (double)(ek_clock_ns() - communication->progress) * 1e-9;
    if (communication->failure.error.status == EK_E_TIMEOUT)
        return quiet > (communication->silent ? grace_of_silent : grace);
    return quiet > grace && (quiet > communication->world->timeout ||
                             !communication->peers.are_all_alive(communication));
}

bool ek_communication_drain(ek_communication *communication)
{
    if (!communication->failing || communication->broken)
        return false;
    bool clean = true;
    for (ek_process_group *group = communication->groups; group; group = group->next)
        clean = clean && group->clean > communication->epoch &&
                !(group->first && group->first->state == EK_DIST_WORK_REFUSED &&
                  group->first->refused <= communication->epoch);
    if (!clean) {
        if (!failure_is_stuck(communication))
            return false;
        failure_give_up(communication);
    }
    communication->silent = false;
    pthread_mutex_lock(&communication->lock);
    communication->epoch++;
    communication->failing = false;
    pthread_cond_broadcast(&communication->ended);
    pthread_mutex_unlock(&communication->lock);
    return true;
}

int ek_communication_raise(ek_communication *communication, const ek_error_record *error)
{
    pthread_mutex_lock(&communication->lock);
    /* A gradual work of this rank may wait for the caller, and the drain may wait for the work. So
     * while there is a gradual work, the caller waits for a failure to begin, but not for the
     * drain. Here a failure has begun already, and is an error on all ranks: there is nothing to
     * wait for. */
    if (communication->failing && !communication->unreported && communication->gradual > 0) {
        pthread_mutex_unlock(&communication->lock);
        return error->status;
    }
    /* A failure whose error this rank has returned ends before the rank's next failure begins. */
    while (communication->failing && !communication->unreported && !communication->broken)
        pthread_cond_wait(&communication->ended, &communication->lock);
    uint32_t epoch = communication->epoch;
    /* If this rank has not returned the error of a failure under way, that failure takes the place
     * of the rank's own. */
    if (!communication->unreported && !communication->broken) {
        communication->raised = (ek_failure){communication->place.rank, *error};
        communication->raise = true;
        pthread_cond_signal(&communication->wake);
    }
    communication->unreported = false;
    /* Another failure may begin before this thread wakes. The thread's next call returns the error
     * of that failure. */
    while ((communication->raise || (communication->failing && communication->gradual == 0)) &&
           communication->epoch == epoch && !communication->broken)
        pthread_cond_wait(&communication->ended, &communication->lock);
    pthread_mutex_unlock(&communication->lock);
    return error->status;
}

int ek_world_outcome(const ek_process_group *group, int rc)
{
    ek_communication *communication = group ? group->communication : NULL;
    const ek_error_record *pending = &ek_thread_self()->error;
    if (rc >= 0 || !communication || (pending->status < 0 && pending->told))
        return rc;
    ek_error_record error;
    ek_error_take(&error);
    error.origin = communication->place.rank + 1;
    ek_communication_raise(communication, &error);
    error.told = true;
    return ek_error_raise(&error);
}

int ek_communication_take_failure(ek_communication *communication, uint32_t before)
{
    pthread_mutex_lock(&communication->lock);
    while (communication->failures == before && !communication->broken)
        pthread_cond_wait(&communication->ended, &communication->lock);
    ek_error_record error = communication->failure.error;
    communication->unreported = false;
    pthread_mutex_unlock(&communication->lock);
    error.told = true;
    return ek_error_raise(&error);
}
