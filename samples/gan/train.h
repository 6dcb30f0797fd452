/* train.h: a run from its start or a checkpoint to its end, and the files it writes. */
#ifndef GAN_TRAIN_H
#define GAN_TRAIN_H

#include <signal.h>

#include "common/order.h"
#include "gan/data.h"
#include "gan/job.h"
#include "gan/records.h"

typedef struct train_run {
    run_settings settings;
    gan_job job;
    picture_data data;
    sample_order order;
    run_records records;
    int64_t step; /* generator steps that are finished */
} train_run;

/* Begins, or goes on from settings->resume. Returns 0 or a negative status; close it anyway. */
int train_open(train_run *run, const run_settings *settings, const ek_device_list *devices);
/* Returns EK_E_STATE, with a sentence, when a device's memory has not come back to zero. */
int train_close(train_run *run);

/* One generator step and the critic steps before it. */
int train_step(train_run *run);

/* Steps until settings.steps are finished, or until *stopped after the step at hand; shows progress
 * and, with --out, writes files at every --every-th step and at the end. */
int train_steps(train_run *run, const volatile sig_atomic_t *stopped);

/* Writes samples-<step>.png, losses.html and checkpoint.safetensors to --out. */
int train_write(train_run *run);
/* The checkpoint's path. */
void train_checkpoint_path(const train_run *run, char *path, size_t nbytes);

#endif
