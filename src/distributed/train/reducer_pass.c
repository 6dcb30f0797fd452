/* reducer_pass.c: averages the gradients of one backward, as one work of the reducer's group. The
 * work averages the buckets and then sends the reports. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/thread.h"
#include "train/reducer.h"

/* ---- the communication thread ---- */

/* Counts buckets in the window's counter, in their order, until a bucket is not ready. The caller
 * holds the reducer's lock. */
static void pass_announce(ek_reducer *reducer)
{
    int announced = reducer->announced;
    while (announced < reducer->bucket_count && reducer->buckets[announced].ready)
        announced++;
    if (reducer->window && announced > reducer->announced)
        ek_window_set(reducer->window, EK_BUCKETS_READY,
                      reducer->passes * (uint64_t)reducer->bucket_count + (uint64_t)announced);
    reducer->announced = announced;
}

/* Returns the bucket that follows the last one that has begun, if it may begin (Note [Lanes]). */
static ek_bucket *pass_next_bucket(const ek_reducer *reducer)
{
    const int b = reducer->begun;
    if (b >= reducer->announced || reducer->lanes[b % EK_LANES].bucket)
        return NULL;
    ek_bucket *bucket = &reducer->buckets[b];
    const ek_reducer_lane *other = &reducer->lanes[(b + 1) % EK_LANES];
    bool beside = !other->bucket ||
                  (other->phase > 0 && !other->bucket->route->alone && !bucket->route->alone);
    return beside ? bucket : NULL;
}

/* Tells whether the work can make its next step, which is one of a bucket under way, or of the
 * reports after the last bucket. */
static ek_readiness pass_ready(ek_dist_work *work)
{
    ek_reducer *reducer = work->user;
    pthread_mutex_lock(&reducer->lock);
    pass_announce(reducer);
    bool closed = reducer->closed;
    pthread_mutex_unlock(&reducer->lock);
    ek_bucket *bucket = pass_next_bucket(reducer);
    if (bucket) {
        ek_reducer_lane *lane = &reducer->lanes[reducer->begun++ % EK_LANES];
        lane->bucket = bucket;
        lane->phase = 0;
        lane->ended = false;
    }
    reducer->next = NULL;
    bool busy = false;
    for (int i = 0; i < EK_LANES; i++) {
        ek_reducer_lane *lane = &reducer->lanes[(reducer->bucket + i) % EK_LANES];
        if (!lane->bucket)
            continue;
        busy = true;
        reducer->next = lane;
        if (lane->bucket->route->ready(reducer, lane) == EK_READY)
            return EK_READY;
    }
    if (busy)
        return EK_AWAITS_RANKS;
    return reducer->begun == reducer->bucket_count && closed ? EK_READY : EK_AWAITS_CALLER;
}

/* Fills this rank's report, but not the gradients that are present. */
static void pass_fill_report(ek_reducer *reducer, int status, const char *sentence, bool raised)
{
    ek_pass_report *mine = reducer->reports;
    mine->rank = status < 0 ? reducer->group->rank : reducer->group->size;
    mine->status = status < 0 ? status : 0;
    mine->raised = raised;
    snprintf(reducer->sentence, sizeof reducer->sentence, "%.*s", (int)sizeof reducer->sentence - 1,
             sentence);
}

/* Combines two reports (rounds.h). */
static void pass_combine(void *block, const void *other, size_t nbytes)
{
    ek_pass_report *a = block;
    const ek_pass_report *b = other;
    for (size_t i = 0; i < (nbytes - sizeof *a) / sizeof *a->present; i++)
        a->present[i] |= b->present[i];
    if (b->rank >= a->rank)
        return;
    a->rank = b->rank;
    a->status = b->status;
    a->raised = b->raised;
}

int ek_reducer_send_reports(ek_reducer *reducer, int step, ek_request **request)
{
    ek_process_group *group = reducer->group;
    ek_pass_report *report = reducer->reports;
    int rc;
    if (step == 0) {
        if (report->status >= 0 && reducer->lost.status < 0)
            pass_fill_report(reducer, reducer->lost.status, reducer->lost.message,
                             reducer->failure != 0);
        rc = ek_rounds_reduce(&group->rounds, group, EK_ROUNDS_TAG, report, reducer->report_nbytes,
                              pass_combine);
    } else if (step == 1 && report->status < 0 && !report->raised) { /* no notice tells the error */
        rc = group->communication->transport->broadcast(group->communicator, reducer->sentence,
                                                        sizeof reducer->sentence, report->rank,
                                                        request);
    } else {
        return 0;
    }
    return rc < 0 ? rc : 1;
}

