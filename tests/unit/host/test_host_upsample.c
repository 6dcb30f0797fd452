/* Upsampling against PyTorch's formula per output element, and the gradient as its adjoint. */
#include "host/host.h"
#include "host_cases.h"

/* n, c, input height and width, output height and width */
static const int64_t cases[][6] = {{2, 3, 4, 5, 8, 10},  {1, 11, 7, 6, 13, 17}, {2, 4, 9, 8, 5, 3},
                                   {1, 2, 1, 1, 4, 3},   {2, 5, 6, 6, 6, 6},    {1, 1, 5, 7, 1, 1},
                                   {3, 16, 8, 8, 64, 64}};
enum { CASES = sizeof cases / sizeof cases[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

typedef struct source {
    int64_t lower, upper;
    double share; /* of upper */
} source;

static source source_of(int64_t in, int64_t out, int64_t i, bool bilinear, bool align_corners)
{
    if (!bilinear) {
        int64_t at = (int64_t)floorf((float)i * ((float)in / (float)out));
        at = at < in - 1 ? at : in - 1;
        return (source){at, at, 0};
    }
    double scale = align_corners ? (out > 1 ? (double)(in - 1) / (double)(out - 1) : 0)
                                 : (double)in / (double)out;
    double real = align_corners ? scale * (double)i : fmax(scale * ((double)i + 0.5) - 0.5, 0);
    int64_t at = (int64_t)real;
    at = at < in - 1 ? at : in - 1;
    return (source){at, at < in - 1 ? at + 1 : at, fmin(real - (double)at, 1)};
}

static double interpolated(const ek_tensor *x, int64_t plane, source h, source w)
{
    int64_t width = x->shape[3], base = plane * x->shape[2] * width;
    double top = (1 - w.share) * case_get(x, base + h.lower * width + w.lower) +
                 w.share * case_get(x, base + h.lower * width + w.upper);
    double bottom = (1 - w.share) * case_get(x, base + h.upper * width + w.lower) +
                    w.share * case_get(x, base + h.upper * width + w.upper);
    return (1 - h.share) * top + h.share * bottom;
}

static void check_case(ek_dev *dev, int k, ek_dtype dtype, int l, bool bilinear, bool align_corners)
{
    const int64_t *c = cases[k], in[] = {c[0], c[1], c[2], c[3]}, out[] = {c[0], c[1], c[4], c[5]};
    ek_tensor *x = case_tensor(dev, dtype, 4, in, (case_layout)(l % 3));
    ek_tensor *y = case_tensor(dev, dtype, 4, out, (case_layout)(l / 3));
    case_fill(x, 1);
    case_poison(y);
    assert_ok(ek_host_upsample_forward(dev, y, x, bilinear, align_corners));
    double tolerance = dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 3e-6 : 5e-3;
    for (int64_t i = 0; i < ek_count(y); i++) {
        source w = source_of(c[3], c[5], i % c[5], bilinear, align_corners);
        source h = source_of(c[2], c[4], i / c[5] % c[4], bilinear, align_corners);
        double want = interpolated(x, i / (c[4] * c[5]), h, w);
        if (!(fabs(case_get(y, i) - want) <= tolerance * 2))
            ck_abort_msg("case %d, %s, layouts %d, bilinear %d, corners %d, element %lld: %.9g, "
                         "not %.9g",
                         k, ek_dtype_name(dtype), l, bilinear, align_corners, (long long)i,
                         case_get(y, i), want);
    }
    /* <A x, g> = <x, A' g> */
    ek_tensor *g = case_tensor(dev, dtype, 4, out, (case_layout)(l % 3));
    ek_tensor *dx = case_tensor(dev, dtype, 4, in, (case_layout)(l / 3));
    case_fill(g, 2);
    case_poison(dx);
    assert_ok(ek_host_upsample_gradient(dev, dx, g, bilinear, align_corners));
    double left = 0, right = 0, size = 0;
    for (int64_t i = 0; i < ek_count(y); i++) {
        left += case_get(y, i) * case_get(g, i);
        size += fabs(case_get(y, i) * case_get(g, i));
    }
    for (int64_t i = 0; i < ek_count(x); i++)
        right += case_get(x, i) * case_get(dx, i);
    if (!(fabs(left - right) <= tolerance * size + 1e-30))
        ck_abort_msg("case %d, %s: <Ax, g> = %.12g, <x, A'g> = %.12g", k, ek_dtype_name(dtype),
                     left, right);
}

TEST(forward_and_adjoint)
{
    ek_dev *dev = case_device(2);
    for (int k = 0; k < CASES; k++)
        for (int d = 0; d < 3; d++)
            for (int l = 0; l < 9; l += k == CASES - 1 ? 4 : 1)
                for (int mode = 0; mode < 3; mode++) {
                    ek_scope scope = ek_scope_begin();
                    check_case(dev, k, floating[d], l, mode > 0, mode == 2);
                    ek_scope_end(&scope);
                }
}

/* The gradient's every element, from a one at a time. */
TEST(adjoint_by_element)
{
    ek_dev *dev = case_device(1);
    const int64_t in[] = {1, 2, 3, 4}, out[] = {1, 2, 7, 6};
    for (int mode = 0; mode < 3; mode++) {
        ek_tensor *x = case_tensor(dev, EK_F64, 4, in, CASE_LAST);
        ek_tensor *y = case_tensor(dev, EK_F64, 4, out, CASE_LAST);
        ek_tensor *g = case_tensor(dev, EK_F64, 4, out, CASE_LAST);
        ek_tensor *dx = case_tensor(dev, EK_F64, 4, in, CASE_LAST);
        case_fill(g, 3);
        assert_ok(ek_host_upsample_gradient(dev, dx, g, mode > 0, mode == 2));
        for (int64_t i = 0; i < ek_count(x); i++) {
            assert_ok(ek_host_fill(dev, x, 0));
            case_set(x, i, 1);
            assert_ok(ek_host_upsample_forward(dev, y, x, mode > 0, mode == 2));
            double want = 0;
            for (int64_t j = 0; j < ek_count(y); j++)
                want += case_get(y, j) * case_get(g, j);
            case_must(fabs(case_get(dx, i) - want) <= 1e-14);
        }
    }
}

TEST(threads)
{
    const int64_t in[] = {3, 11, 16, 16}, out[] = {3, 11, 60, 61};
    for (int l = 0; l < 2; l++) {
        ek_tensor *y[2], *dx[2];
        for (int t = 0; t < 2; t++) {
            ek_dev *dev = case_device(t + 1);
            ek_tensor *x = case_tensor(dev, EK_F32, 4, in, (case_layout)l);
            case_fill(x, 1);
            y[t] = case_tensor(dev, EK_F32, 4, out, (case_layout)l);
            dx[t] = case_tensor(dev, EK_F32, 4, in, (case_layout)l);
            assert_ok(ek_host_upsample_forward(dev, y[t], x, true, true));
            assert_ok(ek_host_upsample_gradient(dev, dx[t], y[t], true, true));
        }
        case_same(y[0], y[1], "forward on one and two threads");
        case_same(dx[0], dx[1], "gradient on one and two threads");
    }
}

/* An infinite element is seen only if it has a share: 0 times infinity is none. */
TEST_LOOP(infinity_stays_in_its_place, 0, 6)
{
    ek_dev *dev = ek_dev_get(ek_host(0));
    ek_dtype dtype = floating[_i % 3];
    const bool bilinear = _i / 3 == 1;
    const int64_t in[] = {1, 3, 4, 4}, out[] = {1, 3, 7, 7};
    ek_tensor *x = case_tensor(dev, dtype, 4, in, CASE_LAST);
    ek_tensor *y = case_tensor(dev, dtype, 4, out, CASE_LAST);
    case_fill(x, 1);
    case_set(x, 2 * 4 + 1, (double)INFINITY);
    assert_ok(ek_host_upsample_forward(dev, y, x, bilinear, true));
    for (int64_t i = 0; i < ek_count(y); i++) {
        source w = source_of(4, 7, i % 7, bilinear, true);
        source h = source_of(4, 7, i / 7 % 7, bilinear, true);
        bool row = h.lower == 2 || (h.share != 0 && h.upper == 2);
        bool column = w.lower == 1 || (w.share != 0 && w.upper == 1);
        ck_assert_msg(isinf(case_get(y, i)) == (i < 49 && row && column) && !isnan(case_get(y, i)),
                      "element %d is %g", (int)i, case_get(y, i));
    }
}
