#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"

static ek_shape shape_of(int64_t batch, const int64_t *dims, int count)
{
    ek_shape shape = {count + 1, {batch}};
    for (int i = 0; i < count; i++)
        shape.dims[i + 1] = dims[i];
    return shape;
}

/* Drawn on the host, as the twin's. A rank has its part of the batch. */
static ek_tensor *data(const workload *load, ek_device device, const int64_t *dims, int ndim,
                       int64_t classes)
{
    ek_shape shape = shape_of(load->batch, dims, ndim);
    ek_tensor *drawn = classes ? ek_randint(0, classes, shape) : ek_randn(shape);
    int64_t each = load->batch / ek_dist_get_world_size(NULL);
    ek_tensor *part = ek_narrow(drawn, 0, each * ek_dist_get_rank(NULL), each);
    return ek_to_device(ek_contiguous(part, EK_CONTIGUOUS), device);
}

/* The network on these devices; several ranks have these devices each. */
static ek_module *model(const workload *load, ek_data_parallel_options options)
{
    if (load->distributed || ek_dist_get_world_size(NULL) > 1)
        return ek_distributed_data_parallel(options.module, .device_ids = options.device_ids,
                                            .shard = options.shard);
    return ek_data_parallel_model_with(options);
}

int job_open(training *job, const workload *load, const ek_device_list *devices,
             ek_data_parallel_options options)
{
    ek_device first = devices->devices[0];
    *job = (training){.loss = load->loss, .bf16 = load->bf16, .clips = load->clips};
    ek_allow_tf32(load->tf32);
    ek_allow_tf32_convolution(load->tf32 || load->defaults);
    ek_allow_fast_convolution(load->fast);
    ek_benchmark_convolution(!load->defaults); /* as the twin sets cudnn.benchmark */
    ek_manual_seed(0);
    options.module = load->network();
    options.device_ids = *devices;
    job->model = model(load, options);
    job->criterion = ek_data_parallel_criterion(load->criterion(), .device_ids = *devices);
    job->optimizer = load->optimizer(job->model);
    job->input = ek_keep(data(load, first, load->input, load->input_dims, load->tokens));
    job->target = ek_keep(data(load, first, load->target, load->target_dims, load->classes));
    return ek_error_status();
}

void job_close(training *job)
{
    ek_optimizer_free(job->optimizer);
    ek_module_free(job->criterion);
    ek_module_free(job->model);
    ek_release(job->input);
    ek_release(job->target);
}

int job_step(training *job, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_autocast autocast = ek_autocast_begin(job->bf16 ? EK_BF16 : EK_F32);
    ek_tensor *l = job->loss(job);
    int rc;
    ek_autocast_end(&autocast);
    ek_zero_grad(job->optimizer);
    rc = ek_backward(l);
    if (rc == 0 && job->clips)
        rc = ek_clip_grad_norm(job->optimizer, 1);
    if (rc == 0)
        rc = ek_step(job->optimizer);
    if (rc == 0 && loss)
        rc = ek_item(l, loss);
    ek_scope_end(&scope);
    return rc;
}

int job_devices(ek_device_list *devices, ek_device_kind kind, int count, int threads)
{
    *devices = devices_open(kind, count);
    for (int i = 0; i < devices->count && kind == EK_HOST && threads > 0; i++)
        ek_device_set_threads(devices->devices[i], threads);
    return ek_error_status();
}

ek_device_kind job_kind(void)
{
    const char *device = getenv("DEVICE");
    return device && strcmp(device, "cuda") == 0 ? EK_CUDA : EK_HOST;
}

int job_arguments_read(job_arguments *arguments, int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[2]) : 2;
    arguments->threads = argc > 3 ? atoi(argv[3]) : 1;
    arguments->budget = argc > 4 ? atof(argv[4]) : 10;
    if (argc < 2 || !workload_named(argv[1], &arguments->load) || count < 1 ||
        arguments->threads < 1) {
        fprintf(stderr, "usage: %s NET[@BATCH] [DEVICES [THREADS [SECONDS]]]\n", argv[0]);
        return 2;
    }
    int rc = job_devices(&arguments->devices, EK_HOST, count, arguments->threads);
    return rc < 0 ? job_exit(rc) : 0;
}

int job_exit(int rc)
{
    if (rc >= 0 && ek_shutdown() >= 0)
        return 0;
    ek_print_error(stderr);
    return 1;
}

int job_compare(job_pairs *pairs, job_side *run, void *user, int warmups, double budget)
{
    double start = job_now();
    int rc = 0;
    for (int i = -warmups; rc == 0 && i < MOST_PAIRS && (i < 5 || job_now() - start < budget);
         i++) {
        int pair = i < 0 ? 0 : i;
        for (int turn = 0; turn < 2 && rc == 0; turn++) {
            int side = (i + turn) & 1;
            rc = run(user, side, pair, &pairs->seconds[side][pair]);
        }
        pairs->ratio[pair] = pairs->seconds[1][pair] / pairs->seconds[0][pair];
        pairs->count = pair + 1;
        if (i < 0)
            start = job_now();
    }
    return rc;
}

int job_settle(const ek_device_list *devices)
{
    for (int i = 0; i < devices->count; i++)
        if (ek_synchronize(devices->devices[i]) < 0)
            return -1;
    return 0;
}

double job_resident_peak(int sharers)
{
    static const char *const names[] = {"VmHWM: %lf", "RssFile: %lf", "RssShmem: %lf"};
    double kilobytes[3] = {0};
    char line[200];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        for (int i = 0; i < 3; i++)
            sscanf(line, names[i], &kilobytes[i]);
    if (status)
        fclose(status);
    FILE *marks = fopen("/proc/self/clear_refs", "w");
    if (marks) {
        fputs("5", marks);
        fclose(marks);
    }
    return 1024 * (kilobytes[0] - kilobytes[1] - kilobytes[2] * (sharers - 1) / sharers);
}

double job_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double job_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}
