/* job.h: one workload's training, and its steps. */
#ifndef BENCH_JOB_H
#define BENCH_JOB_H

#include "nets.h"

/* The workload's network, criterion, optimizer and data, drawn from seed 0, balanced over the
 * devices as `options` says beside. Returns 0 or a negative status; close it anyway. */
int job_open(training *job, const workload *load, const ek_device_list *devices,
             ek_data_parallel_options options);
void job_close(training *job);

/* Forward, loss, zero_grad, backward, step. `loss` may be NULL: reading it would wait for the
 * device. */
int job_step(training *job, double *loss);

/* Waits for the devices. */
int job_settle(const ek_device_list *devices);

/* Seconds of a clock that only goes forward. */
double job_now(void);

/* Sorts them. */
double job_median(double *values, int count);

#endif
