/* worker.c: worker threads, and gangs of jobs on them. */
#include "core/worker.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/object.h"
#include "core/part.h"
#include "core/rendezvous.h"
#include "core/trace.h"

typedef struct ek_gang {
    ek_gang_function *function;
    void *user;
    const char *what;      /* a part is */
    bool named;            /* by who submitted it */
    ek_thread_modes modes; /* the submitter's */
    bool nested;           /* runs inside of another gang's part */
    ek_error_record *errors;
    ek_meeting *meeting; /* NULL with one part, which belongs to the gang around it */
    pthread_mutex_t lock;
    pthread_cond_t done;
    int remaining; /* parts on workers that have not ended; guarded by lock */
} ek_gang;

typedef struct ek_job {
    struct ek_job *next;
    ek_gang *gang; /* NULL: the worker ends */
    int index;
} ek_job;

typedef struct ek_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    ek_job *first, *last; /* guarded by lock */
    ek_dev *dev;
} ek_worker;

/* Orders gangs, and guards the list of workers. */
static pthread_mutex_t gang_lock = PTHREAD_MUTEX_INITIALIZER;
static ek_worker *workers[EK_MAX_DEVICES * 2];
static atomic_int worker_count;

/* What has a name is a replica's forward. */
static int run_timed(ek_gang *gang, int index, ek_dev *dev)
{
    bool clocked = gang->named && !gang->nested && dev->backend->clock_begin;
    if (clocked)
        dev->backend->clock_begin(dev);
    int status = gang->function(gang->user, index);
    if (clocked)
        dev->backend->clock_end(dev);
    return status;
}

/* One part's function; its error, if any, is moved to the gang. */
static void call_part(ek_gang *gang, int index, ek_dev *dev)
{
    ek_thread_self()->modes = gang->modes; /* whatever the part before left */
    ek_scope scope = ek_scope_begin();
    int status = dev->backend->thread_enter ? dev->backend->thread_enter(dev) : 0;
    if (status >= 0)
        status = run_timed(gang, index, dev);
    ek_scope_end(&scope);
    if (status < 0)
        ek_error_pending(); /* a failure always has a sentence */
    ek_error_take(&gang->errors[index]);
    if (status >= 0)
        gang->errors[index].status = 0;
}

/* One part on the calling thread. */
static void run_part(ek_gang *gang, int index, ek_dev *dev)
{
    ek_part part;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMPUTE, gang->what, NULL, dev);
    ek_part_begin(&part, dev);
    if (gang->meeting) {
        ek_seat before = ek_meeting_enter(gang->meeting, index);
        call_part(gang, index, dev);
        ek_part_rest(); /* the others see it end when it has ended */
        ek_meeting_leave(gang->meeting, index, before);
    } else {
        call_part(gang, index, dev);
    }
    ek_part_end(&part);
    ek_span_end(&span);
}

static void *worker_main(void *user)
{
    ek_worker *worker = user;
    ek_thread *self = ek_thread_self();
    self->worker_of = worker->dev;
    for (;;) {
        pthread_mutex_lock(&worker->lock);
        while (!worker->first)
            pthread_cond_wait(&worker->wake, &worker->lock);
        ek_job *next = worker->first;
        worker->first = next->next;
        if (!worker->first)
            worker->last = NULL;
        pthread_mutex_unlock(&worker->lock);

        ek_gang *gang = next->gang;
        if (!gang)
            return NULL;
        run_part(gang, next->index, worker->dev);
        /* The gang lives on its submitter's stack: the last touch is under its lock. */
        pthread_mutex_lock(&gang->lock);
        if (--gang->remaining == 0)
            pthread_cond_signal(&gang->done);
        pthread_mutex_unlock(&gang->lock);
    }
}

/* The device's worker, started if need be; gang_lock is held. */
static ek_worker *worker_of(ek_dev *dev)
{
    if (dev->worker)
        return dev->worker;
    ek_worker *worker = ek_calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->dev = dev;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->wake, NULL);
    if (worker_count == (int)(sizeof workers / sizeof *workers) ||
        pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
        EK_FAIL(EK_E_NO_MEMORY, "no thread for the worker of %s can be had", dev->name);
        pthread_cond_destroy(&worker->wake);
        pthread_mutex_destroy(&worker->lock);
        free(worker);
        return NULL;
    }
    char name[16];
    snprintf(name, sizeof name, "ek-%.12s", dev->name);
    pthread_setname_np(worker->thread, name);
    dev->worker = worker;
    workers[worker_count++] = worker;
    return worker;
}

static void enqueue(ek_worker *worker, ek_job *job)
{
    pthread_mutex_lock(&worker->lock);
    *(worker->last ? &worker->last->next : &worker->first) = job;
    worker->last = job;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
}

