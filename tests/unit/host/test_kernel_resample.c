/* Resampling: nearest and bilinear of the host against PyTorch's formula for each output element,
 * and adjoints against their transposes; the GPU's against the host's. */
#include "twin.h"

/* n, c, input height and width, output height and width */
static const int64_t cases[][6] = {{2, 3, 4, 5, 8, 10},  {1, 11, 7, 6, 13, 17},
                                   {2, 4, 9, 8, 5, 3},   {1, 2, 1, 1, 4, 3},
                                   {2, 5, 6, 6, 6, 6},   {1, 1, 5, 7, 1, 1},
                                   {1, 3, 8, 8, 41, 9},  {1, 2, 31, 2, 7, 29},
                                   {0, 2, 3, 3, 6, 6},   {2, 8, 5, 3, 11, 7},
                                   {1, 16, 4, 6, 3, 13}, {3, 16, 8, 8, 64, 64}};
/* Nearest, bilinear, bilinear with aligned corners. */
enum { CASES = sizeof cases / sizeof cases[0], MODES = 3 };

static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 2e-5 : 8e-3;
}

static ek_resample_params params_of(int mode)
{
    return (ek_resample_params){.kind = mode > 0 ? EK_RESAMPLE_LINEAR : EK_RESAMPLE_NEAREST,
                                .align_corners = mode == 2};
}

typedef struct source {
    int64_t lower, upper;
    double share; /* of upper */
} source;

static source source_of(int64_t in, int64_t out, int64_t i, int mode)
{
    if (mode == 0) {
        int64_t at = (int64_t)floorf((float)i * ((float)in / (float)out));
        at = at < in - 1 ? at : in - 1;
        return (source){at, at, 0};
    }
    bool corners = mode == 2;
    double scale =
        corners ? (out > 1 ? (double)(in - 1) / (double)(out - 1) : 0) : (double)in / (double)out;
    double real = corners ? scale * (double)i : fmax(scale * ((double)i + 0.5) - 0.5, 0);
    int64_t at = (int64_t)real;
    at = at < in - 1 ? at : in - 1;
    return (source){at, at < in - 1 ? at + 1 : at, fmin(real - (double)at, 1)};
}

/* What each output element is, in y, and in dx what the gradient g of y becomes. A share of zero
 * reads nothing: 0 times infinity is none. */
static void upsampled(const ek_tensor *x, const ek_tensor *g, int mode, double *y, double *dx)
{
    const int64_t *in = x->shape, *out = g->shape;
    double *values = case_values(x), *slopes = case_values(g);
    for (int64_t i = 0; i < ek_count(g); i++) {
        source w = source_of(in[3], out[3], i % out[3], mode);
        source h = source_of(in[2], out[2], i / out[3] % out[2], mode);
        for (int corner = 0; corner < 4; corner++) {
            double share =
                (corner & 1 ? w.share : 1 - w.share) * (corner & 2 ? h.share : 1 - h.share);
            int64_t at =
                (i / (out[2] * out[3]) * in[2] + (corner & 2 ? h.upper : h.lower)) * in[3] +
                (corner & 1 ? w.upper : w.lower);
            if (share != 0) {
                y[i] += share * values[at];
                dx[at] += share * slopes[i];
            }
        }
    }
    free(values), free(slopes);
}

static void check(twin x, twin dx, twin y, twin dy, int mode)
{
    const ek_dtype dtype = x.host->dtype;
    const int64_t *in = x.host->shape, *out = y.host->shape;
    const double tolerance = tolerance_of(dtype);
    const double ratio = 1 + (double)(out[2] * out[3]) / (double)(in[2] * in[3]);
    double *wanted = case_zeros(ek_count(y.host)), *wanted_dx = case_zeros(ek_count(x.host));
    upsampled(x.host, dy.host, mode, wanted, wanted_dx);
    const char *what =
        text_of("%dx%d to %dx%d, mode %d, strides %d and %d", (int)in[2], (int)in[3], (int)out[2],
                (int)out[3], mode, (int)x.host->stride[1], (int)y.host->stride[1]);
    ek_resample_params params = params_of(mode);
    twin_run(resample, ON(y), ON(x), &params);
    twin_expect(y, wanted, tolerance, what);
    twin_close(y, tolerance, tolerance, what);
    params.adjoint = true;
    twin_run(resample, ON(dx), ON(dy), &params);
    twin_expect(dx, wanted_dx, tolerance * ratio, what);
    twin_close(dx, tolerance, 4 * tolerance, what);
    free(wanted), free(wanted_dx);
}

