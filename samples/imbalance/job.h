/* job.h: one mode's model, criterion and optimizer on fresh devices. */
#ifndef IMBALANCE_JOB_H
#define IMBALANCE_JOB_H

#include "imbalance/settings.h"

typedef struct train_job {
    train_mode mode;
    ek_device_list devices;
    ek_module *network; /* owned by the model */
    ek_module *model;
    ek_module *criterion;
    ek_optimizer *optimizer;
} train_job;

/* Replaces the host devices by fresh ones, so that no mode sees another's memory, and makes the
 * model on them from the seed. Everything must be closed before. Returns 0 or a negative status;
 * close it anyway. */
int job_open(train_job *job, const run_settings *settings, train_mode mode);

/* One step on a batch on cpu: forward, loss, backward, optimizer. */
int job_step(train_job *job, ek_tensor *images, ek_tensor *labels, double *loss);

/* Returns EK_E_STATE, with a sentence, when a device's memory has not come back to zero. */
int job_close(train_job *job);

#endif
