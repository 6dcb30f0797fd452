/* Softmax, cross entropy and their gradients: the host's kernels against loops in double, the GPU's
 * against the host's. */
#include "twin.h"

static const int64_t no_dims[1] = {0}; /* of a scalar */
static const int64_t shapes[][4] = {{2, 5, 3, 4},   {3, 11, 9, 13}, {2, 1, 3, 3},   {2, 300, 2, 3},
                                    {40, 10, 1, 1}, {0, 3, 2, 2},   {3, 2000, 1, 1}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], IGNORED = -100 };

/* Roundings of the values themselves and of sums of some hundred of them. */
static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 2e-6 : 8e-3;
}

/* ---- softmax ---- */

/* Softmax of every line of x along dim in y, and in dx what dy becomes; `rounded` is the output
 * that the gradient is computed from. */
static void softmax_of(const double *x, const double *dy, const double *rounded, double *y,
                       double *dx, const int64_t spans[3], bool logarithm)
{
    const int64_t size = spans[1], inner = spans[2];
    for (int64_t k = 0; k < spans[0] * inner; k++) {
        const int64_t base = k / inner * size * inner + k % inner;
        double most = -(double)INFINITY, sum = 0, dot = 0;
        for (int64_t i = base; i < base + size * inner; i += inner)
            most = fmax(most, x[i]);
        for (int64_t i = base; i < base + size * inner; i += inner) {
            sum += exp(x[i] - most);
            dot += dy[i] * (logarithm ? 1 : rounded[i]);
        }
        for (int64_t i = base; i < base + size * inner; i += inner) {
            y[i] = logarithm ? x[i] - most - log(sum) : exp(x[i] - most) / sum;
            dx[i] = logarithm ? dy[i] - exp(rounded[i]) * dot : rounded[i] * (dy[i] - dot);
        }
    }
}

static void check_softmax(twin x, int dim, int layout, bool logarithm)
{
    const ek_dtype dtype = x.host->dtype;
    const int ndim = x.host->ndim, layouts = ndim > 0 ? TWIN_LAYOUTS : 1;
    const int64_t *shape = x.host->shape, count = ek_count(x.host);
    const char *what = text_of("%lld x %lld, dimension %d, layout %d, log %d", (long long)shape[0],
                               (long long)shape[1], dim, layout, logarithm);
    double tolerance = tolerance_of(dtype);
    int64_t spans[3] = {1, 1, 1};
    for (int d = 0; d < ndim; d++)
        spans[d < dim ? 0 : d == dim ? 1 : 2] *= shape[d];
    twin y = twin_new(dtype, ndim, shape, (twin_layout)((layout + dim) % layouts));
    twin dy = twin_new(dtype, ndim, shape, (twin_layout)((layout + 1) % layouts));
    twin dx = twin_new(dtype, ndim, shape, (twin_layout)((layout + 2) % layouts));
    twin_uniform(dy, -2, 2, 2);
    twin_run(softmax, ON(y), ON(x), dim, logarithm);
    double *values = case_values(x.host), *slopes = case_values(dy.host);
    double *got = case_values(y.host), *wanted = case_zeros(count), *wanted_dx = case_zeros(count);
    softmax_of(values, slopes, got, wanted, wanted_dx, spans, logarithm);
    for (int64_t i = 0; i < count && dtype == EK_F32; i++)
        wanted[i] = (double)(float)wanted[i]; /* which may be infinite */
    twin_expect(y, wanted, tolerance, what);
    twin_close(y, tolerance, logarithm ? tolerance : tolerance / 100, what);
    twin_push(y);
    twin_run(softmax_gradient, ON(dx), ON(dy), ON(y), dim, logarithm);
    twin_expect(dx, wanted_dx, 3 * tolerance, what);
    twin_close(dx, tolerance, 3 * tolerance, what);
    free(values), free(slopes), free(got), free(wanted), free(wanted_dx);
}

