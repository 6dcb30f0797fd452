/* allocator.h: memory of devices, and the ledger of what it is used for. */
#ifndef EK_CORE_ALLOCATOR_H
#define EK_CORE_ALLOCATOR_H

#include "core/backend.h"

/* Memory of a device, aligned to 64 bytes, counted under `category`, to be used by work of
 * EK_QUEUE_COMPUTE. nbytes 0 gives a valid pointer. On EK_E_OUT_OF_MEMORY the sentence names
 * device, request, what is in use by category, and capacity; nothing has changed and smaller
 * requests may succeed. Any thread. */
int ek_dev_alloc(ek_dev *dev, size_t nbytes, ek_memory_category category, void **pointer);
void ek_dev_free(ek_dev *dev, void *pointer, size_t nbytes, ek_memory_category category);

/* The same for memory that work of `queue` uses first: what is issued there from now on finds it
 * free, and need not wait for all that was issued elsewhere. It is given back to the same queue, by
 * then EK_QUEUE_COMPUTE comes after all its uses (ek_dev_await). *mark is the caller's for as long
 * as he has the memory (backend.h); of EK_QUEUE_COMPUTE, NULL. */
int ek_dev_alloc_for(ek_dev *dev, ek_queue queue, size_t nbytes, ek_memory_category category,
                     void **pointer, ek_mark **mark);
void ek_dev_free_for(ek_dev *dev, ek_queue queue, void *pointer, size_t nbytes,
                     ek_memory_category category, ek_mark *mark);

/* Counts nbytes that are in use under another category. */
void ek_dev_recategorise(ek_dev *dev, size_t nbytes, ek_memory_category from,
                         ek_memory_category to);

/* A peak of one's own, beside the public one: any number of watches at a time. Any thread. */
typedef struct ek_memory_watch {
    ek_dev *dev;   /* NULL: it has ended, as it does when the device is closed */
    uint64_t peak; /* to be read while the ledger is held */
    struct ek_memory_watch *next;
} ek_memory_watch;
void ek_memory_watch_begin(ek_dev *dev, ek_memory_watch *watch); /* the peak is what is in use */
/* The peak so far; a new one begins. */
uint64_t ek_memory_watch_restart(ek_memory_watch *watch);
void ek_memory_watch_end(ek_memory_watch *watch);

/* The device's peaks become those of `before` again, as if what came since had not happened, or
 * what is in use now if that is more. Any thread. */
void ek_dev_restore_peak(ek_dev *dev, const ek_memory_stats *before);

/* The ledger as it is now. Any thread. */
void ek_ledger_read(ek_dev *dev, ek_memory_stats *stats);

/* Holds all changes of the device's memory off until ek_ledger_release, and returns the ledger.
 * Whoever holds one allocates nothing. What the tracer's `memory` is told (trace.h) is told while
 * it is held. */
const ek_memory_stats *ek_ledger_hold(ek_dev *dev);
void ek_ledger_release(ek_dev *dev);

/* The peaks become what is in use now. */
void ek_ledger_reset_peak(ek_dev *dev);

/* 0: without. False, and all stays, if more is in use: *in_use says how much. */
bool ek_ledger_set_capacity(ek_dev *dev, uint64_t nbytes, uint64_t *in_use);

/* For the registry. */
int ek_allocator_open(ek_dev *dev);
void ek_allocator_close(ek_dev *dev);
void ek_dev_trim(ek_dev *dev);

/* Blocks are cached. For backends, from their memory_alloc. */
bool ek_dev_has_cached(const ek_dev *dev);

/* Gives the cached blocks back: 1 if there were some, 0 if none, and -1 if a thread is in
 * the device's allocator and nothing was done. For backends whose devices share memory, from their
 * memory_alloc. */
int ek_dev_trim_if_free(ek_dev *dev);

#endif
