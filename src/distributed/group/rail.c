/* rail.c: see rail.h. */
#include "group/rail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/clock.h"
#include "core/ranks.h"
#include "core/thread.h"
#include "group/sum_schedule.h"
#include "link/staging.h"

/* Seconds that a rail's job (ek_rail_job) has to end after a failure of the ranks has begun. */
static const double rail_grace = 0.5;

/* ---- a group's rails ---- */

static void rail_free(ek_group_rail *entry)
{
    if (entry->rail)
        entry->dev->backend->rails->close(entry->rail);
    free(entry);
}

/* Frees the rails that a failure has ended and that have no users. The caller holds the lock, which
 * is released while a rail is freed. */
static void rail_sweep(ek_process_group *group)
{
    ek_communication *communication = group->communication;
    for (ek_group_rail **at = &group->rails; *at;) {
        ek_group_rail *entry = *at;
        if (entry->failures == communication->failures || entry->users > 0) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        pthread_mutex_unlock(&communication->lock);
        rail_free(entry);
        pthread_mutex_lock(&communication->lock);
        at = &group->rails;
    }
}

/* Returns the device's entry, with one user more, if no failure has ended the entry; NULL if there
 * is none. */
static ek_group_rail *rail_known(ek_process_group *group, const ek_dev *dev)
{
    ek_communication *communication = group->communication;
    pthread_mutex_lock(&communication->lock);
    rail_sweep(group);
    ek_group_rail *entry = group->rails;
    while (entry && (entry->dev != dev || entry->failures != communication->failures))
        entry = entry->next;
    if (entry)
        entry->users++;
    pthread_mutex_unlock(&communication->lock);
    return entry;
}

/* Frees all rails of a group whose works have ended. */
static void rail_close_all(ek_process_group *group)
{
    while (group->rails) {
        ek_group_rail *entry = group->rails;
        group->rails = entry->next;
        rail_free(entry);
    }
}

static int rail_make(ek_process_group *group, ek_dev *dev, ek_group_rail **made, char why[200])
{
    ek_communication *communication = group->communication;
    ek_group_rail *entry = ek_calloc(1, sizeof *entry);
    if (!entry)
        return ek_error_pending();
    pthread_mutex_lock(&communication->lock);
    *entry = (ek_group_rail){.dev = dev, .users = 1, .failures = communication->failures};
    pthread_mutex_unlock(&communication->lock);
    int rc = ek_rail_open(group, entry, why);
    if (rc < 0) {
        rail_free(entry);
        return rc;
    }
    if (!entry->rail)
        ek_log_line(EK_LOG_INFO, "tensors of %s travel between the ranks of %s by host memory: %s",
                    dev->name, group->name, why);
    else
        ek_log_line(EK_LOG_INFO, "tensors of %s travel between the ranks of %s by NCCL%s",
                    dev->name, group->name, entry->library ? ", which also adds" : "");
    entry->number = ++group->rails_made;
    pthread_mutex_lock(&communication->lock);
    entry->next = group->rails;
    group->rails = entry;
    group->close_rails = rail_close_all;
    pthread_mutex_unlock(&communication->lock);
    *made = entry;
    return 0;
}

void ek_rail_release(const ek_process_group *group, ek_group_rail *rail)
{
    if (!rail)
        return;
    pthread_mutex_lock(&group->communication->lock);
    rail->users--;
    pthread_mutex_unlock(&group->communication->lock);
}

int ek_rail_find(const char *what, ek_process_group *group, ek_dev *dev, ek_group_rail **rail)
{
    const ek_communication *communication = group->communication;
    char why[200] = "";
    *rail = NULL;
    if (ek_dev_is_host(dev) || communication->backend == EK_DIST_MPI)
        return 0;
    ek_group_rail *entry = rail_known(group, dev);
    if (!entry)
        EK_TRY(rail_make(group, dev, &entry, why));
    if (entry->rail) {
        *rail = entry;
        return 0;
    }
    ek_rail_release(group, entry);
    if (communication->backend != EK_DIST_NCCL)
        return 0;
    return ek_ranks_alike(
        EK_FAIL(EK_E_BACKEND, "%s: NCCL cannot carry tensors of %s between the ranks of %s%s%s",
                what, dev->name, group->name, why[0] ? ": " : ", as a call before has found", why));
}

