/* holders.c: see holders.h. */
#include "core/holders.h"

#include <stdlib.h>
#include <string.h>

static size_t holder_hash(const ek_memory_holder *holder)
{
    const uint64_t key = (uint64_t)(uintptr_t)holder->path + (uint64_t)holder->category;
    return (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

/* Returns the holder's entry, or a free entry for it. At least one entry is free. */
static ek_memory_holder *holders_find(const ek_holders *holders, const ek_memory_holder *holder)
{
    const size_t mask = (size_t)holders->room - 1;
    size_t i = holder_hash(holder) & mask;
    const ek_memory_holder *entries = holders->entries;
    while (entries[i].path &&
           (entries[i].path != holder->path || entries[i].category != holder->category))
        i = (i + 1) & mask;
    return &holders->entries[i];
}

/* Doubles the room. Uses calloc, because ek_calloc would set an error in the user's work. */
static bool holders_grow(ek_holders *holders)
{
    enum { FIRST = 64 };
    ek_holders grown = {.count = holders->count, .room = holders->room ? 2 * holders->room : FIRST};
    grown.entries = calloc((size_t)grown.room, sizeof *grown.entries);
    if (!grown.entries)
        return false;
    for (int i = 0; i < holders->room; i++)
        if (holders->entries[i].path)
            *holders_find(&grown, &holders->entries[i]) = holders->entries[i];
    free(holders->entries);
    *holders = grown;
    return true;
}

void ek_holders_add(ek_holders *holders, ek_memory_holder more)
{
    if (2 * holders->count >= holders->room && !holders_grow(holders)) {
        holders->lost = true;
        return;
    }
    ek_memory_holder *entry = holders_find(holders, &more);
    holders->count += !entry->path;
    more.nbytes += entry->nbytes;
    *entry = more;
}

void ek_holders_empty(ek_holders *holders)
{
    if (holders->count > 0)
        memset(holders->entries, 0, (size_t)holders->room * sizeof *holders->entries);
    holders->count = 0;
    holders->lost = false;
}

void ek_holders_clear(ek_holders *holders)
{
    free(holders->entries);
    *holders = (ek_holders){0};
}

/* The order of holders: by bytes, then by path and category, so that every run has one order. */
static bool holder_precedes(const ek_memory_holder *a, const ek_memory_holder *b)
{
    if (a->nbytes != b->nbytes)
        return a->nbytes > b->nbytes;
    const int order = strcmp(a->path, b->path);
    return order ? order < 0 : a->category < b->category;
}

int ek_holders_largest(const ek_holders *holders, ek_memory_holder *largest, int room)
{
    int count = 0;
    for (int i = 0; i < holders->room; i++) {
        const ek_memory_holder *holder = &holders->entries[i];
        if (!holder->path ||
            (count == room && (room == 0 || holder_precedes(&largest[room - 1], holder))))
            continue;
        int at = count < room ? count++ : room - 1;
        for (; at > 0 && holder_precedes(holder, &largest[at - 1]); at--)
            largest[at] = largest[at - 1];
        largest[at] = *holder;
    }
    return count;
}
