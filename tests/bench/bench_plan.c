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

enum { PLAN_STEPS = 30, WARMUP_STEPS = 3, MOST_PAIRS = 10000 };

typedef struct timing {
    double equal[MOST_PAIRS], planned[MOST_PAIRS], ratio[MOST_PAIRS];
    double busy[EK_MAX_DEVICES][MOST_PAIRS];
    int count;
} timing;

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

static int planned_step(training *job, const ek_device_list *devices, timing *t, int at)
{
    uint64_t before[EK_MAX_DEVICES];
    for (int i = 0; i < devices->count; i++)
        before[i] = busy_ns(devices, i);
    int rc = timed_step(job, &t->planned[at]);
    for (int i = 0; i < devices->count; i++)
        t->busy[i][at] = 1e-6 * (double)(busy_ns(devices, i) - before[i]);
    return rc;
}

static int measure(training *equal, training *planned, const ek_device_list *devices, double budget,
                   timing *t)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < WARMUP_STEPS; i++) {
        rc = planned_step(planned, devices, t, 0);
        rc = rc < 0 ? rc : timed_step(equal, &t->equal[0]);
    }
    double start = job_now();
    while (rc == 0 && t->count < MOST_PAIRS && (t->count < 5 || job_now() - start < budget)) {
        int i = t->count++;
        rc = planned_step(planned, devices, t, i);
        rc = rc < 0 ? rc : timed_step(equal, &t->equal[i]);
        t->ratio[i] = t->equal[i] / t->planned[i];
    }
    return rc;
}

/* The sizes that EK_SPLIT_AUTO settles on, while nothing else runs on the devices. */
static int plan(const workload *load, const ek_device_list *devices,
                ek_data_parallel_options *options)
{
    training job;
    double seconds;
    int rc = job_open(&job, load, devices,
                      (ek_data_parallel_options){.split = EK_SPLIT_AUTO, .goal = EK_GOAL_TIME});
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

static void show(const char *net, const ek_device_list *devices, timing *t)
{
    double least = 0, most = 0;
    for (int i = 0; i < devices->count; i++) {
        double busy = job_median(t->busy[i], t->count);
        printf("host:%d works %.3f ms of a planned step\n", i, busy);
        least = i == 0 || busy < least ? busy : least;
        most = busy > most ? busy : most;
    }
    printf("%-14s equal %.3f ms, planned %.3f ms, ratio %.4f (median of %d pairs), "
           "devices within %.1f %%\n",
           net, 1000 * job_median(t->equal, t->count), 1000 * job_median(t->planned, t->count),
           job_median(t->ratio, t->count), t->count, 100 * (most - least) / most);
}

int main(int argc, char **argv)
{
    static timing t;
    workload load;
    training equal = {0}, planned = {0};
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
    ek_data_parallel_options options = {0};
    if (rc == 0)
        rc = plan(&load, &devices, &options);
    if (rc == 0)
        rc = job_open(&equal, &load, &devices, (ek_data_parallel_options){0});
    if (rc == 0)
        rc = job_open(&planned, &load, &devices, options);
    if (rc == 0)
        rc = measure(&equal, &planned, &devices, budget, &t);
    job_close(&equal);
    job_close(&planned);
    if (rc < 0 || ek_shutdown() < 0) {
        ek_print_error(stderr);
        return 1;
    }
    show(argv[1], &devices, &t);
    return 0;
}
