/* parallel.c: teams of OpenMP threads. ThreadSanitizer doesn't know GNU OpenMP's barriers, so its
 * build computes on one thread. */
#include "host/parallel.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"
#include "core/worker.h"

/* While devices have workers, a team of the caller is started only for COLD times as much work.
 * Such a team has gone to sleep, and after its work it spins on the cores that the workers use. */
enum { COLD = 16 };

/* The calling thread's team, whose threads stay for the next one of its size. */
static _Thread_local struct {
    int started; /* the team's size with the calling thread; 0 without a team */
    int most;    /* the most threads to be had, once more were wanted; else 0 */
} own_team;

int ek_parallel_threads(const ek_dev *dev)
{
#ifdef EK_SANITIZED_THREAD
    (void)dev;
    return 1;
#else
    int threads = dev->threads > 1 ? dev->threads : 1;
    return own_team.most && threads > own_team.most ? own_team.most : threads;
#endif
}

/* ---- whether the threads of a team can be had ----
 *
 * GNU OpenMP ends the process if it cannot start a thread. So plain threads are tried first: as
 * many as the team will need are started, all at once, and end again. */

typedef struct trial {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over;
} trial;

typedef struct trial_thread {
    pthread_t thread;
    trial *trial;
    pid_t number; /* the kernel's id, written by the thread itself */
} trial_thread;

static void *parallel_trial_main(void *user)
{
    trial_thread *self = user;
    trial *t = self->trial;
    self->number = (pid_t)syscall(SYS_gettid);
    pthread_mutex_lock(&t->lock);
    while (!t->over)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* A thread that has been joined counts against limits until the kernel has taken it off its lists,
 * which is a matter of microseconds. */
static void parallel_trial_wait_until_gone(pid_t number, uint64_t until)
{
    while (syscall(SYS_tgkill, getpid(), number, 0) == 0 && ek_clock_ns() < until)
        sched_yield();
}

/* How many of `count` threads can run at the same time under the present limits of system and user.
 * All have ended on return. */
static int parallel_trial_run(int count)
{
    enum { PATIENCE_NS = 100000000 };
    trial t = {.over = false};
    trial_thread *threads =
        calloc((size_t)count, sizeof *threads); /* without an error: 0 threads is an answer */
    int had = 0;
    if (!threads)
        return 0;
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    while (had < count) {
        threads[had].trial = &t;
        if (pthread_create(&threads[had].thread, NULL, parallel_trial_main, &threads[had]) != 0)
            break;
        had++;
    }
    pthread_mutex_lock(&t.lock);
    t.over = true;
    pthread_cond_broadcast(&t.changed);
    pthread_mutex_unlock(&t.lock);
    for (int i = 0; i < had; i++)
        pthread_join(threads[i].thread, NULL);
    uint64_t until = ek_clock_ns() + PATIENCE_NS;
    for (int i = 0; i < had; i++)
        parallel_trial_wait_until_gone(threads[i].number, until);
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.lock);
    free(threads);
    return had;
}

/* ---- teams ---- */

/* Starts the threads of the calling thread's team for the device. Returns the team's size. */
static int parallel_team_for(const ek_dev *dev)
{
    int threads = ek_parallel_threads(dev);
    if (threads > 1 && threads > own_team.started && !omp_in_parallel()) {
        int there = own_team.started > 1 ? own_team.started : 1;
        int had = there + parallel_trial_run(threads - there);
        if (had < threads) {
            ek_log_line(EK_LOG_WARNING,
                        "%s: a thread computes with a team of %d instead of %d: the system has no "
                        "more threads for this process",
                        dev->name, had, threads);
            own_team.most = threads = had;
        }
#pragma omp parallel num_threads(threads)
        {
        }
        own_team.started = threads;
    }
    return threads;
}

void ek_parallel_enter(const ek_dev *dev)
{
    int threads = parallel_team_for(dev);
    if (omp_get_max_threads() != threads)
        omp_set_num_threads(threads);
}

void ek_parallel_for(ek_dev *dev, int64_t count, int64_t grain, ek_parallel_body *body,
                     void *context)
{
    if (count <= 0)
        return;
    if (grain < 1)
        grain = 1;
    if (grain < count && dev->id.kind == EK_CPU && ek_workers_exist())
        grain *= COLD;
    int threads = count <= grain ? 1 : ek_parallel_threads(dev);
    if (threads == 1 || omp_in_parallel() || ek_forked()) {
        body(context, 0, count);
        return;
    }
    threads = parallel_team_for(dev);
    int64_t part = (count + threads - 1) / threads;
    if (part < grain)
        part = grain;
        /* The team's size never changes, because GNU OpenMP would start threads anew. */
#pragma omp parallel num_threads(threads)
    {
        int64_t team = omp_get_num_threads();
        for (int64_t begin = omp_get_thread_num() * part; begin < count; begin += team * part)
            body(context, begin, begin + part < count ? begin + part : count);
    }
}

/* Tells the processor that a loop waits. */
static void parallel_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void ek_parallel_wait(_Atomic int64_t *done, int64_t count)
{
    enum { PATIENCE = 1000 };
    for (int i = 0; atomic_load(done) < count; i++)
        if (i < PATIENCE)
            parallel_pause();
        else
            sched_yield();
}
