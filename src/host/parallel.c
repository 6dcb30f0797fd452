/* parallel.c: teams of threads. A waiting thread spins for some microseconds and then sleeps, so
 * that it doesn't hold a core that other threads need. If the system doesn't run a member's thread
 * in time, a thread that is ready computes the member's part. */
#include "host/parallel.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"
#include "core/worker.h"
#include "host/host.h"

/* While devices have workers, the calling thread uses its team only for COLD times as much work,
 * because the team sleeps, and the workers use the cores. */
enum { COLD = 16 };

enum { LINE = 64 };

/* In nanoseconds: how long a thread spins at most, and the pause between two looks at the clock
 * from which a spinning thread concludes that the system took its core away. */
enum { MOST_PATIENCE = 200000, LATE = 100000 };

/* A wait until `word` is zero, or until it isn't. */
typedef struct wait {
    _Atomic int word, asleep;
    bool until_zero;
    uint64_t patience; /* how many nanoseconds to spin; used by the waiting thread alone */
    pthread_mutex_t lock;
    pthread_cond_t changed;
} wait;

/* A thread of a team beside the calling thread. It waits for its part (word 1) or its end (2). */
typedef struct member {
    _Alignas(LINE) wait work;
    pthread_t thread;
    struct team *team;
    int index; /* of its part; part 0 is the calling thread's */
} member;

/* The calling thread's team. Only the calling thread writes the members after `undone`, and only
 * while no part is undone. */
typedef struct team {
    _Alignas(LINE) wait undone; /* the parts that have not ended */
    member **members;           /* by index - 1 */
    int started;                /* members that have been started */
    int most; /* > 0: the system gave only so many threads, the calling one included */
    int parts;
    int64_t part, count;
    ek_parallel_body *body;
    void *context;
} team;

static _Thread_local team *own_team;
static _Thread_local bool inside_team; /* the thread computes a part */

/* ---- waiting ---- */

/* Tells the processor that a loop waits. */
static void parallel_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void parallel_wait_init(wait *w, bool until_zero)
{
    *w = (wait){.until_zero = until_zero, .patience = MOST_PATIENCE};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
}

static void parallel_wait_destroy(wait *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

static bool parallel_wait_over(wait *w, memory_order order)
{
    return (atomic_load_explicit(&w->word, order) == 0) == w->until_zero;
}

/* Spins until the wait is over, at most for `patience`. Returns true if the wait is over.
 * `patience` becomes 0 when the system has taken the core away, and grows again with each wait. */
static bool parallel_wait_spin(wait *w)
{
    enum { PAUSES = 8 };
    uint64_t began = ek_clock_ns(), now = began;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (parallel_wait_over(w, memory_order_acquire))
                return true;
            parallel_pause();
        }
        uint64_t before = now;
        now = ek_clock_ns();
        if (now - before > LATE)
            w->patience = 0;
    } while (now - began < w->patience);
    return false;
}

static void parallel_wait_for(wait *w)
{
    if (w->patience < MOST_PATIENCE)
        w->patience += MOST_PATIENCE / 32;
    if (parallel_wait_spin(w))
        return;
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->asleep, 1);
    while (!parallel_wait_over(w, memory_order_seq_cst))
        pthread_cond_wait(&w->changed, &w->lock);
    atomic_store_explicit(&w->asleep, 0, memory_order_relaxed);
    pthread_mutex_unlock(&w->lock);
}

