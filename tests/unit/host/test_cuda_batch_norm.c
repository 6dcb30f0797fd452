/* Batch normalisation's kernels on the GPU against the host's. */
#include "cuda_cases.h"

/* Four dimensions or five; those at the end are dropped where ndim is smaller. Among them: one
 * value per channel, one channel, channels that are no multiple of a vector or more than a block
 * has columns, planes and rows that are cut into parts. */
static const struct {
    int ndim;
    int64_t dims[5];
} cases[] = {
    {2, {1, 1}},           {2, {1, 7}},          {2, {70, 37}},         {2, {100, 600}},
    {2, {5000, 8}},        {3, {4, 6, 50}},      {3, {3, 8, 1100}},     {4, {3, 5, 7, 9}},
    {4, {2, 64, 6, 5}},    {4, {5, 3, 33, 7}},   {4, {2, 300, 5, 3}},   {4, {4, 16, 1, 1}},
    {4, {1, 1, 20, 30}},   {4, {9, 20, 40, 20}}, {4, {3, 16, 64, 64}},  {4, {40, 2, 4, 4}},
    {4, {1, 600, 2, 1}},   {5, {2, 5, 3, 4, 5}}, {5, {2, 16, 2, 8, 8}}, {2, {20000, 3}},
    {4, {1, 2, 200, 150}},
};
enum { CASES = sizeof cases / sizeof cases[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

typedef struct batch_case {
    int number;
    ek_dtype dtype, wide; /* of x, and of what belongs to channels */
    int64_t channels, values;
    bool affine, relu;
    twin x, dy, y, mean, var, invstd, weight, bias;
    double exact; /* of the wide dtype */
} batch_case;

static twin per_channel(const batch_case *c, double low, double high, unsigned seed)
{
    return twin_uniform(twin_new(c->wide, 1, &c->channels, TWIN_ROWS), low, high, seed);
}

static twin like(const batch_case *c, twin_layout layout)
{
    return twin_new(c->dtype, cases[c->number].ndim, cases[c->number].dims, layout);
}

/* What the text says of a comparison. */
static const char *text_of(const batch_case *c, const char *what)
{
    static char text[160];
    const int64_t *d = cases[c->number].dims;
    snprintf(text, sizeof text, "%s of (%lld, %lld, %lld, %lld), strides %lld %lld%s%s", what,
             (long long)d[0], (long long)d[1], (long long)d[2], (long long)d[3],
             (long long)c->x.host->stride[0], (long long)c->x.host->stride[1],
             c->affine ? ", affine" : "", c->relu ? ", relu" : "");
    return text;
}

static double rounded(const batch_case *c)
{
    return c->dtype == EK_BF16 ? 8e-3 : c->exact;
}

static void check_statistics(batch_case *c)
{
    twin mean = per_channel(c, 0, 0, 0), var = per_channel(c, 0, 0, 0);
    assert_ok(twin_host()->norm_moments(twin_dev(EK_HOST), mean.host, var.host, c->x.host, NULL));
    assert_ok(twin_cuda()->norm_moments(twin_dev(EK_CUDA), mean.cuda, var.cuda, c->x.cuda, NULL));
    twin_close(mean, c->exact, c->exact, text_of(c, "mean"));
    twin_close(var, c->exact, c->exact, text_of(c, "var"));
    c->mean = mean;
    twin_push(mean);
    c->invstd = per_channel(c, 0, 0, 0);
    for (int64_t i = 0; i < c->channels; i++)
        case_set(c->invstd.host, i, 1 / sqrt(case_get(var.host, i) + 1e-2));
    twin_push(c->invstd);
}

static void check_apply(batch_case *c, twin_layout layout)
{
    c->y = like(c, layout);
    const ek_kernels *host = twin_host(), *cuda = twin_cuda();
    assert_ok(host->norm_apply(twin_dev(EK_HOST), c->y.host, c->x.host, c->mean.host,
                               c->invstd.host, c->weight.host, c->bias.host, c->relu));
    assert_ok(cuda->norm_apply(twin_dev(EK_CUDA), c->y.cuda, c->x.cuda, c->mean.cuda,
                               c->invstd.cuda, c->weight.cuda, c->bias.cuda, c->relu));
    twin_close(c->y, rounded(c), 8 * c->exact, text_of(c, "apply"));
    twin_push(c->y);
}

static void check_backward(const batch_case *c, twin_layout layout)
{
    const ek_kernels *host = twin_host(), *cuda = twin_cuda();
    twin sum = per_channel(c, 0, 0, 0), product = per_channel(c, 0, 0, 0);
    twin mask = c->relu ? c->y : (twin){NULL, NULL};
    assert_ok(host->norm_reduce(twin_dev(EK_HOST),
                                &(ek_norm_sums){.dbias = sum.host, .dweight = product.host},
                                c->dy.host, c->x.host, c->mean.host, c->invstd.host, NULL,
                                mask.host));
    assert_ok(cuda->norm_reduce(twin_dev(EK_CUDA),
                                &(ek_norm_sums){.dbias = sum.cuda, .dweight = product.cuda},
                                c->dy.cuda, c->x.cuda, c->mean.cuda, c->invstd.cuda, NULL,
                                mask.cuda));
    double scale = c->exact * sqrt((double)c->values);
    twin_close(sum, c->exact, 4 * scale, text_of(c, "sum_dy"));
    twin_close(product, c->exact, 8 * scale, text_of(c, "sum_dy_xhat"));
    twin_push(sum);
    twin_push(product);
    for (int constant = 0; constant < 2; constant++) {
        twin dx = like(c, layout), none = {NULL, NULL};
        twin first = constant ? none : sum, second = constant ? none : product;
        assert_ok(host->norm_gradient(twin_dev(EK_HOST), dx.host, c->dy.host, c->x.host,
                                      c->mean.host, c->invstd.host, c->weight.host, first.host,
                                      second.host, (double)c->values, mask.host));
        assert_ok(cuda->norm_gradient(twin_dev(EK_CUDA), dx.cuda, c->dy.cuda, c->x.cuda,
                                      c->mean.cuda, c->invstd.cuda, c->weight.cuda, first.cuda,
                                      second.cuda, (double)c->values, mask.cuda));
        twin_close(dx, rounded(c), 40 * c->exact, text_of(c, constant ? "dx, constant" : "dx"));
    }
}

/* x in one layout, what goes with it in one of its own. */
static void check_case(int k, ek_dtype dtype, twin_layout layout, twin_layout other, bool affine,
                       bool relu)
{
    batch_case c = {.number = k,
                    .dtype = dtype,
                    .wide = dtype == EK_F64 ? EK_F64 : EK_F32,
                    .channels = cases[k].dims[1],
                    .values = cases[k].dims[0],
                    .affine = affine,
                    .relu = relu,
                    .exact = dtype == EK_F64 ? 1e-13 : 2e-6};
    for (int d = 2; d < cases[k].ndim; d++)
        c.values *= cases[k].dims[d];
    c.x = twin_uniform(like(&c, layout), -1, 3, 1);
    c.dy = twin_uniform(like(&c, other), -2, 2, 2);
    if (affine) {
        c.weight = per_channel(&c, 0.5, 1.5, 3);
        c.bias = per_channel(&c, -1, 1, 4);
    }
    check_statistics(&c);
    check_apply(&c, other);
    check_backward(&c, layout);
}

TEST_LOOP(against_host, 0, 3)
{
    for (int k = 0; k < CASES; k++)
        for (int l = 0; l < 4; l++) {
            int64_t count = 1;
            for (int d = 0; d < cases[k].ndim; d++)
                count *= cases[k].dims[d];
            /* How memory is cut depends little on the dtype. */
            if (count > 30000 && (k + _i + l) % 3 != 0)
                continue;
            ek_scope scope = ek_scope_begin();
            bool mixed = (k + l + _i) % 3 == 0;
            check_case(k, floating[_i], (twin_layout)l,
                       mixed ? (twin_layout)((l + 1) % 3) : (twin_layout)l, (k + l) % 2 == 0,
                       (k + l / 2) % 2 == 0);
            ek_scope_end(&scope);
        }
}

/* Memory in unusual orders, and a repeated gradient, as a sum's is. */
TEST(other_layouts)
{
    check_case(7, EK_F32, TWIN_REVERSED, TWIN_LAST, true, true);
    check_case(7, EK_F32, TWIN_ROWS, TWIN_REVERSED, true, true);
    check_case(17, EK_F32, TWIN_SWAPPED, TWIN_LAST, true, false);
    check_case(17, EK_F32, TWIN_LAST, TWIN_ROWS, true, true);
    check_case(5, EK_BF16, TWIN_LAST, TWIN_ROWS, true, true);
    check_case(2, EK_F64, TWIN_REVERSED, TWIN_ROWS, false, true);

    batch_case c = {
        .number = 8, .dtype = EK_F32, .wide = EK_F32, .channels = 64, .values = 60, .exact = 2e-6};
    c.x = twin_uniform(like(&c, TWIN_LAST), -1, 1, 1);
    c.dy = twin_repeat(twin_uniform(like(&c, TWIN_ROWS), -1, 1, 1), 15);
    check_statistics(&c);
    check_backward(&c, TWIN_LAST);
}

/* Channels of a wider tensor, samples of a longer one: strides are kept. */
TEST(parts_of_tensors)
{
    for (int l = 0; l < 2; l++) {
        const int64_t dims[] = {4, 24, 6, 10}, part[] = {3, 8, 6, 10};
        twin whole = twin_uniform(twin_new(EK_F32, 4, dims, (twin_layout)l), -1, 1, 5);
        int64_t offset = whole.host->stride[1] * 8 + whole.host->stride[0];
        twin x = {ek_tensor_view(whole.host, 4, part, whole.host->stride, offset),
                  ek_tensor_view(whole.cuda, 4, part, whole.cuda->stride, offset)};
        const int64_t channels = 8;
        twin mean = twin_new(EK_F32, 1, &channels, TWIN_ROWS);
        twin var = twin_new(EK_F32, 1, &channels, TWIN_ROWS);
        assert_ok(twin_host()->norm_moments(twin_dev(EK_HOST), mean.host, var.host, x.host, NULL));
        assert_ok(twin_cuda()->norm_moments(twin_dev(EK_CUDA), mean.cuda, var.cuda, x.cuda, NULL));
        twin_close(mean, 1e-6, 1e-6, "mean of a part");
        twin_close(var, 1e-6, 1e-6, "var of a part");
        twin_push(mean);
        twin_push(var);
        twin y = twin_new(EK_F32, 4, part, TWIN_ROWS);
        assert_ok(twin_host()->norm_apply(twin_dev(EK_HOST), y.host, x.host, mean.host, var.host,
                                          NULL, NULL, false));
        assert_ok(twin_cuda()->norm_apply(twin_dev(EK_CUDA), y.cuda, x.cuda, mean.cuda, var.cuda,
                                          NULL, NULL, false));
        twin_close(y, 1e-5, 1e-6, "apply to a part");
    }
}

/* Statistics that are rows of one tensor, strided parameters, parameters of x's own dtype. */
TEST(other_parameters)
{
    const int64_t dims[] = {3, 8, 5, 4}, table[] = {8, 2}, channels = 8;
    for (int d = 0; d < 3; d++) {
        twin x = twin_uniform(twin_new(floating[d], 4, dims, TWIN_LAST), -1, 1, 5);
        twin y = twin_new(floating[d], 4, dims, TWIN_LAST);
        twin both = twin_uniform(twin_new(EK_F32, 2, table, TWIN_ROWS), 0.5, 1, 6);
        twin bias = twin_uniform(twin_new(floating[d], 1, &channels, TWIN_ROWS), 0.5, 1, 6);
        twin part[2];
        for (int i = 0; i < 2; i++) {
            const int64_t stride = 2;
            part[i].host = ek_tensor_view(both.host, 1, &channels, &stride, i);
            part[i].cuda = ek_tensor_view(both.cuda, 1, &channels, &stride, i);
        }
        assert_ok(twin_host()->norm_apply(twin_dev(EK_HOST), y.host, x.host, part[0].host,
                                          part[1].host, part[0].host, bias.host, true));
        assert_ok(twin_cuda()->norm_apply(twin_dev(EK_CUDA), y.cuda, x.cuda, part[0].cuda,
                                          part[1].cuda, part[0].cuda, bias.cuda, true));
        twin_close(y, d == 2 ? 8e-3 : 2e-6, 2e-6, "strided parameters");
        twin into = twin_new(EK_F32, 2, table, TWIN_ROWS), out[2];
        for (int i = 0; i < 2; i++) {
            const int64_t stride = 2;
            out[i].host = ek_tensor_view(into.host, 1, &channels, &stride, i);
            out[i].cuda = ek_tensor_view(into.cuda, 1, &channels, &stride, i);
        }
        assert_ok(
            twin_host()->norm_moments(twin_dev(EK_HOST), out[0].host, out[1].host, x.host, NULL));
        assert_ok(
            twin_cuda()->norm_moments(twin_dev(EK_CUDA), out[0].cuda, out[1].cuda, x.cuda, NULL));
        twin_close(into, 2e-6, 2e-6, "strided statistics");
    }
}

/* A mean 1e4 times the deviation: sums of squares alone would lose all digits of f32. */
TEST(large_mean)
{
    const int64_t dims[] = {8, 24, 30, 17};
    for (int l = 0; l < 4; l++) {
        batch_case c = {.channels = 24, .wide = EK_F32};
        twin x = twin_uniform(twin_new(EK_F32, 4, dims, (twin_layout)l), 9998.3, 10001.7, 9);
        twin mean = per_channel(&c, 0, 0, 0), var = per_channel(&c, 0, 0, 0);
        const ek_tensor *at = x.host;
        assert_ok(twin_cuda()->norm_moments(twin_dev(EK_CUDA), mean.cuda, var.cuda, x.cuda, NULL));
        double m[24] = {0}, v[24] = {0};
        for (int64_t i = 0; i < ek_count(at); i++)
            m[i / 510 % 24] += case_get(at, i) / 4080;
        for (int64_t i = 0; i < ek_count(at); i++)
            v[i / 510 % 24] += pow(case_get(at, i) - m[i / 510 % 24], 2) / 4080;
        twin_set((twin){mean.host, twin_of(mean.host).cuda}, m);
        twin_set((twin){var.host, twin_of(var.host).cuda}, v);
        twin_close(mean, 1e-7, 0, "large mean");
        twin_close(var, 1e-6, 0, "var around a large mean");
    }
}

/* NaN and infinity stay where they are, and a NaN hides nothing behind a ReLU. */
TEST(not_finite)
{
    const int64_t dims[] = {6, 8, 4, 4}, channels = 8;
    for (int l = 0; l < 2; l++) {
        batch_case c = {.channels = channels, .wide = EK_F32};
        twin x = twin_uniform(twin_new(EK_F32, 4, dims, (twin_layout)l), -1, 1, 3);
        twin y = twin_new(EK_F32, 4, dims, (twin_layout)l);
        twin dx = twin_new(EK_F32, 4, dims, (twin_layout)l);
        case_set(x.host, 16 * 8 + 3, NAN);      /* channel 0 of sample 1 */
        case_set(x.host, 16 * 9 + 2, INFINITY); /* channel 1 */
        twin_push(x);
        twin mean = per_channel(&c, 0, 0, 0), var = per_channel(&c, 1, 2, 0);
        assert_ok(twin_cuda()->norm_moments(twin_dev(EK_CUDA), mean.cuda, var.cuda, x.cuda, NULL));
        const ek_tensor *got = twin_pull(mean.cuda);
        case_must(isnan(case_get(got, 0)) && !isfinite(case_get(got, 1)));
        got = twin_pull(var.cuda);
        case_must(isnan(case_get(got, 0)) && isnan(case_get(got, 1)));
        case_must(isfinite(case_get(got, 2)));

        twin_push(mean);
        twin_push(var);
        assert_ok(twin_host()->norm_apply(twin_dev(EK_HOST), y.host, x.host, mean.host, var.host,
                                          NULL, NULL, true));
        assert_ok(twin_cuda()->norm_apply(twin_dev(EK_CUDA), y.cuda, x.cuda, mean.cuda, var.cuda,
                                          NULL, NULL, true));
        twin_close(y, 1e-6, 1e-6, "not finite");
        twin_push(y);
        /* Constant statistics: x isn't looked at. */
        assert_ok(twin_host()->norm_gradient(twin_dev(EK_HOST), dx.host, y.host, x.host, mean.host,
                                             var.host, NULL, NULL, NULL, 1, y.host));
        assert_ok(twin_cuda()->norm_gradient(twin_dev(EK_CUDA), dx.cuda, y.cuda, x.cuda, mean.cuda,
                                             var.cuda, NULL, NULL, NULL, 1, y.cuda));
        if (l == 0) /* over planes the host multiplies x by 0 */
            twin_close(dx, 1e-6, 1e-6, "gradient of what isn't finite");
    }
}

/* The same bits each time. */
TEST(repeatable)
{
    for (int l = 0; l < 2; l++) {
        const int64_t dims[] = {6, 36, 41, 43}, channels = 36;
        batch_case c = {.channels = channels, .wide = EK_F32};
        twin x = twin_uniform(twin_new(EK_F32, 4, dims, (twin_layout)l), -1, 1, 3);
        twin out[2][4];
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < 4; i++)
                out[t][i] = per_channel(&c, 0, 0, 0);
            assert_ok(twin_cuda()->norm_moments(twin_dev(EK_CUDA), out[t][0].cuda, out[t][1].cuda,
                                                x.cuda, NULL));
            assert_ok(twin_cuda()->norm_reduce(twin_dev(EK_CUDA),
                                               &(ek_norm_sums){.dbias = out[t][2].cuda,
                                                               .dweight = out[t][3].cuda},
                                               x.cuda, x.cuda, out[t][0].cuda, out[t][1].cuda, NULL,
                                               NULL));
        }
        for (int i = 0; i < 4; i++)
            case_same(twin_pull(out[0][i].cuda), twin_pull(out[1][i].cuda), "twice");
    }
}

