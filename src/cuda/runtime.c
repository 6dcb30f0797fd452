/* runtime.c: begin and end of a slot, scratch memory, and the device's clock. */
#include "cuda/runtime.h"

#include <stdatomic.h>

#include "cuda/stream.h"
#include "evenkeel/precision.h"

/* ---- begin and end ---- */

int ek_cuda_begin(ek_dev *dev, ek_cuda_stream *stream)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_fault_check(dev));
    *stream = (ek_cuda_stream){.handle = ek_cuda_stream_now(device),
                               .fault = device->fault_on_device,
                               .multiprocessors = device->multiprocessors,
                               .deterministic = ek_deterministic()};
    return ek_cuda_enter(dev, &stream->restore);
}

int ek_cuda_end(ek_dev *dev, const ek_cuda_stream *stream, const char *operation, int launched)
{
    int rc = ek_cuda_check(dev, operation, launched);
    ek_cuda_leave(dev, stream->restore);
    return rc;
}

int ek_cuda_synchronize(ek_dev *dev)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    int restore;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    int rc = 0;
    for (int i = 0; i < EK_CUDA_STREAMS && rc >= 0; i++)
        rc = ek_cuda_check(dev, i == 0 ? "waiting for its work" : "waiting for its copies",
                           ek_cuda_wait_stream(device, device->streams[i]));
    ek_cuda_leave(dev, restore);
    int fault = ek_cuda_fault_check(dev);
    return rc < 0 ? rc : fault;
}

int ek_cuda_scratch(ek_dev *dev, size_t nbytes, void **pointer)
{
    ek_event *none;
    *pointer = NULL;
    return nbytes ? ek_dev_alloc_for(dev, (ek_stream)ek_thread_self()->modes.stream, nbytes,
                                     EK_MEMORY_WORKSPACE, pointer, &none)
                  : 0;
}

void ek_cuda_scratch_free(ek_dev *dev, void *pointer, size_t nbytes)
{
    ek_dev_free_for(dev, (ek_stream)ek_thread_self()->modes.stream, pointer, nbytes,
                    EK_MEMORY_WORKSPACE, NULL);
}

int ek_cuda_try_scratch(ek_dev *dev, size_t nbytes, void **pointer)
{
    ek_event *none;
    *pointer = NULL;
    return nbytes ? ek_dev_try_alloc_for(dev, (ek_stream)ek_thread_self()->modes.stream, nbytes,
                                         EK_MEMORY_WORKSPACE, pointer, &none)
                  : 1;
}

/* ---- the clock: how long a replica's forward takes on the device itself ----
 *
 * If the clock is in use, a pair of events encloses the work that one forward issues. No thread
 * waits for the events: reading the clock adds the laps that are complete. Backward isn't timed,
 * because its stream also waits for other devices' gradients. */

static int clock_make_events(ek_dev *dev, ek_cuda_lap *lap)
{
    if (!lap->begin)
        EK_TRY(ek_cuda_check(dev, "making an event", (int)cudaEventCreate(&lap->begin)));
    if (!lap->end)
        EK_TRY(ek_cuda_check(dev, "making an event", (int)cudaEventCreate(&lap->end)));
    return 0;
}

/* Adds the times of the complete laps to dev->busy_ns. device->lock is held. */
static void clock_collect(ek_dev *dev, ek_cuda_clock *clock)
{
    for (; clock->pending > 0; clock->pending--) {
        ek_cuda_lap *lap = &clock->laps[(clock->next - clock->pending) % EK_CUDA_LAPS];
        float milliseconds = 0;
        cudaError_t passed = cudaEventQuery(lap->end);
        if (passed == cudaErrorNotReady)
            break;
        if (passed == cudaSuccess &&
            cudaEventElapsedTime(&milliseconds, lap->begin, lap->end) == cudaSuccess)
            atomic_fetch_add_explicit(&dev->busy_ns, (uint64_t)(1e6 * (double)milliseconds),
                                      memory_order_relaxed);
    }
    (void)cudaGetLastError(); /* the calls that issue work report errors */
}

/* Runs `act` with the device current and its lock held. After an error the clock misses a lap, and
 * nothing else happens. */
static void clock_act(ek_dev *dev, void (*act)(ek_dev *dev, ek_cuda_clock *clock))
{
    ek_cuda_device *device = ek_cuda_of(dev);
    ek_error_record before, own;
    int restore;
    ek_error_take(&before);
    pthread_mutex_lock(&device->lock);
    if (ek_cuda_usable(dev) >= 0 && ek_cuda_enter(dev, &restore) >= 0) {
        act(dev, &device->clock);
        ek_cuda_leave(dev, restore);
    }
    pthread_mutex_unlock(&device->lock);
    ek_error_take(&own);
    ek_error_raise(&before);
}

static void clock_begin_lap(ek_dev *dev, ek_cuda_clock *clock)
{
    ek_cuda_lap *lap = &clock->laps[clock->next % EK_CUDA_LAPS];
    clock->open = clock->asked && clock->pending < EK_CUDA_LAPS &&
                  clock_make_events(dev, lap) >= 0 &&
                  cudaEventRecord(lap->begin, ek_cuda_of(dev)->compute) == cudaSuccess;
}

static void clock_end_lap(ek_dev *dev, ek_cuda_clock *clock)
{
    const ek_cuda_lap *lap = &clock->laps[clock->next % EK_CUDA_LAPS];
    if (!clock->open || cudaEventRecord(lap->end, ek_cuda_of(dev)->compute) != cudaSuccess)
        return;
    clock->open = false;
    clock->next++;
    clock->pending++;
}

static void clock_read_laps(ek_dev *dev, ek_cuda_clock *clock)
{
    clock->asked = true;
    clock_collect(dev, clock);
}

void ek_cuda_clock_begin(ek_dev *dev)
{
    clock_act(dev, clock_begin_lap);
}

void ek_cuda_clock_end(ek_dev *dev)
{
    clock_act(dev, clock_end_lap);
}

void ek_cuda_clock_read(ek_dev *dev)
{
    clock_act(dev, clock_read_laps);
}

void ek_cuda_clock_close(ek_cuda_clock *clock)
{
    for (int i = 0; i < EK_CUDA_LAPS; i++) {
        if (clock->laps[i].begin)
            cudaEventDestroy(clock->laps[i].begin);
        if (clock->laps[i].end)
            cudaEventDestroy(clock->laps[i].end);
    }
}
