/* thread.c: the calling thread's state, and the library's own memory. */
#include "core/thread.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/casts.h"
#include "core/object.h"

static _Thread_local ek_thread self;
static _Thread_local bool self_ready;
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

/* A thread that ends releases its root scope. */
static void thread_exit(void *user)
{
    ek_thread *thread = user;
    ek_casts_forget(thread);
    ek_scope root = {0, 1};
    thread->scope_depth = 1;
    ek_scope_end(&root);
    free(thread->owned);
    thread->owned = NULL;
    thread->owned_capacity = 0;
}

static void make_exit_key(void)
{
    pthread_key_create(&exit_key, thread_exit);
}

ek_thread *ek_thread_self(void)
{
    if (!self_ready) {
        self_ready = true;
        self.modes.category = EK_MEMORY_ACTIVATION;
        pthread_once(&exit_once, make_exit_key);
        pthread_setspecific(exit_key, &self);
    }
    return &self;
}

void *ek_calloc_at(size_t count, size_t size, const char *file, int line)
{
    void *pointer = calloc(count ? count : 1, size ? size : 1);
    if (!pointer)
        ek_error_set(EK_E_NO_MEMORY, file, line,
                     "the process has no memory left for %zu x %zu bytes", count, size);
    return pointer;
}

void *ek_realloc_at(void *pointer, size_t nbytes, const char *file, int line)
{
    void *grown = realloc(pointer, nbytes ? nbytes : 1);
    if (!grown)
        ek_error_set(EK_E_NO_MEMORY, file, line, "the process has no memory left for %zu bytes",
                     nbytes);
    return grown;
}

int ek_grow_at(void *array, size_t item_nbytes, int *room, int count, const char *file, int line)
{
    void *items;
    if (count <= *room)
        return 0;
    int larger = *room > INT_MAX / 2 ? INT_MAX : 2 * *room;
    if (larger < count)
        larger = count < 8 ? 8 : count;
    memcpy(&items, array, sizeof items);
    items = ek_realloc_at(items, (size_t)larger * item_nbytes, file, line);
    if (!items)
        return EK_E_NO_MEMORY;
    memcpy(array, &items, sizeof items);
    *room = larger;
    return 0;
}

char *ek_strdup_at(const char *text, const char *file, int line)
{
    size_t nbytes = strlen(text) + 1;
    char *copy = ek_calloc_at(1, nbytes, file, line);
    if (copy)
        memcpy(copy, text, nbytes);
    return copy;
}

ek_memory_category ek_memory_set_category(ek_memory_category category)
{
    ek_thread *thread = ek_thread_self();
    ek_memory_category before = thread->modes.category;
    if ((unsigned)category < EK_MEMORY_CATEGORIES)
        thread->modes.category = category;
    return before;
}
