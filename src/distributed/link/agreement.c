/* agreement.c: makes a group's works one after another: first the agreement, then the transfers
 * (communication.h, Note [Agreement]). */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/error.h"
#include "link/combine.h"
#include "link/communication.h"
#include "link/staging.h"

/* The descriptor of a rank without a work, which has given the group up or knows that the job has
 * failed. */
static const ek_descriptor agreement_no_work = {.verb = EK_VERB_DESTROY_GROUP,
                                                .op = -1,
                                                .root = -1,
                                                .shape = {.dtype = -1}};

static const ek_descriptor *agreement_descriptor(const ek_dist_work *work)
{
    return work ? &work->descriptor : &agreement_no_work;
}

/* Writes what a descriptor says, such as "broadcast of f32[2, 3], root rank 1". */
static void agreement_describe(const ek_process_group *group, const ek_descriptor *descriptor,
                               char text[200])
{
    char shape[120];
    int at = snprintf(text, 200, "%s", ek_verb_name(descriptor->verb));
    ek_wire_shape_text(&descriptor->shape, shape);
    if (descriptor->shape.dtype >= 0)
        at += snprintf(text + at, 200 - (size_t)at, " of %s", shape);
    if (descriptor->op >= 0)
        at += snprintf(text + at, 200 - (size_t)at, " by %s",
                       ek_combine_name((ek_dist_op)descriptor->op));
    if (descriptor->root >= 0)
        at +=
            snprintf(text + at, 200 - (size_t)at, ", root rank %d", group->ranks[descriptor->root]);
    if (descriptor->rail > 0)
        snprintf(text + at, 200 - (size_t)at, " between GPUs (set %d of them)",
                 (int)descriptor->rail);
}

static bool agreement_same(const ek_process_group *group, const ek_descriptor *a,
                           const ek_descriptor *b)
{
    if (!group->communication->check)
        return a->verb == b->verb && a->rail == b->rail;
    return memcmp(a, b, EK_DESCRIPTOR_CALL) == 0;
}

/* Compares the calls that were gathered. Returns 0 if they are equal, else EK_E_STATE with the
 * first call that differs from rank 0's. */
static int agreement_compare(const ek_process_group *group)
{
    ek_descriptor of_first = {0}, of_other = {0};
    memcpy(&of_first, group->gathered, EK_DESCRIPTOR_CALL);
    for (int r = 1; r < group->size; r++) {
        memcpy(&of_other, group->gathered + (size_t)r * EK_DESCRIPTOR_CALL, EK_DESCRIPTOR_CALL);
        if (agreement_same(group, &of_first, &of_other))
            continue;
        char first[200], other[200];
        agreement_describe(group, &of_first, first);
        agreement_describe(group, &of_other, other);
        return EK_FAIL(EK_E_STATE,
                       "call %llu of %s differs: rank %d calls %s, rank %d %s; all ranks of a "
                       "group make the same calls in the same order",
                       (unsigned long long)group->calls + 1, group->name, group->ranks[0], first,
                       group->ranks[r], other);
    }
    return 0;
}

static void agreement_pop(ek_process_group *group)
{
    group->first = group->first->next;
    if (!group->first)
        group->end = &group->first;
}

/* Returns true if a failure is under way and the group has had no agreement yet in which a rank
 * took no part because of that failure. */
static bool agreement_is_unclean(const ek_process_group *group)
{
    return group->communication->failing && group->clean <= group->communication->epoch;
}

static uint64_t agreement_digest(const ek_process_group *group, const ek_descriptor *descriptor)
{
    if (group->communication->check)
        return ek_digest_bytes(EK_DIGEST, descriptor, EK_DESCRIPTOR_CALL);
    return ek_digest_word(ek_digest_word(EK_DIGEST, (uint64_t)descriptor->verb),
                          (uint64_t)descriptor->rail);
}

/* Combines the agreements of two ranks (rounds.h). */
static void agreement_combine(void *block, const void *other, size_t nbytes)
{
    ek_agreement *a = block;
    const ek_agreement *b = other;
    (void)nbytes;
    a->calls_differ = a->calls_differ || b->calls_differ || a->call != b->call;
    a->payloads_differ = a->payloads_differ || b->payloads_differ || a->payload != b->payload;
    a->timed_differ = a->timed_differ || b->timed_differ || a->timed != b->timed;
    a->required = b->required < a->required ? b->required : a->required;
    a->off = b->off < a->off ? b->off : a->off;
    a->failed = b->failed > a->failed ? b->failed : a->failed;
    if (b->waited < a->waited || (b->waited == a->waited && b->last < a->last)) {
        a->waited = b->waited;
        a->last = b->last;
    }
}

/* Tells whether the ranks' blocks are gathered, with payloads, and combined here. */
static bool agreement_is_direct(const ek_process_group *group)
{
    return group->size <= EK_ROUNDS_DIRECT;
}

