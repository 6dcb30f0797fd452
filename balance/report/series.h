/* series.h: a device's memory over time, in bounded room.
 *
 * Time is cut into stretches of 2^shift nanoseconds. Of each in which something changed the fullest
 * moment is kept, what it began with included; where a stretch without changes follows, also the
 * level that it has throughout. When time outgrows the stretches, they double: pairs become one. */
#ifndef EK_REPORT_SERIES_H
#define EK_REPORT_SERIES_H

#include "evenkeel/report.h"

typedef struct ek_moment {
    uint64_t ns; /* since the series' begin */
    int64_t step;
    uint64_t in_use;
    uint64_t now[EK_MEMORY_CATEGORIES];
} ek_moment;

enum { EK_SERIES_STRETCHES = 1024 };

typedef struct ek_series {
    ek_moment *moments; /* ascending, at most one per stretch; room for EK_SERIES_STRETCHES */
    int count;
    unsigned shift;
    ek_moment level; /* since the last change */
} ek_series;

int ek_series_init(ek_series *series);
void ek_series_free(ek_series *series);

/* Empties it; stretches begin fine again where they were finer than was needed. */
void ek_series_restart(ek_series *series);

/* From moment->ns on (never before the last one's) memory is as `moment` says. */
void ek_series_note(ek_series *series, const ek_moment *moment);

/* All moments, and where the last lies before `ns`, the level then. Copies at most `room`; returns
 * how many there are. */
int ek_series_read(const ek_series *series, uint64_t ns, ek_memory_sample *samples, int room);

ek_memory_sample ek_moment_sample(const ek_moment *moment);

#endif
