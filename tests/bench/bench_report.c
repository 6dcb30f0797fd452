/* bench_report.c: what collecting a report costs.
 *
 *     bench_report NET [DEVICES [THREADS [SECONDS]]]
 *
 * trains the net in blocks of steps, in turn without a report and with one, and prints both medians
 * of a step and the median of the ratios of neighbours, of time and of the process' CPU time. On a
 * busy machine these say little: the last line counts what a step tells the report, takes the time
 * that telling it needs at best, and sets the product against the CPU time of a step. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/device.h"
#include "job.h"
#include "report/report.h"

enum { WARMUP_STEPS = 5 };
static const double block_seconds = 0.05;

typedef struct block {
    training *job;
    const ek_device_list *devices;
    int steps, spans; /* in a block; of a step with a report */
    double cpu[2][MOST_PAIRS];
} block;

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_steps(const block *b, int steps, ek_report *report)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < steps; i++) {
        rc = job_step(b->job, NULL);
        if (rc == 0 && report)
            rc = ek_report_step(report);
    }
    return rc < 0 ? rc : job_settle(b->devices);
}

/* Side 1 has a report. The first steps of each block aren't timed: a report's buffers grow in them.
 */
static int timed_block(void *user, int side, int pair, double *seconds)
{
    block *b = user;
    ek_report *report = side ? ek_report_start(.device_ids = *b->devices) : NULL;
    int rc = side && !report ? ek_error_status() : run_steps(b, 2, report);
    double begin = job_now(), cpu = cpu_now(), duration;
    if (rc == 0)
        rc = run_steps(b, b->steps, report);
    *seconds = (job_now() - begin) / b->steps;
    b->cpu[side][pair] = (cpu_now() - cpu) / b->steps;
    if (report)
        ek_report_spans(report, &b->spans, &duration);
    ek_report_free(report);
    return rc;
}

static int choose_steps(block *b)
{
    int rc = run_steps(b, WARMUP_STEPS, NULL);
    double begin = job_now();
    rc = rc < 0 ? rc : run_steps(b, WARMUP_STEPS, NULL);
    double step = (job_now() - begin) / WARMUP_STEPS;
    b->steps = step < block_seconds ? (int)(block_seconds / step) : 1;
    return rc;
}

/* ---- what telling it takes ---- */

/* Changes of memory on all devices so far. */
static uint64_t changes_of(const ek_device_list *devices)
{
    uint64_t sum = 0;
    for (int i = 0; i < devices->count; i++) {
        ek_memory_stats stats;
        if (ek_memory_get_stats(devices->devices[i], &stats) == 0)
            sum += 2 * stats.allocations; /* what is taken is given back */
    }
    return sum;
}

/* Seconds of a span (or, beside it, of taking memory and giving it back) at best. */
static double best_of(ek_dev *dev, bool memory)
{
    enum { TRIES = 2000, EACH = 50 };
    double best = 1;
    for (int i = 0; i < TRIES; i++) {
        double begin = job_now();
        for (int n = 0; n < EACH; n++) {
            ek_span span;
            void *pointer;
            if (memory && ek_dev_alloc(dev, 256, EK_MEMORY_WORKSPACE, &pointer) == 0)
                ek_dev_free(dev, pointer, 256, EK_MEMORY_WORKSPACE);
            if (memory)
                continue;
            ek_span_begin(&span, EK_SPAN_COMPUTE, "backward of", "batch_norm", dev);
            ek_span_end(&span);
        }
        double seconds = (job_now() - begin) / EACH;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static int count_costs(const block *b, double step)
{
    ek_dev *dev = ek_dev_get(b->devices->devices[0]);
    uint64_t before = changes_of(b->devices);
    int rc = run_steps(b, 4, NULL);
    double changes = (double)(changes_of(b->devices) - before) / 4;
    double bare = best_of(dev, true);
    ek_report *report = ek_report_start(.device_ids = *b->devices);
    double span = best_of(dev, false), change = (best_of(dev, true) - bare) / 2;
    double begin = job_now();
    if (rc == 0 && !report)
        rc = ek_error_status();
    for (int i = 0; rc == 0 && i < 1000; i++)
        rc = ek_report_step(report);
    double end = (job_now() - begin) / 1000;
    double all = b->spans * span + changes * change + end;
    printf("  %d spans of %.0f ns, %.0f changes of memory of %.0f ns, and the step's end of %.0f "
           "ns: %.3f %% of the CPU time of a step\n",
           b->spans, 1e9 * span, changes, 1e9 * change, 1e9 * end, 100 * all / step);
    ek_report_free(report);
    return rc;
}

static void print_sides(const char *what, double sides[2][MOST_PAIRS], double *ratio, int count)
{
    printf("  %-4s without %.3f ms, with %.3f ms, ratio %.4f\n", what,
           1000 * job_median(sides[0], count), 1000 * job_median(sides[1], count),
           job_median(ratio, count));
}

int main(int argc, char **argv)
{
    static job_pairs pairs;
    static double cpu_ratio[MOST_PAIRS];
    static block b;
    training job = {0};
    job_arguments given;
    int rc = job_arguments_read(&given, argc, argv);
    if (rc != 0)
        return rc;
    b.job = &job;
    b.devices = &given.devices;
    rc = job_open(&job, &given.load, &given.devices, EK_OPTIONS(ek_data_parallel_options));
    if (rc == 0)
        rc = choose_steps(&b);
    if (rc == 0)
        rc = job_compare(&pairs, timed_block, &b, 0, given.budget);
    for (int i = 0; i < pairs.count; i++)
        cpu_ratio[i] = b.cpu[1][i] / b.cpu[0][i];
    if (rc == 0) {
        printf("%s %dx%d: %d pairs of blocks of %d steps\n", argv[1], given.devices.count,
               given.threads, pairs.count, b.steps);
        print_sides("time", pairs.seconds, pairs.ratio, pairs.count);
        print_sides("CPU", b.cpu, cpu_ratio, pairs.count);
        rc = count_costs(&b, job_median(b.cpu[0], pairs.count));
    }
    job_close(&job);
    return job_exit(rc);
}
