/* thread.c: see thread.h. */
#include "core/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "core/cells.h"

enum { MOST_EXITS = 4 };

_Thread_local ek_thread *ek_thread_state;
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static void (*exits[MOST_EXITS])(ek_thread *thread); /* set by constructors, constant afterwards */

void ek_thread_at_exit(void (*function)(ek_thread *thread))
{
    int i = 0;
    while (i < MOST_EXITS - 1 && exits[i])
        i++;
    exits[i] = function;
}

static void thread_run_exits(void *thread)
{
    for (int i = 0; i < MOST_EXITS && exits[i]; i++)
        exits[i](thread);
    ek_retired_hand_over(thread);
    ek_cells_clear(); /* last, because the functions above free cells */
}

void ek_thread_clear(void)
{
    thread_run_exits(ek_thread_self());
}

/* ---- states ---- */

/* States lie in an array, because a library that dlopen loads has little room for thread-local
 * memory. Threads beyond these have their states from the system. */
enum { MOST_POOLED = 256, CACHE_LINE = 64 };
static struct {
    alignas(CACHE_LINE) ek_thread thread;
    atomic_bool taken;
} pool[MOST_POOLED];

static ek_thread *thread_take(void)
{
    for (;;) {
        for (int i = 0; i < MOST_POOLED; i++)
            if (!atomic_load_explicit(&pool[i].taken, memory_order_relaxed) &&
                !atomic_exchange(&pool[i].taken, true))
                return &pool[i].thread;
        ek_thread *state = calloc(1, sizeof *state);
        if (state)
            return state;
        sched_yield(); /* an error has no place yet: wait until a thread ends */
    }
}

static void thread_give(ek_thread *state)
{
    for (int i = 0; i < MOST_POOLED; i++)
        if (state == &pool[i].thread) {
            memset(state, 0, sizeof *state);
            atomic_store(&pool[i].taken, false);
            return;
        }
    free(state);
}

static void thread_end(void *state)
{
    ek_thread_state = state; /* the functions below ask for it */
    thread_run_exits(state);
    ek_thread_state = NULL;
    thread_give(state);
}

static void thread_make_exit_key(void)
{
    pthread_key_create(&exit_key, thread_end);
}

ek_thread *ek_thread_begin(void)
{
    ek_thread *self = thread_take();
    ek_thread_state = self;
    self->modes = (ek_thread_modes){.category = EK_MEMORY_ACTIVATION, .path = ek_path_root};
    pthread_once(&exit_once, thread_make_exit_key);
    pthread_setspecific(exit_key, self);
    return self;
}

ek_memory_category ek_memory_set_category(ek_memory_category category)
{
    ek_thread *thread = ek_thread_self();
    ek_memory_category before = thread->modes.category;
    if ((unsigned)category < EK_MEMORY_CATEGORIES)
        thread->modes.category = category;
    return before;
}