/* ---- the order of jobs: Note [One order of jobs] ---- */

static void turn_propose(ek_communication *communication, ek_turn *turn, int group)
{
    *turn = (ek_turn){.next = communication->turns,
                      .time = ++communication->turn_clock,
                      .group = group};
    communication->turns = turn;
}

static void turn_agree(ek_communication *communication, ek_turn *turn, uint64_t time)
{
    turn->time = time;
    turn->agreed = true;
    if (communication->turn_clock < time)
        communication->turn_clock = time;
}

static bool turn_has_come(const ek_communication *communication, const ek_turn *turn)
{
    for (const ek_turn *other = communication->turns; other; other = other->next)
        if (other->time < turn->time || (other->time == turn->time && other->group < turn->group))
            return false;
    return turn->agreed;
}

static void turn_end(ek_communication *communication, const ek_turn *turn)
{
    ek_turn **at = &communication->turns;
    while (*at && *at != turn)
        at = &(*at)->next;
    if (*at)
        *at = turn->next;
}

/* ---- runs ---- */

int ek_rail_run_open(ek_rail_run *run, const ek_process_group *group, ek_group_rail *rail)
{
    size_t ranks = (size_t)group->size;
    *run = (ek_rail_run){.rail = rail};
    run->bytes = ek_calloc(4 * ranks, sizeof *run->bytes);
    if (run->bytes)
        return 0;
    ek_rail_run_close(run, group);
    return ek_error_pending();
}

void ek_rail_run_close(ek_rail_run *run, const ek_process_group *group)
{
    ek_rail_release(group, run->rail);
    ek_object_release(run->scratch);
    free(run->bytes);
    *run = (ek_rail_run){0};
}

int ek_rail_run_room(ek_rail_run *run, size_t nbytes)
{
    ek_shape shape = EK_SHAPE((int64_t)nbytes);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_scope scope = ek_scope_begin();
    run->scratch = ek_object_retain(ek_tensor_new(run->rail->dev, EK_U8, &shape, EK_CONTIGUOUS));
    ek_scope_end(&scope);
    ek_memory_set_category(before);
    return run->scratch ? 0 : ek_error_pending();
}

void ek_rail_run_broadcast(ek_rail_run *run, const ek_tensor *memory, int root)
{
    run->job = (ek_rail_job){.data = ek_tensor_address(memory),
                             .nbytes = ek_comm_nbytes(memory),
                             .root = root};
}

void ek_rail_run_pairs(ek_rail_run *run, const ek_dist_work *work, int op)
{
    const ek_tensor *memory = work->tensors[0].memory;
    run->job = (ek_rail_job){.out = work->out, .in = work->in};
    if (op < 0)
        return;
    work->in[work->group->rank].nbytes = 0; /* the term of this rank is read from work->out */
    run->job.op = (ek_dist_op)op;
    run->job.dtype = memory->dtype;
    run->job.terms = work->in[0].data;
    run->job.stride = (size_t)((char *)work->in[1].data - (char *)work->in[0].data);
    run->job.own = work->out[work->group->rank].data;
    run->job.sum = ek_tensor_address(memory);
    run->job.count = ek_count(memory);
}

/* Returns slice r of the elements, which rank r combines. */
static ek_bytes run_slice(const ek_rail_job *job, char *address, int64_t count, int ranks, int r)
{
    size_t size = ek_dtype_size(job->dtype);
    ek_interval slice = ek_slab_slice(count, EK_SUM_UNIT, ranks, r);
    return (ek_bytes){address + (size_t)slice.begin * size,
                      (size_t)(slice.end - slice.begin) * size};
}

