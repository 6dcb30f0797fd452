/* scope.h: who releases what.
 *
 * Tensors and values are reference counted. Whatever an operation makes belongs to the innermost
 * scope of the calling thread and is released when that scope ends; what shall live longer is kept
 * with ek_keep and given back with ek_release. Every thread has a root scope, which ends with the
 * thread or with ek_shutdown. Scopes nest and belong to one thread. */
#ifndef EVENKEEL_SCOPE_H
#define EVENKEEL_SCOPE_H

#include "evenkeel/base.h"

EK_BEGIN_DECLARATIONS

struct ek_tensor;

/* A scope is a mark in its thread's list of owned objects. */
typedef struct ek_scope {
    size_t mark;
    unsigned depth;
} ek_scope;

EK_API ek_scope ek_scope_begin(void);

/* Releases everything made since the matching begin, newest first. Inner scopes that were left open
 * end with it. */
EK_API void ek_scope_end(ek_scope *scope);

/* Ends the scope but hands `tensor` (may be NULL) to the enclosing scope; returns it. */
EK_API struct ek_tensor *ek_scope_return(ek_scope *scope, struct ek_tensor *tensor);

/* Adds a reference for the caller; NULL stays NULL. Returns its argument. Any thread. */
EK_API struct ek_tensor *ek_keep(struct ek_tensor *tensor);

/* Gives one reference back; NULL is ignored. Any thread. */
EK_API void ek_release(struct ek_tensor *tensor);

/* Ends the root scope of the calling thread, joins all workers and gives every device's cached
 * memory back. Afterwards the library can be used again from the start. Call with no other thread
 * inside the library. Returns 0, or EK_E_STATE with a sentence that names the device whose ledger
 * is not at zero (something is still kept). */
EK_API int ek_shutdown(void);

EK_END_DECLARATIONS
#endif