static void check_shape(ek_dtype dtype, int ndim, const int64_t *shape, int dim, int layout,
                        bool logarithm, double scale)
{
    ek_scope scope = ek_scope_begin();
    twin x = twin_uniform(twin_new(dtype, ndim, shape, (twin_layout)layout), -scale, scale, 1);
    check_softmax(x, dim, layout, logarithm);
    ek_scope_end(&scope);
}

TEST_LOOP(softmax, 0, 3)
{
    for (int s = 0; s < SHAPES; s++)
        for (int dim = 0; dim < 4; dim++)
            for (int l = 0; l < 2 * TWIN_LAYOUTS; l++)
                check_shape((ek_dtype)_i, 4, shapes[s], dim, l / 2, l % 2, 3);
    check_shape((ek_dtype)_i, 0, no_dims, 0, TWIN_ROWS, false, 3);
}

/* Long lines, few or many, in both orders of memory. */
TEST_LOOP(long_lines, 0, 3)
{
    const int64_t long_shapes[][2] = {{3, 5000}, {5000, 3}, {37, 600}, {600, 37}, {1, 300}};
    for (int s = 0; s < 5; s++)
        for (int dim = 0; dim < 2; dim++)
            for (int l = TWIN_ROWS; l <= TWIN_SWAPPED; l++)
                check_shape((ek_dtype)_i, 2, long_shapes[s], dim, l, l % 2, 30);
}

/* Lines with NaN, with infinities, of nothing but -inf, and of huge numbers. */
static double special(int64_t line, int64_t c)
{
    const double infinity = (double)INFINITY;
    switch (line) {
        CASE_IS(0, -infinity);
        CASE_IS(1, c == 2 ? (double)NAN : 0.5);
        CASE_IS(2, c == 3 ? infinity : (double)c);
        CASE_IS(3, c < 4 ? -infinity : 1);
        CASE_IS(4, 1e4 + (double)(c % 3));
        CASE_IS(5, c == 5 ? 3e38 : -3e38);
        CASE_IS(6, c == 5 ? 1e4 : -infinity);
    default:
        return c == 3 ? infinity : -infinity;
    }
}

TEST(special_lines)
{
    const int64_t shape[] = {8, 19};
    for (int l = 0; l < 4; l++) {
        twin x = twin_new(EK_F32, 2, shape, l / 2 ? TWIN_ROWS : TWIN_REVERSED);
        for (int64_t i = 0; i < 8 * 19; i++)
            case_set(x.host, i, special(i / 19, i % 19));
        twin_push(x);
        check_softmax(x, 1, TWIN_ROWS, l % 2);
        check_softmax(x, 0, TWIN_ROWS, l % 2);
    }
}

/* ---- cross entropy ---- */

typedef struct entropy_case {
    twin x, target, weight, loss, lse, gradient, dx;
    ek_cross_entropy_params params;
} entropy_case;

static entropy_case case_of(ek_dtype dtype, const int64_t *shape, int layout, double smoothing,
                            bool weighted)
{
    const int64_t plane[] = {shape[0], shape[2], shape[3]};
    ek_dtype real = dtype == EK_F64 ? EK_F64 : EK_F32;
    entropy_case c = {.params = {.ignore_index = IGNORED, .label_smoothing = smoothing}};
    c.x = twin_uniform(twin_new(dtype, 4, shape, (twin_layout)layout), -4, 4, 1);
    c.dx = twin_new(dtype, 4, shape, (twin_layout)((layout + 1) % TWIN_LAYOUTS));
    c.target = twin_new(EK_I64, 3, plane, (twin_layout)((layout + 2) % TWIN_LAYOUTS));
    twin_integers(c.target, 0, shape[1] - 1, 2);
    for (int64_t i = 3; i < ek_count(c.target.host); i += 7)
        case_set(c.target.host, i, IGNORED);
    twin_push(c.target);
    dtype = layout % 3 ? dtype : real;
    c.loss = twin_new(dtype, 3, plane, TWIN_ROWS);
    c.lse = twin_new(real, 3, plane, TWIN_GAPS);
    c.gradient = twin_uniform(twin_new(dtype, 3, plane, TWIN_ROWS), -2, 2, 3);
    if (layout % 2)
        c.gradient = twin_repeat(c.gradient, 7);
    if (weighted)
        c.weight = twin_uniform(twin_new(dtype, 1, &shape[1], TWIN_GAPS), 0.5, 2, 4);
    return c;
}

