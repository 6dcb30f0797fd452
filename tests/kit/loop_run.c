/* loop_run.c: ranks as threads; see loop.h. */
#include <pthread.h>
#include <stdarg.h>

#include "kit/loop.h"

enum { RUN_RANKS = 80, RUN_TEXT = 1024 };

typedef struct run {
    loop *loop;
    loop_function *function;
    void *user;
    pthread_mutex_t lock; /* guards `failed` and the text */
    bool failed;
    char *text;
} run;

typedef struct run_rank {
    run *run;
    int rank;
    pthread_t thread;
} run_rank;

const char *loop_failure(const char *file, int line, const char *format, ...)
{
    static _Thread_local char text[RUN_TEXT];
    int at = snprintf(text, sizeof text, "%s:%d: ", file, line);
    va_list list;
    va_start(list, format);
    vsnprintf(text + at, sizeof text - (size_t)at, format, list);
    va_end(list);
    return text;
}

static void *run_thread(void *argument)
{
    run_rank *self = argument;
    run *all = self->run;
    const char *text = all->function(self->rank, all->user);
    if (!text)
        return NULL;
    pthread_mutex_lock(&all->lock);
    if (!all->failed)
        snprintf(all->text, RUN_TEXT, "rank %d: %s", self->rank, text);
    all->failed = true;
    pthread_mutex_unlock(&all->lock);
    loop_end(all->loop, 1);
    return NULL;
}

const char *loop_run(loop *l, loop_function *function, void *user)
{
    static char text[RUN_TEXT];
    run_rank ranks[RUN_RANKS];
    run all = {.loop = l, .function = function, .user = user, .text = text};
    int size = loop_size(l);
    ck_assert_int_le(size, RUN_RANKS);
    pthread_mutex_init(&all.lock, NULL);
    for (int rank = 0; rank < size; rank++) {
        ranks[rank] = (run_rank){.run = &all, .rank = rank};
        if (pthread_create(&ranks[rank].thread, NULL, run_thread, &ranks[rank]) != 0)
            ck_abort_msg("no thread for rank %d", rank);
    }
    for (int rank = 0; rank < size; rank++)
        pthread_join(ranks[rank].thread, NULL);
    pthread_mutex_destroy(&all.lock);
    return all.failed ? text : NULL;
}

void assert_loop_at(loop *l, loop_function *function, void *user, const char *file, int line)
{
    const char *failure = loop_run(l, function, user);
    if (failure)
        ck_abort_msg("%s:%d: %s\n%s", file, line, failure, loop_violations(l));
    if (loop_violations(l)[0])
        ck_abort_msg("%s:%d: %s", file, line, loop_violations(l));
    if (loop_leaks(l) != 0)
        ck_abort_msg("%s:%d: %d requests and communicators are left open", file, line,
                     loop_leaks(l));
}
