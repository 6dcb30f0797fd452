/* bench_plan.c: what a plan for unequal devices gains.
 *
 *     bench_plan NET[@BATCH] [SECONDS [DEVICES]]
 *
 * trains the net on two host devices of one thread each, of which the second has half the speed (or
 * on DEVICES, as EVENKEEL_HOST_DEVICES takes them), until EK_SPLIT_AUTO for time has settled; then
 * in equal chunks and by that plan, step by step in turn. Prints both medians, the median of the
 * ratios of pairs, and how long each device worked in a planned step. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/device.h"
#include "job.h"

enum { PLAN_STEPS = 30, WARMUPS = 3 };
enum { PLANNED, EQUAL }; /* sides */

typedef struct plan_sides {
    training jobs[2];
    const ek_device_list *devices;
    double busy[EK_MAX_DEVICES][MOST_PAIRS]; /* milliseconds of each device in a planned step */
} plan_sides;

static int timed_step(training *job, double *seconds)
{
    double begin = job_now();
    int rc = job_step(job, NULL);
    *seconds = job_now() - begin;
    return rc;
}

static uint64_t busy_ns(const ek_device_list *devices, int i)
{
    return ek_dev_busy_ns(ek_dev_get(devices->devices[i]));
}

static int plan_step(void *user, int side, int pair, double *seconds)
{
    plan_sides *sides = user;
    uint64_t before[EK_MAX_DEVICES];
    for (int i = 0; i < sides->devices->count; i++)
        before[i] = busy_ns(sides->devices, i);
    int rc = timed_step(&sides->jobs[side], seconds);
    for (int i = 0; i < sides->devices->count && side == PLANNED; i++)
        sides->busy[i][pair] = 1e-6 * (double)(busy_ns(sides->devices, i) - before[i]);
    return rc;
}

/* The sizes that EK_SPLIT_AUTO settles on, while nothing else runs on the devices. */
static int plan(const workload *load, const ek_device_list *devices,
                ek_data_parallel_options *options)
{
    training job;
    double seconds;
    int rc = job_open(&job, load, devices,
                      EK_OPTIONS(ek_data_parallel_options, .split = EK_SPLIT_AUTO,
                                 .goal = EK_GOAL_TIME));
    for (int i = 0; rc == 0 && i < PLAN_STEPS; i++)
        rc = timed_step(&job, &seconds);
    if (rc == 0)
        rc = ek_data_parallel_sizes(job.model, load->batch, options->chunks);
    job_close(&job);
    return rc;
}

static void show_line(ek_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    printf("%s\n", line);
}

static void show(const char *net, plan_sides *sides, job_pairs *pairs)
{
    double least = 0, most = 0;
    for (int i = 0; i < sides->devices->count; i++) {
        double busy = job_median(sides->busy[i], pairs->count);
        printf("host:%d works %.3f ms of a planned step\n", i, busy);
        least = i == 0 || busy < least ? busy : least;
        most = busy > most ? busy : most;
    }
    printf("%-14s equal %.3f ms, planned %.3f ms, ratio %.4f (median of %d pairs), "
           "devices within %.1f %%\n",
           net, 1000 * job_median(pairs->seconds[EQUAL], pairs->count),
           1000 * job_median(pairs->seconds[PLANNED], pairs->count),
           job_median(pairs->ratio, pairs->count), pairs->count, 100 * (most - least) / most);
}

int main(int argc, char **argv)
{
    static job_pairs pairs;
    static plan_sides sides;
    workload load;
    double budget = argc > 2 ? atof(argv[2]) : 10;
    if (argc < 2 || !workload_named(argv[1], &load)) {
        fprintf(stderr, "usage: %s NET[@BATCH] [SECONDS [DEVICES]]\n", argv[0]);
        return 2;
    }
    ek_set_log(show_line, NULL);
    int rc = ek_host_devices_configure(argc > 3 ? argv[3] : "0@1,0@0.5");
    ek_device_list devices = ek_devices(EK_HOST, 0);
    for (int i = 0; rc == 0 && i < devices.count; i++)
        rc = ek_device_set_threads(devices.devices[i], 1);
    ek_data_parallel_options options = EK_DEFAULTS(ek_data_parallel_options);
    if (rc == 0)
        rc = plan(&load, &devices, &options);
    sides.devices = &devices;
    if (rc == 0)
        rc = job_open(&sides.jobs[EQUAL], &load, &devices, EK_OPTIONS(ek_data_parallel_options));
    if (rc == 0)
        rc = job_open(&sides.jobs[PLANNED], &load, &devices, options);
    if (rc == 0)
        rc = job_compare(&pairs, plan_step, &sides, WARMUPS, budget);
    job_close(&sides.jobs[EQUAL]);
    job_close(&sides.jobs[PLANNED]);
    if (rc == 0)
        show(argv[1], &sides, &pairs);
    return job_exit(rc);
}
