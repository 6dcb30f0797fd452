/* backend.c: logical CUDA devices, and the tables of their functions and kernels. */
#include "core/backend.h"
#include "core/fork.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/devices.h"
#include "cuda/launches.h"
#include "cuda/memory.h"
#include "cuda/nccl.h"
#include "cuda/nccl_ranks.h"
#include "cuda/stream.h"
#include "cuda/transfer.h"

/* ---- how many there are ---- */

static pthread_once_t counted = PTHREAD_ONCE_INIT;
static int gpus;
static char absence[128]; /* why the machine has no CUDA device */

/* A machine without a GPU or a driver has no CUDA devices, which is no error. */
static void count_gpus(void)
{
    ek_fork_arm(); /* the driver that starts now doesn't work in children */
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

static const char *backend_why_none(void)
{
    return gpu_count() == 0 ? absence : NULL;
}

static int device_count(void)
{
    ek_cuda_spec spec;
    EK_TRY(ek_cuda_spec_now(gpu_count(), &spec));
    return spec.count;
}

static int hardware_number(int index)
{
    ek_cuda_spec spec;
    if (ek_cuda_spec_now(gpu_count(), &spec) < 0 || index < 0 || index >= spec.count)
        return -1;
    return spec.devices[index].physical;
}

static int backend_configure(const char *specification, bool keep)
{
    ek_cuda_spec spec;
    EK_TRY(ek_cuda_spec_parse(specification, gpu_count(), &spec));
    if (keep)
        ek_cuda_spec_set(&spec);
    return 0;
}

/* ---- opening and closing ---- */

static int device_read_attributes(ek_dev *dev, ek_cuda_device *device)
{
    int major = 0, minor = 0;
    const struct {
        enum cudaDeviceAttr attribute;
        const char *call;
        int *value;
    } wanted[] = {{cudaDevAttrMultiProcessorCount, "asking for its multiprocessors",
                   &device->multiprocessors},
                  {cudaDevAttrComputeCapabilityMajor, "asking for its capability", &major},
                  {cudaDevAttrComputeCapabilityMinor, "asking for its capability", &minor}};
    for (int i = 0; i < 3; i++)
        EK_TRY(ek_cuda_check(dev, wanted[i].call,
                             (int)cudaDeviceGetAttribute(wanted[i].value, wanted[i].attribute,
                                                         device->physical)));
    device->capability = 10 * major + minor;
    return 0;
}

/* Refuses a GPU for which no kernel was compiled, because each launch would fail. */
static int device_check_kernels(ek_dev *dev, const ek_cuda_device *device)
{
    const int error = ek_cuda_have_kernels();
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction &&
        error != cudaErrorUnsupportedPtxVersion)
        return ek_cuda_check(dev, "looking for kernels", error);
    (void)cudaGetLastError();
    return EK_FAIL(
        EK_E_DEVICE,
        "%s: this library was built without kernels for GPU %d, whose compute capability "
        "is %d.%d: by default for 8.0 and later, else for CMAKE_CUDA_ARCHITECTURES",
        dev->name, device->physical, device->capability / 10, device->capability % 10);
}

/* Makes streams that don't wait for the default stream. */
static int device_make_streams(ek_dev *dev, ek_cuda_device *device)
{
    for (int i = 0; i < EK_CUDA_STREAMS; i++)
        EK_TRY(ek_cuda_check(dev, "making a stream",
                             (int)cudaStreamCreateWithFlags(&device->streams[i],
                                                            cudaStreamNonBlocking)));
    EK_TRY(ek_cuda_make_event(dev, &device->exchanged));
    return ek_cuda_make_event(dev, &device->issued);
}

static int device_make_fault_record(ek_dev *dev, ek_cuda_device *device)
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

/* Frees everything that the device owns. Errors are ignored, because they were reported when the
 * device became unusable. The GPU must be current; otherwise these calls would make a context on
 * another GPU. */
