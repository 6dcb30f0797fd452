/* bench_resident.c: what the ledgers of host devices say, beside what the process really takes.
 *
 *     bench_resident [WIDTH [STEPS [PERCENT]]]
 *
 * Trains a perceptron of three layers of WIDTH x WIDTH (3000: 1 GB and more) with Adam on four host
 * devices, classic, balanced and with sharded state, and compares the growth of the reserved bytes
 * of all devices with the growth of the process' resident set, from before the model to the peak.
 * Fails if they differ by more than PERCENT (5). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "evenkeel/evenkeel.h"
#include "evenkeel/train.h"

enum { DEVICES = 4, BATCH = 64, LAYERS = 3, MODES = 3 };

static const char *const names[MODES] = {"classic", "balanced", "sharded"};

/* A line of /proc/self/status in bytes, such as "VmHWM"; 0 if there is none. */
static double of_process(const char *key)
{
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kilobytes = strtod(line + strlen(key) + 1, NULL);
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

/* Sums over the devices: most bytes that were reserved, and in use. */
static int of_ledgers(double *reserved, double *in_use)
{
    *reserved = *in_use = 0;
    for (int d = 0; d < DEVICES; d++) {
        ek_memory_stats stats;
        if (ek_memory_get_stats(ek_host(d), &stats) < 0)
            return ek_error_status();
        *reserved += (double)stats.reserved_peak;
        *in_use += (double)stats.peak;
    }
    return 0;
}

typedef struct job {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
} job;

static int open_job(job *j, int mode, int64_t width)
{
    ek_device_list devices = ek_devices(EK_HOST, DEVICES);
    ek_module *net = ek_sequential(ek_linear(width, width), ek_relu(), ek_linear(width, width),
                                   ek_relu(), ek_linear(width, width));
    ek_module *loss = ek_mse_loss();
    if (mode == 0) {
        j->model = ek_data_parallel(net, .device_ids = devices);
        j->criterion = loss;
    } else {
        j->model = ek_data_parallel_model(net, .device_ids = devices,
                                          .shard = mode == 2 ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE);
        j->criterion = ek_data_parallel_criterion(loss, .device_ids = devices);
    }
    j->optimizer = ek_adam(j->model);
    return j->model && j->criterion && j->optimizer ? 0 : ek_error_status();
}

static void close_job(job *j)
{
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->model);
    ek_module_free(j->criterion);
}

static int train(const job *j, int64_t width, int steps)
{
    int rc = 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_randn(EK_SHAPE(BATCH, width)), *y = ek_randn(EK_SHAPE(BATCH, width));
    for (int step = 0; step < steps && rc >= 0; step++)
        rc = ek_train_step(NULL, .model = j->model, .criterion = j->criterion,
                           .optimizer = j->optimizer, .input = EK_VALUE(x), .target = EK_VALUE(y));
    ek_scope_end(&scope);
    return rc;
}

/* Threads, handles and code are there: a small job has run. */
static int measure(int mode, int64_t width, int steps, double percent)
{
    double reserved[2], in_use[2], resident, peak;
    job j = {0};
    int rc = ek_host_devices_configure("4");
    if (rc >= 0)
        rc = open_job(&j, mode, 64);
    if (rc >= 0)
        rc = train(&j, 64, 2);
    close_job(&j);
    j = (job){0};
    for (int d = 0; d < DEVICES && rc >= 0; d++) {
        rc = ek_memory_trim(ek_host(d));
        if (rc >= 0)
            rc = ek_memory_reset_peak(ek_host(d));
    }
    if (rc >= 0)
        rc = of_ledgers(&reserved[0], &in_use[0]);
    resident = of_process("VmRSS");
    if (rc >= 0)
        rc = open_job(&j, mode, width);
    if (rc >= 0)
        rc = train(&j, width, steps);
    if (rc >= 0)
        rc = of_ledgers(&reserved[1], &in_use[1]);
    peak = of_process("VmHWM");
    close_job(&j);
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", names[mode], ek_error_message());
        return 1;
    }
    double ledgers = reserved[1] - reserved[0], process = peak - resident;
    double difference = 100 * (process - ledgers) / ledgers;
    printf("%-10s %8.1f MB in use  %8.1f MB reserved  %8.1f MB resident  %+6.2f %%\n", names[mode],
           (in_use[1] - in_use[0]) / 1e6, ledgers / 1e6, process / 1e6, difference);
    return fabs(difference) <= percent ? 0 : 1;
}

/* Each mode in a process of its own, since a peak of the resident set stays. */
int main(int argc, char **argv)
{
    int64_t width = argc > 1 ? strtoll(argv[1], NULL, 10) : 3000;
    int steps = argc > 2 ? atoi(argv[2]) : 3;
    double percent = argc > 3 ? strtod(argv[3], NULL) : 5;
    int failed = 0;
    for (int mode = 0; mode < MODES; mode++) {
        fflush(stdout);
        pid_t child = fork();
        int status = 1;
        if (child == 0) {
            status = measure(mode, width, steps, percent);
            fflush(stdout);
            _exit(status);
        }
        if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0)
            failed = 1;
    }
    return failed;
}
