/* Pooling on the host against naive references in double precision. */
#include "host_cases.h"

typedef struct pool_case {
    const char *what;
    int dims;
    int64_t samples, channels;
    int64_t in[3], kernel[3], stride[3], padding[3], dilation[3];
    bool ceil;
} pool_case;

static const pool_case cases[] = {
    {"2x2", 2, 3, 16, {8, 8}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},
    {"3x3 stride 2 padding 1", 2, 2, 70, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false},
    {"overlapping, one channel", 2, 1, 1, {7, 5}, {3, 2}, {1, 1}, {1, 0}, {1, 1}, false},
    {"ceil", 2, 2, 5, {8, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, true},
    {"dilated", 2, 2, 9, {11, 12}, {3, 3}, {2, 1}, {1, 1}, {2, 3}, false},
    {"one position", 2, 2, 130, {4, 4}, {4, 4}, {4, 4}, {0, 0}, {1, 1}, false},
    {"one dimension", 1, 3, 6, {13}, {4}, {3}, {2}, {1}, false},
    {"three dimensions", 3, 2, 4, {5, 6, 7}, {2, 3, 2}, {2, 2, 2}, {1, 1, 0}, {1, 1, 1}, false},
    {"no samples", 2, 0, 4, {4, 4}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},
};
enum { CASES = sizeof cases / sizeof *cases };
static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};

typedef struct problem {
    ek_pool_params params;
    int64_t in_plane, out_plane;
    int64_t xs[5], ys[5];
    ek_tensor *x, *dx, *y, *dy, *index;
} problem;

static problem problem_of(ek_dev *dev, const pool_case *c, ek_dtype dtype, case_layout layout,
                          bool dilated)
{
    problem p = {.in_plane = 1, .out_plane = 1};
    p.xs[0] = p.ys[0] = c->samples;
    p.xs[1] = p.ys[1] = c->channels;
    p.params.dims = c->dims;
    for (int i = 0; i < c->dims; i++) {
        int64_t dilation = dilated ? c->dilation[i] : 1;
        int64_t rest = c->in[i] + 2 * c->padding[i] - dilation * (c->kernel[i] - 1) - 1;
        p.params.kernel[i] = c->kernel[i];
        p.params.stride[i] = c->stride[i];
        p.params.padding[i] = c->padding[i];
        p.params.dilation[i] = dilation;
        p.xs[2 + i] = c->in[i];
        p.ys[2 + i] = (rest + (c->ceil ? c->stride[i] - 1 : 0)) / c->stride[i] + 1;
        p.in_plane *= p.xs[2 + i];
        p.out_plane *= p.ys[2 + i];
    }
    int ndim = 2 + c->dims;
    p.x = case_tensor(dev, dtype, ndim, p.xs, layout);
    p.dx = case_tensor(dev, dtype, ndim, p.xs, layout);
    p.y = case_tensor(dev, dtype, ndim, p.ys, layout);
    p.dy = case_tensor(dev, dtype, ndim, p.ys, layout);
    p.index = case_tensor(dev, EK_I64, ndim, p.ys, layout);
    case_fill(p.x, 1);
    case_fill(p.dy, 2);
    case_poison(p.dx);
    case_poison(p.y);
    case_poison(p.index);
    return p;
}

/* Input position of tap `tap` of output position `at`: -1 outside; *padded: within the padding. */
static int64_t tap_position(const problem *p, int64_t at, int64_t tap, bool *padded)
{
    int64_t position = 0, step = 1;
    bool inside = true;
    *padded = true;
    for (int i = p->params.dims - 1; i >= 0; i--) {
        int64_t q = at % p->ys[2 + i] * p->params.stride[i] - p->params.padding[i] +
                    tap % p->params.kernel[i] * p->params.dilation[i];
        at /= p->ys[2 + i];
        tap /= p->params.kernel[i];
        inside = inside && q >= 0 && q < p->xs[2 + i];
        *padded = *padded && q < p->xs[2 + i] + p->params.padding[i];
        position += q * step;
        step *= p->xs[2 + i];
    }
    return inside ? position : -1;
}

static int64_t taps_of(const problem *p)
{
    int64_t taps = 1;
    for (int i = 0; i < p->params.dims; i++)
        taps *= p->params.kernel[i];
    return taps;
}

