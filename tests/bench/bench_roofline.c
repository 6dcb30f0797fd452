/* bench_roofline.c: what one training step has to do, and what the machine can do.
 *
 *     [DEVICE=host|cuda] bench_roofline NET[-bf16|-tf32|-fast][@BATCH] DEVICES THREADS [layers]
 *
 * prints "NET DEVICESxTHREADS MULTIPLICATIONS BYTES PEAK BANDWIDTH". MULTIPLICATIONS are those of
 * all matrix products and convolutions of a step, counted as they ran, each convolution as the
 * direct one that multiplies every window with every filter: an algorithm that needs fewer can come
 * to more than the peak. BYTES is what all devices move at least if caches keep nothing: parameters
 * are read forward, backward and by the optimizer and written, gradients and what forward keeps for
 * backward are written and read, the optimizer's state is read and written. PEAK is f32 operations
 * per second (a multiplication and an addition are two) and BANDWIDTH bytes per second of all
 * threads together, measured now; both are 0 for GPUs.
 *
 * With `layers` comes a table of what multiplies by itself: how often a shape ran in a step, its
 * milliseconds there, and its share of one device's peak. GPUs work while the host goes on: their
 * times are those of the calls.
 *
 *     [DEVICE=host|cuda] bench_roofline machine [N]
 *
 * prints how fast the first device copies, in bytes read and written per second, and multiplies
 * square matrices of N (8192) rows in f32, tf32 and bf16, in operations per second. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "job.h"
#include "kernels/kernels.h"
#include "machine.h"

enum { WARMUP_STEPS = 3, TIMED_STEPS = 3, MOST_SHAPES = 512 };

/* ---- kernels that count ---- */

typedef struct shape_count {
    char label[80];
    int calls;
    double multiplications, seconds;
} shape_count;

static struct {
    pthread_mutex_t lock; /* guards all below but the tables */
    shape_count shapes[MOST_SHAPES];
    int count;
    double multiplications;
    const ek_kernels *original; /* the tables are constant while devices use them */
    ek_kernels kernels;
    ek_backend backend;
} counted = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void count_call(const char *label, double multiplications, double seconds)
{
    pthread_mutex_lock(&counted.lock);
    int i = 0;
    while (i < counted.count && strcmp(counted.shapes[i].label, label) != 0)
        i++;
    if (i == MOST_SHAPES)
        i--;
    shape_count *shape = &counted.shapes[i];
    if (i == counted.count) {
        counted.count++;
        snprintf(shape->label, sizeof(shape->label), "%s", label);
    }
    shape->calls++;
    shape->multiplications += multiplications;
    shape->seconds += seconds;
    counted.multiplications += multiplications;
    pthread_mutex_unlock(&counted.lock);
}

/* A window of each input channel of the group for every output. */
static void count_conv(const char *kind, const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                       const ek_conv_params *params, double begin)
{
    double seconds = job_now() - begin;
    int last = x->ndim - 1, dims = params->dims;
    char label[80];
    snprintf(label, sizeof(label), "%-15s %3d x %4d -> %4d at %3d, window %d, stride %d", kind,
             (int)x->shape[0], (int)x->shape[1], (int)y->shape[1], (int)x->shape[last],
             (int)w->shape[w->ndim - 1], (int)params->stride[dims - 1]);
    count_call(label, (double)ek_count(y) * (double)(ek_count(w) / w->shape[0]), seconds);
}

static int counting_conv_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                                 const ek_tensor *bias, const ek_conv_params *params)
{
    double begin = job_now();
    int rc = counted.original->conv_forward(dev, y, x, w, bias, params);
    count_conv("forward", x, w, y, params, begin);
    return rc;
}

static int counting_conv_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                        const ek_tensor *w, const ek_conv_params *params)
{
    double begin = job_now();
    int rc = counted.original->conv_input_gradient(dev, dx, dy, w, params);
    count_conv("input gradient", dx, w, dy, params, begin);
    return rc;
}

