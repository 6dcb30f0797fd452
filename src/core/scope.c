/* scope.c: reference counts, and the list of the objects that each thread owns. */
#include "evenkeel/scope.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/object.h"
#include "core/scope_check.h"
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
    ek_scope scope = {.mark = thread->owned_count,
                      .depth = ++thread->scope_depth,
                      .thread = thread};
    if (ek_checks_for(EK_CHECK_LIFETIMES))
        ek_scope_check_begin(thread, &scope);
    return scope;
}

/* Releases the objects that are owned since the mark, newest first. */
static void scope_release_since(ek_thread *thread, size_t mark)
{
    const bool checked = ek_checks_for(EK_CHECK_LIFETIMES);
    const char *what = thread->checks.releaser.what;
    while (thread->owned_count > mark) {
        void *object = thread->owned[--thread->owned_count];
        if (checked && ek_is_retired(object))
            ek_retired_warn(what ? what : "a scope", object);
        else
            ek_object_release(object);
    }
}

void ek_scope_end(ek_scope *scope)
{
    ek_thread *thread = ek_thread_self();
    const ek_releaser outer = thread->checks.releaser;
    if (ek_checks_for(EK_CHECK_LIFETIMES) && !ek_scope_check_end(thread, scope))
        return;
    /* An outer scope may have ended the scope already. */
    if (!scope || scope->depth == 0 || scope->depth > thread->scope_depth ||
        scope->thread != thread)
        return;
    scope_release_since(thread, scope->mark);
    thread->scope_depth = scope->depth - 1;
    scope->depth = 0;
    ek_release_end(&outer);
}

void *ek_scope_return_object(ek_scope *scope, void *object)
{
    if (ek_check_alive("scope_return", "what the scope returns", object) < 0)
        object = NULL;
    ek_object_retain(object);
    ek_scope_end(scope);
    return ek_scope_adopt(object);
}

/* Releases the root scope of a thread that ends. */
static void scope_thread_exit(ek_thread *thread)
{
    if (ek_checks_for(EK_CHECK_LIFETIMES))
        ek_scope_check_exit(thread);
    scope_release_since(thread, 0);
    thread->scope_depth = 0;
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
    return ek_check_alive("keep", "the tensor", tensor) < 0 ? NULL : ek_object_retain(tensor);
}

void ek_release(ek_tensor *tensor)
{
    EK_RELEASES("ek_release", tensor);
    ek_object_release(tensor);
}