/* Makes the next step of the reports. Returns 1 if another step follows, 0, or the transport's
 * status. */
static int pass_report(ek_reducer *reducer, ek_request **request)
{
    int rc = ek_reducer_send_reports(reducer, reducer->phase++, request);
    reducer->passes += rc == 0;
    return rc;
}

/* Makes the next step of a bucket. Returns a status of the transport. */
static int pass_advance(ek_reducer *reducer, ek_reducer_lane *lane, ek_request **request)
{
    int rc = lane->bucket->route->advance(reducer, lane, request);
    lane->phase++;
    if (rc <= 0)
        return rc;
    lane->bucket = NULL;
    pthread_mutex_lock(&reducer->lock);
    while (reducer->bucket < reducer->begun &&
           reducer->lanes[reducer->bucket % EK_LANES].bucket != &reducer->buckets[reducer->bucket])
        reducer->bucket++;
    pthread_mutex_unlock(&reducer->lock);
    return 0;
}

static int pass_go_on(ek_dist_work *work)
{
    ek_reducer *reducer = work->user;
    ek_reducer_lane *lane = reducer->next;
    int rc =
        lane ? pass_advance(reducer, lane, &work->request) : pass_report(reducer, &work->request);
    if (reducer->failure)
        work->failure = reducer->failure;
    if (rc >= 0)
        return lane || rc > 0; /* 1: another step follows, also if no transfer was started */
    ek_communication *communication = work->group->communication;
    ek_communication_break(communication, "the reduction of gradients", rc);
    return ek_error_raise(&communication->failure.error);
}

static const ek_verb pass_verb = {EK_VERB_BACKWARD, pass_go_on, pass_ready, .gradual = true};

/* ---- the threads of backward ---- */

static int pass_end_buckets(ek_reducer *reducer)
{
    int rc = 0;
    for (int b = 0; b < reducer->bucket_count; b++) {
        int ended = ek_bucket_end(reducer, &reducer->buckets[b]);
        rc = rc < 0 ? rc : ended;
    }
    return rc;
}

static int pass_submit(ek_reducer *reducer)
{
    ek_dist_work *work = ek_dist_work_new(reducer->group, &pass_verb, 0);
    if (!work)
        return ek_error_pending();
    work->user = reducer;
    work->keeps = ek_object_retain(reducer);
    work->descriptor.shape = (ek_wire_shape){-1, 1, {reducer->bucket_count}};
    work->descriptor.rail = reducer->buckets[0].run.rail ? reducer->buckets[0].run.rail->number : 0;
    reducer->bucket = reducer->begun = reducer->phase = reducer->announced = 0;
    reducer->closed = false;
    reducer->copied = 0;
    reducer->lost = (ek_error_record){0};
    reducer->failure = 0;
    reducer->failures = reducer->group->communication->failures;
    EK_TRY(ek_dist_work_submit(work));
    reducer->work = work;
    return 0;
}

int ek_reducer_pass_begin(ek_reducer *reducer)
{
    int rc = 0;
    for (int b = 0; b < reducer->bucket_count && rc >= 0; b++)
        rc = ek_bucket_begin(reducer, &reducer->buckets[b]);
    if (rc >= 0)
        rc = pass_submit(reducer);
    if (rc < 0)
        pass_end_buckets(reducer);
    return rc;
}

void ek_reducer_ready(ek_reducer *reducer, ek_bucket *bucket)
{
    pthread_mutex_lock(&reducer->lock);
    if (bucket)
        bucket->ready = true;
    else
        reducer->closed = true;
    pthread_mutex_unlock(&reducer->lock);
    ek_communication_wake(reducer->group->communication);
}

enum { PASS_LOOK = 200000, PASS_LOOKS = 5000 }; /* nanoseconds between looks; looks of a wait */