static int counting_conv_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias,
                                         const ek_tensor *x, const ek_tensor *dy,
                                         const ek_conv_params *params)
{
    double begin = job_now();
    int rc = counted.original->conv_weight_gradient(dev, dw, dbias, x, dy, params);
    count_conv("weight gradient", x, dw, dy, params, begin);
    return rc;
}

static int counting_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                           const ek_tensor *bias, bool accumulate)
{
    double begin = job_now();
    int rc = counted.original->matmul(dev, out, x, y, bias, accumulate);
    double seconds = job_now() - begin;
    char label[80];
    snprintf(label, sizeof(label), "%-15s %3d x %4d x %4d x %4d", "product", (int)out->shape[0],
             (int)x->shape[1], (int)x->shape[2], (int)y->shape[2]);
    count_call(label, (double)ek_count(out) * (double)x->shape[2], seconds);
    return rc;
}

/* A linear layer of n rows, or its weight's gradient. */
static void count_linear(const char *kind, const ek_tensor *x, const ek_tensor *w, double begin)
{
    double seconds = job_now() - begin;
    char label[80];
    snprintf(label, sizeof(label), "%-15s       %4d x %4d x %4d", kind, (int)x->shape[0],
             (int)x->shape[1], (int)w->shape[0]);
    count_call(label, (double)ek_count(x) * (double)w->shape[0], seconds);
}

static int counting_linear(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                           const ek_tensor *bias, bool relu)
{
    double begin = job_now();
    int rc = counted.original->linear(dev, y, x, w, bias, relu);
    count_linear("linear", x, w, begin);
    return rc;
}

static int counting_linear_gelu(ek_dev *dev, ek_tensor *y, ek_tensor *before, const ek_tensor *x,
                                const ek_tensor *w, const ek_tensor *bias, bool tanh)
{
    double begin = job_now();
    int rc = counted.original->linear_gelu(dev, y, before, x, w, bias, tanh);
    count_linear("linear, gelu", x, w, begin);
    return rc;
}

static int counting_linear_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias,
                                           const ek_tensor *x, const ek_tensor *dy)
{
    double begin = job_now();
    int rc = counted.original->linear_weight_gradient(dev, dw, dbias, x, dy);
    count_linear("linear weight", x, dw, begin);
    return rc;
}

/* `products` and `inputs` count the steps that multiply by weight_hh and by weight_ih. */
static int count_steps(const char *kind, const ek_recurrent_steps *steps, int64_t products,
                       int64_t inputs, double begin, int rc)
{
    const ek_tensor *h = steps->h, *w = steps->weight, *in = steps->input_weight;
    double seconds = job_now() - begin;
    char label[80];
    snprintf(label, sizeof(label), "%-15s %3d x %4d x %4d x %4d", kind, (int)products,
             (int)h->shape[1], (int)(w->shape[1] + (inputs > 0 ? in->shape[1] : 0)),
             (int)w->shape[0]);
    if (rc > 0)
        count_call(label,
                   (double)(products * ek_count(w) + inputs * ek_count(in)) * (double)h->shape[1],
                   seconds);
    return rc;
}

static int counting_recurrent_steps(ek_dev *dev, const ek_recurrent_steps *steps)
{
    double begin = job_now();
    int rc = counted.original->recurrent_steps(dev, steps);
    return count_steps("recurrent", steps, steps->x->shape[0], steps->x->shape[0], begin, rc);
}

static int counting_recurrent_steps_gradient(ek_dev *dev, const ek_recurrent_steps *steps,
                                             const ek_recurrent_steps_back *back)
{
    double begin = job_now();
    int rc = counted.original->recurrent_steps_gradient(dev, steps, back);
    return count_steps("recurrent back", steps, steps->x->shape[0] - 1 + back->wants_h,
                       back->dinput ? steps->x->shape[0] : 0, begin, rc);
}

