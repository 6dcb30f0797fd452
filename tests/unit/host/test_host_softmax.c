/* Softmax and cross entropy against loops in double, and against PyTorch's numbers. */
#include "host/host.h"
#include "host_cases.h"

static const int64_t shapes[][4] = {{2, 5, 3, 4},   {3, 11, 9, 13}, {2, 1, 3, 3},
                                    {2, 700, 2, 3}, {40, 10, 1, 1}, {0, 3, 2, 2}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

/* Elements before and after `dim`: element (o, c, i) of x is at (o * size + c) * inner + i. */
static void spans(const ek_tensor *x, int dim, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? outer : inner) *= d == dim ? 1 : x->shape[d];
}

static void near(const ek_tensor *got, const double *want, double tolerance, const char *what)
{
    for (int64_t i = 0; i < ek_count(got); i++)
        if (!(fabs(case_get(got, i) - want[i]) <= tolerance * fmax(1, fabs(want[i]))))
            ck_abort_msg("%s, %s, element %lld: %.9g, not %.9g", what, ek_dtype_name(got->dtype),
                         (long long)i, case_get(got, i), want[i]);
}

static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 1e-6 : 5e-3;
}

TEST(softmax)
{
    ek_dev *dev = case_device(2);
    for (int dtype = 0; dtype < 3; dtype++)
        for (int s = 0; s < SHAPES; s++)
            for (int dim = 0; dim < 4; dim++)
                for (int l = 0; l < 18; l++) {
                    ek_scope scope = ek_scope_begin();
                    bool logarithm = l >= 9;
                    ek_tensor *x =
                        case_tensor(dev, floating[dtype], 4, shapes[s], (case_layout)(l % 3));
                    ek_tensor *y =
                        case_tensor(dev, floating[dtype], 4, shapes[s], (case_layout)(l / 3 % 3));
                    ek_tensor *dy =
                        case_tensor(dev, floating[dtype], 4, shapes[s], (case_layout)(l % 2));
                    case_fill(x, 1);
                    case_fill(dy, 2);
                    case_poison(y);
                    int64_t outer, inner, size = shapes[s][dim];
                    spans(x, dim, &outer, &inner);
                    double *want = case_zeros(ek_count(x)), *slope = case_zeros(ek_count(x));
                    assert_ok(ek_host_softmax(dev, y, x, dim, logarithm));
                    for (int64_t k = 0; k < (size > 0 ? outer * inner : 0); k++) {
                        int64_t base = k / inner * size * inner + k % inner;
                        double sum = 0, dot = 0;
                        for (int64_t c = 0; c < size; c++)
                            sum += exp(case_get(x, base + c * inner));
                        for (int64_t c = 0; c < size; c++) {
                            int64_t i = base + c * inner;
                            want[i] = case_get(x, i) - log(sum);
                            if (!logarithm)
                                want[i] = exp(want[i]);
                            dot += case_get(dy, i) * (logarithm ? 1 : case_get(y, i));
                        }
                        for (int64_t c = 0; c < size; c++) {
                            int64_t i = base + c * inner;
                            double y_i = case_get(y, i);
                            slope[i] = logarithm ? case_get(dy, i) - exp(y_i) * dot
                                                 : y_i * (case_get(dy, i) - dot);
                        }
                    }
                    near(y, want, tolerance_of(floating[dtype]), "softmax");
                    case_poison(x);
                    assert_ok(ek_host_softmax_gradient(dev, x, dy, y, dim, logarithm));
                    near(x, slope, 3 * tolerance_of(floating[dtype]), "gradient");
                    free(want), free(slope);
                    ek_scope_end(&scope);
                }
}

