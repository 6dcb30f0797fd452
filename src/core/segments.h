/* segments.h: memory of one device in segments, which requests share.
 *
 * A segment is one allocation of the system. It is cut into blocks that lie one after another, in
 * use or free. A request takes the smallest free block that is large enough, of those the one at
 * the lowest address, and leaves the rest as a free block. A block that is given back becomes one
 * with free neighbours, so that another request may have any part of it: memory that batches of one
 * size have used serves those of any other. A segment whose only block is free is idle, and can go
 * back to the system.
 *
 * Small requests and large ones have segments of their own: what is small often stays, and would
 * keep large blocks apart.
 *
 * Blocks of different streams never share a segment. A free block keeps the event that its next
 * user's stream has to wait for. The event goes with the part that is taken: its stream waits for
 * it before the taker lets go of the lock, and so the rest, which only that stream can get, has
 * nothing to wait for. When two blocks become one, the later event stays, because all events are
 * recorded in the same stream.
 *
 * Free blocks are listed by size, four lists for each power of two; blocks that are not free are
 * found by their address. So taking and giving back take a time that doesn't grow with the number
 * of blocks, but for the free blocks of one list.
 *
 * The caller locks (allocator.c). */
#ifndef EK_CORE_SEGMENTS_H
#define EK_CORE_SEGMENTS_H

#include "core/backend.h"

typedef struct ek_block {
    char *start;
    struct ek_block *chain;           /* among blocks in use whose address hashes alike */
    struct ek_block *next, *previous; /* in a list of free blocks, or of the allocator's */
    size_t nbytes;
    ek_event *event;   /* for a stream other than EK_STREAM_COMPUTE: what the next user waits for */
    uint64_t released; /* the event's number: a later event has a larger one */
    uint8_t stream, large; /* the segment's: ek_stream, and whether it is for large requests */
    bool free;
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
    size_t room, taken; /* the table's chains (a power of two) and blocks */
    uint64_t idle;      /* bytes of idle segments */
    ek_block *spare;    /* unused records */
} ek_segments;

/* Takes nbytes, a multiple of 64, from a free block; with `whole`, only from one of that size. NULL
 * if there is none. block->event is what the stream has to wait for, owned by the taker. */
ek_block *ek_segments_take(ek_segments *s, ek_stream stream, bool large, size_t nbytes, bool whole);

/* Adds memory of the system as a segment with one free block. False if there is no memory for its
 * record; one block can then be taken from it at least. */
bool ek_segments_add(ek_segments *s, ek_stream stream, bool large, void *memory, size_t nbytes);

/* The block in use that begins there. */
ek_block *ek_segments_find(const ek_segments *s, const void *pointer);

/* Makes a block free. block->event is owned by it from now on, and block->released its number. */
void ek_segments_give(ek_dev *dev, ek_segments *s, ek_block *block);

/* The smallest idle segment of at least nbytes, else the largest one; NULL if none is idle. */
ek_block *ek_segments_idle(const ek_segments *s, uint64_t nbytes);

/* Forgets an idle segment, whose memory and event are the caller's. */
void ek_segments_remove(ek_segments *s, ek_block *segment);

/* The size of the largest free block. */
uint64_t ek_segments_largest(const ek_segments *s);

/* Frees all records. No segment is left. */
void ek_segments_close(ek_segments *s);

#endif
