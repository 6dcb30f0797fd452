/* backend.h: a backend is a constant table of functions. Slots marked optional may be NULL; their
 * comments say what core does then. Functions return 0, or a negative status with an error set. */
#ifndef EK_CORE_BACKEND_H
#define EK_CORE_BACKEND_H

#include "evenkeel/device.h"
#include "evenkeel/tensor.h"

typedef struct ek_dev ek_dev;
struct ek_draw;
struct ek_drawn;
struct ek_kernels; /* one function pointer per kernel: kernels/kernels.h */

/* The streams of a device. Work of one stream runs in the order of its issue, concurrently with
 * work of other streams. Work belongs to the calling thread's stream (ek_thread_modes) unless a
 * comment says otherwise: this is EK_STREAM_EXCHANGE within a section (lane.h), else
 * EK_STREAM_COMPUTE. "In order with the device's work" means in order with the calling thread's
 * stream.
 *
 * Memory is cached for the stream that uses it first. Memory is released once EK_STREAM_COMPUTE
 * comes after all uses of the memory by other streams. So its next user needs to wait for one event
 * only, recorded in EK_STREAM_COMPUTE at the release (core/allocator.c). Memory of
 * EK_STREAM_EXCHANGE needs no event, because no other stream uses it. */
typedef enum ek_stream {
    EK_STREAM_COMPUTE,     /* kernels */
    EK_STREAM_UPLOAD,      /* copies from the host */
    EK_STREAM_COMMUNICATE, /* copies to the host for other processes, and jobs of rails (rail.h) */
    EK_STREAM_EXCHANGE,    /* exchanges and sums between devices of this process (lane.h) */
} ek_stream;
enum { EK_STREAMS = EK_STREAM_EXCHANGE + 1 };

/* An event marks how far a stream was when the event was recorded. Defined by the backend. */
typedef struct ek_event ek_event;

/* The copy of one block between two devices. */
typedef struct ek_block_move {
    ek_dev *to, *from;
    void *target;
    const void *source;
    size_t nbytes;
} ek_block_move;

/* The sum of data[i] on the i-th of several devices. It is written to `out` on the device number
 * `root`; `out` may be data[root]. */
typedef struct ek_block_sum {
    void *const *data;
    void *out;
    int root;
    int64_t elements;
    ek_dtype dtype;
} ek_block_sum;

/* A step of an exchange between devices: `work`, `sum`, a broadcast, or moves. */
typedef struct ek_exchange_step {
    /* Issues work to `dev`, which follows the device's earlier steps, and allocates no memory of a
     * device. Called once for each device. Any thread, and several at a time. */
    int (*work)(void *user, ek_dev *dev);
    void *user;
    const ek_block_sum *sum;
    void *const *data; /* a broadcast: data[0] on the first device goes to data[i] on device i */
    size_t nbytes;     /* The broadcast's bytes. */
    const ek_block_move *moves;
    int count; /* The number of moves. */
} ek_exchange_step;

/* What a backend can do for several devices at once. */
typedef enum ek_collective {
    EK_COLLECTIVE_NONE,  /* only copies from device to device */
    EK_COLLECTIVE_MOVES, /* broadcast and exchange */
    EK_COLLECTIVE_SUMS   /* also sum, with the order of addition that the library defines */
} ek_collective;