TEST(large_and_infinite)
{
    ek_dev *dev = case_device(1);
    ek_tensor *x = case_tensor(dev, EK_F32, 2, (const int64_t[]){3, 19}, CASE_ROWS);
    ek_tensor *y = case_tensor(dev, EK_F32, 2, (const int64_t[]){3, 19}, CASE_ROWS);
    assert_ok(ek_host_fill(dev, x, 1e4));
    case_set(x, 1, -(double)INFINITY);
    case_set(x, 19 + 12, (double)NAN);
    case_set(x, 38, -1e30);
    assert_ok(ek_host_softmax(dev, y, x, 1, false));
    case_must(fabs(case_get(y, 0) - 1.0 / 18) < 1e-8 && case_get(y, 1) == 0);
    for (int i = 19; i < 38; i++)
        case_must(isnan(case_get(y, i)));
    case_must(case_get(y, 38) == 0 && fabs(case_get(y, 40) - 1.0 / 18) < 1e-8);
}

static ek_tensor *targets_of(ek_dev *dev, const int64_t *shape, case_layout layout)
{
    ek_tensor *target =
        case_tensor(dev, EK_I64, 3, (const int64_t[]){shape[0], shape[2], shape[3]}, layout);
    for (int64_t i = 0; i < ek_count(target); i++)
        case_set(target, i, i % 7 == 3 ? -100 : (double)(i * 13 % shape[1]));
    return target;
}

static void check_entropy(ek_dev *dev, int s, ek_dtype dtype, int l, double smoothing,
                          bool weighted)
{
    const int64_t *shape = shapes[s], plane[] = {shape[0], shape[2], shape[3]};
    int64_t classes = shape[1], inner = shape[2] * shape[3], count = shape[0] * inner;
    ek_tensor *x = case_tensor(dev, dtype, 4, shape, (case_layout)(l % 3));
    ek_tensor *dx = case_tensor(dev, dtype, 4, shape, (case_layout)(l / 3));
    ek_tensor *target = targets_of(dev, shape, l % 2 ? CASE_ROWS : CASE_GAPS);
    ek_dtype real = dtype == EK_F64 ? EK_F64 : EK_F32;
    ek_tensor *loss = case_tensor(dev, real, 3, plane, CASE_ROWS);
    ek_tensor *lse = case_tensor(dev, real, 3, plane, CASE_GAPS);
    ek_tensor *gradient = case_tensor(dev, real, 3, plane, CASE_ROWS);
    ek_tensor *weight = case_tensor(dev, real, 1, &classes, CASE_ROWS);
    case_fill(x, 1);
    case_fill(gradient, 2);
    for (int64_t c = 0; c < classes; c++)
        case_set(weight, c, 0.5 + (double)(c % 5));
    case_poison(loss);
    case_poison(dx);
    ek_cross_entropy_params params = {.ignore_index = -100, .label_smoothing = smoothing};
    const ek_tensor *w = weighted ? weight : NULL;
    assert_ok(ek_host_cross_entropy_forward(dev, loss, lse, x, target, w, &params));
    assert_ok(ek_host_cross_entropy_gradient(dev, dx, gradient, lse, x, target, w, &params));
    double *want = case_zeros(count), *slope = case_zeros(count * classes), total = 0, counted = 0;
    for (int64_t c = 0; c < classes; c++)
        total += weighted ? case_get(weight, c) : 1;
    for (int64_t k = 0; k < count; k++) {
        int64_t base = k / inner * classes * inner + k % inner;
        int64_t t = (int64_t)case_get(target, k);
        if (t == -100)
            continue;
        double sum = 0, all = 0, own = weighted ? case_get(weight, t) : 1;
        counted += own;
        for (int64_t c = 0; c < classes; c++)
            sum += exp(case_get(x, base + c * inner));
        for (int64_t c = 0; c < classes; c++) {
            double wc = weighted ? case_get(weight, c) : 1;
            double p = exp(case_get(x, base + c * inner)) / sum;
            all += wc * (log(sum) - case_get(x, base + c * inner));
            slope[base + c * inner] =
                case_get(gradient, k) * ((1 - smoothing) * own * (p - (c == t)) +
                                         smoothing / (double)classes * (p * total - wc));
        }
        want[k] = (1 - smoothing) * own * (log(sum) - case_get(x, base + t * inner)) +
                  smoothing / (double)classes * all;
    }
    near(loss, want, real == EK_F64 ? 1e-13 : 2e-6, "loss");
    near(dx, slope, dtype == EK_BF16 ? 5e-3 : real == EK_F64 ? 1e-13 : 5e-6, "dx");
    ek_shape none = ek_scalar_shape();
    ek_tensor *sum = ek_tensor_new(dev, EK_F64, &none, EK_CONTIGUOUS);
    assert_ok(ek_host_target_weight(dev, sum, target, w, -100));
    case_must(case_get(sum, 0) == counted);
    free(want), free(slope);
}