static int counting_recurrent_parameters_gradient(ek_dev *dev, const ek_recurrent_steps *steps,
                                                  const ek_tensor *dsums,
                                                  const ek_recurrent_parameters *gradients)
{
    double begin = job_now();
    int rc = counted.original->recurrent_parameters_gradient(dev, steps, dsums, gradients);
    const int64_t all = steps->x->shape[0];
    return count_steps("recurrent weight", steps, gradients->weight[1] ? all : 0,
                       gradients->weight[0] ? all : 0, begin, rc);
}

/* Has the devices call these. They are idle. */
static int counting_begin(const ek_device_list *devices)
{
    for (int i = 0; i < devices->count; i++) {
        ek_dev *dev = ek_dev_get(devices->devices[i]);
        if (!dev)
            return ek_error_status();
        if (i == 0) {
            counted.original = dev->backend->kernels;
            counted.kernels = *counted.original;
            counted.kernels.conv_forward = counting_conv_forward;
            counted.kernels.conv_input_gradient = counting_conv_input_gradient;
            counted.kernels.conv_weight_gradient = counting_conv_weight_gradient;
            counted.kernels.matmul = counting_matmul;
            counted.kernels.linear = counting_linear;
            counted.kernels.linear_gelu = counting_linear_gelu;
            counted.kernels.linear_weight_gradient = counting_linear_weight_gradient;
            counted.kernels.recurrent_steps = counting_recurrent_steps;
            counted.kernels.recurrent_steps_gradient = counting_recurrent_steps_gradient;
            counted.kernels.recurrent_parameters_gradient = counting_recurrent_parameters_gradient;
            counted.backend = *dev->backend;
            counted.backend.kernels = &counted.kernels;
        }
        dev->backend = &counted.backend;
        ek_memory_reset_peak(devices->devices[i]);
    }
    return 0;
}

/* ---- what was counted ---- */

static double bytes_moved(const ek_device_list *devices)
{
    double sum = 0;
    for (int i = 0; i < devices->count; i++) {
        ek_memory_stats stats = {0};
        ek_memory_get_stats(devices->devices[i], &stats);
        double parameters = (double)stats.now[EK_MEMORY_PARAMETER];
        sum += 4 * parameters + 2 * parameters + 2 * (double)stats.now[EK_MEMORY_OPTIMIZER] +
               2 * (double)stats.at_peak[EK_MEMORY_ACTIVATION];
    }
    return sum;
}

static int slowest_first(const void *a, const void *b)
{
    double x = ((const shape_count *)a)->seconds, y = ((const shape_count *)b)->seconds;
    return (x < y) - (x > y);
}

static void show_layers(double peak, double step)
{
    double seconds = 0;
    qsort(counted.shapes, (size_t)counted.count, sizeof(shape_count), slowest_first);
    printf("%10s %6s %8s %6s  of a step of %.3f ms\n", "ms", "calls", "GFLOP/s", "peak",
           1000 * step);
    for (int i = 0; i < counted.count; i++) {
        const shape_count *shape = &counted.shapes[i];
        double rate = 2 * shape->multiplications / shape->seconds;
        printf("%10.3f %6d %8.1f", 1000 * shape->seconds / TIMED_STEPS, shape->calls / TIMED_STEPS,
               1e-9 * rate);
        if (peak > 0)
            printf(" %5.0f%%  %s\n", 100 * rate / peak, shape->label);
        else
            printf(" %6s  %s\n", "-", shape->label);
        seconds += shape->seconds / TIMED_STEPS;
    }
    printf("%10.3f                         all of these, of all devices\n", 1000 * seconds);
}

static int steps(training *job, const ek_device_list *devices, int count)
{
    int rc = 0;
    for (int i = 0; i < count && rc == 0; i++)
        rc = job_step(job, NULL);
    return rc < 0 ? rc : job_settle(devices);
}

/* ---- what a device can do ---- */

