/* device.h: logical devices: the registry, their memory and its ledger, and the order between their
 * streams. */
#ifndef EK_CORE_DEVICE_H
#define EK_CORE_DEVICE_H

#include <pthread.h>

#include "core/backend.h"
#include "core/holders.h"

/* Returns the device (borrowed), which is opened if necessary; NULL with EK_E_DEVICE if it doesn't
 * exist. Any thread. */
ek_dev *ek_dev_get(ek_device device);

/* Returns the number of a logical device's GPU in the CUDA runtime; -1 if the device has no GPU or
 * doesn't exist. Any thread. */
int ek_dev_hardware(ek_device device);

/* Compares devices by kind and then by index: negative if a comes before b, 0 if they are equal. */
static inline int ek_dev_compare(const ek_dev *a, const ek_dev *b)
{
    return a->id.kind != b->id.kind ? (int)a->id.kind - (int)b->id.kind : a->id.index - b->id.index;
}

enum { EK_MOST_DEVICES = 2 * EK_MAX_DEVICES + 1 }; /* all host and CUDA devices, and cpu */

/* Fails if the list's count is negative, as ek_devices and ek_device_list_of return it on an error,
 * or too large. An empty list is fine. */
int ek_device_list_check(const char *what, const ek_device_list *list);

/* Returns how long the device has worked. This is the wall time of threads' work for the device
 * (worker.h) or, if the device has a clock, the time of the replicas' forwards that the device has
 * finished. The clock starts with the first call of this function. If many forwards run between two
 * calls of this function, the clock counts only a few of them. Doesn't wait. Any thread. */
uint64_t ek_dev_busy_ns(ek_dev *dev);

/* Fills memory with zero bytes, in order with the device's work. */
int ek_dev_zero(ek_dev *dev, void *data, size_t nbytes);

/* Makes ek_shutdown call `leave` first and return its status. For one constructor: that of
 * src/distributed. */
void ek_at_shutdown(int (*leave)(void));

/* ---- allocator.c, ledger.c: memory, and the ledger that counts it by category ---- */

/* Allocates nbytes on a device, aligned to 64 bytes and counted under `category`, for work of
 * EK_STREAM_COMPUTE. With nbytes 0 the pointer is valid, too. On EK_E_OUT_OF_MEMORY the sentence
 * names the device, the request, what is in use by category, and the capacity; smaller requests may
 * still succeed. Any thread. */
int ek_dev_alloc(ek_dev *dev, size_t nbytes, ek_memory_category category, void **pointer);
void ek_dev_free(ek_dev *dev, void *pointer, size_t nbytes, ek_memory_category category);

/* Allocates memory that `stream` uses first: work issued to that stream from now on may use it, and
 * other streams are not waited for. ek_dev_free_for gets the stream of the allocation, and may be
 * called once EK_STREAM_COMPUTE comes after all uses of the memory (ek_dev_wait_event). Memory of
 * EK_STREAM_EXCHANGE is used in that stream only, and may be given back at once. *event belongs to
 * the memory: the caller may record the event anew, and hands it back with the memory. The event is
 * NULL for EK_STREAM_COMPUTE and EK_STREAM_EXCHANGE. */
int ek_dev_alloc_for(ek_dev *dev, ek_stream stream, size_t nbytes, ek_memory_category category,
                     void **pointer, ek_event **event);
void ek_dev_free_for(ek_dev *dev, ek_stream stream, void *pointer, size_t nbytes,
                     ek_memory_category category, ek_event *event);

/* ek_dev_alloc_for for callers that can do without the memory. Returns 1 with memory. Returns 0 if
 * memory is short: no failure is counted, no error is set, and no cached memory is given back to
 * the system for the request. Returns a negative status on other errors. */
int ek_dev_try_alloc_for(ek_dev *dev, ek_stream stream, size_t nbytes, ek_memory_category category,
                         void **pointer, ek_event **event);

/* Counts memory that the allocator hasn't allocated: as in use if `begins`, else as no longer in
 * use. */
void ek_dev_count_foreign(ek_dev *dev, size_t nbytes, ek_memory_category category, bool begins);

/* Counts nbytes that are in use under another category and another module's path. `pointer` is
 * NULL for memory that the allocator hasn't allocated. */
void ek_dev_assign(ek_dev *dev, const void *pointer, size_t nbytes, ek_memory_category from,
                   ek_memory_category to, const char *path);

/* A watch measures the peak of the memory in use from its own start on, besides the peak in
 * ek_memory_stats. Any number of watches may run at a time. The caller owns the struct, which is
 * linked until ek_memory_watch_end. Any thread. */
typedef struct ek_memory_watch {
    ek_dev *dev;   /* NULL once the watch has ended or the device is closed */
    uint64_t peak; /* guarded by the allocator's lock (ek_ledger_hold) */
    struct ek_memory_watch *next;
} ek_memory_watch;
/* Begins a watch. Its peak starts at what is in use now. */
void ek_memory_watch_begin(ek_dev *dev, ek_memory_watch *watch);
/* Returns the watch's peak so far, and starts a new peak at what is in use now. */
uint64_t ek_memory_watch_restart(ek_memory_watch *watch);
void ek_memory_watch_end(ek_memory_watch *watch);