static void check_max(ek_dev *dev, const pool_case *c, ek_dtype dtype, case_layout layout)
{
    const ek_kernels *kernels = dev->backend->kernels;
    problem p = problem_of(dev, c, dtype, layout, true);
    if (ek_count(p.x) > 5) {
        case_set(p.x, 3, (double)NAN);
        case_set(p.x, 5, -(double)INFINITY);
    }
    double *dx = case_zeros(ek_count(p.x));
    assert_ok(kernels->max_pool_forward(dev, p.y, p.index, p.x, &p.params));
    assert_ok(kernels->max_pool_gradient(dev, p.dx, p.dy, p.index, &p.params));
    for (int64_t i = 0; i < ek_count(p.y); i++) {
        int64_t plane = i / p.out_plane, best_at = -1;
        double best = -(double)INFINITY;
        for (int64_t tap = 0; tap < taps_of(&p); tap++) {
            bool padded;
            int64_t at = tap_position(&p, i % p.out_plane, tap, &padded);
            double value = at < 0 ? 0 : case_get(p.x, plane * p.in_plane + at);
            if (at >= 0 && (best_at < 0 || value > best || isnan(value))) {
                best = value;
                best_at = at;
            }
        }
        double y = case_get(p.y, i);
        ck_assert_msg(y == best || (isnan(y) && isnan(best)), "%s: %g, wanted %g", c->what, y,
                      best);
        ck_assert_msg(case_get(p.index, i) == (double)best_at, "%s: index %g, wanted %lld", c->what,
                      case_get(p.index, i), (long long)best_at);
        dx[plane * p.in_plane + best_at] += case_get(p.dy, i);
    }
    case_compare(p.dx, dx, case_tolerance(dtype), c->what);
    /* The adjoint of the gradient. */
    assert_ok(kernels->max_pool_gather(dev, p.y, p.dx, p.index));
    for (int64_t i = 0; i < ek_count(p.y); i++) {
        int64_t at = i / p.out_plane * p.in_plane + (int64_t)case_get(p.index, i);
        ck_assert(case_get(p.y, i) == case_get(p.dx, at));
    }
    free(dx);
}

static void check_avg(ek_dev *dev, const pool_case *c, ek_dtype dtype, case_layout layout,
                      bool count_include_pad)
{
    const ek_kernels *kernels = dev->backend->kernels;
    problem p = problem_of(dev, c, dtype, layout, false);
    p.params.count_include_pad = count_include_pad;
    double *y = case_zeros(ek_count(p.y)), *dx = case_zeros(ek_count(p.x));
    assert_ok(kernels->avg_pool_forward(dev, p.y, p.x, &p.params));
    assert_ok(kernels->avg_pool_gradient(dev, p.dx, p.dy, &p.params));
    for (int64_t i = 0; i < ek_count(p.y); i++) {
        double divisor = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t tap = 0; tap < taps_of(&p); tap++) {
                bool padded;
                int64_t at = tap_position(&p, i % p.out_plane, tap, &padded);
                int64_t xi = i / p.out_plane * p.in_plane + at;
                if (pass == 0)
                    divisor += count_include_pad ? padded : at >= 0;
                else if (at >= 0) {
                    y[i] += case_get(p.x, xi) / divisor;
                    dx[xi] += case_get(p.dy, i) / divisor;
                }
            }
        }
    }
    case_compare(p.y, y, case_tolerance(dtype), c->what);
    case_compare(p.dx, dx, case_tolerance(dtype), c->what);
    free(y);
    free(dx);
}

TEST_LOOP(pools_agree_with_references, 0, 3 * CASES)
{
    for (int layout = 0; layout < CASE_LAYOUTS; layout++) {
        for (int threads = 1; threads <= 2; threads++) {
            ek_scope scope = ek_scope_begin();
            ek_dev *dev = case_device(threads);
            ek_dtype dtype = dtypes[_i % 3];
            check_max(dev, &cases[_i / 3], dtype, (case_layout)layout);
            check_avg(dev, &cases[_i / 3], dtype, (case_layout)layout, true);
            check_avg(dev, &cases[_i / 3], dtype, (case_layout)layout, false);
            ek_scope_end(&scope);
        }
    }
}