TEST(no_values)
{
    const int64_t dims[] = {0, 3, 2, 2}, channels = 3;
    batch_case c = {.channels = channels, .wide = EK_F32};
    ek_dev *dev = twin_dev(EK_CUDA);
    twin x = twin_new(EK_F32, 4, dims, TWIN_LAST);
    twin mean = per_channel(&c, 0, 0, 0), var = per_channel(&c, 0, 0, 0);
    assert_ok(twin_cuda()->norm_moments(dev, mean.cuda, var.cuda, x.cuda, NULL));
    case_must(isnan(case_get(twin_pull(mean.cuda), 2)) && isnan(case_get(twin_pull(var.cuda), 0)));
    assert_ok(twin_cuda()->norm_apply(dev, x.cuda, x.cuda, mean.cuda, var.cuda, NULL, NULL, true));
    assert_ok(twin_cuda()->norm_gradient(dev, x.cuda, x.cuda, x.cuda, mean.cuda, var.cuda, NULL,
                                         NULL, NULL, 1, NULL));
    assert_ok(twin_cuda()->norm_reduce(dev,
                                       &(ek_norm_sums){.dbias = mean.cuda, .dweight = var.cuda},
                                       x.cuda, x.cuda, mean.cuda, var.cuda, NULL, NULL));
    case_must(case_get(twin_pull(mean.cuda), 1) == 0 && case_get(twin_pull(var.cuda), 1) == 0);
}
