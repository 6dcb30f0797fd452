/* history.h: the history of a run in bounded memory, which gets coarser as the run gets longer: a
 * device's memory over time, the duration of steps, the devices' times in them, and curves. */
#ifndef EK_REPORT_HISTORY_H
#define EK_REPORT_HISTORY_H

#include "evenkeel/report.h"

/* ---- memory ----
 *
 * Time is cut into stretches of 2^shift nanoseconds. Each stretch with a change keeps two moments:
 * its peak, which may be its beginning, and its last change, which holds until the next stretch
 * with a change. If there are too many stretches, pairs are merged and their length doubles. */

typedef struct ek_moment {
    uint64_t ns; /* time since the series began */
    int64_t step;
    uint64_t in_use;
    uint64_t now[EK_MEMORY_CATEGORIES];
} ek_moment;

enum { EK_SERIES_STRETCHES = 512 };

typedef struct ek_stretch {
    ek_moment fullest, last;
} ek_stretch;

typedef struct ek_series {
    ek_stretch *stretches; /* stretches with changes, by time; room for EK_SERIES_STRETCHES */
    int count;
    unsigned shift;
} ek_series;

int ek_series_init(ek_series *series);
void ek_series_free(ek_series *series);

/* Empties the series. Its stretches get a length that suits a duration like that of `before`. */
void ek_series_restart(ek_series *series, const ek_series *before);

/* Adds a change of memory, which holds from moment->ns on. Moments come in order of time. */
void ek_series_note(ek_series *series, const ek_moment *moment);

/* The last change. The series is not empty. */
const ek_moment *ek_series_last(const ek_series *series);

/* Reads the level over time up to `ns`; each sample holds until the next. The samples are the peaks
 * of stretches. If a stretch precedes a stretch without changes, its last change is a sample, too.
 * Copies at most `room` samples. Returns how many samples there are. */
int ek_series_read(const ek_series *series, uint64_t ns, ek_memory_sample *samples, int room);

ek_memory_sample ek_moment_sample(const ek_moment *moment);

/* ---- steps ----
 *
 * At first each step has a record. When the room is full, pairs of records are merged, so that a
 * record is the sum of twice as many steps. */

/* Nanoseconds of one device in one step. In the rest of the step the device waits. */
typedef struct ek_busy {
    uint64_t computing, communicating;
} ek_busy;

typedef struct ek_step_record {
    int64_t first, count; /* the record's first step, and how many steps it has */
    uint64_t ns;
} ek_step_record;

enum { EK_STEP_RECORDS = 1024 };

typedef struct ek_steps {
    ek_step_record *records; /* room for EK_STEP_RECORDS */
    ek_busy *busy;           /* [record][device] */
    int devices;
    int count;
    int64_t stride; /* steps of one record; the last record may have fewer */
    int64_t total;  /* number of all steps */
    uint64_t ns;    /* duration of all steps */
    ek_busy *sums;  /* by device: the sums of all steps */
} ek_steps;

int ek_steps_init(ek_steps *steps, int devices);
void ek_steps_free(ek_steps *steps);

/* Adds a finished step. If several threads worked for a device, the device's times may add up to
 * more than the step's time `ns`. In this case they are scaled down to add up to `ns`. */
void ek_steps_add(ek_steps *steps, uint64_t ns, const ek_busy *busy);

/* Returns the median of the records' seconds per step, or 0 if there are no records. */
double ek_steps_median(const ek_steps *steps);

/* ---- curves ----
 *
 * At first each value has a point. When the room is full, pairs of points are merged, so that a
 * point has twice as many values. */

typedef struct ek_curve_point {
    int64_t step;            /* the point's last step */
    int64_t values, finite;  /* how many values; how many of them are finite */
    double sum, least, most; /* Of finite values alone; 0 if there is none */
} ek_curve_point;

enum { EK_CURVE_POINTS = 1024 };

typedef struct ek_curve {
    struct ek_curve *next;
    char *name;
    ek_curve_point *points; /* room for EK_CURVE_POINTS */
    int count;
    int64_t stride; /* values of one point; the last point may have fewer */
} ek_curve;

/* Returns a new curve, or NULL with a pending error. */
ek_curve *ek_curve_new(const char *name);
void ek_curve_free(ek_curve *curve); /* NULL is ignored */

/* Adds a value. Steps don't descend. */
void ek_curve_add(ek_curve *curve, int64_t step, double value);

#endif
