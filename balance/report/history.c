/* history.c: keeps the peak of each stretch of time, records of steps, and curves. */
#include "report/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

/* ---- memory ---- */

enum { FINEST = 12 }; /* shift of the finest stretches: 4 us */

int ek_series_init(ek_series *series)
{
    *series = (ek_series){.shift = FINEST};
    series->stretches = ek_calloc(EK_SERIES_STRETCHES, sizeof *series->stretches);
    return series->stretches ? 0 : ek_error_pending();
}

void ek_series_free(ek_series *series)
{
    free(series->stretches);
    series->stretches = NULL;
}

static uint64_t series_index(const ek_series *series, const ek_moment *moment)
{
    return moment->ns >> series->shift;
}

void ek_series_restart(ek_series *series, const ek_series *before)
{
    const ek_stretch *end = before->count ? &before->stretches[before->count - 1] : NULL;
    series->shift = before->shift;
    if (end && series->shift > FINEST && series_index(before, &end->last) < EK_SERIES_STRETCHES / 2)
        series->shift--;
    series->count = 0;
}

/* Doubles the length of stretches. A new stretch keeps the higher of its two peaks, the earlier if
 * both are equal. */
static void series_merge(ek_series *series)
{
    int kept = 0;
    series->shift++;
    for (int i = 0; i < series->count; i++) {
        const ek_stretch *from = &series->stretches[i];
        ek_stretch *to = kept ? &series->stretches[kept - 1] : NULL;
        if (!to || series_index(series, &to->last) != series_index(series, &from->last)) {
            series->stretches[kept++] = *from;
            continue;
        }
        if (from->fullest.in_use > to->fullest.in_use)
            to->fullest = from->fullest;
        to->last = from->last;
    }
    series->count = kept;
}

void ek_series_note(ek_series *series, const ek_moment *moment)
{
    while (series_index(series, moment) >= EK_SERIES_STRETCHES)
        series_merge(series);
    ek_stretch *end = series->count ? &series->stretches[series->count - 1] : NULL;
    if (!end || series_index(series, &end->last) != series_index(series, moment)) {
        ek_stretch *next = &series->stretches[series->count++];
        next->fullest = end ? end->last : *moment;
        if (end)
            next->fullest.ns = series_index(series, moment) << series->shift;
        end = next;
    }
    if (moment->in_use > end->fullest.in_use)
        end->fullest = *moment;
    end->last = *moment;
}

const ek_moment *ek_series_last(const ek_series *series)
{
    return &series->stretches[series->count - 1].last;
}

ek_memory_sample ek_moment_sample(const ek_moment *moment)
{
    ek_memory_sample sample = {.seconds = 1e-9 * (double)moment->ns,
                               .step = moment->step,
                               .in_use = moment->in_use};
    memcpy(sample.now, moment->now, sizeof sample.now);
    return sample;
}

typedef struct series_reading {
    ek_memory_sample *samples;
    int room, count;
} series_reading;

static void series_put(series_reading *to, const ek_moment *moment)
{
    if (to->count < to->room)
        to->samples[to->count] = ek_moment_sample(moment);
    to->count++;
}

int ek_series_read(const ek_series *series, uint64_t ns, ek_memory_sample *samples, int room)
{
    series_reading to = {samples, room, 0};
    for (int i = 0; i < series->count; i++) {
        const ek_stretch *stretch = &series->stretches[i], *next = stretch + 1;
        const bool rests = i + 1 == series->count || series_index(series, &next->last) >
                                                         series_index(series, &stretch->last) + 1;
        series_put(&to, &stretch->fullest);
        if (rests && stretch->last.ns > stretch->fullest.ns)
            series_put(&to, &stretch->last);
    }
    if (series->count > 0 && ek_series_last(series)->ns < ns) {
        ek_moment end = *ek_series_last(series);
        end.ns = ns;
        series_put(&to, &end);
    }
    return to.count;
}

/* ---- steps ---- */

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

static void steps_add_busy(const ek_steps *steps, ek_busy *to, const ek_busy *from)
{
    for (int d = 0; d < steps->devices; d++) {
        to[d].computing += from[d].computing;
        to[d].communicating += from[d].communicating;
    }
}

static ek_busy *steps_busy(const ek_steps *steps, int record)
{
    return steps->busy + (ptrdiff_t)record * steps->devices;
}

static void steps_merge(ek_steps *steps)
{
    for (int i = 0; i < steps->count; i++) {
        ek_step_record *from = &steps->records[i], *to = &steps->records[i / 2];
        if (i % 2) {
            to->count += from->count;
            to->ns += from->ns;
            steps_add_busy(steps, steps_busy(steps, i / 2), steps_busy(steps, i));
        } else {
            *to = *from;
            memmove(steps_busy(steps, i / 2), steps_busy(steps, i),
                    (size_t)steps->devices * sizeof(ek_busy));
        }
    }
    steps->count /= 2; /* `count` was EK_STEP_RECORDS, which is even */
    steps->stride *= 2;
}

static ek_busy steps_scaled(ek_busy busy, uint64_t ns)
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
            steps_merge(steps);
        last = &steps->records[steps->count];
        *last = (ek_step_record){.first = steps->total};
        memset(steps_busy(steps, steps->count), 0, (size_t)steps->devices * sizeof(ek_busy));
        steps->count++;
    }
    ek_busy *record = steps_busy(steps, steps->count - 1);
    for (int d = 0; d < steps->devices; d++) {
        const ek_busy own = steps_scaled(busy[d], ns);
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

static int steps_compare(const void *a, const void *b)
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
    qsort(seconds, (size_t)n, sizeof *seconds, steps_compare);
    return n == 0 ? 0 : (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
}

/* ---- curves ---- */

ek_curve *ek_curve_new(const char *name)
{
    ek_curve *curve = ek_calloc(1, sizeof *curve);
    if (!curve)
        return NULL;
    curve->name = ek_strdup(name);
    curve->points = ek_calloc(EK_CURVE_POINTS, sizeof *curve->points);
    curve->stride = 1;
    if (curve->name && curve->points)
        return curve;
    ek_curve_free(curve);
    return NULL;
}

void ek_curve_free(ek_curve *curve)
{
    if (!curve)
        return;
    free(curve->name);
    free(curve->points);
    free(curve);
}

static void curve_merge(ek_curve_point *to, const ek_curve_point *from)
{
    if (from->finite > 0) {
        to->least = to->finite > 0 ? fmin(to->least, from->least) : from->least;
        to->most = to->finite > 0 ? fmax(to->most, from->most) : from->most;
    }
    to->step = from->step;
    to->values += from->values;
    to->finite += from->finite;
    to->sum += from->sum;
}

void ek_curve_add(ek_curve *curve, int64_t step, double value)
{
    const double finite = isfinite(value) ? value : 0;
    const ek_curve_point point = {step, 1, isfinite(value) ? 1 : 0, finite, finite, finite};
    ek_curve_point *points = curve->points;
    if (curve->count > 0 && points[curve->count - 1].values < curve->stride) {
        curve_merge(&points[curve->count - 1], &point);
        return;
    }
    if (curve->count == EK_CURVE_POINTS) {
        curve->count /= 2;
        curve->stride *= 2;
        for (int i = 0; i < curve->count; i++) {
            points[i] = points[2 * i];
            curve_merge(&points[i], &points[2 * i + 1]);
        }
    }
    points[curve->count++] = point;
}
