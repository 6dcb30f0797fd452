/* steps.h: how long steps took and what devices did in them, in bounded room.
 *
 * While there is room each step has a record of its own. When it is full, pairs become one, and a
 * record is the sum of twice as many steps. */
#ifndef EK_REPORT_STEPS_H
#define EK_REPORT_STEPS_H

#include <stdint.h>

/* Nanoseconds of one device; the rest of the step it waited. */
typedef struct ek_busy {
    uint64_t computing, communicating;
} ek_busy;

typedef struct ek_step_record {
    int64_t first, count; /* steps */
    uint64_t ns;
} ek_step_record;

enum { EK_STEP_RECORDS = 1024 };

typedef struct ek_steps {
    ek_step_record *records; /* room for EK_STEP_RECORDS */
    ek_busy *busy;           /* [record][device] */
    int devices;
    int count;
    int64_t stride; /* steps of one record; the last has as many or fewer */
    int64_t total;  /* steps */
    uint64_t ns;    /* all of them */
    ek_busy *sums;  /* of all steps, by device */
} ek_steps;

int ek_steps_init(ek_steps *steps, int devices);
void ek_steps_free(ek_steps *steps);

/* A finished step. Where a device did more than there was time (several threads worked for it), its
 * share is scaled to the step. */
void ek_steps_add(ek_steps *steps, uint64_t ns, const ek_busy *busy);

/* The median of the records' seconds per step; 0 where there are none. */
double ek_steps_median(const ek_steps *steps);

#endif
