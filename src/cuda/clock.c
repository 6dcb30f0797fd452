/* clock.c: how long a replica's forward takes on the device itself.
 *
 * A pair of events stands around the work that one forward issues, as long as somebody asks for the
 * time now and then. Nobody waits for them: what has passed is added up when it is asked for.
 * Backward is not timed: a stream waits there for other devices' gradients, which is no work of its
 * own. */
#include "cuda/clock.h"

#include <stdatomic.h>

#include "cuda/runtime.h"

static int make_events(ek_dev *dev, ek_cuda_lap *lap)
{
    if (!lap->begin)
        EK_TRY(ek_cuda_check(dev, "making an event", (int)cudaEventCreate(&lap->begin)));
    if (!lap->end)
        EK_TRY(ek_cuda_check(dev, "making an event", (int)cudaEventCreate(&lap->end)));
    return 0;
}

/* Adds up the laps that are over; the device's lock is held. */
static void collect(ek_dev *dev, ek_cuda_clock *clock)
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
    (void)cudaGetLastError(); /* what went wrong is said where work is issued */
}

/* One of the three, with the device current and its lock held; a clock that fails tells no time. */
static void with_clock(ek_dev *dev, void (*act)(ek_dev *dev, ek_cuda_clock *clock))
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

static void begin_lap(ek_dev *dev, ek_cuda_clock *clock)
{
    ek_cuda_lap *lap = &clock->laps[clock->next % EK_CUDA_LAPS];
    clock->open = clock->asked && clock->pending < EK_CUDA_LAPS && make_events(dev, lap) >= 0 &&
                  cudaEventRecord(lap->begin, ek_cuda_of(dev)->compute) == cudaSuccess;
}

static void end_lap(ek_dev *dev, ek_cuda_clock *clock)
{
    const ek_cuda_lap *lap = &clock->laps[clock->next % EK_CUDA_LAPS];
    if (!clock->open || cudaEventRecord(lap->end, ek_cuda_of(dev)->compute) != cudaSuccess)
        return;
    clock->open = false;
    clock->next++;
    clock->pending++;
}

static void read_laps(ek_dev *dev, ek_cuda_clock *clock)
{
    clock->asked = true;
    collect(dev, clock);
}

void ek_cuda_clock_begin(ek_dev *dev)
{
    with_clock(dev, begin_lap);
}

void ek_cuda_clock_end(ek_dev *dev)
{
    with_clock(dev, end_lap);
}

void ek_cuda_clock_read(ek_dev *dev)
{
    with_clock(dev, read_laps);
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
