/* job.h: one workload's training, and its steps. */
#ifndef BENCH_JOB_H
#define BENCH_JOB_H

#include "nets.h"

/* Makes the workload's network, criterion, optimizer and data from seed 0, balanced over the
 * devices with the further options. Returns 0 or a negative status; job_close is called in either
 * case. */
int job_open(training *job, const workload *load, const ek_device_list *devices,
             ek_data_parallel_options options);
void job_close(training *job);

/* Runs forward, loss, zero_grad, backward, clipping, step. Reading `loss` waits for the device;
 * NULL doesn't wait. */
int job_step(training *job, double *loss);

/* Opens `count` devices. Host devices get so many threads each; 0 leaves their number alone.
 * Returns 0 or a negative status. */
int job_devices(ek_device_list *devices, ek_device_kind kind, int count, int threads);
/* Returns EK_CUDA if DEVICE in the environment is "cuda", else EK_HOST. */
ek_device_kind job_kind(void);
/* Reads NET [DEVICES [THREADS [SECONDS]]] and opens the host devices. Returns 0, or the exit status
 * after it has printed the usage or an error. */
typedef struct job_arguments {
    workload load;
    ek_device_list devices;
    int threads;
    double budget; /* seconds */
} job_arguments;
int job_arguments_read(job_arguments *arguments, int argc, char **argv);
/* Shuts the library down, prints the error if there was one, and returns the exit status. */
int job_exit(int rc);

/* Waits until the devices have done all work. */
int job_settle(const ek_device_list *devices);

/* Returns the largest resident memory of this process since the last call, in bytes, and begins
 * anew. Pages of files don't count, and a page that `sharers` processes share counts as their part
 * of a page. Returns 0 if the system doesn't tell. */
double job_resident_peak(int sharers);

/* Returns the seconds of a clock that only goes forward. */
double job_now(void);

/* The times of two sides, which run in turn. The first of a pair is the second of the next. */
enum { MOST_PAIRS = 10000 };
typedef struct job_pairs {
    double seconds[2][MOST_PAIRS], ratio[MOST_PAIRS]; /* [side][pair]; seconds[1] / seconds[0] */
    int count;
} job_pairs;
/* Runs a side for a pair and writes its seconds. Returns 0 or a negative status. */
typedef int job_side(void *user, int side, int pair, double *seconds);
int job_compare(job_pairs *pairs, job_side *run, void *user, int warmups, double budget);

/* Sorts the values, and returns their median. */
double job_median(double *values, int count);

#endif
