/* backend.h: what a backend is: a constant table of functions. Slots marked optional may be NULL;
 * what happens then stands beside them, and core/device.c applies it. Functions return 0 or a
 * negative status with the sentence set. */
#ifndef EK_CORE_BACKEND_H
#define EK_CORE_BACKEND_H

#include "evenkeel/device.h"
#include "evenkeel/tensor.h"

typedef struct ek_dev ek_dev;
struct ek_kernels; /* kernels/kernels.h: one entry per kernel */

/* Work of one queue of a device runs in the order of its issue, beside that of the others. All
 * that says nothing else, and all that is "in order with the device's work", is EK_QUEUE_COMPUTE's.
 *
 * Memory is cached for the queue that writes it first. It is given back once EK_QUEUE_COMPUTE comes
 * after all that was done with it in other queues, so that whoever takes it again orders his queue
 * after one mark of EK_QUEUE_COMPUTE, made when it was given back (device.h, core/allocator.c). */
typedef enum ek_queue {
    EK_QUEUE_COMPUTE, /* kernels */
    EK_QUEUE_UPLOAD,  /* what comes from the host */
} ek_queue;

/* How far a queue was when the mark was made: the backend's. */
typedef struct ek_mark ek_mark;

/* One block that travels between two devices. */
typedef struct ek_block_move {
    ek_dev *to, *from;
    void *target;
    const void *source;
    size_t nbytes;
} ek_block_move;

/* What a backend can do for several devices at once. */
typedef enum ek_collective {
    EK_COLLECTIVE_NONE,  /* nothing better than copies by pairs */
    EK_COLLECTIVE_MOVES, /* broadcast and exchange */
    EK_COLLECTIVE_SUMS   /* and sum, whose order of addition is the library's */
} ek_collective;

typedef struct ek_backend {
    const char *name;
    ek_device_kind kind;

    /* How many logical devices this backend offers; 0 if the hardware or the driver is missing.
     */
    int (*device_count)(void);
    /* Why there are none, for the end of a sentence; NULL if there are some. Optional: nothing
     * is said. */
    const char *(*why_none)(void);
    /* Replaces the list of devices while none is open; with `keep` false only says whether it would
     * do. Optional: the devices are what they are. */
    int (*configure)(const char *specification, bool keep);
    /* Fills dev->context, dev->threads, dev->speed and the capacity. Optional: nothing to fill. */
    int (*device_open)(ek_dev *dev);
    /* Gives workspaces and the like, which are made again with their next use, back to the
     * allocator: no work runs. Optional: there are none. */
    void (*device_idle)(ek_dev *dev);
    /* The device's blocks have been freed. Optional: nothing to close. */
    void (*device_close)(ek_dev *dev);
    /* Runs first on a thread that will issue work to the device (a worker at its start, and any
     * thread whenever it turns to another device). Optional: nothing. */
    int (*thread_enter)(ek_dev *dev);

    /* Memory from the system, aligned to 64 bytes; NULL pointer result with 0 if there is none
     * left. */
    int (*memory_alloc)(ek_dev *dev, size_t nbytes, void **pointer);
    void (*memory_free)(ek_dev *dev, void *pointer, size_t nbytes);

    /* Copy of bytes if either side, or both, is this backend's. Asynchronous where there are
     * streams: the caller (ek_dev_copy) has ordered it after earlier work of both devices and
     * orders later work after it. If one side is memory of the host the copy sees to that
     * itself: it returns when the host may change the source, or has all of the result. */
    int (*copy)(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);
    /* Fills with zero bytes, in order with other work. Optional: memset, or a copy of zeros. */
    int (*zero)(ek_dev *dev, void *data, size_t nbytes);
    /* Memory of the host that the device reads by itself (staging.h), and may be freed before it
     * has: also when the device is closed. Optional, both or none: plain memory. Any thread. */
    int (*locked_alloc)(ek_dev *dev, size_t nbytes, void **pointer);
    void (*locked_free)(void *pointer);
    /* Copies from memory of the host in EK_QUEUE_UPLOAD, ordered by the caller's marks alone.
     * Returns when the source may change or go: at once if it is the start of a block of
     * locked_alloc, which nobody writes to any more. Optional: `copy`. */
    int (*send)(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes);
    /* Kernels of `dev` can read and write the memory of `other`, a different device of this
     * backend, at full speed. Optional: if both are memory of the host. */
    bool (*reaches)(const ek_dev *dev, const ek_dev *other);

    /* Which collectives are to be used among these devices, at least two, or a negative status; a
     * list with devices of other backends comes to the first backend with this slot. Optional:
     * none. */
    int (*collective)(ek_dev *const *devs, int count);
    /* Collectives, each in order with other work of all devices that have a part. Optional, as
     * `collective` says. broadcast: data[0] on devs[0] to data[i] on devs[i]; exchange: any number
     * of moves; sum: data[i] on devs[i] into `out` on devs[0], which may be data[0]. */
    int (*broadcast)(ek_dev *const *devs, int count, void *const *data, size_t nbytes);
    int (*exchange)(const ek_block_move *moves, int count);
    int (*sum)(ek_dev *const *devs, int count, void *const *data, void *out, int64_t elements,
               ek_dtype dtype);

    /* Later work on `waiter` waits for earlier work on `awaited`, which is this backend's; `waiter`
     * can be of the host, and then the call waits. Optional: work is done on return. */
    int (*order)(ek_dev *waiter, ek_dev *awaited);
    /* *mark becomes what is issued to the queue by now: moved there, or made if it is NULL. What
     * is issued to a queue of the same device after `await` comes after the mark; NULL is behind
     * everything already. Neither waits, nor fails: if there is no mark to be had, or no order,
     * the host waits instead (and *mark may stay NULL); errors are those of later work. The owner
     * of a mark is one thread at a time. Optional, all or none: there is one queue. */
    void (*mark)(ek_dev *dev, ek_queue queue, ek_mark **mark);
    void (*await)(ek_dev *dev, ek_queue queue, ek_mark *mark);
    void (*mark_free)(ek_dev *dev, ek_mark *mark);
    /* Optional: work is done on return. */
    int (*synchronize)(ek_dev *dev);

    /* For devices that work after the call that issues it: a replica's forward begins and ends
     * here, and its time by the device's clock is to be added to dev->busy_ns once it has passed,
     * when clock_read asks, which doesn't wait. They don't fail. Optional, all or none: the time of
     * the threads that work for the device counts. */
    void (*clock_begin)(ek_dev *dev);
    void (*clock_end)(ek_dev *dev);
    void (*clock_read)(ek_dev *dev);

    bool host_memory; /* the CPU can read and write the memory */
    const struct ek_kernels *kernels;
} ek_backend;

/* All backends of this build, NULL at the end: src/backends.c. Unit tests of core bring their own.
 */
extern const ek_backend *const ek_backend_table[];

/* ---- a device, as the registry opens it ---- */

struct ek_dev {
    ek_device id;
    char name[16];
    const ek_backend *backend;
    void *context; /* the backend's */
    int threads;   /* that this device computes with (host) */
    double speed;  /* EK_LEAST_SPEED to 1: below 1 its worker sleeps in proportion */
    struct ek_allocator *allocator; /* allocator.c */
    struct ek_worker *worker;       /* started with first use */
    _Atomic uint64_t busy_ns; /* what ek_dev_busy_ns returns, but for what its clock still holds */
    _Atomic int64_t rest_ns;  /* that a slow one still has to sleep; below 0: has slept too much */
};

#endif
