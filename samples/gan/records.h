/* records.h: what each step measured. */
#ifndef GAN_RECORDS_H
#define GAN_RECORDS_H

#include <stdint.h>

typedef enum record_series {
    /* one number per critic step */
    CRITIC_LOSSES,  /* the penalty included */
    PENALTIES,      /* weighted */
    WASSERSTEIN,    /* mean score of real pictures less that of made ones */
    GRADIENT_NORMS, /* of all of the critic's parameters together */
    CRITIC_SERIES,
    /* one number per generator step */
    GENERATOR_LOSSES = CRITIC_SERIES,
    SECONDS,
    SERIES
} record_series;

extern const char *const series_names[SERIES];

typedef struct run_records {
    double *values[SERIES]; /* owned */
    int64_t counts[SERIES], room[SERIES];
} run_records;

/* Room for so many generator steps. Returns 0 or a negative status; close it anyway. */
int records_open(run_records *records, int64_t steps, int64_t critic_steps);
void records_close(run_records *records);
void records_add(run_records *records, record_series series, double value);
/* The newest number; 0 where there is none. */
double records_last(const run_records *records, record_series series);
/* Of the series; 0 where it is empty. */
double records_median(const run_records *records, record_series series);

#endif
