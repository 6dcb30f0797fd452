/* backend.c: logical CUDA devices. */
#include "core/backend.h"
#include "core/fork.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda/between.h"
#include "cuda/cuda.h"
#include "cuda/current.h"
#include "cuda/devices.h"
#include "cuda/locked.h"
#include "cuda/nccl.h"
#include "cuda/order.h"
#include "cuda/runtime.h"
#include "cuda/transfer.h"
#include "cuda/wait.h"

/* ---- how many there are ---- */

static pthread_once_t counted = PTHREAD_ONCE_INIT;
static int gpus;
static char absence[128]; /* why there are none */

/* A machine without a GPU or a driver has no CUDA devices, which is no error. */
static void count_gpus(void)
{
    ek_fork_arm(); /* the driver that this starts doesn't work in children */
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(absence, sizeof absence, "%s (%s)", cudaGetErrorString(error),
                 cudaGetErrorName(error));
        ek_log_line(EK_LOG_INFO, "no CUDA devices: %s", absence);
        gpus = 0;
    }
    if (gpus > EK_CUDA_GPUS)
        gpus = EK_CUDA_GPUS;
}

static int gpu_count(void)
{
    pthread_once(&counted, count_gpus);
    return gpus;
}

static const char *why_none(void)
{
    return gpu_count() == 0 ? absence : NULL;
}

static int device_count(void)
{
    ek_cuda_spec spec;
    EK_TRY(ek_cuda_spec_now(gpu_count(), &spec));
    return spec.count;
}

static int configure(const char *specification, bool keep)
{
    ek_cuda_spec spec;
    EK_TRY(ek_cuda_spec_parse(specification, gpu_count(), &spec));
    if (keep)
        ek_cuda_spec_set(&spec);
    return 0;
}

/* ---- opening and closing ---- */

/* Guarded by the lock, which may be taken while an allocator's is held. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static ek_dev *open_devices[EK_MAX_DEVICES];

static void set_open(const ek_dev *dev, ek_dev *entry)
{
    pthread_mutex_lock(&open_lock);
    open_devices[dev->id.index] = entry;
    pthread_mutex_unlock(&open_lock);
}

static int read_attributes(ek_dev *dev, ek_cuda_device *device)
{
    int major, minor;
    EK_TRY(ek_cuda_check(dev, "asking for its multiprocessors",
                         (int)cudaDeviceGetAttribute(&device->multiprocessors,
                                                     cudaDevAttrMultiProcessorCount,
                                                     device->physical)));
    EK_TRY(ek_cuda_check(dev, "asking for its capability",
                         (int)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                                     device->physical)));
    EK_TRY(ek_cuda_check(dev, "asking for its capability",
                         (int)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                                                     device->physical)));
    device->capability = 10 * major + minor;
    return 0;
}

/* The default stream plays no part: these don't wait for it. */
static int make_streams(ek_dev *dev, ek_cuda_device *device)
{
    EK_TRY(ek_cuda_check(dev, "making a stream",
                         (int)cudaStreamCreateWithFlags(&device->compute, cudaStreamNonBlocking)));
    EK_TRY(ek_cuda_check(dev, "making a stream",
                         (int)cudaStreamCreateWithFlags(&device->copy, cudaStreamNonBlocking)));
    EK_TRY(ek_cuda_check(dev, "making a stream",
                         (int)cudaStreamCreateWithFlags(&device->upload, cudaStreamNonBlocking)));
    return ek_cuda_check(dev, "making an event",
                         (int)cudaEventCreateWithFlags(&device->issued, cudaEventDisableTiming));
}

static int make_fault_record(ek_dev *dev, ek_cuda_device *device)
{
    void *record, *on_device;
    EK_TRY(ek_cuda_check(dev, "allocating pinned memory",
                         (int)cudaHostAlloc(&record, sizeof *device->fault,
                                            cudaHostAllocMapped | cudaHostAllocPortable)));
    device->fault = record;
    *device->fault = (ek_cuda_fault){.kind = EK_CUDA_FAULT_NONE};
    EK_TRY(ek_cuda_check(dev, "mapping pinned memory",
                         (int)cudaHostGetDevicePointer(&on_device, record, 0)));
    device->fault_on_device = on_device;
    return 0;
}

/* What fails here cannot be helped, and was said where the device became unusable. The device is
 * current, as these calls would else make a context on whatever GPU is. */
