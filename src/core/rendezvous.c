/* rendezvous.c: a barrier at which one of the jobs of a group does the common work while the others
 * wait. */
#include "core/rendezvous.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/trace.h"
#include "core/worker.h"
#include "evenkeel/scope.h"

/* The state of a job. Guarded by the barrier's lock. */
typedef struct participant {
    const char *name; /* the rendezvous at which the job waits; NULL: the job does not wait */
    uint64_t place;
    bool ended;
} participant;

struct ek_barrier {
    ek_dev *const *devs;
    const char *what;
    const ek_error_record *errors; /* borrowed; errors[i] is set when job i has ended */
    int count;
    const char *refusal; /* why the jobs cannot wait for each other; NULL: they can */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    participant *jobs;      /* guarded by lock */
    void **brought;         /* guarded by lock */
    int arrived;            /* guarded by lock */
    uint64_t generation;    /* guarded by lock: how many rendezvous are complete */
    ek_error_record broken; /* guarded by lock: the error of all later rendezvous; status 0: none */
};

static const char *barrier_refusal(ek_dev *const *devs, int count, bool in_turn)
{
    if (in_turn)
        return "the jobs of a group within a group run one after the other";
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (devs[i] == devs[j])
                return "two of them are on one device and run one after the other";
    return NULL;
}

ek_barrier *ek_barrier_new(ek_dev *const *devs, int count, const char *what,
                           const ek_error_record *errors, bool in_turn)
{
    ek_barrier *barrier = ek_calloc(1, sizeof *barrier);
    if (!barrier)
        return NULL;
    barrier->jobs = ek_calloc((size_t)count, sizeof *barrier->jobs);
    barrier->brought = ek_calloc((size_t)count, sizeof *barrier->brought);
    pthread_mutex_init(&barrier->lock, NULL);
    pthread_cond_init(&barrier->changed, NULL);
    if (!barrier->jobs || !barrier->brought) {
        ek_barrier_free(barrier);
        return NULL;
    }
    barrier->devs = devs;
    barrier->what = what ? what : "part";
    barrier->errors = errors;
    barrier->count = count;
    barrier->refusal = barrier_refusal(devs, count, in_turn);
    return barrier;
}

void ek_barrier_free(ek_barrier *barrier)
{
    if (!barrier)
        return;
    pthread_cond_destroy(&barrier->changed);
    pthread_mutex_destroy(&barrier->lock);
    free(barrier->jobs);
    free(barrier->brought);
    free(barrier);
}

ek_group_rank ek_barrier_enter(ek_barrier *barrier, int index)
{
    ek_thread *self = ek_thread_self();
    ek_group_rank before = self->rank;
    self->rank = (ek_group_rank){barrier, index, false};
    return before;
}

void ek_barrier_leave(ek_barrier *barrier, int index, ek_group_rank before)
{
    ek_thread_self()->rank = before;
    pthread_mutex_lock(&barrier->lock);
    barrier->jobs[index].ended = true;
    pthread_cond_broadcast(&barrier->changed);
    pthread_mutex_unlock(&barrier->lock);
}

/* Returns the index of a job that has ended and so cannot arrive any more; -1 if there is none.
 * Prefers a job that failed by itself, then a job that gave up because of another (EK_E_ABORTED),
 * then a job that ended well. barrier->lock is held. */
static int barrier_absent(const ek_barrier *barrier)
{
    int ended = -1, failed = -1;
    for (int i = 0; i < barrier->count; i++) {
        if (!barrier->jobs[i].ended)
            continue;
        int status = barrier->errors[i].status;
        if (status < 0 && status != EK_E_ABORTED)
            return i;
        if (status < 0 && failed < 0)
            failed = i;
        if (ended < 0)
            ended = i;
    }
    return failed >= 0 ? failed : ended;
}

/* Sets the error of a rendezvous that does not take place. barrier->lock is held. */
static int barrier_fail(const ek_barrier *barrier, const char *name)
{
    if (barrier->broken.status)
        return ek_error_raise(&barrier->broken);
    int index = barrier_absent(barrier);
    const char *device = barrier->devs[index]->name;
    const ek_error_record *error = &barrier->errors[index];
    if (error->status < 0)
        return EK_FAIL(EK_E_ABORTED, "%s %d on %s, for which %s waits, has failed: %s",
                       barrier->what, index, device, name, error->message);
    return EK_FAIL(EK_E_STATE, "%s %d on %s ended without taking part in %s", barrier->what, index,
                   device, name);
}

