/** @file
 * scope.h: scopes, which release what operations make.
 *
 * Tensors and values are reference counted. What an operation makes is owned by the innermost scope
 * of the calling thread: the scope holds a reference and releases it when it ends. To use a tensor
 * longer, add a reference with ek_keep and drop it with ek_release. Every thread has a root scope,
 * which ends with the thread or with ek_shutdown. Scopes nest; each belongs to one thread. */
#ifndef EVENKEEL_SCOPE_H
#define EVENKEEL_SCOPE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/base.h"

EK_BEGIN_DECLARATIONS

struct ek_tensor;

/** A position in the thread's list of owned objects. */
typedef struct ek_scope {
    size_t mark;
    unsigned depth;
} ek_scope;

/** Begins a scope: it owns what this thread makes until ek_scope_end. */
EK_API ek_scope ek_scope_begin(void);

/** Releases everything made since the matching begin, newest first. Inner scopes that are still
 * open end too. */
EK_API void ek_scope_end(ek_scope *scope);

/** Ends the scope, but moves `tensor` (may be NULL) to the enclosing scope; returns it. */
EK_API struct ek_tensor *ek_scope_return(ek_scope *scope, struct ek_tensor *tensor);

/** Adds a reference for the caller; NULL stays NULL. Returns its argument. Any thread. */
EK_API struct ek_tensor *ek_keep(struct ek_tensor *tensor);

/** Drops one reference; NULL is ignored. Any thread. */
EK_API void ek_release(struct ek_tensor *tensor);

/** Leaves the process group, for which all ranks call it (dist.h), ends the root scope of the
 * calling thread, joins all workers and frees the cached memory of every device. No other thread
 * may be inside the library. Afterwards the library can be used again from the start. Returns 0, or
 * EK_E_STATE with a sentence that names a device with memory in use, because a tensor is still
 * kept. */
EK_API int ek_shutdown(void);

EK_END_DECLARATIONS
#endif