static void device_release(ek_cuda_device *device)
{
    int physical = device->physical, restore;
    bool entered = ek_cuda_guard_enter(physical, &restore) == 0;
    ek_cuda_transfer_close(device);
    ek_cuda_pinned_close(device);
    ek_cuda_clock_close(&device->clock);
    if (device->fault)
        cudaFreeHost(device->fault);
    if (device->issued)
        cudaEventDestroy(device->issued);
    if (device->exchanged)
        cudaEventDestroy(device->exchanged);
    for (int i = EK_CUDA_STREAMS - 1; i >= 0; i--)
        if (device->streams[i])
            cudaStreamDestroy(device->streams[i]);
    if (entered)
        (void)ek_cuda_guard_leave(physical, restore);
    (void)cudaGetLastError();
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static int device_open(ek_dev *dev)
{
    ek_cuda_spec spec;
    int restore;
    EK_TRY(ek_cuda_read_settings());
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
        device_release(device);
        return rc;
    }
    rc = device_read_attributes(dev, device);
    if (rc >= 0)
        rc = device_check_kernels(dev, device);
    if (rc >= 0)
        rc = device_make_streams(dev, device);
    if (rc >= 0)
        rc = device_make_fault_record(dev, device);
    if (rc >= 0)
        rc = ek_cuda_transfer_open(device);
    if (rc >= 0)
        ek_cuda_memory_measure(dev);
    ek_cuda_leave(dev, restore);
    if (rc < 0)
        device_release(device);
    else
        ek_cuda_memory_open(dev);
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
    ek_cuda_memory_close(dev);
    device_release(ek_cuda_of(dev));
}

/* Makes the GPU current for a worker's thread until the thread ends, so that ek_cuda_begin and
 * ek_cuda_end change nothing. */
static int thread_enter(ek_dev *dev)
{
    if (ek_thread_self()->own_device != dev)
        return 0;
    EK_TRY(ek_cuda_usable(dev));
    EK_CUDA_TRY(dev, cudaSetDevice(ek_cuda_of(dev)->physical));
    return 0;
}

static int memory_zero(ek_dev *dev, void *data, size_t nbytes)
{
    EK_CUDA_RUN(dev, "zeroing memory", (int)cudaMemsetAsync(data, 0, nbytes, stream.handle));
}

/* ---- the tables ---- */

#define EK_CUDA_FILLED(slot) .slot = ek_cuda_##slot,
const ek_kernels ek_cuda_kernels = {EK_KERNELS(EK_CUDA_FILLED)};

const ek_backend ek_cuda_backend = {
    .name = "cuda",
    .kind = EK_CUDA,
    .device_count = device_count,
    .why_none = backend_why_none,
    .configure = backend_configure,
    .device_open = device_open,
    .device_idle = device_idle,
    .device_close = device_close,
    .thread_enter = thread_enter,
    .memory_alloc = ek_cuda_memory_alloc,
    .memory_free = ek_cuda_memory_free,
    .memory_measure = ek_cuda_memory_measure,
    .copy = ek_cuda_copy_bytes,
    .zero = memory_zero,
    .draw = ek_cuda_draw,
    .pinned_alloc = ek_cuda_pinned_alloc,
    .pinned_free = ek_cuda_pinned_free,
    .upload = ek_cuda_upload,
    .download = ek_cuda_download,
    .reaches = ek_cuda_reaches,
    .collective = ek_cuda_collective,
#ifdef EK_HAVE_NCCL
    .exchange = ek_cuda_exchange,
#endif
    .device_wait = ek_cuda_device_wait,
    .event_record = ek_cuda_event_record,
    .event_wait = ek_cuda_event_wait,
    .event_done = ek_cuda_event_done,
    .event_free = ek_cuda_event_free,
    .synchronize = ek_cuda_synchronize,
    .hardware_number = hardware_number,
    .order_stream = ek_cuda_order_stream,
    .clock_begin = ek_cuda_clock_begin,
    .clock_end = ek_cuda_clock_end,
    .clock_read = ek_cuda_clock_read,
    .rails = &ek_cuda_rails,
    .kernels = &ek_cuda_kernels,
};
