/* train.h: a run from its start or a checkpoint to its end. */
#ifndef CLASSIFY_TRAIN_H
#define CLASSIFY_TRAIN_H

#include <signal.h>

#include "classify/evaluate.h"
#include "classify/job.h"
#include "classify/records.h"

typedef struct train_run {
    run_settings settings;
    train_job job;
    ek_loader *training, *testing;
    ek_generator *test_random; /* the testing loader's */
    run_records records;
    int64_t train_count;       /* pictures */
    int64_t epoch_steps, step; /* steps in an epoch; that are finished, from the run's start */
    int64_t last_step;         /* where it ends */
    evaluation tested;         /* at the end; count 0: not yet */
    double speed;              /* samples per second of this program's steps */
    bool has_data;             /* the data set could be read */
} train_run;

/* Begins, or goes on from settings->resume. Returns 0 or a negative status; close it anyway. */
int train_open(train_run *run, const run_settings *settings, const ek_device_list *devices);
/* Returns EK_E_STATE, with a sentence, when a device's memory has not come back to zero. */
int train_close(train_run *run);

/* One step; after the last one of an epoch also its test and record. */
int train_step(train_run *run);

/* Steps until the last one is finished, or until *stopped after the step at hand; then tests, where
 * the last step was not an epoch's. Shows progress and, with --out, writes checkpoints. */
int train_steps(train_run *run, const volatile sig_atomic_t *stopped);

/* The checkpoint's path, below --out. */
void train_checkpoint_path(const train_run *run, char *path, size_t nbytes);

#endif