/* Tells whether a copy of so many bytes must wait. The caller holds the reducer's lock. */
static bool pass_is_ahead(const ek_reducer *reducer, size_t nbytes)
{
    return !reducer->meets && reducer->copied + nbytes > 2 * reducer->largest &&
           reducer->bucket < reducer->bucket_count && reducer->buckets[reducer->bucket].ready &&
           !reducer->work->ended;
}

void ek_reducer_make_copy(ek_reducer *reducer, size_t nbytes)
{
    pthread_mutex_lock(&reducer->lock);
    for (int looks = 0; looks < PASS_LOOKS && pass_is_ahead(reducer, nbytes); looks++) {
        pthread_mutex_unlock(&reducer->lock);
        nanosleep(&(struct timespec){.tv_nsec = PASS_LOOK}, NULL);
        pthread_mutex_lock(&reducer->lock);
    }
    reducer->copied += nbytes;
    pthread_mutex_unlock(&reducer->lock);
}

void ek_reducer_drop_copy(ek_reducer *reducer, size_t nbytes)
{
    pthread_mutex_lock(&reducer->lock);
    reducer->copied -= nbytes;
    pthread_mutex_unlock(&reducer->lock);
}

/* Returns the error of the first rank that has failed, as this rank's error; 0 if none has
 * failed. */
static int pass_judge(const ek_reducer *reducer)
{
    const ek_process_group *group = reducer->group;
    const ek_pass_report *report = reducer->reports;
    if (report->status >= 0)
        return 0;
    if (report->raised)
        return ek_communication_take_failure(group->communication, reducer->failures);
    int rank = group->ranks[report->rank];
    ek_error_record error = {.status = EK_E_ABORTED, .told = true, .origin = rank + 1};
    snprintf(error.message, sizeof error.message, "rank %d on %s: %.499s", rank,
             group->communication->hosts[rank], reducer->sentence);
    return ek_error_raise(&error);
}

void ek_reducer_report_gradient(ek_reducer *reducer, int leaf)
{
    pthread_mutex_lock(&reducer->lock);
    reducer->reports->present[leaf / 64] |= UINT64_C(1) << leaf % 64;
    pthread_mutex_unlock(&reducer->lock);
}

void ek_reducer_write_report(ek_reducer *reducer, int status, ek_error_record *pending)
{
    ek_error_take(pending);
    pass_fill_report(reducer, status, pending->message, false);
}

int ek_reducer_judge(const ek_reducer *reducer, int status, ek_error_record *pending, int rc)
{
    if (status >= 0)
        status = rc < 0 ? rc : pass_judge(reducer);
    else if (!pending->told) { /* this rank's own error says more than the others' */
        pending->told = true;  /* the reports have told the other ranks */
        pending->origin = reducer->group->ranks[reducer->group->rank] + 1;
    }
    if (pending->status < 0) {
        ek_error_clear();
        ek_error_raise(pending);
    }
    return status < 0 ? status : 0;
}

int ek_reducer_pass_end(ek_reducer *reducer, int status)
{
    const ek_process_group *group = reducer->group;
    ek_error_record pending;
    ek_reducer_write_report(reducer, status, &pending);
    reducer->reports->raised =
        pending.status < 0 &&
        (!pending.told || group->communication->failures != reducer->failures);
    /* The other ranks wait for all buckets. So if this rank has failed, the buckets that are not
     * ready are sent unchanged. */
    for (int b = 0; b < reducer->bucket_count && status < 0; b++)
        if (!reducer->buckets[b].ready)
            ek_reducer_ready(reducer, &reducer->buckets[b]);
    reducer->work->arrived = ek_clock_ns();
    ek_reducer_ready(reducer, NULL);
    /* The other ranks may wait for this rank in the backward of a node between ranks, and would not
     * come to the reports. */
    if (pending.status < 0 && !pending.told) {
        pending.origin = group->ranks[group->rank] + 1;
        pending.told = true;
        ek_communication_raise(group->communication, &pending);
    }
    int rc = ek_dist_wait(reducer->work);
    reducer->work = NULL;
    int ended = pass_end_buckets(reducer);
    return ek_reducer_judge(reducer, status, &pending, rc < 0 ? rc : ended);
}
