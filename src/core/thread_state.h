/* thread_state.h: what every thread carries. Jobs on workers start from a copy of the submitter's
 * modes. */
#ifndef EK_CORE_THREAD_STATE_H
#define EK_CORE_THREAD_STATE_H

#include "evenkeel/device.h"
#include "evenkeel/status.h"

typedef struct ek_dev ek_dev;

/* Inherited by jobs. Core only carries `flags`; autograd gives them meaning. */
typedef struct ek_thread_modes {
    unsigned flags;
    ek_memory_category category;
} ek_thread_modes;

enum {
    EK_MODE_NO_GRAD = 1u << 0,
    EK_MODE_ALONE = 1u << 1,    /* within what is computed again in backward: no rendezvous */
    EK_MODE_BACKWARD = 1u << 2, /* within backward: no rendezvous */
    EK_MODE_AUTOCAST = 1u << 3  /* evenkeel/precision.h */
};

/* Which job of which group a thread runs; see rendezvous.h. */
typedef struct ek_seat {
    struct ek_barrier *barrier; /* NULL: of no group with several jobs */
    int index;
} ek_seat;

typedef struct ek_thread {
    ek_thread_modes modes;
    ek_error_record error;
    void **owned; /* the scope list */
    size_t owned_count, owned_capacity;
    unsigned scope_depth;
    ek_dev *worker_of; /* the device whose worker this thread is; NULL elsewhere */
    ek_seat seat;
    ek_dev *works_for;       /* the device whose work this thread does; NULL: none */
    uint64_t waited_ns;      /* how long it has waited for other threads, in all */
    uint64_t cpu_ns;         /* its CPU time when it last rested for a slow device */
    unsigned autocast_depth; /* regions that this thread began and has not ended */
    struct ek_cast *casts;   /* ops/casts.c */
    struct ek_span *span;    /* the innermost one; see trace.h */
    unsigned trace_number;   /* trace.c */
} ek_thread;

ek_thread *ek_thread_self(void);

/* True on workers and in jobs of a group: a group that is started there runs inline, because the
 * workers may be waiting for the calling thread. */
static inline bool ek_thread_in_gang(void)
{
    const ek_thread *self = ek_thread_self();
    return self->worker_of || self->seat.barrier;
}

/* Calls `function` whenever a thread that has a state ends, and in ek_shutdown for the calling
 * thread. The owners of the state's members release them there. For constructors only. */
void ek_thread_at_exit(void (*function)(ek_thread *thread));
/* Does that now for the calling thread. */
void ek_thread_clear(void);

#endif