static void agreement_started(ek_process_group *group, int rc)
{
    if (rc < 0)
        ek_communication_break(group->communication, "agreement", rc);
}

/* Begins the agreement, with the work's descriptor. NULL: the job has failed, or this rank has
 * given the group up. */
static void agreement_begin(ek_process_group *group, ek_dist_work *work)
{
    const ek_descriptor *descriptor = agreement_descriptor(work);
    if (work) {
        if (work->count > 0 && work->tensors[0].source && work->descriptor.nbytes > 0)
            memcpy(work->descriptor.payload, ek_tensor_address(work->tensors[0].memory),
                   work->descriptor.nbytes);
        work->state = EK_DIST_WORK_AGREEING;
    }
    ek_agreement *told = &group->blocks[agreement_is_direct(group) ? group->rank : 0].told;
    memset(told, 0, sizeof *told);
    told->call = agreement_digest(group, descriptor);
    told->payload = ek_digest_bytes(EK_DIGEST, descriptor->payload, descriptor->nbytes);
    told->failed = !work && agreement_is_unclean(group) ? group->communication->epoch + 1 : 0;
    told->timed = group->timed;
    told->waited = group->waited;
    told->last = group->rank;
    told->required =
        descriptor->gradient == EK_DESCRIPTOR_GRADIENT_REQUIRED ? group->rank : INT32_MAX;
    told->off = descriptor->gradient == EK_DESCRIPTOR_GRADIENT_OFF ? group->rank : INT32_MAX;
    group->answering = !work;
    group->timed = group->busy_since = 0;
    group->arrived = ek_clock_ns();
    group->agreement = EK_AGREEMENT_REDUCES;
    int rc;
    if (agreement_is_direct(group)) {
        memcpy(group->blocks[group->rank].payload, descriptor->payload, descriptor->nbytes);
        group->payloads = group->blocks[0].payload;
        group->payload_stride = sizeof *group->blocks;
        rc = ek_process_group_gather(group, group->blocks, sizeof *group->blocks);
    } else {
        group->payloads = descriptor->payload;
        group->payload_stride = 0;
        rc = ek_rounds_reduce(&group->rounds, group, EK_ROUNDS_TAG, group->blocks,
                              sizeof(ek_agreement), agreement_combine);
    }
    agreement_started(group, rc);
}

/* Begins to gather all ranks' calls or payloads, of which this rank's is `mine`. */
static void agreement_gather(ek_process_group *group, const void *mine, size_t nbytes)
{
    memcpy(group->gathered + (size_t)group->rank * nbytes, mine, nbytes);
    agreement_started(group, ek_process_group_gather(group, group->gathered, nbytes));
}

/* Tells whether the work needs payloads that did not travel with what the ranks have told. */
static bool agreement_lacks_payloads(const ek_process_group *group, const ek_dist_work *work)
{
    return work && work->descriptor.nbytes > 0 && !agreement_is_direct(group) &&
           group->agreement != EK_AGREEMENT_GATHERS_PAYLOADS &&
           (!work->verb->compares || group->agreed.payloads_differ);
}

/* Calls differ, and the error is pending. Begins a failure of the job, because the ranks may wait
 * for each other in other groups too. Ends the work (NULL: there is none) with the error. */
static void agreement_differ(ek_process_group *group, ek_dist_work *work)
{
    ek_communication *communication = group->communication;
    ek_error_record error;
    ek_error_take(&error);
    ek_communication_fail(communication, group->ranks[0], &error);
    if (!work)
        return;
    agreement_pop(group);
    work->failure = communication->failures;
    ek_dist_work_end(work, ek_error_raise(&error));
}

/* Ends the agreement. If `differ`, the calls differ, and the error is pending. The function may
 * close and free the group. */
static void agreement_end(ek_process_group *group, ek_dist_work *work, bool differ)
{
    uint32_t failed = group->agreed.failed;
    group->agreement = EK_AGREEMENT_NONE;
    group->calls++;
    if (failed > group->clean)
        group->clean = failed;
    ek_waits_compare(group);
    if (failed) {
        if (work) {
            work->state = EK_DIST_WORK_REFUSED;
            work->refused = failed - 1;
        }
    } else if (differ) {
        agreement_differ(group, work);
    } else if (!work) {
        ek_process_group_close(group);
    } else {
        work->state = EK_DIST_WORK_COMMITTED;
        if (!work->verb->gradual)
            ek_waits_time(group, work);
    }
}