/* x y, or a copy of x without y, and the seconds that one takes of some in a row. */
static int machine_seconds(ek_tensor *x, ek_tensor *y, double *seconds)
{
    enum { TIMES = 10 };
    double begin = 0;
    int rc = x ? ek_synchronize(ek_tensor_device(x)) : ek_error_status();
    for (int i = -1; i < TIMES && rc == 0; i++) { /* the first chooses its kernel */
        ek_scope scope = ek_scope_begin();
        rc = (y ? ek_matmul(x, y) : ek_clone(x)) ? 0 : ek_error_status();
        ek_scope_end(&scope);
        if (rc == 0 && (i < 0 || i == TIMES - 1))
            rc = ek_synchronize(ek_tensor_device(x));
        if (i < 0)
            begin = job_now();
    }
    *seconds = (job_now() - begin) / TIMES;
    return rc;
}

static int machine_show(int64_t n)
{
    static const struct {
        const char *name;
        ek_dtype dtype;
        bool tf32;
    } kinds[] = {{"f32", EK_F32, false}, {"tf32", EK_F32, true}, {"bf16", EK_BF16, false}};
    ek_device_list devices;
    double seconds = 0;
    int rc = job_devices(&devices, job_kind(), 1, 0);
    for (int i = 0; i < 3 && rc == 0; i++) {
        ek_scope scope = ek_scope_begin();
        ek_allow_tf32(kinds[i].tf32);
        ek_tensor *x = ek_full(0.5, EK_SHAPE(n, n), kinds[i].dtype, .device = devices.devices[0]);
        if (i == 0 && (rc = machine_seconds(x, NULL, &seconds)) == 0)
            printf("copy %.3g TB/s; product of %lld rows", 8e-12 * (double)(n * n) / seconds,
                   (long long)n);
        if (rc == 0)
            rc = machine_seconds(x, x, &seconds);
        if (rc == 0)
            printf("%s %s %.4g", i ? "," : "", kinds[i].name,
                   2e-12 * (double)n * (double)n * (double)n / seconds);
        ek_scope_end(&scope);
    }
    if (rc == 0)
        printf(" TFLOP/s\n");
    return job_exit(rc);
}

int main(int argc, char **argv)
{
    workload load;
    training job = {0};
    ek_device_list devices;
    int count = argc > 2 ? atoi(argv[2]) : 0, threads = argc > 3 ? atoi(argv[3]) : 0;
    bool layers = argc == 5 && strcmp(argv[4], "layers") == 0;
    int64_t rows = argc == 3 ? atoll(argv[2]) : 8192;
    if (argc >= 2 && argc <= 3 && strcmp(argv[1], "machine") == 0 && rows > 0)
        return machine_show(rows);
    if (argc < 4 || argc > 5 || !workload_named(argv[1], &load) || count < 1 || threads < 1 ||
        (argc == 5 && !layers)) {
        fprintf(stderr,
                "usage: [DEVICE=host|cuda] %s NET[-bf16|-tf32|-fast][@BATCH] DEVICES THREADS "
                "[layers]\n"
                "       [DEVICE=host|cuda] %s machine [N]\n",
                argv[0], argv[0]);
        return 2;
    }
    bool host = job_kind() == EK_HOST;
    double peak = host ? machine_peak(count * threads) : 0, begin = 0, seconds = 0;
    double bandwidth = host ? machine_bandwidth(count * threads) : 0;
    int timed = layers ? TIMED_STEPS : 1;
    int rc = job_devices(&devices, job_kind(), count, threads);
    if (rc == 0)
        rc = job_open(&job, &load, &devices, EK_OPTIONS(ek_data_parallel_options));
    if (rc == 0)
        rc = steps(&job, &devices, layers ? WARMUP_STEPS : 1); /* makes the optimizer's state */
    if (rc == 0)
        rc = counting_begin(&devices);
    if (rc == 0) {
        begin = job_now();
        rc = steps(&job, &devices, timed);
        seconds = (job_now() - begin) / timed;
    }
    if (rc == 0)
        printf("%s %dx%d %.0f %.0f %.4g %.4g\n", argv[1], count, threads,
               counted.multiplications / timed, bytes_moved(&devices), peak, bandwidth);
    if (rc == 0 && layers)
        show_layers(peak / count, seconds);
    job_close(&job);
    return job_exit(rc);
}
