/* call_guard.h: lets one thread at a time use a wrapper. */
#ifndef EK_PARALLEL_CALL_GUARD_H
#define EK_PARALLEL_CALL_GUARD_H

#include <stdatomic.h>

#include "core/thread.h"

/* All zero is free. */
typedef struct ek_call_guard {
    _Atomic(const void *) owner; /* the thread that is in a call, or NULL */
    int depth;                   /* depth of the owner's nested calls; only the owner uses it */
} ek_call_guard;

/* Makes the calling thread the owner; the owner itself may enter again. EK_E_STATE if another
 * thread is the owner; the error's sentence begins with `subject` ("data_parallel"). Every
 * successful enter needs a leave. */
static inline int ek_call_guard_enter(ek_call_guard *guard, const char *subject)
{
    const void *self = ek_thread_self(), *nobody = NULL;
    EK_TRY(ek_fork_check());
    /* Relaxed is enough, because only this thread stores `self` as the owner. */
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
