/* bench_shard.c: what dividing gradients and optimizer state costs in time.
 *
 *     bench_shard NET [DEVICES [THREADS [SECONDS]]]
 *
 * trains the net twice in one process, undivided and divided, step by step in turn, and prints both
 * medians and the median of the ratios of pairs. */
#include <stdio.h>
#include <stdlib.h>

#include "args.h"
#include "job.h"

enum { WARMUP_STEPS = 3, MOST_PAIRS = 10000 };

typedef struct timing {
    double whole[MOST_PAIRS], divided[MOST_PAIRS], ratio[MOST_PAIRS];
    int count;
} timing;

static int timed_step(training *job, const ek_device_list *devices, double *seconds)
{
    double begin = job_now();
    int rc = job_step(job, NULL);

    rc = rc < 0 ? rc : job_settle(devices);
    *seconds = job_now() - begin;
    return rc;
}

/* Who goes first changes from pair to pair. */
static int measure(training *whole, training *divided, const ek_device_list *devices, double budget,
                   timing *t)
{
    double start = job_now(), ignored;
    int rc = 0;

    for (int i = 0; rc == 0 && i < WARMUP_STEPS; i++) {
        rc = timed_step(whole, devices, &ignored);
        rc = rc < 0 ? rc : timed_step(divided, devices, &ignored);
    }
    while (rc == 0 && t->count < MOST_PAIRS && (t->count < 5 || job_now() - start < budget)) {
        int i = t->count++;
        if (i % 2)
            rc = timed_step(divided, devices, &t->divided[i]);
        rc = rc < 0 ? rc : timed_step(whole, devices, &t->whole[i]);
        if (i % 2 == 0)
            rc = rc < 0 ? rc : timed_step(divided, devices, &t->divided[i]);
        t->ratio[i] = t->divided[i] / t->whole[i];
    }
    return rc;
}

int main(int argc, char **argv)
{
    static timing t;
    workload load;
    training whole = {0}, divided = {0};
    int count = argc > 2 ? atoi(argv[2]) : 2, threads = argc > 3 ? atoi(argv[3]) : 1;
    double budget = argc > 4 ? atof(argv[4]) : 10;

    if (argc < 2 || !workload_named(argv[1], &load) || count < 1 || threads < 1) {
        fprintf(stderr, "usage: %s NET[@BATCH] [DEVICES [THREADS [SECONDS]]]\n", argv[0]);
        return 2;
    }
    ek_device_list devices = devices_open(EK_HOST, count);
    int rc = devices.count ? 0 : ek_error_status();
    for (int i = 0; rc == 0 && i < devices.count; i++)
        rc = ek_device_set_threads(devices.devices[i], threads);
    if (rc == 0)
        rc = job_open(&whole, &load, &devices, (ek_data_parallel_options){0});
    if (rc == 0)
        rc = job_open(&divided, &load, &devices,
                      (ek_data_parallel_options){.shard = EK_SHARD_OPTIMIZER});
    if (rc == 0)
        rc = measure(&whole, &divided, &devices, budget, &t);
    job_close(&whole);
    job_close(&divided);
    if (rc < 0 || ek_shutdown() < 0) {
        ek_print_error(stderr);
        return 1;
    }
    printf("%-14s %dx%d undivided %.3f ms, divided %.3f ms, ratio %.4f (median of %d pairs)\n",
           argv[1], count, threads, 1000 * job_median(t.whole, t.count),
           1000 * job_median(t.divided, t.count), job_median(t.ratio, t.count), t.count);
    return 0;
}
