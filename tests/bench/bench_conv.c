/* bench_conv.c: GFLOP/s of convolutions and matrix products on one host device, and their share of
 * what its threads can do in f32 (machine.h), half of it in f64. Convolutions are counted as direct
 * ones. Without a dtype those of f32 and f64 are computed.
 *
 *     bench_conv [threads [conv|matmul|both [f32|f64|bf16|f16]]]
 *     bench_conv threads resnet18|resnet50|unet|diffusion    the network's layers, and their sum */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/tensor.h"
#include "evenkeel/scope.h"
#include "host/dnn.h"
#include "kernels/kernels.h"
#include "machine.h"

typedef struct conv_shape {
    int64_t samples, channels, outputs, size, window, stride, padding;
} conv_shape;

static const conv_shape convs[] = {
    {32, 3, 64, 32, 3, 1, 1},   {32, 64, 64, 32, 3, 1, 1},   {32, 64, 128, 32, 3, 2, 1},
    {32, 64, 128, 32, 1, 2, 0}, {32, 128, 128, 16, 3, 1, 1}, {32, 128, 256, 16, 3, 2, 1},
    {32, 256, 256, 8, 3, 1, 1}, {32, 256, 512, 8, 3, 2, 1},  {32, 512, 512, 4, 3, 1, 1},
    {64, 1, 32, 28, 3, 1, 0},   {64, 32, 64, 26, 3, 1, 0},   {8, 3, 64, 128, 3, 2, 1},
    {1, 8, 8, 4, 3, 1, 1},      {32, 1, 64, 32, 4, 2, 1},    {32, 64, 128, 16, 4, 2, 1},
    {32, 128, 256, 8, 4, 2, 1}, {32, 256, 1, 4, 4, 1, 0},    {32, 64, 64, 16, 5, 1, 2},
    {32, 64, 64, 16, 2, 2, 0},  {32, 128, 256, 8, 2, 2, 0},  {32, 64, 64, 16, 7, 1, 3},
    {32, 256, 128, 4, 4, 1, 0}, {8, 3, 64, 224, 7, 2, 3},    {8, 64, 256, 56, 1, 1, 0},
    {8, 256, 128, 56, 1, 1, 0}, {8, 128, 128, 56, 3, 2, 1},  {8, 1024, 256, 14, 1, 1, 0},
    {8, 512, 512, 7, 3, 1, 1},  {8, 64, 128, 112, 3, 1, 1},  {8, 64, 32, 128, 3, 1, 1},
    {8, 32, 64, 128, 2, 2, 0},  {64, 64, 128, 32, 4, 2, 1}};

