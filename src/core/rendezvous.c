/* rendezvous.c: where the parts of a gang wait for each other. */
#include "core/rendezvous.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/part.h"
#include "core/trace.h"
#include "evenkeel/scope.h"

/* A part as the others see it. */
typedef struct attendant {
    const char *name; /* where it waits; NULL: it doesn't */
    uint64_t place;
    bool ended;
} attendant;

struct ek_meeting {
    ek_dev *const *devs;
    const char *what;
    const ek_error_record *errors; /* of those that have ended */
    int count;
    const char *refusal; /* why the parts cannot meet; NULL: they can */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock: */
    attendant *parts;
    void **brought;
    int arrived;
    uint64_t round;         /* meetings that took place */
    ek_error_record broken; /* a meeting failed as a whole, and there is none any more */
};

static const char *refusal_of(ek_dev *const *devs, int count, bool in_turn)
{
    if (in_turn)
        return "the parts of a gang within a gang run one after the other";
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (devs[i] == devs[j])
                return "two of them are on one device and run one after the other";
    return NULL;
}

ek_meeting *ek_meeting_new(ek_dev *const *devs, int count, const char *what,
                           const ek_error_record *errors, bool in_turn)
{
    ek_meeting *meeting = ek_calloc(1, sizeof *meeting);
    if (!meeting)
        return NULL;
    meeting->parts = ek_calloc((size_t)count, sizeof *meeting->parts);
    meeting->brought = ek_calloc((size_t)count, sizeof *meeting->brought);
    pthread_mutex_init(&meeting->lock, NULL);
    pthread_cond_init(&meeting->changed, NULL);
    if (!meeting->parts || !meeting->brought) {
        ek_meeting_free(meeting);
        return NULL;
    }
    meeting->devs = devs;
    meeting->what = what ? what : "part";
    meeting->errors = errors;
    meeting->count = count;
    meeting->refusal = refusal_of(devs, count, in_turn);
    return meeting;
}

void ek_meeting_free(ek_meeting *meeting)
{
    if (!meeting)
        return;
    pthread_cond_destroy(&meeting->changed);
    pthread_mutex_destroy(&meeting->lock);
    free(meeting->parts);
    free(meeting->brought);
    free(meeting);
}

ek_seat ek_meeting_enter(ek_meeting *meeting, int index)
{
    ek_thread *self = ek_thread_self();
    ek_seat before = self->seat;
    self->seat = (ek_seat){meeting, index};
    return before;
}

void ek_meeting_leave(ek_meeting *meeting, int index, ek_seat before)
{
    ek_thread_self()->seat = before;
    pthread_mutex_lock(&meeting->lock);
    meeting->parts[index].ended = true;
    pthread_cond_broadcast(&meeting->changed);
    pthread_mutex_unlock(&meeting->lock);
}

/* ---- the functions below but for the last two are called with the lock held ---- */

/* A part that can't come any more, rather one that failed than one that ended well, and rather one
 * that failed first than one that gave up because of it; -1 if there is none. */
static int absent(const ek_meeting *meeting)
{
    int ended = -1, failed = -1;
    for (int i = 0; i < meeting->count; i++) {
        if (!meeting->parts[i].ended)
            continue;
        int status = meeting->errors[i].status;
        if (status < 0 && status != EK_E_ABORTED)
            return i;
        if (status < 0 && failed < 0)
            failed = i;
        if (ended < 0)
            ended = i;
    }
    return failed >= 0 ? failed : ended;
}

/* Sets the error of a meeting that doesn't take place. */
static int fail(const ek_meeting *meeting, const char *name)
{
    if (meeting->broken.status)
        return ek_error_raise(&meeting->broken);
    int index = absent(meeting);
    const char *device = meeting->devs[index]->name;
    const ek_error_record *error = &meeting->errors[index];
    if (error->status < 0)
        return EK_FAIL(EK_E_ABORTED, "%s %d on %s, for which %s waits, has failed: %s",
                       meeting->what, index, device, name, error->message);
    return EK_FAIL(EK_E_STATE, "%s %d on %s ended without taking part in %s", meeting->what, index,
                   device, name);
}

