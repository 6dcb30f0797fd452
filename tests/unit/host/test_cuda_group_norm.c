/* Group normalisation's kernels on the GPU against the host's. */
#include "cuda_cases.h"

/* Those at the end are dropped where ndim is smaller. `element`: parameters per element. Among
 * them: groups that are cut into parts, many short ones, many samples, channels that are no
 * multiple of a vector, instance and layer normalisation, groups of one value. */
static const struct {
    int ndim;
    int64_t dims[5], groups;
    bool element;
} cases[] = {
    {4, {3, 6, 5, 7}, 1, false},    {4, {3, 6, 5, 7}, 2, false},    {4, {3, 6, 5, 7}, 6, false},
    {4, {2, 4, 37, 41}, 4, false},  {4, {2, 3, 9, 15}, 3, false},   {4, {2, 300, 3, 2}, 100, false},
    {4, {1, 64, 24, 24}, 1, false}, {4, {2, 512, 1, 2}, 2, false},  {3, {2, 4, 1100}, 2, false},
    {3, {5, 6, 2}, 3, false},       {2, {7, 12}, 3, false},         {2, {4, 530}, 2, false},
    {2, {5, 7}, 1, true},           {2, {150, 40}, 1, true},        {2, {3, 2600}, 1, true},
    {4, {3, 4, 5, 3}, 1, true},     {4, {40, 3, 9, 11}, 1, true},   {3, {2, 3, 16}, 1, true},
    {4, {2, 16, 20, 24}, 1, true},  {4, {1, 1, 4, 5}, 1, false},    {4, {70, 12, 1, 1}, 3, false},
    {4, {3, 8, 1, 1}, 1, false},    {4, {2, 2200, 1, 1}, 2, false}, {4, {2, 32, 16, 16}, 8, false},
    {4, {1, 600, 5, 4}, 1, false},  {5, {2, 4, 3, 4, 5}, 2, false}, {5, {2, 4, 3, 4, 5}, 1, true},
    {2, {3000, 16}, 1, true},       {4, {2, 1, 30, 8}, 1, true},    {4, {1, 4, 64, 64}, 4, false},
    {2, {1, 1}, 1, true},           {4, {150, 8, 2, 2}, 2, false},  {2, {2, 600}, 1, true},
    {2, {5, 8}, 8, false},          {4, {3, 16, 1, 1}, 16, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

typedef struct group_case {
    int number;
    ek_dtype dtype, wide; /* of x, and of statistics and parameters */
    int64_t groups;
    bool element, affine;
    twin x, dy, mean, invstd, weight, bias;
    double exact, rounded; /* tolerances of wide and dtype */
} group_case;

static twin like(const group_case *c, twin_layout layout)
{
    return twin_new(c->dtype, cases[c->number].ndim, cases[c->number].dims, layout);
}

static twin statistic(const group_case *c)
{
    return twin_new(c->wide, 2, (const int64_t[]){cases[c->number].dims[0], c->groups}, TWIN_ROWS);
}

static twin parameter(const group_case *c, double low, double high, unsigned seed)
{
    twin t = twin_new(c->wide, c->element ? cases[c->number].ndim - 1 : 1,
                      cases[c->number].dims + 1, TWIN_ROWS);
    return twin_uniform(t, low, high, seed);
}

static const char *text_of(const group_case *c, const char *what)
{
    static char text[160];
    const int64_t *d = cases[c->number].dims;
    snprintf(text, sizeof text, "%s of (%lld, %lld, %lld, %lld), %lld groups, strides %lld %lld%s",
             what, (long long)d[0], (long long)d[1], (long long)d[2], (long long)d[3],
             (long long)c->groups, (long long)c->x.host->stride[0], (long long)c->x.host->stride[1],
             c->affine ? ", affine" : "");
    return text;
}

static void check_statistics(group_case *c)
{
    twin var = statistic(c);
    c->mean = statistic(c);
    assert_ok(
        twin_host()->norm_moments(twin_dev(EK_HOST), c->mean.host, var.host, c->x.host, NULL));
    assert_ok(
        twin_cuda()->norm_moments(twin_dev(EK_CUDA), c->mean.cuda, var.cuda, c->x.cuda, NULL));
    twin_close(c->mean, c->exact, c->exact, text_of(c, "mean"));
    twin_close(var, c->exact, c->exact, text_of(c, "var"));
    twin_push(c->mean);
    c->invstd = statistic(c);
    for (int64_t i = 0; i < ek_count(var.host); i++)
        case_set(c->invstd.host, i, 1 / sqrt(case_get(var.host, i) + 1e-2));
    twin_push(c->invstd);
}

static void check_apply(const group_case *c, twin_layout layout)
{
    twin y = like(c, layout);
    assert_ok(twin_host()->norm_apply(twin_dev(EK_HOST), y.host, c->x.host, c->mean.host,
                                      c->invstd.host, c->weight.host, c->bias.host, false));
    assert_ok(twin_cuda()->norm_apply(twin_dev(EK_CUDA), y.cuda, c->x.cuda, c->mean.cuda,
                                      c->invstd.cuda, c->weight.cuda, c->bias.cuda, false));
    twin_close(y, c->rounded, 8 * c->exact, text_of(c, "apply"));
}

/* Which pairs of sums are asked for. */
static void check_reduce(const group_case *c, bool groups, bool parameters)
{
    static const char *const names[] = {"sum", "sum_xhat", "dweight", "dbias"};
    twin out[] = {statistic(c), statistic(c), parameter(c, 0, 0, 0), parameter(c, 0, 0, 0)};
    const twin none = {NULL, NULL};
    for (int i = 0; i < 4; i++)
        if (i < 2 ? !groups : !parameters)
            out[i] = none;
    assert_ok(twin_host()->norm_reduce(twin_dev(EK_HOST),
                                       &(ek_norm_sums){.sum = out[0].host,
                                                       .sum_xhat = out[1].host,
                                                       .dweight = out[2].host,
                                                       .dbias = out[3].host},
                                       c->dy.host, c->x.host, c->mean.host, c->invstd.host,
                                       c->weight.host, NULL));
    assert_ok(twin_cuda()->norm_reduce(twin_dev(EK_CUDA),
                                       &(ek_norm_sums){.sum = out[0].cuda,
                                                       .sum_xhat = out[1].cuda,
                                                       .dweight = out[2].cuda,
                                                       .dbias = out[3].cuda},
                                       c->dy.cuda, c->x.cuda, c->mean.cuda, c->invstd.cuda,
                                       c->weight.cuda, NULL));
    for (int i = 0; i < 4; i++) {
        if (out[i].host == NULL)
            continue;
        double values = (double)ek_count(c->x.host) / (double)ek_count(out[i].host);
        twin_close(out[i], c->exact, 8 * c->exact * sqrt(values), text_of(c, names[i]));
    }
}

static void check_gradient(const group_case *c, twin_layout layout)
{
    twin dx = like(c, layout);
    twin sum = twin_uniform(statistic(c), -2, 2, 7), product = twin_uniform(statistic(c), -2, 2, 8);
    assert_ok(
        twin_host()->norm_gradient(twin_dev(EK_HOST), dx.host, c->dy.host, c->x.host, c->mean.host,
                                   c->invstd.host, c->weight.host, sum.host, product.host,
                                   (double)(ek_count(c->x.host) / ek_count(c->mean.host)), NULL));
    assert_ok(
        twin_cuda()->norm_gradient(twin_dev(EK_CUDA), dx.cuda, c->dy.cuda, c->x.cuda, c->mean.cuda,
                                   c->invstd.cuda, c->weight.cuda, sum.cuda, product.cuda,
                                   (double)(ek_count(c->x.cuda) / ek_count(c->mean.cuda)), NULL));
    twin_close(dx, c->rounded, 40 * c->exact, text_of(c, "dx"));
}

static void check_case(int k, ek_dtype dtype, twin_layout layout, twin_layout other, bool affine)
{
    group_case c = {.number = k,
                    .dtype = dtype,
                    .wide = dtype == EK_F64 ? EK_F64 : EK_F32,
                    .groups = cases[k].groups,
                    .element = cases[k].element,
                    .affine = affine,
                    .exact = dtype == EK_F64 ? 1e-13 : 2e-6};
    c.rounded = dtype == EK_BF16 ? 8e-3 : c.exact;
    c.x = twin_uniform(like(&c, layout), -1, 3, 1);
    c.dy = twin_uniform(like(&c, other), -2, 2, 2);
    if (affine) {
        c.weight = parameter(&c, 0.5, 1.5, 3);
        c.bias = parameter(&c, -1, 1, 4);
    }
    check_statistics(&c);
    check_apply(&c, other);
    check_reduce(&c, true, true);
    check_reduce(&c, k % 2 == 0, k % 2 != 0);
    check_gradient(&c, layout);
}

TEST_LOOP(against_host, 0, 3)
{
    for (int k = 0; k < CASES; k++)
        for (int l = 0; l < 4; l++) {
            int64_t count = 1;
            for (int d = 0; d < cases[k].ndim; d++)
                count *= cases[k].dims[d];
            /* How memory is cut depends little on the dtype. */
            if (count > 8000 && (k + _i + l) % 3 != 0)
                continue;
            ek_scope scope = ek_scope_begin();
            bool mixed = (k + l + _i) % 3 == 1;
            check_case(k, floating[_i], (twin_layout)l,
                       mixed ? (twin_layout)((l + 1) % 3) : (twin_layout)l, (k + l) % 2 == 0);
            ek_scope_end(&scope);
        }
}

/* Every form of memory with and without parameters; unusual orders. */
TEST(other_layouts)
{
    static const int numbers[] = {0, 1, 2, 15, 17, 20, 25, 26};
    for (int i = 0; i < 8; i++)
        for (int l = 0; l < TWIN_LAYOUTS; l++) {
            ek_scope scope = ek_scope_begin();
            check_case(numbers[i], EK_F32, (twin_layout)l, (twin_layout)l, l % 2 == 0);
            check_case(numbers[i], EK_F32, (twin_layout)l, (twin_layout)((l + 2) % TWIN_LAYOUTS),
                       l % 2 != 0);
            ek_scope_end(&scope);
        }
}

/* One of the parameters alone; a gradient that is repeated, as a sum's is. */
TEST(some_operands)
{
    static const int numbers[] = {1, 2, 14, 18};
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 2; l++) {
            group_case c = {.number = numbers[i],
                            .dtype = EK_F32,
                            .wide = EK_F32,
                            .groups = cases[numbers[i]].groups,
                            .element = cases[numbers[i]].element,
                            .exact = 2e-6,
                            .rounded = 2e-6};
            c.x = twin_uniform(like(&c, (twin_layout)l), -1, 3, 1);
            c.dy = twin_repeat(twin_uniform(like(&c, TWIN_ROWS), -1, 1, 1), 31);
            check_statistics(&c);
            c.bias = parameter(&c, -1, 1, 4);
            check_apply(&c, (twin_layout)l);
            c.bias = (twin){NULL, NULL};
            c.weight = parameter(&c, -1, 1, 4);
            check_apply(&c, (twin_layout)l);
            check_reduce(&c, true, true);
            check_reduce(&c, true, false);
            check_gradient(&c, (twin_layout)l);
        }
}

/* Strided parameters; those per element also of x's own dtype. */
TEST(other_parameters)
{
    for (int k = 0; k < 2; k++) {
        group_case c = {.number = k ? 15 : 1,
                        .dtype = EK_BF16,
                        .wide = EK_F32,
                        .groups = k ? 1 : 2,
                        .exact = 2e-6,
                        .rounded = 8e-3,
                        .element = k};
        c.x = twin_uniform(like(&c, TWIN_LAST), -1, 3, 1);
        c.dy = twin_uniform(like(&c, TWIN_LAST), -1, 3, 1);
        check_statistics(&c);
        if (k == 0) {
            const int64_t six = 6, stride = 2;
            twin wide =
                twin_uniform(twin_new(EK_F32, 2, (const int64_t[]){6, 2}, TWIN_ROWS), 0, 1, 4);
            c.weight.host = ek_tensor_view(wide.host, 1, &six, &stride, 1);
            c.weight.cuda = ek_tensor_view(wide.cuda, 1, &six, &stride, 1);
            c.bias.host = ek_tensor_view(wide.host, 1, &six, &stride, 0);
            c.bias.cuda = ek_tensor_view(wide.cuda, 1, &six, &stride, 0);
        } else {
            const int64_t *dims = cases[15].dims + 1;
            c.weight = twin_uniform(twin_new(EK_BF16, 3, dims, TWIN_GAPS), 0, 1, 4);
            c.bias = twin_uniform(twin_new(EK_F32, 3, dims, TWIN_REVERSED), 0, 1, 4);
        }
        check_apply(&c, TWIN_LAST);
        /* Sums are of the dtype that is computed in. */
        c.weight = parameter(&c, 0, 1, 3);
        check_reduce(&c, true, true);
        check_gradient(&c, TWIN_LAST);
    }
}

/* A mean 1e4 times the deviation: sums of squares alone would lose all digits of f32. */
TEST(large_mean)
{
    for (int l = 0; l < 4; l++)
        for (int64_t groups = 1; groups <= 24; groups = groups == 1 ? 6 : groups * 4) {
            const int64_t dims[] = {3, 24, 30, 17}, table[] = {3, groups};
            twin x = twin_uniform(twin_new(EK_F32, 4, dims, (twin_layout)l), 9998.3, 10001.7, 9);
            twin mean = twin_new(EK_F32, 2, table, TWIN_ROWS);
            twin var = twin_new(EK_F32, 2, table, TWIN_ROWS);
            const int64_t count = ek_count(x.host), values = count / (3 * groups);
            assert_ok(
                twin_cuda()->norm_moments(twin_dev(EK_CUDA), mean.cuda, var.cuda, x.cuda, NULL));
            double m[72] = {0}, v[72] = {0};
            for (int64_t i = 0; i < count; i++)
                m[i / values] += case_get(x.host, i) / (double)values;
            for (int64_t i = 0; i < count; i++)
                v[i / values] += pow(case_get(x.host, i) - m[i / values], 2) / (double)values;
            for (int64_t i = 0; i < 3 * groups; i++) {
                case_set(mean.host, i, m[i]);
                case_set(var.host, i, v[i]);
            }
            twin_close(mean, 1e-7, 0, "large mean");
            twin_close(var, 2e-6, 0, "var around a large mean");
        }
}

/* The same bits each time. */
TEST(repeatable)
{
    static const int numbers[] = {5, 6, 18};
    for (int k = 0; k < 3; k++) {
        twin out[2][6];
        group_case c = {.number = numbers[k],
                        .dtype = EK_F32,
                        .wide = EK_F32,
                        .groups = cases[numbers[k]].groups,
                        .element = cases[numbers[k]].element};
        twin x = twin_uniform(like(&c, TWIN_LAST), -1, 1, 3);
        for (int t = 0; t < 2; t++) {
            twin *o = out[t];
            for (int i = 0; i < 6; i++)
                o[i] = i < 4 ? statistic(&c) : parameter(&c, 0, 0, 0);
            assert_ok(
                twin_cuda()->norm_moments(twin_dev(EK_CUDA), o[0].cuda, o[1].cuda, x.cuda, NULL));
            assert_ok(twin_cuda()->norm_reduce(twin_dev(EK_CUDA),
                                               &(ek_norm_sums){.sum = o[2].cuda,
                                                               .sum_xhat = o[3].cuda,
                                                               .dweight = o[4].cuda,
                                                               .dbias = o[5].cuda},
                                               x.cuda, x.cuda, o[0].cuda, o[1].cuda, NULL, NULL));
        }
        for (int i = 0; i < 6; i++)
            case_same(twin_pull(out[0][i].cuda), twin_pull(out[1][i].cuda), "twice");
    }
}

TEST(no_values)
{
    ek_dev *dev = twin_dev(EK_CUDA);
    const ek_kernels *cuda = twin_cuda();
    for (int k = 0; k < 2; k++) {
        const int64_t dims[] = {k ? 0 : 2, 3, k ? 4 : 0, 2}, table[] = {dims[0], 3}, three = 3;
        twin x = twin_new(EK_F32, 4, dims, TWIN_ROWS);
        twin mean = twin_new(EK_F32, 2, table, TWIN_ROWS);
        twin var = twin_new(EK_F32, 2, table, TWIN_ROWS);
        twin dweight = twin_new(EK_F32, 1, &three, TWIN_ROWS);
        twin dbias = twin_new(EK_F32, 1, &three, TWIN_ROWS);
        if (k == 0)
            twin_uniform(mean, 1, 2, 3);
        assert_ok(cuda->norm_moments(dev, mean.cuda, var.cuda, x.cuda, NULL));
        case_must(k || isnan(case_get(twin_pull(mean.cuda), 2)));
        case_must(k || isnan(case_get(twin_pull(var.cuda), 0)));
        assert_ok(cuda->norm_apply(dev, x.cuda, x.cuda, mean.cuda, var.cuda, NULL, NULL, false));
        assert_ok(cuda->norm_reduce(dev,
                                    &(ek_norm_sums){.sum = mean.cuda,
                                                    .sum_xhat = var.cuda,
                                                    .dweight = dweight.cuda,
                                                    .dbias = dbias.cuda},
                                    x.cuda, x.cuda, mean.cuda, var.cuda, NULL, NULL));
        case_must(k || case_get(twin_pull(mean.cuda), 5) == 0);
        case_must(k || case_get(twin_pull(var.cuda), 0) == 0);
        case_must(case_get(twin_pull(dweight.cuda), 2) == 0);
        case_must(case_get(twin_pull(dbias.cuda), 1) == 0);
        assert_ok(cuda->norm_gradient(dev, x.cuda, x.cuda, x.cuda, mean.cuda, var.cuda, NULL,
                                      mean.cuda, var.cuda, 1, NULL));
    }
}
