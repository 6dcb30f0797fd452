/* job.h: network, criterion, optimizer and schedule on their devices, and one step. */
#ifndef CLASSIFY_JOB_H
#define CLASSIFY_JOB_H

#include "classify/data.h"

typedef struct train_job {
    run_settings settings;
    ek_device_list devices;
    ek_module *network; /* owned by the model */
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_schedule *schedule; /* NULL: the rate stays */
    char plan[1024];       /* of balanced-auto: each device's share; "" for others */
} train_job;

/* Makes the network from the seed. `plan` is what balanced-auto follows; NULL: it is measured
 * first. `epoch_steps` is what an epoch has, for the schedule. Returns 0 or a negative status;
 * close it anyway. */
int job_open(train_job *job, const run_settings *settings, const ek_device_list *devices,
             const char *plan, int64_t epoch_steps);
void job_close(train_job *job);

/* Where batches are to go. */
data_parts job_parts(train_job *job);

/* Forward, loss, backward, optimizer, schedule, on a batch that lies where job_parts said. A loss
 * that is no number is EK_E_INVALID, before the parameters have changed. */
int job_step(train_job *job, const ek_batch *batch, double *loss);

#endif
