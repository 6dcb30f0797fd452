/* divided_step.c: an optimizer's step of divided parameters, as a call of all ranks: they agree
 * that they will step, and then get each other's shards. */
#include <string.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/thread.h"
#include "group/collective.h"
#include "group/sum.h"
#include "group/world.h"
#include "train/divided.h"

/* What a rank says when it is about to step. It travels in its card. */
typedef struct step_card {
    uint64_t digest; /* of which parameters take part */
    int64_t count;   /* of these */
} step_card;

static step_card step_card_of(const ek_divided *d)
{
    step_card card = {.digest = EK_DIGEST};
    for (int i = 0; i < d->flat.count; i++) {
        card.digest = ek_digest_word(card.digest, d->flat.stepped[i]);
        card.count += d->flat.stepped[i];
    }
    return card;
}

/* ---- the communication thread ---- */

/* EK_E_STATE, alike on all ranks, unless all step the same parameters. */
static int step_compare(const ek_dist_work *work)
{
    const ek_divided *d = work->user;
    const ek_process_group *group = work->group;
    step_card first, other;
    memcpy(&first, group->cards[0].payload, sizeof first);
    for (int r = 1; r < group->size; r++) {
        memcpy(&other, group->cards[r].payload, sizeof other);
        if (other.digest != first.digest || other.count != first.count)
            return EK_FAIL(EK_E_STATE,
                           "%s: of %d parameters that are divided over the ranks rank %d has "
                           "gradients of %lld, and rank %d of %lld%s; a step is of the same "
                           "parameters on all ranks",
                           ek_verb_name(EK_VERB_STEP), d->flat.count, group->ranks[0],
                           (long long)first.count, group->ranks[r], (long long)other.count,
                           other.count == first.count ? " others" : "");
    }
    return 0;
}

static int step_commit(const ek_dist_work *work)
{
    ek_divided *d = work->user;
    ek_communication *communication = work->group->communication;
    EK_TRY(step_compare(work));
    pthread_mutex_lock(&communication->lock);
    d->committed = true;
    pthread_cond_broadcast(&communication->ended);
    pthread_mutex_unlock(&communication->lock);
    return 1;
}

/* Gives all ranks the run's parameters. Each rank has those of its slice. */
static int step_send_run(const ek_divided *d, const ek_divided_run *run, ek_request **request)
{
    const ek_process_group *group = d->reducer->group;
    const ek_tensor *memory = d->memory[run->bucket];
    size_t size = ek_dtype_size(memory->dtype), *bounds = d->reducer->bounds;
    for (int r = 0; r <= group->size; r++) {
        int64_t at = ek_sum_begin(ek_count(memory), group->size, r);
        at = at < run->begin ? run->begin : at > run->end ? run->end : at;
        bounds[r] = (size_t)(at - run->begin) * size;
    }
    return group->communication->transport->all_gather(group->communicator,
                                                       (char *)ek_tensor_address(memory) +
                                                           (size_t)run->begin * size,
                                                       bounds, request);
}

static int step_go_on(ek_dist_work *work)
{
    ek_divided *d = work->user;
    if (work->stage == 0)
        return step_commit(work);
    int run = d->run++, rc;
    if (run > d->run_count)
        return 0;
    rc = run < d->run_count ? step_send_run(d, &d->runs[run], &work->request)
                            : ek_reducer_send_reports(d->reducer, &work->request);
    EK_TRY(ek_dist_work_started(work, rc));
    return 1;
}

static ek_readiness step_ready(ek_dist_work *work)
{
    ek_divided *d = work->user;
    if (work->stage == 0)
        return EK_READY;
    pthread_mutex_lock(&d->reducer->lock);
    bool ready = d->closed;
    pthread_mutex_unlock(&d->reducer->lock);
    return ready ? EK_READY : EK_AWAITS_CALLER;
}

static const ek_verb step_verb = {.id = EK_VERB_STEP,
                                  .go_on = step_go_on,
                                  .ready = step_ready,
                                  .gradual = true};

/* ---- before the step ---- */

/* Lists what will be sent: per bucket, stretches of parameters that take part. */
static void step_list_runs(ek_divided *d)
{
    const ek_reducer *reducer = d->reducer;
    d->run_count = 0;
    for (int b = 0; b < reducer->bucket_count; b++) {
        const ek_bucket *bucket = &reducer->buckets[b];
        for (int i = bucket->first; i < bucket->end; i++) {
            const ek_tensor *buffer = reducer->leaves[i]->grad_buffer;
            int64_t at = buffer->offset - bucket->range->offset;
            if (!d->flat.stepped[i])
                continue;
            if (i == bucket->first || !d->flat.stepped[i - 1])
                d->runs[d->run_count++] = (ek_divided_run){b, at, at};
            d->runs[d->run_count - 1].end = at + ek_count(buffer);
        }
    }
}

