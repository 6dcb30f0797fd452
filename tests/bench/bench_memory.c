/* bench_memory.c: memory of a training whose batches change their size.
 *
 *     [DEVICE=host|cuda] bench_memory NET[-bf16|-tf32|-fast][@BATCH] [DEVICES [PARTS...]]
 *
 * Trains once with whole batches only and once with batches of PARTS thirty-seconds (32 32 7 32 19
 * 32 7 19 32), each in a process of its own. For each step it prints the samples, the milliseconds,
 * the page faults and the system's allocations; then, summed over the devices, what was in use and
 * reserved at the peak, the largest resident set, and the second training's share of the first's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job.h"

enum { MOST_STEPS = 64, WHOLE = 32 };

typedef struct figures {
    double in_use, reserved, resident, served; /* MiB; the system's allocations */
} figures;

static int read_figures(const ek_device_list *devices, figures *sum)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    *sum = (figures){.resident = (double)usage.ru_maxrss / 1024};
    for (int i = 0; i < devices->count; i++) {
        ek_memory_stats stats;
        if (ek_memory_get_stats(devices->devices[i], &stats) < 0)
            return ek_error_status();
        sum->in_use += (double)stats.peak / 1048576;
        sum->reserved += (double)stats.reserved_peak / 1048576;
        sum->served += (double)stats.system_allocations;
    }
    return 0;
}

static int run_step(training *job, int64_t samples, const ek_device_list *devices)
{
    training part = *job;
    ek_scope scope = ek_scope_begin();
    part.input = ek_narrow(job->input, 0, 0, samples);
    part.target = ek_narrow(job->target, 0, 0, samples);
    int rc = ek_error_status();
    if (rc >= 0)
        rc = job_step(&part, NULL);
    ek_scope_end(&scope);
    return rc < 0 ? rc : job_settle(devices);
}

static int train(const workload *load, int count, const int *parts, int steps, figures *sum)
{
    training job = {0};
    ek_device_list devices;
    int rc = job_devices(&devices, job_kind(), count, 0);
    if (rc >= 0)
        rc = job_open(&job, load, &devices, EK_OPTIONS(ek_data_parallel_options));
    for (int i = 0; i < steps && rc >= 0; i++) {
        struct rusage before, after;
        figures at, now;
        int64_t samples = (load->batch * parts[i] + WHOLE - 1) / WHOLE;
        rc = read_figures(&devices, &at);
        getrusage(RUSAGE_SELF, &before);
        double begin = job_now();
        if (rc >= 0)
            rc = run_step(&job, samples, &devices);
        double ms = 1e3 * (job_now() - begin);
        getrusage(RUSAGE_SELF, &after);
        if (rc >= 0)
            rc = read_figures(&devices, &now);
        if (rc >= 0)
            printf("  step %2d: %4d samples %9.1f ms %7ld faults %5.0f allocations %9.1f MiB "
                   "reserved\n",
                   i + 1, (int)samples, ms, after.ru_minflt - before.ru_minflt,
                   now.served - at.served, now.reserved);
    }
    if (rc >= 0)
        rc = read_figures(&devices, sum);
    job_close(&job);
    return job_exit(rc);
}

/* In a process of its own, since a peak of the resident set stays. Returns 0 or 1. */
static int measure(const workload *load, int count, const int *parts, int steps, figures *sum)
{
    int ends[2], status = 1;
    if (pipe(ends) < 0)
        return 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        status = train(load, count, parts, steps, sum);
        fflush(stdout);
        if (status == 0 && write(ends[1], sum, sizeof *sum) != (ssize_t)sizeof *sum)
            status = 1;
        _exit(status);
    }
    close(ends[1]);
    bool whole = read(ends[0], sum, sizeof *sum) == (ssize_t)sizeof *sum;
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 && whole ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const int usual[] = {32, 32, 7, 32, 19, 32, 7, 19, 32};
    int parts[2][MOST_STEPS], steps = argc > 3 ? argc - 3 : (int)(sizeof usual / sizeof *usual);
    int count = argc > 2 ? atoi(argv[2]) : 1;
    workload load;
    figures sums[2];
    if (argc < 2 || steps > MOST_STEPS || count < 1 || !workload_named(argv[1], &load)) {
        fprintf(stderr, "usage: [DEVICE=host|cuda] %s NET[@BATCH] [DEVICES [PARTS...]]\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < steps; i++) {
        parts[0][i] = WHOLE;
        parts[1][i] = argc > 3 ? atoi(argv[3 + i]) : usual[i];
        if (parts[1][i] < 1 || parts[1][i] > WHOLE) {
            fprintf(stderr, "%s: a part is 1 to %d\n", argv[0], WHOLE);
            return 2;
        }
    }
    for (int way = 0; way < 2; way++) {
        printf("%s, %s\n", argv[1], way ? "batches of several sizes" : "whole batches");
        if (measure(&load, count, parts[way], steps, &sums[way]) != 0)
            return 1;
        printf("  %.1f MiB in use, %.1f MiB reserved, %.1f MiB resident, %.0f allocations\n",
               sums[way].in_use, sums[way].reserved, sums[way].resident, sums[way].served);
    }
    printf("several sizes to whole batches: %.3f reserved, %.3f resident\n",
           sums[1].reserved / sums[0].reserved, sums[1].resident / sums[0].resident);
    return 0;
}
