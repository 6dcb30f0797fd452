/** @file
 * device.h: devices, their memory ledger and their capacity.
 *
 * `cpu` is plain memory, where files are read and batches are made; it computes with the host's
 * kernels and has no capacity. `host:0..N-1` are logical accelerators on the CPU: each has its own
 * ledger, capacity, worker thread and share of the cores. `cuda:0..N-1` are GPUs: a call issues
 * work to them and returns; reading a value waits for the work.
 *
 * EVENKEEL_HOST_DEVICES says which host devices there are: a count ("4"), or a comma-separated list
 * of `[count x] capacity [@speed]`: "4x512M", "2x512M,2x256M@0.5". A capacity is in bytes, with K,
 * M, G as powers of 1024; 0 means none. A device of speed s, from 0.001 to 1, sleeps so that
 * replicas' forwards, and any backward, take 1/s times as long on it; other work is not slowed.
 * Unset means one host device per two cores, at least 1. The variable is read on first use;
 * ek_host_devices_configure overrides it.
 *
 * Cores are those that the process may run on (its affinity mask), divided by the number of ranks
 * on the machine (evenkeel/dist.h) if it has joined a process group before it used a device.
 * EVENKEEL_THREADS=N says that they are N, a number from 1 to 65536: how many threads the process
 * computes with in all, on all its host devices together, at least one each. It wins over
 * OMP_NUM_THREADS, which wins over the affinity mask. Both are read when devices are counted and
 * opened; neither is divided by ranks. Threads that wait for work sleep, so that other programs
 * have the cores.
 *
 * Forks. Fork before the first tensor or loader is made, and before the first call that asks for
 * CUDA devices. A child that is forked later has none of the threads that compute: every call there
 * that needs a device is EK_E_STATE. It can still read tensors on cpu and host devices and release
 * all objects, and ek_shutdown returns 0 without doing anything. A child that is forked inside a
 * function that the library called (a module's forward, a data set's get, a transform) may only
 * exec or _exit. system, popen and posix_spawn are always fine. */
#ifndef EVENKEEL_DEVICE_H
#define EVENKEEL_DEVICE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/base.h"

EK_BEGIN_DECLARATIONS

typedef enum ek_device_kind { EK_CPU = 0, EK_HOST = 1, EK_CUDA = 2 } ek_device_kind;

/** A device by value. All zero is the plain memory device `cpu`. */
typedef struct ek_device {
    ek_device_kind kind;
    int index;
} ek_device;

enum { EK_MAX_DEVICES = 64 };

/** A list of devices by value. As an option, an empty list means all accelerators of the default
 * kind. Functions that make a list return one of count -1 on error, which no function takes for
 * empty. */
typedef struct ek_device_list {
    int count;
    ek_device devices[EK_MAX_DEVICES];
} ek_device_list;

/** Plain memory. */
static inline ek_device ek_cpu(void)
{
    ek_device device = {EK_CPU, 0};
    return device;
}

/** A logical device of the CPU: `host:0` for index 0. */
static inline ek_device ek_host(int index)
{
    ek_device device = {EK_HOST, index};
    return device;
}

/** A GPU: `cuda:0` for index 0. */
static inline ek_device ek_cuda(int index)
{
    ek_device device = {EK_CUDA, index};
    return device;
}

/** True for the same kind and index. */
static inline bool ek_device_equal(ek_device a, ek_device b)
{
    return a.kind == b.kind && a.index == b.index;
}

/** How many devices of the kind there are (1 for EK_CPU), or a negative status. 0 is no error. */
EK_API int ek_device_count(ek_device_kind kind);

/** The kind that is used if none is named: EK_CUDA if there is a CUDA device, else EK_HOST. */
EK_API ek_device_kind ek_default_device_kind(void);

/** The first `count` devices of a kind, or all if count is 0. If there are fewer than `count`, or
 * none, it fails with EK_E_DEVICE and returns a list of count -1. */
EK_API ek_device_list ek_devices(ek_device_kind kind, int count);

/** A list from devices: EK_DEVICES(ek_host(2), ek_host(0)). */
EK_API ek_device_list ek_device_list_of(const ek_device *devices, int count);
#define EK_DEVICES(...) \
    ek_device_list_of(EK_ITEMS(ek_device, __VA_ARGS__), EK_COUNT(ek_device, __VA_ARGS__))

/** Writes "cpu", "host:2" or "cuda:1" to `text` (at least 16 bytes); returns it. */
EK_API char *ek_device_name(ek_device device, char text[16]);

/** Parses what ek_device_name writes. Returns 0 or EK_E_DEVICE. */
EK_API int ek_device_parse(const char *text, ek_device *device);

/** Replaces the host devices by those of `specification` (grammar above). Returns 0; EK_E_INVALID
 * with the position of the fault; or EK_E_STATE if a host device holds tensors. On an error nothing
 * has changed. */
EK_API int ek_host_devices_configure(const char *specification);

/** Replaces the CUDA devices, which are logical. The specification is that of the environment's
 * EVENKEEL_CUDA_DEVICES: a list of `[count x] number [: capacity]` with the CUDA runtime's numbers.
 * "0,1" is two GPUs; "0,0,0,0" is four devices on one GPU, each with its own streams and ledger;
 * "4x0:8G" gives them capacities. If the variable is unset, there is one device per GPU, without a
 * capacity. Returns 0; EK_E_INVALID with the position of the fault; EK_E_DEVICE for a number that
 * the machine or the build lacks; or EK_E_STATE if a CUDA device is in use. On an error nothing has
 * changed. */