/* The layers of networks: how often a layer occurs. */
typedef struct net_layer {
    const char *net;
    int count;
    conv_shape shape;
} net_layer;
static const net_layer layers[] = {
    {"resnet50", 1, {8, 3, 64, 224, 7, 2, 3}},     {"resnet50", 1, {8, 64, 64, 56, 1, 1, 0}},
    {"resnet50", 2, {8, 256, 64, 56, 1, 1, 0}},    {"resnet50", 3, {8, 64, 64, 56, 3, 1, 1}},
    {"resnet50", 4, {8, 64, 256, 56, 1, 1, 0}},    {"resnet50", 1, {8, 256, 128, 56, 1, 1, 0}},
    {"resnet50", 1, {8, 128, 128, 56, 3, 2, 1}},   {"resnet50", 4, {8, 128, 512, 28, 1, 1, 0}},
    {"resnet50", 1, {8, 256, 512, 56, 1, 2, 0}},   {"resnet50", 3, {8, 512, 128, 28, 1, 1, 0}},
    {"resnet50", 3, {8, 128, 128, 28, 3, 1, 1}},   {"resnet50", 1, {8, 512, 256, 28, 1, 1, 0}},
    {"resnet50", 1, {8, 256, 256, 28, 3, 2, 1}},   {"resnet50", 6, {8, 256, 1024, 14, 1, 1, 0}},
    {"resnet50", 1, {8, 512, 1024, 28, 1, 2, 0}},  {"resnet50", 5, {8, 1024, 256, 14, 1, 1, 0}},
    {"resnet50", 5, {8, 256, 256, 14, 3, 1, 1}},   {"resnet50", 1, {8, 1024, 512, 14, 1, 1, 0}},
    {"resnet50", 1, {8, 512, 512, 14, 3, 2, 1}},   {"resnet50", 3, {8, 512, 2048, 7, 1, 1, 0}},
    {"resnet50", 1, {8, 1024, 2048, 14, 1, 2, 0}}, {"resnet50", 2, {8, 2048, 512, 7, 1, 1, 0}},
    {"resnet50", 2, {8, 512, 512, 7, 3, 1, 1}},    {"resnet18", 1, {32, 3, 64, 32, 3, 1, 1}},
    {"resnet18", 4, {32, 64, 64, 32, 3, 1, 1}},    {"resnet18", 1, {32, 64, 128, 32, 3, 2, 1}},
    {"resnet18", 1, {32, 64, 128, 32, 1, 2, 0}},   {"resnet18", 3, {32, 128, 128, 16, 3, 1, 1}},
    {"resnet18", 1, {32, 128, 256, 16, 3, 2, 1}},  {"resnet18", 1, {32, 128, 256, 16, 1, 2, 0}},
    {"resnet18", 3, {32, 256, 256, 8, 3, 1, 1}},   {"resnet18", 1, {32, 256, 512, 8, 3, 2, 1}},
    {"resnet18", 1, {32, 256, 512, 8, 1, 2, 0}},   {"resnet18", 3, {32, 512, 512, 4, 3, 1, 1}},
    {"unet", 1, {8, 3, 32, 128, 3, 1, 1}},         {"unet", 2, {8, 32, 32, 128, 3, 1, 1}},
    {"unet", 1, {8, 32, 64, 64, 3, 1, 1}},         {"unet", 2, {8, 64, 64, 64, 3, 1, 1}},
    {"unet", 1, {8, 64, 128, 32, 3, 1, 1}},        {"unet", 2, {8, 128, 128, 32, 3, 1, 1}},
    {"unet", 1, {8, 128, 256, 16, 3, 1, 1}},       {"unet", 2, {8, 256, 256, 16, 3, 1, 1}},
    {"unet", 1, {8, 256, 512, 8, 3, 1, 1}},        {"unet", 1, {8, 512, 512, 8, 3, 1, 1}},
    {"unet", 1, {8, 512, 256, 16, 3, 1, 1}},       {"unet", 1, {8, 256, 128, 32, 3, 1, 1}},
    {"unet", 1, {8, 128, 64, 64, 3, 1, 1}},        {"unet", 1, {8, 64, 32, 128, 3, 1, 1}},
    {"unet", 1, {8, 256, 512, 16, 2, 2, 0}},       {"unet", 1, {8, 128, 256, 32, 2, 2, 0}},
    {"unet", 1, {8, 64, 128, 64, 2, 2, 0}},        {"unet", 1, {8, 32, 64, 128, 2, 2, 0}},
    {"unet", 1, {8, 32, 11, 128, 1, 1, 0}},        {"diffusion", 1, {64, 1, 16, 32, 3, 1, 1}},
    {"diffusion", 3, {64, 16, 16, 32, 3, 1, 1}},   {"diffusion", 1, {64, 16, 16, 32, 3, 2, 1}},
    {"diffusion", 1, {64, 16, 32, 16, 3, 1, 1}},   {"diffusion", 2, {64, 32, 32, 16, 3, 1, 1}},
    {"diffusion", 1, {64, 32, 32, 16, 3, 2, 1}},   {"diffusion", 1, {64, 32, 64, 8, 3, 1, 1}},
    {"diffusion", 1, {64, 16, 32, 16, 1, 1, 0}},   {"diffusion", 1, {64, 32, 64, 8, 1, 1, 0}},
    {"diffusion", 3, {64, 64, 64, 8, 3, 1, 1}},    {"diffusion", 1, {64, 64, 192, 8, 1, 1, 0}},
    {"diffusion", 1, {64, 64, 64, 8, 1, 1, 0}},    {"diffusion", 2, {64, 64, 32, 16, 3, 1, 1}},
    {"diffusion", 1, {64, 64, 32, 16, 1, 1, 0}},   {"diffusion", 2, {64, 32, 16, 32, 3, 1, 1}},
    {"diffusion", 1, {64, 32, 16, 32, 1, 1, 0}},   {"diffusion", 1, {64, 16, 1, 32, 3, 1, 1}},
};

typedef struct product {
    int64_t batch, n, k, m;
} product;

