/* train.c: seconds of one training step (forward, loss, zero_grad, backward, optimizer).
 *
 *     train NET DEVICES THREADS [SECONDS]
 *
 * prints "NET DEVICESxTHREADS MEDIAN_SECONDS STEPS LOSS", where LOSS is that of the fourth step,
 * equal to the twin's: both draw the same weights and data from seed 0. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "nets.h"

enum { WARMUP_STEPS = 3, MOST_STEPS = 10000 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ek_shape shape_of(int64_t batch, const int64_t *dims, int count)
{
    ek_shape shape = {count + 1, {batch}};

    for (int i = 0; i < count; i++)
        shape.dims[i + 1] = dims[i];
    return shape;
}

static int make_job(training *job, const workload *load, int devices, int threads)
{
    char count[16];

    snprintf(count, sizeof(count), "%d", devices);
    if (ek_host_devices_configure(count) < 0)
        return -1;
    for (int i = 0; i < devices; i++)
        if (ek_device_set_threads(ek_host(i), threads) < 0)
            return -1;
    ek_device_list list = ek_devices(EK_HOST, devices);
    ek_manual_seed(0);
    job->model = ek_data_parallel_model(load->network(), .device_ids = list);
    job->criterion = ek_data_parallel_criterion(load->criterion(), .device_ids = list);
    job->optimizer = load->optimizer(job->model);
    job->input = ek_keep(ek_randn(shape_of(load->batch, load->input, load->input_dims)));
    ek_shape target = shape_of(load->batch, load->target, load->target_dims);
    job->target = ek_keep(load->classes ? ek_randint(0, load->classes, target) : ek_randn(target));
    return ek_error_status();
}

static void free_job(training *job)
{
    ek_optimizer_free(job->optimizer);
    ek_module_free(job->criterion);
    ek_module_free(job->model);
    ek_release(job->input);
    ek_release(job->target);
}

static int step(training *job, const workload *load, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *l = load->loss(job);
    int rc;

    ek_zero_grad(job->optimizer);
    rc = ek_backward(l);
    if (rc == 0)
        rc = ek_step(job->optimizer);
    if (rc == 0)
        rc = ek_item(l, loss);
    ek_scope_end(&scope);
    return rc;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int measure(training *job, const workload *load, double budget, double *median, int *steps,
                   double *fourth_loss)
{
    static double seconds[MOST_STEPS];
    double loss;

    for (int i = 0; i < WARMUP_STEPS; i++)
        if (step(job, load, &loss) < 0)
            return -1;
    double start = now();
    int count = 0;
    int least = budget < 1 ? 1 : 5;
    while (count < MOST_STEPS && (count < least || now() - start < budget)) {
        double begin = now();
        if (step(job, load, &loss) < 0)
            return -1;
        seconds[count] = now() - begin;
        if (count++ == 0)
            *fourth_loss = loss;
    }
    qsort(seconds, (size_t)count, sizeof(seconds[0]), ascending);
    *median = seconds[count / 2];
    *steps = count;
    return 0;
}

int main(int argc, char **argv)
{
    const workload *load = argc >= 4 ? workload_named(argv[1]) : NULL;
    int devices = argc >= 4 ? atoi(argv[2]) : 0, threads = argc >= 4 ? atoi(argv[3]) : 0;
    double budget = argc >= 5 ? atof(argv[4]) : 3, median = 0, loss = 0;
    training job = {0};
    int steps = 0;

    if (!load || devices < 1 || threads < 1 || budget <= 0) {
        char names[200];
        workload_names(names, sizeof(names));
        fprintf(stderr, "usage: %s %s DEVICES THREADS [SECONDS]\n", argv[0], names);
        return 2;
    }
    int rc = make_job(&job, load, devices, threads);
    if (rc == 0)
        rc = measure(&job, load, budget, &median, &steps, &loss);
    free_job(&job);
    if (rc < 0 || ek_shutdown() < 0) {
        ek_print_error(stderr);
        return 1;
    }
    printf("%s %dx%d %.6f %d %.6f\n", load->name, devices, threads, median, steps, loss);
    return 0;
}
