/* bench_scale.c: what training over many ranks would take (simulate.h).
 *
 *     bench_scale [--net NET] [--from PROFILE] ...
 *
 * prints the efficiency of ResNet-18, whose step is measured here, and of a transformer of 100.8
 * million parameters at a stated number of flops per second, on 8 to 4096 ranks at 25 and 100
 * Gbit/s, for each way to add gradients. Its parts, by which tests/bench/test_scale holds the
 * simulation against steps of several ranks here:
 *
 *     bench_scale --profile --net mlp@128 --copies 2       what a rank does by itself
 *     samples/mpirun -n 2 bench_scale --calibrate          what transfers cost on this machine
 *     bench_scale --predict 4 --from PROFILE --machine FILE --cores 2 */
#include <stdio.h>

#include "args.h"
#include "scale_machine.h"
#include "scale_profile.h"

#define OPTIONS(ROW)                                                                           \
    ROW(switch, profile, "measure what one rank does in a step, and print it")                 \
    ROW(switch, calibrate, "measure transfers between the ranks, and print them")              \
    ROW(int, predict, "0", 0, 1 << 20, "print a step's seconds on N ranks")                    \
    ROW(text, net, "resnet18@32", "NET", "the net that is measured")                           \
    ROW(text, from, NULL, "PROFILE", "what --profile has printed: measures nothing")           \
    ROW(text, machine, NULL, "FILE", "what --calibrate has printed")                           \
    ROW(switch, messages, "ranks of one node share no memory")                                 \
    ROW(int, copies, "1", 1, 64, "processes that are measured at a time")                      \
    ROW(int, threads, "1", 1, 1024, "threads that compute, of a rank")                         \
    ROW(real, cores, "0", 0, 1e6, "cores of a node; 0: always enough")                         \
    ROW(real, seconds, "5", 0, 1e6, "how long to measure")                                     \
    ROW(real, cap, "25", 1e-3, 1e6, "MiB of a bucket")                                         \
    ROW(int, in_flight, "2", 1, 64, "buckets at a time")                                       \
    ROW(real, speed_up, "50", 1e-3, 1e9, "a second device for NET, so much faster")            \
    ROW(real, tokens, "4096", 1, 1e12, "of a rank's step, for the transformer")                \
    ROW(real, teraflops, "10", 1e-6, 1e9, "a second, of a rank, for it")                       \
    ROW(real, latency, "2", 0, 1e9, "microseconds between nodes")                              \
    ROW(real, local_latency, "1", 0, 1e9, "microseconds within a node")                        \
    ROW(real, local, "20", 1e-6, 1e9, "GB/s of a rank within a node")                          \
    ROW(real, add, "20", 1e-6, 1e9, "GB/s of terms that are added")                            \
    ROW(real, shared, "10", 1e-6, 1e9, "GB/s of gradients that are averaged in shared memory") \
    ROW(real, turn, "50", 0, 1e9, "microseconds until a call's turn comes")                    \
    ROW(real, sigma, "0.02", 0, 10, "jitter: sigma of the logarithm of a step")                \
    ROW(int, steps, "100", 1, 1e6, "simulated steps, of which the mean is taken")              \
    ROW(int, seed, "1", 0, ARG_MOST_SEED, "of the jitter")
args_declare(OPTIONS);

static int scale_measure(sim_profile *profile)
{
    workload load;
    if (!workload_named(opt.net, &load)) {
        char names[200];
        workload_names(names, sizeof names);
        return args_complain("--net is %s; it must be one of %s", opt.net, names);
    }
    return profile_measure(profile, &load, (int)opt.threads, (int)opt.copies, opt.seconds, opt.cap);
}

static int scale_profile(sim_profile *profile)
{
    return opt.from ? profile_read(profile, opt.from) : scale_measure(profile);
}

static int scale_calibrate(void)
{
    sim_cluster cluster = {0};
    int rc = ek_dist_init_process_group();
    int rank = ek_dist_get_rank(NULL);
    if (rc >= 0)
        rc = machine_measure(&cluster, opt.seconds);
    if (rc >= 0 && rank == 0)
        machine_write(&cluster, stdout);
    return rc;
}

static int scale_predict(void)
{
    static sim_profile profile;
    sim_cluster cluster = {.cores = opt.cores, .threads = (double)opt.threads};
    if (!opt.machine)
        return args_complain("--predict needs --machine");
    if (scale_profile(&profile) < 0 || machine_read(&cluster, opt.machine) < 0)
        return -1;
    if (opt.messages)
        cluster.shared = 0;
    sim_result result = sim_simulate(&profile, &cluster,
                                     (sim_run){.ranks = (int)opt.predict,
                                               .in_flight = (int)opt.in_flight,
                                               .sigma = profile.sigma,
                                               .steps = (int)opt.steps,
                                               .seed = (uint64_t)opt.seed});
    printf("%.6f %.6f %.3f\n", result.step, result.exposed, result.efficiency);
    return 0;
}

