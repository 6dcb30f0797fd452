/* bench_shard.c: what dividing gradients and optimizer state costs in time.
 *
 *     bench_shard NET [DEVICES [THREADS [SECONDS]]]
 *
 * trains the net twice in one process, unsharded and sharded, step by step in turn, and prints both
 * medians and the median of the ratios of pairs. */
#include <stdio.h>

#include "job.h"

enum { WARMUPS = 3 };

typedef struct shard_sides {
    training jobs[2]; /* unsharded, sharded */
    const ek_device_list *devices;
} shard_sides;

static int shard_step(void *user, int side, int pair, double *seconds)
{
    shard_sides *sides = user;
    double begin = job_now();
    int rc = job_step(&sides->jobs[side], NULL);
    (void)pair;
    rc = rc < 0 ? rc : job_settle(sides->devices);
    *seconds = job_now() - begin;
    return rc;
}

int main(int argc, char **argv)
{
    static job_pairs pairs;
    job_arguments given;
    int rc = job_arguments_read(&given, argc, argv);
    if (rc != 0)
        return rc;
    shard_sides sides = {.devices = &given.devices};
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = job_open(&sides.jobs[i], &given.load, &given.devices,
                      EK_OPTIONS(ek_data_parallel_options,
                                 .shard = i ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE));
    if (rc == 0)
        rc = job_compare(&pairs, shard_step, &sides, WARMUPS, given.budget);
    if (rc == 0)
        printf("%-14s %dx%d unsharded %.3f ms, sharded %.3f ms, ratio %.4f (median of %d pairs)\n",
               argv[1], given.devices.count, given.threads,
               1000 * job_median(pairs.seconds[0], pairs.count),
               1000 * job_median(pairs.seconds[1], pairs.count),
               job_median(pairs.ratio, pairs.count), pairs.count);
    job_close(&sides.jobs[0]);
    job_close(&sides.jobs[1]);
    return job_exit(rc);
}
