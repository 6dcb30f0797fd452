/* job.h: one workload's training, and its steps. */
#ifndef BENCH_JOB_H
#define BENCH_JOB_H

#include "nets.h"

/* The workload's network, criterion, optimizer and data, drawn from seed 0, balanced over the
 * devices as `options` says beside. Returns 0 or a negative status; close it anyway. */
int job_open(training *job, const workload *load, const ek_device_list *devices,
             ek_data_parallel_options options);
void job_close(training *job);

/* Forward, loss, zero_grad, backward, clipping, step. `loss` may be NULL: reading it would wait for
 * the device. */
int job_step(training *job, double *loss);

/* `count` devices, those of the host with so many threads each (0: as many as they have). 0 or a
 * negative status. */
int job_devices(ek_device_list *devices, ek_device_kind kind, int count, int threads);
/* The kind that DEVICE in the environment names: EK_HOST unless it is "cuda". */
ek_device_kind job_kind(void);
/* NET [DEVICES [THREADS [SECONDS]]] of a command line, and host devices for it. 0, or the exit
 * status after the usage or an error was printed. */
typedef struct job_arguments {
    workload load;
    ek_device_list devices;
    int threads;
    double budget; /* seconds */
} job_arguments;
int job_arguments_read(job_arguments *arguments, int argc, char **argv);
/* Shuts the library down and gives the exit status; prints the error if there was one. */
int job_exit(int rc);

/* Waits for the devices. */
int job_settle(const ek_device_list *devices);

/* Returns the largest resident memory of this process since the last call, in bytes, and begins
 * anew. Pages of files don't count, and a page that `sharers` processes share counts as their part
 * of a page. Returns 0 if the system doesn't tell. */
double job_resident_peak(int sharers);

/* Seconds of a clock that only goes forward. */
double job_now(void);

/* Two sides, timed in turn: who goes first changes from pair to pair. */
enum { MOST_PAIRS = 10000 };
typedef struct job_pairs {
    double seconds[2][MOST_PAIRS], ratio[MOST_PAIRS]; /* of a side; seconds[1] / seconds[0] */
    int count;
} job_pairs;
/* Runs a side for a pair and gives its seconds. 0 or a negative status. */
typedef int job_side(void *user, int side, int pair, double *seconds);
int job_compare(job_pairs *pairs, job_side *run, void *user, int warmups, double budget);

/* Sorts them. */
double job_median(double *values, int count);

#endif
