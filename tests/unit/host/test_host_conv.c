/* Convolution on the host against a naive reference in double precision. */
#include "host/conv_implicit.h"
#include "host_cases.h"

typedef struct conv_case {
    const char *what;
    int dims;
    int64_t samples, channels, outputs, groups;
    int64_t in[3], window[3], stride[3], padding[3], dilation[3];
} conv_case;

static const conv_case cases[] = {
    {"3x3", 2, 2, 16, 24, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one sample, 1x1", 2, 1, 8, 5, 1, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1 stride 2", 2, 3, 16, 32, 1, {8, 8}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"three channels", 2, 2, 3, 16, 1, {11, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"one channel", 2, 4, 1, 32, 1, {12, 12}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {"one channel to one", 2, 2, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"stride 3, rest unused", 2, 2, 8, 8, 1, {13, 12}, {3, 3}, {3, 3}, {1, 1}, {1, 1}},
    {"dilation", 2, 2, 16, 8, 1, {12, 13}, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {"dilation and stride", 2, 2, 6, 10, 1, {12, 13}, {3, 2}, {2, 3}, {2, 1}, {2, 3}},
    {"groups", 2, 2, 12, 18, 3, {7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"groups of 8", 2, 2, 16, 16, 2, {7, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"depthwise", 2, 2, 16, 16, 16, {7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"depthwise, dilated, two each", 2, 2, 5, 10, 5, {9, 8}, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {"asymmetric", 2, 1, 7, 9, 1, {9, 5}, {5, 2}, {2, 1}, {2, 0}, {1, 2}},
    {"window as large as the input", 2, 3, 4, 6, 1, {5, 4}, {5, 4}, {1, 1}, {0, 0}, {1, 1}},
    {"4x4 stride 2", 2, 2, 8, 16, 1, {8, 8}, {4, 4}, {2, 2}, {1, 1}, {1, 1}},
    {"large", 2, 1, 64, 64, 1, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one dimension", 1, 3, 6, 8, 1, {17}, {5}, {2}, {2}, {1}},
    {"one dimension, grouped, dilated", 1, 2, 6, 4, 2, {17}, {3}, {1}, {1}, {3}},
    {"three dimensions", 3, 2, 4, 6, 1, {5, 6, 7}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 1, 1}},
    {"three dimensions, grouped",
     3,
     1,
     4,
     4,
     2,
     {4, 5, 6},
     {2, 2, 2},
     {1, 2, 1},
     {1, 1, 0},
     {2, 1, 1}},
    {"three dimensions, pointwise", 3, 2, 8, 6, 1, {3, 4, 2}, {1, 1, 1}, {1, 1, 1}, {0}, {1, 1, 1}},
    {"1x1 stride 2, three channels", 2, 13, 3, 12, 1, {14, 14}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 2, six channels", 2, 13, 6, 7, 1, {14, 14}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 3 and 1, one channel", 2, 9, 1, 4, 1, {14, 14}, {1, 1}, {3, 1}, {0, 0}, {1, 1}},
    {"mostly padding, one dimension", 1, 2, 6, 6, 2, {1}, {3}, {2}, {1}, {1}},
    {"mostly padding", 2, 2, 3, 2, 1, {4, 2}, {1, 3}, {1, 3}, {0, 2}, {1, 1}},
    {"as large as the window, padded",
     3,
     2,
     1,
     2,
     1,
     {3, 3, 3},
     {3, 3, 3},
     {2, 2, 2},
     {1, 1, 1},
     {1, 1, 1}},
    {"mostly padding, in the middle",
     3,
     2,
     3,
     2,
     1,
     {4, 1, 4},
     {1, 5, 1},
     {1, 1, 1},
     {0, 2, 0},
     {1, 1, 1}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* A case's tensors and references. */
typedef struct problem {
    ek_tensor *x, *w, *bias, *y, *dx, *dw, *dbias, *dy;
    double *y_true, *dx_true, *dw_true, *dbias_true;
    ek_conv_params params;
} problem;

/* `unread`: windows at the end of each dimension that y lacks. */
static int64_t shape_of(const conv_case *c, int64_t unread, int64_t *x, int64_t *w, int64_t *y,
                        ek_conv_params *p)
{
    x[0] = y[0] = c->samples;
    x[1] = c->channels;
    y[1] = w[0] = c->outputs;
    w[1] = c->channels / c->groups;
    *p = (ek_conv_params){.dims = c->dims, .groups = c->groups};
    int64_t plane = 1;
    for (int i = 0; i < c->dims; i++) {
        p->stride[i] = c->stride[i];
        p->padding[i] = c->padding[i];
        p->dilation[i] = c->dilation[i];
        x[2 + i] = c->in[i];
        w[2 + i] = c->window[i];
        y[2 + i] = (c->in[i] + 2 * c->padding[i] - c->dilation[i] * (c->window[i] - 1) - 1) /
                       c->stride[i] +
                   1 - unread;
        plane *= y[2 + i];
    }
    return plane;
}

/* All four results at once: each product of an input and a weight counts in three sums. */
static void reference(const conv_case *c, problem *p, const int64_t *xs, const int64_t *ws,
                      const int64_t *ys, int64_t plane)
{
    double *x = case_values(p->x), *w = case_values(p->w), *dys = case_values(p->dy);
    int64_t taps = 1, in_plane = 1, group_outputs = c->outputs / c->groups, inputs = ws[1];
    for (int i = 0; i < c->dims; i++) {
        taps *= ws[2 + i];
        in_plane *= xs[2 + i];
    }
    for (int64_t n = 0; n < c->samples; n++) {
        for (int64_t o = 0; o < c->outputs; o++) {
            for (int64_t at = 0; at < plane; at++) {
                int64_t yi = (n * c->outputs + o) * plane + at;
                double dy = dys[yi], sum = p->bias ? case_get(p->bias, o) : 0;
                p->dbias_true[o] += dy;
                for (int64_t k = 0; k < inputs; k++) {
                    for (int64_t tap = 0; tap < taps; tap++) {
                        int64_t rest = at, tap_rest = tap, position = 0, step = 1;
                        bool inside = true;
                        for (int i = c->dims - 1; i >= 0; i--) {
                            int64_t q = rest % ys[2 + i] * c->stride[i] - c->padding[i] +
                                        tap_rest % ws[2 + i] * c->dilation[i];
                            rest /= ys[2 + i];
                            tap_rest /= ws[2 + i];
                            inside = inside && q >= 0 && q < xs[2 + i];
                            position += q * step;
                            step *= xs[2 + i];
                        }
                        if (!inside)
                            continue;
                        int64_t channel = o / group_outputs * inputs + k;
                        int64_t xi = (n * c->channels + channel) * in_plane + position;
                        int64_t wi = (o * inputs + k) * taps + tap;
                        sum += x[xi] * w[wi];
                        p->dx_true[xi] += dy * w[wi];
                        p->dw_true[wi] += dy * x[xi];
                    }
                }
                p->y_true[yi] = sum;
            }
        }
    }
    free(x);
    free(w);
    free(dys);
}

static problem problem_without(int64_t unread, ek_dev *dev, const conv_case *c, ek_dtype dtype,
                               case_layout layout, bool with_bias)
{
    problem p = {0};
    int64_t xs[5], ws[5], ys[5], plane = shape_of(c, unread, xs, ws, ys, &p.params);
    int ndim = 2 + c->dims;
    p.x = case_tensor(dev, dtype, ndim, xs, layout);
    p.dx = case_tensor(dev, dtype, ndim, xs, layout);
    p.w = case_tensor(dev, dtype, ndim, ws, layout);
    p.dw = case_tensor(dev, dtype, ndim, ws, layout);
    p.y = case_tensor(dev, dtype, ndim, ys, layout);
    p.dy = case_tensor(dev, dtype, ndim, ys, layout);
    p.bias = with_bias ? case_tensor(dev, dtype, 1, ws, layout) : NULL;
    p.dbias = with_bias ? case_tensor(dev, dtype, 1, ws, layout) : NULL;
    case_fill(p.x, 1);
    case_fill(p.w, 2);
    case_fill(p.dy, 3);
    if (with_bias)
        case_fill(p.bias, 4);
    p.y_true = case_zeros(ek_count(p.y));
    p.dx_true = case_zeros(ek_count(p.x));
    p.dw_true = case_zeros(ek_count(p.w));
    p.dbias_true = case_zeros(c->outputs);
    reference(c, &p, xs, ws, ys, plane);
    return p;
}

static problem problem_of(ek_dev *dev, const conv_case *c, ek_dtype dtype, case_layout layout,
                          bool with_bias)
{
    return problem_without(0, dev, c, dtype, layout, with_bias);
}

static void problem_free(problem *p)
{
    free(p->y_true);
    free(p->dx_true);
    free(p->dw_true);
    free(p->dbias_true);
}

static void run(ek_dev *dev, problem *p)
{
    const ek_kernels *kernels = dev->backend->kernels;
    case_poison(p->y);
    case_poison(p->dx);
    case_poison(p->dw);
    if (p->dbias)
        case_poison(p->dbias);
    assert_ok(kernels->conv_forward(dev, p->y, p->x, p->w, p->bias, &p->params));
    assert_ok(kernels->conv_input_gradient(dev, p->dx, p->dy, p->w, &p->params));
    assert_ok(kernels->conv_weight_gradient(dev, p->dw, p->dbias, p->x, p->dy, &p->params));
}

static void check_case(const conv_case *c, int64_t unread, ek_dtype dtype, case_layout layout,
                       int threads)
{
    ek_scope scope = ek_scope_begin();
    ek_dev *dev = case_device(threads);
    problem p = problem_without(unread, dev, c, dtype, layout, layout != CASE_ROWS);
    run(dev, &p);
    char what[128];
    snprintf(what, sizeof what, "%s, %s, layout %d, %d threads", c->what, ek_dtype_name(dtype),
             (int)layout, threads);
    case_compare(p.y, p.y_true, case_tolerance(dtype), what);
    case_compare(p.dx, p.dx_true, case_tolerance(dtype), what);
    case_compare(p.dw, p.dw_true, case_tolerance(dtype), what);
    if (p.dbias)
        case_compare(p.dbias, p.dbias_true, case_tolerance(dtype), what);
    problem_free(&p);
    ek_scope_end(&scope);
}

TEST_LOOP(conv_agrees_with_reference, 0, 3 * CASES)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};
    for (int layout = 0; layout < CASE_LAYOUTS; layout++)
        check_case(&cases[_i / 3], 0, dtypes[_i % 3], (case_layout)layout,
                   layout == CASE_ROWS ? 2 : 1);
    check_case(&cases[_i / 3], 0, dtypes[_i % 3], CASE_LAST, 2);
}

/* Gradients of sums have one value, expanded. */
TEST(conv_takes_zero_strides)
{
    ek_dev *dev = case_device(2);
    problem p = problem_of(dev, &cases[0], EK_F32, CASE_LAST, true);
    int64_t stride[4] = {0, 0, 0, 0};
    double *ones = case_zeros(ek_count(p.dw));
    run(dev, &p); /* with dy as it is */
    for (int64_t i = 0; i < ek_count(p.dy); i++)
        case_set(p.dy, i, 0.5);
    run(dev, &p);
    for (int64_t i = 0; i < ek_count(p.dw); i++)
        ones[i] = case_get(p.dw, i);
    ek_tensor *one = ek_tensor_view(p.dy, 4, p.dy->shape, stride, p.dy->offset);
    p.dy = one;
    run(dev, &p);
    case_compare(p.dw, ones, 1e-6, "expanded");
    free(ones);
    problem_free(&p);
}

TEST(conv_repeats_to_the_bit)
{
    ek_dev *dev = case_device(2);
    for (int dtype = EK_F32; dtype <= EK_BF16; dtype++) {
        for (int i = 0; i < CASES; i += 4) {
            problem p = problem_of(dev, &cases[i], (ek_dtype)dtype, CASE_LAST, true);
            problem q = problem_of(dev, &cases[i], (ek_dtype)dtype, CASE_LAST, true);
            run(dev, &p);
            for (int repeat = 0; repeat < 3; repeat++) {
                run(dev, &q);
                case_same(p.y, q.y, cases[i].what);
                case_same(p.dx, q.dx, cases[i].what);
                case_same(p.dw, q.dw, cases[i].what);
                case_same(p.dbias, q.dbias, cases[i].what);
            }
            problem_free(&p);
            problem_free(&q);
        }
    }
}

/* What ek_conv_implicit is to get right, whether or not it would be chosen. */
static const conv_case implicit_cases[] = {
    {"many samples", 2, 13, 32, 64, 1, {5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"many samples, no padding", 2, 7, 64, 32, 1, {5, 6}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {"odd sizes", 2, 2, 13, 19, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one sample, wide padding", 2, 1, 12, 33, 1, {7, 9}, {3, 3}, {1, 1}, {2, 2}, {1, 1}},
    {"stride 2", 2, 9, 10, 20, 1, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"stride 2, one sample", 2, 1, 10, 20, 1, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"1x1 stride 2", 2, 6, 8, 16, 1, {7, 8}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"stride 3, dilation 2", 2, 3, 5, 7, 1, {12, 13}, {2, 3}, {3, 2}, {1, 2}, {2, 3}},
    {"some rows unread", 2, 8, 4, 17, 1, {8, 8}, {1, 2}, {3, 3}, {0, 1}, {1, 1}},
    {"padding only", 2, 2, 3, 5, 1, {1, 1}, {3, 3}, {1, 1}, {2, 2}, {1, 1}},
    {"tap by tap", 2, 5, 64, 24, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"tap by tap, far taps unread", 2, 2, 64, 8, 1, {2, 1}, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {"several blocks", 2, 3, 70, 100, 1, {16, 15}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
};
enum { IMPLICIT_CASES = sizeof implicit_cases / sizeof *implicit_cases };

static void run_implicit(ek_dev *dev, problem *p)
{
    case_poison(p->y);
    case_poison(p->dx);
    case_poison(p->dw);
    case_poison(p->dbias);
    const ek_conv_params *params = &p->params;
    assert_ok(ek_conv_implicit(dev, EK_CONV_FORWARD, p->x, p->w, p->bias, p->y, params));
    assert_ok(ek_conv_implicit(dev, EK_CONV_INPUT_GRADIENT, p->dx, p->w, NULL, p->dy, params));
    assert_ok(ek_conv_implicit(dev, EK_CONV_WEIGHT_GRADIENT, p->x, p->dw, p->dbias, p->dy, params));
}

TEST_LOOP(conv_in_place_agrees_with_reference, 0, IMPLICIT_CASES)
{
    const conv_case *c = &implicit_cases[_i];
    problem p = problem_of(case_device(1), c, EK_F32, CASE_LAST, true);
    problem q = problem_of(case_device(1), c, EK_F32, CASE_LAST, true);
    if (ek_conv_implicit_can(p.x, &p.params)) {
        run_implicit(case_device(1), &p);
        case_compare(p.y, p.y_true, case_tolerance(EK_F32), c->what);
        case_compare(p.dx, p.dx_true, case_tolerance(EK_F32), c->what);
        case_compare(p.dw, p.dw_true, case_tolerance(EK_F32), c->what);
        case_compare(p.dbias, p.dbias_true, case_tolerance(EK_F32), c->what);
        run_implicit(case_device(2), &q);
        case_same(p.y, q.y, c->what);
        case_same(p.dx, q.dx, c->what);
        case_same(p.dw, q.dw, c->what);
        case_same(p.dbias, q.dbias, c->what);
    }
    problem_free(&p);
    problem_free(&q);
}

/* As a transposed convolution asks for with an output padding: more of x than the windows of y
 * reach, which may be more than a stride. */
TEST_LOOP(conv_leaves_the_last_windows_out, 0, 4)
{
    static const conv_case few[] = {
        {"dilated", 2, 2, 8, 16, 1, {9, 11}, {3, 3}, {1, 2}, {1, 1}, {3, 4}},
        {"dilated, grouped", 2, 2, 4, 6, 2, {12, 11}, {3, 2}, {1, 2}, {1, 1}, {3, 3}},
        {"strided", 2, 2, 16, 24, 1, {9, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
        {"three dimensions", 3, 2, 3, 16, 1, {6, 5, 7}, {2, 3, 3}, {1, 2, 1}, {0, 1, 2}, {3, 1, 2}},
    };
    const conv_case *c = &few[_i];
    for (int64_t unread = 1; unread <= 2; unread++) {
        for (int dtype = EK_F32; dtype <= EK_BF16; dtype++)
            check_case(c, unread, (ek_dtype)dtype, CASE_LAST, 2);
        problem p = problem_without(unread, case_device(1), c, EK_F32, CASE_LAST, true);
        if (c->dims == 2 && ek_conv_implicit_can(p.x, &p.params)) {
            run_implicit(case_device(1), &p);
            case_compare(p.y, p.y_true, case_tolerance(EK_F32), c->what);
            case_compare(p.dx, p.dx_true, case_tolerance(EK_F32), c->what);
            case_compare(p.dw, p.dw_true, case_tolerance(EK_F32), c->what);
        }
        problem_free(&p);
    }
}

TEST(conv_of_no_samples)
{
    ek_dev *dev = case_device(2);
    conv_case c = cases[0];
    c.samples = 0;
    for (int dtype = EK_F32; dtype <= EK_BF16; dtype++) {
        problem p = problem_of(dev, &c, (ek_dtype)dtype, CASE_LAST, true);
        run(dev, &p);
        for (int64_t i = 0; i < ek_count(p.dw); i++)
            ck_assert(case_get(p.dw, i) == 0);
        for (int64_t i = 0; i < ek_count(p.dbias); i++)
            ck_assert(case_get(p.dbias, i) == 0);
        problem_free(&p);
    }
}

TEST(conv_workspace_is_on_the_ledger)
{
    ek_dev *dev = case_device(1);
    ek_memory_stats before, after;
    problem p = problem_of(dev, &cases[16], EK_F32, CASE_LAST, true);
    assert_ok(ek_memory_get_stats(ek_host(0), &before));
    run(dev, &p);
    assert_ok(ek_memory_get_stats(ek_host(0), &after));
    ck_assert(after.now[EK_MEMORY_WORKSPACE] == before.now[EK_MEMORY_WORKSPACE]);
    ck_assert(after.in_use == before.in_use);
    ck_assert(after.peak >= before.in_use + 64 * 64 * 9 * sizeof(float)); /* reordered weights */
    problem_free(&p);
}

TEST(conv_out_of_memory_leaves_all_usable)
{
    ek_dev *dev = case_device(1);
    problem p = problem_of(dev, &cases[16], EK_F32, CASE_LAST, true);
    ek_memory_stats stats;
    assert_ok(ek_memory_trim(ek_host(0)));
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
    assert_ok(ek_memory_set_capacity(ek_host(0), stats.reserved + 4096));
    const ek_kernels *kernels = dev->backend->kernels;
    ck_assert_int_eq(kernels->conv_forward(dev, p.y, p.x, p.w, p.bias, &p.params),
                     EK_E_OUT_OF_MEMORY);
    ek_error_clear();
    assert_ok(ek_memory_set_capacity(ek_host(0), 0));
    assert_ok(kernels->conv_forward(dev, p.y, p.x, p.w, p.bias, &p.params));
    case_compare(p.y, p.y_true, 1e-6, "after running out of memory");
    problem_free(&p);
}
