/* allocator.c: a caching allocator per device, and the ledger.
 *
 * A released block is cached and given out again for a request of exactly its rounded size.
 * Training steps ask for the same sizes again and again, and exact fit keeps the ledger exact.
 * Cached blocks are dropped, oldest first, if a request would exceed the capacity, if the system
 * has no memory left, and, for memory of the host, if more is cached than was ever in use at once
 * (and than cache_floor).
 *
 * A block stays with the stream that it was asked for. A block of EK_STREAM_COMPUTE can be used
 * again at once, in that stream's order. A block of another stream keeps an event that was recorded
 * in EK_STREAM_COMPUTE when the block was released; the other stream waits for the event when the
 * block is given out again. A block that comes from the system has nothing to wait for. */
#include "core/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/fork.h"
#include "core/locale.h"
#include "core/trace.h"

typedef struct ek_block {
    struct ek_block *next_in_bucket, *previous_in_bucket;
    struct ek_block *older, *newer;
    void *pointer;
    size_t nbytes;
    ek_stream stream;
    ek_event *event; /* recorded at the release; NULL for blocks of EK_STREAM_COMPUTE */
} ek_block;

enum { ALIGNMENT = 64, BUCKETS = 256 };
/* This much cached memory of the host is never dropped for being too much. */
static const uint64_t cache_floor = (uint64_t)64 << 20;

/* The allocator of one device. `lock` guards all members. */
struct ek_allocator {
    pthread_mutex_t lock;
    struct ek_block *buckets[BUCKETS]; /* cached blocks by hash of their size */
    struct ek_block *oldest, *newest;  /* cached blocks by time of their release */
    struct ek_block *spare;            /* unused ek_block records */
    ek_memory_stats stats;
    struct ek_memory_watch *watches;
};