static void release(ek_cuda_device *device)
{
    int physical = device->physical, restore;
    bool entered = ek_cuda_current_enter(physical, &restore) == 0;
    ek_cuda_transfer_close(device);
    ek_cuda_locked_close(device);
    ek_cuda_clock_close(&device->clock);
    if (device->fault)
        cudaFreeHost(device->fault);
    if (device->issued)
        cudaEventDestroy(device->issued);
    if (device->upload)
        cudaStreamDestroy(device->upload);
    if (device->copy)
        cudaStreamDestroy(device->copy);
    if (device->compute)
        cudaStreamDestroy(device->compute);
    if (entered)
        (void)ek_cuda_current_leave(physical, restore);
    (void)cudaGetLastError();
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static int device_open(ek_dev *dev)
{
    ek_cuda_spec spec;
    int restore;
    EK_TRY(ek_cuda_spec_now(gpu_count(), &spec));
    ek_cuda_device *device = ek_calloc(1, sizeof *device);
    if (!device)
        return EK_E_NO_MEMORY;
    device->dev = dev;
    device->physical = spec.devices[dev->id.index].physical;
    dev->context = device;
    uint64_t none;
    ek_ledger_set_capacity(dev, spec.devices[dev->id.index].capacity, &none);
    pthread_mutex_init(&device->lock, NULL);
    int rc = ek_cuda_usable(dev);
    if (rc >= 0)
        rc = ek_cuda_enter(dev, &restore);
    if (rc < 0) {
        release(device);
        return rc;
    }
    rc = read_attributes(dev, device);
    if (rc >= 0)
        rc = make_streams(dev, device);
    if (rc >= 0)
        rc = make_fault_record(dev, device);
    if (rc >= 0)
        rc = ek_cuda_transfer_open(device);
    ek_cuda_leave(dev, restore);
    if (rc < 0)
        release(device);
    else
        set_open(dev, dev);
    return rc;
}

static void device_idle(ek_dev *dev)
{
    ek_cuda_blas_close(ek_cuda_of(dev));
    ek_cuda_dnn_close(ek_cuda_of(dev));
    ek_cuda_nccl_close(ek_cuda_of(dev));
    free(atomic_exchange(&ek_cuda_of(dev)->told, NULL));
}

static void device_close(ek_dev *dev)
{
    set_open(dev, NULL);
    release(ek_cuda_of(dev));
}

/* A worker's thread stays on its device, so that begin and end have nothing to change there. */
static int thread_enter(ek_dev *dev)
{
    if (ek_thread_self()->worker_of != dev)
        return 0;
    EK_TRY(ek_cuda_usable(dev));
    EK_CUDA_TRY(dev, cudaSetDevice(ek_cuda_of(dev)->physical));
    return 0;
}

/* ---- memory ---- */

enum { TRIM_ATTEMPTS = 50, TRIM_ROUNDS = 4 };

/* What other logical devices on the GPU have cached is given back: *busy of them could not. */
static bool trim_once(const ek_dev *dev, int *busy)
{
    bool some = false;
    *busy = 0;
    pthread_mutex_lock(&open_lock);
    for (int i = 0; i < EK_MAX_DEVICES; i++) {
        ek_dev *other = open_devices[i];
        if (!other || other == dev || ek_cuda_of(other)->physical != ek_cuda_of(dev)->physical)
            continue;
        int trimmed = ek_dev_trim_if_free(other);
        some = some || trimmed > 0;
        *busy += trimmed < 0;
    }
    pthread_mutex_unlock(&open_lock);
    return some;
}

/* Logical devices on one GPU share its memory. Those that a thread is allocating from are asked
 * again, but not for ever: it may be at this place too. */
static bool trim_others(const ek_dev *dev)
{
    const struct timespec moment = {0, 1000000};
    bool some = false;
    int busy = 1;
    for (int i = 0; i < TRIM_ATTEMPTS && busy && !some; i++) {
        if (i > 0)
            nanosleep(&moment, NULL);
        some = trim_once(dev, &busy);
    }
    return some;
}

/* True if there is too little memory, which is no error yet. */
static bool try_alloc(ek_dev *dev, size_t nbytes, void **pointer, int *rc)
{
    cudaError_t error = cudaMalloc(pointer, nbytes);
    if (error != cudaSuccess)
        *pointer = NULL;
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return true;
    }
    *rc = ek_cuda_check(dev, "allocating memory", (int)error);
    return false;
}

/* The allocator drops its own cache first, and asks again. */
static int memory_alloc(ek_dev *dev, size_t nbytes, void **pointer)
{
    int restore, rc = 0;
    *pointer = NULL;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    bool full = try_alloc(dev, nbytes, pointer, &rc);
    for (int i = 0; i < TRIM_ROUNDS && full && !ek_dev_has_cached(dev) && trim_others(dev); i++)
        full = try_alloc(dev, nbytes, pointer, &rc);
    ek_cuda_leave(dev, restore);
    return rc;
}

/* Kernels that were issued earlier may still use the memory; what other streams did with it came
 * before them (order.h). */
static void memory_free(ek_dev *dev, void *pointer, size_t nbytes)
{
    int restore = ek_cuda_enter_anyway(dev);
    (void)nbytes;
    ek_cuda_note(dev, "waiting for its work",
                 ek_cuda_wait_stream(ek_cuda_of(dev), ek_cuda_of(dev)->compute));
    ek_cuda_waits_begin(); /* it waits for the GPU in the driver, which a collective's parts need */
    ek_cuda_note(dev, "freeing memory", (int)cudaFree(pointer));
    ek_cuda_waits_end();
    ek_cuda_leave(dev, restore);
}

static int zero(ek_dev *dev, void *data, size_t nbytes)
{
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    return ek_cuda_end(dev, &queue, "zeroing memory",
                       (int)cudaMemsetAsync(data, 0, nbytes, queue.stream));
}

const ek_backend ek_cuda_backend = {
    .name = "cuda",
    .kind = EK_CUDA,
    .device_count = device_count,
    .why_none = why_none,
    .configure = configure,
    .device_open = device_open,
    .device_idle = device_idle,
    .device_close = device_close,
    .thread_enter = thread_enter,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .copy = ek_cuda_copy_bytes,
    .zero = zero,
    .locked_alloc = ek_cuda_locked_alloc,
    .locked_free = ek_cuda_locked_free,
    .send = ek_cuda_send,
    .reaches = ek_cuda_reaches,
    .collective = ek_cuda_collective,
    .broadcast = ek_cuda_broadcast,
    .exchange = ek_cuda_exchange,
    .sum = ek_cuda_sum,
    .order = ek_cuda_order,
    .mark = ek_cuda_mark,
    .await = ek_cuda_await,
    .mark_free = ek_cuda_mark_free,
    .synchronize = ek_cuda_synchronize,
    .clock_begin = ek_cuda_clock_begin,
    .clock_end = ek_cuda_clock_end,
    .clock_read = ek_cuda_clock_read,
    .kernels = &ek_cuda_kernels,
};