/* Waits until the call is committed, or has failed. */
static int step_wait_commit(ek_divided *d)
{
    ek_communication *communication = d->reducer->group->communication;
    pthread_mutex_lock(&communication->lock);
    while (!d->committed && !d->work->ended)
        pthread_cond_wait(&communication->ended, &communication->lock);
    bool committed = d->committed;
    pthread_mutex_unlock(&communication->lock);
    if (committed)
        return 0;
    ek_dist_work *work = d->work;
    d->work = NULL;
    return ek_dist_wait(work);
}

int ek_divided_agree(ek_flat *flat, int status)
{
    ek_divided *d = (ek_divided *)flat;
    ek_process_group *group = d->reducer->group;
    if (!group->communication)
        return status < 0 ? status
                          : EK_FAIL(EK_E_STATE, "the process group that the optimizer's state is "
                                                "divided over was destroyed");
    if (status < 0)
        return ek_world_outcome(group, status);
    ek_dist_work *work = ek_dist_work_new(group, &step_verb);
    if (!work)
        return ek_world_outcome(group, ek_error_pending());
    step_card card = step_card_of(d);
    memcpy(work->card.payload, &card, sizeof card);
    work->card.nbytes = sizeof card;
    work->user = d;
    step_list_runs(d);
    d->run = 0;
    d->committed = d->closed = false;
    d->reducer->lost = (ek_error_record){0}; /* of a pass before */
    d->work = work;
    EK_TRY(ek_dist_work_submit(work));
    return step_wait_commit(d);
}

/* ---- after the step ---- */

static int step_move(const ek_divided *d, int count)
{
    return ek_exchange("sharing the step", d->moves, count);
}

/* Brings the shards that were stepped to where they are sent from. */
static int step_gather(const ek_divided *d)
{
    int count = 0;
    for (int k = 0; k < d->flat.shard_count; k++) {
        ek_tensor *sent = d->parts[k].sent, *tensor = d->flat.shards[k].tensor;
        if (d->flat.stepped[d->parts[k].leaf] && sent->storage != tensor->storage)
            d->moves[count++] = (ek_move){sent, tensor};
    }
    EK_TRY(step_move(d, count));
    for (int i = 0; i < count; i++)
        if (ek_tensor_dev(d->moves[i].from)->id.kind == EK_CUDA)
            EK_TRY(ek_synchronize(ek_tensor_dev(d->moves[i].from)->id));
    return 0;
}

/* Brings what came to the parameters. */
static int step_scatter(ek_divided *d)
{
    int count = 0;
    for (int i = 0; i < d->flat.count; i++)
        if (d->flat.stepped[i] && !d->in_place[d->reducer->bucket_of[i]])
            d->moves[count++] = (ek_move){d->wholes[i], d->copies[i]};
    int rc = step_move(d, count);
    for (int i = 0; i < d->flat.count; i++)
        if (d->flat.stepped[i])
            ek_tensor_written(d->reducer->leaves[i], "the optimizer's step");
    for (int k = 0; k < d->flat.shard_count; k++) {
        ek_divided_part *part = &d->parts[k];
        if (d->flat.stepped[part->leaf])
            part->seen = ek_tensor_version(d->reducer->leaves[part->leaf]);
    }
    return rc;
}

/* A failure up to here is in the report of this rank, and an error on all. */
int ek_divided_publish(ek_flat *flat, int status)
{
    ek_divided *d = (ek_divided *)flat;
    ek_reducer *reducer = d->reducer;
    ek_error_record pending;
    int rc = step_gather(d);
    status = status < 0 ? status : rc;
    ek_reducer_write_report(reducer, status, &pending);
    pthread_mutex_lock(&reducer->lock);
    d->closed = true;
    d->work->arrived = ek_clock_ns();
    pthread_mutex_unlock(&reducer->lock);
    ek_communication_wake(reducer->group->communication);
    rc = ek_dist_wait(d->work);
    d->work = NULL;
    if (rc >= 0)
        rc = ek_world_outcome(reducer->group, step_scatter(d));
    for (const ek_divided_run *run = d->runs; run < d->runs + d->run_count; run++)
        reducer->stats.shared_nbytes +=
            (uint64_t)(run->end - run->begin) * ek_dtype_size(d->memory[run->bucket]->dtype);
    return ek_reducer_judge(reducer, status, &pending, rc);
}
