/* wait.c: see wait.h. */
#include "cuda/wait.h"

#include <sched.h>
#include <time.h>

#include "core/clock.h"
#include "cuda/current.h"
#include "cuda/nccl.h"

/* Nanoseconds: a wait asks without a pause at first, as the driver's own does; then with naps that
 * are short beside what it waits for. Collectives are looked after in waits that take long. */
enum { EAGER = 2000000, NAP = 50000, LOOK = 5000000 };

/* The event, or without one the stream. */
static cudaError_t query(cudaStream_t stream, cudaEvent_t event)
{
    return event ? cudaEventQuery(event) : cudaStreamQuery(stream);
}

static int poll(cudaStream_t stream, cudaEvent_t event)
{
    const struct timespec nap = {0, NAP};
    cudaError_t error = query(stream, event);
    if (error != cudaErrorNotReady)
        return (int)error;
    uint64_t begin = ek_clock_ns(), look = begin + LOOK;
    while ((error = query(stream, event)) == cudaErrorNotReady) {
        uint64_t now = ek_clock_ns();
        if (now >= look) {
            ek_cuda_nccl_watch();
            look = ek_clock_ns() + LOOK;
        }
        if (now - begin < EAGER)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    (void)cudaGetLastError(); /* "not ready" was an answer */
    return (int)error;
}

/* Up to what is issued now: a stream that others issue to all the time may never be empty. Its GPU
 * is current. */
static int poll_stream(cudaStream_t stream)
{
    cudaEvent_t now = NULL;
    bool marked = cudaEventCreateWithFlags(&now, cudaEventDisableTiming) == cudaSuccess &&
                  cudaEventRecord(now, stream) == cudaSuccess;
    int error = poll(stream, marked ? now : NULL);
    if (now)
        cudaEventDestroy(now);
    return error;
}

int ek_cuda_wait_stream(const ek_cuda_device *device, cudaStream_t stream)
{
    int restore;
    if (!ek_cuda_nccl_live())
        return (int)cudaStreamSynchronize(stream);
    int error = ek_cuda_current_enter(device->physical, &restore);
    if (error)
        return error;
    error = poll_stream(stream);
    int left = ek_cuda_current_leave(device->physical, restore);
    return error ? error : left;
}

int ek_cuda_wait_event(cudaEvent_t event)
{
    return ek_cuda_nccl_live() ? poll(NULL, event) : (int)cudaEventSynchronize(event);
}