/* Runs the kernels; the host's are right if `finite`. */
static void check_entropy(const entropy_case *c, bool finite, double tolerance, const char *what)
{
    const ek_tensor *x = c->x.host, *target = c->target.host;
    const int64_t classes = x->shape[1], inner = x->shape[2] * x->shape[3];
    const double smoothing = c->params.label_smoothing;
    const double coarse = x->dtype == EK_BF16 ? 8e-3 : tolerance;
    double *loss = case_zeros(ek_count(target)), *dx = case_zeros(ek_count(x)), *p = case_values(x);
    double *weight = case_zeros(classes), total = 0, counted = 0;
    for (int64_t k = 0; k < classes; k++) {
        weight[k] = c->weight.host ? case_get(c->weight.host, k) : 1;
        total += weight[k];
    }
    for (int64_t k = 0; k < ek_count(target); k++) {
        const int64_t base = k / inner * classes * inner + k % inner;
        const int64_t wanted = (int64_t)case_get(target, k);
        double sum = 0, all = 0;
        if (wanted == IGNORED)
            continue;
        for (int64_t j = 0; j < classes; j++)
            sum += exp(p[base + j * inner]);
        for (int64_t j = 0; j < classes; j++) {
            const double x_j = p[base + j * inner], share = exp(x_j) / sum;
            all += weight[j] * (log(sum) - x_j);
            dx[base + j * inner] = case_get(c->gradient.host, k) *
                                   ((1 - smoothing) * weight[wanted] * (share - (j == wanted)) +
                                    smoothing / (double)classes * (share * total - weight[j]));
        }
        loss[k] = (1 - smoothing) * weight[wanted] * (log(sum) - p[base + wanted * inner]) +
                  smoothing / (double)classes * all;
        counted += weight[wanted];
    }
    twin_run(cross_entropy_forward, ON(c->loss), ON(c->lse), ON(c->x), ON(c->target), ON(c->weight),
             &c->params);
    twin_close(c->loss, coarse, tolerance, what);
    twin_close(c->lse, tolerance, tolerance, what);
    twin_push(c->lse);
    twin_run(cross_entropy_gradient, ON(c->dx), ON(c->gradient), ON(c->lse), ON(c->x),
             ON(c->target), ON(c->weight), &c->params);
    twin_close(c->dx, coarse, 2 * tolerance, what);
    if (finite) {
        const int64_t none_of[1] = {0};
        twin sum = twin_new(EK_F64, 0, none_of, TWIN_ROWS);
        twin_run(target_weight, ON(sum), ON(c->target), ON(c->weight), IGNORED);
        twin_close(sum, 1e-7, 0, what);
        twin_expect(sum, &counted, 1e-13, what);
        twin_expect(c->loss, loss, coarse, what);
        twin_expect(c->dx, dx, 2 * coarse, what);
    }
    free(loss), free(dx), free(p), free(weight);
}

TEST_LOOP(cross_entropy, 0, 3)
{
    for (int s = 0; s < SHAPES; s++)
        for (int l = 0; l < TWIN_LAYOUTS; l++)
            for (int option = 0; option < 4; option++) {
                ek_scope scope = ek_scope_begin();
                entropy_case c =
                    case_of((ek_dtype)_i, shapes[s], l, option & 1 ? 0.1 : 0, option & 2);
                check_entropy(&c, true, _i == EK_F64 ? 1e-13 : 3e-6,
                              text_of("shape %d, layout %d, options %d", s, l, option));
                ek_scope_end(&scope);
            }
}

/* So many elements that fewer of a GPU's lanes work on each. */
TEST_LOOP(cross_entropy_of_many_elements, 0, 6)
{
    const int64_t shape[] = {2, _i % 2 == 0 ? 11 : 40, 45, 47};
    entropy_case c = case_of((ek_dtype)(_i / 2), shape, TWIN_LAST, 0.1, true);
    check_entropy(&c, true, _i / 2 == EK_F64 ? 1e-13 : 3e-6, "many elements");
}

