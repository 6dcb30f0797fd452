/* path.c: a table of paths that only grows. Readers need no lock: a new path is put before the
 * others of its hash by one compare-and-swap. */
#include "core/path.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

enum { HEADS = 4096 };

typedef struct stored_path {
    struct stored_path *next;
    const char *parent;
    size_t parent_length; /* how much of `text` is the parent's and the dot */
    char text[];
} stored_path;

const char ek_path_root[] = "";
static _Atomic(stored_path *) heads[HEADS];

static size_t path_hash(const char *parent, const char *name)
{
    uint64_t hash = (uint64_t)(uintptr_t)parent;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001B3);
    return (size_t)((hash * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % HEADS;
}

static stored_path *path_new(const char *parent, const char *name)
{
    const size_t length = strlen(parent), begin = length + (length > 0), named = strlen(name);
    stored_path *made = ek_calloc(1, sizeof *made + begin + named + 1);
    if (!made)
        return NULL;
    memcpy(made->text, parent, length);
    if (length > 0)
        made->text[length] = '.';
    memcpy(made->text + begin, name, named);
    made->parent = parent;
    made->parent_length = begin;
    return made;
}

const char *ek_path_join(const char *parent, const char *name)
{
    if (!name[0])
        return parent;
    _Atomic(stored_path *) *head = &heads[path_hash(parent, name)];
    stored_path *first = atomic_load_explicit(head, memory_order_acquire), *made = NULL;
    for (const stored_path *searched = NULL;;) {
        for (const stored_path *known = first; known != searched; known = known->next) {
            if (known->parent == parent && strcmp(known->text + known->parent_length, name) == 0) {
                free(made);
                return known->text;
            }
        }
        if (!made && !(made = path_new(parent, name)))
            return NULL;
        made->next = first;
        searched = first;
        if (atomic_compare_exchange_strong_explicit(head, &first, made, memory_order_acq_rel,
                                                    memory_order_acquire))
            return made->text;
    }
}

const char *ek_path_end(const char *path, size_t most)
{
    const size_t length = strlen(path);
    path += length > most ? length - most : 0;
    while (((unsigned char)*path & 0xC0) == 0x80) /* the rest of a cut letter (UTF-8) */
        path++;
    return path;
}