/* The pending error becomes everybody's. */
static void break_off(ek_meeting *meeting)
{
    ek_error_take(&meeting->broken);
    pthread_cond_broadcast(&meeting->changed);
}

/* A part that waits somewhere else; -1 if there is none. */
static int elsewhere(const ek_meeting *meeting, const char *name, uint64_t place)
{
    for (int i = 0; i < meeting->count; i++) {
        const attendant *part = &meeting->parts[i];
        if (part->name && (part->place != place || strcmp(part->name, name) != 0))
            return i;
    }
    return -1;
}

/* The last part's work: the lock is given away while it lasts, which nobody else takes to change
 * anything, as all others wait. */
static void hold(ek_meeting *meeting, ek_rendezvous_function *function)
{
    pthread_mutex_unlock(&meeting->lock);
    ek_scope scope = ek_scope_begin();
    int rc = function(meeting->brought, meeting->count);
    ek_scope_end(&scope);
    pthread_mutex_lock(&meeting->lock);
    if (rc < 0) {
        ek_error_pending(); /* a failure always has a sentence */
        break_off(meeting);
        return;
    }
    meeting->arrived = 0;
    for (int i = 0; i < meeting->count; i++)
        meeting->parts[i].name = NULL;
    meeting->round++;
    pthread_cond_broadcast(&meeting->changed);
}

static int attend(ek_meeting *meeting, int index, const char *name, uint64_t place, void *mine,
                  ek_rendezvous_function *function)
{
    const uint64_t round = meeting->round;
    int other = elsewhere(meeting, name, place);
    if (!meeting->broken.status && absent(meeting) < 0 && other >= 0) {
        const attendant *part = &meeting->parts[other];
        EK_FAIL(EK_E_STATE, "%s %d is at %s (%llu) while %s %d waits at %s (%llu)", meeting->what,
                index, name, (unsigned long long)place, meeting->what, other, part->name,
                (unsigned long long)part->place);
        break_off(meeting);
    }
    meeting->parts[index].name = name;
    meeting->parts[index].place = place;
    meeting->brought[index] = mine;
    if (++meeting->arrived == meeting->count && !meeting->broken.status && absent(meeting) < 0)
        hold(meeting, function);
    ek_span span;
    ek_span_begin(&span, EK_SPAN_WAIT, "waiting in", name, NULL);
    while (meeting->round == round && !meeting->broken.status && absent(meeting) < 0)
        ek_part_wait(&meeting->changed, &meeting->lock);
    ek_span_end(&span);
    return meeting->round == round ? fail(meeting, name) : 0;
}

/* ---- */

int ek_rendezvous_count(void)
{
    const ek_thread *self = ek_thread_self();
    /* What backward computes again met nobody the first time: else it had been refused. */
    const unsigned again = EK_MODE_ALONE | EK_MODE_BACKWARD;
    if (!self->seat.meeting || (self->modes.flags & again) == again)
        return 1;
    return self->seat.meeting->count;
}

int ek_rendezvous(const char *name, uint64_t place, void *mine, ek_rendezvous_function *function)
{
    EK_TRY(ek_error_status());
    const ek_thread *self = ek_thread_self();
    if (ek_rendezvous_count() == 1) {
        ek_scope scope = ek_scope_begin();
        int rc = function(&mine, 1);
        ek_scope_end(&scope);
        return rc < 0 ? ek_error_pending() : 0;
    }
    ek_meeting *meeting = self->seat.meeting;
    if (self->modes.flags & EK_MODE_ALONE)
        return EK_FAIL(EK_E_STATE,
                       "%s waits for the other replicas, which is impossible inside ek_checkpoint: "
                       "its recomputation in backward has no others to meet",
                       name);
    if (self->modes.flags & EK_MODE_BACKWARD)
        return EK_FAIL(EK_E_STATE,
                       "%s waits for the other replicas, which is impossible in backward", name);
    if (meeting->refusal)
        return EK_FAIL(EK_E_STATE, "%s waits for the other replicas, which is impossible here: %s",
                       name, meeting->refusal);
    ek_part_rest();
    pthread_mutex_lock(&meeting->lock);
    int rc = attend(meeting, self->seat.part, name, place, mine, function);
    pthread_mutex_unlock(&meeting->lock);
    return rc;
}