int ek_rail_run_sum(ek_rail_run *run, const ek_process_group *group, ek_dist_op op, ek_dtype dtype,
                    char *address, int64_t count, int root)
{
    int ranks = group->size, rank = group->rank;
    ek_rail_job *job = &run->job;
    ek_bytes *out = run->bytes, *in = out + ranks, *out_after = in + ranks,
             *in_after = out_after + ranks;
    *job = (ek_rail_job){.op = op, .dtype = dtype, .root = root};
    if (run->rail->library && root < 0 && op <= EK_DIST_MAX) {
        job->data = address;
        job->count = count;
        return 0;
    }
    size_t pitch = run_slice(job, address, count, ranks, 0).nbytes; /* bytes of the largest slice */
    if (!run->scratch)
        EK_TRY(ek_rail_run_room(run, pitch * (size_t)ranks));
    ek_bytes mine = run_slice(job, address, count, ranks, rank);
    char *terms = ek_tensor_address(run->scratch);
    bool gets = root < 0 || root == rank;
    job->out = out;
    job->in = in;
    job->out_after = out_after;
    job->in_after = in_after;
    job->terms = terms;
    job->stride = pitch;
    job->own = mine.data;
    /* On other ranks than the root, elements must not change. */
    job->sum = gets ? mine.data : terms + (size_t)rank * pitch;
    job->count = (int64_t)(mine.nbytes / ek_dtype_size(dtype));
    for (int r = 0; r < ranks; r++) {
        ek_bytes slice = run_slice(job, address, count, ranks, r);
        bool other = r != rank;
        out[r] = other ? slice : (ek_bytes){0};
        in[r] = other ? (ek_bytes){terms + (size_t)r * pitch, mine.nbytes} : (ek_bytes){0};
        out_after[r] =
            other && (root < 0 || r == root) ? (ek_bytes){job->sum, mine.nbytes} : (ek_bytes){0};
        in_after[r] = other && gets ? slice : (ek_bytes){0};
    }
    return 0;
}

/* ---- a run on the communication thread ---- */

enum { RUN_MEET, RUN_PROPOSE, RUN_AGREE, RUN_BEGIN, RUN_ISSUED, RUN_END };

void ek_rail_run_restart(ek_rail_run *run)
{
    run->step = run->meets ? RUN_MEET : RUN_PROPOSE;
    run->state = EK_RAIL_BUSY;
    run->failure = 0;
    run->error = (ek_error_record){0};
}

/* Ends the run with the last failure of the ranks. */
static void run_leave(ek_rail_run *run, const ek_communication *communication)
{
    run->state = -1;
    run->rail->broken = true;
    run->failure = communication->failures;
    run->error = communication->failure.error;
}

/* Makes this rank's pending error a failure of the job, and ends the run with that failure. */
static void run_fail(ek_rail_run *run, ek_communication *communication)
{
    ek_communication_fail_here(communication);
    run_leave(run, communication);
}

/* Returns true if a failure of the ranks has been under way for so long that their parts of the
 * rail's job will never come. */
static bool run_is_left(const ek_communication *communication)
{
    return communication->failing &&
           (double)(ek_clock_ns() - communication->draining) > rail_grace * 1e9;
}

static void run_test(ek_rail_run *run, ek_communication *communication)
{
    ek_group_rail *rail = run->rail;
    if (run->state < 0 || run->state == EK_RAIL_DONE)
        return;
    if (rail->broken || run_is_left(communication)) {
        run_leave(run, communication);
        return;
    }
    run->state = rail->dev->backend->rails->test(rail->rail);
    if (run->state < 0)
        run_fail(run, communication);
}

static const char run_order[] = "the order of jobs"; /* The name of a run's rounds in errors. */

ek_readiness ek_rail_run_ready(ek_rail_run *run, const ek_process_group *group)
{
    ek_communication *communication = group->communication;
    bool ready = true;
    if (ek_rounds_are_open(&run->rounds)) {
        int rc = ek_rounds_test(&run->rounds, group);
        if (rc < 0)
            ek_communication_break(communication, run_order, rc);
        if (rc <= 0)
            return EK_AWAITS_RANKS;
    }
    if (run->step == RUN_BEGIN)
        ready = !run->rail->busy && turn_has_come(communication, &run->turn);
    if (run->step == RUN_ISSUED || run->step == RUN_END)
        run_test(run, communication);
    if (run->step == RUN_ISSUED)
        ready = run->state != EK_RAIL_BUSY;
    if (run->step == RUN_END)
        ready = run->state < 0 || run->state == EK_RAIL_DONE;
    return ready ? EK_READY : EK_AWAITS_RANKS;
}

/* Combines two ranks' proposals (rounds.h). */
static void run_latest(void *block, const void *other, size_t nbytes)
{
    if (*(const uint64_t *)other > *(uint64_t *)block)
        memcpy(block, other, nbytes);
}

