/* work.c: makes works, submits them and waits for them on the caller's thread; and the texts of
 * sentences about works. */
#include "link/communication.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"
#include "core/trace.h"
#include "link/staging.h"

const char *ek_verb_name(int id)
{
#define EK_VERB_TEXT(name, text) text,
    static const char *const names[] = {EK_VERBS(EK_VERB_TEXT)};
#undef EK_VERB_TEXT
    return (unsigned)id < EK_VERB_COUNT ? names[id] : "an unknown call";
}

ek_dist_work *ek_dist_work_new(ek_process_group *group, const ek_verb *verb, int count)
{
    ek_dist_work *work = ek_calloc(1, sizeof *work);
    if (!work)
        return NULL;
    work->group = group;
    work->verb = verb;
    work->timeout = group->timeout;
    work->descriptor.verb = verb->id;
    work->descriptor.op = work->descriptor.shape.dtype = work->descriptor.root = -1;
    work->tensors = ek_calloc((size_t)count + 1, sizeof *work->tensors);
    if (work->tensors)
        return work;
    free(work);
    return NULL;
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
        ek_stage_close(&work->tensors[i]);
        ek_object_release(work->tensors[i].tensor);
    }
    if (work->rail)
        work->rail_calls->close(work->rail, work->group);
    ek_object_release(work->keeps);
    free(work->rail);
    free(work->tensors);
    free(work->scratch);
    free(work->room);
    free(work->out);
    free(work->in);
    free(work->gives);
    free(work->takes);
    free(work);
}

static void work_added(ek_dist_work *work, ek_tensor *tensor, bool receives)
{
    ek_dist_work_tensor *one = &work->tensors[work->count++];
    one->tensor = ek_object_retain(tensor);
    one->receives = receives;
    one->version = ek_version_writes(tensor->version);
}

/* On the wire a tensor is row-major: the other ranks don't see strides, gaps or devices. */
int ek_dist_work_add(ek_dist_work *work, ek_tensor *tensor, bool sends, bool receives)
{
    ek_dist_work_tensor *one = &work->tensors[work->count];
    if (receives)
        EK_TRY(ek_tensor_unshare(tensor));
    EK_TRY(work->rail ? work->rail_calls->stage(work->rail, one, tensor, sends)
                      : ek_stage_open(one, tensor, sends));
    work_added(work, tensor, receives);
    return 0;
}

int ek_dist_work_add_from(ek_dist_work *work, ek_tensor *tensor, ek_tensor *memory)
{
    EK_TRY(ek_stage_fill(&work->tensors[work->count], tensor, memory));
    work_added(work, tensor, false);
    return 0;
}

int ek_dist_work_submit(ek_dist_work *work)
{
    ek_communication *communication = work->group->communication;
    work->began = ek_clock_ns();
    pthread_mutex_lock(&communication->lock);
    bool refused = communication->unreported || communication->broken;
    ek_error_record error = communication->failure.error;
    communication->unreported = false;
    if (!refused) {
        *communication->submitted_end = work;
        communication->submitted_end = &work->next;
        communication->gradual += work->verb->gradual;
        pthread_cond_signal(&communication->wake);
    }
    pthread_mutex_unlock(&communication->lock);
    if (!refused)
        return 0;
    error.told = true;
    ek_dist_work_free(work);
    return ek_error_raise(&error);
}

/* Copies the received elements to the user's tensors. */
static int work_receive(ek_dist_work *work)
{
    for (int i = 0; i < work->count; i++) {
        ek_dist_work_tensor *one = &work->tensors[i];
        bool staged = one->memory != one->tensor;
        if (ek_version_writes(one->tensor->version) != one->version)
            return EK_FAIL(EK_E_MODIFIED,
                           "%s: the tensor was written to between the call and ek_dist_wait",
                           ek_verb_name(work->verb->id));
        if (!one->receives && work->verb->id == EK_VERB_BROADCAST &&
            one->tensor->storage->residence) /* all ranks have written the parameter */
            ek_tensor_written(one->tensor, ek_verb_name(work->verb->id));
        if (!one->receives)
            continue;
        ek_scope scope = ek_scope_begin(); /* holds the tensor until the write has been recorded */
        int rc = ek_tensor_hold(one->tensor);
        if (rc >= 0 && staged)
            rc = ek_stage_deliver(one->tensor, one->memory);
        if (rc >= 0)
            ek_tensor_written(one->tensor, ek_verb_name(work->verb->id));
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return 0;
}

int ek_dist_wait(ek_dist_work *work)
{
    if (!work)
        return 0;
    EK_TRY(ek_fork_check());
    if (work->verb->wait)
        return work->verb->wait(work);
    ek_communication *communication = work->group->communication;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_WAIT, ek_verb_name(work->verb->id), NULL, NULL);
    uint64_t began = ek_clock_ns();
    pthread_mutex_lock(&communication->lock);
    communication->waiting++;
    if (!work->ended) {
        communication->woken = true;
        pthread_cond_signal(&communication->wake);
    }
    while (!work->ended)
        pthread_cond_wait(&communication->ended, &communication->lock);
    communication->waiting--;
    ek_waits_expose(work, ek_clock_ns() - began);
    if (work->failure == communication->failures)
        communication->unreported = false;
    pthread_mutex_unlock(&communication->lock);
    ek_span_end(&span);
    work->error.told = true; /* a work fails on all its ranks */
    int rc = work->error.status < 0 ? ek_error_raise(&work->error) : work_receive(work);
    int result = work->result;
    ek_dist_work_free(work);
    return rc < 0 ? rc : result;
}

int ek_dist_is_completed(const ek_dist_work *work)
{
    if (!work)
        return 1;
    EK_TRY(ek_fork_check());
    return work->ended;
}

int ek_dist_work_run(ek_dist_work *work)
{
    EK_TRY(ek_dist_work_submit(work));
    return ek_dist_wait(work);
}

void ek_communication_wake(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    communication->woken = true;
    pthread_cond_signal(&communication->wake);
    pthread_mutex_unlock(&communication->lock);
}

/* ---- what works have in common ---- */

int ek_dist_work_started(ek_dist_work *work, int rc)
{
    if (rc >= 0)
        return 0;
    ek_communication *communication = work->group->communication;
    ek_communication_break(communication, ek_verb_name(work->verb->id), rc);
    return ek_error_raise(&communication->failure.error);
}

ek_wire_shape ek_wire_shape_of(const ek_tensor *tensor)
{
    ek_wire_shape shape = {.dtype = -1};
    if (tensor) {
        shape.dtype = (int32_t)tensor->dtype;
        shape.ndim = tensor->ndim;
        memcpy(shape.shape, tensor->shape, (size_t)tensor->ndim * sizeof(int64_t));
    }
    return shape;
}

void ek_wire_shape_text(const ek_wire_shape *shape, char text[120])
{
    if (shape->dtype < 0) {
        snprintf(text, 120, "no tensor");
        return;
    }
    int length = snprintf(text, 120, "%s[", ek_dtype_name((ek_dtype)shape->dtype));
    for (int d = 0; d < shape->ndim && length < 90; d++)
        length += snprintf(text + length, 120 - (size_t)length, "%s%lld", d ? ", " : "",
                           (long long)shape->shape[d]);
    snprintf(text + length, 120 - (size_t)length, "]");
}
