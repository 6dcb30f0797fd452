/* bench_operations.c: where the time of a training step goes, operation by operation.
 *
 *     [DEVICE=host|cuda] bench_operations NET[-bf16|-tf32|-fast][@BATCH] DEVICES
 * [libraries|kernels] [DEVICE=host|cuda] bench_operations overhead [ROUNDS]
 *
 * The first prints what there is (GPUs, the libraries that were opened, what the library logs), and
 * a table of one step's operations: how often each ran and the milliseconds in it, not counting
 * those within it. A GPU works while the host goes on: under CUDA_LAUNCH_BLOCKING=1 the host waits
 * for each kernel, and the times are those of the work.
 *
 * With `libraries` it prints no table. With `kernels` neither, but it tells profilers to look at
 * one step only:
 *
 *     ncu --profile-from-start off --metrics gpu__time_duration.sum ... bench_operations NET 1
 * kernels
 *
 * The second prints how long the host takes for an operation whose kernel has next to nothing to
 * do: microseconds per operation in forward, with a graph, and in backward, with the release of
 * the graph. Sequences have a thousand operations, and the fastest of ROUNDS counts. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "report/report.h"

enum { WARMUP_STEPS = 5, STEPS = 10, MOST_LABELS = 512, SHOWN = 24 };

/* ---- what there is ---- */

static void show_line(ek_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    printf("  %s\n", line);
}

/* The version that a function without arguments tells. False if the library isn't open. */
static bool show_version(const char *soname, const char *function)
{
    void *library = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, function) : NULL;
    size_t (*version)(void) = NULL;
    Dl_info info = {0};
    if (!symbol || !dladdr(symbol, &info)) {
        printf("  %s is not open\n", soname);
        return false;
    }
    memcpy(&version, &symbol, sizeof(version));
    printf("  %s: version %zu, %s\n", soname, version(), info.dli_fname);
    return true;
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
        if (!show_version("libcublasLt.so.13", "cublasLtGetVersion"))
            show_version("libcublasLt.so.12", "cublasLtGetVersion");
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

/* Returns what a label says after the module's path. */
static const char *operation(const char *label)
{
    const char *end = strstr(label, ": ");
    return end ? end + 2 : label;
}