static void check_case(const int64_t *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y,
                       int mode)
{
    ek_scope scope = ek_scope_begin();
    const int64_t in[] = {c[0], c[1], c[2], c[3]}, out[] = {c[0], c[1], c[4], c[5]};
    check(twin_uniform(twin_new(dtype, 4, in, of_x), -2, 2, 1), twin_new(dtype, 4, in, of_x),
          twin_new(dtype, 4, out, of_y), twin_uniform(twin_new(dtype, 4, out, of_y), -2, 2, 2),
          mode);
    ek_scope_end(&scope);
}

TEST_LOOP(upsampling, 0, CASES)
{
    for (int k = 0; k < 3 * TWIN_LAYOUTS * MODES; k += _i == CASES - 1 ? 4 : 1) {
        int layout = k / MODES % TWIN_LAYOUTS;
        check_case(cases[_i], (ek_dtype)(k / MODES / TWIN_LAYOUTS), (twin_layout)layout,
                   (twin_layout)((layout + _i) % TWIN_LAYOUTS), k % MODES);
    }
}

/* Every ratio of small sizes: the transpose asks exactly the positions that read a place. */
TEST_LOOP(all_ratios, 0, MODES)
{
    for (int64_t in = 1; in <= 12; in++)
        for (int64_t out = 1; out <= 24; out++) {
            check_case((const int64_t[]){1, 2, in, 3, out, 2}, EK_F32, TWIN_LAST, TWIN_LAST, _i);
            check_case((const int64_t[]){1, 2, 2, in, 1, out}, EK_F64, TWIN_ROWS, TWIN_ROWS, _i);
        }
}

/* Many positions: groups of channels of a position share a thread. */
TEST_LOOP(many_positions, 0, 12)
{
    static const twin_layout layouts[] = {TWIN_LAST, TWIN_ROWS, TWIN_GAPS, TWIN_DENSE_OFFSET};
    check_case((const int64_t[]){2, 11, 41, 43, 45, 47}, (ek_dtype)(_i / 4 % 3), layouts[_i % 4],
               layouts[_i % 4], 1 + _i % 2);
}

/* Vectors of channels that start at any element, with neighbours on either side. */
TEST_LOOP(some_channels, 0, 9)
{
    static const int64_t firsts[] = {0, 1, 8}, all[][4] = {{2, 24, 4, 5}, {2, 24, 9, 7}};
    twin t[4];
    for (int k = 0; k < 4; k++) {
        const int64_t *whole = all[k / 2], shape[] = {2, 8, whole[2], whole[3]};
        t[k] = twin_uniform(twin_new((ek_dtype)(_i / 3), 4, whole, TWIN_LAST), -2, 2, (unsigned)k);
        t[k] = twin_view(t[k], 4, shape, t[k].host->stride, firsts[_i % 3]);
    }
    check(t[0], t[1], t[2], t[3], 1);
}

/* An infinite element is seen only if it has a share. */
TEST_LOOP(infinity_stays_in_its_place, 0, 9)
{
    const int64_t in[] = {1, 8, 4, 4}, out[] = {1, 8, 7, 7};
    const twin_layout layout = _i < 3 ? TWIN_LAST : TWIN_ROWS;
    const ek_dtype dtype = (ek_dtype)(_i / 3);
    twin x = twin_uniform(twin_new(dtype, 4, in, layout), 1, 2, 1);
    case_set(x.host, 2 * 4 + 1, (double)INFINITY);
    twin_push(x);
    check(x, twin_new(dtype, 4, in, layout), twin_new(dtype, 4, out, layout),
          twin_uniform(twin_new(dtype, 4, out, layout), -2, 2, 2), _i % 3);
}

TEST_LOOP(repeats, 0, 2)
{
    const int64_t in[] = {3, 11, 16, 16}, out[] = {3, 11, 60, 61};
    twin x = twin_uniform(twin_new(EK_F32, 4, in, (twin_layout)_i), -2, 2, 1);
    twin y = twin_new(EK_F32, 4, out, (twin_layout)_i);
    ek_resample_params params = params_of(2);
    twin_repeats(y, resample, ON(y), ON(x), &params);
    params.adjoint = true;
    twin_repeats(x, resample, ON(x), ON(y), &params);
}