/* Wakes the waiting thread if it sleeps. Called after a change of the word. */
static void parallel_wait_wake(wait *w)
{
    if (!atomic_load(&w->asleep))
        return;
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* ---- parts ---- */

static void parallel_run_part(const team *t, int index)
{
    int64_t begin = index * t->part, end = begin + t->part;
    t->body(t->context, begin, end < t->count ? end : t->count);
}

/* Takes the member's part if no thread has taken it. Returns true if the calling thread then has
 * to compute the part. The team's members don't change until the thread has counted the part as
 * done. */
static bool parallel_take(member *m)
{
    int there = 1;
    return atomic_load_explicit(&m->work.word, memory_order_relaxed) == 1 &&
           atomic_compare_exchange_strong(&m->work.word, &there, 0);
}

/* Computes part `index`, and then all parts that no thread has taken. Returns how many parts it has
 * computed. */
static int parallel_run_parts(team *t, int index)
{
    int done = 1;
    inside_team = true;
    parallel_run_part(t, index);
    for (int i = 1; i < t->parts; i++)
        if (parallel_take(t->members[i - 1])) {
            parallel_run_part(t, i);
            done++;
        }
    inside_team = false;
    return done;
}

static void *parallel_member_main(void *user)
{
    member *self = user;
    team *t = self->team;
    omp_set_num_threads(1); /* for oneDNN */
    for (;;) {
        parallel_wait_for(&self->work);
        if (atomic_load(&self->work.word) == 2)
            return NULL;
        if (!parallel_take(self))
            continue;
        int done = parallel_run_parts(t, self->index);
        if (atomic_fetch_sub(&t->undone.word, done) == done)
            parallel_wait_wake(&t->undone);
    }
}

/* ---- teams ---- */

static void parallel_member_free(member *m)
{
    parallel_wait_destroy(&m->work);
    free(m);
}

/* Adds a member. Returns false if the system has no thread, or no memory, for it. */
static bool parallel_team_add(team *t)
{
    member **members = realloc(t->members, (size_t)(t->started + 1) * sizeof(member *));
    if (members)
        t->members = members;
    member *m = members ? aligned_alloc(LINE, sizeof *m) : NULL;
    if (!m)
        return false;
    m->team = t;
    m->index = t->started + 1;
    parallel_wait_init(&m->work, false);
    if (pthread_create(&m->thread, NULL, parallel_member_main, m) != 0) {
        parallel_member_free(m);
        return false;
    }
    pthread_setname_np(m->thread, "ek-team");
    t->members[t->started++] = m;
    return true;
}

/* Ends the calling thread's team. Does nothing in a forked child, which has none of the team's
 * threads. */
static void parallel_team_end(ek_thread *unused)
{
    team *t = own_team;
    (void)unused;
    own_team = NULL;
    if (!t || ek_forked())
        return;
    for (int i = 0; i < t->started; i++) {
        atomic_store(&t->members[i]->work.word, 2);
        parallel_wait_wake(&t->members[i]->work);
        pthread_join(t->members[i]->thread, NULL);
        parallel_member_free(t->members[i]);
    }
    parallel_wait_destroy(&t->undone);
    free(t->members);
    free(t);
}

__attribute__((constructor)) static void parallel_watch_threads(void)
{
    ek_thread_at_exit(parallel_team_end);
}

/* Returns the calling thread's team with the device's number of threads, or as many as the system
 * provides; NULL if the calling thread is alone. */
static team *parallel_team_for(const ek_dev *dev)
{
    int threads = ek_parallel_threads(dev);
    if (threads < 2)
        return NULL;
    if (!own_team) {
        team *made = aligned_alloc(LINE, sizeof *made);
        if (!made)
            return NULL;
        memset(made, 0, sizeof *made);
        parallel_wait_init(&made->undone, true);
        ek_thread_self(); /* parallel_team_end is called at the thread's exit */
        own_team = made;
    }
    while (own_team->started + 1 < threads && parallel_team_add(own_team))
        ;
    if (own_team->started + 1 < threads) {
        own_team->most = own_team->started + 1;
        ek_log_line(EK_LOG_WARNING,
                    "%s: a thread computes with a team of %d instead of %d: the system has no more "
                    "threads for this process",
                    dev->name, own_team->most, threads);
    }
    return own_team->started ? own_team : NULL;
}

int ek_parallel_threads(const ek_dev *dev)
{
    int most = own_team ? own_team->most : 0, threads = dev->threads > 1 ? dev->threads : 1;
    return most && threads > most ? most : threads;
}

static void parallel_run(ek_dev *dev, int64_t count, int64_t grain, ek_parallel_body *body,
                         void *context)
{
    bool alone = count <= grain || inside_team || omp_in_parallel() || ek_forked();
    team *t = alone ? NULL : parallel_team_for(dev);
    if (!t) {
        body(context, 0, count);
        return;
    }
    int threads = ek_parallel_threads(dev);
    t->part = ek_larger((count + threads - 1) / threads, grain);
    t->parts = (int)((count + t->part - 1) / t->part);
    t->count = count;
    t->body = body;
    t->context = context;
    atomic_store_explicit(&t->undone.word, t->parts, memory_order_relaxed);
    for (int i = 1; i < t->parts; i++) {
        atomic_store(&t->members[i - 1]->work.word, 1);
        parallel_wait_wake(&t->members[i - 1]->work);
    }
    int done = parallel_run_parts(t, 0);
    if (atomic_fetch_sub(&t->undone.word, done) != done)
        parallel_wait_for(&t->undone);
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
    parallel_run(dev, count, grain, body, context);
}

void ek_parallel_parts(ek_dev *dev, int64_t count, ek_parallel_body *body, void *context)
{
    if (count > 0)
        parallel_run(dev, count, 1, body, context);
}

int ek_parallel_alone_begin(void)
{
    int before = omp_get_max_threads();
    if (before != 1)
        omp_set_num_threads(1);
    return before;
}

void ek_parallel_alone_end(int before)
{
    if (before != 1)
        omp_set_num_threads(before);
}

void ek_parallel_wait(_Atomic int64_t *done, int64_t count)
{
    enum { PATIENCE = 1000, NAP_NS = 50000 };
    for (int i = 0; atomic_load(done) < count; i++)
        if (i < PATIENCE)
            parallel_pause();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}