static void fill(table *t, const ek_report_span *spans, int count)
{
    for (int i = 0; i < count; i++) {
        row *r = row_of(t, operation(spans[i].label));
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
    double fastest = INFINITY;
    ek_report *report = ek_report_start(.device_ids = *devices);
    int rc = report ? 0 : ek_error_status();
    for (int i = 0; i < STEPS && rc == 0; i++) { /* the report's buffers grow in the first */
        int count = 0;
        double seconds = 0;
        rc = steps(job, devices, 1);
        if (rc == 0)
            rc = ek_report_step(report);
        if (rc < 0)
            break;
        const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
        if (seconds < fastest) {
            fastest = seconds;
            t.count = 0;
            t.seconds = 0;
            memset(t.rows, 0, sizeof t.rows);
            fill(&t, spans, count);
        }
    }
    if (rc == 0)
        show(&t, fastest);
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

/* ---- overhead: sequences of operations on tensors of 8 elements ---- */

enum { SEQUENCE = 1000 };
/* What the library has to reach on a host device, in microseconds. */
static const double forward_goal = 0.4, backward_goal = 0.7;

/* All elements of x stay 1. */
typedef struct sequence_data {
    ek_tensor *x, *zeros, *ones, *weight, *bias;
} sequence_data;

/* Applies `count` operations to x, which is 1 by 8, and gives the last one's result. */
typedef ek_tensor *sequence(const sequence_data *d, ek_tensor *x, int count);

#define SEQUENCE_OF(name, operation)                                                   \
    static ek_tensor *sequence_##name(const sequence_data *d, ek_tensor *x, int count) \
    {                                                                                  \
        (void)d;                                                                       \
        for (int i = 0; i < count; i++)                                                \
            x = operation;                                                             \
        return x;                                                                      \
    }
SEQUENCE_OF(add, ek_add(x, d->zeros))
SEQUENCE_OF(mul, ek_mul(x, d->ones))
SEQUENCE_OF(relu, ek_f_relu(x))
SEQUENCE_OF(linear, ek_f_linear(x, d->weight, d->bias))
SEQUENCE_OF(view, ek_transpose(x, 0, 1))
SEQUENCE_OF(sum, ek_sum(x, EK_DIMS(0), .keepdim = true))

static ek_tensor *sequence_all(const sequence_data *d, ek_tensor *x, int count)
{
    for (int i = 0; i < count; i += 6) {
        x = ek_f_relu(ek_mul(ek_add(x, d->zeros), d->ones));
        x = ek_unsqueeze(ek_f_linear(x, d->weight, d->bias), 0);
        x = ek_sum(x, EK_DIMS(0));
    }
    return x;
}

static const struct {
    const char *name;
    sequence *run;
    int count;
} sequences[] = {{"add", sequence_add, SEQUENCE},
                 {"mul", sequence_mul, SEQUENCE},
                 {"relu", sequence_relu, SEQUENCE},
                 {"linear", sequence_linear, SEQUENCE},
                 {"view", sequence_view, SEQUENCE},
                 {"sum", sequence_sum, SEQUENCE},
                 {"all in turn", sequence_all, SEQUENCE / 6 * 6}};

static int sequence_open(sequence_data *d, ek_device device)
{
    ek_scope scope = ek_scope_begin();
    float identity[64] = {0};
    for (int i = 0; i < 8; i++)
        identity[9 * i] = 1;
    d->x = ek_keep(ek_ones(EK_SHAPE(1, 8), .device = device, .requires_grad = true));
    d->zeros = ek_keep(ek_zeros(EK_SHAPE(1, 8), .device = device));
    d->ones = ek_keep(ek_ones(EK_SHAPE(1, 8), .device = device));
    d->weight =
        ek_keep(ek_from_data(identity, EK_SHAPE(8, 8), .device = device, .requires_grad = true));
    d->bias = ek_keep(ek_zeros(EK_SHAPE(8), .device = device, .requires_grad = true));
    ek_scope_end(&scope);
    return ek_error_status();
}

static void sequence_close(sequence_data *d)
{
    ek_release(d->x);
    ek_release(d->zeros);
    ek_release(d->ones);
    ek_release(d->weight);
    ek_release(d->bias);
}

/* Lowers the two figures to this round's, if it was faster. */
static int sequence_round(const sequence_data *d, int which, double *forward, double *backward)
{
    int count = sequences[which].count;
    ek_scope scope = ek_scope_begin();
    double begin = job_now();
    ek_tensor *y = sequences[which].run(d, d->x, count);
    double middle = job_now();
    ek_tensor *end = ek_sum(y);
    double again = job_now();
    int rc = ek_backward(end);
    ek_scope_end(&scope);
    double done = job_now();
    double f = 1e6 * (middle - begin) / count, b = 1e6 * (done - again) / count;
    ek_tensor_set_grad(d->x, NULL);
    ek_tensor_set_grad(d->weight, NULL);
    ek_tensor_set_grad(d->bias, NULL);
    *forward = f < *forward ? f : *forward;
    *backward = b < *backward ? b : *backward;
    return rc;
}

static int overhead(int rounds)
{
    enum { KINDS = sizeof sequences / sizeof *sequences };
    sequence_data d = {0};
    ek_device_list devices;
    int rc = job_devices(&devices, job_kind(), 1, 0);
    if (rc == 0)
        rc = sequence_open(&d, devices.devices[0]);
    printf("%-12s %10s %10s  us per operation\n", "", "forward", "backward");
    for (int k = 0; k < KINDS && rc == 0; k++) {
        double forward = INFINITY, backward = INFINITY;
        for (int i = 0; i < rounds && rc == 0; i++)
            rc = sequence_round(&d, k, &forward, &backward);
        printf("%-12s %10.3f %10.3f\n", sequences[k].name, forward, backward);
    }
    printf("%-12s %10.3f %10.3f\n", "goal", forward_goal, backward_goal);
    sequence_close(&d);
    return job_exit(rc);
}

int main(int argc, char **argv)
{
    workload load;
    training job = {0};
    int count = argc > 2 ? atoi(argv[2]) : 0;
    bool kernels = argc == 4 && strcmp(argv[3], "kernels") == 0;
    bool libraries = argc == 4 && strcmp(argv[3], "libraries") == 0;
    if (argc >= 2 && argc <= 3 && strcmp(argv[1], "overhead") == 0)
        return overhead(argc == 3 ? atoi(argv[2]) : 300);
    if (argc < 3 || argc > 4 || !workload_named(argv[1], &load) || count < 1 ||
        (argc == 4 && !kernels && !libraries)) {
        fprintf(stderr,
                "usage: [DEVICE=host|cuda] %s NET[-bf16|-tf32|-fast][@BATCH] DEVICES "
                "[libraries|kernels]\n"
                "       [DEVICE=host|cuda] %s overhead [ROUNDS]\n",
                argv[0], argv[0]);
        return 2;
    }
    ek_set_log(show_line, NULL);
    ek_device_list devices;
    int rc = job_devices(&devices, job_kind(), count, 0);
    if (rc == 0)
        rc = job_open(&job, &load, &devices, EK_OPTIONS(ek_data_parallel_options));
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
