/* Elementwise kernels, fill and copy against loops over doubles. */
#include "host/host.h"
#include "host_cases.h"

static const int64_t shapes[][4] = {
    {2, 5, 3, 4}, {3, 7, 1, 33}, {1, 1, 1, 1}, {2, 0, 3, 4}, {2, 3, 2, 131}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

static void expect(const ek_tensor *got, int64_t i, double want, double tolerance, const char *what,
                   int which)
{
    double value = case_get(got, i);
    if (isnan(want) ? !isnan(value)
                    : !(value == want || fabs(value - want) <= tolerance * fmax(1, fabs(want))))
        ck_abort_msg("%s %d, %s, element %lld: %.9g instead of %.9g", what, which,
                     ek_dtype_name(got->dtype), (long long)i, value, want);
}

static double unary_of(ek_unary op, double x, double a, double b)
{
    switch (op) {
    case EK_UNARY_AFFINE:
        return a * x + b;
    case EK_UNARY_NEG:
        return -x;
    case EK_UNARY_ABS:
        return fabs(x);
    case EK_UNARY_SIGN:
        return x > 0 ? 1 : x < 0 ? -1 : 0;
    case EK_UNARY_SQUARE:
        return x * x;
    case EK_UNARY_SQRT:
        return sqrt(x);
    case EK_UNARY_RECIPROCAL:
        return 1 / x;
    case EK_UNARY_POW:
        return pow(x, a);
    case EK_UNARY_EXP:
        return exp(x);
    case EK_UNARY_LOG:
        return log(x);
    case EK_UNARY_SIGMOID:
        return 1 / (1 + exp(-x));
    case EK_UNARY_TANH:
        return tanh(x);
    case EK_UNARY_SOFTPLUS:
        return log1p(exp(x));
    case EK_UNARY_RELU:
        return x > 0 ? x : 0;
    case EK_UNARY_LEAKY_RELU:
        return x > 0 ? x : a * x;
    case EK_UNARY_CLAMP:
        return fmin(fmax(x, a), b);
    case EK_UNARY_STEP:
        return x > a ? 1 : b;
    case EK_UNARY_INSIDE:
        return a <= x && x <= b ? 1 : 0;
    default:
        return NAN;
    }
}

TEST(unary)
{
    ek_dev *dev = case_device(2);
    for (int op = 0; op < EK_UNARY_COUNT; op++)
        for (int d = 0; d < 3; d++)
            for (int s = 0; s < SHAPES; s++)
                for (int l = 0; l < CASE_LAYOUTS * CASE_LAYOUTS; l += 2) {
                    ek_scope scope = ek_scope_begin();
                    ek_tensor *x = case_tensor(dev, floating[d], 4, shapes[s],
                                               (case_layout)(l % CASE_LAYOUTS));
                    ek_tensor *y = case_tensor(dev, floating[d], 4, shapes[s],
                                               (case_layout)(l / CASE_LAYOUTS));
                    case_fill(x, (unsigned)(op + s));
                    case_poison(y);
                    double a = op == EK_UNARY_POW ? 2.5 : -0.25, b = 0.5;
                    assert_ok(ek_host_unary(dev, (ek_unary)op, y, x, a, b));
                    double tolerance = floating[d] == EK_F64   ? 1e-14
                                       : floating[d] == EK_F32 ? 4e-7
                                                               : 4e-3;
                    for (int64_t i = 0; i < ek_count(y); i++)
                        expect(y, i, unary_of((ek_unary)op, case_get(x, i), a, b), tolerance,
                               "unary", op);
                    ek_scope_end(&scope);
                }
}

static double binary_of(ek_binary op, double x, double y, double a)
{
    switch (op) {
    case EK_BINARY_ADD:
        return x + a * y;
    case EK_BINARY_SUB:
        return x - y;
    case EK_BINARY_MUL:
        return x * y;
    case EK_BINARY_DIV:
        return x / y;
    case EK_BINARY_MAXIMUM:
        return fmax(x, y);
    case EK_BINARY_MINIMUM:
        return fmin(x, y);
    case EK_BINARY_RELU_GRADIENT:
        return y <= 0 ? a * x : x;
    case EK_BINARY_SIGMOID_GRADIENT:
        return x * y * (1 - y);
    case EK_BINARY_TANH_GRADIENT:
        return x * (1 - y * y);
    case EK_BINARY_SIGN_MUL:
        return x * ((y > 0) - (y < 0));
    case EK_BINARY_SQUARED_DIFFERENCE:
        return (x - y) * (x - y);
    case EK_BINARY_ABSOLUTE_DIFFERENCE:
        return fabs(x - y);
    default:
        return NAN;
    }
}

/* A view of the first elements along the dimensions of `mask`, repeated along them. */
static ek_tensor *repeated(ek_tensor *x, unsigned mask)
{
    int64_t stride[EK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        stride[d] = mask >> d & 1 ? 0 : x->stride[d];
    ek_tensor *view = ek_tensor_view(x, x->ndim, x->shape, stride, x->offset);
    assert_made(view);
    return view;
}

TEST(binary)
{
    ek_dev *dev = case_device(2);
    for (int op = 0; op < EK_BINARY_COUNT; op++)
        for (int d = 0; d < 3; d++)
            for (int s = 0; s < SHAPES; s++)
                for (unsigned mask = 0; mask < 16; mask += 1 + (unsigned)(op > 1)) {
                    ek_scope scope = ek_scope_begin();
                    case_layout layout = (case_layout)((mask + (unsigned)op) % CASE_LAYOUTS);
                    ek_tensor *x = case_tensor(dev, floating[d], 4, shapes[s], layout);
                    ek_tensor *base = case_tensor(dev, floating[d], 4, shapes[s],
                                                  (case_layout)(mask % CASE_LAYOUTS));
                    ek_tensor *z = case_tensor(dev, floating[d], 4, shapes[s], CASE_LAST);
                    case_fill(x, (unsigned)op);
                    case_fill(base, mask + 99);
                    case_poison(z);
                    ek_tensor *y = repeated(base, mask);
                    assert_ok(ek_host_binary(dev, (ek_binary)op, z, x, y, 0.75));
                    for (int64_t i = 0; i < ek_count(z); i++)
                        expect(z, i, binary_of((ek_binary)op, case_get(x, i), case_get(y, i), 0.75),
                               floating[d] == EK_BF16 ? 4e-3 : 3e-7, "binary", op);
                    ek_scope_end(&scope);
                }
}

TEST(integers)
{
    ek_dev *dev = case_device(1);
    const int64_t dims[] = {3, 5};
    for (int d = 0; d < 2; d++) {
        ek_dtype dtype = d ? EK_U8 : EK_I64;
        ek_tensor *x = case_tensor(dev, dtype, 2, dims, CASE_GAPS);
        ek_tensor *y = case_tensor(dev, dtype, 2, dims, CASE_ROWS);
        ek_tensor *z = case_tensor(dev, dtype, 2, dims, CASE_GAPS);
        for (int i = 0; i < 15; i++) {
            case_set(x, i, 2 * i);
            case_set(y, i, i % 4);
        }
        assert_ok(ek_host_binary(dev, EK_BINARY_ADD, z, x, y, 3));
        for (int i = 0; i < 15; i++)
            case_must(case_get(z, i) == 2 * i + 3 * (i % 4));
        assert_ok(ek_host_binary(dev, EK_BINARY_DIV, z, x, y, 1));
        for (int i = 0; i < 15; i++)
            case_must(case_get(z, i) == (i % 4 ? 2 * i / (i % 4) : 0));
        assert_ok(ek_host_unary(dev, EK_UNARY_CLAMP, z, x, 3.5, (double)INFINITY));
        for (int i = 0; i < 15; i++)
            case_must(case_get(z, i) == (i < 2 ? 4 : 2 * i));
        assert_ok(ek_host_unary(dev, EK_UNARY_AFFINE, z, x, 2, 1));
        for (int i = 0; i < 15; i++)
            case_must(case_get(z, i) == 4 * i + 1);
        assert_refused(ek_host_unary(dev, EK_UNARY_EXP, z, x, 0, 0), EK_E_DTYPE, "floating");
    }
}

/* NaN stays NaN where PyTorch keeps it. */
TEST(not_a_number)
{
    ek_dev *dev = case_device(1);
    const int64_t dims[] = {19};
    static const ek_unary ops[] = {EK_UNARY_RELU,  EK_UNARY_CLAMP,    EK_UNARY_EXP,
                                   EK_UNARY_LOG,   EK_UNARY_TANH,     EK_UNARY_SIGMOID,
                                   EK_UNARY_SQRT,  EK_UNARY_SOFTPLUS, EK_UNARY_LEAKY_RELU,
                                   EK_UNARY_SQUARE};
    for (int d = 0; d < 3; d++) {
        ek_tensor *x = case_tensor(dev, floating[d], 1, dims, CASE_ROWS);
        ek_tensor *y = case_tensor(dev, floating[d], 1, dims, CASE_ROWS);
        ek_tensor *z = case_tensor(dev, floating[d], 1, dims, CASE_ROWS);
        for (int i = 0; i < 19; i++) {
            case_set(x, i, 1);
            case_set(y, i, 1);
        }
        assert_ok(ek_host_fill(dev, z, (double)NAN));
        assert_ok(ek_host_copy(dev, x, z));
        for (unsigned k = 0; k < sizeof ops / sizeof ops[0]; k++) {
            assert_ok(ek_host_fill(dev, z, 0));
            assert_ok(ek_host_unary(dev, ops[k], z, x, 0, 1));
            for (int i = 0; i < 19; i++)
                if (!isnan(case_get(z, i)))
                    ck_abort_msg("unary %d loses NaN", (int)ops[k]);
        }
        for (int op = EK_BINARY_MAXIMUM; op <= EK_BINARY_MINIMUM; op++) {
            assert_ok(ek_host_binary(dev, (ek_binary)op, z, x, y, 1));
            case_must(isnan(case_get(z, 0)) && isnan(case_get(z, 18)));
            assert_ok(ek_host_binary(dev, (ek_binary)op, z, y, x, 1));
            case_must(isnan(case_get(z, 0)) && isnan(case_get(z, 18)));
        }
    }
}

TEST(limits_of_exponentials)
{
    ek_dev *dev = case_device(1);
    const int64_t dims[] = {8};
    ek_tensor *x = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
    ek_tensor *y = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
    const double values[] = {0, 88.7, 89, -104, -87.5, -100, 1e30, -1e30};
    for (int i = 0; i < 8; i++)
        case_set(x, i, values[i]);
    assert_ok(ek_host_unary(dev, EK_UNARY_EXP, y, x, 0, 0));
    case_must(case_get(y, 0) == 1);
    for (int i = 0; i < 8; i++) {
        float want = (float)exp((double)(float)values[i]);
        case_must(case_get(y, i) == (double)want ||
                  fabs(case_get(y, i) - (double)want) <= 2e-7 * (double)want + 2e-45);
    }
    assert_ok(ek_host_unary(dev, EK_UNARY_SIGMOID, y, x, 0, 0));
    case_must(case_get(y, 0) == 0.5 && case_get(y, 6) == 1 && case_get(y, 7) == 0);
    assert_ok(ek_host_unary(dev, EK_UNARY_TANH, y, x, 0, 0));
    case_must(case_get(y, 0) == 0 && case_get(y, 6) == 1 && case_get(y, 7) == -1);
    assert_ok(ek_host_unary(dev, EK_UNARY_LOG, y, x, 0, 0));
    case_must(case_get(y, 0) == -(double)INFINITY && isnan(case_get(y, 7)));
}

TEST(comparing)
{
    ek_dev *dev = case_device(2);
    const int64_t dims[] = {3, 4, 5, 9};
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_I64, EK_U8};
    for (int d = 0; d < 5; d++)
        for (int op = EK_COMPARE_EQ; op <= EK_COMPARE_GE; op++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *x = case_tensor(dev, dtypes[d], 4, dims, CASE_LAST);
            ek_tensor *y = case_tensor(dev, dtypes[d], 4, dims, CASE_GAPS);
            ek_tensor *z = case_tensor(dev, EK_U8, 4, dims, CASE_ROWS);
            ek_tensor *w = case_tensor(dev, dtypes[d], 4, dims, CASE_LAST);
            for (int64_t i = 0; i < ek_count(x); i++) {
                case_set(x, i, (double)(i * 7 % 5));
                case_set(y, i, (double)(i * 3 % 4));
            }
            case_poison(z);
            assert_ok(ek_host_compare(dev, (ek_compare)op, z, x, y));
            assert_ok(ek_host_where(dev, w, z, x, y));
            for (int64_t i = 0; i < ek_count(x); i++) {
                double a = case_get(x, i), b = case_get(y, i);
                const bool want[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
                case_must(case_get(z, i) == (double)want[op]);
                case_must(case_get(w, i) == (want[op] ? a : b));
            }
            ek_scope_end(&scope);
        }
}

TEST(copying)
{
    ek_dev *dev = case_device(2);
    const int64_t sizes[][4] = {{2, 3, 5, 7}, {2, 40, 9, 37}, {1, 3, 33, 65}, {3, 1, 0, 2}};
    for (int s = 0; s < 4; s++)
        for (int pair = 0; pair < 25; pair++)
            for (int l = 0; l < 9; l++) {
                ek_scope scope = ek_scope_begin();
                ek_dtype from = (ek_dtype)(pair % 5), to = (ek_dtype)(pair / 5);
                ek_tensor *x = case_tensor(dev, from, 4, sizes[s], (case_layout)(l % 3));
                ek_tensor *y = case_tensor(dev, to, 4, sizes[s], (case_layout)(l / 3));
                for (int64_t i = 0; i < ek_count(x); i++)
                    case_set(x, i, (double)(i * 31 % 113) + (ek_dtype_is_floating(from) ? 0.5 : 0));
                case_poison(y);
                assert_ok(ek_host_copy(dev, y, x));
                for (int64_t i = 0; i < ek_count(x); i++) {
                    double want = case_get(x, i);
                    if (!ek_dtype_is_floating(to))
                        want = trunc(want);
                    case_must(case_get(y, i) == want);
                }
                ek_scope_end(&scope);
            }
}

TEST(rounding_to_bf16)
{
    ek_dev *dev = case_device(1);
    const int64_t dims[] = {6};
    ek_tensor *x = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
    ek_tensor *y = case_tensor(dev, EK_BF16, 1, dims, CASE_ROWS);
    /* Halfway cases go to even; NaN with a payload in the lower half stays NaN. */
    const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001,
                             0x7f800001, 0xff7fffff, 0x7f800000};
    const uint16_t want[] = {0x3f80, 0x3f82, 0x3f81, 0x7fc0, 0xff80, 0x7f80};
    memcpy(ek_tensor_address(x), bits, sizeof bits);
    assert_ok(ek_host_copy(dev, y, x));
    for (int i = 0; i < 6; i++)
        ck_assert_uint_eq(((uint16_t *)ek_tensor_address(y))[i], want[i]);
}

TEST(filling)
{
    ek_dev *dev = case_device(2);
    for (int d = 0; d < EK_DTYPES; d++)
        for (int l = 0; l < 3; l++)
            for (int s = 0; s < SHAPES; s++) {
                ek_scope scope = ek_scope_begin();
                ek_tensor *x = case_tensor(dev, (ek_dtype)d, 4, shapes[s], (case_layout)l);
                case_poison(x);
                assert_ok(ek_host_fill(dev, x, 3.5));
                double want = ek_dtype_is_floating((ek_dtype)d) ? 3.5 : 3;
                for (int64_t i = 0; i < ek_count(x); i++)
                    case_must(case_get(x, i) == want);
                assert_ok(ek_host_fill(dev, x, 0));
                for (int64_t i = 0; i < ek_count(x); i++)
                    case_must(case_get(x, i) == 0);
                ek_scope_end(&scope);
            }
    ek_shape none = ek_scalar_shape();
    ek_tensor *scalar = ek_tensor_new(dev, EK_F64, &none, EK_CONTIGUOUS);
    assert_made(scalar);
    assert_ok(ek_host_fill(dev, scalar, 7));
    assert_ok(ek_host_unary(dev, EK_UNARY_SQUARE, scalar, scalar, 0, 0));
    case_must(case_get(scalar, 0) == 49);
}

TEST(sums_of_many)
{
    ek_dev *dev = case_device(2);
    const int64_t dims[] = {2, 3, 50, 61};
    for (int d = 0; d < 3; d++) {
        ek_tensor *x[3];
        double *want = case_zeros(2 * 3 * 50 * 61);
        for (int k = 0; k < 3; k++) {
            x[k] = case_tensor(dev, floating[d], 4, dims, CASE_LAST);
            case_fill(x[k], (unsigned)k);
            for (int64_t i = 0; i < ek_count(x[k]); i++)
                want[i] += case_get(x[k], i);
        }
        assert_ok(ek_host_add_n(dev, 1, &x[0], (const ek_tensor *[]){x[0], x[1], x[2]}, 3));
        for (int64_t i = 0; i < ek_count(x[0]); i++)
            expect(x[0], i, want[i], floating[d] == EK_BF16 ? 4e-3 : 0, "add_n", 3);
        free(want);
    }
    assert_refused(ek_host_add_n(dev, 1, NULL, NULL, 0), EK_E_INVALID, "at least 1");
}

/* Large enough for two threads; the same bits with one. */
TEST(threads)
{
    const int64_t dims[] = {4, 37, 31, 29};
    ek_tensor *z[2][4];
    for (int t = 0; t < 2; t++) {
        ek_dev *dev = case_device(t + 1);
        ek_tensor *x = case_tensor(dev, EK_F32, 4, dims, CASE_LAST);
        ek_tensor *y = case_tensor(dev, EK_F32, 4, dims, CASE_ROWS);
        case_fill(x, 1);
        case_fill(y, 2);
        for (int k = 0; k < 4; k++)
            z[t][k] = case_tensor(dev, EK_F32, 4, dims, CASE_LAST);
        assert_ok(ek_host_unary(dev, EK_UNARY_TANH, z[t][0], x, 0, 0));
        assert_ok(ek_host_binary(dev, EK_BINARY_MUL, z[t][1], z[t][0], y, 0));
        assert_ok(ek_host_copy(dev, z[t][2], y));
        assert_ok(ek_host_add_n(dev, 1, &z[t][3], (const ek_tensor *[]){x, z[t][1], z[t][2]}, 3));
        for (int64_t i = 0; i < ek_count(x); i++)
            case_must(case_get(z[t][2], i) == case_get(y, i));
    }
    for (int k = 0; k < 4; k++)
        case_same(z[0][k], z[1][k], "one and two threads");
}
