/* object.h: reference counting, and the scope list, which owns what a thread makes. */
#ifndef EK_CORE_OBJECT_H
#define EK_CORE_OBJECT_H

#include <stdatomic.h>

#include "evenkeel/scope.h"

/* The first member of every counted struct: tensors, storages, versions, graph nodes, lists. */
typedef struct ek_object {
    atomic_int references;
    void (*destroy)(struct ek_object *object); /* frees the object itself too */
} ek_object;

static inline void ek_object_init(ek_object *object, void (*destroy)(ek_object *))
{
    atomic_init(&object->references, 1);
    object->destroy = destroy;
}

/* Add and drop one reference; NULL is ignored. Retain returns its argument. Any thread. */
void *ek_object_retain(void *object);
void ek_object_release(void *object);

/* Hands one reference over to the calling thread's innermost scope and returns `object`. If the
 * list cannot grow, it releases the reference and returns NULL with an error. NULL stays NULL. */
void *ek_scope_adopt(void *object);

/* Ends the scope but adds `object` to the enclosing one, with a reference of its own. */
void *ek_scope_return_object(ek_scope *scope, void *object);

#endif