EK_API int ek_cuda_devices_configure(const char *specification);

/** Waits until all work issued to the device is done, and returns its error, if any, or 0. */
EK_API int ek_synchronize(ek_device device);

/** How many threads a host device computes with; by default its share of the cores, at least 1
 * (EVENKEEL_THREADS, above). If the system refuses that many threads, the device computes with
 * fewer, and a log line says so. EK_E_INVALID for count < 1, EK_E_DEVICE for CUDA. Must not be set
 * while the device computes. */
EK_API int ek_device_set_threads(ek_device device, int count);
EK_API int ek_device_threads(ek_device device);

/* ---- memory ---- */

/** What memory is for. "gathered": sharded parameters that lie whole on a device only while the
 * device uses them (EK_SHARD_PARAMETERS); their shards are "parameter". */
#define EK_MEMORY_MAP(X)              \
    X(PARAMETER, "parameter")         \
    X(GATHERED, "gathered")           \
    X(GRADIENT, "gradient")           \
    X(OPTIMIZER, "optimizer")         \
    X(ACTIVATION, "activation")       \
    X(COMMUNICATION, "communication") \
    X(WORKSPACE, "workspace")

typedef enum ek_memory_category {
#define EK_MEMORY_ENUM(name, text) EK_MEMORY_##name,
    EK_MEMORY_MAP(EK_MEMORY_ENUM)
#undef EK_MEMORY_ENUM
        EK_MEMORY_CATEGORIES
} ek_memory_category;

/** The name of a category, as reports show it: a static string. */
EK_API const char *ek_memory_category_name(ek_memory_category category);

/** Bytes on one device. `in_use` is the memory of tensors and workspaces. `reserved` is all memory
 * that the device has from the system, in segments that requests share, with cached blocks and gaps
 * between blocks in use. `now` is in_use by category, and `at_peak` is in_use by category at the
 * moment when in_use was largest. */
typedef struct ek_memory_stats {
    uint64_t in_use;
    uint64_t peak;
    uint64_t reserved;
    uint64_t reserved_peak;
    uint64_t capacity; /**< 0: none */
    uint64_t now[EK_MEMORY_CATEGORIES];
    uint64_t at_peak[EK_MEMORY_CATEGORIES];
    uint64_t allocations;  /**< requests that were served */
    uint64_t failures;     /**< requests that found no memory */
    uint64_t largest_free; /**< the largest free block of a segment */
    uint64_t system;       /**< beside `reserved`: a GPU's context, modules, communicators, other
                            * processes */
    uint64_t system_allocations; /**< segments that the system has given */
    uint64_t dropped;            /**< segments given back so that a request found room */
} ek_memory_stats;

/** Reads the ledger of a device. Returns 0 or EK_E_DEVICE. Any thread. */
EK_API int ek_memory_get_stats(ek_device device, ek_memory_stats *stats);

/** Memory of one category that one module holds: its parameters, or what its calls and their
 * backward have allocated. */
typedef struct ek_memory_holder {
    /** The module's (ek_module_path); "": memory of no module, or of several together, as replicas'
     * parameters and gradients. Valid until the process ends. */
    const char *path;
    ek_memory_category category;
    uint64_t nbytes;
} ek_memory_holder;

enum { EK_MEMORY_HOLDERS = 16 }; /**< how many holders reports keep of one moment */

/** Copies at most `room` holders of the memory in use, the largest first. Returns how many were
 * copied, or a negative status. Pinned memory and memory that ranks share have no holders, so that
 * the sum over all holders may be below in_use. Any thread. */
EK_API int ek_memory_get_holders(ek_device device, ek_memory_holder *holders, int room);

/** Sets the peaks to what is in use now. */
EK_API int ek_memory_reset_peak(ek_device device);

/** Limits the bytes in use on a device, to the byte (0: no limit). Reserved bytes stay below the
 * limit too, not counting gaps between blocks in use (a GPU's blocks have multiples of 512 bytes,
 * `in_use` counts multiples of 64). With the gaps, reserved bytes may exceed the limit by a
 * quarter, or by 20 MiB if that is more: a request that needs more fails with EK_E_OUT_OF_MEMORY,
 * whose sentence tells of the gaps. Returns 0, or EK_E_STATE if more than nbytes is in use. */
EK_API int ek_memory_set_capacity(ek_device device, uint64_t nbytes);

/** Gives cached memory back to the system, and memory that the calling thread keeps for handles. */
EK_API int ek_memory_trim(ek_device device);

/** Sets the category that the calling thread's allocations count under, and returns the one before.
 * The default is EK_MEMORY_ACTIVATION; the library sets the others itself. */
EK_API ek_memory_category ek_memory_set_category(ek_memory_category category);

/** Parses "512M", "1.5G", "4096" into bytes. Returns 0 or EK_E_INVALID. */
EK_API int ek_parse_bytes(const char *text, uint64_t *nbytes);

EK_END_DECLARATIONS
#endif
