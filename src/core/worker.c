/* worker.c: worker threads, and groups of jobs on them. */
#include "core/worker.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "core/object.h"
#include "core/rendezvous.h"
#include "core/trace.h"

typedef struct job_group {
    ek_job_function *function;
    void *user;
    const char *what;      /* the noun for a job in error messages and spans */
    bool named;            /* the submitter gave `what`, as for replicas' forwards */
    ek_thread_modes modes; /* the modes of the submitter */
    bool nested;           /* the submitter is a job of another group */
    ek_error_record *errors;
    ek_barrier *barrier; /* NULL for a single job, which belongs to the group around it */
    pthread_mutex_t lock;
    pthread_cond_t done;
    int remaining; /* guarded by lock: how many of the jobs on workers have not ended */
} job_group;

typedef struct ek_job {
    struct ek_job *next;
    job_group *group; /* borrowed; NULL: the worker shall end */
    int index;
} ek_job;

typedef struct ek_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    ek_job *first, *last; /* guarded by lock */
    ek_dev *dev;
} ek_worker;

/* group_lock orders groups (worker.h), and guards the list of workers. */
static pthread_mutex_t group_lock = PTHREAD_MUTEX_INITIALIZER;
static ek_worker *workers[EK_MAX_DEVICES * 2];
static atomic_int worker_count;

/* Runs the job. If it is named and not nested, as a replica's forward is, the device's clock times
 * it. */
static int job_run_timed(job_group *group, int index, ek_dev *dev)
{
    bool clocked = group->named && !group->nested && dev->backend->clock_begin;
    if (clocked)
        dev->backend->clock_begin(dev);
    int status = group->function(group->user, index);
    if (clocked)
        dev->backend->clock_end(dev);
    return status;
}

/* Calls the function for one job, in a separate scope, and moves an error to the group. */
static void job_call(job_group *group, int index, ek_dev *dev)
{
    ek_dev *drawn_for = ek_generator_draw_for(dev);
    ek_scope scope = ek_scope_begin();
    int status = dev->backend->thread_enter ? dev->backend->thread_enter(dev) : 0;
    if (status >= 0)
        status = job_run_timed(group, index, dev);
    ek_scope_end(&scope);
    ek_generator_draw_for(drawn_for);
    if (status < 0)
        ek_error_pending(); /* sets an error if the job has set none */
    ek_error_take(&group->errors[index]);
    if (status >= 0)
        group->errors[index].status = 0;
}

/* Runs one job on the calling thread. */
static void job_run(job_group *group, int index, ek_dev *dev)
{
    ek_work part;
    ek_span span;
    ek_thread_self()->modes = group->modes; /* the thread's last job may have changed them */
    ek_span_begin(&span, EK_SPAN_COMPUTE, group->what, NULL, dev);
    ek_work_begin(&part, dev);
    if (group->barrier) {
        ek_group_rank before = ek_barrier_enter(group->barrier, index);
        job_call(group, index, dev);
        ek_work_rest(); /* before the end, for which other jobs wait */
        ek_barrier_leave(group->barrier, index, before);
    } else {
        job_call(group, index, dev);
    }
    ek_work_end(&part);
    ek_span_end(&span);
}

static void *worker_main(void *user)
{
    ek_worker *worker = user;
    ek_thread *self = ek_thread_self();
    self->own_device = worker->dev;
    for (;;) {
        pthread_mutex_lock(&worker->lock);
        while (!worker->first)
            pthread_cond_wait(&worker->wake, &worker->lock);
        ek_job *next = worker->first;
        worker->first = next->next;
        if (!worker->first)
            worker->last = NULL;
        pthread_mutex_unlock(&worker->lock);

        job_group *group = next->group;
        if (!group)
            return NULL;
        job_run(group, next->index, worker->dev);
        /* The group lives on the submitter's stack, so the worker must not access it after it
         * releases this lock. */
        pthread_mutex_lock(&group->lock);
        if (--group->remaining == 0)
            pthread_cond_signal(&group->done);
        pthread_mutex_unlock(&group->lock);
    }
}

/* Returns the device's worker, which is started if necessary. group_lock is held. */
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

static void worker_enqueue(ek_worker *worker, ek_job *job)
{
    pthread_mutex_lock(&worker->lock);
    *(worker->last ? &worker->last->next : &worker->first) = job;
    worker->last = job;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
}