/* Makes the thread's pending error the error of all jobs that wait or arrive later. barrier->lock
 * is held. */
static void barrier_break(ek_barrier *barrier)
{
    ek_error_take(&barrier->broken);
    pthread_cond_broadcast(&barrier->changed);
}

/* Returns the index of a job that waits at another rendezvous; -1 if there is none. barrier->lock
 * is held. */
static int barrier_elsewhere(const ek_barrier *barrier, const char *name, uint64_t place)
{
    for (int i = 0; i < barrier->count; i++) {
        const participant *job = &barrier->jobs[i];
        if (job->name && (job->place != place || strcmp(job->name, name) != 0))
            return i;
    }
    return -1;
}

/* Does the common work on the thread of the last job to arrive. barrier->lock is held at the start
 * and at the end, but not during the common work; nobody changes the barrier meanwhile, because all
 * other jobs wait. */
static void barrier_lead(ek_barrier *barrier, ek_rendezvous_function *function)
{
    pthread_mutex_unlock(&barrier->lock);
    ek_scope scope = ek_scope_begin();
    ek_thread_self()->rank.leads = true;
    int rc = function(barrier->brought, barrier->count);
    ek_thread_self()->rank.leads = false;
    ek_scope_end(&scope);
    pthread_mutex_lock(&barrier->lock);
    if (rc < 0) {
        ek_error_pending(); /* sets an error if the function has set none */
        barrier_break(barrier);
        return;
    }
    barrier->arrived = 0;
    for (int i = 0; i < barrier->count; i++)
        barrier->jobs[i].name = NULL;
    barrier->generation++;
    pthread_cond_broadcast(&barrier->changed);
}

/* Arrives, and returns when the common work is done, which the last job to arrive does here.
 * barrier->lock is held. */
static int barrier_wait(ek_barrier *barrier, int index, const char *name, uint64_t place,
                        void *mine, ek_rendezvous_function *function)
{
    const uint64_t generation = barrier->generation;
    int other = barrier_elsewhere(barrier, name, place);
    if (!barrier->broken.status && barrier_absent(barrier) < 0 && other >= 0) {
        const participant *job = &barrier->jobs[other];
        EK_FAIL(EK_E_STATE, "%s %d is at %s (%llu) while %s %d waits at %s (%llu)", barrier->what,
                index, name, (unsigned long long)place, barrier->what, other, job->name,
                (unsigned long long)job->place);
        barrier_break(barrier);
    }
    barrier->jobs[index].name = name;
    barrier->jobs[index].place = place;
    barrier->brought[index] = mine;
    if (++barrier->arrived == barrier->count && !barrier->broken.status &&
        barrier_absent(barrier) < 0)
        barrier_lead(barrier, function);
    ek_span span;
    ek_span_begin(&span, EK_SPAN_WAIT, "waiting in", name, NULL);
    while (barrier->generation == generation && !barrier->broken.status &&
           barrier_absent(barrier) < 0)
        ek_work_wait(&barrier->changed, &barrier->lock);
    ek_span_end(&span);
    return barrier->generation == generation ? barrier_fail(barrier, name) : 0;
}

int ek_rendezvous_count(void)
{
    const ek_thread *self = ek_thread_self();
    /* A checkpoint's forward must not wait for other jobs. So a forward that backward computes
     * again waited for no others, and waits for none now. */
    const unsigned again = EK_MODE_ALONE | EK_MODE_BACKWARD;
    if (!self->rank.barrier || (self->modes.flags & again) == again)
        return 1;
    return self->rank.barrier->count;
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
    ek_barrier *barrier = self->rank.barrier;
    if (self->modes.flags & EK_MODE_ALONE)
        return EK_FAIL(EK_E_STATE,
                       "%s waits for the other replicas, which is impossible inside ek_checkpoint: "
                       "its recomputation in backward has no others to meet",
                       name);
    if (self->modes.flags & EK_MODE_BACKWARD)
        return EK_FAIL(EK_E_STATE,
                       "%s waits for the other replicas, which is impossible in backward", name);
    if (barrier->refusal)
        return EK_FAIL(EK_E_STATE, "%s waits for the other replicas, which is impossible here: %s",
                       name, barrier->refusal);
    ek_work_rest();
    pthread_mutex_lock(&barrier->lock);
    int rc = barrier_wait(barrier, self->rank.index, name, place, mine, function);
    pthread_mutex_unlock(&barrier->lock);
    return rc;
}