static size_t allocator_round_up(size_t nbytes)
{
    return nbytes == 0 ? ALIGNMENT : (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static unsigned allocator_bucket(size_t nbytes)
{
    return (unsigned)((nbytes / ALIGNMENT * UINT64_C(0x9E3779B97F4A7C15)) >> 56);
}

/* ---- cached blocks: the allocator's lock is held ---- */

static void allocator_unlink_block(struct ek_allocator *a, ek_block *block)
{
    ek_block *next = block->next_in_bucket, *previous = block->previous_in_bucket;
    *(previous ? &previous->next_in_bucket : &a->buckets[allocator_bucket(block->nbytes)]) = next;
    if (next)
        next->previous_in_bucket = previous;
    *(block->older ? &block->older->newer : &a->oldest) = block->newer;
    *(block->newer ? &block->newer->older : &a->newest) = block->older;
    block->next_in_bucket = a->spare;
    a->spare = block;
}

static void *allocator_take_cached(struct ek_allocator *a, ek_stream stream, size_t nbytes,
                                   ek_event **event)
{
    for (ek_block *block = a->buckets[allocator_bucket(nbytes)]; block;
         block = block->next_in_bucket) {
        if (block->nbytes == nbytes && block->stream == stream) {
            allocator_unlink_block(a, block);
            *event = block->event;
            return block->pointer;
        }
    }
    return NULL;
}

static void allocator_give_back(ek_dev *dev, void *pointer, size_t nbytes, ek_event *event)
{
    dev->allocator->stats.reserved -= nbytes;
    dev->backend->memory_free(dev, pointer, nbytes);
    if (event)
        dev->backend->event_free(dev, event);
}

static void allocator_drop_oldest(ek_dev *dev)
{
    struct ek_allocator *a = dev->allocator;
    ek_block *block = a->oldest;
    allocator_give_back(dev, block->pointer, block->nbytes, block->event);
    allocator_unlink_block(a, block);
}

static void allocator_drop_until(ek_dev *dev, uint64_t cached_nbytes)
{
    struct ek_allocator *a = dev->allocator;
    while (a->oldest && a->stats.reserved - a->stats.in_use > cached_nbytes)
        allocator_drop_oldest(dev);
}

/* The cache of a GPU has no limit: giving memory back waits for the device. Exact fit can need more
 * than was ever in use at once, so that a limit would have every step ask the system again. */
static uint64_t allocator_most_cached(const ek_dev *dev)
{
    uint64_t peak = dev->allocator->stats.peak;
    if (!dev->backend->host_memory)
        return UINT64_MAX;
    return peak > cache_floor ? peak : cache_floor;
}

/* ---- errors ---- */

/* "512 B", "1.5 MiB" */
static const char *allocator_amount_text(uint64_t nbytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double number = (double)nbytes;
    int unit = 0;
    while (number >= 1024 && unit < 4) {
        number /= 1024;
        unit++;
    }
    ek_format(text, 32, unit ? "%.2f %s" : "%.0f %s", number, units[unit]);
    return text;
}

static int allocator_out_of_memory(ek_dev *dev, size_t nbytes, ek_memory_category category,
                                   const ek_memory_stats *stats)
{
    char breakdown[320] = "";
    char text[4][32];
    size_t used = 0;
    for (int i = 0; i < EK_MEMORY_CATEGORIES && used < sizeof breakdown; i++) {
        if (stats->now[i])
            used += (size_t)snprintf(breakdown + used, sizeof breakdown - used, "%s%s %s",
                                     used ? ", " : "", ek_memory_category_name(i),
                                     allocator_amount_text(stats->now[i], text[0]));
    }
    return EK_FAIL(EK_E_OUT_OF_MEMORY,
                   "%s is out of memory: %s requested for %s, %s in use%s%s%s, capacity %s",
                   dev->name, allocator_amount_text(nbytes, text[0]),
                   ek_memory_category_name(category), allocator_amount_text(stats->in_use, text[1]),
                   used ? " (" : "", breakdown, used ? ")" : "",
                   stats->capacity ? allocator_amount_text(stats->capacity, text[2])
                                   : "that of the machine");
}

/* ---- allocation ---- */

static void *allocator_from_system(ek_dev *dev, size_t nbytes, int *status)
{
    struct ek_allocator *a = dev->allocator;
    ek_memory_stats *stats = &a->stats;
    if (stats->capacity) {
        if (nbytes > stats->capacity || stats->in_use > stats->capacity - nbytes)
            return NULL;
        allocator_drop_until(dev, stats->capacity - nbytes - stats->in_use);
    }
    void *pointer = NULL;
    *status = dev->backend->memory_alloc(dev, nbytes, &pointer);
    if (!pointer && *status >= 0 && a->oldest) {
        allocator_drop_until(dev, 0);
        *status = dev->backend->memory_alloc(dev, nbytes, &pointer);
    }
    if (pointer) {
        stats->reserved += nbytes;
        if (stats->reserved > stats->reserved_peak)
            stats->reserved_peak = stats->reserved;
    }
    return pointer;
}

/* Counts bytes that are in use from now on. The allocator's lock is held. */
static void allocator_count(ek_dev *dev, size_t rounded, ek_memory_category category)
{
    struct ek_allocator *a = dev->allocator;
    ek_memory_stats *stats = &a->stats;
    stats->in_use += rounded;
    stats->now[category] += rounded;
    if (stats->in_use > stats->peak) {
        stats->peak = stats->in_use;
        memcpy(stats->at_peak, stats->now, sizeof stats->now);
    }
    for (ek_memory_watch *watch = a->watches; watch; watch = watch->next)
        if (stats->in_use > watch->peak)
            watch->peak = stats->in_use;
    ek_trace_memory(dev, stats);
}

int ek_dev_alloc_for(ek_dev *dev, ek_stream stream, size_t nbytes, ek_memory_category category,
                     void **pointer, ek_event **event)
{
    struct ek_allocator *a = dev->allocator;
    ek_memory_stats *stats = &a->stats;
    size_t rounded = allocator_round_up(nbytes);
    int status = 0;
    *pointer = NULL;
    *event = NULL;
    EK_TRY(ek_fork_check());
    if (nbytes > SIZE_MAX / 2) {
        ek_memory_stats now;
        ek_ledger_read(dev, &now);
        return allocator_out_of_memory(dev, nbytes, category, &now);
    }
    pthread_mutex_lock(&a->lock);
    *pointer = allocator_take_cached(a, stream, rounded, event);
    if (!*pointer)
        *pointer = allocator_from_system(dev, rounded, &status);
    if (!*pointer) {
        stats->failures++;
        ek_memory_stats now = *stats;
        pthread_mutex_unlock(&a->lock);
        return status < 0 ? status : allocator_out_of_memory(dev, rounded, category, &now);
    }
    stats->allocations++;
    allocator_count(dev, rounded, category);
    pthread_mutex_unlock(&a->lock);
    ek_dev_wait_event(dev, stream, *event);
    return 0;
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
    size_t rounded = allocator_round_up(nbytes);
    if (!pointer)
        return;
    if (ek_forked()) { /* a thread of the parent may have been changing the ledger */
        if (dev->backend->host_memory)
            dev->backend->memory_free(dev, pointer, rounded);
        return;
    }
    if (stream != EK_STREAM_COMPUTE)
        ek_dev_record_event(dev, EK_STREAM_COMPUTE, &event);
    pthread_mutex_lock(&a->lock);
    stats->in_use -= rounded;
    stats->now[category] -= rounded;
    ek_block *block = a->spare;
    if (block)
        a->spare = block->next_in_bucket;
    else
        block = malloc(sizeof *block);
    if (block) {
        ek_block **bucket = &a->buckets[allocator_bucket(rounded)];
        *block = (ek_block){.next_in_bucket = *bucket,
                            .older = a->newest,
                            .pointer = pointer,
                            .nbytes = rounded,
                            .stream = stream,
                            .event = event};
        if (*bucket)
            (*bucket)->previous_in_bucket = block;
        *bucket = block;
        *(a->newest ? &a->newest->newer : &a->oldest) = block;
        a->newest = block;
        allocator_drop_until(dev, allocator_most_cached(dev));
    } else { /* without a record the block cannot be cached */
        allocator_give_back(dev, pointer, rounded, event);
    }
    ek_trace_memory(dev, stats);
    pthread_mutex_unlock(&a->lock);
}

void ek_dev_count_foreign(ek_dev *dev, size_t nbytes, ek_memory_category category, bool begins)
{
    struct ek_allocator *a = dev->allocator;
    size_t rounded = allocator_round_up(nbytes);
    if (ek_forked())
        return;
    pthread_mutex_lock(&a->lock);
    if (begins) {
        a->stats.reserved += rounded;
        allocator_count(dev, rounded, category);
        if (a->stats.reserved > a->stats.reserved_peak)
            a->stats.reserved_peak = a->stats.reserved;
    } else {
        a->stats.reserved -= rounded;
        a->stats.in_use -= rounded;
        a->stats.now[category] -= rounded;
        ek_trace_memory(dev, &a->stats);
    }
    pthread_mutex_unlock(&a->lock);
}

void ek_dev_recategorise(ek_dev *dev, size_t nbytes, ek_memory_category from, ek_memory_category to)
{
    if (ek_forked())
        return;
    size_t rounded = allocator_round_up(nbytes);
    pthread_mutex_lock(&dev->allocator->lock);
    dev->allocator->stats.now[from] -= rounded;
    dev->allocator->stats.now[to] += rounded;
    ek_trace_memory(dev, &dev->allocator->stats);
    pthread_mutex_unlock(&dev->allocator->lock);
}

/* ---- watches ---- */

void ek_memory_watch_begin(ek_dev *dev, ek_memory_watch *watch)
{
    if (ek_forked()) {
        *watch = (ek_memory_watch){0};
        return;
    }
    struct ek_allocator *a = dev->allocator;
    pthread_mutex_lock(&a->lock);
    *watch = (ek_memory_watch){.dev = dev, .peak = a->stats.in_use, .next = a->watches};
    a->watches = watch;
    pthread_mutex_unlock(&a->lock);
}

uint64_t ek_memory_watch_restart(ek_memory_watch *watch)
{
    ek_dev *dev = watch->dev;
    if (!dev || ek_forked())
        return watch->peak;
    pthread_mutex_lock(&dev->allocator->lock);
    uint64_t peak = watch->peak;
    watch->peak = dev->allocator->stats.in_use;
    pthread_mutex_unlock(&dev->allocator->lock);
    return peak;
}

void ek_memory_watch_end(ek_memory_watch *watch)
{
    ek_dev *dev = watch->dev;
    if (!dev || ek_forked())
        return;
    pthread_mutex_lock(&dev->allocator->lock);
    ek_memory_watch **at = &dev->allocator->watches;
    while (*at != watch)
        at = &(*at)->next;
    *at = watch->next;
    watch->dev = NULL;
    pthread_mutex_unlock(&dev->allocator->lock);
}

/* ---- for the registry, core/device.c ---- */

int ek_allocator_open(ek_dev *dev)
{
    struct ek_allocator *allocator = ek_calloc(1, sizeof *allocator);
    if (!allocator)
        return EK_E_NO_MEMORY;
    if (pthread_mutex_init(&allocator->lock, NULL) != 0) {
        free(allocator);
        return EK_FAIL(EK_E_NO_MEMORY, "no mutex for an allocator can be had");
    }
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

bool ek_dev_has_cached(const ek_dev *dev)
{
    return dev->allocator->oldest;
}

int ek_dev_trim_if_free(ek_dev *dev)
{
    if (ek_forked() || pthread_mutex_trylock(&dev->allocator->lock) != 0)
        return -1;
    int some = dev->allocator->oldest != NULL;
    allocator_drop_until(dev, 0);
    pthread_mutex_unlock(&dev->allocator->lock);
    return some;
}

void ek_allocator_close(ek_dev *dev)
{
    struct ek_allocator *a = dev->allocator;
    ek_dev_trim(dev);
    for (ek_memory_watch *watch = a->watches; watch; watch = watch->next)
        watch->dev = NULL;
    while (a->spare) {
        ek_block *block = a->spare;
        a->spare = block->next_in_bucket;
        free(block);
    }
    pthread_mutex_destroy(&a->lock);
    free(a);
    dev->allocator = NULL;
}

void ek_dev_restore_peak(ek_dev *dev, const ek_memory_stats *before)
{
    if (ek_forked())
        return;
    pthread_mutex_lock(&dev->allocator->lock);
    ek_memory_stats *stats = &dev->allocator->stats;
    stats->peak = before->peak;
    memcpy(stats->at_peak, before->at_peak, sizeof stats->at_peak);
    if (stats->in_use > stats->peak) {
        stats->peak = stats->in_use;
        memcpy(stats->at_peak, stats->now, sizeof stats->now);
    }
    stats->reserved_peak =
        before->reserved_peak > stats->reserved ? before->reserved_peak : stats->reserved;
    pthread_mutex_unlock(&dev->allocator->lock);
}

void ek_ledger_read(ek_dev *dev, ek_memory_stats *stats)
{
    *stats = *ek_ledger_hold(dev);
    ek_ledger_release(dev);
}

const ek_memory_stats *ek_ledger_hold(ek_dev *dev)
{
    ek_lock(&dev->allocator->lock);
    return &dev->allocator->stats;
}

void ek_ledger_release(ek_dev *dev)
{
    ek_unlock(&dev->allocator->lock);
}

void ek_ledger_reset_peak(ek_dev *dev)
{
    pthread_mutex_lock(&dev->allocator->lock);
    ek_memory_stats *stats = &dev->allocator->stats;
    stats->peak = stats->in_use;
    stats->reserved_peak = stats->reserved;
    memcpy(stats->at_peak, stats->now, sizeof stats->now);
    pthread_mutex_unlock(&dev->allocator->lock);
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
        allocator_drop_until(dev, nbytes - *in_use);
    pthread_mutex_unlock(&dev->allocator->lock);
    return fits;
}

const char *ek_memory_category_name(ek_memory_category category)
{
    switch (category) {
#define EK_MEMORY_CASE(name, text) \
    case EK_MEMORY_##name:         \
        return text;
        EK_MEMORY_MAP(EK_MEMORY_CASE)
#undef EK_MEMORY_CASE
    case EK_MEMORY_CATEGORIES:
        break;
    }
    return "unknown";
}
