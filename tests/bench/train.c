/* train.c: seconds of one training step (forward, loss, zero_grad, backward, optimizer).
 *
 *     [DEVICE=host|cuda] train NET[-bf16][@BATCH] DEVICES THREADS [SECONDS]
 *
 * prints "NET DEVICESxTHREADS MEDIAN_SECONDS STEPS LOSS", where LOSS is that of the fourth step,
 * equal to the twin's: both draw the same weights and data from seed 0. With -bf16 forward and loss
 * run under autocast. On GPUs (DEVICES may be more than there are; THREADS is nothing then) steps
 * are timed in blocks, at whose ends all is waited for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/devices.h"
#include "nets.h"

enum { WARMUP_STEPS = 3, CUDA_BLOCK = 10, MOST_BLOCKS = 10000 };

/* How one is timed. */
typedef struct setting {
    const char *name;
    workload load;
    bool bf16;
    ek_device_kind kind;
    ek_device_list devices;
    int threads; /* of each host device */
    double budget;
} setting;

typedef struct result {
    double median, fourth_loss;
    int steps;
} result;

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

static int open_devices(setting *how, int count)
{
    how->devices = devices_open(how->kind, count);
    if (how->devices.count == 0)
        return ek_error_status();
    for (int i = 0; i < how->devices.count && how->kind == EK_HOST; i++)
        if (ek_device_set_threads(how->devices.devices[i], how->threads) < 0)
            return -1;
    return 0;
}

/* Drawn on the host, as the twin's. */
static ek_tensor *data(const setting *how, const int64_t *dims, int ndim, int64_t classes)
{
    ek_shape shape = shape_of(how->load.batch, dims, ndim);
    ek_tensor *drawn = classes ? ek_randint(0, classes, shape) : ek_randn(shape);
    return ek_to_device(drawn, how->devices.devices[0]);
}

static int make_job(training *job, const setting *how)
{
    const workload *load = &how->load;

    ek_manual_seed(0);
    job->model = ek_data_parallel_model(load->network(), .device_ids = how->devices);
    job->criterion = ek_data_parallel_criterion(load->criterion(), .device_ids = how->devices);
    job->optimizer = load->optimizer(job->model);
    job->input = ek_keep(data(how, load->input, load->input_dims, 0));
    job->target = ek_keep(data(how, load->target, load->target_dims, load->classes));
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

/* `loss` may be NULL: reading it would wait for the device. */
static int step(training *job, const setting *how, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_autocast autocast = ek_autocast_begin(how->bf16 ? EK_BF16 : EK_F32);
    ek_tensor *l = how->load.loss(job);
    int rc;

    ek_autocast_end(&autocast);
    ek_zero_grad(job->optimizer);
    rc = ek_backward(l);
    if (rc == 0)
        rc = ek_step(job->optimizer);
    if (rc == 0 && loss)
        rc = ek_item(l, loss);
    ek_scope_end(&scope);
    return rc;
}

static int settle(const setting *how)
{
    for (int i = 0; i < how->devices.count; i++)
        if (ek_synchronize(how->devices.devices[i]) < 0)
            return -1;
    return 0;
}

/* Seconds of a step, over a block of them; negative on error. */
static double block_seconds(training *job, const setting *how, int steps)
{
    double begin = now();

    for (int i = 0; i < steps; i++)
        if (step(job, how, NULL) < 0)
            return -1;
    return settle(how) < 0 ? -1 : (now() - begin) / steps;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int measure(training *job, const setting *how, result *r)
{
    static double seconds[MOST_BLOCKS];
    int block = how->kind == EK_CUDA ? CUDA_BLOCK : 1;
    int least = how->budget < 1 ? 1 : 5, count = 0;

    for (int i = 0; i < WARMUP_STEPS + 1; i++)
        if (step(job, how, &r->fourth_loss) < 0)
            return -1;
    if (settle(how) < 0)
        return -1;
    double start = now();
    while (count < MOST_BLOCKS && (count < least || now() - start < how->budget)) {
        seconds[count] = block_seconds(job, how, block);
        if (seconds[count++] < 0)
            return -1;
    }
    qsort(seconds, (size_t)count, sizeof(seconds[0]), ascending);
    r->median = seconds[count / 2];
    r->steps = count * block;
    return 0;
}

/* False where the arguments are wrong. */
static bool parse(int argc, char **argv, setting *how, int *devices)
{
    const char *device = getenv("DEVICE");

    if (argc < 4 || !workload_named(argv[1], &how->load, &how->bf16))
        return false;
    how->name = argv[1];
    *devices = atoi(argv[2]);
    how->threads = atoi(argv[3]);
    how->budget = argc >= 5 ? atof(argv[4]) : 3;
    how->kind = device && strcmp(device, "cuda") == 0 ? EK_CUDA : EK_HOST;
    bool known = !device || how->kind == EK_CUDA || strcmp(device, "host") == 0;
    return known && *devices >= 1 && how->threads >= 1 && how->budget > 0;
}

int main(int argc, char **argv)
{
    setting how = {0};
    training job = {0};
    result r = {0};
    int devices;

    if (!parse(argc, argv, &how, &devices)) {
        char names[200];
        workload_names(names, sizeof(names));
        fprintf(stderr,
                "usage: [DEVICE=host|cuda] %s NET[-bf16][@BATCH] DEVICES THREADS [SECONDS]\n",
                argv[0]);
        fprintf(stderr, "NET is one of %s\n", names);
        return 2;
    }
    int rc = open_devices(&how, devices);
    if (rc == 0)
        rc = make_job(&job, &how);
    if (rc == 0)
        rc = measure(&job, &how, &r);
    free_job(&job);
    if (rc < 0 || ek_shutdown() < 0) {
        ek_print_error(stderr);
        return 1;
    }
    printf("%s %dx%d %.6f %d %.6f\n", how.name, devices, how.threads, r.median, r.steps,
           r.fourth_loss);
    return 0;
}
