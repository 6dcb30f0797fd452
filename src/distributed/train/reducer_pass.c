/* reducer_pass.c: one pass of a reducer as a work of its group: buckets, then reports. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/bits.h"
#include "core/clock.h"
#include "core/thread.h"
#include "group/sum.h"
#include "train/reducer.h"

/* ---- the communication thread ---- */

static bool pass_is_narrow(const ek_reducer *reducer, const ek_bucket *bucket)
{
    return reducer->narrow && bucket->range->dtype == EK_F32;
}

static ek_sum pass_sum(const ek_reducer *reducer, const ek_bucket *bucket)
{
    bool narrow = pass_is_narrow(reducer, bucket);
    return (ek_sum){.group = reducer->group,
                    .op = EK_DIST_AVG,
                    .dtype = narrow ? EK_BF16 : bucket->range->dtype,
                    .address = narrow ? reducer->wire : ek_tensor_address(bucket->memory),
                    .count = ek_count(bucket->range),
                    .root = -1,
                    .scratch = reducer->scratch,
                    .out = reducer->out,
                    .in = reducer->in};
}

static void pass_narrow(const ek_reducer *reducer, const ek_bucket *bucket)
{
    const float *from = ek_tensor_address(bucket->memory);
    uint16_t *to = (uint16_t *)(void *)reducer->wire;
    for (int64_t i = 0; i < ek_count(bucket->range); i++)
        to[i] = ek_bf16_of(from[i]);
}

static void pass_widen(const ek_reducer *reducer, const ek_bucket *bucket)
{
    const uint16_t *from = (const uint16_t *)(const void *)reducer->wire;
    float *to = ek_tensor_address(bucket->memory);
    for (int64_t i = 0; i < ek_count(bucket->range); i++)
        to[i] = ek_float_of_bf16(from[i]);
}

/* Counts the buckets that have become ready, in their order; the reducer's lock is held. */
static void pass_announce(ek_reducer *reducer)
{
    while (reducer->announced < reducer->bucket_count &&
           reducer->buckets[reducer->announced].ready) {
        ek_window_add(reducer->window);
        reducer->announced++;
    }
}

static bool pass_is_ready_on_all(const ek_reducer *reducer)
{
    uint64_t before = reducer->passes * (uint64_t)reducer->bucket_count;
    for (int r = 0; r < reducer->window->size; r++)
        if (ek_window_count(reducer->window, r) <= before + (uint64_t)reducer->bucket)
            return false;
    return true;
}

/* After the last bucket the reports travel. */
static ek_readiness pass_ready(ek_dist_work *work)
{
    ek_reducer *reducer = work->user;
    ek_bucket *bucket =
        reducer->bucket < reducer->bucket_count ? &reducer->buckets[reducer->bucket] : NULL;
    if (reducer->phase > 0)
        return bucket && bucket->run.rail ? ek_rail_run_ready(&bucket->run, reducer->group)
                                          : EK_READY;
    pthread_mutex_lock(&reducer->lock);
    bool ready = bucket ? bucket->ready : reducer->closed;
    if (reducer->window)
        pass_announce(reducer);
    pthread_mutex_unlock(&reducer->lock);
    if (!ready)
        return EK_AWAITS_CALLER;
    if (!bucket)
        return EK_READY;
    bool complete =
        reducer->window ? pass_is_ready_on_all(reducer) : ek_bucket_fetched(reducer, bucket);
    return complete ? EK_READY : EK_AWAITS_RANKS;
}

static void pass_sum_in_window(const ek_reducer *reducer, const ek_bucket *bucket)
{
    const ek_window *window = reducer->window;
    char **addresses = (char **)(void *)reducer->in;
    ek_sum sum = pass_sum(reducer, bucket);
    if (reducer->sharding) /* each rank needs its own slice alone */
        sum.root = window->rank;
    for (int r = 0; r < window->size; r++)
        addresses[r] = ek_window_memory(window, r) + bucket->storage_at +
                       (size_t)bucket->range->offset * ek_dtype_size(bucket->range->dtype);
    ek_sum_in_place(&sum, addresses);
}

int ek_reducer_send_reports(ek_reducer *reducer, ek_request **request)
{
    const ek_process_group *group = reducer->group;
    ek_pass_report *mine = ek_reducer_report(reducer, group->rank);
    if (mine->status >= 0 && reducer->lost.status < 0) {
        mine->raised = reducer->failure != 0;
        mine->status = reducer->lost.status;
        snprintf(mine->sentence, sizeof mine->sentence, "%.*s", (int)sizeof mine->sentence - 1,
                 reducer->lost.message);
    }
    for (int r = 0; r <= group->size; r++)
        reducer->bounds[r] = (size_t)r * reducer->report_nbytes;
    return group->communication->transport->all_gather(group->communicator, reducer->reports,
                                                       reducer->bounds, request);
}

