/* Batch normalisation kernels against two-pass loops in double. */
#include "host/host.h"
#include "host_cases.h"

/* Four dimensions; those at the end are dropped where ndim is smaller. */
static const struct {
    int ndim;
    int64_t dims[4];
} cases[] = {{4, {3, 5, 7, 9}},  {4, {2, 64, 6, 5}},   {4, {5, 3, 33, 7}},   {4, {2, 300, 5, 3}},
             {4, {4, 16, 1, 1}}, {4, {1, 1, 20, 30}},  {2, {70, 37, 1, 1}},  {2, {100, 4, 1, 1}},
             {3, {4, 6, 50, 1}}, {3, {3, 8, 1100, 1}}, {4, {9, 20, 40, 20}}, {2, {3, 10, 1, 1}}};
enum { CASES = sizeof cases / sizeof cases[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

static int64_t channel_of(const ek_tensor *x, int64_t i)
{
    for (int d = x->ndim - 1; d > 1; d--)
        i /= x->shape[d];
    return i % x->shape[1];
}

static ek_tensor *per_channel(ek_dev *dev, const ek_tensor *x, unsigned seed)
{
    ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    ek_tensor *tensor = case_tensor(dev, dtype, 1, &x->shape[1], CASE_ROWS);
    case_fill(tensor, seed);
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

static void moments_of(const ek_tensor *x, double *mean, double *var)
{
    int64_t channels = x->shape[1], count = ek_count(x);
    for (int64_t i = 0; i < count; i++)
        mean[channel_of(x, i)] += case_get(x, i) * (double)channels / (double)count;
    for (int64_t i = 0; i < count; i++) {
        double d = case_get(x, i) - mean[channel_of(x, i)];
        var[channel_of(x, i)] += d * d * (double)channels / (double)count;
    }
}

static void check_case(ek_dev *dev, int k, ek_dtype dtype, case_layout layout, bool masked)
{
    ek_tensor *x = case_tensor(dev, dtype, cases[k].ndim, cases[k].dims, layout);
    ek_tensor *dy = case_tensor(dev, dtype, cases[k].ndim, cases[k].dims, layout);
    ek_tensor *y = case_tensor(dev, dtype, cases[k].ndim, cases[k].dims,
                               masked ? layout : (case_layout)((layout + 1) % 3));
    case_fill(x, 1);
    case_fill(dy, 2);
    case_poison(y);
    int64_t channels = x->shape[1], count = ek_count(x);
    ek_tensor *mean = per_channel(dev, x, 0), *var = per_channel(dev, x, 0);
    ek_tensor *weight = per_channel(dev, x, 3), *bias = per_channel(dev, x, 4);
    double *m = case_zeros(channels), *v = case_zeros(channels), *want = case_zeros(count);
    double exact = dtype == EK_F64 ? 1e-13 : 2e-6, rounded = dtype == EK_BF16 ? 5e-3 : exact;

    moments_of(x, m, v);
    assert_ok(ek_host_norm_moments(dev, mean, var, x, NULL));
    near(mean, m, exact, exact, "mean", k);
    near(var, v, exact, exact, "var", k);

    ek_tensor *invstd = per_channel(dev, x, 0);
    for (int64_t c = 0; c < channels; c++)
        case_set(invstd, c, 1 / sqrt(case_get(var, c) + 1e-5));
    assert_ok(ek_host_norm_apply(dev, y, x, mean, invstd, masked ? weight : NULL,
                                 masked ? bias : NULL, masked));
    for (int64_t i = 0; i < count; i++) {
        int64_t c = channel_of(x, i);
        want[i] = (case_get(x, i) - case_get(mean, c)) * case_get(invstd, c);
        if (masked)
            want[i] = fmax(want[i] * case_get(weight, c) + case_get(bias, c), 0);
    }
    near(y, want, rounded, 3 * exact, "apply", k);

    ek_tensor *sum_dy = per_channel(dev, x, 0), *sum_dy_xhat = per_channel(dev, x, 0);
    const ek_tensor *mask = masked ? y : NULL;
    assert_ok(ek_host_norm_reduce(dev, &(ek_norm_sums){.dbias = sum_dy, .dweight = sum_dy_xhat}, dy,
                                  x, mean, invstd, NULL, mask));
    double *first = case_zeros(channels), *second = case_zeros(channels);
    for (int64_t i = 0; i < count; i++) {
        int64_t c = channel_of(x, i);
        double g = masked && !(case_get(y, i) > 0) ? 0 : case_get(dy, i);
        first[c] += g;
        second[c] += g * (case_get(x, i) - case_get(mean, c)) * case_get(invstd, c);
    }
    double scale = sqrt((double)count / (double)channels);
    near(sum_dy, first, exact, exact * scale, "sum_dy", k);
    near(sum_dy_xhat, second, exact, exact * scale * 4, "sum_dy_xhat", k);

    ek_tensor *dx = case_tensor(dev, dtype, cases[k].ndim, cases[k].dims, layout);
    for (int constant = 0; constant < 2; constant++) {
        double n = (double)count / (double)channels;
        case_poison(dx);
        assert_ok(ek_host_norm_gradient(dev, dx, dy, x, mean, invstd, masked ? weight : NULL,
                                        constant ? NULL : sum_dy, constant ? NULL : sum_dy_xhat, n,
                                        mask));
        for (int64_t i = 0; i < count; i++) {
            int64_t c = channel_of(x, i);
            double xhat = (case_get(x, i) - case_get(mean, c)) * case_get(invstd, c);
            double g = masked && !(case_get(y, i) > 0) ? 0 : case_get(dy, i);
            if (!constant)
                g -= first[c] / n + xhat * second[c] / n;
            want[i] = g * case_get(invstd, c) * (masked ? case_get(weight, c) : 1);
        }
        near(dx, want, rounded, 10 * exact, "gradient", k);
    }
    free(m), free(v), free(want), free(first), free(second);
}

TEST(against_loops)
{
    ek_dev *dev = case_device(2);
    for (int k = 0; k < CASES; k++)
        for (int d = 0; d < 3; d++)
            for (int l = 0; l < 3; l++)
                for (int masked = 0; masked < 2; masked++) {
                    ek_scope scope = ek_scope_begin();
                    check_case(dev, k, floating[d], (case_layout)l, masked);
                    ek_scope_end(&scope);
                }
}

/* A mean 1e4 times the deviation: sums of squares alone would lose all digits of f32. */
TEST(large_mean)
{
    ek_dev *dev = case_device(2);
    for (int l = 0; l < 2; l++) {
        ek_tensor *x =
            case_tensor(dev, EK_F32, 4, (const int64_t[]){8, 24, 30, 17}, (case_layout)l);
        case_fill(x, 9);
        for (int64_t i = 0; i < ek_count(x); i++)
            case_set(x, i, case_get(x, i) + 10000);
        ek_tensor *mean = per_channel(dev, x, 0), *var = per_channel(dev, x, 0);
        double *m = case_zeros(24), *v = case_zeros(24);
        moments_of(x, m, v);
        assert_ok(ek_host_norm_moments(dev, mean, var, x, NULL));
        near(mean, m, 1e-7, 0, "mean", l);
        near(var, v, 1e-5, 0, "var", l);
        free(m), free(v);
    }
}

TEST(threads)
{
    for (int l = 0; l < 2; l++)
        for (int narrow = 0; narrow < 2; narrow++) {
            ek_tensor *out[2][5];
            for (int t = 0; t < 2; t++) {
                ek_dev *dev = case_device(t + 1);
                const int64_t dims[] = {6, narrow ? 5 : 70, 41, 43};
                ek_tensor *x = case_tensor(dev, EK_F32, 4, dims, (case_layout)l);
                ek_tensor *dy = case_tensor(dev, EK_F32, 4, dims, (case_layout)l);
                case_fill(x, 1);
                case_fill(dy, 2);
                assert_ok(ek_host_unary(dev, EK_UNARY_EXP, x, x, 0, 0));
                for (int i = 0; i < 4; i++)
                    out[t][i] = per_channel(dev, x, 0);
                out[t][4] = case_tensor(dev, EK_F32, 4, dims, (case_layout)l);
                assert_ok(ek_host_norm_moments(dev, out[t][0], out[t][1], x, NULL));
                assert_ok(
                    ek_host_norm_reduce(dev,
                                        &(ek_norm_sums){.dbias = out[t][2], .dweight = out[t][3]},
                                        dy, x, out[t][0], out[t][1], NULL, NULL));
                assert_ok(ek_host_norm_gradient(dev, out[t][4], dy, x, out[t][0], out[t][1], NULL,
                                                out[t][2], out[t][3], 1763, NULL));
            }
            for (int i = 0; i < 5; i++)
                case_same(out[0][i], out[1][i], "one and two threads");
        }
}

TEST(no_values)
{
    ek_dev *dev = case_device(1);
    ek_tensor *x = case_tensor(dev, EK_F32, 4, (const int64_t[]){0, 3, 2, 2}, CASE_LAST);
    ek_tensor *mean = per_channel(dev, x, 0), *var = per_channel(dev, x, 0);
    assert_ok(ek_host_norm_moments(dev, mean, var, x, NULL));
    case_must(isnan(case_get(mean, 2)) && isnan(case_get(var, 0)));
    assert_ok(ek_host_norm_apply(dev, x, x, mean, var, NULL, NULL, true));
    assert_ok(ek_host_norm_reduce(dev, &(ek_norm_sums){.dbias = mean, .dweight = var}, x, x, mean,
                                  var, NULL, NULL));
    case_must(case_get(mean, 1) == 0 && case_get(var, 1) == 0);
}