/* ---- the table ---- */

static sim_cluster scale_cluster(double gigabits, int per_node)
{
    return (sim_cluster){.network = {1e-6 * opt.latency, 8e-9 / gigabits},
                         .local = {1e-6 * opt.local_latency, 1e-9 / opt.local},
                         .per_node = per_node,
                         .cores = opt.cores,
                         .threads = (double)opt.threads,
                         .add = 1e-9 / opt.add,
                         .shared = opt.messages ? 0 : 1e-9 / opt.shared,
                         .turn = 1e-6 * opt.turn};
}

/* Each sum's efficiency, and exposed milliseconds. */
static void scale_row(const sim_profile *profile, double gigabits, int per_node, int ranks)
{
    sim_cluster cluster = scale_cluster(gigabits, per_node);
    printf("%5.0f %5d %6d ", gigabits, per_node, ranks);
    for (int sum = 0; sum < SIM_SUMS; sum++) {
        sim_result result = sim_simulate(profile, &cluster,
                                         (sim_run){.ranks = ranks,
                                                   .sum = (sim_sum)sum,
                                                   .in_flight = (int)opt.in_flight,
                                                   .sigma = opt.sigma,
                                                   .steps = (int)opt.steps,
                                                   .seed = (uint64_t)opt.seed});
        printf("  %5.1f %% %8.2f", 100 * result.efficiency, 1000 * result.exposed);
    }
    printf("\n");
}

static void scale_table(const char *name, const sim_profile *profile)
{
    static const double gigabits[] = {25, 100};
    static const int ranks[] = {8, 64, 512, 4096}, per_node[] = {1, 8};
    double nbytes = 0, own = profile->forward + profile->backward + profile->optimizer;
    for (int b = 0; b < profile->bucket_count; b++)
        nbytes += profile->buckets[b].nbytes;
    printf("\n%s: a rank's step takes %.1f ms (backward %.1f), gradients are %.1f MB in %d "
           "buckets\n",
           name, 1000 * own, 1000 * profile->backward, 1e-6 * nbytes, profile->bucket_count);
    printf("%5s %5s %6s ", "Gb/s", "/node", "ranks");
    for (int sum = 0; sum < SIM_SUMS; sum++)
        printf("  %16s", sim_sum_names[sum]);
    printf("   efficiency and exposed ms\n");
    for (int n = 0; n < 2; n++)
        for (int g = 0; g < 2; g++)
            for (int r = 0; r < 4; r++)
                scale_row(profile, gigabits[g], per_node[n], ranks[r]);
}

static int scale_tables(void)
{
    static sim_profile profile;
    char name[100];
    if (scale_profile(&profile) < 0)
        return -1;
    printf("jitter %.1f %%, %lld bucket%s in flight; between nodes %.1f us, within one %.1f us and "
           "%.0f "
           "GB/s; %.0f GB/s added\n",
           100 * opt.sigma, (long long)opt.in_flight, opt.in_flight == 1 ? "" : "s", opt.latency,
           opt.local_latency, opt.local, opt.add);
    snprintf(name, sizeof name, "%.60s, as measured", opt.from ? opt.from : opt.net);
    scale_table(name, &profile);
    profile_speed_up(&profile, opt.speed_up);
    snprintf(name, sizeof name, "%.60s, %.0f times as fast", opt.from ? opt.from : opt.net,
             opt.speed_up);
    scale_table(name, &profile);
    profile_transformer(&profile, opt.tokens, 1e12 * opt.teraflops, opt.cap);
    snprintf(name, sizeof name, "transformer, %.0f tokens at %.0f TFLOP/s", opt.tokens,
             opt.teraflops);
    scale_table(name, &profile);
    return 0;
}

int main(int argc, char **argv)
{
    static sim_profile profile;
    int rc = args_read(argc, argv, "Simulates training over many ranks.\n\n", option_table);
    if (rc != 0)
        return rc > 0 ? 0 : REFUSED;
    if (opt.calibrate)
        return job_exit(scale_calibrate());
    if (opt.predict)
        return job_exit(scale_predict());
    if (!opt.profile)
        return job_exit(scale_tables());
    rc = scale_measure(&profile);
    if (rc >= 0)
        profile_write(&profile, stdout);
    return job_exit(rc);
}