TEST_LOOP(adaptive_pools_agree_with_references, 0, 36)
{
    static const int64_t sizes[][4] = {{8, 8, 4, 4}, {7, 5, 3, 2}, {4, 4, 1, 1},
                                       {3, 5, 7, 5}, {1, 1, 2, 3}, {6, 6, 6, 6}};
    ek_dev *dev = case_device(1 + _i % 2);
    const ek_kernels *kernels = dev->backend->kernels;
    const int64_t *s = sizes[_i / 6];
    ek_dtype dtype = dtypes[_i / 2 % 3];
    for (int layout = 0; layout < CASE_LAYOUTS; layout++) {
        int64_t xs[4] = {2, 67, s[0], s[1]}, ys[4] = {2, 67, s[2], s[3]};
        ek_tensor *x = case_tensor(dev, dtype, 4, xs, (case_layout)layout);
        ek_tensor *dx = case_tensor(dev, dtype, 4, xs, (case_layout)layout);
        ek_tensor *y = case_tensor(dev, dtype, 4, ys, (case_layout)layout);
        ek_tensor *dy = case_tensor(dev, dtype, 4, ys, (case_layout)layout);
        double *y_true = case_zeros(ek_count(y)), *dx_true = case_zeros(ek_count(x));
        case_fill(x, 1);
        case_fill(dy, 2);
        case_poison(y);
        case_poison(dx);
        assert_ok(kernels->adaptive_avg_pool_forward(dev, y, x));
        assert_ok(kernels->adaptive_avg_pool_gradient(dev, dx, dy));
        for (int64_t i = 0; i < ek_count(y); i++) {
            int64_t h = i / s[3] % s[2], w = i % s[3], plane = i / s[3] / s[2];
            int64_t h0 = h * s[0] / s[2], h1 = ((h + 1) * s[0] + s[2] - 1) / s[2];
            int64_t w0 = w * s[1] / s[3], w1 = ((w + 1) * s[1] + s[3] - 1) / s[3];
            double divisor = (double)((h1 - h0) * (w1 - w0));
            for (int64_t a = h0; a < h1; a++)
                for (int64_t b = w0; b < w1; b++) {
                    int64_t xi = (plane * s[0] + a) * s[1] + b;
                    y_true[i] += case_get(x, xi) / divisor;
                    dx_true[xi] += case_get(dy, i) / divisor;
                }
        }
        case_compare(y, y_true, case_tolerance(dtype), "adaptive");
        case_compare(dx, dx_true, case_tolerance(dtype), "adaptive gradient");
        free(y_true);
        free(dx_true);
    }
}

TEST(pools_do_not_depend_on_threads)
{
    pool_case c = {"threads", 2, 8, 96, {32, 31}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false};
    ek_dev *dev = case_device(1);
    const ek_kernels *kernels = dev->backend->kernels;
    problem one = problem_of(dev, &c, EK_F32, CASE_LAST, true);
    problem two = problem_of(dev, &c, EK_F32, CASE_LAST, true);
    problem *problems[] = {&one, &two};
    for (int i = 0; i < 2; i++) {
        problem *p = problems[i];
        assert_ok(ek_device_set_threads(ek_host(0), 1 + i));
        assert_ok(kernels->max_pool_forward(dev, p->y, p->index, p->x, &p->params));
        assert_ok(kernels->max_pool_gradient(dev, p->dx, p->dy, p->index, &p->params));
    }
    case_same(one.y, two.y, "y");
    case_same(one.index, two.index, "index");
    case_same(one.dx, two.dx, "dx");
    for (int i = 0; i < 2; i++) {
        problem *p = problems[i];
        assert_ok(ek_device_set_threads(ek_host(0), 1 + i));
        assert_ok(kernels->avg_pool_forward(dev, p->y, p->x, &p->params));
        assert_ok(kernels->avg_pool_gradient(dev, p->dx, p->dy, &p->params));
    }
    case_same(one.y, two.y, "mean");
    case_same(one.dx, two.dx, "gradient of mean");
}

/* Nothing outside of the plane is read or written; the first position in row-major order is named.
 */
TEST_LOOP(positions_out_of_range_are_refused, 0, 4)
{
    const ek_kernels *kernels = ek_dev_get(ek_host(0))->backend->kernels;
    ek_dev *dev = ek_dev_get(ek_host(0));
    const bool low = _i % 2 == 0, gather = _i / 2 == 1;
    problem p = problem_of(dev, &cases[1], EK_F32, CASE_LAST, true);
    assert_ok(kernels->max_pool_forward(dev, p.y, p.index, p.x, &p.params));
    case_set(p.index, 7, low ? -1 : (double)p.in_plane);
    case_set(p.index, 9, 1e9);
    int rc = gather ? kernels->max_pool_gather(dev, p.y, p.x, p.index)
                    : kernels->max_pool_gradient(dev, p.dx, p.dy, p.index, &p.params);
    char sentence[100];
    snprintf(sentence, sizeof sentence,
             "position %lld of maximum 7 is out of range for a plane of %lld",
             low ? -1LL : (long long)p.in_plane, (long long)p.in_plane);
    ck_assert_int_eq(rc, EK_E_INVALID);
    assert_error(EK_E_INVALID, sentence);
}