/* Begins the agreement's next exchange after one has ended, or ends the agreement. */
static void agreement_advance(ek_process_group *group)
{
    ek_dist_work *work = group->answering ? NULL : group->first;
    bool told = group->agreement == EK_AGREEMENT_REDUCES, differ = false;
    if (told) {
        group->agreed = group->blocks[0].told;
        for (int r = 1; r < group->size && agreement_is_direct(group); r++)
            agreement_combine(&group->agreed, &group->blocks[r].told, sizeof group->agreed);
    }
    bool failed = group->agreed.failed > 0;
    if (group->agreement == EK_AGREEMENT_GATHERS_CALLS)
        differ = agreement_compare(group) < 0;
    if (told && !failed && group->agreed.calls_differ) {
        group->agreement = EK_AGREEMENT_GATHERS_CALLS;
        agreement_gather(group, agreement_descriptor(work), EK_DESCRIPTOR_CALL);
    } else if (!failed && !differ && agreement_lacks_payloads(group, work)) {
        group->agreement = EK_AGREEMENT_GATHERS_PAYLOADS;
        group->payloads = group->gathered;
        group->payload_stride = ((size_t)work->descriptor.nbytes + 7) / 8 * 8;
        agreement_gather(group, work->descriptor.payload, group->payload_stride);
    } else {
        agreement_end(group, work, differ);
    }
}

/* Makes the next step of the group's first work. Ends the work if its verb has started no transfer
 * and wants no further step. */
static void agreement_go_on(ek_process_group *group, ek_dist_work *work)
{
    int rc = work->verb->go_on(work);
    if (group->communication->broken) { /* breaking the world has ended the work */
        ek_error_clear();
        return;
    }
    work->stage++;
    if (work->request || ek_rounds_are_open(&group->rounds) || rc > 0)
        return;
    if (work->verb->gradual) {
        ek_waits_send(group, false);
        ek_waits_time(group, work);
    }
    agreement_pop(group);
    ek_dist_work_end(work, rc);
}

static void agreement_inquire_if_late(const ek_process_group *group)
{
    ek_communication *communication = group->communication;
    if (group->first && !communication->failing && ek_dist_work_is_late(group->first))
        ek_notices_inquire(communication, group->first, -1);
}

/* Tells whether the group's first work can make its next step. */
static bool agreement_is_ready(ek_process_group *group, ek_dist_work *work)
{
    if (!work->verb->ready)
        return true;
    ek_readiness readiness = work->verb->ready(work);
    work->awaits_caller = readiness == EK_AWAITS_CALLER;
    ek_waits_send(group, !work->awaits_caller);
    if (readiness == EK_AWAITS_RANKS)
        agreement_inquire_if_late(group);
    else if (work->verb->gradual) /* time in which this rank's part is missing does not count */
        work->began = ek_clock_ns();
    return readiness == EK_READY;
}

/* Makes progress with the group's rounds or with the request of its first work, if one of them is
 * open. Returns true if none is open any more. If the transfer fails, breaks the world and returns
 * false. If it is incomplete and the first work is late, begins an inquiry. */
static bool agreement_transfers(ek_process_group *group)
{
    ek_communication *communication = group->communication;
    ek_dist_work *work = group->first;
    int rc = 1;
    if (ek_rounds_are_open(&group->rounds))
        rc = ek_rounds_test(&group->rounds, group);
    else if (work && work->request)
        rc = communication->transport->test(&work->request, NULL);
    if (rc < 0)
        ek_communication_break(communication,
                               group->agreement ? "agreement" : ek_verb_name(work->verb->id), rc);
    else if (rc == 0)
        agreement_inquire_if_late(group);
    return rc > 0;
}

/* Begins the agreement of the group's first work once the work's tensors are complete
 * (communication.h, Note [Agreement]). If they can't be completed, begins a failure of the job.
 * Returns false while the tensors are on their way. */
static bool agreement_stage(ek_process_group *group, ek_dist_work *work)
{
    ek_communication *communication = group->communication;
    int staged = ek_dist_work_staged(work);
    if (staged > 0) {
        agreement_begin(group, work);
    } else if (staged < 0) { /* the other ranks wait for this rank */
        ek_communication_fail_here(communication);
    }
    return staged != 0;
}

bool ek_group_turn(ek_process_group *group)
{
    const ek_communication *communication = group->communication;
    ek_dist_work *work = group->first;
    if (!agreement_transfers(group))
        return false;
    if (group->agreement) {
        agreement_advance(group);
        return true;
    }
    if (work && work->state == EK_DIST_WORK_COMMITTED) {
        if (!agreement_is_ready(group, work))
            return false;
        agreement_go_on(group, work);
        return true;
    }
    if (work && work->state == EK_DIST_WORK_REFUSED) {
        /* The notice of the failure is on its way. An earlier failure may still be under way. */
        if (!communication->failing || communication->epoch < work->refused)
            return false;
        agreement_pop(group);
        ek_dist_work_abort(work);
        return true;
    }
    if (agreement_is_unclean(group)) {
        agreement_begin(group, NULL);
        return true;
    }
    if (work)
        return agreement_stage(group, work);
    if (!ek_process_group_is_given_up(group))
        return false;
    agreement_begin(group, NULL);
    return true;
}
