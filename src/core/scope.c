/* scope.c: reference counts, and the list of the objects that each thread owns. */
#include "evenkeel/scope.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/object.h"
#include "core/thread.h"
#include "evenkeel/tensor.h"

void *ek_scope_adopt(void *object)
{
    if (!object)
        return NULL;
    ek_thread *thread = ek_thread_self();
    if (thread->owned_count == thread->owned_capacity) {
        size_t capacity = thread->owned_capacity ? 2 * thread->owned_capacity : 64;
        void **grown = ek_realloc(thread->owned, capacity * sizeof *grown);
        if (!grown) {
            ek_object_release(object);
            return NULL;
        }
        thread->owned = grown;
        thread->owned_capacity = capacity;
    }
    thread->owned[thread->owned_count++] = object;
    return object;
}

ek_scope ek_scope_begin(void)
{
    ek_thread *thread = ek_thread_self();
    ek_scope scope = {thread->owned_count, ++thread->scope_depth};
    return scope;
}

void ek_scope_end(ek_scope *scope)
{
    if (!scope)
        return;
    ek_thread *thread = ek_thread_self();
    if (scope->depth > thread->scope_depth)
        return; /* an outer scope has ended it already */
    while (thread->owned_count > scope->mark)
        ek_object_release(thread->owned[--thread->owned_count]);
    thread->scope_depth = scope->depth - 1;
}

void *ek_scope_return_object(ek_scope *scope, void *object)
{
    ek_object_retain(object);
    ek_scope_end(scope);
    return ek_scope_adopt(object);
}

/* Releases the root scope of a thread that ends. */
static void scope_thread_exit(ek_thread *thread)
{
    ek_scope root = {0, 1};
    thread->scope_depth = 1;
    ek_scope_end(&root);
    free(thread->owned);
    thread->owned = NULL;
    thread->owned_capacity = 0;
}

__attribute__((constructor)) static void scope_watch_threads(void)
{
    ek_thread_at_exit(scope_thread_exit);
}

ek_tensor *ek_scope_return(ek_scope *scope, ek_tensor *tensor)
{
    return ek_scope_return_object(scope, tensor);
}

ek_tensor *ek_keep(ek_tensor *tensor)
{
    return ek_object_retain(tensor);
}

void ek_release(ek_tensor *tensor)
{
    ek_object_release(tensor);
}
