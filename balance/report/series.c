/* series.c: the fullest moments of stretches of time. */
#include "report/series.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

enum { FINEST = 12 }; /* 4 us */

int ek_series_init(ek_series *series)
{
    *series = (ek_series){.shift = FINEST};
    series->moments = ek_calloc(EK_SERIES_STRETCHES, sizeof *series->moments);
    return series->moments ? 0 : ek_error_pending();
}

void ek_series_free(ek_series *series)
{
    free(series->moments);
    series->moments = NULL;
}

static uint64_t stretch_of(const ek_series *series, uint64_t ns)
{
    return ns >> series->shift;
}

void ek_series_restart(ek_series *series)
{
    if (series->shift > FINEST && stretch_of(series, series->level.ns) < EK_SERIES_STRETCHES / 2)
        series->shift--;
    series->count = 0;
}

/* Stretches of twice the time: of two moments in one the fuller stays, the earlier where they are
 * equal. */
static void merge(ek_series *series)
{
    int kept = 0;
    series->shift++;
    for (int i = 0; i < series->count; i++) {
        const ek_moment *moment = &series->moments[i];
        ek_moment *before = kept ? &series->moments[kept - 1] : NULL;
        if (!before || stretch_of(series, before->ns) != stretch_of(series, moment->ns))
            series->moments[kept++] = *moment;
        else if (moment->in_use > before->in_use)
            *before = *moment;
    }
    series->count = kept;
}

/* The level at the begin of a stretch in which nothing is noted yet. */
static void carry(ek_series *series, uint64_t stretch)
{
    ek_moment *moment = &series->moments[series->count++];
    *moment = series->level;
    moment->ns = stretch << series->shift;
}

void ek_series_note(ek_series *series, const ek_moment *moment)
{
    while (stretch_of(series, moment->ns) >= EK_SERIES_STRETCHES)
        merge(series);
    const uint64_t stretch = stretch_of(series, moment->ns);
    if (series->count == 0) {
        series->moments[series->count++] = *moment;
    } else {
        const uint64_t last = stretch_of(series, series->moments[series->count - 1].ns);
        if (last + 1 < stretch)
            carry(series, last + 1);
        if (last < stretch)
            carry(series, stretch);
        ek_moment *fullest = &series->moments[series->count - 1];
        if (moment->in_use > fullest->in_use)
            *fullest = *moment;
    }
    series->level = *moment;
}

ek_memory_sample ek_moment_sample(const ek_moment *moment)
{
    ek_memory_sample sample = {.seconds = 1e-9 * (double)moment->ns,
                               .step = moment->step,
                               .in_use = moment->in_use};
    memcpy(sample.now, moment->now, sizeof sample.now);
    return sample;
}

int ek_series_read(const ek_series *series, uint64_t ns, ek_memory_sample *samples, int room)
{
    int count = series->count;
    for (int i = 0; i < count && i < room; i++)
        samples[i] = ek_moment_sample(&series->moments[i]);
    if (count == 0 || series->moments[count - 1].ns >= ns)
        return count;
    if (count < room) {
        ek_moment end = series->level;
        end.ns = ns;
        samples[count] = ek_moment_sample(&end);
    }
    return count + 1;
}
