/* bench_ddp.c: what ek_distributed_data_parallel costs in a world of one rank.
 *
 *     bench_ddp NET [1 [THREADS [SECONDS]]]
 *
 * trains the net twice in one process, without and with that wrapper, step by step in turn, and
 * prints both medians and the median of the ratios of pairs. */
#include <stdio.h>

#include "job.h"

enum { WARMUPS = 3 };

static int ddp_step(void *user, int side, int pair, double *seconds)
{
    training *jobs = user;
    double begin = job_now();
    (void)pair;
    int rc = job_step(&jobs[side], NULL);
    *seconds = job_now() - begin;
    return rc;
}

int main(int argc, char **argv)
{
    static job_pairs pairs;
    job_arguments given;
    training jobs[2] = {0}; /* without, with the wrapper */
    int rc = job_arguments_read(&given, argc, argv);
    if (rc != 0)
        return rc;
    rc = ek_dist_init_process_group();
    for (int i = 0; i < 2 && rc == 0; i++) {
        given.load.distributed = i == 1;
        rc = job_open(&jobs[i], &given.load, &given.devices, EK_OPTIONS(ek_data_parallel_options));
    }
    if (rc == 0)
        rc = job_compare(&pairs, ddp_step, jobs, WARMUPS, given.budget);
    if (rc == 0)
        printf("%-14s %dx%d alone %.3f ms, one rank %.3f ms, ratio %.4f (median of %d pairs)\n",
               argv[1], given.devices.count, given.threads,
               1000 * job_median(pairs.seconds[0], pairs.count),
               1000 * job_median(pairs.seconds[1], pairs.count),
               job_median(pairs.ratio, pairs.count), pairs.count);
    job_close(&jobs[0]);
    job_close(&jobs[1]);
    return job_exit(rc);
}
