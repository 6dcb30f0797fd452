/* bench_curve.c: how far a network's losses, computed in another way, are from those of direct f32.
 *
 *     [DEVICE=host|cuda] bench_curve NET[@BATCH] STEPS [bf16|winograd|fast|bit]
 *
 * trains NET twice from seed 0 on one device and prints each step's two losses and their relative
 * distance; the last line is "NET STEPS LARGEST_DISTANCE". The other way is autocast to bf16, the
 * host's convolutions by Winograd's forms, or the latter with ek_allow_fast_convolution; or direct
 * f32 from inputs that differ in their last bit, which tells how chaotic the training is. Every
 * step has a new batch: a picture is its class's pattern in noise, so that there is something to
 * learn and losses don't come to nothing. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

enum { MOST_STEPS = 10000 };
static const double signal = 0.03; /* of the noise, in each element */

static ek_shape shape_of(const workload *load, int64_t count)
{
    ek_shape shape = {1 + load->input_dims, {count}};
    memcpy(shape.dims + 1, load->input, (size_t)load->input_dims * sizeof(int64_t));
    return shape;
}

/* A new batch on the host's generator: inputs = factor (signal patterns[target] + noise). */
static int draw(training *job, const workload *load, const ek_tensor *patterns, ek_device device,
                double factor)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *target = ek_randint(0, load->classes, (ek_shape){1, {load->batch}});
    ek_tensor *pictures = ek_index_select((ek_tensor *)patterns, 0, target);
    ek_tensor *drawn =
        ek_add(ek_mul_scalar(pictures, signal), ek_randn(shape_of(load, load->batch)));
    ek_release(job->input);
    ek_release(job->target);
    job->input = ek_keep(ek_to_device(ek_mul_scalar(drawn, factor), device));
    job->target = ek_keep(ek_to_device(target, device));
    ek_scope_end(&scope);
    return ek_error_status();
}

static int train(const workload *load, const ek_device_list *devices, int steps, double factor,
                 double *losses)
{
    training job = {0};
    ek_scope scope = ek_scope_begin();
    int rc = job_open(&job, load, devices, EK_OPTIONS(ek_data_parallel_options));
    ek_tensor *patterns = ek_randn(shape_of(load, load->classes));
    for (int i = 0; i < steps && rc >= 0; i++) {
        rc = draw(&job, load, patterns, devices->devices[0], factor);
        if (rc >= 0)
            rc = job_step(&job, &losses[i]);
    }
    job_close(&job);
    ek_scope_end(&scope);
    return rc;
}

enum { BF16, WINOGRAD, FAST, BIT, WAYS };
static const char *const ways[WAYS] = {"bf16", "winograd", "fast", "bit"};

/* Sets up one of the two trainings. */
static void choose(workload *load, int way, bool other)
{
    load->bf16 = other && way == BF16;
    if (way == BIT || (way != BF16 && !other))
        setenv("EVENKEEL_HOST_WITHOUT", "winograd", 1);
    else
        unsetenv("EVENKEEL_HOST_WITHOUT");
    load->fast = other && way == FAST;
}

static int way_named(const char *name)
{
    int way = 0;
    while (way < WAYS && strcmp(ways[way], name) != 0)
        way++;
    return way;
}

int main(int argc, char **argv)
{
    static double losses[2][MOST_STEPS];
    workload load;
    double largest = 0;
    int steps = argc >= 3 ? atoi(argv[2]) : 0, way = argc >= 4 ? way_named(argv[3]) : BF16;
    if (argc < 3 || argc > 4 || way == WAYS || !workload_named(argv[1], &load) || load.bf16 ||
        load.target_dims != 0 || load.classes == 0 || steps < 1 || steps > MOST_STEPS) {
        fprintf(stderr,
                "usage: [DEVICE=host|cuda] %s mlp|mnist|resnet18[@BATCH] STEPS "
                "[bf16|winograd|fast|bit]\n",
                argv[0]);
        return 2;
    }
    ek_device_list devices;
    int rc = job_devices(&devices, job_kind(), 1, 0);
    for (int b = 0; b < 2 && rc == 0; b++) {
        choose(&load, way, b);
        rc = train(&load, &devices, steps, way == BIT && b ? 1 + FLT_EPSILON : 1, losses[b]);
    }
    if (job_exit(rc) != 0)
        return 1;
    for (int i = 0; i < steps; i++) {
        double distance = fabs(losses[1][i] - losses[0][i]) / losses[0][i];
        printf("%4d  f32 %.6f  %s %.6f  %.6f\n", i + 1, losses[0][i], ways[way], losses[1][i],
               distance);
        largest = distance <= largest ? largest : distance;
    }
    printf("%s %d %.6f\n", argv[1], steps, largest);
    return isfinite(largest) ? 0 : 1;
}