TEST(cross_entropy)
{
    ek_dev *dev = case_device(2);
    for (int s = 0; s < SHAPES; s++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int l = 0; l < 9; l++)
                for (int v = 0; v < 4; v++) {
                    ek_scope scope = ek_scope_begin();
                    check_entropy(dev, s, floating[dtype], l, v & 1 ? 0.1 : 0, v & 2);
                    ek_scope_end(&scope);
                }
}

TEST(targets_out_of_range)
{
    ek_dev *dev = case_device(2);
    const int64_t dims[] = {6, 4};
    ek_tensor *x = case_tensor(dev, EK_F32, 2, dims, CASE_ROWS);
    ek_tensor *loss = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
    ek_tensor *lse = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
    ek_tensor *target = case_tensor(dev, EK_I64, 1, dims, CASE_ROWS);
    ek_tensor *weight = case_tensor(dev, EK_F32, 1, dims + 1, CASE_ROWS);
    ek_cross_entropy_params params = {.ignore_index = 255};
    case_fill(x, 1);
    assert_ok(ek_host_fill(dev, weight, 1));
    assert_ok(ek_host_fill(dev, lse, 0));
    for (int i = 0; i < 6; i++)
        case_set(target, i, i == 1 ? 255 : i >= 4 ? 9 - i : i);
    assert_refused(ek_host_cross_entropy_forward(dev, loss, lse, x, target, NULL, &params),
                   EK_E_INVALID, "target 5 at position 4 is out of range for 4 classes");
    assert_refused(ek_host_cross_entropy_gradient(dev, x, loss, lse, x, target, NULL, &params),
                   EK_E_INVALID, "target 5 at position 4");
    assert_refused(ek_host_target_weight(dev, lse, target, weight, 255), EK_E_INVALID,
                   "target 5 at position 4");
    case_set(target, 4, -1);
    assert_refused(ek_host_cross_entropy_forward(dev, loss, lse, x, target, NULL, &params),
                   EK_E_INVALID, "target -1 at position 4");
}

TEST(threads)
{
    ek_tensor *out[2][4];
    const int64_t dims[] = {2, 11, 61, 67};
    for (int t = 0; t < 2; t++) {
        ek_dev *dev = case_device(t + 1);
        ek_tensor *x = case_tensor(dev, EK_F32, 4, dims, CASE_LAST);
        ek_tensor *target = targets_of(dev, dims, CASE_ROWS);
        const int64_t plane[] = {2, 61, 67};
        case_fill(x, 4);
        for (int k = 0; k < 4; k++)
            out[t][k] = k < 2 ? case_tensor(dev, EK_F32, 3, plane, CASE_ROWS)
                              : case_tensor(dev, EK_F32, 4, dims, CASE_LAST);
        ek_cross_entropy_params params = {.ignore_index = -100, .label_smoothing = 0.1};
        assert_ok(
            ek_host_cross_entropy_forward(dev, out[t][0], out[t][1], x, target, NULL, &params));
        assert_ok(ek_host_cross_entropy_gradient(dev, out[t][2], out[t][0], out[t][1], x, target,
                                                 NULL, &params));
        assert_ok(ek_host_softmax(dev, out[t][3], x, 1, true));
    }
    for (int k = 0; k < 4; k++)
        case_same(out[0][k], out[1][k], "one and two threads");
}
