/* stream.c: see stream.h. The driver's functions are found through the runtime, so that a program
 * starts without a driver. */
#include "cuda/stream.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <cuda.h>

#include "core/clock.h"
#include "cuda/devices.h"
#include "evenkeel/dlpack.h"

/* ---- the device guard ---- */

static struct {
    __typeof__(cuDevicePrimaryCtxRetain) *retain;
    __typeof__(cuCtxPushCurrent) *push;
    __typeof__(cuCtxPopCurrent) *pop;
} driver;
static int driver_missing; /* a cudaError_t if the driver lacks one of these functions */
static pthread_once_t driver_found = PTHREAD_ONCE_INIT;

/* The version of the driver's functions that is requested. The toolkit's version could be newer
 * than the driver's, which would refuse it. All three functions are older than this version. */
enum { DRIVER_VERSION = 12000 };
enum { NONE = -1 }; /* the number of no GPU */

static void driver_find_one(const char *name, void *member)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, DRIVER_VERSION,
                                                         cudaEnableDefault, &status);
    if (error == cudaSuccess && (status != cudaDriverEntryPointSuccess || !function))
        error = cudaErrorSymbolNotFound;
    if (error != cudaSuccess)
        driver_missing = (int)error;
    memcpy(member, &function, sizeof function);
}

static void driver_find(void)
{
    driver_find_one("cuDevicePrimaryCtxRetain", &driver.retain);
    driver_find_one("cuCtxPushCurrent", &driver.push);
    driver_find_one("cuCtxPopCurrent", &driver.pop);
}

/* Returns the GPU's primary context, which the CUDA runtime uses, too. It is retained at first use
 * and never released, as the runtime does. */
static int driver_context_of(int physical, CUcontext *context)
{
    static _Atomic(CUcontext) contexts[EK_CUDA_GPUS];
    *context = atomic_load_explicit(&contexts[physical], memory_order_acquire);
    if (*context)
        return 0;
    int error = (int)driver.retain(context, physical);
    if (error == 0)
        atomic_store_explicit(&contexts[physical], *context, memory_order_release);
    return error;
}

int ek_cuda_guard_enter(int physical, int *restore)
{
    CUcontext context;
    /* This fails if the GPU that is current now is lost, which is no error of GPU `physical`. */
    if (cudaGetDevice(restore) != cudaSuccess) {
        (void)cudaGetLastError();
        *restore = NONE;
    }
    if (*restore == physical)
        return 0;
    pthread_once(&driver_found, driver_find);
    int error = driver_missing ? driver_missing : driver_context_of(physical, &context);
    return error ? error : (int)driver.push(context);
}

int ek_cuda_guard_leave(int physical, int restore)
{
    CUcontext context;
    return restore == physical ? 0 : (int)driver.pop(&context);
}

int ek_cuda_enter(ek_dev *dev, int *restore)
{
    return ek_cuda_check(dev, "making it current",
                         ek_cuda_guard_enter(ek_cuda_of(dev)->physical, restore));
}

int ek_cuda_enter_anyway(const ek_dev *dev)
{
    int physical = ek_cuda_of(dev)->physical, restore;
    bool entered = ek_cuda_note(dev, "making it current", ek_cuda_guard_enter(physical, &restore));
    return entered ? restore : physical;
}

void ek_cuda_leave(const ek_dev *dev, int restore)
{
    /* An error here concerns the GPU that was current before, so dev isn't marked as lost. */
    ek_cuda_note(NULL, "leaving it", ek_cuda_guard_leave(ek_cuda_of(dev)->physical, restore));
}

/* ---- events ---- */

