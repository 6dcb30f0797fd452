/* call_guard.h: one thread at a time uses a wrapper. */
#ifndef EK_PARALLEL_CALL_GUARD_H
#define EK_PARALLEL_CALL_GUARD_H

#include <stdatomic.h>

/* All zero is free. */
typedef struct ek_call_guard {
    _Atomic(const void *) owner; /* the thread that is in a call; NULL: none */
    int depth;                   /* of that thread's calls within calls; the owner's alone */
} ek_call_guard;

/* The calling thread begins to use what `subject` names in a sentence ("data_parallel"). EK_E_STATE
 * if another thread does; who uses it already may enter again. Leave after every successful one. */
int ek_call_guard_enter(ek_call_guard *guard, const char *subject);
void ek_call_guard_leave(ek_call_guard *guard);

#endif
