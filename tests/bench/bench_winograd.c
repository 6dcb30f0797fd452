/* bench_winograd.c: errors of convolutions by Winograd's forms beside those of direct ones.
 *
 *     bench_winograd [SAMPLES [LAYERS]]
 *
 * prints, for the layers of ResNet-18 (32 x 32), ResNet-50 and VGG-11 (224 x 224) and a DCGAN's
 * critic, the largest and the mean error against f64, divided by the root mean square of the
 * result: of the direct convolution, of F(2x2, 3x3), or F(2x2, 2x2) if strided, and of F(4x4, 3x3);
 * forward, input gradient and weight gradient. Inputs are normal through a ReLU, weights have He's
 * deviation, gradients are normal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <evenkeel/evenkeel.h>

#include "core/tensor.h"
#include "host/conv.h"

typedef struct layer {
    const char *name;
    int64_t channels, outputs, size, window, stride;
} layer;

static const layer layers[] = {
    {"ResNet-18", 64, 64, 32, 3, 1}, {"", 128, 128, 16, 3, 1},          {"", 256, 256, 8, 3, 1},
    {"", 512, 512, 4, 3, 1},         {"", 64, 128, 32, 3, 2},           {"", 128, 256, 16, 3, 2},
    {"", 256, 512, 8, 3, 2},         {"ResNet-50", 128, 128, 56, 3, 2}, {"", 256, 256, 28, 3, 2},
    {"", 512, 512, 14, 3, 2},        {"critic", 64, 128, 16, 4, 2},     {"", 128, 256, 8, 4, 2},
    {"VGG-11", 512, 512, 14, 3, 1},  {"", 256, 512, 28, 3, 1},          {"", 256, 256, 56, 3, 1},
    {"", 128, 256, 56, 3, 1},        {"", 64, 128, 112, 3, 1},
};
enum { LAYERS = sizeof layers / sizeof *layers, KINDS = 3, DIRECT = 0, WAYS = 3 };

typedef struct problem {
    ek_dev *dev;
    ek_conv_params params;
    ek_tensor *x, *w, *y, *dy;
} problem;

static ek_tensor *last(ek_tensor *t, ek_dtype dtype)
{
    return ek_contiguous(ek_to_dtype(t, dtype), EK_CHANNELS_LAST);
}

/* Draws a layer's tensors in f32. False on error. */
static bool make(problem *p, const layer *l, int64_t samples)
{
    int64_t padding = 1, out = (l->size + 2 * padding - l->window) / l->stride + 1;
    double taps = (double)(l->channels * l->window * l->window);
    ek_tensor *x = ek_randn(EK_SHAPE(samples, l->channels, l->size, l->size));
    ek_tensor *w = ek_randn(EK_SHAPE(l->outputs, l->channels, l->window, l->window));
    ek_tensor *dy = ek_randn(EK_SHAPE(samples, l->outputs, out, out));
    p->x = last(ek_f_relu(x), EK_F32);
    p->w = last(ek_mul_scalar(w, sqrt(2 / taps)), EK_F32);
    p->dy = last(dy, EK_F32);
    p->params = (ek_conv_params){.dims = 2, .groups = 1};
    for (int d = 0; d < 2; d++) {
        p->params.stride[d] = l->stride;
        p->params.padding[d] = padding;
        p->params.dilation[d] = 1;
    }
    return p->x && p->w && p->dy;
}

/* One result of a kind, in f64 by columns, directly, or by tiles of side x side; NULL on error. */
static ek_tensor *compute(const problem *p, ek_conv_kind kind, ek_dtype dtype, int side)
{
    ek_tensor *x = last(p->x, dtype), *w = last(p->w, dtype), *y = last(p->dy, dtype);
    ek_tensor **out = kind == EK_CONV_FORWARD ? &y : kind == EK_CONV_INPUT_GRADIENT ? &x : &w;
    *out = *out ? ek_tensor_like(*out) : NULL;
    if (!x || !w || !y)
        return NULL;
    const ek_conv conv = {kind, x, w, NULL, y, &p->params};
    int rc;
    if (dtype == EK_F64)
        rc = ek_conv_columns(p->dev, &conv);
    else if (side != DIRECT)
        rc = ek_conv_winograd(p->dev, &conv, side);
    else
        rc = ek_dnn_conv(p->dev, &conv);
    return rc < 0 ? NULL : *out;
}

/* False on error. */
static bool print_errors(const problem *p, ek_conv_kind kind)
{
    static const int sides[WAYS] = {DIRECT, 2, 4};
    const ek_tensor *exact = compute(p, kind, EK_F64, 0);
    if (!exact)
        return false;
    const double *wanted = ek_tensor_address(exact);
    int64_t count = ek_count(exact);
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += wanted[i] * wanted[i];
    double rms = sqrt(squares / (double)count);
    for (int way = 0; way < WAYS; way++) {
        if (sides[way] == 4 && p->params.stride[0] != 1) {
            printf(" |%18s", "-");
            continue;
        }
        const ek_tensor *result = compute(p, kind, EK_F32, sides[way]);
        if (!result)
            return false;
        const float *got = ek_tensor_address(result);
        double largest = 0, sum = 0;
        for (int64_t i = 0; i < count; i++) {
            double error = fabs(got[i] - wanted[i]);
            largest = error <= largest ? largest : error; /* so is NaN */
            sum += error;
        }
        printf(" | %.1e  %.1e", largest / rms, sum / (double)count / rms);
    }
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    static const char *const kinds[KINDS] = {"forward", "input gradient", "weight gradient"};
    int64_t samples = argc > 1 ? atoi(argv[1]) : 8;
    int count = argc > 2 ? atoi(argv[2]) : LAYERS;
    problem p = {.dev = ek_dev_get(ek_host(0))};
    bool right = p.dev != NULL;
    if (samples < 1 || count < 1 || count > LAYERS) {
        fprintf(stderr, "usage: %s [SAMPLES [LAYERS]], of which there are %d\n", argv[0], LAYERS);
        return 2;
    }
    ek_manual_seed(1);
    printf("errors / rms, largest and mean: direct | F(2x2) | F(4x4)\n");
    for (int i = 0; i < count && right; i++) {
        ek_scope scope = ek_scope_begin();
        const layer *l = &layers[i];
        right = make(&p, l, samples);
        const ek_conv conv = {EK_CONV_FORWARD, p.x, p.w, NULL, p.dy, &p.params};
        if (right && !ek_conv_winograd_can(&conv)) {
            printf("this processor has no kernels for Winograd's forms\n");
            return 0;
        }
        for (int kind = 0; kind < KINDS && right; kind++) {
            printf("%-9s %3d -> %3d @ %3d %-15s", kind == 0 ? l->name : "", (int)l->channels,
                   (int)l->outputs, (int)l->size, kinds[kind]);
            right = print_errors(&p, (ek_conv_kind)kind);
            printf("\n");
        }
        ek_scope_end(&scope);
    }
    if (!right)
        ek_print_error(stderr);
    return right ? 0 : 1;
}
