/* segments.c: see segments.h. */
#include "core/segments.h"

#include <stdlib.h>

#include "core/device.h"

/* ---- lists of free blocks ---- */

static int segment_high_bit(uint64_t bits)
{
    return 63 - __builtin_clzll(bits);
}

/* Returns the list for a size: four lists for each power of two. */
static int segment_list_of(size_t nbytes)
{
    int power = segment_high_bit(nbytes);
    int list = 4 * (power - 6) + (int)(nbytes >> (power - 2) & 3);
    return list < EK_SEGMENT_LISTS ? list : EK_SEGMENT_LISTS - 1;
}

static bool segment_is_idle(const ek_block *block)
{
    return block->free && !block->before && !block->after;
}

static void segment_list(ek_segments *s, ek_block *block)
{
    ek_segment_kind *kind = &s->kinds[block->stream][block->large];
    int list = segment_list_of(block->nbytes);
    block->free = true;
    block->previous = NULL;
    block->next = kind->lists[list];
    if (block->next)
        block->next->previous = block;
    kind->lists[list] = block;
    kind->filled[list / 64] |= (uint64_t)1 << list % 64;
    if (segment_is_idle(block))
        s->idle += block->nbytes;
}

static void segment_unlist(ek_segments *s, ek_block *block)
{
    ek_segment_kind *kind = &s->kinds[block->stream][block->large];
    int list = segment_list_of(block->nbytes);
    if (segment_is_idle(block))
        s->idle -= block->nbytes;
    *(block->previous ? &block->previous->next : &kind->lists[list]) = block->next;
    if (block->next)
        block->next->previous = block->previous;
    if (!kind->lists[list])
        kind->filled[list / 64] &= ~((uint64_t)1 << list % 64);
    block->free = false;
}

/* Returns the first list from `list` on that has a block; -1 if there is none. */
static int segment_next_list(const ek_segment_kind *kind, int list)
{
    for (int word = list / 64; word < (EK_SEGMENT_LISTS + 63) / 64; word++) {
        uint64_t bits = kind->filled[word];
        if (word == list / 64)
            bits &= ~(uint64_t)0 << list % 64;
        if (bits)
            return 64 * word + __builtin_ctzll(bits);
    }
    return -1;
}

/* Returns the smallest block of a list that is large enough; NULL if no block is. Of several large
 * blocks of this size, returns the one at the lowest address. In lists of small blocks, which are
 * long, the search ends at the first block of exactly the size. */
static ek_block *segment_best(ek_block *first, size_t nbytes)
{
    ek_block *best = NULL;
    for (ek_block *block = first; block; block = block->next) {
        if (block->nbytes < nbytes)
            continue;
        if (!best || block->nbytes < best->nbytes ||
            (block->nbytes == best->nbytes && block->start < best->start))
            best = block;
        if (best->nbytes == nbytes && !best->large)
            break;
    }
    return best;
}

/* ---- the table of blocks that are not free ---- */

