/* object.h: reference counting, and the scope list, which owns what a thread makes. */
#ifndef EK_CORE_OBJECT_H
#define EK_CORE_OBJECT_H

#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>

#include "evenkeel/scope.h"

/* The first member of every counted struct: tensors, storages, versions, graph nodes, lists. */
typedef struct ek_object {
    atomic_int references;
    void (*destroy)(struct ek_object *object); /* also frees the object itself */
} ek_object;

static inline void ek_object_init(ek_object *object, void (*destroy)(ek_object *))
{
    atomic_init(&object->references, 1);
    object->destroy = destroy;
}

/* Adds one reference and returns its argument; NULL is ignored. Any thread. */
static inline void *ek_object_retain(void *object)
{
    if (object)
        atomic_fetch_add_explicit(&((ek_object *)object)->references, 1, memory_order_relaxed);
    return object;
}

/* Drops one reference; NULL is ignored. Any thread. The owner of the only reference needs no atomic
 * subtraction, because nobody else can add a reference. */
static inline void ek_object_release(void *object)
{
    ek_object *counted = (ek_object *)object;
    /* Acquire: the thread that destroys the object must see all that other owners wrote. */
    if (counted && (atomic_load_explicit(&counted->references, memory_order_acquire) == 1 ||
                    atomic_fetch_sub_explicit(&counted->references, 1, memory_order_acq_rel) == 1))
        counted->destroy(counted);
}

/* Gives an object that is about to be retired (check.h) a count at which neither a retain nor a
 * release of a stale handle destroys the object. */
static inline void ek_object_retire(ek_object *object)
{
    atomic_store_explicit(&object->references, INT_MIN / 2, memory_order_relaxed);
}

/* Hands one reference over to the calling thread's innermost scope and returns `object`. If the
 * scope list cannot grow, releases the reference and returns NULL with an error. NULL stays
 * NULL. */
void *ek_scope_adopt(void *object);

/* Ends the scope and adds `object`, with a separate reference, to the enclosing scope. */
void *ek_scope_return_object(ek_scope *scope, void *object);

#endif
