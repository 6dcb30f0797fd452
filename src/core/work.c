/* work.c: counts how long devices work, and makes slow devices sleep. */
#include "core/worker.h"

#include <stdatomic.h>
#include <time.h>

#include "core/clock.h"
#include "core/thread.h"

/* The shortest sleep. Shorter sleeps would be inexact, and are postponed. */
static const int64_t least_rest_ns = 1000000;
/* The longest credit for a sleep that took too long. A delay beyond this limit has another cause
 * than the timer. */
static const int64_t most_credit_ns = 20000000;

/* The longest sleep, more than a year. Sums of such times stay far from overflow. */
static const int64_t most_owed_ns = INT64_C(1) << 55;

static uint64_t work_thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void ek_work_begin(ek_work *work, ek_dev *dev)
{
    ek_thread *self = ek_thread_self();
    work->dev = self->current_device ? NULL : dev;
    if (!work->dev)
        return;
    self->current_device = dev;
    work->began = ek_clock_ns();
    work->waited = self->waited_ns;
    if (dev->speed < 1)
        self->cpu_ns = work_thread_cpu_ns();
}

void ek_work_end(ek_work *work)
{
    ek_thread *self = ek_thread_self();
    if (!work->dev)
        return;
    ek_work_rest();
    uint64_t waited = self->waited_ns - work->waited, lasted = ek_clock_ns() - work->began;
    if (lasted > waited && !work->dev->backend->clock_begin)
        atomic_fetch_add_explicit(&work->dev->busy_ns, lasted - waited, memory_order_relaxed);
    self->current_device = NULL;
}

uint64_t ek_dev_busy_ns(ek_dev *dev)
{
    if (dev->backend->clock_read)
        dev->backend->clock_read(dev);
    return atomic_load_explicit(&dev->busy_ns, memory_order_relaxed);
}

void ek_work_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    uint64_t began = ek_clock_ns();
    pthread_cond_wait(cond, lock);
    ek_thread_self()->waited_ns += ek_clock_ns() - began;
}

static void work_sleep_ns(int64_t nanoseconds)
{
    struct timespec rest = {(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};
    nanosleep(&rest, NULL);
}

/* Adds to the time that the device has to sleep, up to most_owed_ns. Returns the new time. */
static int64_t work_owe(ek_dev *dev, int64_t more)
{
    int64_t before = atomic_load(&dev->rest_ns), owed;
    do {
        owed = before < most_owed_ns - more ? before + more : most_owed_ns;
    } while (!atomic_compare_exchange_weak(&dev->rest_ns, &before, owed));
    return owed;
}

void ek_work_rest(void)
{
    ek_thread *self = ek_thread_self();
    ek_dev *dev = self->current_device;
    if (!dev || dev->speed >= 1)
        return;
    uint64_t now = work_thread_cpu_ns();
    double more = (double)(now - self->cpu_ns) * (1 / dev->speed - 1);
    self->cpu_ns = now;
    int64_t owed = work_owe(dev, more < (double)most_owed_ns ? (int64_t)more : most_owed_ns);
    if (owed < least_rest_ns)
        return;
    atomic_fetch_sub(&dev->rest_ns, owed);
    uint64_t began = ek_clock_ns();
    work_sleep_ns(owed);
    int64_t left = owed - (int64_t)(ek_clock_ns() - began);
    atomic_fetch_add(&dev->rest_ns, left < -most_credit_ns ? -most_credit_ns : left);
}
