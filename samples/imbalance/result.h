/* result.h: what one mode measured, and the reports of all. */
#ifndef IMBALANCE_RESULT_H
#define IMBALANCE_RESULT_H

#include "imbalance/settings.h"

typedef struct mode_result {
    const char *name;
    ek_report *report;             /* owned: memory and time per device */
    int64_t batch;                 /* that was trained with */
    int64_t largest;               /* the largest that fits, where it was looked for; else -1 */
    int64_t share[EK_MAX_DEVICES]; /* of the batch, per device, at the end */
    char plan[512];                /* of balanced-auto; "" for others */
    double step_seconds;           /* median */
    double samples_per_second;
    double *losses; /* of each step; owned */
    int loss_count;
    double pixel_accuracy, mean_iou; /* on the test scenes */
    int64_t parameters;
    char sha256[65];
} mode_result;

void mode_result_free(mode_result *result);

void report_table(FILE *stream, const mode_result *results, int count);
/* Of largest batches: what --find-batch prints. */
void report_batches(FILE *stream, const mode_result *results, int count);
/* 0, or -1 with errno set. */
int report_json(const char *path, const run_settings *settings, const mode_result *results,
                int count);
/* 0, or a negative status with the sentence set. */
int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count);

#endif
