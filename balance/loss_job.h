/* loss_job.h: one criterion call on all devices. */
#ifndef EK_BALANCE_LOSS_JOB_H
#define EK_BALANCE_LOSS_JOB_H

#include "core/device.h"
#include "evenkeel/module.h"

typedef struct loss_job {
    int parts;   /* devices that take part */
    bool weigh;  /* ask for denominators */
    bool is_sum; /* result: nothing divides these losses */
    ek_args args[EK_MAX_DEVICES];
    ek_value *inputs; /* memory of args[].inputs */
    /* At first the chunks' samples; result: what the losses that are means divide by. Where it lies
     * in memory that the host doesn't read it stays there, in `counted`, else NULL. */
    double denominators[EK_MAX_DEVICES];
    ek_tensor *counted[EK_MAX_DEVICES]; /* in the caller's scope */
    ek_value losses[EK_MAX_DEVICES];    /* result, in the caller's scope */
} loss_job;

/* A tensor of zero dimensions. */
bool ek_loss_is_scalar(ek_value loss);

/* Runs modules[i] on devs[i] for every part. */
int ek_loss_job_run(loss_job *job, ek_module *const *modules, ek_dev *const *devs);

#endif
