/* Pooling: the host's against loops in double, the GPU's against the host's. */
#include "twin.h"

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
    {"3x3 stride 2 padding 1, vectors", 2, 2, 24, {9, 7}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false},
    {"3x3 stride 2, vectors", 2, 2, 8, {7, 10}, {3, 3}, {2, 2}, {0, 0}, {1, 1}, true},
    {"3x2 stride 1, vectors", 2, 1, 12, {5, 6}, {3, 2}, {1, 1}, {1, 1}, {1, 1}, false},
    {"overlapping, one channel", 2, 1, 1, {7, 5}, {3, 2}, {1, 1}, {1, 0}, {1, 1}, false},
    {"many outputs of few planes", 2, 1, 2, {40, 41}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, false},
    {"ceil", 2, 2, 5, {8, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, true},
    {"dilated", 2, 2, 9, {11, 12}, {3, 3}, {2, 1}, {1, 1}, {2, 3}, false},
    {"one position", 2, 2, 130, {4, 4}, {4, 4}, {4, 4}, {0, 0}, {1, 1}, false},
    {"large windows", 2, 2, 37, {24, 15}, {20, 9}, {4, 3}, {3, 2}, {1, 1}, false},
    {"gaps between windows", 2, 2, 3, {9, 10}, {2, 1}, {4, 3}, {1, 0}, {1, 1}, false},
    {"one dimension", 1, 3, 6, {13}, {4}, {3}, {2}, {1}, false},
    {"three dimensions", 3, 2, 4, {5, 6, 7}, {2, 3, 2}, {2, 2, 2}, {1, 1, 0}, {1, 1, 1}, false},
    {"no samples", 2, 0, 4, {4, 4}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Of the GPU's from the host's. */
static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 1e-5 : 8e-3;
}

typedef struct problem {
    ek_pool_params params;
    int64_t in_plane, out_plane, taps;
    twin x, dx, y, dy, index;
} problem;

/* Layouts of the two sides. */
static problem problem_of(const pool_case *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y,
                          bool dilated)
{
    problem p = {.params.dims = c->dims, .in_plane = 1, .out_plane = 1, .taps = 1};
    int64_t xs[5] = {c->samples, c->channels}, ys[5] = {c->samples, c->channels};
    for (int i = 0; i < c->dims; i++) {
        int64_t dilation = dilated ? c->dilation[i] : 1;
        int64_t rest = c->in[i] + 2 * c->padding[i] - dilation * (c->kernel[i] - 1) - 1;
        p.params.kernel[i] = c->kernel[i];
        p.params.stride[i] = c->stride[i];
        p.params.padding[i] = c->padding[i];
        p.params.dilation[i] = dilation;
        xs[2 + i] = c->in[i];
        ys[2 + i] = (rest + (c->ceil ? c->stride[i] - 1 : 0)) / c->stride[i] + 1;
        p.in_plane *= xs[2 + i];
        p.out_plane *= ys[2 + i];
        p.taps *= c->kernel[i];
    }
    int ndim = 2 + c->dims;
    p.x = twin_uniform(twin_new(dtype, ndim, xs, of_x), -2, 2, 1);
    p.dx = twin_new(dtype, ndim, xs, of_x);
    p.y = twin_new(dtype, ndim, ys, of_y);
    p.dy = twin_uniform(twin_new(dtype, ndim, ys, of_y), -2, 2, 2);
    p.index = twin_new(EK_I64, ndim, ys, of_y);
    return p;
}

/* Input position of tap `tap` of output position `at`: -1 outside; *padded: within the padding. */
static int64_t tap_position(const problem *p, int64_t at, int64_t tap, bool *padded)
{
    const int64_t *xs = p->x.host->shape, *ys = p->y.host->shape;
    int64_t position = 0, step = 1;
    bool inside = true;
    *padded = true;
    for (int i = p->params.dims - 1; i >= 0; i--) {
        int64_t q = at % ys[2 + i] * p->params.stride[i] - p->params.padding[i] +
                    tap % p->params.kernel[i] * p->params.dilation[i];
        at /= ys[2 + i];
        tap /= p->params.kernel[i];
        inside = inside && q >= 0 && q < xs[2 + i];
        *padded = *padded && q < xs[2 + i] + p->params.padding[i];
        position += q * step;
        step *= xs[2 + i];
    }
    return inside ? position : -1;
}

static void run_max(const problem *p, const char *what)
{
    const ek_dtype dtype = p->x.host->dtype;
    const int64_t count = ek_count(p->y.host);
    double *x = case_values(p->x.host), *y = case_zeros(count), *index = case_zeros(count);
    double *dx = case_zeros(ek_count(p->x.host));
    for (int64_t i = 0; i < count; i++) {
        int64_t plane = i / p->out_plane * p->in_plane, best = -1;
        for (int64_t tap = 0; tap < p->taps; tap++) {
            bool padded;
            int64_t at = tap_position(p, i % p->out_plane, tap, &padded);
            if (at >= 0 && (best < 0 || x[plane + at] > x[plane + best] || isnan(x[plane + at])))
                best = at;
        }
        y[i] = x[plane + best];
        index[i] = (double)best;
        dx[plane + best] += case_get(p->dy.host, i);
    }
    twin_run(max_pool_forward, ON(p->y), ON(p->index), ON(p->x), &p->params);
    twin_expect(p->y, y, 0, what);
    twin_expect(p->index, index, 0, what);
    twin_same(p->y, what);
    twin_same(p->index, what);
    twin_run(max_pool_gradient, ON(p->dx), ON(p->dy), ON(p->index), &p->params);
    twin_expect_norm(p->dx, dx, case_tolerance(dtype), what);
    twin_close(p->dx, tolerance_of(dtype), tolerance_of(dtype), what);
    /* The adjoint of the gradient. */
    case_poison(p->y.host);
    twin_push(p->y);
    twin_run(max_pool_gather, ON(p->y), ON(p->x), ON(p->index));
    twin_expect(p->y, y, 0, what);
    twin_same(p->y, what);
    free(x), free(y), free(index), free(dx);
}

static void check_max(const pool_case *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y)
{
    problem p = problem_of(c, dtype, of_x, of_y, true);
    if (ek_count(p.x.host) > 9) {
        /* Whole numbers meet equals; NaN and the smallest win and lose. */
        p.x = twin_integers(p.x, -2, 2, 3);
        case_set(p.x.host, 3, (double)NAN);
        case_set(p.x.host, 4, (double)NAN);
        case_set(p.x.host, 5, -(double)INFINITY);
        twin_push(p.x);
    }
    run_max(&p, c->what);
}

static void run_avg(const problem *p, const char *what)
{
    const ek_dtype dtype = p->x.host->dtype;
    double *y = case_zeros(ek_count(p->y.host)), *dx = case_zeros(ek_count(p->x.host));
    for (int64_t i = 0; i < ek_count(p->y.host); i++) {
        double divisor = 0, dy = case_get(p->dy.host, i);
        for (int64_t tap = 0; tap < 2 * p->taps; tap++) {
            bool padded;
            int64_t at = tap_position(p, i % p->out_plane, tap % p->taps, &padded);
            int64_t from = i / p->out_plane * p->in_plane + at;
            if (tap < p->taps)
                divisor += p->params.count_include_pad ? padded : at >= 0;
            else if (at >= 0) {
                y[i] += case_get(p->x.host, from) / divisor;
                dx[from] += dy / divisor;
            }
        }
    }
    twin_run(avg_pool_forward, ON(p->y), ON(p->x), &p->params);
    twin_expect_norm(p->y, y, case_tolerance(dtype), what);
    twin_close(p->y, tolerance_of(dtype), tolerance_of(dtype), what);
    twin_run(avg_pool_gradient, ON(p->dx), ON(p->dy), &p->params);
    twin_expect_norm(p->dx, dx, case_tolerance(dtype), what);
    twin_close(p->dx, tolerance_of(dtype), tolerance_of(dtype), what);
    free(y), free(dx);
}

static void check_avg(const pool_case *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y,
                      bool count_include_pad)
{
    problem p = problem_of(c, dtype, of_x, of_y, false);
    p.params.count_include_pad = count_include_pad;
    run_avg(&p, c->what);
}

/* Either side in each layout. */
TEST_LOOP(pools, 0, 3 * CASES)
{
    const pool_case *c = &cases[_i / 3];
    ek_dtype dtype = (ek_dtype)(_i % 3);
    for (int layout = 0; layout < TWIN_LAYOUTS; layout++) {
        ek_scope scope = ek_scope_begin();
        twin_layout of_x = (twin_layout)layout, of_y = (twin_layout)((layout + _i) % TWIN_LAYOUTS);
        check_max(c, dtype, of_x, of_y);
        check_max(c, dtype, of_x, of_x);
        check_avg(c, dtype, of_x, of_y, layout % 2);
        check_avg(c, dtype, of_x, of_x, layout % 2 == 0);
        ek_scope_end(&scope);
    }
}

/* ---- adaptive ---- */

/* samples, channels, then sizes of the input and the output; of three dimensions if the first
 * exceeds 1 */
static const int64_t sizes[][8] = {{2, 67, 1, 8, 8, 1, 4, 4},   {2, 3, 1, 7, 5, 1, 3, 2},
                                   {1, 33, 1, 16, 20, 1, 1, 1}, {2, 2, 1, 3, 5, 1, 7, 5},
                                   {1, 4, 1, 1, 1, 1, 2, 3},    {2, 3, 1, 6, 6, 1, 6, 6},
                                   {2, 67, 1, 4, 4, 1, 1, 1},   {1, 3, 5, 7, 6, 2, 3, 4},
                                   {2, 3, 10, 9, 8, 1, 2, 1}};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Each output is the mean of a box of inputs. */
static void adaptive_of(const int64_t *s, const double *x, const double *dy, double *y, double *dx)
{
    for (int64_t i = 0; i < s[0] * s[1] * s[5] * s[6] * s[7]; i++) {
        int64_t low[3], high[3], rest = i, elements = 1;
        for (int d = 2; d >= 0; d--) {
            int64_t at = rest % s[5 + d];
            rest /= s[5 + d];
            low[d] = at * s[2 + d] / s[5 + d];
            high[d] = ((at + 1) * s[2 + d] + s[5 + d] - 1) / s[5 + d];
            elements *= high[d] - low[d];
        }
        for (int64_t a = low[0]; a < high[0]; a++)
            for (int64_t b = low[1]; b < high[1]; b++)
                for (int64_t c = low[2]; c < high[2]; c++) {
                    int64_t at = ((rest * s[2] + a) * s[3] + b) * s[4] + c;
                    y[i] += x[at] / (double)elements;
                    dx[at] += dy[i] / (double)elements;
                }
    }
}

TEST_LOOP(adaptive_pools, 0, 3 * SIZES)
{
    const int64_t *s = sizes[_i / 3];
    const ek_dtype dtype = (ek_dtype)(_i % 3);
    const int skip = s[2] > 1 ? 0 : 1, ndim = 5 - skip;
    int64_t xs[5] = {s[0], s[1]}, ys[5] = {s[0], s[1]};
    for (int d = 2; d < ndim; d++) {
        xs[d] = s[d + skip];
        ys[d] = s[d + skip + 3];
    }
    for (int l = 0; l < TWIN_LAYOUTS; l++) {
        twin x = twin_uniform(twin_new(dtype, ndim, xs, (twin_layout)l), -2, 2, 1);
        twin dx = twin_new(dtype, ndim, xs, (twin_layout)l);
        twin y = twin_new(dtype, ndim, ys, (twin_layout)l);
        twin dy = twin_uniform(twin_new(dtype, ndim, ys, (twin_layout)l), -2, 2, 2);
        double *values = case_values(x.host), *slopes = case_values(dy.host);
        double *wanted = case_zeros(ek_count(y.host)), *wanted_dx = case_zeros(ek_count(x.host));
        adaptive_of(s, values, slopes, wanted, wanted_dx);
        twin_run(adaptive_avg_pool_forward, ON(y), ON(x));
        twin_expect_norm(y, wanted, case_tolerance(dtype), "adaptive");
        twin_close(y, tolerance_of(dtype), tolerance_of(dtype), "adaptive");
        twin_run(adaptive_avg_pool_gradient, ON(dx), ON(dy));
        twin_expect_norm(dx, wanted_dx, case_tolerance(dtype), "adaptive gradient");
        twin_close(dx, tolerance_of(dtype), tolerance_of(dtype), "adaptive gradient");
        free(values), free(slopes), free(wanted), free(wanted_dx);
    }
}

/* ---- special ---- */

/* Vectors of channels that start at any element, with neighbours on either side. */
TEST_LOOP(pools_of_some_channels, 0, 18)
{
    static const int64_t all[] = {24, 24, 19}, firsts[] = {1, 8, 1};
    pool_case c = cases[_i % 2 == 0 ? 1 : 2];
    c.channels = all[_i / 6];
    problem p = problem_of(&c, (ek_dtype)(_i / 2 % 3), TWIN_LAST, TWIN_LAST, true);
    twin *const tensors[] = {&p.x, &p.dx, &p.y, &p.dy, &p.index};
    for (int k = 0; k < 5; k++) {
        const ek_tensor *t = tensors[k]->host;
        const int64_t shape[] = {t->shape[0], 8, t->shape[2], t->shape[3]};
        *tensors[k] = twin_view(*tensors[k], 4, shape, t->stride, firsts[_i / 6]);
    }
    run_max(&p, c.what);
    p.params.count_include_pad = true;
    run_avg(&p, c.what);
}

TEST(repeats)
{
    pool_case c = {"repeats", 2, 8, 96, {32, 31}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false};
    problem p = problem_of(&c, EK_F32, TWIN_LAST, TWIN_LAST, true);
    twin_repeats(p.y, max_pool_forward, ON(p.y), ON(p.index), ON(p.x), &p.params);
    twin_repeats(p.index, max_pool_forward, ON(p.y), ON(p.index), ON(p.x), &p.params);
    twin_repeats(p.dx, max_pool_gradient, ON(p.dx), ON(p.dy), ON(p.index), &p.params);
    twin_repeats(p.y, avg_pool_forward, ON(p.y), ON(p.x), &p.params);
    twin_repeats(p.dx, avg_pool_gradient, ON(p.dx), ON(p.dy), &p.params);
}

/* Nothing outside of the plane is read or written; the host names the first position in row-major
 * order. The GPU's other elements are right. */
TEST_LOOP(positions_out_of_range_are_refused, 0, 4)
{
    problem p = problem_of(&cases[1], EK_F32, TWIN_LAST, TWIN_LAST, true);
    const long long bad = _i % 2 == 0 ? (long long)p.in_plane : -1;
    char at[100], later[100];
    snprintf(at, sizeof at, "position %lld of maximum 7 is out of range for a plane of %lld", bad,
             (long long)p.in_plane);
    snprintf(later, sizeof later, "position %lld", bad);
    twin_run(max_pool_forward, ON(p.y), ON(p.index), ON(p.x), &p.params);
    const double good = case_get(p.index.host, 7);
    case_set(p.index.host, 7, (double)bad);
    twin_push(p.index);
    for (int round = 0; round < 2; round++)
        if (_i < 2)
            twin_refused_late(EK_E_INVALID, at, later, max_pool_gather, ON(p.y), ON(p.x),
                              ON(p.index));
        else
            twin_refused_late(EK_E_INVALID, at, later, max_pool_gradient, ON(p.dx), ON(p.dy),
                              ON(p.index), &p.params);
    if (_i < 2)
        return;
    case_set(p.index.host, 7, good);
    case_set(p.dy.host, 7, 0);
    assert_ok(twin_host()->max_pool_gradient(twin_dev(EK_HOST), p.dx.host, p.dy.host, p.index.host,
                                             &p.params));
    twin_close(p.dx, 1e-5, 1e-5, "without the bad position");
}
