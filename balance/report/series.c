/* series.c: the fullest moments of stretches of time. */
#include "report/series.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

enum { FINEST = 12 }; /* 4 us */

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

static uint64_t index_of(const ek_series *series, const ek_moment *moment)
{
    return moment->ns >> series->shift;
}

void ek_series_restart(ek_series *series, const ek_series *before)
{
    const ek_stretch *end = before->count ? &before->stretches[before->count - 1] : NULL;
    series->shift = before->shift;
    if (end && series->shift > FINEST && index_of(before, &end->last) < EK_SERIES_STRETCHES / 2)
        series->shift--;
    series->count = 0;
}

/* Stretches of twice the time: of two fullest moments in one the fuller stays, the earlier where
 * they are equal. */
static void merge(ek_series *series)
{
    int kept = 0;
    series->shift++;
    for (int i = 0; i < series->count; i++) {
        const ek_stretch *from = &series->stretches[i];
        ek_stretch *to = kept ? &series->stretches[kept - 1] : NULL;
        if (!to || index_of(series, &to->last) != index_of(series, &from->last)) {
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
    while (index_of(series, moment) >= EK_SERIES_STRETCHES)
        merge(series);
    ek_stretch *end = series->count ? &series->stretches[series->count - 1] : NULL;
    if (!end || index_of(series, &end->last) != index_of(series, moment)) {
        ek_stretch *next = &series->stretches[series->count++];
        next->fullest = end ? end->last : *moment;
        if (end)
            next->fullest.ns = index_of(series, moment) << series->shift;
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

typedef struct reading {
    ek_memory_sample *samples;
    int room, count;
} reading;

static void put(reading *to, const ek_moment *moment)
{
    if (to->count < to->room)
        to->samples[to->count] = ek_moment_sample(moment);
    to->count++;
}

int ek_series_read(const ek_series *series, uint64_t ns, ek_memory_sample *samples, int room)
{
    reading to = {samples, room, 0};
    for (int i = 0; i < series->count; i++) {
        const ek_stretch *stretch = &series->stretches[i], *next = stretch + 1;
        const bool rests = i + 1 == series->count ||
                           index_of(series, &next->last) > index_of(series, &stretch->last) + 1;
        put(&to, &stretch->fullest);
        if (rests && stretch->last.ns > stretch->fullest.ns)
            put(&to, &stretch->last);
    }
    if (series->count > 0 && ek_series_last(series)->ns < ns) {
        ek_moment end = *ek_series_last(series);
        end.ns = ns;
        put(&to, &end);
    }
    return to.count;
}
