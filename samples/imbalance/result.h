/* result.h: what one mode measured, and the reports of all. */
#ifndef IMBALANCE_RESULT_H
#define IMBALANCE_RESULT_H

#include "imbalance/settings.h"

typedef struct device_result {
    char name[16];
    uint64_t peak;                             /* bytes */
    uint64_t categories[EK_MEMORY_CATEGORIES]; /* at the peak; they add up to it */
} device_result;

typedef struct mode_result {
    const char *name;
    int device_count;
    device_result devices[EK_MAX_DEVICES];
    double imbalance;    /* peak of the fullest device over the mean of all */
    double step_seconds; /* median */
    double samples_per_second;
    double *losses; /* of each step; owned */
    int loss_count;
    double pixel_accuracy, mean_iou; /* on the test scenes */
    int64_t parameters;
    char sha256[65];
} mode_result;

void report_table(FILE *stream, const mode_result *results, int count);
/* Both return 0, or -1 with errno set. */
int report_json(const char *path, const run_settings *settings, const mode_result *results,
                int count);
int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count);

#endif
