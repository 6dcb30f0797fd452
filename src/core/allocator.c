/* allocator.c: a caching allocator per device, and the ledger.
 *
 * Memory comes from the system in segments, which requests share (segments.h). A request of at most
 * small_most bytes takes its block from a segment of 2 MiB, a larger one from a segment of 20 MiB.
 * A request of more than 10 MiB gets a segment of its size, rounded up to an even number of MiB. So
 * there are few requests to the system, and none once the largest batch has been seen: batches of
 * several sizes together reserve what the largest batch needs, and the gaps between blocks.
 *
 * A small block that is released isn't merged with its neighbours at once. It is cached by its
 * size, and serves a later request of this size: a training step requests the same sizes again and
 * again, and so a small operation needs no search, no cut and no merge. Cached blocks become free,
 * and merge, when a small request finds no free block, before the system is asked. Large blocks
 * merge at once, which keeps them together; large operations take so long that the search for their
 * blocks doesn't matter.
 *
 * The ledger counts a block in use with the size that was requested, in whole units of 64 bytes,
 * and all segments as reserved. The capacity limits the bytes in use exactly. If reserved memory
 * would exceed the capacity, idle segments are given back, and a new segment is no larger than what
 * is left of the capacity. If all segments have blocks in use, reserved memory may exceed the
 * capacity by a quarter (or by beyond_floor); a request that needs still more is refused. Idle
 * segments are also given back if the system has no memory left. Memory of the host is also given
 * back if more is cached than cache_floor, and than 5/4 of what was ever in use at once. For an
 * optional request (ek_dev_try_alloc_for) nothing is given back.
 *
 * A block stays with the stream for which it was requested. A block of EK_STREAM_COMPUTE can be
 * used again at once, in that stream's order. A block of another stream keeps an event that was
 * recorded in EK_STREAM_COMPUTE when the block was released; the other stream waits for the event
 * when the memory is given out again. Memory that comes from the system has nothing to wait for.
 *
 * With EVENKEEL_SEGMENTS=0 each request has a separate segment of its exact size, so that tools
 * which watch the system's allocations (compute-sanitizer, AddressSanitizer) find accesses beyond
 * an allocation. In builds with AddressSanitizer 0 is the default, and memory of the host that
 * isn't in use is poisoned. */
#include "core/allocator.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/environment.h"
#include "core/thread.h"
#include "core/trace.h"

#if defined(EK_SANITIZED) && !defined(EK_SANITIZED_THREAD)
#include <sanitizer/asan_interface.h>
enum { SHARED_BY_DEFAULT = false };
#else
#define ASAN_POISON_MEMORY_REGION(start, nbytes) ((void)(start), (void)(nbytes))
#define ASAN_UNPOISON_MEMORY_REGION(start, nbytes) ((void)(start), (void)(nbytes))
enum { SHARED_BY_DEFAULT = true };
#endif

enum {
    GPU_UNIT = 512, /* a GPU's blocks are multiples of this, because kernels read whole lines */
};
static const size_t small_most = 1 << 20, small_segment = 2 << 20, large_segment = 20 << 20;
/* If small segments are full, a small request of at least this size takes its block from a large
 * segment: a tensor that is large in a large batch can be small in a small batch. Smaller requests
 * never use large segments, because they often live long. */
static const size_t borrows_from = 64 << 10;
/* Up to this many cached bytes of the host are always kept. */
static const uint64_t cache_floor = (uint64_t)64 << 20;
/* Reserved memory may exceed any capacity by this many bytes, because a quarter of a small capacity
 * is soon used up. */
static const uint64_t beyond_floor = 20 << 20;

/* Returns the size of the block for a request. */
static size_t allocator_block_size(const ek_dev *dev, size_t nbytes)
{
    bool wide = dev->allocator->shares && !dev->backend->host_memory;
    return ek_memory_round_up(nbytes, wide ? GPU_UNIT : EK_MEMORY_UNIT);
}

static unsigned allocator_bucket(size_t nbytes)
{
    return (unsigned)((nbytes / EK_MEMORY_UNIT * UINT64_C(0x9E3779B97F4A7C15)) >> 56);
}