/* Linear layers are n samples, k inputs, m outputs. */
static const product products[] = {{1, 256, 784, 2048}, {1, 256, 2048, 2048}, {1, 256, 2048, 10},
                                   {1, 8, 784, 2048},   {1, 8, 2048, 2048},   {1, 64, 512, 512},
                                   {1, 64, 9216, 128},  {1, 512, 128, 128},   {1, 4, 16, 16},
                                   {256, 64, 64, 64},   {1, 1024, 1024, 1024}};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static ek_tensor *tensor(ek_dev *dev, ek_dtype dtype, ek_shape shape)
{
    ek_tensor *t =
        ek_tensor_new(dev, dtype, &shape, shape.ndim == 4 ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
    if (t)
        dev->backend->kernels->fill(dev, t, 0.25);
    return t;
}

enum { PRODUCT = 3, PRODUCT_BY_DNN };

typedef struct job {
    ek_dev *dev;
    int kind; /* forward, input gradient, weight gradient, a product, or oneDNN's */
    ek_tensor *x, *w, *bias, *y;
    ek_conv_params params;
} job;

static ek_matrices matrices_of(const ek_tensor *t)
{
    return (ek_matrices){ek_tensor_address(t), t->stride[0], t->stride[1], t->stride[2]};
}

static int run_dnn(const job *j)
{
    if (j->y->dtype == EK_BF16)
        return ek_dnn_matmul(j->dev, j->y, j->x, j->w, NULL, false);
    ek_gemm gemm = {.dtype = EK_F32,
                    .batch = j->y->shape[0],
                    .n = j->y->shape[1],
                    .m = j->y->shape[2],
                    .k = j->x->shape[2],
                    .a = matrices_of(j->x),
                    .b = matrices_of(j->w),
                    .c = matrices_of(j->y)};
    return ek_dnn_gemm(j->dev, &gemm);
}

static int run(const job *j)
{
    const ek_kernels *kernels = j->dev->backend->kernels;
    switch (j->kind) {
    case 0:
        return kernels->conv_forward(j->dev, j->y, j->x, j->w, j->bias, &j->params);
    case 1:
        return kernels->conv_input_gradient(j->dev, j->x, j->y, j->w, &j->params);
    case 2:
        return kernels->conv_weight_gradient(j->dev, j->w, j->bias, j->x, j->y, &j->params);
    case PRODUCT:
        return kernels->matmul(j->dev, j->y, j->x, j->w, NULL, false);
    default:
        return run_dnn(j);
    }
}

/* The best of some rounds for each of `kinds` kinds from j's on, in turn; negative on error. */
static int times_of(job j, int kinds, double *best)
{
    enum { ROUNDS = 7 };
    for (int round = -1; round < ROUNDS; round++)
        for (int kind = 0; kind < kinds; kind++) {
            int count = 0;
            double start = seconds(), elapsed;
            job other = j;
            other.kind += kind;
            do {
                if (run(&other) < 0)
                    return -1;
                count++;
                elapsed = seconds() - start;
            } while (elapsed < 0.02 && round >= 0);
            if (round < 1 || elapsed / count < best[kind])
                best[kind] = elapsed / count;
        }
    return 0;
}

static void show(double flops, double seconds, double peak)
{
    printf(" %6.1f %3.0f%% (%7.3f ms)", flops / seconds * 1e-9, 100 * flops / seconds / peak,
           seconds * 1e3);
    fflush(stdout);
}

/* Measures the three passes of a convolution. Adds the seconds of `count` layers to `totals`. */
static int bench_conv(ek_dev *dev, ek_dtype dtype, double peak, const conv_shape *s, int count,
                      double totals[3])
{
    ek_scope scope = ek_scope_begin();
    int64_t out = (s->size + 2 * s->padding - s->window) / s->stride + 1;
    job j = {dev, 0, NULL, NULL, NULL, NULL, {.dims = 2, .groups = 1}};
    for (int d = 0; d < 2; d++) {
        j.params.stride[d] = s->stride;
        j.params.padding[d] = s->padding;
        j.params.dilation[d] = 1;
    }
    j.x = tensor(dev, dtype, EK_SHAPE(s->samples, s->channels, s->size, s->size));
    j.w = tensor(dev, dtype, EK_SHAPE(s->outputs, s->channels, s->window, s->window));
    j.bias = tensor(dev, dtype, EK_SHAPE(s->outputs));
    j.y = tensor(dev, dtype, EK_SHAPE(s->samples, s->outputs, out, out));
    if (!j.x || !j.w || !j.bias || !j.y)
        return -1;
    double flops =
        2.0 * (double)(s->samples * s->outputs * s->channels * s->window * s->window * out * out);
    printf("%3d x %3d -> %3d at %3d, window %d, stride %d:", (int)s->samples, (int)s->channels,
           (int)s->outputs, (int)s->size, (int)s->window, (int)s->stride);
    for (j.kind = 0; j.kind < 3; j.kind++) {
        double t;
        if (times_of(j, 1, &t) < 0)
            return -1;
        show(flops, t, peak);
        totals[j.kind] += count * t;
    }
    ek_scope_end(&scope);
    return 0;
}

static int bench_convs(ek_dev *dev, ek_dtype dtype, double peak)
{
    double totals[3] = {0};
    printf("%s convolutions, GFLOP/s of %.1f: forward, input gradient, weight gradient\n",
           ek_dtype_name(dtype), peak * 1e-9);
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++) {
        if (bench_conv(dev, dtype, peak, &convs[i], 1, totals) < 0)
            return -1;
        printf("\n");
    }
    return 0;
}

