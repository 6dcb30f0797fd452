/* thread.h: the state of each thread. Includes the headers that nearly every file needs: errors,
 * memory, forks. */
#ifndef EK_CORE_THREAD_H
#define EK_CORE_THREAD_H

#include "core/check.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/path.h"
#include "evenkeel/device.h"
#include "evenkeel/scope.h"

typedef struct ek_dev ek_dev;

/* Modes of a thread. A job (worker.h) starts with its submitter's modes. `flags` is a sum of
 * EK_MODE_x. */
typedef struct ek_thread_modes {
    unsigned flags;
    ek_memory_category category;
    unsigned stream;  /* the ek_stream of what the thread issues and allocates (lane.h) */
    const char *path; /* The module whose forward or backward runs (path.h) */
} ek_thread_modes;

enum {
    EK_MODE_NO_GRAD = 1u << 0,
    EK_MODE_ALONE = 1u << 1,        /* in a checkpoint's forward, where a rendezvous fails */
    EK_MODE_BACKWARD = 1u << 2,     /* in backward, where a rendezvous fails */
    EK_MODE_AUTOCAST = 1u << 3,     /* autocast is on (evenkeel/precision.h) */
    EK_MODE_AUTOCAST_F16 = 1u << 4, /* beside EK_MODE_AUTOCAST: autocast casts to f16, not bf16 */
    EK_MODE_AUTOCASTS = EK_MODE_AUTOCAST | EK_MODE_AUTOCAST_F16
};

/* Which job the thread runs: the barrier of the job's group, and the job's index (rendezvous.h). */
typedef struct ek_group_rank {
    struct ek_barrier *barrier; /* NULL: the thread runs no job of a group of several jobs */
    int index;
    bool leads; /* the thread does the common work of a rendezvous, while the other jobs wait */
} ek_group_rank;

/* Freed cells of one size, which the thread keeps (cells.h). */
enum { EK_CELL_LISTS = 16 };
typedef struct ek_cell_list {
    struct ek_cell *first;
    size_t nbytes; /* the sum over the cells in the list */
} ek_cell_list;

/* What checks of lifetimes know of a thread (check.c, scope_check.c). */
typedef struct ek_thread_checks {
    ek_releaser place;    /* noted by ek_placed for the call that follows */
    ek_releaser releaser; /* What releases objects now */
    ek_scope *open;       /* copies of the open scopes, by depth - 1 */
    unsigned open_room;
    size_t owned_before, owned_first; /* counts of owned objects: at the last step; before growth */
    int growing;                      /* how many steps in a row have found more owned objects */
    bool error_is_read;               /* the pending error's sentence was asked for */
    const char *module;               /* the type of the outermost module that runs; NULL: none */
    struct tombstone **retired; /* The ring of tombstones; NULL: the thread has released nothing. */
    unsigned retired_count;     /* The ring has taken so many tombstones. */
} ek_thread_checks;

typedef struct ek_thread {
    ek_thread_modes modes;
    ek_error_record error;
    void **owned; /* the scope list: one reference each */
    size_t owned_count, owned_capacity;
    unsigned scope_depth;
    ek_group_rank rank;
    ek_dev *own_device; /* the device whose worker this thread is (worker.c); NULL: none */
    ek_dev *rng_device; /* the device whose generator draws (ek_generator_draw_for); NULL: none */
    ek_dev *current_device; /* the device for which this thread works (work.c); NULL: none */
    uint64_t waited_ns;     /* how long the thread has waited for other threads, in all */
    uint64_t cpu_ns; /* the thread's CPU time when its work began or it last slept (worker.h) */
    unsigned autocast_depth;      /* how many autocast regions the thread is in */
    struct ek_cast *casts;        /* owned by ops/autocast.c */
    struct ek_span *span;         /* the innermost open span (trace.h) */
    unsigned trace_number;        /* owned by trace.c */
    unsigned meetings;            /* calls so far of operations that meet (autograd/graph.h) */
    struct ek_observer *observer; /* learns of operations (autograd/observer.h); NULL: none */
    ek_thread_checks checks;
    ek_cell_list cells[EK_CELL_LISTS];
} ek_thread;

/* The state of the calling thread; NULL until ek_thread_begin has made it. A pointer fits in the
 * static TLS of a library that dlopen loads, and reading it takes no call. */
extern _Thread_local ek_thread *ek_thread_state __attribute__((tls_model("initial-exec")));
ek_thread *ek_thread_begin(void);

static inline ek_thread *ek_thread_self(void)
{
    ek_thread *state = ek_thread_state;
    return state ? state : ek_thread_begin();
}

/* Returns true on workers and in jobs of a group. A group that such a thread starts runs on this
 * thread, because the workers may be waiting for it. */
static inline bool ek_thread_in_job(void)
{
    const ek_thread *self = ek_thread_self();
    return self->own_device || self->rank.barrier;
}

/* Registers a function that is called whenever a thread that has a state ends, and in ek_shutdown
 * for the calling thread. Owners of members of ek_thread release these members in it. For
 * constructors only. */
void ek_thread_at_exit(void (*function)(ek_thread *thread));
/* Calls the registered functions for the calling thread, and frees the cells that it keeps. */
void ek_thread_clear(void);

#endif