/* ---- cached blocks: the allocator's lock is held ---- */

static void allocator_cache(struct ek_allocator *a, ek_block *block)
{
    unsigned bucket = allocator_bucket(block->nbytes);
    block->next = a->buckets[bucket];
    a->buckets[bucket] = block;
    a->filled[bucket / 64] |= (uint64_t)1 << bucket % 64;
}

static ek_block *allocator_take_cached(struct ek_allocator *a, ek_stream stream, size_t nbytes)
{
    unsigned bucket = allocator_bucket(nbytes);
    ek_block **at = &a->buckets[bucket];
    while (*at && ((*at)->nbytes != nbytes || (*at)->stream != stream))
        at = &(*at)->next;
    ek_block *block = *at;
    if (block)
        *at = block->next;
    if (!a->buckets[bucket])
        a->filled[bucket / 64] &= ~((uint64_t)1 << bucket % 64);
    return block;
}

/* Makes all cached blocks free. Returns true if there were cached blocks. */
static bool allocator_merge_cached(ek_dev *dev)
{
    struct ek_allocator *a = dev->allocator;
    bool some = false;
    for (int word = 0; word < EK_MEMORY_BUCKETS / 64; word++) {
        for (; a->filled[word]; a->filled[word] &= a->filled[word] - 1) {
            ek_block **bucket = &a->buckets[64 * word + __builtin_ctzll(a->filled[word])];
            for (ek_block *block = *bucket, *next; block; block = next) {
                next = block->next;
                ek_segments_give(dev, &a->segments, block);
                some = true;
            }
            *bucket = NULL;
        }
    }
    return some;
}

/* ---- segments: the allocator's lock is held ---- */

static void allocator_drop(ek_dev *dev, ek_block *segment)
{
    struct ek_allocator *a = dev->allocator;
    void *memory = segment->start;
    size_t nbytes = segment->nbytes;
    ek_event *event = segment->event;
    ek_segments_remove(&a->segments, segment);
    a->stats.reserved -= nbytes;
    if (dev->backend->host_memory)
        ASAN_UNPOISON_MEMORY_REGION(memory, nbytes);
    dev->backend->memory_free(dev, memory, nbytes);
    ek_dev_free_event(dev, event);
}

/* Gives idle segments back until no more than `most` bytes are reserved, or no segment is idle.
 * Returns how many segments were given back. */
static int allocator_drop_until(ek_dev *dev, uint64_t most)
{
    struct ek_allocator *a = dev->allocator;
    int count = 0;
    if (a->stats.reserved > most)
        allocator_merge_cached(dev);
    for (; a->segments.idle && a->stats.reserved > most; count++)
        allocator_drop(dev, ek_segments_idle(&a->segments, a->stats.reserved - most));
    return count;
}

/* Returns how many bytes may be cached. A GPU's cache has no limit, because giving memory back
 * waits for the device. The host's limit includes a quarter for gaps, so that no step asks the
 * system for memory that the last step gave back. */
static uint64_t allocator_most_cached(const ek_dev *dev)
{
    uint64_t peak = dev->allocator->stats.peak, most = peak + peak / 4;
    if (!dev->backend->host_memory)
        return UINT64_MAX;
    return most > cache_floor ? most : cache_floor;
}

/* ---- allocation ---- */

static size_t allocator_segment_size(const ek_dev *dev, size_t block)
{
    if (!dev->allocator->shares)
        return block;
    if (block <= small_most)
        return small_segment;
    return block <= large_segment / 2 ? large_segment : ek_memory_round_up(block, small_segment);
}

/* Makes room for `block` more bytes: gives idle segments back, takes what is left of the capacity,
 * or exceeds the capacity by a quarter (or by beyond_floor) at most. Returns the size of the new
 * segment, `wanted` at most; 0 if there is no room. */
