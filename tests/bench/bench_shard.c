/* bench_shard.c: what sharding costs in time: of gradients and optimizer state beside no sharding,
 * and of parameters beside that.
 *
 *     bench_shard NET [DEVICES [THREADS [SECONDS]]]
 *
 * trains the net with each policy in one process, two policies step by step in turn, and prints the
 * medians of both and the median of the ratios of pairs. */
#include <stdio.h>

#include "job.h"

enum { WARMUPS = 3 };

typedef struct shard_sides {
    training jobs[3]; /* by policy */
    int first;        /* the policies that are compared: this one and the next */
    const ek_device_list *devices;
} shard_sides;

static int shard_step(void *user, int side, int pair, double *seconds)
{
    shard_sides *sides = user;
    double begin = job_now();
    int rc = job_step(&sides->jobs[sides->first + side], NULL);
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
    static const char *const names[] = {"unsharded", "sharded", "parameters, too"};
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = job_open(&sides.jobs[i], &given.load, &given.devices,
                      EK_OPTIONS(ek_data_parallel_options, .shard = (ek_shard_policy)i));
    for (; sides.first < 2 && rc == 0; sides.first++) {
        rc = job_compare(&pairs, shard_step, &sides, WARMUPS, given.budget / 2);
        if (rc == 0)
            printf("%-14s %dx%d %s %.3f ms, %s %.3f ms, ratio %.4f (median of %d pairs)\n", argv[1],
                   given.devices.count, given.threads, names[sides.first],
                   1000 * job_median(pairs.seconds[0], pairs.count), names[sides.first + 1],
                   1000 * job_median(pairs.seconds[1], pairs.count),
                   job_median(pairs.ratio, pairs.count), pairs.count);
    }
    for (int i = 0; i < 3; i++)
        job_close(&sides.jobs[i]);
    return job_exit(rc);
}