static size_t segment_hash(const void *pointer)
{
    return (size_t)((uintptr_t)pointer / 64 * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static void segment_chain(ek_segments *s, ek_block *block)
{
    ek_block **head = &s->table[segment_hash(block->start) & (s->room - 1)];
    block->chain = *head;
    *head = block;
}

/* Doubles the number of chains once there are as many blocks as chains. If memory is short, the
 * chains get longer instead. Returns false if there are no chains at all. */
static bool segment_grow_table(ek_segments *s)
{
    enum { FIRST = 256 };
    if (s->taken < s->room)
        return true;
    ek_segments old = *s;
    size_t room = s->room ? 2 * s->room : FIRST;
    ek_block **table = calloc(room, sizeof(ek_block *));
    if (!table)
        return s->room > 0;
    s->table = table;
    s->room = room;
    for (size_t i = 0; i < old.room; i++) {
        for (ek_block *block = old.table[i], *chain; block; block = chain) {
            chain = block->chain;
            segment_chain(s, block);
        }
    }
    free(old.table);
    return true;
}

static void segment_unchain(ek_segments *s, const ek_block *block)
{
    ek_block **at = &s->table[segment_hash(block->start) & (s->room - 1)];
    while (*at != block)
        at = &(*at)->chain;
    *at = block->chain;
    s->taken--;
}

ek_block *ek_segments_find(const ek_segments *s, const void *pointer)
{
    ek_block *block = s->table[segment_hash(pointer) & (s->room - 1)];
    while (block->start != pointer)
        block = block->chain;
    return block;
}

void ek_segments_add_holders(const ek_segments *s, uint64_t until, ek_holders *holders)
{
    for (size_t i = 0; i < s->room; i++) {
        for (const ek_block *block = s->table[i]; block; block = block->chain) {
            const ek_held *held = &block->held;
            if (held->nbytes > 0 && held->since <= until)
                ek_holders_add(holders,
                               (ek_memory_holder){held->path, held->category, held->nbytes});
        }
    }
}

/* ---- records ---- */

static ek_block *segment_new_record(ek_segments *s)
{
    ek_block *block = s->spare;
    if (block)
        s->spare = block->next;
    else
        block = malloc(sizeof *block);
    return block;
}

static void segment_free_record(ek_segments *s, ek_block *block)
{
    block->next = s->spare;
    s->spare = block;
}

/* ---- cutting and merging ---- */

/* Cuts a block after its first nbytes; the rest becomes a free block. If there is no memory for the
 * record of the rest, the block stays whole. */
static void segment_cut(ek_segments *s, ek_block *block, size_t nbytes)
{
    ek_block *rest = block->nbytes > nbytes ? segment_new_record(s) : NULL;
    if (!rest)
        return;
    *rest = (ek_block){.start = block->start + nbytes,
                       .nbytes = block->nbytes - nbytes,
                       .stream = block->stream,
                       .large = block->large,
                       .before = block,
                       .after = block->after};
    if (rest->after)
        rest->after->before = rest;
    block->after = rest;
    block->nbytes = nbytes;
    segment_list(s, rest);
}

ek_block *ek_segments_take(ek_segments *s, ek_stream stream, bool large, size_t nbytes, bool whole)
{
    const ek_segment_kind *kind = &s->kinds[stream][large];
    ek_block *block = NULL;
    for (int list = segment_next_list(kind, segment_list_of(nbytes)); list >= 0 && !block;
         list = segment_next_list(kind, list + 1))
        block = segment_best(kind->lists[list], nbytes);
    if (!block || (whole && block->nbytes != nbytes) || !segment_grow_table(s))
        return NULL;
    segment_unlist(s, block);
    segment_cut(s, block, nbytes);
    segment_chain(s, block);
    s->taken++;
    return block;
}

/* Makes the second of two neighbours a part of the first. Neither of them is in a list. */
static void segment_merge(ek_dev *dev, ek_segments *s, ek_block *first, ek_block *second)
{
    bool later = second->event && (!first->event || second->released > first->released);
    ek_dev_free_event(dev, later ? first->event : second->event);
    if (later) {
        first->event = second->event;
        first->released = second->released;
    }
    first->nbytes += second->nbytes;
    first->after = second->after;
    if (first->after)
        first->after->before = first;
    segment_free_record(s, second);
}

void ek_segments_give(ek_dev *dev, ek_segments *s, ek_block *block)
{
    segment_unchain(s, block);
    if (block->after && block->after->free) {
        segment_unlist(s, block->after);
        segment_merge(dev, s, block, block->after);
    }
    if (block->before && block->before->free) {
        block = block->before;
        segment_unlist(s, block);
        segment_merge(dev, s, block, block->after);
    }
    segment_list(s, block);
}

/* ---- segments ---- */

bool ek_segments_add(ek_segments *s, ek_stream stream, bool large, void *memory, size_t nbytes)
{
    ek_block *block = segment_grow_table(s) ? segment_new_record(s) : NULL;
    if (!block)
        return false;
    *block =
        (ek_block){.start = memory, .nbytes = nbytes, .stream = (uint8_t)stream, .large = large};
    segment_list(s, block);
    return true;
}

ek_block *ek_segments_idle(const ek_segments *s, uint64_t nbytes)
{
    ek_block *best = NULL;
    for (int i = 0; i < EK_STREAMS * 2 && s->idle; i++) {
        const ek_segment_kind *kind = &s->kinds[i / 2][i % 2];
        for (int list = segment_next_list(kind, 0); list >= 0;
             list = segment_next_list(kind, list + 1)) {
            for (ek_block *block = kind->lists[list]; block; block = block->next) {
                bool fits = block->nbytes >= nbytes;
                bool better =
                    !best || (best->nbytes >= nbytes ? fits && block->nbytes < best->nbytes
                                                     : block->nbytes > best->nbytes);
                if (segment_is_idle(block) && better)
                    best = block;
            }
        }
    }
    return best;
}

void ek_segments_remove(ek_segments *s, ek_block *segment)
{
    segment_unlist(s, segment);
    segment_free_record(s, segment);
}

uint64_t ek_segments_largest(const ek_segments *s)
{
    uint64_t largest = 0;
    for (int i = 0; i < EK_STREAMS * 2; i++) {
        const ek_segment_kind *kind = &s->kinds[i / 2][i % 2];
        int list = EK_SEGMENT_LISTS - 1;
        while (list >= 0 && !kind->lists[list])
            list--;
        for (const ek_block *block = list >= 0 ? kind->lists[list] : NULL; block;
             block = block->next)
            largest = block->nbytes > largest ? block->nbytes : largest;
    }
    return largest;
}

void ek_segments_close(ek_segments *s)
{
    while (s->spare) {
        ek_block *block = s->spare;
        s->spare = block->next;
        free(block);
    }
    free(s->table);
    *s = (ek_segments){0};
}
