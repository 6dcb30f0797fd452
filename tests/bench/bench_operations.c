/* bench_operations.c: where the time of a training step goes, operation by operation.
 *
 *     [DEVICE=host|cuda] bench_operations NET[-bf16|-tf32][@BATCH] DEVICES [libraries|kernels]
 *
 * prints what there is (GPUs, the libraries that were opened, what the library logs), and a table
 * of one step's operations: how often each ran and the milliseconds in it, not counting those
 * within it. A GPU works while the host goes on: under CUDA_LAUNCH_BLOCKING=1 the host waits for
 * each kernel, and the times are those of the work.
 *
 * With `libraries` it prints no table. With `kernels` neither, but it tells profilers to look at
 * one step only:
 *
 *     ncu --profile-from-start off --metrics gpu__time_duration.sum ... bench_operations NET 1
 * kernels
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "report/report.h"

enum { WARMUP_STEPS = 5, MOST_LABELS = 512, SHOWN = 24 };

/* ---- what there is ---- */

static void show_line(ek_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    printf("  %s\n", line);
}

/* The version that a function without arguments tells. */
static void show_version(const char *soname, const char *function)
{
    void *library = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, function) : NULL;
    size_t (*version)(void) = NULL;
    Dl_info info = {0};
    if (!symbol || !dladdr(symbol, &info)) {
        printf("  %s is not open\n", soname);
        return;
    }
    memcpy(&version, &symbol, sizeof(version));
    printf("  %s: version %zu, %s\n", soname, version(), info.dli_fname);
}

static void show_devices(const ek_device_list *devices)
{
    for (int i = 0; i < devices->count; i++) {
        ek_memory_stats stats = {0};
        ek_memory_get_stats(devices->devices[i], &stats);
        printf("  device %d: %.1f MiB in use at the peak, %.1f MiB reserved\n", i,
               (double)stats.peak / 1048576, (double)stats.reserved / 1048576);
    }
    if (devices->devices[0].kind == EK_CUDA) {
        show_version("libcudnn.so.9", "cudnnGetVersion");
        show_version("libcublas.so.13", "cublasLtGetVersion");
    }
}

/* ---- the table ---- */

typedef struct row {
    char label[96];
    int calls;
    double seconds; /* less those of the spans within */
} row;

typedef struct table {
    row rows[MOST_LABELS];
    int count;
    double seconds; /* of all rows */
} table;

static row *row_of(table *t, const char *label)
{
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->rows[i].label, label) == 0)
            return &t->rows[i];
    if (t->count == MOST_LABELS)
        label = "the rest";
    row *r = &t->rows[t->count < MOST_LABELS ? t->count++ : MOST_LABELS - 1];
    snprintf(r->label, sizeof(r->label), "%s", label);
    return r;
}

/* Spans of one thread nest, and come by their begin: the next deeper ones lie within. */
static double within(const ek_report_span *spans, int count, int at)
{
    double sum = 0;
    for (int i = at + 1; i < count && spans[i].begin <= spans[at].end; i++)
        if (spans[i].thread == spans[at].thread && spans[i].depth == spans[at].depth + 1)
            sum += spans[i].end - spans[i].begin;
    return sum;
}

static int slowest_first(const void *a, const void *b)
{
    double x = ((const row *)a)->seconds, y = ((const row *)b)->seconds;
    return (x < y) - (x > y);
}

static void fill(table *t, const ek_report_span *spans, int count)
{
    for (int i = 0; i < count; i++) {
        row *r = row_of(t, spans[i].label);
        double own = spans[i].end - spans[i].begin - within(spans, count, i);
        r->calls++;
        r->seconds += own;
        t->seconds += own;
    }
    qsort(t->rows, (size_t)t->count, sizeof(row), slowest_first);
}

static void show(const table *t, double step)
{
    double shown = 0;
    printf("%10s %7s %6s  of a step of %.3f ms\n", "ms", "share", "calls", 1000 * step);
    for (int i = 0; i < t->count && i < SHOWN; i++) {
        const row *r = &t->rows[i];
        shown += r->seconds;
        printf("%10.3f %6.1f%% %6d  %s\n", 1000 * r->seconds, 100 * r->seconds / step, r->calls,
               r->label);
    }
    printf("%10.3f %6.1f%%         all others\n%10.3f %6.1f%%         outside of operations\n",
           1000 * (t->seconds - shown), 100 * (t->seconds - shown) / step,
           1000 * (step - t->seconds), 100 * (step - t->seconds) / step);
}

/* ---- steps ---- */

static int steps(training *job, const ek_device_list *devices, int count)
{
    int rc = 0;
    for (int i = 0; i < count && rc == 0; i++)
        rc = job_step(job, NULL);
    return rc < 0 ? rc : job_settle(devices);
}

static int step_by_operation(training *job, const ek_device_list *devices)
{
    static table t;
    int count = 0;
    double seconds = 0;
    ek_report *report = ek_report_start(.device_ids = *devices);
    int rc = report ? 0 : ek_error_status();
    for (int i = 0; i < 2 && rc == 0; i++) { /* the report's buffers grow in the first */
        rc = steps(job, devices, 1);
        if (rc == 0)
            rc = ek_report_step(report);
    }
    if (rc == 0) {
        const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
        fill(&t, spans, count);
        show(&t, seconds);
    }
    ek_report_free(report);
    return rc;
}

/* The driver's switch of profilers. */
static void profile(const char *function)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = driver ? dlsym(driver, function) : NULL;
    int (*call)(void) = NULL;
    memcpy(&call, &symbol, sizeof(call));
    if (!call || call() != 0)
        printf("  %s: not done\n", function);
}

static int step_for_profilers(training *job, const ek_device_list *devices)
{
    profile("cuProfilerStart");
    int rc = steps(job, devices, 1);
    profile("cuProfilerStop");
    return rc;
}

int main(int argc, char **argv)
{
    workload load;
    training job = {0};
    int count = argc > 2 ? atoi(argv[2]) : 0;
    bool kernels = argc == 4 && strcmp(argv[3], "kernels") == 0;
    bool libraries = argc == 4 && strcmp(argv[3], "libraries") == 0;
    if (argc < 3 || argc > 4 || !workload_named(argv[1], &load) || count < 1 ||
        (argc == 4 && !kernels && !libraries)) {
        fprintf(
            stderr,
            "usage: [DEVICE=host|cuda] %s NET[-bf16|-tf32][@BATCH] DEVICES [libraries|kernels]\n",
            argv[0]);
        return 2;
    }
    ek_set_log(show_line, NULL);
    ek_device_list devices;
    int rc = job_devices(&devices, job_kind(), count, 0);
    if (rc == 0)
        rc = job_open(&job, &load, &devices, (ek_data_parallel_options){0});
    if (rc == 0)
        rc = steps(&job, &devices, WARMUP_STEPS);
    if (rc == 0)
        show_devices(&devices);
    if (rc == 0 && kernels)
        rc = step_for_profilers(&job, &devices);
    else if (rc == 0 && !libraries)
        rc = step_by_operation(&job, &devices);
    job_close(&job);
    return job_exit(rc);
}
