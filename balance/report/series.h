/* series.h: a device's memory over time, in bounded room.
 *
 * Time is cut into stretches of 2^shift nanoseconds. Of each in which something changed the fullest
 * moment is kept, what it began with included, and the last change, which holds until the next one
 * begins. When time outgrows the stretches, they double: pairs become one. */
#ifndef EK_REPORT_SERIES_H
#define EK_REPORT_SERIES_H

#include "evenkeel/report.h"

typedef struct ek_moment {
    uint64_t ns; /* since the series' begin */
    int64_t step;
    uint64_t in_use;
    uint64_t now[EK_MEMORY_CATEGORIES];
} ek_moment;

enum { EK_SERIES_STRETCHES = 512 };

typedef struct ek_stretch {
    ek_moment fullest, last;
} ek_stretch;

typedef struct ek_series {
    ek_stretch *stretches; /* ascending, those with changes; room for EK_SERIES_STRETCHES */
    int count;
    unsigned shift;
} ek_series;

int ek_series_init(ek_series *series);
void ek_series_free(ek_series *series);

/* Empties it, for a time as long as that of `before`. */
void ek_series_restart(ek_series *series, const ek_series *before);

/* From moment->ns on (never before the last one's) memory is as `moment` says. */
void ek_series_note(ek_series *series, const ek_moment *moment);

/* The last change; there is one. */
const ek_moment *ek_series_last(const ek_series *series);

/* All fullest moments; where nothing changed in the stretch behind, also the last; and the level at
 * `ns`. Each holds until the next. Copies at most `room`; returns how many there are. */
int ek_series_read(const ek_series *series, uint64_t ns, ek_memory_sample *samples, int room);

ek_memory_sample ek_moment_sample(const ek_moment *moment);

#endif
