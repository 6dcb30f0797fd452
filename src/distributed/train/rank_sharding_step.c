/* rank_sharding_step.c: the step of an optimizer whose parameters are sharded over ranks. The step
 * is a call of all ranks: they agree to step, step, and then get each other's shards. */
#include <string.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/thread.h"
#include "group/collective.h"
#include "group/world.h"
#include "train/rank_sharding.h"

/* What a rank's descriptor tells before a step. */
typedef struct step_descriptor {
    uint64_t digest; /* of the list of parameters that take part */
    int64_t count;   /* of parameters that take part */
} step_descriptor;

static step_descriptor step_descriptor_of(const ek_rank_sharding *self)
{
    step_descriptor descriptor = {.digest = EK_DIGEST};
    for (int i = 0; i < self->sharding.shards.leaf_count; i++) {
        bool stepped = self->sharding.shards.stepped[i];
        descriptor.digest = ek_digest_word(descriptor.digest, stepped);
        descriptor.count += stepped;
    }
    return descriptor;
}

/* ---- the communication thread ---- */

/* Returns EK_E_STATE, alike on all ranks, if ranks step different parameters. */
static int step_compare(const ek_dist_work *work)
{
    const ek_rank_sharding *self = work->user;
    const ek_process_group *group = work->group;
    step_descriptor first, other;
    memcpy(&first, ek_group_payload(group, 0), sizeof first);
    for (int r = 1; r < group->size; r++) {
        memcpy(&other, ek_group_payload(group, r), sizeof other);
        if (other.digest != first.digest || other.count != first.count)
            return EK_FAIL(EK_E_STATE,
                           "%s: of %d parameters that are divided over the ranks rank %d has "
                           "gradients of %lld, and rank %d of %lld%s; a step is of the same "
                           "parameters on all ranks",
                           ek_verb_name(EK_VERB_STEP), self->sharding.shards.leaf_count,
                           group->ranks[0], (long long)first.count, group->ranks[r],
                           (long long)other.count, other.count == first.count ? " others" : "");
    }
    return 0;
}

static int step_commit(const ek_dist_work *work)
{
    ek_rank_sharding *self = work->user;
    ek_communication *communication = work->group->communication;
    EK_TRY(step_compare(work));
    pthread_mutex_lock(&communication->lock);
    self->committed = true;
    pthread_cond_broadcast(&communication->ended);
    pthread_mutex_unlock(&communication->lock);
    return 1;
}

/* Begins to give all ranks the range's parameters. Each rank sends the parameters of its slice. */
static void step_send_range(const ek_rank_sharding *self, const ek_shared_range *range)
{
    const ek_reducer *reducer = self->reducer;
    const ek_tensor *memory = self->memory[range->bucket];
    ek_reducer_lane *lane = &self->reducer->lanes[0];
    lane->sum = (ek_sum){.group = reducer->group,
                         .schedule = reducer->schedules[EK_SUM_SENT],
                         .dtype = memory->dtype,
                         .parts = EK_SUM_GATHER,
                         .root = -1,
                         .address = ek_tensor_address(memory),
                         .count = ek_count(memory),
                         .range = {range->begin, range->end},
                         .requests = lane->requests};
    ek_sum_begin(&lane->sum);
}

static int step_go_on(ek_dist_work *work)
{
    ek_rank_sharding *self = work->user;
    if (work->stage == 0)
        return step_commit(work);
    int rc = self->sending ? ek_sum_go_on(&self->reducer->lanes[0].sum) : 1;
    if (rc <= 0) {
        EK_TRY(ek_dist_work_started(work, rc));
        return 1;
    }
    int range = self->range++, step = range - self->range_count;
    self->sending = step < 0;
    if (self->sending) {
        step_send_range(self, &self->ranges[range]);
        return 1;
    }
    rc = ek_reducer_send_reports(self->reducer, step, &work->request);
    EK_TRY(ek_dist_work_started(work, rc));
    return rc > 0;
}

static ek_readiness step_ready(ek_dist_work *work)
{
    ek_rank_sharding *self = work->user;
    if (work->stage == 0)
        return EK_READY;
    if (self->sending)
        return ek_sum_ready(&self->reducer->lanes[0].sum);
    pthread_mutex_lock(&self->reducer->lock);
    bool ready = self->closed;
    pthread_mutex_unlock(&self->reducer->lock);
    return ready ? EK_READY : EK_AWAITS_CALLER;
}

static const ek_verb step_verb = {EK_VERB_STEP, step_go_on, step_ready, .gradual = true,
                                  .compares = true};

/* ---- before the step ---- */

/* Lists the ranges of parameters to send: in each bucket, neighbours that take part. */
static void step_list_ranges(ek_rank_sharding *self)
{
    const ek_sharding *s = &self->sharding;
    const bool *stepped = s->shards.stepped;
    self->range_count = 0;
    for (int b = 0; b < self->reducer->bucket_count && !s->gathering; b++) {
        const ek_bucket *bucket = &self->reducer->buckets[b];
        for (int i = bucket->first; i < bucket->end; i++) {
            if (!stepped[i])
                continue;
            if (i == bucket->first || !stepped[i - 1])
                self->ranges[self->range_count++] = (ek_shared_range){b, s->at[i], s->at[i]};
            self->ranges[self->range_count - 1].end = s->at[i] + ek_count(s->leaves[i]);
        }
    }
}