/* Returns 1 if there is no such network. */
static int bench_net(ek_dev *dev, const char *net, double peak)
{
    double totals[3] = {0};
    int rc = 1;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        if (strcmp(layers[i].net, net) != 0)
            continue;
        rc = bench_conv(dev, EK_F32, peak, &layers[i].shape, layers[i].count, totals);
        if (rc < 0)
            return rc;
        printf(" x %d\n", layers[i].count);
    }
    if (rc == 0)
        printf("all: %.2f + %.2f + %.2f = %.2f ms\n", 1e3 * totals[0], 1e3 * totals[1],
               1e3 * totals[2], 1e3 * (totals[0] + totals[1] + totals[2]));
    return rc;
}

/* A matrix of each batch, row by row, or column by column. */
static ek_tensor *matrix(ek_dev *dev, ek_dtype dtype, ek_shape shape, bool transposed)
{
    ek_tensor *t = tensor(dev, dtype, shape);
    if (t && transposed) {
        t->stride[1] = 1;
        t->stride[2] = shape.dims[1];
    }
    return t;
}

/* The three products of a linear layer: its output, and the gradients of input and weight. */
static int bench_products(ek_dev *dev, ek_dtype dtype, double peak)
{
    const bool pairs = dtype == EK_BF16 && ek_dnn_has_bf16();
    printf("%s products, GFLOP/s of %.1f%s: x w', y w, y' x\n", ek_dtype_name(dtype), peak * 1e-9,
           pairs || dtype == EK_F32 ? " (oneDNN's)" : "");
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const product *p = &products[i];
        const int64_t batch = p->batch, n = p->n, k = p->k, m = p->m;
        printf("%3d x %4d x %4d -> %4d:", (int)batch, (int)n, (int)k, (int)m);
        for (int form = 0; form < 3; form++) {
            ek_scope scope = ek_scope_begin();
            job j = {.dev = dev, .kind = PRODUCT};
            /* OneDNN's product of f32 is called for row-major matrices alone. */
            const int kinds = pairs || (dtype == EK_F32 && form == 1) ? 2 : 1;
            const int64_t sizes[][3] = {{n, k, m}, {n, m, k}, {m, n, k}}, *s = sizes[form];
            j.x = matrix(dev, dtype, EK_SHAPE(batch, s[0], s[1]), form == 2);
            j.w = matrix(dev, dtype, EK_SHAPE(batch, s[1], s[2]), form == 0);
            j.y = matrix(dev, dtype, EK_SHAPE(batch, s[0], s[2]), false);
            double t[2], flops = 2.0 * (double)(batch * n * k * m) * 1e-9;
            if (!j.x || !j.w || !j.y || times_of(j, kinds, t) < 0)
                return -1;
            printf("  %6.1f", flops / t[0]);
            if (kinds == 2)
                printf(" (%6.1f)", flops / t[1]);
            fflush(stdout);
            ek_scope_end(&scope);
        }
        printf("\n");
    }
    return 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    const char *only = argc > 2 ? argv[2] : "";
    ek_dev *dev = ek_dev_get(ek_host(0));
    int rc = dev ? ek_device_set_threads(ek_host(0), threads) : -1;
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
    const char *wanted = argc > 3 ? argv[3] : "";
    const double f32_peak = machine_peak(threads);
    const int net = rc < 0 ? rc : bench_net(dev, only, f32_peak);
    rc = net < 0 ? net : rc;
    for (int i = 0; i < 4 && rc >= 0 && net > 0; i++) {
        const ek_dtype dtype = dtypes[i];
        const double peak = f32_peak / (dtype == EK_F64 ? 2 : 1);
        if (*wanted ? strcmp(wanted, ek_dtype_name(dtype)) != 0 : i > 1)
            continue;
        if (strcmp(only, "matmul") != 0)
            rc = bench_convs(dev, dtype, peak);
        if (rc >= 0 && strcmp(only, "conv") != 0)
            rc = bench_products(dev, dtype, peak);
    }
    if (rc < 0)
        ek_print_error(stderr);
    return rc < 0;
}
