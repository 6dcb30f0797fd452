/* device.h: the registry's entry for one logical device. */
#ifndef EK_CORE_DEVICE_H
#define EK_CORE_DEVICE_H

#include <pthread.h>

#include "core/backend.h"
#include "evenkeel/device.h"

struct ek_worker;
struct ek_block;

enum { EK_ALLOCATOR_BUCKETS = 256 };

/* Blocks of one device: cached ones by size, and the ledger. All guarded by `lock`. */
typedef struct ek_allocator {
    pthread_mutex_t lock;
    struct ek_block *buckets[EK_ALLOCATOR_BUCKETS]; /* cached blocks by hash of their size */
    struct ek_block *oldest, *newest;               /* the same blocks by time of their release */
    struct ek_block *spare;                         /* records that describe no block now */
    ek_memory_stats stats;
    struct ek_memory_watch *watches;
} ek_allocator;

struct ek_dev {
    ek_device id;
    char name[16];
    const ek_backend *backend;
    void *context; /* the backend's */
    int threads;   /* that this device computes with (host) */
    double speed;  /* EK_LEAST_SPEED to 1: below 1 its worker sleeps in proportion */
    ek_allocator allocator;
    struct ek_worker *worker; /* started with first use */
    _Atomic uint64_t busy_ns; /* what ek_dev_busy_ns returns, but for what its clock still holds */
    _Atomic int64_t rest_ns;  /* that a slow one still has to sleep; below 0: has slept too much */
};

/* The entry of a device; NULL with EK_E_DEVICE when there is none. Any thread. */
ek_dev *ek_dev_get(ek_device device);

/* Refuses what ek_devices and ek_device_list_of return when they fail; an empty list is well. */
int ek_device_list_check(const char *what, const ek_device_list *list);

/* How long it has worked: the wall time of parts on it, without their waiting (part.h), or by a
 * clock of its own the time of replicas' forwards that are over (from the first call on, and of few
 * between two calls). Doesn't wait. Any thread. */
uint64_t ek_dev_busy_ns(ek_dev *dev);

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
    uint64_t peak; /* guarded by the allocator's lock */
    struct ek_memory_watch *next;
} ek_memory_watch;
void ek_memory_watch_begin(ek_dev *dev, ek_memory_watch *watch); /* the peak is what is in use */
/* The peak so far; a new one begins. */
uint64_t ek_memory_watch_restart(ek_memory_watch *watch);
void ek_memory_watch_end(ek_memory_watch *watch);

/* The device's peaks become those of `before` again, as if what came since had not happened, or
 * what is in use now where that is more. Any thread. */
void ek_dev_restore_peak(ek_dev *dev, const ek_memory_stats *before);

/* For the registry. */
int ek_allocator_open(ek_allocator *allocator);
void ek_allocator_close(ek_dev *dev);
void ek_dev_trim(ek_dev *dev);

/* Gives the cached blocks back: 1 where there were some, 0 where none, and -1 where a thread is in
 * the device's allocator and nothing was done. For backends whose devices share memory, from their
 * memory_alloc. */
int ek_dev_trim_if_free(ek_dev *dev);

/* Work issued to `waiter` from now on sees all that was issued to `awaited` before. */
int ek_dev_order(ek_dev *waiter, ek_dev *awaited);

/* Returns when all work issued to the device is done. */
int ek_dev_synchronize(ek_dev *dev);

/* True where the device has more queues than one. */
bool ek_dev_has_queues(const ek_dev *dev);

/* The backend's mark and await; nothing where there is one queue. */
void ek_dev_mark(ek_dev *dev, ek_queue queue, ek_mark **mark);
void ek_dev_await(ek_dev *dev, ek_queue queue, ek_mark *mark);

/* Copies contiguous bytes from a device of the host to another in EK_QUEUE_UPLOAD, as the backend's
 * send does; with one queue, in order with all work of both. */
int ek_dev_send(ek_dev *dev, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);

/* Copies contiguous bytes between any two devices, after work issued to either; nothing that is
 * issued to either later overtakes it. Where one side is memory of the host: on return the host may
 * change the source, or has all of the result. */
int ek_dev_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);

/* Fills with zero bytes, in order with the device's other work. */
int ek_dev_zero(ek_dev *dev, void *data, size_t nbytes);

/* Kernels of `dev` can use the memory of `other` as their own (after ek_dev_order). */
bool ek_dev_reaches(const ek_dev *dev, const ek_dev *other);

/* What can be done for these devices at once (ek_collective), or a negative status. */
int ek_dev_collective(ek_dev *const *devs, int count);

/* True where the CPU can read and write the device's memory directly. */
bool ek_dev_is_host(const ek_dev *dev);

#endif
