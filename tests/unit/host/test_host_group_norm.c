/* Group normalisation kernels against two-pass loops in double. */
#include "host/host.h"
#include "host_cases.h"

/* Four dimensions; those at the end are dropped where ndim is smaller. `element`: parameters per
 * element. Among them: rows that are cut into pieces, more rows than a block of sums has, channels
 * that are joined to lanes and a rest, more channels than a task has. */
static const struct {
    int ndim;
    int64_t dims[4], groups;
    bool element;
} cases[] = {
    {4, {3, 6, 5, 7}, 1, false},    {4, {3, 6, 5, 7}, 2, false},    {4, {3, 6, 5, 7}, 6, false},
    {4, {2, 4, 37, 41}, 4, false},  {4, {2, 3, 9, 15}, 3, false},   {4, {2, 300, 3, 2}, 100, false},
    {4, {1, 64, 24, 23}, 1, false}, {4, {2, 520, 1, 2}, 2, false},  {3, {2, 4, 1100, 1}, 2, false},
    {3, {5, 6, 2, 1}, 3, false},    {2, {7, 12, 1, 1}, 3, false},   {2, {4, 530, 1, 1}, 2, false},
    {2, {5, 7, 1, 1}, 1, true},     {2, {150, 40, 1, 1}, 1, true},  {2, {3, 2600, 1, 1}, 1, true},
    {4, {3, 4, 5, 3}, 1, true},     {4, {70, 3, 9, 19}, 1, true},   {3, {2, 3, 16, 1}, 1, true},
    {4, {2, 16, 32, 40}, 1, true},  {4, {1, 1, 4, 5}, 1, false},    {4, {70, 12, 1, 1}, 3, false},
    {4, {3, 8, 1, 1}, 1, false},    {4, {2, 2200, 1, 1}, 2, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

/* The group of element i, and its parameter. */
static int64_t group_of(const ek_tensor *x, int64_t groups, int64_t i)
{
    return i / (ek_count(x) / (x->shape[0] * groups));
}

static int64_t parameter_of(const ek_tensor *x, bool element, int64_t i)
{
    int64_t row = ek_count(x) / x->shape[0];
    return element ? i % row : i % row / (row / x->shape[1]);
}

static ek_tensor *parameter(ek_dev *dev, const ek_tensor *x, bool element, unsigned seed)
{
    ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    ek_tensor *tensor = case_tensor(dev, dtype, element ? x->ndim - 1 : 1, &x->shape[1], CASE_ROWS);
    case_fill(tensor, seed);
    return tensor;
}

static ek_tensor *statistic(ek_dev *dev, const ek_tensor *x, int64_t groups)
{
    ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    ek_tensor *tensor =
        case_tensor(dev, dtype, 2, (const int64_t[]){x->shape[0], groups}, CASE_ROWS);
    case_poison(tensor);
    return tensor;
}

static void near(const ek_tensor *got, const double *want, double relative, double absolute,
                 const char *what, int which)
{
    for (int64_t i = 0; i < ek_count(got); i++)
        if (!(fabs(case_get(got, i) - want[i]) <= absolute + relative * fabs(want[i])))
            ck_abort_msg("%s, case %d, %s, element %lld: %.9g, not %.9g", what, which,
                         ek_dtype_name(got->dtype), (long long)i, case_get(got, i), want[i]);
}

static void moments_of(const ek_tensor *x, int64_t groups, double *mean, double *var)
{
    double share = (double)(x->shape[0] * groups) / (double)ek_count(x);
    for (int64_t i = 0; i < ek_count(x); i++)
        mean[group_of(x, groups, i)] += case_get(x, i) * share;
    for (int64_t i = 0; i < ek_count(x); i++) {
        double d = case_get(x, i) - mean[group_of(x, groups, i)];
        var[group_of(x, groups, i)] += d * d * share;
    }
}

/* One shape, dtype and layout on a device: x, dy, statistics of x, parameters or NULL. */
typedef struct group_case {
    ek_dev *dev;
    int number;
    int64_t groups;
    bool element;
    case_layout layout;
    ek_tensor *x, *dy, *mean, *invstd, *weight, *bias;
    double exact, rounded; /* tolerances: of statistics' dtype, and of x's */
} group_case;

static double value(const group_case *c, int64_t i)
{
    int64_t group = group_of(c->x, c->groups, i);
    return (case_get(c->x, i) - case_get(c->mean, group)) * case_get(c->invstd, group);
}

static double weight(const group_case *c, int64_t i)
{
    return c->weight ? case_get(c->weight, parameter_of(c->x, c->element, i)) : 1;
}

static ek_tensor *like_x(const group_case *c, case_layout layout)
{
    ek_tensor *tensor = case_tensor(c->dev, c->x->dtype, c->x->ndim, c->x->shape, layout);
    case_poison(tensor);
    return tensor;
}

static void check_statistics(group_case *c)
{
    ek_tensor *var = statistic(c->dev, c->x, c->groups);
    double *mean = case_zeros(ek_count(var)), *wanted = case_zeros(ek_count(var));
    moments_of(c->x, c->groups, mean, wanted);
    assert_ok(ek_host_norm_moments(c->dev, c->mean, var, c->x, NULL));
    near(c->mean, mean, c->exact, c->exact, "mean", c->number);
    near(var, wanted, c->exact, c->exact, "var", c->number);
    for (int64_t i = 0; i < ek_count(var); i++)
        case_set(c->invstd, i, 1 / sqrt(case_get(var, i) + 1e-5));
    free(mean), free(wanted);
}

static void check_apply(const group_case *c)
{
    ek_tensor *y = like_x(c, (case_layout)((c->layout + (c->bias == NULL)) % 3));
    double *want = case_zeros(ek_count(y));
    assert_ok(ek_host_norm_apply(c->dev, y, c->x, c->mean, c->invstd, c->weight, c->bias, false));
    for (int64_t i = 0; i < ek_count(y); i++)
        want[i] = value(c, i) * weight(c, i) +
                  (c->bias ? case_get(c->bias, parameter_of(c->x, c->element, i)) : 0);
    near(y, want, c->rounded, 4 * c->exact, "apply", c->number);
    free(want);
}

/* Which pairs of sums are asked for. */
static void check_reduce(const group_case *c, bool groups, bool parameters)
{
    ek_tensor *out[] = {statistic(c->dev, c->x, c->groups), statistic(c->dev, c->x, c->groups),
                        parameter(c->dev, c->x, c->element, 0),
                        parameter(c->dev, c->x, c->element, 0)};
    static const char *const names[] = {"sum", "sum_xhat", "dweight", "dbias"};
    double *want[4];
    for (int k = 0; k < 4; k++) {
        want[k] = case_zeros(ek_count(out[k]));
        case_poison(out[k]);
    }
    assert_ok(ek_host_norm_reduce(c->dev,
                                  &(ek_norm_sums){.sum = groups ? out[0] : NULL,
                                                  .sum_xhat = groups ? out[1] : NULL,
                                                  .dweight = parameters ? out[2] : NULL,
                                                  .dbias = parameters ? out[3] : NULL},
                                  c->dy, c->x, c->mean, c->invstd, c->weight, NULL));
    for (int64_t i = 0; i < ek_count(c->x); i++) {
        int64_t group = group_of(c->x, c->groups, i), p = parameter_of(c->x, c->element, i);
        double dy = case_get(c->dy, i);
        want[0][group] += weight(c, i) * dy;
        want[1][group] += weight(c, i) * dy * value(c, i);
        want[2][p] += dy * value(c, i);
        want[3][p] += dy;
    }
    for (int k = 0; k < 4; k++) {
        double values = (double)ek_count(c->x) / (double)ek_count(out[k]);
        if (k < 2 ? groups : parameters)
            near(out[k], want[k], c->exact, 4 * c->exact * sqrt(values), names[k], c->number);
        else
            case_must(isnan(case_get(out[k], 0)));
        free(want[k]);
    }
}

static void check_gradient(const group_case *c)
{
    ek_tensor *dx = like_x(c, c->layout);
    ek_tensor *sum = statistic(c->dev, c->x, c->groups);
    ek_tensor *sum_xhat = statistic(c->dev, c->x, c->groups);
    double *want = case_zeros(ek_count(dx));
    double n = (double)ek_count(dx) / (double)ek_count(sum);
    case_fill(sum, 7);
    case_fill(sum_xhat, 8);
    assert_ok(ek_host_norm_gradient(c->dev, dx, c->dy, c->x, c->mean, c->invstd, c->weight, sum,
                                    sum_xhat, n, NULL));
    for (int64_t i = 0; i < ek_count(dx); i++) {
        int64_t group = group_of(c->x, c->groups, i);
        want[i] = case_get(c->invstd, group) *
                  (weight(c, i) * case_get(c->dy, i) -
                   (case_get(sum, group) + value(c, i) * case_get(sum_xhat, group)) / n);
    }
    near(dx, want, c->rounded, 20 * c->exact, "gradient", c->number);
    free(want);
}

static void check_case(ek_dev *dev, int k, ek_dtype dtype, case_layout layout, bool affine)
{
    group_case c = {.dev = dev,
                    .number = k,
                    .groups = cases[k].groups,
                    .element = cases[k].element,
                    .layout = layout,
                    .exact = dtype == EK_F64 ? 1e-13 : 2e-6};
    c.rounded = dtype == EK_BF16 ? 5e-3 : c.exact;
    c.x = case_tensor(dev, dtype, cases[k].ndim, cases[k].dims, layout);
    c.dy = like_x(&c, layout);
    case_fill(c.x, 1);
    case_fill(c.dy, 2);
    c.mean = statistic(dev, c.x, c.groups);
    c.invstd = statistic(dev, c.x, c.groups);
    if (affine) {
        c.weight = parameter(dev, c.x, c.element, 3);
        c.bias = parameter(dev, c.x, c.element, 4);
    }
    check_statistics(&c);
    check_apply(&c);
    check_reduce(&c, true, true);
    check_reduce(&c, affine, !affine);
    check_gradient(&c);
}

TEST_LOOP(against_loops, 0, 3)
{
    ek_dev *dev = case_device(2);
    for (int k = 0; k < CASES; k++)
        for (int l = 0; l < 3; l++)
            for (int affine = 0; affine < 2; affine++) {
                const int64_t *dims = cases[k].dims;
                /* Where memory is cut is the same for every dtype. */
                if (dims[0] * dims[1] * dims[2] * dims[3] > 8000 && (_i > 0 || !affine))
                    continue;
                ek_scope scope = ek_scope_begin();
                check_case(dev, k, floating[_i], (case_layout)l, affine);
                ek_scope_end(&scope);
            }
}

/* A mean 1e4 times the deviation: sums of squares alone would lose all digits of f32. */
TEST(large_mean)
{
    ek_dev *dev = case_device(2);
    for (int l = 0; l < 2; l++)
        for (int64_t groups = 1; groups <= 24; groups *= 24) {
            ek_tensor *x =
                case_tensor(dev, EK_F32, 4, (const int64_t[]){3, 24, 30, 17}, (case_layout)l);
            case_fill(x, 9);
            for (int64_t i = 0; i < ek_count(x); i++)
                case_set(x, i, case_get(x, i) + 10000);
            ek_tensor *mean = statistic(dev, x, groups), *var = statistic(dev, x, groups);
            double *m = case_zeros(3 * groups), *v = case_zeros(3 * groups);
            moments_of(x, groups, m, v);
            assert_ok(ek_host_norm_moments(dev, mean, var, x, NULL));
            near(mean, m, 1e-7, 0, "mean", l);
            near(var, v, 1e-5, 0, "var", l);
            free(m), free(v);
        }
}

/* The same bits on one thread and on two. */
static void check_threads(const int64_t dims[4], int64_t groups, bool element, case_layout layout)
{
    enum { OUTPUTS = 7 };
    ek_tensor *out[2][OUTPUTS];
    for (int t = 0; t < 2; t++) {
        ek_dev *dev = case_device(t + 1);
        ek_tensor *x = case_tensor(dev, EK_F32, 4, dims, layout), **o = out[t];
        ek_tensor *dy = case_tensor(dev, EK_F32, 4, dims, layout);
        case_fill(x, 1);
        case_fill(dy, 2);
        assert_ok(ek_host_unary(dev, EK_UNARY_EXP, x, x, 0, 0));
        for (int i = 0; i < 4; i++)
            o[i] = statistic(dev, x, groups);
        o[4] = parameter(dev, x, element, 0);
        o[5] = parameter(dev, x, element, 0);
        o[6] = case_tensor(dev, EK_F32, 4, dims, layout);
        assert_ok(ek_host_norm_moments(dev, o[0], o[1], x, NULL));
        assert_ok(ek_host_norm_reduce(
            dev, &(ek_norm_sums){.sum = o[2], .sum_xhat = o[3], .dweight = o[4], .dbias = o[5]}, dy,
            x, o[0], o[1], NULL, NULL));
        assert_ok(ek_host_norm_gradient(dev, o[6], dy, x, o[0], o[1], NULL, o[2], o[3],
                                        (double)(ek_count(x) / ek_count(o[0])), NULL));
    }
    for (int i = 0; i < OUTPUTS; i++)
        case_same(out[0][i], out[1][i], "one and two threads");
}

TEST(threads)
{
    for (int l = 0; l < 2; l++) {
        check_threads((const int64_t[]){3, 5, 41, 43}, 5, false, (case_layout)l);
        check_threads((const int64_t[]){2, 70, 41, 43}, 7, false, (case_layout)l);
        check_threads((const int64_t[]){1, 32, 40, 40}, 1, false, (case_layout)l);
        check_threads((const int64_t[]){90, 4, 20, 30}, 1, true, (case_layout)l);
    }
}

TEST(no_values)
{
    ek_dev *dev = case_device(1);
    ek_tensor *x = case_tensor(dev, EK_F32, 4, (const int64_t[]){2, 3, 0, 2}, CASE_ROWS);
    ek_tensor *mean = statistic(dev, x, 3), *var = statistic(dev, x, 3);
    ek_tensor *dweight = parameter(dev, x, false, 1), *dbias = parameter(dev, x, false, 1);
    case_fill(mean, 1);
    assert_ok(ek_host_norm_moments(dev, mean, var, x, NULL));
    case_must(isnan(case_get(mean, 2)) && isnan(case_get(var, 0)));
    assert_ok(ek_host_norm_apply(dev, x, x, mean, var, NULL, NULL, false));
    assert_ok(ek_host_norm_reduce(
        dev, &(ek_norm_sums){.sum = mean, .sum_xhat = var, .dweight = dweight, .dbias = dbias}, x,
        x, mean, var, NULL, NULL));
    case_must(case_get(mean, 5) == 0 && case_get(var, 0) == 0);
    case_must(case_get(dweight, 2) == 0 && case_get(dbias, 1) == 0);
    assert_ok(ek_host_norm_gradient(dev, x, x, x, mean, var, NULL, mean, var, 1, NULL));
}
