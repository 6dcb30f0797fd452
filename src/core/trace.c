/* trace.c: spans of the calling thread, and the tracer that collects them.
 *
 * Note [Removing the tracer]
 *
 * The tracer may be removed while other threads are about to call it. A caller first counts itself
 * in; if there is a tracer, calls it; and counts itself out. ek_trace_set first clears `present`,
 * then waits until no caller is counted in. Both sides are sequentially consistent: either the
 * caller sees that the tracer is gone, or ek_trace_set sees the caller. Callers are counted in
 * several places, each on a separate cache line, so that few threads share a line. */
#include "core/trace.h"

#include <sched.h>
#include <stdalign.h>

#include "core/clock.h"
#include "core/thread.h"

enum { PLACES = 64, CACHE_LINE = 64 };

typedef struct place {
    alignas(CACHE_LINE) atomic_int callers;
} place;

atomic_bool ek_trace_on;
static place places[PLACES];
static ek_tracer collector; /* written only while `present` is false and no caller uses it */
static atomic_bool present;
static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER; /* held by ek_trace_set */
static atomic_uint threads;                                  /* how many threads have a place */

/* ---- callers ---- */

static place *trace_place(ek_thread *self)
{
    if (!self->trace_number)
        self->trace_number = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    return &places[self->trace_number % PLACES];
}

/* Counts the caller in and returns the tracer, which stays valid until trace_leave; NULL if there
 * is no tracer. trace_leave must follow in both cases. See Note [Removing the tracer]. */
static const ek_tracer *trace_enter(place *at)
{
    atomic_fetch_add(&at->callers, 1);
    return atomic_load(&present) ? &collector : NULL;
}

static void trace_leave(place *at)
{
    atomic_fetch_sub_explicit(&at->callers, 1, memory_order_release);
}

static void trace_wait_for_callers(void)
{
    for (int i = 0; i < PLACES; i++)
        while (atomic_load(&places[i].callers) > 0)
            sched_yield(); /* the wait is short, because calls of the tracer are */
}

static void trace_abandon(void)
{
    atomic_store(&ek_trace_on, false);
    atomic_store(&present, false);
}

__attribute__((constructor)) static void trace_watch_forks(void)
{
    ek_fork_at_child(trace_abandon);
}

int ek_trace_set(const ek_tracer *tracer)
{
    int rc = 0;
    EK_TRY(ek_fork_check());
    pthread_mutex_lock(&set_lock);
    if (tracer && atomic_load(&present)) {
        rc = EK_FAIL(EK_E_STATE, "spans and changes of memory are collected already, by a report "
                                 "that was not stopped; one can at a time");
    } else if (tracer) {
        collector = *tracer;
        atomic_store(&present, true);
        atomic_store(&ek_trace_on, true);
    } else {
        atomic_store(&ek_trace_on, false);
        atomic_store(&present, false);
        trace_wait_for_callers();
    }
    pthread_mutex_unlock(&set_lock);
    return rc;
}

/* ---- calls of the tracer ---- */

void ek_span_open(ek_span *span)
{
    ek_thread *self = ek_thread_self();
    span->outer = self->span;
    if (self->own_device)
        span->dev = self->own_device;
    else if (!span->dev)
        span->dev = span->outer ? span->outer->dev : self->current_device;
    span->path = self->modes.path;
    span->open = true;
    self->span = span;
    span->began = ek_clock_ns();
}

void ek_span_close(ek_span *span)
{
    ek_thread *self = ek_thread_self();
    uint64_t ended = ek_clock_ns();
    span->open = false;
    self->span = span->outer;
    if (span->outer)
        span->outer->inner += ended - span->began;
    place *at = trace_place(self);
    const ek_tracer *tracer = trace_enter(at);
    if (tracer)
        tracer->span(span, ended, tracer->user);
    trace_leave(at);
}

void ek_trace_tell_memory(const ek_dev *dev, const ek_memory_stats *stats, const ek_held *left)
{
    ek_thread *self = ek_thread_self();
    place *at = trace_place(self);
    const ek_tracer *tracer = trace_enter(at);
    if (tracer)
        tracer->memory(dev, stats, self->span, left, tracer->user);
    trace_leave(at);
}

void ek_trace_shortage(const ek_dev *dev, const ek_shortage *lack)
{
    ek_thread *self = ek_thread_self();
    place *at = trace_place(self);
    const ek_tracer *tracer = trace_enter(at);
    if (tracer && tracer->shortage)
        tracer->shortage(dev, lack, self->span, tracer->user);
    trace_leave(at);
}
