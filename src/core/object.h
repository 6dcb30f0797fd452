/* object.h: reference counting, and the scope list that owns what a thread makes. */
#ifndef EK_CORE_OBJECT_H
#define EK_CORE_OBJECT_H

#include <stdatomic.h>

#include "evenkeel/scope.h"

/* First member of everything that is counted: tensors, storages, versions, graph nodes, lists. */
typedef struct ek_object {
    atomic_int references;
    void (*destroy)(struct ek_object *object); /* frees the object itself too */
} ek_object;

static inline void ek_object_init(ek_object *object, void (*destroy)(ek_object *))
{
    atomic_init(&object->references, 1);
    object->destroy = destroy;
}

/* Both take NULL. Retain returns its argument. */
void *ek_object_retain(void *object);
void ek_object_release(void *object);

/* Gives one reference to the calling thread's innermost scope. If the list cannot grow the
 * reference is released, an error is set and NULL is returned; otherwise returns `object`. NULL
 * stays NULL. */
void *ek_scope_adopt(void *object);

/* Ends the scope but hands `object`, one reference, to the enclosing scope. */
void *ek_scope_return_object(ek_scope *scope, void *object);

#endif