static size_t allocator_make_room(ek_dev *dev, size_t block, size_t wanted)
{
    ek_memory_stats *stats = &dev->allocator->stats;
    if (!stats->capacity)
        return wanted;
    uint64_t most = stats->capacity > block ? stats->capacity - block : 0;
    if (!dev->allocator->optional)
        stats->dropped += (uint64_t)allocator_drop_until(dev, most);
    uint64_t needed = stats->reserved + block;
    uint64_t beyond = stats->capacity / 4 > beyond_floor ? stats->capacity / 4 : beyond_floor;
    if (needed > stats->capacity && needed - stats->capacity > beyond)
        return 0;
    uint64_t left = stats->capacity > stats->reserved ? stats->capacity - stats->reserved : 0;
    left = left / EK_MEMORY_UNIT * EK_MEMORY_UNIT;
    return left >= wanted ? wanted : left > block ? (size_t)left : block;
}

/* Gives back idle segments that a large request can't use, if reserved memory would otherwise
 * exceed its peak: a first step frees its activations before the optimizer requests memory for its
 * state. The number of times is limited, because a program that alternates between such requests
 * would pay for it each time. */
static void allocator_compact(ek_dev *dev, size_t nbytes)
{
    enum { MOST = 16 };
    struct ek_allocator *a = dev->allocator;
    uint64_t reserved = a->stats.reserved + nbytes, most = a->stats.reserved_peak;
    if (a->shares && !a->optional && nbytes > small_segment && a->compactions < MOST &&
        reserved > most && allocator_drop_until(dev, most > nbytes ? most - nbytes : 0) > 0)
        a->compactions++;
}

/* Asks the system for a segment of *wanted bytes. If the system hasn't that many, asks for `block`
 * bytes, all of which this request takes; *wanted becomes `block`. */
static void *allocator_ask(ek_dev *dev, size_t block, size_t *wanted, int *status)
{
    void *memory = NULL;
    *status = dev->backend->memory_alloc(dev, *wanted, &memory);
    if (!memory && *status >= 0 && *wanted > block) {
        *wanted = block;
        *status = dev->backend->memory_alloc(dev, block, &memory);
    }
    dev->allocator->exhausted = dev->allocator->exhausted || !memory;
    return memory;
}

static bool allocator_has_cached(const struct ek_allocator *a)
{
    uint64_t filled = 0;
    for (int word = 0; word < EK_MEMORY_BUCKETS / 64; word++)
        filled |= a->filled[word];
    return filled || a->segments.idle;
}

static bool allocator_add_segment(ek_dev *dev, ek_stream stream, size_t block, int *status)
{
    struct ek_allocator *a = dev->allocator;
    size_t most = allocator_segment_size(dev, block);
    size_t nbytes = allocator_make_room(dev, block, most);
    if (nbytes == 0)
        return false;
    allocator_compact(dev, nbytes);
    void *memory = allocator_ask(dev, block, &nbytes, status);
    if (!memory && *status >= 0 && !a->optional && allocator_has_cached(a)) {
        a->stats.dropped += (uint64_t)allocator_drop_until(dev, 0);
        nbytes = allocator_make_room(dev, block, most);
        memory = allocator_ask(dev, block, &nbytes, status);
    }
    if (!memory)
        return false;
    if (!ek_segments_add(&a->segments, stream, block > small_most, memory, nbytes)) {
        dev->backend->memory_free(dev, memory, nbytes);
        return false;
    }
    a->stats.system_allocations++;
    ek_ledger_reserve(dev, nbytes);
    return true;
}

/* Returns a block for a request, or NULL if there is none (*status is negative if the backend
 * failed). The stream has to wait for block->event. */
static ek_block *allocator_take(ek_dev *dev, ek_stream stream, size_t requested, int *status)
{
    struct ek_allocator *a = dev->allocator;
    size_t counted = ek_ledger_counted(requested), nbytes = allocator_block_size(dev, requested);
    bool large = nbytes > small_most, whole = !a->shares;
    uint64_t capacity = a->stats.capacity;
    if (capacity && (counted > capacity || a->stats.in_use > capacity - counted))
        return NULL;
    ek_block *block = large ? NULL : allocator_take_cached(a, stream, nbytes);
    if (!block)
        block = ek_segments_take(&a->segments, stream, large, nbytes, whole);
    if (!block && !large && allocator_merge_cached(dev))
        block = ek_segments_take(&a->segments, stream, large, nbytes, whole);
    if (!block && !large && nbytes >= borrows_from)
        block = ek_segments_take(&a->segments, stream, true, nbytes, whole);
    if (!block && allocator_add_segment(dev, stream, nbytes, status))
        block = ek_segments_take(&a->segments, stream, large, nbytes, whole);
    return block;
}

