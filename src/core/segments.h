/* segments.h: memory of one device in segments, which requests share.
 *
 * A segment is one allocation of the system. It is cut into blocks that lie one after another, in
 * use or free. A request takes the smallest free block that is large enough (of several large
 * blocks of that size, the one at the lowest address), and leaves the rest of it as a free block. A
 * block that is given back merges with free neighbours, so that memory which batches of one size
 * have used serves batches of any other size. A segment whose only block is free is idle, and can
 * be given back to the system.
 *
 * Small requests and large ones have separate segments: small blocks often live long, and would
 * keep large blocks from merging.
 *
 * Blocks of different streams never share a segment. A free block keeps the event for which its
 * next user's stream has to wait. If a block is cut, the event stays with the part that is taken.
 * The taker's stream waits for the event before the taker releases the lock. Only the taker's
 * stream can get the rest, which therefore needs no event. When two blocks merge, the later event
 * stays, because all events are recorded in one stream.
 *
 * Free blocks are listed by size, four lists for each power of two. Blocks in use are found by
 * their address. So the time to take a block or to give it back grows only with the free blocks of
 * one list.
 *
 * The caller locks (allocator.c). */
#ifndef EK_CORE_SEGMENTS_H
#define EK_CORE_SEGMENTS_H

#include "core/backend.h"
#include "core/holders.h"

typedef struct ek_block {
    char *start;
    struct ek_block *chain;           /* the next block of equal hash in `table` */
    struct ek_block *next, *previous; /* in a list of free blocks, or in the allocator's cache */
    size_t nbytes;
    ek_event *event;       /* the next user waits for it; NULL in EK_STREAM_COMPUTE */
    uint64_t released;     /* the event's number; later events have larger numbers */
    uint8_t stream, large; /* the segment's ek_stream; whether it is for large requests */
    bool free;
    ek_held held;
    struct ek_block *before, *after; /* neighbours in the segment */
} ek_block;

enum { EK_SEGMENT_LISTS = 42 * 4 }; /* from 2^6 bytes to 2^48 */

/* Free blocks of one stream, small ones or large ones. */
typedef struct ek_segment_kind {
    uint64_t filled[(EK_SEGMENT_LISTS + 63) / 64]; /* bit i: lists[i] has a block */
    ek_block *lists[EK_SEGMENT_LISTS];
} ek_segment_kind;

/* Starts as {0}. */
typedef struct ek_segments {
    ek_segment_kind kinds[EK_STREAMS][2];
    ek_block **table;   /* blocks that are not free, by a hash of their address */
    size_t room, taken; /* how many chains (a power of two) and blocks the table has */
    uint64_t idle;      /* bytes of idle segments */
    ek_block *spare;    /* unused records */
} ek_segments;

/* Takes nbytes, a multiple of 64, from a free block; with `whole`, only from a block of exactly
 * this size. Returns NULL if there is no such block. The stream has to wait for block->event, which
 * the taker owns. */
ek_block *ek_segments_take(ek_segments *s, ek_stream stream, bool large, size_t nbytes, bool whole);

/* Adds memory of the system as a segment with one free block. Returns false if there is no memory
 * for the segment's record. On success at least one block can be taken from the segment. */
bool ek_segments_add(ek_segments *s, ek_stream stream, bool large, void *memory, size_t nbytes);

/* Returns the block in use that begins at `pointer`. */
ek_block *ek_segments_find(const ek_segments *s, const void *pointer);

/* Makes a block free, which from now on owns block->event; block->released is the event's
 * number. */
void ek_segments_give(ek_dev *dev, ek_segments *s, ek_block *block);

/* Returns the smallest idle segment of at least nbytes, else the largest idle segment; NULL if none
 * is idle. */
ek_block *ek_segments_idle(const ek_segments *s, uint64_t nbytes);

/* Removes an idle segment, whose memory and event the caller then owns. */
void ek_segments_remove(ek_segments *s, ek_block *segment);

/* Adds the holders of blocks to `holders`, but not those whose number is larger than `until`. */
void ek_segments_add_holders(const ek_segments *s, uint64_t until, ek_holders *holders);

/* Returns the size of the largest free block. */
uint64_t ek_segments_largest(const ek_segments *s);

/* Frees all records. No segment is left. */
void ek_segments_close(ek_segments *s);

#endif