static bool has_worker(const ek_dev *dev)
{
    return dev->id.kind != EK_CPU;
}

/* Enqueues the parts of devices that have workers; all or none. */
static int submit(ek_gang *gang, ek_job *jobs, ek_dev *const *devs, int count)
{
    pthread_mutex_lock(&gang_lock);
    for (int i = 0; i < count; i++) {
        if (has_worker(devs[i]) && !worker_of(devs[i])) {
            pthread_mutex_unlock(&gang_lock);
            return ek_error_pending();
        }
    }
    for (int i = 0; i < count; i++)
        gang->remaining += has_worker(devs[i]);
    for (int i = 0; i < count; i++) {
        if (has_worker(devs[i])) {
            jobs[i] = (ek_job){.gang = gang, .index = i};
            enqueue(devs[i]->worker, &jobs[i]);
        }
    }
    pthread_mutex_unlock(&gang_lock);
    return 0;
}

static int run_everywhere(ek_gang *gang, ek_dev *const *devs, int count)
{
    ek_job *jobs = ek_calloc((size_t)count, sizeof *jobs);
    if (!jobs)
        return ek_error_pending();
    pthread_mutex_init(&gang->lock, NULL);
    pthread_cond_init(&gang->done, NULL);
    int rc = submit(gang, jobs, devs, count);
    if (rc >= 0) {
        for (int i = 0; i < count; i++)
            if (!has_worker(devs[i]))
                run_part(gang, i, devs[i]);
        ek_span span;
        ek_span_begin(&span, EK_SPAN_WAIT, "waiting for the workers", NULL, NULL);
        pthread_mutex_lock(&gang->lock);
        while (gang->remaining > 0)
            ek_part_wait(&gang->done, &gang->lock);
        pthread_mutex_unlock(&gang->lock);
        ek_span_end(&span);
    }
    pthread_cond_destroy(&gang->done);
    pthread_mutex_destroy(&gang->lock);
    free(jobs);
    return rc;
}

/* The part whose error the caller gets: the first that didn't give up because of another; -1 if
 * all went well. */
static int first_failed(const ek_error_record *errors, int count)
{
    int first = -1;
    for (int i = 0; i < count; i++) {
        if (errors[i].status < 0 && errors[i].status != EK_E_ABORTED)
            return i;
        if (errors[i].status < 0 && first < 0)
            first = i;
    }
    return first;
}

static int run_gang(ek_gang *gang, ek_dev *const *devs, int count, const char *what)
{
    const int before = ek_error_status();
    gang->errors = ek_calloc((size_t)count, sizeof *gang->errors);
    if (!gang->errors)
        return ek_error_pending();
    if (count > 1) {
        gang->meeting = ek_meeting_new(devs, count, what, gang->errors, gang->nested);
        if (!gang->meeting)
            return ek_error_pending();
    }
    if (count > 1 && !gang->nested)
        EK_TRY(run_everywhere(gang, devs, count));
    else
        for (int i = 0; i < count; i++)
            run_part(gang, i, devs[i]);
    int failed = first_failed(gang->errors, count);
    if (failed < 0)
        return 0;
    ek_error_raise(&gang->errors[failed]);
    if (what)
        ek_error_prefix(before, "%s %d on %s", what, failed, devs[failed]->name);
    return gang->errors[failed].status;
}

int ek_gang_run(ek_dev *const *devs, int count, ek_gang_function *function, void *user,
                const char *what)
{
    ek_thread *self = ek_thread_self();
    if (count <= 0)
        return 0;
    EK_TRY(ek_fork_check());
    ek_gang gang = {.function = function,
                    .user = user,
                    .what = what ? what : "work",
                    .named = what != NULL,
                    .modes = self->modes,
                    .nested = ek_thread_in_gang()};
    ek_error_record before; /* an error of the caller's stays the first */
    ek_error_take(&before);
    int rc = run_gang(&gang, devs, count, what);
    self->modes = gang.modes;
    if (before.status) {
        ek_error_clear();
        ek_error_raise(&before);
    }
    ek_meeting_free(gang.meeting);
    free(gang.errors);
    return rc;
}

bool ek_workers_exist(void)
{
    return atomic_load_explicit(&worker_count, memory_order_relaxed) > 0;
}

void ek_workers_join(void)
{
    if (ek_forked())
        return;
    pthread_mutex_lock(&gang_lock);
    for (int i = 0; i < worker_count; i++) {
        ek_worker *worker = workers[i];
        ek_job stop = {0};
        enqueue(worker, &stop);
        pthread_join(worker->thread, NULL);
        worker->dev->worker = NULL;
        pthread_cond_destroy(&worker->wake);
        pthread_mutex_destroy(&worker->lock);
        free(worker);
    }
    worker_count = 0;
    pthread_mutex_unlock(&gang_lock);
}
