/* call_guard.h: one thread at a time uses a wrapper. */
#ifndef EK_PARALLEL_CALL_GUARD_H
#define EK_PARALLEL_CALL_GUARD_H

#include <stdatomic.h>

#include "core/thread.h"

/* All zero is free. */
typedef struct ek_call_guard {
    _Atomic(const void *) owner; /* the thread that is in a call; NULL: none */
    int depth;                   /* of that thread's calls within calls; the owner's alone */
} ek_call_guard;

/* The calling thread begins to use what `subject` names in a sentence ("data_parallel"). EK_E_STATE
 * if another thread does; who uses it already may enter again. Leave after every successful one. */
static inline int ek_call_guard_enter(ek_call_guard *guard, const char *subject)
{
    const void *self = ek_thread_self(), *nobody = NULL;
    EK_TRY(ek_fork_check());
    /* Only this thread makes itself the owner, so no other answer can come while it looks. */
    if (atomic_load_explicit(&guard->owner, memory_order_relaxed) != self &&
        !atomic_compare_exchange_strong_explicit(&guard->owner, &nobody, self, memory_order_acquire,
                                                 memory_order_relaxed))
        return EK_FAIL(EK_E_STATE,
                       "%s is in a call on another thread; one thread at a time may use it",
                       subject);
    guard->depth++;
    return 0;
}

static inline void ek_call_guard_leave(ek_call_guard *guard)
{
    if (--guard->depth == 0)
        atomic_store_explicit(&guard->owner, NULL, memory_order_release);
}

#endif
