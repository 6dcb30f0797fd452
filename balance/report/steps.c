/* steps.c: records of steps. */
#include "report/steps.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

int ek_steps_init(ek_steps *steps, int devices)
{
    const size_t n = (size_t)devices;
    *steps = (ek_steps){.devices = devices, .stride = 1};
    steps->records = ek_calloc(EK_STEP_RECORDS, sizeof *steps->records);
    steps->busy = ek_calloc(EK_STEP_RECORDS * n, sizeof *steps->busy);
    steps->sums = ek_calloc(n, sizeof *steps->sums);
    return steps->records && steps->busy && steps->sums ? 0 : ek_error_pending();
}

void ek_steps_free(ek_steps *steps)
{
    free(steps->records);
    free(steps->busy);
    free(steps->sums);
}

static void add_busy(const ek_steps *steps, ek_busy *to, const ek_busy *from)
{
    for (int d = 0; d < steps->devices; d++) {
        to[d].computing += from[d].computing;
        to[d].communicating += from[d].communicating;
    }
}

static ek_busy *busy_of(const ek_steps *steps, int record)
{
    return steps->busy + (ptrdiff_t)record * steps->devices;
}

static void merge(ek_steps *steps)
{
    for (int i = 0; i < steps->count; i++) {
        ek_step_record *from = &steps->records[i], *to = &steps->records[i / 2];
        if (i % 2) {
            to->count += from->count;
            to->ns += from->ns;
            add_busy(steps, busy_of(steps, i / 2), busy_of(steps, i));
        } else {
            *to = *from;
            memmove(busy_of(steps, i / 2), busy_of(steps, i),
                    (size_t)steps->devices * sizeof(ek_busy));
        }
    }
    steps->count /= 2; /* it was full, which is even */
    steps->stride *= 2;
}

static ek_busy scaled(ek_busy busy, uint64_t ns)
{
    const uint64_t sum = busy.computing + busy.communicating;
    if (sum <= ns)
        return busy;
    const uint64_t computing = (uint64_t)((double)ns * ((double)busy.computing / (double)sum));
    busy.computing = computing < ns ? computing : ns;
    busy.communicating = ns - busy.computing;
    return busy;
}

void ek_steps_add(ek_steps *steps, uint64_t ns, const ek_busy *busy)
{
    ek_step_record *last = steps->count ? &steps->records[steps->count - 1] : NULL;
    if (!last || last->count == steps->stride) {
        if (steps->count == EK_STEP_RECORDS)
            merge(steps);
        last = &steps->records[steps->count];
        *last = (ek_step_record){.first = steps->total};
        memset(busy_of(steps, steps->count), 0, (size_t)steps->devices * sizeof(ek_busy));
        steps->count++;
    }
    ek_busy *record = busy_of(steps, steps->count - 1);
    for (int d = 0; d < steps->devices; d++) {
        const ek_busy own = scaled(busy[d], ns);
        record[d].computing += own.computing;
        record[d].communicating += own.communicating;
        steps->sums[d].computing += own.computing;
        steps->sums[d].communicating += own.communicating;
    }
    last->count++;
    last->ns += ns;
    steps->total++;
    steps->ns += ns;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ek_steps_median(const ek_steps *steps)
{
    double seconds[EK_STEP_RECORDS];
    const int n = steps->count;
    for (int i = 0; i < n; i++)
        seconds[i] = 1e-9 * (double)steps->records[i].ns / (double)steps->records[i].count;
    qsort(seconds, (size_t)n, sizeof *seconds, compare);
    return n == 0 ? 0 : (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
}
