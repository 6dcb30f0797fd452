/* agreement.c: makes a group's works one after another: first the agreement, then the transfers
 * (communication.h, Note [Agreement]). */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "link/combine.h"
#include "link/communication.h"
#include "link/staging.h"

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
    return memcmp(&a->verb, &b->verb,
                  offsetof(ek_descriptor, nbytes) - offsetof(ek_descriptor, verb)) == 0;
}

/* Returns 0 if all descriptors name the same call, else EK_E_STATE with the first descriptor that
 * differs from rank 0's. */
static int agreement_compare(const ek_process_group *group)
{
    for (int r = 1; r < group->size; r++) {
        if (agreement_same(group, &group->descriptors[0], &group->descriptors[r]))
            continue;
        char first[200], other[200];
        agreement_describe(group, &group->descriptors[0], first);
        agreement_describe(group, &group->descriptors[r], other);
        return EK_FAIL(EK_E_STATE,
                       "call %llu of %s differs: rank %d calls %s, rank %d %s; all ranks of a "
                       "group make the same calls in the same order",
                       (unsigned long long)group->calls, group->name, group->ranks[0], first,
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

/* Returns true if a failure is under way and the group has had no agreement with a failed
 * descriptor of that failure yet. */
static bool agreement_is_unclean(const ek_process_group *group)
{
    return group->communication->failing && group->clean <= group->communication->epoch;
}

/* Sends this rank's descriptor. Without a work, the descriptor says that the job has failed or that
 * this rank has given the group up. */
static void agreement_begin(ek_process_group *group, ek_dist_work *work)
{
    ek_communication *communication = group->communication;
    ek_descriptor *descriptor = &group->descriptors[group->rank];
    if (work) {
        if (work->count > 0 && work->tensors[0].source && work->descriptor.nbytes > 0)
            memcpy(work->descriptor.payload, ek_tensor_address(work->tensors[0].memory),
                   work->descriptor.nbytes);
        *descriptor = work->descriptor;
        work->state = EK_DIST_WORK_AGREEING;
    } else {
        memset(descriptor, 0, sizeof *descriptor);
        descriptor->failed = agreement_is_unclean(group);
        descriptor->epoch = communication->epoch;
        descriptor->verb = EK_VERB_DESTROY_GROUP;
        descriptor->op = descriptor->shape.dtype = descriptor->root = -1;
    }
    group->answering = !work;
    descriptor->timed = group->timed;
    descriptor->waited = group->waited;
    group->timed = group->busy_since = 0;
    group->arrived = ek_clock_ns();
    int rc = ek_process_group_gather(group, group->descriptors, sizeof(ek_descriptor),
                                     &group->agreement);
    if (rc < 0)
        ek_communication_break(communication, "agreement", rc);
}

/* Begins a failure of the job with the pending error of calls that differ, because the ranks may
 * wait for each other in other groups too. Ends the work (NULL: there is none) with the error. */
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

/* Ends the agreement. The function may close and free the group. */
static void agreement_end(ek_process_group *group)
{
    ek_dist_work *work = group->answering ? NULL : group->first;
    bool failed = false;
    uint32_t epoch = 0; /* the latest epoch in a failed descriptor */
    group->calls++;
    for (int r = 0; r < group->size; r++) {
        const ek_descriptor *descriptor = &group->descriptors[r];
        if (descriptor->failed && group->clean <= descriptor->epoch)
            group->clean = descriptor->epoch + 1;
        if (descriptor->failed && descriptor->epoch > epoch)
            epoch = descriptor->epoch;
        failed = failed || descriptor->failed;
    }
    ek_waits_compare(group);
    if (failed && work) {
        work->state = EK_DIST_WORK_REFUSED;
        work->refused = epoch;
    }
    if (failed)
        return;
    if (agreement_compare(group) < 0) {
        agreement_differ(group, work);
    } else if (!work) {
        ek_process_group_close(group);
    } else {
        work->state = EK_DIST_WORK_COMMITTED;
        if (!work->verb->gradual)
            ek_waits_time(group, work);
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
    if (work->request || rc > 0)
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

/* Returns true if the request is complete. If the request fails, breaks the world and returns
 * false. If the request is incomplete and the group's first work is late, begins an inquiry. */
static int agreement_test(ek_process_group *group, ek_request **request, const char *what)
{
    ek_communication *communication = group->communication;
    int rc = communication->transport->test(request, NULL);
    if (rc < 0)
        ek_communication_break(communication, what, rc);
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
    if (group->agreement) {
        if (!agreement_test(group, &group->agreement, "agreement"))
            return false;
        agreement_end(group);
        return true;
    }
    if (work && work->state == EK_DIST_WORK_COMMITTED) {
        if (work->request && !agreement_test(group, &work->request, ek_verb_name(work->verb->id)))
            return false;
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