static int run_tell(ek_rail_run *run, const ek_process_group *group)
{
    ek_communication *communication = group->communication;
    int rc = ek_rounds_reduce(&run->rounds, group, EK_ROUNDS_TAG + 1, run->times,
                              sizeof *run->times, run_latest);
    if (rc >= 0)
        return 1;
    ek_communication_break(communication, run_order, rc);
    return ek_error_raise(&communication->failure.error);
}

static void run_begin(ek_rail_run *run, ek_communication *communication)
{
    ek_group_rail *rail = run->rail;
    rail->busy = true;
    if (rail->broken) {
        run_leave(run, communication);
    } else if (rail->dev->backend->rails->begin(rail->rail, &run->job) < 0) {
        run_fail(run, communication);
    }
}

/* Ends the run. If its job has failed, or a failure of the ranks has ended the run, closes the rail
 * and returns the error. */
static int run_end(ek_rail_run *run)
{
    ek_group_rail *rail = run->rail;
    rail->busy = false;
    if (run->state >= 0)
        return 0;
    if (rail->rail)
        rail->dev->backend->rails->close(rail->rail);
    rail->rail = NULL;
    return ek_error_raise(&run->error);
}

int ek_rail_run_go_on(ek_rail_run *run, const ek_process_group *group)
{
    ek_communication *communication = group->communication;
    switch (run->step++) {
    case RUN_MEET:
        return run_tell(run, group);
    case RUN_PROPOSE:
        turn_propose(communication, &run->turn, group->number);
        run->times[0] = run->turn.time;
        return run_tell(run, group);
    case RUN_AGREE:
        turn_agree(communication, &run->turn, run->times[0]);
        return 1;
    case RUN_BEGIN:
        run_begin(run, communication);
        return 1;
    case RUN_ISSUED: /* jobs of other rails may be issued now */
        turn_end(communication, &run->turn);
        return 1;
    default:
        return run_end(run);
    }
}

bool ek_rail_run_is_over(const ek_rail_run *run)
{
    return run->step > RUN_END;
}

/* ---- works ---- */

/* Gives a tensor row-major memory on the rail's device, as ek_stage_open does on the host. */
static int rail_stage(const ek_rail_run *run, ek_dist_work_tensor *one, ek_tensor *tensor,
                      bool sends)
{
    ek_dev *dev = run->rail->dev;
    ek_shape shape = ek_tensor_shape(tensor);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_scope scope = ek_scope_begin();
    bool plain = ek_tensor_dev(tensor) == dev && !tensor->storage->residence &&
                 ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS);
    ek_tensor *memory = plain ? tensor : ek_tensor_new(dev, tensor->dtype, &shape, EK_CONTIGUOUS);
    int rc = memory ? 0 : ek_error_pending();
    if (memory && sends && !plain)
        rc = ek_comm_copy(memory, tensor);
    if (rc >= 0) {
        one->memory = ek_object_retain(memory);
        one->source = ek_object_retain(memory);
        ek_dev_record_event(dev, EK_STREAM_COMPUTE, &one->event);
    }
    ek_scope_end(&scope);
    ek_memory_set_category(before);
    return rc;
}

static const ek_rail_calls rail_calls = {.stage = rail_stage, .close = ek_rail_run_close};

int ek_dist_work_rail(ek_dist_work *work, const ek_tensor *tensor)
{
    ek_group_rail *rail;
    EK_TRY(ek_rail_find(ek_verb_name(work->verb->id), work->group, ek_tensor_dev(tensor), &rail));
    if (!rail)
        return 0;
    work->rail = ek_calloc(1, sizeof *work->rail);
    if (!work->rail) {
        ek_rail_release(work->group, rail);
        return ek_error_pending();
    }
    work->rail_calls = &rail_calls;
    work->descriptor.rail = rail->number;
    EK_TRY(ek_rail_run_open(work->rail, work->group, rail));
    ek_rail_run_restart(work->rail);
    return 0;
}

int ek_rail_go_on(ek_dist_work *work)
{
    int rc = ek_rail_run_go_on(work->rail, work->group);
    if (rc < 0)
        work->failure = work->rail->failure;
    return rc;
}

ek_readiness ek_rail_ready(ek_dist_work *work)
{
    return work->rail ? ek_rail_run_ready(work->rail, work->group) : EK_READY;
}