typedef struct ek_backend {
    const char *name;
    ek_device_kind kind;

    /* Returns how many logical devices there are; 0 if the hardware or the driver is missing. */
    int (*device_count)(void);
    /* Returns the reason why there are no devices, for the end of a sentence; NULL if there are
     * some. Optional: no reason is given. */
    const char *(*why_none)(void);
    /* Replaces the list of devices, while none is open. With `keep` false, only checks the
     * specification. Optional: the list cannot be changed. */
    int (*configure)(const char *specification, bool keep);
    /* Fills dev->context, dev->threads, dev->speed and the capacity. Optional: nothing to fill. */
    int (*device_open)(ek_dev *dev);
    /* Gives workspaces back to the allocator; they are made again when next needed. Called while no
     * work runs. Optional: there are no workspaces. */
    void (*device_idle)(ek_dev *dev);
    /* Releases the context. Called before the allocator is closed, when no memory is in use or
     * cached. Optional: nothing to close. */
    void (*device_close)(ek_dev *dev);
    /* Prepares a thread that will issue work to the device: a worker before each job, and any
     * thread that turns to another device. Optional: nothing to prepare. */
    int (*thread_enter)(ek_dev *dev);

    /* Gets memory from the system, aligned to 64 bytes. If no memory is left, returns 0 and
     * *pointer is NULL. */
    int (*memory_alloc)(ek_dev *dev, size_t nbytes, void **pointer);
    void (*memory_free)(ek_dev *dev, void *pointer, size_t nbytes);
    /* Measures what the device uses beside the ledger's memory, and stores it
     * (ek_ledger_count_system). Optional: nothing is measured. */
    void (*memory_measure)(ek_dev *dev);

    /* Copies bytes if at least one side is this backend's. May be asynchronous: the caller
     * (ek_dev_copy) orders the copy after earlier work of both devices and before their later work.
     * If one side is memory of the host, the copy returns when the host may change the source or
     * has all of the result. */
    int (*copy)(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes);
    /* Fills memory with zeros, in order with the device's work. Optional: memset or a copy of
     * zeros. */
    int (*zero)(ek_dev *dev, void *data, size_t nbytes);
    /* Writes random numbers as ek_draw_run (draw.h) does, in order with the device's work. `out` is
     * not empty. Optional: the numbers are made on the calling thread and copied. */
    int (*draw)(ek_dev *dev, const struct ek_drawn *tensors, const struct ek_draw *draw);
    /* Allocate and free pinned memory of the host, which the device reads and writes by itself
     * (staging.h). The memory may be freed before the device is done with it, and after the device
     * is closed. Optional, both or none: plain memory is used. Any thread. */
    int (*pinned_alloc)(ek_dev *dev, size_t nbytes, void **pointer);
    void (*pinned_free)(void *pointer);
    /* Copies from memory of the host in EK_STREAM_UPLOAD, ordered by the caller's events alone.
     * Returns when the caller may write to the source or free it. If the source lies in a block of
     * pinned_alloc, returns at once, and nobody may write to the source any more. Optional: `copy`
     * is used. */
    int (*upload)(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes);
    /* Copies to memory of the host in EK_STREAM_COMMUNICATE, ordered by the caller's events alone.
     * Returns at once if the memory lies in a block of the device's pinned_alloc. Optional: `copy`
     * is used. */
    int (*download)(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes);
    /* Returns true if kernels of `dev` can read and write the memory of `other`, a different device
     * of this backend, at full speed. Optional: true if both are memory of the host. */
    bool (*reaches)(const ek_dev *dev, const ek_dev *other);

    /* Returns which collectives (ek_collective) to use among these devices, two or more, or a
     * negative status. If the devices have several backends, the first one with this slot is asked.
     * Optional: none. */
    int (*collective)(ek_dev *const *devs, int count);
    /* Does steps, one after another on each device, within one section (lane.h) of the devices.
     * Sums are asked for only if `collective` offers EK_COLLECTIVE_SUMS. Optional if `collective`
     * never offers collectives. */
    int (*exchange)(ek_dev *const *devs, int count, const ek_exchange_step *steps, int step_count);

    /* Makes later work of `waiter` wait for earlier work of `awaited`, a device of this backend. If
     * `waiter` is a device of the host, the call itself waits. Optional: calls return when their
     * work is done. */
    int (*device_wait)(ek_dev *waiter, ek_dev *awaited);
    /* `event_record` records in *event all work issued to the stream so far; if *event is NULL, it
     * makes an event first. `event_wait` makes work issued to the stream from now on wait for the
     * event; a NULL event has nothing to wait for. Neither function blocks or fails: if no event
     * can be had, the host waits for the work instead, *event may stay NULL, and errors show up in
     * later work. An event is used by one thread at a time. `event_done` doesn't wait. It returns 1
     * if all work that was recorded in the event is done, 0 if not, and a negative status if the
     * device can't be used any more or has found a fault in its input. Optional, all four or none:
     * there is one stream. */
    void (*event_record)(ek_dev *dev, ek_stream stream, ek_event **event);
    void (*event_wait)(ek_dev *dev, ek_stream stream, ek_event *event);
    int (*event_done)(ek_dev *dev, ek_event *event);
    void (*event_free)(ek_dev *dev, ek_event *event);
    /* Waits for all work of the device. Optional: calls return when their work is done. */
    int (*synchronize)(ek_dev *dev);

    /* `hardware_number` returns the number of the GPU of logical device `index` in the CUDA
     * runtime, or -1. `order_stream` orders the work in EK_STREAM_COMPUTE and in `stream`, a
     * cudaStream_t of the device's GPU that belongs to another library (dlpack.h): if
     * `stream_waits`, later work of `stream` waits for earlier work of the device, else the
     * device's later work waits for the earlier work of `stream`. For EK_NO_STREAM the host waits
     * for all work of the GPU. Optional, both or none: memory is the host's. */
    int (*hardware_number)(int index);
    int (*order_stream)(ek_dev *dev, void *stream, bool stream_waits);

    /* Time a replica's forward, for devices that run work after the call that issues it.
     * clock_begin is called before the forward and clock_end after it. clock_read adds the time
     * that finished forwards took by the device's clock to dev->busy_ns, and does not wait. None of
     * the three fails. Optional, all or none: the wall time of the threads that work for the device
     * is counted instead. */
    void (*clock_begin)(ek_dev *dev);
    void (*clock_end)(ek_dev *dev);
    void (*clock_read)(ek_dev *dev);

    /* Rails between the devices of several processes (rail.h). Optional: the devices communicate
     * through memory of the host. */
    const struct ek_rail_backend *rails;

    bool host_memory; /* the CPU can read and write the memory */
    const struct ek_kernels *kernels;
} ek_backend;

/* All backends of this build, NULL at the end; defined in src/backends.c. Unit tests have their
 * own. */
extern const ek_backend *const ek_backend_table[];

/* ---- an open device ---- */

struct ek_dev {
    ek_device id;
    char name[16];
    const ek_backend *backend;
    void *context; /* owned by the backend */
    int threads;   /* how many threads the device computes with (host devices) */
    double speed;  /* EK_LEAST_SPEED to 1; below 1: the worker sleeps in proportion */
    struct ek_allocator *allocator; /* allocator.c */
    struct ek_lane *lane;           /* lane.h; NULL if the device has one stream */
    struct ek_worker *worker;       /* NULL until its first use */
    _Atomic uint64_t busy_ns; /* time worked (worker.h), without what clock_read has yet to add */
    _Atomic int64_t rest_ns;  /* how long a slow device has yet to sleep; below 0: slept too long */
};

#endif