TEST(special_scores)
{
    const int64_t shape[] = {6, 7, 1, 2};
    for (int l = TWIN_LAST; l <= TWIN_ROWS; l++)
        for (int option = 0; option < 4; option++) {
            entropy_case c = case_of(EK_F32, shape, l, option & 1 ? 0.1 : 0, option & 2);
            for (int64_t i = 0; i < ek_count(c.x.host); i++)
                case_set(c.x.host, i, special(i / 14, i / 2 % 7));
            twin_push(c.x);
            check_entropy(&c, false, 1e-5, "special scores");
        }
}

TEST(target_weight)
{
    const int64_t shape[] = {3, 4, 5, 7}, large[] = {3, 6, 60, 211}, one[] = {1},
                  no_targets[] = {0};
    for (int l = 0; l < 4 * TWIN_LAYOUTS; l++) {
        ek_scope scope = ek_scope_begin();
        entropy_case c = case_of(EK_F32, l & 1 ? large : shape, l / 4, 0, l & 2);
        twin out = twin_new((ek_dtype)(l / 4 % 3), l / 4 % 2, one, TWIN_ROWS);
        twin_run(target_weight, ON(out), ON(c.target), ON(c.weight), IGNORED);
        twin_close(out, out.host->dtype == EK_BF16 ? 8e-3 : 1e-7, 0, "target weight");
        ek_scope_end(&scope);
    }
    twin target = twin_new(EK_I64, 1, no_targets, TWIN_ROWS);
    twin out = twin_new(EK_F32, 0, no_dims, TWIN_ROWS);
    twin_run(target_weight, ON(out), ON(target), NULL, IGNORED);
    twin_expect(out, (const double[]){0}, 0, "no targets");
    twin_same(out, "no targets");
}

TEST_LOOP(targets_out_of_range, 0, 6)
{
    const int64_t shape[] = {6, 4, 1, 1};
    const int bad = _i % 2 ? 4 : -1;
    entropy_case c = case_of(EK_F32, shape, TWIN_ROWS, 0.1, true);
    twin out = twin_new(EK_F32, 0, no_dims, TWIN_ROWS);
    char at[80], later[80];
    check_entropy(&c, true, 3e-6, "before");
    double before = case_get(c.target.host, 4);
    case_set(c.target.host, 4, bad);
    twin_push(c.target);
    snprintf(at, sizeof at, "target %d at position 4 is out of range for 4 classes", bad);
    snprintf(later, sizeof later, "target %d is out of range for 4 classes", bad);
    if (_i / 2 == 0)
        twin_refused_late(EK_E_INVALID, at, later, cross_entropy_forward, ON(c.loss), ON(c.lse),
                          ON(c.x), ON(c.target), ON(c.weight), &c.params);
    else if (_i / 2 == 1)
        twin_refused_late(EK_E_INVALID, at, later, cross_entropy_gradient, ON(c.dx), ON(c.gradient),
                          ON(c.lse), ON(c.x), ON(c.target), ON(c.weight), &c.params);
    else
        twin_refused_late(EK_E_INVALID, at, later, target_weight, ON(out), ON(c.target),
                          ON(c.weight), IGNORED);
    case_set(c.target.host, 4, before);
    twin_push(c.target);
    check_entropy(&c, true, 3e-6, "after an error");
}

TEST(repeats)
{
    const int64_t dims[] = {2, 11, 61, 67};
    entropy_case c = case_of(EK_F32, dims, TWIN_LAST, 0.1, false);
    twin_repeats(c.loss, cross_entropy_forward, ON(c.loss), ON(c.lse), ON(c.x), ON(c.target), NULL,
                 &c.params);
    twin_repeats(c.dx, cross_entropy_gradient, ON(c.dx), ON(c.gradient), ON(c.lse), ON(c.x),
                 ON(c.target), NULL, &c.params);
    twin_repeats(c.dx, softmax, ON(c.dx), ON(c.x), 1, true);
}