static bool worker_serves(const ek_dev *dev)
{
    return dev->id.kind != EK_CPU;
}

/* Enqueues the jobs of all devices that have workers, or none of them on an error. */
static int group_submit(job_group *group, ek_job *jobs, ek_dev *const *devs, int count)
{
    pthread_mutex_lock(&group_lock);
    for (int i = 0; i < count; i++) {
        if (worker_serves(devs[i]) && !worker_of(devs[i])) {
            pthread_mutex_unlock(&group_lock);
            return ek_error_pending();
        }
    }
    for (int i = 0; i < count; i++)
        group->remaining += worker_serves(devs[i]);
    for (int i = 0; i < count; i++) {
        if (worker_serves(devs[i])) {
            jobs[i] = (ek_job){.group = group, .index = i};
            worker_enqueue(devs[i]->worker, &jobs[i]);
        }
    }
    pthread_mutex_unlock(&group_lock);
    return 0;
}

static int group_run_on_workers(job_group *group, ek_dev *const *devs, int count)
{
    ek_job *jobs = ek_calloc((size_t)count, sizeof *jobs);
    if (!jobs)
        return ek_error_pending();
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->done, NULL);
    int rc = group_submit(group, jobs, devs, count);
    if (rc >= 0) {
        for (int i = 0; i < count; i++)
            if (!worker_serves(devs[i]))
                job_run(group, i, devs[i]);
        ek_span span;
        ek_span_begin(&span, EK_SPAN_WAIT, "waiting for the workers", NULL, NULL);
        pthread_mutex_lock(&group->lock);
        while (group->remaining > 0)
            ek_work_wait(&group->done, &group->lock);
        pthread_mutex_unlock(&group->lock);
        ek_span_end(&span);
    }
    pthread_cond_destroy(&group->done);
    pthread_mutex_destroy(&group->lock);
    free(jobs);
    return rc;
}

/* Returns the index of the job whose error the caller gets: the first job that failed by itself,
 * else the first job that gave up because of another; -1 if none failed. */
static int group_first_failed(const ek_error_record *errors, int count)
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

static int group_run(job_group *group, ek_dev *const *devs, int count, const char *what)
{
    const int before = ek_error_status();
    group->errors = ek_calloc((size_t)count, sizeof *group->errors);
    if (!group->errors)
        return ek_error_pending();
    if (count > 1) {
        group->barrier = ek_barrier_new(devs, count, what, group->errors, group->nested);
        if (!group->barrier)
            return ek_error_pending();
    }
    if (count > 1 && !group->nested)
        EK_TRY(group_run_on_workers(group, devs, count));
    else
        for (int i = 0; i < count; i++)
            job_run(group, i, devs[i]);
    int failed = group_first_failed(group->errors, count);
    if (failed < 0)
        return 0;
    ek_error_raise(&group->errors[failed]);
    if (what)
        ek_error_prefix(before, "%s %d on %s", what, failed, devs[failed]->name);
    return group->errors[failed].status;
}

int ek_jobs_run(ek_dev *const *devs, int count, ek_job_function *function, void *user,
                const char *what)
{
    ek_thread *self = ek_thread_self();
    if (count <= 0)
        return 0;
    EK_TRY(ek_fork_check());
    job_group group = {.function = function,
                       .user = user,
                       .what = what ? what : "work",
                       .named = what != NULL,
                       .modes = self->modes,
                       .nested = ek_thread_in_job()};
    ek_error_record before; /* an error that was pending before stays the pending error */
    ek_error_take(&before);
    int rc = group_run(&group, devs, count, what);
    self->modes = group.modes;
    if (before.status) {
        ek_error_clear();
        ek_error_raise(&before);
    }
    ek_barrier_free(group.barrier);
    free(group.errors);
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
    pthread_mutex_lock(&group_lock);
    for (int i = 0; i < worker_count; i++) {
        ek_worker *worker = workers[i];
        ek_job stop = {0};
        worker_enqueue(worker, &stop);
        pthread_join(worker->thread, NULL);
        worker->dev->worker = NULL;
        pthread_cond_destroy(&worker->wake);
        pthread_mutex_destroy(&worker->lock);
        free(worker);
    }
    worker_count = 0;
    pthread_mutex_unlock(&group_lock);
}