/* Waits until the call is committed or has failed. */
static int step_wait_commit(ek_rank_sharding *self)
{
    ek_communication *communication = self->reducer->group->communication;
    pthread_mutex_lock(&communication->lock);
    while (!self->committed && !self->work->ended)
        pthread_cond_wait(&communication->ended, &communication->lock);
    bool committed = self->committed;
    pthread_mutex_unlock(&communication->lock);
    if (committed)
        return 0;
    ek_dist_work *work = self->work;
    self->work = NULL;
    return ek_dist_wait(work);
}

/* What ek_rank_sharding_agree and ek_rank_sharding_publish give to the bodies of their calls. */
typedef struct step_call {
    ek_rank_sharding *self;
    int status; /* this rank's outcome so far; if negative, the error is pending */
} step_call;

static int step_run_agree(ek_process_group *group, void *user)
{
    const step_call *call = user;
    ek_rank_sharding *self = call->self;
    EK_TRY(call->status);
    if (!group->communication)
        return EK_FAIL(EK_E_STATE, "the process group that the optimizer's state is divided over "
                                   "was destroyed");
    ek_dist_work *work = ek_dist_work_new(group, &step_verb, 0);
    if (!work)
        return ek_error_pending();
    step_descriptor descriptor = step_descriptor_of(self);
    memcpy(work->descriptor.payload, &descriptor, sizeof descriptor);
    work->descriptor.nbytes = sizeof descriptor;
    work->user = self;
    work->keeps = ek_object_retain(self->reducer);
    step_list_ranges(self);
    self->range = 0;
    self->committed = self->closed = self->sending = false;
    self->reducer->lost = (ek_error_record){0}; /* the error belongs to an earlier pass */
    self->work = work;
    EK_TRY(ek_dist_work_submit(work));
    return step_wait_commit(self);
}

int ek_rank_sharding_agree(ek_shards *shards, int status)
{
    step_call call = {(ek_rank_sharding *)shards, status};
    return ek_group_call(ek_verb_name(EK_VERB_STEP), call.self->reducer->group, step_run_agree,
                         &call);
}

/* ---- after the step ---- */

/* Copies the shards that were stepped to the memory from which they are sent. */
static int step_gather(const ek_rank_sharding *self)
{
    const ek_sharding *s = &self->sharding;
    if (s->gathering)
        return ek_rank_units_serve(self);
    EK_TRY(ek_sharding_send(s));
    for (int k = 0; k < s->shards.count; k++) {
        ek_dev *dev = ek_tensor_dev(s->shards.all[k].tensor);
        if (s->parts[k].changed && dev->id.kind == EK_CUDA)
            EK_TRY(ek_synchronize(dev->id));
    }
    return 0;
}

/* Copies to the parameters what other ranks have sent. */
static int step_scatter(ek_rank_sharding *self)
{
    ek_sharding *s = &self->sharding;
    int count = 0;
    for (int i = 0; i < s->shards.leaf_count; i++)
        if (s->shards.stepped[i] && !self->in_place[s->bucket_of[i]])
            s->moves[count++] = (ek_move){s->leaves[i], self->copies[i]};
    int rc = ek_exchange("sharing the step", s->moves, count);
    for (int i = 0; i < s->shards.leaf_count; i++)
        if (s->shards.stepped[i])
            ek_tensor_written(s->leaves[i], "the optimizer's step");
    for (int k = 0; k < s->shards.count; k++)
        if (s->parts[k].changed)
            s->parts[k].seen = ek_tensor_version(s->leaves[s->parts[k].leaf]);
    return rc;
}

/* Sends the shards, and then this rank's report. If the rank has failed before, the report tells
 * the other ranks. */
static int step_run_publish(ek_process_group *group, void *user)
{
    const step_call *call = user;
    ek_rank_sharding *self = call->self;
    ek_reducer *reducer = self->reducer;
    ek_error_record pending;
    int rc = step_gather(self), status = call->status < 0 ? call->status : rc;
    ek_reducer_write_report(reducer, status, &pending);
    pthread_mutex_lock(&reducer->lock);
    self->closed = true;
    self->work->arrived = ek_clock_ns();
    pthread_mutex_unlock(&reducer->lock);
    ek_communication_wake(group->communication);
    rc = ek_dist_wait(self->work);
    self->work = NULL;
    if (self->sharding.gathering)
        rc = ek_rank_units_published(self, rc);
    else if (rc >= 0)
        rc = step_scatter(self);
    for (const ek_shared_range *range = self->ranges; range < self->ranges + self->range_count;
         range++)
        reducer->stats.shared_nbytes += (uint64_t)(range->end - range->begin) *
                                        ek_dtype_size(self->memory[range->bucket]->dtype);
    return ek_reducer_judge(reducer, status, &pending, rc);
}

int ek_rank_sharding_publish(ek_shards *shards, int status)
{
    step_call call = {(ek_rank_sharding *)shards, status};
    return ek_group_call(ek_verb_name(EK_VERB_STEP), call.self->reducer->group, step_run_publish,
                         &call);
}