/* Sets the device's peaks back to those in `before`, but not below what is in use and reserved now.
 * Any thread. */
void ek_dev_restore_peak(ek_dev *dev, const ek_memory_stats *before);

/* Copies the ledger. Any thread. */
void ek_ledger_read(ek_dev *dev, ek_memory_stats *stats);

/* Locks the device's allocator until ek_ledger_release and returns its ledger (borrowed). In
 * between, the caller must not allocate on the device. The tracer's `memory` (trace.h) is called
 * with this lock held. */
const ek_memory_stats *ek_ledger_hold(ek_dev *dev);
void ek_ledger_release(ek_dev *dev);

/* Sets the peaks to what is in use and reserved now. */
void ek_ledger_reset_peak(ek_dev *dev);

/* Sets the capacity; 0: no limit. If more than nbytes (not 0) are in use, returns false and changes
 * nothing. In either case *in_use becomes how many bytes are in use. */
bool ek_ledger_set_capacity(ek_dev *dev, uint64_t nbytes, uint64_t *in_use);

/* Adds the holders of the memory in use, but not those whose number is larger than `until`. The
 * number of the last holder so far is stats.allocations. The caller holds the lock of the device's
 * allocator. */
void ek_ledger_add_holders(const ek_dev *dev, uint64_t until, ek_holders *holders);

/* Returns the size of the largest free block. The caller holds the lock of the device's
 * allocator. */
uint64_t ek_ledger_largest_free(const ek_dev *dev);

/* Stores how many bytes the device uses that the ledger doesn't count (stats.system): contexts,
 * modules, communicators. ek_ledger_measure lets the backend measure them anew. No allocator's lock
 * is held. */
void ek_ledger_count_system(ek_dev *dev, uint64_t nbytes);
void ek_ledger_measure(ek_dev *dev);

/* For the registry, core/device.c. ek_dev_trim gives all idle segments back to the system. */
int ek_allocator_open(ek_dev *dev);
void ek_allocator_close(ek_dev *dev);
void ek_dev_trim(ek_dev *dev);

/* Returns true if cached memory of other devices may be given back for the request that is being
 * served: the request isn't ek_dev_try_alloc_for's, and this device has no cached memory. For
 * memory_alloc of backends, which is called with the allocator's lock held. */
bool ek_dev_takes_from_others(const ek_dev *dev);

/* Gives idle segments back to the system. Returns 1 if there were idle segments, 0 if there were
 * none, and -1 if another thread holds the allocator's lock, in which case nothing was done. For
 * memory_alloc of backends whose devices share memory. */
int ek_dev_trim_if_free(ek_dev *dev);

/* ---- stream.c: order between devices and their streams, and copies: the backend's functions, or
 * the defaults of functions that it lacks (backend.h) ---- */

/* Makes work issued to `waiter` from now on wait for all work issued to `awaited` so far. */
int ek_dev_wait(ek_dev *waiter, ek_dev *awaited);

/* Returns when all work issued to the device is done. */
int ek_dev_synchronize(ek_dev *dev);

/* Returns true if the device has several streams. */
bool ek_dev_has_streams(const ek_dev *dev);

/* Record an event, wait for it, ask whether it is done, and free it, by the backend's
 * `event_record` and so on (backend.h). If the device has one stream, the functions do nothing and
 * every event is done. A NULL event is done. */
void ek_dev_record_event(ek_dev *dev, ek_stream stream, ek_event **event);
void ek_dev_wait_event(ek_dev *dev, ek_stream stream, ek_event *event);
int ek_dev_event_done(ek_dev *dev, ek_event *event);
void ek_dev_free_event(ek_dev *dev, ek_event *event);

/* Copies contiguous bytes from a device of the host to `dev` in EK_STREAM_UPLOAD by the backend's
 * `upload`; if the backend has none, by ek_dev_copy. */
int ek_dev_upload(ek_dev *dev, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);

/* Copies contiguous bytes to memory of the host in EK_STREAM_COMMUNICATE by the backend's
 * `download`; if the backend has none, by ek_dev_copy. */
int ek_dev_download(ek_dev *dev, ek_dev *to, void *to_data, const void *from_data, size_t nbytes);

/* Copies contiguous bytes between any two devices, after all earlier work of both and before all
 * later work of both. If one side is memory of the host, the call returns when the host may change
 * the source, or has all of the result. */
int ek_dev_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);

/* Returns true if kernels of `dev` can use the memory of `other` as their own (after
 * ek_dev_wait). */
bool ek_dev_reaches(const ek_dev *dev, const ek_dev *other);

/* Returns which collectives to use among these devices (ek_collective), or a negative status. */
int ek_dev_collective(ek_dev *const *devs, int count);

/* Does steps by the first device's backend (backend.h), which ek_dev_collective must have offered
 * for these devices. If the backend has no `exchange`, copies from device to device.
 * ek_dev_broadcast is one step. */
int ek_dev_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes);
int ek_dev_exchange(ek_dev *const *devs, int count, const ek_exchange_step *steps, int step_count);

/* Returns true if the CPU can read and write the device's memory directly. */
bool ek_dev_is_host(const ek_dev *dev);

#endif