/* Logs, once per device, that cached memory had to be given back, which waits for a GPU. */
static void allocator_warn(ek_dev *dev, const ek_memory_stats *stats, bool exhausted)
{
    char text[2][32];
    ek_log_line(EK_LOG_WARNING,
                "%s: to stay within %s, cached memory was given back, which waits for the device; "
                "if steps do so all the time, smaller batches are faster (%s in use, %s reserved)",
                dev->name, exhausted ? "its memory" : "its capacity",
                ek_ledger_amount_text(stats->in_use, text[0]),
                ek_ledger_amount_text(stats->reserved, text[1]));
}

/* Serves a request. Returns 1 with memory, 0 if memory is short for an optional request, negative
 * on error. */
static int allocator_serve(ek_dev *dev, ek_stream stream, size_t nbytes,
                           ek_memory_category category, bool optional, void **pointer,
                           ek_event **event)
{
    struct ek_allocator *a = dev->allocator;
    ek_memory_stats *stats = &a->stats;
    size_t counted = ek_ledger_counted(nbytes);
    int status = 0;
    *pointer = NULL;
    *event = NULL;
    EK_TRY(ek_fork_check());
    if (nbytes > SIZE_MAX / 2) {
        ek_shortage lack = {ek_thread_self()->modes.path, category, nbytes, .exhausted = false};
        ek_ledger_read(dev, &lack.stats);
        return optional ? 0 : ek_ledger_out_of_memory(dev, &lack);
    }
    pthread_mutex_lock(&a->lock);
    const uint64_t dropped = stats->dropped;
    a->optional = optional;
    a->exhausted = false;
    ek_block *block = allocator_take(dev, stream, nbytes, &status);
    if (!block) {
        ek_shortage lack = {ek_thread_self()->modes.path, category, counted,
                            .exhausted = a->exhausted};
        stats->failures += !optional;
        if (status >= 0 && !optional)
            ek_ledger_note_shortage(dev, &lack);
        pthread_mutex_unlock(&a->lock);
        return status < 0 || optional ? status : ek_ledger_out_of_memory(dev, &lack);
    }
    *pointer = block->start;
    *event = block->event;
    if (!a->shares && dev->backend->host_memory)
        ASAN_UNPOISON_MEMORY_REGION(block->start, block->nbytes);
    ek_dev_wait_event(dev, stream, block->event);
    block->held = (ek_held){ek_thread_self()->modes.path, counted, ++stats->allocations, category};
    ek_ledger_add(dev, counted, category);
    bool warns = stats->dropped > dropped && !a->warned && !dev->backend->host_memory;
    const bool exhausted = a->exhausted;
    a->warned = a->warned || warns;
    ek_memory_stats now = warns ? *stats : (ek_memory_stats){0};
    pthread_mutex_unlock(&a->lock);
    if (warns)
        allocator_warn(dev, &now, exhausted);
    return 1;
}

int ek_dev_alloc_for(ek_dev *dev, ek_stream stream, size_t nbytes, ek_memory_category category,
                     void **pointer, ek_event **event)
{
    int rc = allocator_serve(dev, stream, nbytes, category, false, pointer, event);
    return rc < 0 ? rc : 0;
}

int ek_dev_try_alloc_for(ek_dev *dev, ek_stream stream, size_t nbytes, ek_memory_category category,
                         void **pointer, ek_event **event)
{
    return allocator_serve(dev, stream, nbytes, category, true, pointer, event);
}

int ek_dev_alloc(ek_dev *dev, size_t nbytes, ek_memory_category category, void **pointer)
{
    ek_event *none;
    return ek_dev_alloc_for(dev, EK_STREAM_COMPUTE, nbytes, category, pointer, &none);
}