int ek_cuda_make_event(ek_dev *dev, cudaEvent_t *event)
{
    return *event ? 0
                  : ek_cuda_check(dev, "making an event",
                                  (int)cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}

int ek_cuda_record(ek_dev *dev, cudaEvent_t event, cudaStream_t stream)
{
    return ek_cuda_check(dev, "recording an event", (int)cudaEventRecord(event, stream));
}

int ek_cuda_stream_wait(ek_dev *dev, cudaStream_t stream, cudaEvent_t event)
{
    return ek_cuda_check(dev, "waiting for an event", (int)cudaStreamWaitEvent(stream, event, 0));
}

int ek_cuda_wait_for(ek_dev *dev, cudaStream_t stream, cudaEvent_t event, cudaStream_t awaited)
{
    EK_TRY(ek_cuda_record(dev, event, awaited));
    return ek_cuda_stream_wait(dev, stream, event);
}

/* ---- the host waits ---- */

static void (*_Atomic wait_look)(void);

void ek_cuda_wait_watched(void (*look)(void))
{
    atomic_store_explicit(&wait_look, look, memory_order_release);
}

/* In nanoseconds. A wait polls without a pause for EAGER, as the driver's wait does, and then with
 * a pause of NAP. Every LOOK it checks the collectives. */
enum { EAGER = 2000000, NAP = 50000, LOOK = 5000000 };

/* Returns the state of the event, or of the stream if there is no event. */
static cudaError_t wait_query(cudaStream_t stream, cudaEvent_t event)
{
    return event ? cudaEventQuery(event) : cudaStreamQuery(stream);
}

static int wait_poll(cudaStream_t stream, cudaEvent_t event)
{
    const struct timespec nap = {0, NAP};
    cudaError_t error = wait_query(stream, event);
    if (error != cudaErrorNotReady)
        return (int)error;
    uint64_t begin = ek_clock_ns(), next = begin + LOOK;
    while ((error = wait_query(stream, event)) == cudaErrorNotReady) {
        uint64_t now = ek_clock_ns();
        if (now >= next) {
            void (*look)(void) = atomic_load(&wait_look);
            if (look)
                look();
            next = ek_clock_ns() + LOOK;
        }
        if (now - begin < EAGER)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    (void)cudaGetLastError(); /* clears "not ready", which is no error */
    return (int)error;
}

/* Waits for the work that is issued so far, because a stream to which other threads keep issuing
 * may never be empty. The stream's GPU is current. */
static int wait_poll_stream(cudaStream_t stream)
{
    cudaEvent_t now = NULL;
    bool marked = cudaEventCreateWithFlags(&now, cudaEventDisableTiming) == cudaSuccess &&
                  cudaEventRecord(now, stream) == cudaSuccess;
    int error = wait_poll(stream, marked ? now : NULL);
    if (now)
        cudaEventDestroy(now);
    return error;
}

int ek_cuda_wait_stream(const ek_cuda_device *device, cudaStream_t stream)
{
    int restore;
    if (!atomic_load_explicit(&wait_look, memory_order_acquire))
        return (int)cudaStreamSynchronize(stream);
    int error = ek_cuda_guard_enter(device->physical, &restore);
    if (error)
        return error;
    error = wait_poll_stream(stream);
    int left = ek_cuda_guard_leave(device->physical, restore);
    return error ? error : left;
}

int ek_cuda_wait_event(cudaEvent_t event)
{
    return atomic_load_explicit(&wait_look, memory_order_acquire)
               ? wait_poll(NULL, event)
               : (int)cudaEventSynchronize(event);
}

int ek_cuda_settle(const ek_cuda_device *device, int rc)
{
    for (int i = 0; i < EK_CUDA_STREAMS; i++)
        ek_cuda_note(device->dev, i == 0 ? "waiting for its work" : "waiting for its copies",
                     ek_cuda_wait_stream(device, device->streams[i]));
    return rc;
}

/* ---- collectives and cudaFree: see Note [Waits never form a circle] ---- */

static pthread_rwlock_t launch_lock = PTHREAD_RWLOCK_INITIALIZER;

void ek_cuda_launch_begin(void)
{
    pthread_rwlock_rdlock(&launch_lock);
}

void ek_cuda_launch_end(void)
{
    pthread_rwlock_unlock(&launch_lock);
}

int ek_cuda_free(void *pointer)
{
    pthread_rwlock_wrlock(&launch_lock);
    int error = (int)cudaFree(pointer);
    pthread_rwlock_unlock(&launch_lock);
    return error;
}

/* ---- between devices ---- */

static int order_host(ek_dev *awaited)
{
    const ek_cuda_device *device = ek_cuda_of(awaited);
    EK_TRY(ek_cuda_check(awaited, "waiting for its work",
                         ek_cuda_wait_stream(device, ek_cuda_stream_now(device))));
    return ek_cuda_fault_check(awaited);
}

int ek_cuda_device_wait(ek_dev *waiter, ek_dev *awaited)
{
    const ek_cuda_device *device = ek_cuda_of(awaited);
    int restore, rc;
    EK_TRY(ek_cuda_usable(awaited));
    if (!ek_dev_is_host(waiter))
        EK_TRY(ek_cuda_usable(waiter));
    EK_TRY(ek_cuda_enter(awaited, &restore));
    if (ek_dev_is_host(waiter))
        rc = order_host(awaited);
    else
        rc = ek_cuda_wait_for(awaited, ek_cuda_stream_now(ek_cuda_of(waiter)),
                              ek_cuda_issued_now(device), ek_cuda_stream_now(device));
    ek_cuda_leave(awaited, restore);
    return rc;
}

/* ---- between the streams of a device ---- */

static cudaStream_t stream_of(const ek_dev *dev, ek_stream which)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    return which == EK_STREAM_UPLOAD        ? device->upload
           : which == EK_STREAM_COMMUNICATE ? device->communicate
           : which == EK_STREAM_EXCHANGE    ? device->exchange
                                            : device->compute;
}

/* If the event can't be recorded, the host waits for the stream. Nothing is then left to wait for,
 * so that the event's older record is correct. */
void ek_cuda_event_record(ek_dev *dev, ek_stream which, ek_event **made)
{
    cudaEvent_t event = (cudaEvent_t)*made;
    cudaStream_t stream = stream_of(dev, which);
    int restore = ek_cuda_enter_anyway(dev);
    if (!event && !ek_cuda_note(dev, "making an event",
                                (int)cudaEventCreateWithFlags(&event, cudaEventDisableTiming)))
        event = NULL;
    if (!event || !ek_cuda_note(dev, "recording an event", (int)cudaEventRecord(event, stream)))
        ek_cuda_note(dev, "waiting for its work", ek_cuda_wait_stream(ek_cuda_of(dev), stream));
    *made = (ek_event *)event;
    ek_cuda_leave(dev, restore);
}

void ek_cuda_event_wait(ek_dev *dev, ek_stream which, ek_event *made)
{
    cudaEvent_t event = (cudaEvent_t)made;
    int restore = ek_cuda_enter_anyway(dev);
    if (!ek_cuda_note(dev, "waiting for an event",
                      (int)cudaStreamWaitEvent(stream_of(dev, which), event, 0)))
        ek_cuda_note(dev, "waiting for its work", ek_cuda_wait_event(event));
    ek_cuda_leave(dev, restore);
}

int ek_cuda_event_done(ek_dev *dev, ek_event *made)
{
    int restore;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    cudaError_t error = cudaEventQuery((cudaEvent_t)made);
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError(); /* clears "not ready", which is no error */
    int rc =
        error == cudaErrorNotReady ? 0 : ek_cuda_check(dev, "what an event follows", (int)error);
    ek_cuda_leave(dev, restore);
    if (rc < 0 || error != cudaSuccess)
        return rc;
    rc = ek_cuda_fault_check(dev);
    return rc < 0 ? rc : 1;
}

void ek_cuda_event_free(ek_dev *dev, ek_event *made)
{
    int restore = ek_cuda_enter_anyway(dev);
    ek_cuda_note(dev, "giving an event back", (int)cudaEventDestroy((cudaEvent_t)made));
    ek_cuda_leave(dev, restore);
}

/* ---- streams of other libraries ---- */

/* Waits for the work of all streams of the GPU. The device's own streams come first: if a
 * collective of theirs never ends, only their waits notice it. */
static int foreign_drain(ek_dev *dev)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    for (int i = 0; i < EK_CUDA_STREAMS; i++)
        EK_TRY(ek_cuda_check(dev, "waiting for its work",
                             ek_cuda_wait_stream(device, device->streams[i])));
    pthread_rwlock_wrlock(&launch_lock);
    int error = (int)cudaDeviceSynchronize();
    pthread_rwlock_unlock(&launch_lock);
    return ek_cuda_check(dev, "waiting for all work of its GPU", error);
}

/* The event is new because other threads wait for the device's events at any time. */
static int foreign_order(ek_dev *dev, cudaStream_t waiter, cudaStream_t awaited)
{
    cudaEvent_t event = NULL;
    EK_TRY(ek_cuda_make_event(dev, &event));
    int rc = ek_cuda_wait_for(dev, waiter, event, awaited);
    ek_cuda_note(dev, "giving an event back", (int)cudaEventDestroy(event));
    return rc;
}

int ek_cuda_order_stream(ek_dev *dev, void *theirs, bool stream_waits)
{
    cudaStream_t compute = ek_cuda_of(dev)->compute;
    int restore, rc;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    if (theirs == EK_NO_STREAM)
        rc = foreign_drain(dev);
    else
        rc = stream_waits ? foreign_order(dev, theirs, compute)
                          : foreign_order(dev, compute, theirs);
    ek_cuda_leave(dev, restore);
    return rc;
}
