/* allocator.h: memory of devices, and the ledger that counts it by category. */
#ifndef EK_CORE_ALLOCATOR_H
#define EK_CORE_ALLOCATOR_H

#include "core/backend.h"

/* Allocates nbytes on a device, aligned to 64 bytes and counted under `category`, for work of
 * EK_STREAM_COMPUTE. nbytes 0 gives a valid pointer. On EK_E_OUT_OF_MEMORY the sentence names the
 * device, the request, what is in use by category, and the capacity; nothing has changed, and
 * smaller requests may succeed. Any thread. */
int ek_dev_alloc(ek_dev *dev, size_t nbytes, ek_memory_category category, void **pointer);
void ek_dev_free(ek_dev *dev, void *pointer, size_t nbytes, ek_memory_category category);

/* The same for memory that `stream` uses first: work issued there from now on may use it, without a
 * wait for all other streams. ek_dev_free_for takes the same stream, once EK_STREAM_COMPUTE comes
 * after all uses of the memory (ek_dev_wait_event). *event is an event that goes with the memory:
 * the caller may record it anew and hands it back with the memory. It is NULL for
 * EK_STREAM_COMPUTE. */
int ek_dev_alloc_for(ek_dev *dev, ek_stream stream, size_t nbytes, ek_memory_category category,
                     void **pointer, ek_event **event);
void ek_dev_free_for(ek_dev *dev, ek_stream stream, void *pointer, size_t nbytes,
                     ek_memory_category category, ek_event *event);

/* Moves nbytes that are in use from one category to another. */
void ek_dev_recategorise(ek_dev *dev, size_t nbytes, ek_memory_category from,
                         ek_memory_category to);

/* A private peak, beside the public one. Any number of watches may run at a time. The caller owns
 * the struct, which is linked until ek_memory_watch_end. Any thread. */
typedef struct ek_memory_watch {
    ek_dev *dev;   /* NULL once the watch has ended or the device is closed */
    uint64_t peak; /* guarded by the allocator's lock (ek_ledger_hold) */
    struct ek_memory_watch *next;
} ek_memory_watch;
/* Begins a watch whose peak is what is in use now. */
void ek_memory_watch_begin(ek_dev *dev, ek_memory_watch *watch);
/* Returns the peak so far, and starts a new one at what is in use now. */
uint64_t ek_memory_watch_restart(ek_memory_watch *watch);
void ek_memory_watch_end(ek_memory_watch *watch);

/* Restores the device's peaks from `before`, but not below what is in use now. Any thread. */
void ek_dev_restore_peak(ek_dev *dev, const ek_memory_stats *before);

/* Copies the ledger. Any thread. */
void ek_ledger_read(ek_dev *dev, ek_memory_stats *stats);

/* Locks the device's allocator until ek_ledger_release and returns its ledger (borrowed). The
 * caller must not allocate on the device meanwhile. The tracer's `memory` (trace.h) is called with
 * this lock held. */
const ek_memory_stats *ek_ledger_hold(ek_dev *dev);
void ek_ledger_release(ek_dev *dev);

/* Sets the peaks to what is in use now. */
void ek_ledger_reset_peak(ek_dev *dev);

/* Sets the capacity; 0 means none. Returns false and changes nothing if more than nbytes is in use.
 * *in_use becomes what is in use either way. */
bool ek_ledger_set_capacity(ek_dev *dev, uint64_t nbytes, uint64_t *in_use);

/* For the registry, core/device.c. ek_dev_trim gives all cached blocks back to the system. */
int ek_allocator_open(ek_dev *dev);
void ek_allocator_close(ek_dev *dev);
void ek_dev_trim(ek_dev *dev);

/* True if blocks are cached. For memory_alloc of backends, where the allocator's lock is held. */
bool ek_dev_has_cached(const ek_dev *dev);

/* Gives the cached blocks back to the system. Returns 1 if there were some, 0 if there were none,
 * and -1 if another thread holds the allocator's lock, in which case nothing was done. For
 * memory_alloc of backends whose devices share memory. */
int ek_dev_trim_if_free(ek_dev *dev);

#endif