void ek_dev_free(ek_dev *dev, void *pointer, size_t nbytes, ek_memory_category category)
{
    ek_dev_free_for(dev, EK_STREAM_COMPUTE, pointer, nbytes, category, NULL);
}

void ek_dev_free_for(ek_dev *dev, ek_stream stream, void *pointer, size_t nbytes,
                     ek_memory_category category, ek_event *event)
{
    struct ek_allocator *a = dev->allocator;
    ek_memory_stats *stats = &a->stats;
    size_t counted = ek_ledger_counted(nbytes);
    if (!pointer || ek_forked()) /* a thread of the parent may have been changing the ledger */
        return;
    pthread_mutex_lock(&a->lock);
    /* Under the lock, so that events have their numbers in the order of their records. */
    if (stream != EK_STREAM_COMPUTE && stream != EK_STREAM_EXCHANGE)
        ek_dev_record_event(dev, EK_STREAM_COMPUTE, &event);
    ek_ledger_subtract(dev, counted, category);
    ek_block *block = ek_segments_find(&a->segments, pointer);
    ek_trace_memory(dev, stats, &block->held);
    block->held.nbytes = 0;
    block->event = event;
    if (event)
        block->released = ++a->releases;
    if (!a->shares && dev->backend->host_memory)
        ASAN_POISON_MEMORY_REGION(block->start, block->nbytes);
    if (block->large)
        ek_segments_give(dev, &a->segments, block);
    else
        allocator_cache(a, block);
    uint64_t most = allocator_most_cached(dev);
    if (stats->reserved - stats->in_use > most)
        allocator_drop_until(dev, stats->in_use + most);
    pthread_mutex_unlock(&a->lock);
}

/* ---- for the registry, core/device.c ---- */

int ek_allocator_open(ek_dev *dev)
{
    bool shares = SHARED_BY_DEFAULT;
    EK_TRY(ek_environment_switch("EVENKEEL_SEGMENTS", &shares));
    struct ek_allocator *allocator = ek_calloc(1, sizeof *allocator);
    if (!allocator)
        return EK_E_NO_MEMORY;
    if (pthread_mutex_init(&allocator->lock, NULL) != 0) {
        free(allocator);
        return EK_FAIL(EK_E_NO_MEMORY, "no mutex for an allocator can be had");
    }
    allocator->shares = shares;
    dev->allocator = allocator;
    return 0;
}

void ek_dev_trim(ek_dev *dev)
{
    if (ek_forked())
        return;
    pthread_mutex_lock(&dev->allocator->lock);
    allocator_drop_until(dev, 0);
    pthread_mutex_unlock(&dev->allocator->lock);
}

bool ek_dev_takes_from_others(const ek_dev *dev)
{
    return !dev->allocator->optional && !allocator_has_cached(dev->allocator);
}

int ek_dev_trim_if_free(ek_dev *dev)
{
    if (ek_forked() || pthread_mutex_trylock(&dev->allocator->lock) != 0)
        return -1;
    int count = allocator_drop_until(dev, 0);
    pthread_mutex_unlock(&dev->allocator->lock);
    return count > 0;
}

void ek_allocator_close(ek_dev *dev)
{
    struct ek_allocator *a = dev->allocator;
    ek_dev_trim(dev);
    for (ek_memory_watch *watch = a->watches; watch; watch = watch->next)
        watch->dev = NULL;
    ek_segments_close(&a->segments);
    pthread_mutex_destroy(&a->lock);
    free(a);
    dev->allocator = NULL;
}

bool ek_ledger_set_capacity(ek_dev *dev, uint64_t nbytes, uint64_t *in_use)
{
    pthread_mutex_lock(&dev->allocator->lock);
    ek_memory_stats *stats = &dev->allocator->stats;
    *in_use = stats->in_use;
    bool fits = !nbytes || *in_use <= nbytes;
    if (fits)
        stats->capacity = nbytes;
    if (fits && nbytes)
        allocator_drop_until(dev, nbytes);
    pthread_mutex_unlock(&dev->allocator->lock);
    return fits;
}
