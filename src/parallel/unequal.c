/* unequal.c: devices that equal shares don't suit. */
#include "parallel/unequal.h"

#include <math.h>
#include <stdio.h>

#include "core/thread.h"

/* Weights up to this are small numbers. */
enum { LARGEST_WEIGHT = 16 };
/* How far, relatively, weights may be from what they stand for. */
static const double NEAR = 0.05;

static double memory_of(const ek_dev *dev)
{
    ek_memory_stats stats = {0};
    ek_memory_get_stats(dev->id, &stats);
    return (double)stats.capacity; /* 0: no limit */
}

static double speed_of(const ek_dev *dev)
{
    return dev->speed;
}

/* Writes "{2, 2, 1}": the smallest whole numbers that stand in these proportions, nearly. */
static void write_weights(const double *measures, int count, double most, char *text, size_t room)
{
    long weights[EK_MAX_DEVICES];
    bool near = false;
    for (int scale = 1; scale <= LARGEST_WEIGHT && !near; scale++) {
        near = true;
        for (int i = 0; i < count; i++) {
            double exact = measures[i] / most * scale;
            weights[i] = lround(exact);
            near = near && fabs((double)weights[i] - exact) <= NEAR * exact;
        }
    }
    size_t length = 0;
    for (int i = 0; i < count && length < room; i++)
        length +=
            (size_t)snprintf(text + length, room - length, "%s%ld", i ? ", " : "{", weights[i]);
    if (length < room)
        snprintf(text + length, room - length, "}");
}

static bool warn_of(const char *what, ek_dev *const *devs, int count,
                    double (*measure)(const ek_dev *dev), const char *measured)
{
    double measures[EK_MAX_DEVICES] = {0};
    char weights[8 * EK_MAX_DEVICES];
    int low = 0, high = 0;
    for (int i = 0; i < count; i++) {
        measures[i] = measure(devs[i]);
        low = measures[i] < measures[low] ? i : low;
        high = measures[i] > measures[high] ? i : high;
    }
    if (!(measures[low] > 0 && measures[low] < 0.75 * measures[high]))
        return false;
    write_weights(measures, count, measures[high], weights, sizeof weights);
    ek_log_line(EK_LOG_WARNING,
                "%s: there is an imbalance between the devices: %s has less than 75%% of the %s of "
                "%s; .weights = %s would suit them, or .split = EK_SPLIT_AUTO; it can also be left "
                "out of device_ids",
                what, devs[low]->name, measured, devs[high]->name, weights);
    return true;
}

void ek_warn_of_unequal(const char *what, ek_dev *const *devs, int count)
{
    if (!warn_of(what, devs, count, memory_of, "memory"))
        warn_of(what, devs, count, speed_of, "speed");
}
