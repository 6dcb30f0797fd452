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

static struct {
    bool profile, calibrate, messages;
    int64_t predict, copies, threads, in_flight, steps, seed;
    const char *net, *from, *machine;
    double cores, seconds, cap, speed_up, tokens, teraflops;
    double latency, local_latency, local_gigabytes, add_gigabytes, shared_gigabytes, turn, sigma;
} scale;

static const arg_spec scale_args[] = {
    arg_switch("profile", &scale.profile, "measure what one rank does in a step, and print it"),
    arg_switch("calibrate", &scale.calibrate,
               "measure transfers between the ranks, and print them"),
    arg_int("predict", &scale.predict, "0", 0, 1 << 20, "print a step's seconds on N ranks"),
    arg_text("net", &scale.net, "resnet18@32", "NET", "the net that is measured"),
    arg_text("from", &scale.from, NULL, "PROFILE", "what --profile has printed: measures nothing"),
    arg_text("machine", &scale.machine, NULL, "FILE", "what --calibrate has printed"),
    arg_switch("messages", &scale.messages, "ranks of one node share no memory"),
    arg_int("copies", &scale.copies, "1", 1, 64, "processes that are measured at a time"),
    arg_int("threads", &scale.threads, "1", 1, 1024, "threads that compute, of a rank"),
    arg_real("cores", &scale.cores, "0", 0, 1e6, "cores of a node; 0: always enough"),
    arg_real("seconds", &scale.seconds, "5", 0, 1e6, "how long to measure"),
    arg_real("cap", &scale.cap, "25", 1e-3, 1e6, "MiB of a bucket"),
    arg_int("in-flight", &scale.in_flight, "1", 1, 64, "buckets at a time"),
    arg_real("speed-up", &scale.speed_up, "50", 1e-3, 1e9,
             "a second device for NET, so much faster"),
    arg_real("tokens", &scale.tokens, "4096", 1, 1e12, "of a rank's step, for the transformer"),
    arg_real("teraflops", &scale.teraflops, "10", 1e-6, 1e9, "a second, of a rank, for it"),
    arg_real("latency", &scale.latency, "2", 0, 1e9, "microseconds between nodes"),
    arg_real("local-latency", &scale.local_latency, "1", 0, 1e9, "microseconds within a node"),
    arg_real("local", &scale.local_gigabytes, "20", 1e-6, 1e9, "GB/s of a rank within a node"),
    arg_real("add", &scale.add_gigabytes, "20", 1e-6, 1e9, "GB/s of terms that are added"),
    arg_real("shared", &scale.shared_gigabytes, "10", 1e-6, 1e9,
             "GB/s of gradients that are averaged in shared memory"),
    arg_real("turn", &scale.turn, "50", 0, 1e9, "microseconds until a call's turn comes"),
    arg_real("sigma", &scale.sigma, "0.02", 0, 10, "jitter: sigma of the logarithm of a step"),
    arg_int("steps", &scale.steps, "100", 1, 1e6, "simulated steps, of which the mean is taken"),
    arg_int("seed", &scale.seed, "1", 0, ARG_MOST_SEED, "of the jitter"),
    arg_end};

static int scale_measure(sim_profile *profile)
{
    workload load;
    if (!workload_named(scale.net, &load)) {
        char names[200];
        workload_names(names, sizeof names);
        return args_complain("--net is %s; it must be one of %s", scale.net, names);
    }
    return profile_measure(profile, &load, (int)scale.threads, (int)scale.copies, scale.seconds,
                           scale.cap);
}

static int scale_profile(sim_profile *profile)
{
    return scale.from ? profile_read(profile, scale.from) : scale_measure(profile);
}

static int scale_calibrate(void)
{
    sim_cluster cluster = {0};
    int rc = ek_dist_init_process_group();
    int rank = ek_dist_get_rank(NULL);
    if (rc >= 0)
        rc = machine_measure(&cluster, scale.seconds);
    if (rc >= 0 && rank == 0)
        machine_write(&cluster, stdout);
    return rc;
}

static int scale_predict(void)
{
    static sim_profile profile;
    sim_cluster cluster = {.cores = scale.cores, .threads = (double)scale.threads};
    if (!scale.machine)
        return args_complain("--predict needs --machine");
    if (scale_profile(&profile) < 0 || machine_read(&cluster, scale.machine) < 0)
        return -1;
    if (scale.messages)
        cluster.shared = 0;
    sim_result result = sim_simulate(&profile, &cluster,
                                     (sim_run){.ranks = (int)scale.predict,
                                               .in_flight = (int)scale.in_flight,
                                               .sigma = profile.sigma,
                                               .steps = (int)scale.steps,
                                               .seed = (uint64_t)scale.seed});
    printf("%.6f %.6f %.3f\n", result.step, result.exposed, result.efficiency);
    return 0;
}

/* ---- the table ---- */

static sim_cluster scale_cluster(double gigabits, int per_node)
{
    return (sim_cluster){.network = {1e-6 * scale.latency, 8e-9 / gigabits},
                         .local = {1e-6 * scale.local_latency, 1e-9 / scale.local_gigabytes},
                         .per_node = per_node,
                         .cores = scale.cores,
                         .threads = (double)scale.threads,
                         .add = 1e-9 / scale.add_gigabytes,
                         .shared = scale.messages ? 0 : 1e-9 / scale.shared_gigabytes,
                         .turn = 1e-6 * scale.turn};
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
                                                   .in_flight = (int)scale.in_flight,
                                                   .sigma = scale.sigma,
                                                   .steps = (int)scale.steps,
                                                   .seed = (uint64_t)scale.seed});
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
           100 * scale.sigma, (long long)scale.in_flight, scale.in_flight == 1 ? "" : "s",
           scale.latency, scale.local_latency, scale.local_gigabytes, scale.add_gigabytes);
    snprintf(name, sizeof name, "%.60s, as measured", scale.from ? scale.from : scale.net);
    scale_table(name, &profile);
    profile_speed_up(&profile, scale.speed_up);
    snprintf(name, sizeof name, "%.60s, %.0f times as fast", scale.from ? scale.from : scale.net,
             scale.speed_up);
    scale_table(name, &profile);
    profile_transformer(&profile, scale.tokens, 1e12 * scale.teraflops, scale.cap);
    snprintf(name, sizeof name, "transformer, %.0f tokens at %.0f TFLOP/s", scale.tokens,
             scale.teraflops);
    scale_table(name, &profile);
    return 0;
}

int main(int argc, char **argv)
{
    static sim_profile profile;
    int rc = args_read(argc, argv, "Simulates training over many ranks.\n\n", scale_args);
    if (rc != 0)
        return rc > 0 ? 0 : REFUSED;
    if (scale.calibrate)
        return job_exit(scale_calibrate());
    if (scale.predict)
        return job_exit(scale_predict());
    if (!scale.profile)
        return job_exit(scale_tables());
    rc = scale_measure(&profile);
    if (rc >= 0)
        profile_write(&profile, stdout);
    return job_exit(rc);
}
