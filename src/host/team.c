/* team.c: whether the threads of a team can be had. GNU OpenMP ends the process where it cannot
 * start one, so they are tried first: as many are started as the team will need, all at once, and
 * end again. */
#include "host/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"

typedef struct trial {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over;
} trial;

typedef struct trial_thread {
    pthread_t thread;
    trial *trial;
    pid_t number; /* the kernel's; written by the thread */
} trial_thread;

static void *trial_main(void *user)
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
static void wait_until_gone(pid_t number, uint64_t until)
{
    while (syscall(SYS_tgkill, getpid(), number, 0) == 0 && ek_clock_ns() < until)
        sched_yield();
}

int ek_team_try(int count)
{
    enum { PATIENCE_NS = 100000000 };
    trial t = {.over = false};
    trial_thread *threads =
        calloc((size_t)count, sizeof *threads); /* no sentence: 0 is an answer */
    int had = 0;
    if (!threads)
        return 0;
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    while (had < count) {
        threads[had].trial = &t;
        if (pthread_create(&threads[had].thread, NULL, trial_main, &threads[had]) != 0)
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
        wait_until_gone(threads[i].number, until);
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.lock);
    free(threads);
    return had;
}