/* Writes to *rc what the transport returned; true if the pass goes on. */
static bool pass_step(ek_reducer *reducer, ek_request **request, int *rc)
{
    *rc = 0;
    if (reducer->bucket == reducer->bucket_count) {
        if (reducer->phase++ == 0)
            *rc = ek_reducer_send_reports(reducer, request);
        else
            reducer->passes++;
        return false;
    }
    ek_bucket *bucket = &reducer->buckets[reducer->bucket];
    if (reducer->window) {
        pass_sum_in_window(reducer, bucket);
        reducer->bucket++;
        return true;
    }
    if (bucket->run.rail) {
        reducer->phase++;
        if (ek_bucket_go_on(reducer, bucket, request)) {
            reducer->bucket++;
            reducer->phase = 0;
        }
        return true;
    }
    ek_sum sum = pass_sum(reducer, bucket);
    char *slice;
    switch (reducer->phase++) {
    case 0:
        if (pass_is_narrow(reducer, bucket))
            pass_narrow(reducer, bucket);
        *rc = ek_sum_spread(&sum, request);
        break;
    case 1:
        slice = ek_sum_slice(&sum);
        if (!reducer->sharding) /* else each rank needs its own slice alone */
            *rc = ek_sum_collect(&sum, slice, request);
        break;
    default:
        if (pass_is_narrow(reducer, bucket))
            pass_widen(reducer, bucket);
        if (!reducer->sharding)
            ek_bucket_return(reducer, bucket);
        reducer->bucket++;
        reducer->phase = 0;
        break;
    }
    return true;
}

static int pass_go_on(ek_dist_work *work)
{
    ek_reducer *reducer = work->user;
    int rc;
    bool more = pass_step(reducer, &work->request, &rc);
    if (reducer->failure)
        work->failure = reducer->failure;
    if (rc >= 0)
        return more;
    ek_communication *communication = work->group->communication;
    ek_communication_break(communication, "the reduction of gradients", rc);
    return ek_error_raise(&communication->failure.error);
}

static const ek_verb pass_verb = {.id = EK_VERB_BACKWARD,
                                  .go_on = pass_go_on,
                                  .ready = pass_ready,
                                  .gradual = true};

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
    ek_dist_work *work = ek_dist_work_new(reducer->group, &pass_verb);
    if (!work)
        return ek_error_pending();
    work->user = reducer;
    work->card.ndim = 1;
    work->card.shape[0] = reducer->bucket_count;
    work->card.rail = reducer->buckets[0].run.rail ? reducer->buckets[0].run.rail->number : 0;
    reducer->bucket = reducer->phase = reducer->announced = 0;
    reducer->closed = false;
    reducer->lost = (ek_error_record){0};
    reducer->failure = 0;
    reducer->failures = ek_communication_failures(reducer->group->communication);
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

/* The first rank's failure, if any, as this rank's error. */
static int pass_judge(const ek_reducer *reducer)
{
    const ek_process_group *group = reducer->group;
    for (int r = 0; r < group->size; r++) {
        const ek_pass_report *report = ek_reducer_report(reducer, r);
        if (report->status >= 0)
            continue;
        if (report->raised)
            return ek_communication_take_failure(group->communication, reducer->failures);
        ek_error_record error = {.status = EK_E_ABORTED,
                                 .told = true,
                                 .origin = group->ranks[r] + 1};
        snprintf(error.message, sizeof error.message, "rank %d on %s: %.499s", group->ranks[r],
                 group->communication->hosts[group->ranks[r]], report->sentence);
        return ek_error_raise(&error);
    }
    return 0;
}

void ek_reducer_write_report(ek_reducer *reducer, int status, ek_error_record *pending)
{
    ek_pass_report *mine = ek_reducer_report(reducer, reducer->group->rank);
    ek_error_take(pending);
    mine->raised = false;
    mine->status = status < 0 ? status : 0;
    snprintf(mine->sentence, sizeof mine->sentence, "%.*s", (int)sizeof mine->sentence - 1,
             pending->message);
}

int ek_reducer_judge(const ek_reducer *reducer, int status, ek_error_record *pending, int rc)
{
    if (status >= 0)
        status = rc < 0 ? rc : pass_judge(reducer);
    else if (!pending->told) { /* a rank's own error says more than the others' */
        pending->told = true;  /* by the reports */
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
    ek_reducer_report(reducer, group->rank)->raised =
        pending.status < 0 &&
        (!pending.told || ek_communication_failures(group->communication) != reducer->failures);
    /* Buckets that will never come are sent as they are: the other ranks wait for them. */
    for (int b = 0; b < reducer->bucket_count && status < 0; b++)
        if (!reducer->buckets[b].ready)
            ek_reducer_ready(reducer, &reducer->buckets[b]);
    reducer->work->arrived = ek_clock_ns();
    ek_reducer_ready(reducer, NULL);
    /* The others may be in a node's backward that meets this rank, and not come to the reports. */
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
