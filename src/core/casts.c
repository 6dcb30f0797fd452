/* casts.c: see casts.h. */
#include "core/casts.h"

#include <pthread.h>
#include <stdlib.h>

/* One for each version, offset and `graph`, so that handles that come and go (aliases, detached
 * ones) replace each other. All are references: an address never comes to mean something else. */
struct ek_cast {
    ek_cast *next;
    ek_tensor *leaf, *cast;
    ek_version *version; /* the leaf's when it was cast */
    int64_t offset;
    uint64_t count;
    bool graph;
};

static uint64_t writes_of(const ek_version *version)
{
    return atomic_load_explicit(&version->count, memory_order_relaxed);
}

static ek_cast *entry_of(const ek_tensor *leaf, bool graph)
{
    ek_cast *entry = ek_thread_self()->casts;
    while (entry && (entry->version != leaf->version || entry->offset != leaf->offset ||
                     entry->graph != graph))
        entry = entry->next;
    return entry;
}

static void release_parts(ek_cast *entry)
{
    ek_release(entry->leaf);
    ek_release(entry->cast);
    ek_object_release(entry->version);
}

static bool is_stale(const ek_cast *entry)
{
    return entry->count != writes_of(entry->version);
}

/* All, or those that are stale. */
static void forget(ek_thread *thread, bool all)
{
    for (ek_cast **at = &thread->casts; *at;) {
        ek_cast *entry = *at;
        if (!all && !is_stale(entry)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        release_parts(entry);
        free(entry);
    }
}

ek_tensor *ek_cast_find(const ek_tensor *leaf, bool graph)
{
    const ek_cast *entry = entry_of(leaf, graph);
    if (!entry || !ek_same_layout(entry->cast, leaf))
        return NULL;
    if (is_stale(entry)) { /* with it a step's others, of which each holds a slab's cast */
        forget(ek_thread_self(), false);
        return NULL;
    }
    /* History leads to the very handle that collects the gradient. */
    if (graph && entry->leaf != leaf)
        return NULL;
    return ek_scope_adopt(ek_keep(entry->cast));
}

int ek_cast_remember(ek_tensor *leaf, bool graph, ek_tensor *cast)
{
    ek_thread *thread = ek_thread_self();
    if (!thread->autocast_depth)
        return 0;
    ek_cast *entry = entry_of(leaf, graph);
    if (entry) {
        release_parts(entry);
    } else {
        entry = ek_calloc(1, sizeof *entry);
        if (!entry)
            return ek_error_status();
        entry->next = thread->casts;
        thread->casts = entry;
    }
    entry->leaf = ek_keep(leaf);
    entry->cast = ek_keep(cast);
    entry->version = ek_object_retain(leaf->version);
    entry->offset = leaf->offset;
    entry->count = writes_of(leaf->version);
    entry->graph = graph;
    return 0;
}

void ek_casts_forget(ek_thread *thread)
{
    forget(thread, true);
}

/* ---- numbers ---- */

/* Guards all storages' members `narrow`...; that there is nothing to drop is seen without it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

ek_storage *ek_narrow_find(ek_storage *storage, int64_t count, bool *wastes, uint64_t *writes)
{
    *writes = atomic_load(&storage->writes);
    ek_lock(&lock);
    ek_storage *narrow = ek_object_retain(storage->narrow);
    if (narrow)
        storage->narrow_used += count;
    *wastes = storage->narrow_wastes;
    ek_unlock(&lock);
    return narrow;
}

static void replace(ek_storage *storage, ek_storage *narrow, int64_t used)
{
    ek_lock(&lock);
    ek_storage *before = storage->narrow;
    if (before)
        storage->narrow_wastes = storage->narrow_used < (int64_t)(before->nbytes / 4);
    storage->narrow = narrow;
    storage->narrow_used = used;
    ek_unlock(&lock);
    ek_object_release(before);
}

/* A write is counted before it looks for what it is to drop, and looked for after that is there:
 * one of the two sees the other. */
void ek_narrow_keep(ek_storage *storage, ek_storage *narrow, int64_t count, uint64_t writes)
{
    replace(storage, ek_object_retain(narrow), count);
    if (atomic_load(&storage->writes) != writes)
        replace(storage, NULL, 0);
}

void ek_narrow_drop(ek_storage *storage)
{
    atomic_fetch_add(&storage->writes, 1);
    if (atomic_load(&storage->narrow))
        replace(storage, NULL, 0);
}
