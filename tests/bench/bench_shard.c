/* bench_shard.c: what sharding and offloading cost in time, and which memory a device needs.
 *
 *     bench_shard NET [DEVICES [THREADS [SECONDS]]]
 *
 * trains the net in each way in one process, two ways step by step in turn, and prints the medians
 * of both and the median of the ratios of pairs: sharded gradients and state beside no sharding,
 * sharded parameters beside that, an offloaded state beside sharded gradients and state. Peaks are
 * those of the fullest device in a step, by a run of each way alone. */
#include <stdio.h>

#include "job.h"

enum { WARMUPS = 3, WAYS = 4 };

static const struct {
    const char *name;
    ek_shard_policy shard;
    ek_offload_policy offload;
    int beside; /* the way that it is compared with */
} ways[WAYS] = {{"unsharded", EK_SHARD_NONE, EK_OFFLOAD_NONE, 0},
                {"sharded", EK_SHARD_OPTIMIZER, EK_OFFLOAD_NONE, 0},
                {"parameters, too", EK_SHARD_PARAMETERS, EK_OFFLOAD_NONE, 1},
                {"offloaded", EK_SHARD_OPTIMIZER, EK_OFFLOAD_OPTIMIZER, 1}};

typedef struct shard_sides {
    training jobs[WAYS];
    int compared[2]; /* the ways that are compared */
    const ek_device_list *devices;
} shard_sides;

static int shard_open(training *job, const job_arguments *given, int way)
{
    return job_open(job, &given->load, &given->devices,
                    EK_OPTIONS(ek_data_parallel_options, .shard = ways[way].shard,
                               .offload = ways[way].offload));
}

/* Writes the MiB of the fullest device in the third step. */
static int shard_peak(const job_arguments *given, int way, double *most)
{
    training job = {0};
    int rc = shard_open(&job, given, way);
    for (int step = 0; step < WARMUPS && rc == 0; step++) {
        for (int d = 0; d < given->devices.count && rc == 0; d++)
            rc = ek_memory_reset_peak(given->devices.devices[d]);
        rc = rc < 0 ? rc : job_step(&job, NULL);
    }
    for (int d = 0; d < given->devices.count && rc >= 0; d++) {
        ek_memory_stats stats;
        rc = ek_memory_get_stats(given->devices.devices[d], &stats);
        double peak = (double)stats.peak / (1 << 20);
        *most = rc >= 0 && peak > *most ? peak : *most;
    }
    job_close(&job);
    return rc;
}

static int shard_step(void *user, int side, int pair, double *seconds)
{
    shard_sides *sides = user;
    double begin = job_now();
    int rc = job_step(&sides->jobs[sides->compared[side]], NULL);
    (void)pair;
    rc = rc < 0 ? rc : job_settle(sides->devices);
    *seconds = job_now() - begin;
    return rc;
}

int main(int argc, char **argv)
{
    static job_pairs pairs;
    double peaks[WAYS] = {0};
    job_arguments given;
    int rc = job_arguments_read(&given, argc, argv);
    if (rc != 0)
        return rc;
    shard_sides sides = {.devices = &given.devices};
    for (int i = 0; i < WAYS && rc == 0; i++)
        rc = shard_peak(&given, i, &peaks[i]);
    for (int i = 0; i < WAYS && rc == 0; i++)
        rc = shard_open(&sides.jobs[i], &given, i);
    for (int i = given.devices.count > 1 ? 1 : WAYS - 1; i < WAYS && rc == 0; i++) {
        sides.compared[0] = given.devices.count > 1 ? ways[i].beside : 0;
        sides.compared[1] = i;
        rc = job_compare(&pairs, shard_step, &sides, WARMUPS, given.budget / (WAYS - 1));
        for (int side = 0; side < 2 && rc == 0; side++)
            printf("%s %s %.3f ms, peak %.1f MiB", side ? "," : argv[1],
                   ways[sides.compared[side]].name,
                   1000 * job_median(pairs.seconds[side], pairs.count),
                   peaks[sides.compared[side]]);
        if (rc == 0)
            printf(", ratio %.4f (median of %d pairs)\n", job_median(pairs.ratio, pairs.count),
                   pairs.count);
    }
    for (int i = 0; i < WAYS; i++)
        job_close(&sides.jobs[i]);
    return job_exit(rc);
}
