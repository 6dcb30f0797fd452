/* Elementwise kernels: the host's against formulas in double, the GPU's against the host's. */
#include "core/bits.h"
#include "twin.h"

/* Whole vectors and not, rows that are and that aren't, nothing, one, more than a grid. */
static const int64_t shapes[][4] = {{2, 5, 3, 4}, {3, 8, 2, 16},  {3, 7, 1, 33}, {1, 1, 1, 1},
                                    {2, 0, 3, 4}, {2, 3, 2, 131}, {1, 7, 1, 33}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Of the GPU's from the host's. */
static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-14 : dtype == EK_F32 ? 1e-6 : 8e-3;
}

/* Of the host's from the formulas. */
static double rounding_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-14 : dtype == EK_F32 ? 1e-6 : dtype == EK_F16 ? 5e-4 : 4e-3;
}

/* Values that the operation takes, and that tell operations apart; with zeros and ones if `seed` is
 * odd. */
static twin operand(ek_dtype dtype, const int64_t *shape, twin_layout layout, unsigned seed)
{
    twin t = twin_new(dtype, 4, shape, layout);
    if (dtype == EK_U8 || dtype == EK_BOOL)
        return twin_integers(t, 0, dtype == EK_U8 ? 255 : 1, seed);
    if (!ek_dtype_is_floating(dtype))
        return twin_integers(t, -9, 9, seed);
    if (seed % 2 == 0)
        return twin_uniform(t, -3, 3, seed);
    case_fill(t.host, seed);
    twin_push(t);
    return t;
}

static bool takes(ek_dtype dtype, bool integers)
{
    return integers || ek_dtype_is_floating(dtype);
}

/* ---- one operand ---- */

static double unary_of(ek_unary op, double x, double a, double b)
{
    switch (op) {
        CASE_IS(EK_UNARY_AFFINE, a * x + b);
        CASE_IS(EK_UNARY_NEG, -x);
        CASE_IS(EK_UNARY_ABS, fabs(x));
        CASE_IS(EK_UNARY_SIGN, x > 0 ? 1 : x < 0 ? -1 : 0);
        CASE_IS(EK_UNARY_SQUARE, x * x);
        CASE_IS(EK_UNARY_SQRT, sqrt(x));
        CASE_IS(EK_UNARY_RECIPROCAL, 1 / x);
        CASE_IS(EK_UNARY_SAFE_RECIPROCAL, x == 0 ? 0 : 1 / x);
        CASE_IS(EK_UNARY_POW, pow(x, a));
        CASE_IS(EK_UNARY_EXP, exp(x));
        CASE_IS(EK_UNARY_LOG, log(x));
        CASE_IS(EK_UNARY_SIGMOID, 1 / (1 + exp(-x)));
        CASE_IS(EK_UNARY_TANH, tanh(x));
        CASE_IS(EK_UNARY_SOFTPLUS, a * x > b ? x : log1p(exp(a * x)) / a);
        CASE_IS(EK_UNARY_SOFTPLUS_SLOPE, a * x > b ? 1 : 1 / (1 + exp(-a * x)));
        CASE_IS(EK_UNARY_LOG_SIGMOID, -log1p(exp(-x)));
        CASE_IS(EK_UNARY_NDTR, 0.5 * erfc(-x / sqrt(2)));
        CASE_IS(EK_UNARY_NORMAL_DENSITY, exp(-x * x / 2) / sqrt(2 * acos(-1)));
        CASE_IS(EK_UNARY_GELU, x * 0.5 * erfc(-x / sqrt(2)));
        CASE_IS(EK_UNARY_GELU_TANH,
                0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))));
        CASE_IS(EK_UNARY_RELU, x > 0 ? x : 0);
        CASE_IS(EK_UNARY_LEAKY_RELU, x > 0 ? x : a * x);
        CASE_IS(EK_UNARY_CLAMP, fmin(fmax(x, a), b));
        CASE_IS(EK_UNARY_STEP, x > a ? 1 : b);
        CASE_IS(EK_UNARY_INSIDE, a <= x && x <= b ? 1 : 0);
        CASE_IS(EK_UNARY_OUTSIDE, a <= x && x <= b ? 0 : 1);
        CASE_IS(EK_UNARY_OPEN_INSIDE, a < x && x < b ? 1 : 0);
        CASE_IS(EK_UNARY_SILU, x / (1 + exp(-x)));
        CASE_IS(EK_UNARY_MISH, x * tanh(log1p(exp(x))));
        CASE_IS(EK_UNARY_ELU, x > 0 ? x : a * expm1(x));
        CASE_IS(EK_UNARY_CELU, x > 0 ? x : a * expm1(x / a));
        CASE_IS(EK_UNARY_SELU, 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x)));
        CASE_IS(EK_UNARY_HARDSWISH, x * fmin(fmax(x + 3, 0), 6) / 6);
        CASE_IS(EK_UNARY_HARDSIGMOID, fmin(fmax(x + 3, 0), 6) / 6);
        CASE_IS(EK_UNARY_SOFTSIGN, x / (1 + fabs(x)));
        CASE_IS(EK_UNARY_HARDSHRINK, -a <= x && x <= a ? 0 : x);
        CASE_IS(EK_UNARY_SOFTSHRINK, x > a ? x - a : x < -a ? x + a : 0);
        CASE_IS(EK_UNARY_THRESHOLD, x > a ? x : b);
        CASE_IS(EK_UNARY_SIN, sin(x));
        CASE_IS(EK_UNARY_COS, cos(x));
        CASE_IS(EK_UNARY_TAN, tan(x));
        CASE_IS(EK_UNARY_ASIN, asin(x));
        CASE_IS(EK_UNARY_ACOS, acos(x));
        CASE_IS(EK_UNARY_ATAN, atan(x));
        CASE_IS(EK_UNARY_SINH, sinh(x));
        CASE_IS(EK_UNARY_COSH, cosh(x));
        CASE_IS(EK_UNARY_ASINH, asinh(x));
        CASE_IS(EK_UNARY_ACOSH, acosh(x));
        CASE_IS(EK_UNARY_ATANH, atanh(x));
        CASE_IS(EK_UNARY_ERF, erf(x));
        CASE_IS(EK_UNARY_ERFC, erfc(x));
        CASE_IS(EK_UNARY_LOG1P, log1p(x));
        CASE_IS(EK_UNARY_EXPM1, expm1(x));
        CASE_IS(EK_UNARY_LOG2, log2(x));
        CASE_IS(EK_UNARY_LOG10, log10(x));
        CASE_IS(EK_UNARY_EXP2, exp2(x));
        CASE_IS(EK_UNARY_FLOOR, floor(x));
        CASE_IS(EK_UNARY_CEIL, ceil(x));
        CASE_IS(EK_UNARY_ROUND, rint(x));
        CASE_IS(EK_UNARY_TRUNC, trunc(x));
        CASE_IS(EK_UNARY_FRAC, x - trunc(x));
        CASE_IS(EK_UNARY_RSQRT, 1 / sqrt(x));
    default:
        return NAN;
    }
}

/* y may be x. */
static void check_unary(ek_unary op, twin y, twin x, double a, double b, const char *what)
{
    ek_dtype dtype = y.host->dtype;
    double *wanted = case_values(x.host);
    for (int64_t i = 0; i < ek_count(x.host); i++)
        wanted[i] = unary_of(op, wanted[i], a, b);
    twin_run(unary, op, ON(y), ON(x), a, b);
    if (ek_dtype_is_floating(dtype))
        twin_expect(y, wanted, rounding_of(dtype), what);
    twin_close(y, tolerance_of(dtype), tolerance_of(dtype), what);
    free(wanted);
}

TEST_LOOP(unary, 0, EK_DTYPES)
{
    ek_dtype dtype = (ek_dtype)_i;
    for (int op = 0; op < EK_UNARY_COUNT; op++) {
        if (!takes(dtype, op <= EK_UNARY_SQUARE || op == EK_UNARY_CLAMP))
            continue;
        for (int s = 0; s < SHAPES; s++)
            for (int l = 0; l < TWIN_LAYOUTS; l++) {
                ek_scope scope = ek_scope_begin();
                char what[120];
                twin_layout to = (twin_layout)((l + op) % 3 ? l : (l + 1 + s % 2) % TWIN_LAYOUTS);
                twin x = operand(dtype, shapes[s], (twin_layout)l, (unsigned)(op + s + l));
                twin y = twin_new(dtype, 4, shapes[s], to);
                double a = op == EK_UNARY_POW ? 2.5 : l % 2 ? -2 : -0.25;
                double b = op == EK_UNARY_CLAMP ? 1.5 : 0.5;
                snprintf(what, sizeof what, "unary %d, shape %d, layouts %d to %d", op, s, l, to);
                check_unary((ek_unary)op, y, x, a, b, what);
                check_unary((ek_unary)op, x, x, a, b, what); /* in place */
                ek_scope_end(&scope);
            }
    }
}

/* Through all exponents and both signs, on the host. */
TEST(mathematics_of_f32_is_rounded_once_or_twice)
{
    enum { COUNT = 16384 };
    const int64_t dims[] = {COUNT};
    double values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = (double)ek_float_of((uint32_t)i * 262139u);
    twin x = twin_set(twin_new(EK_F32, 1, dims, TWIN_ROWS), values);
    twin y = twin_new(EK_F32, 1, dims, TWIN_ROWS);
    for (int op = EK_UNARY_SIN; op < EK_UNARY_COUNT; op++) {
        twin_run(unary, (ek_unary)op, ON(y), ON(x), 0, 0);
        for (int i = 0; i < COUNT; i++) {
            double want = unary_of((ek_unary)op, values[i], 0, 0), found = case_get(y.host, i);
            float rounded = (float)want;
            double ulp = (double)(nextafterf(fabsf(rounded), INFINITY) - fabsf(rounded));
            if (isnan(rounded) ? !isnan(found)
                               : found != (double)rounded && !(fabs(found - want) < 1.5 * ulp))
                ck_abort_msg("unary %d of %.9g: %.9g instead of %.9g", op, values[i], found, want);
        }
    }
}

TEST(powers)
{
    static const double exponents[] = {2, 0.5, -1, 3, 0, -0.75};
    const int64_t dims[] = {4, 8};
    for (int d = 0; d < 3; d++)
        for (int e = 0; e < 6; e++) {
            twin x = twin_uniform(twin_new((ek_dtype)d, 2, dims, TWIN_ROWS), -3, 3, 5);
            twin y = twin_new((ek_dtype)d, 2, dims, TWIN_ROWS);
            check_unary(EK_UNARY_POW, y, x, exponents[e], 0, "pow");
            twin_close(y, tolerance_of((ek_dtype)d), 0, "pow");
        }
}

TEST(limits_of_exponentials)
{
    const int64_t dims[] = {8};
    const double values[] = {0, 88.7, 89, -104, -87.5, -100, 1e30, -1e30};
    twin x = twin_set(twin_new(EK_F32, 1, dims, TWIN_ROWS), values);
    twin y = twin_new(EK_F32, 1, dims, TWIN_ROWS);
    twin_run(unary, EK_UNARY_EXP, ON(y), ON(x), 0, 0);
    case_must(case_get(y.host, 0) == 1);
    for (int i = 0; i < 8; i++) {
        float want = (float)exp((double)(float)values[i]);
        case_must(case_get(y.host, i) == (double)want ||
                  fabs(case_get(y.host, i) - (double)want) <= 2e-7 * (double)want + 2e-45);
    }
    twin_close(y, 1e-6, 3e-45, "exp");
    static const double sigmoid[] = {0.5, 1, 0}, tanh_of[] = {0, 1, -1};
    static const int at[] = {0, 6, 7};
    twin s = twin_new(EK_F32, 1, dims, TWIN_ROWS), h = twin_new(EK_F32, 1, dims, TWIN_ROWS);
    twin_run(unary, EK_UNARY_SIGMOID, ON(s), ON(x), 0, 0);
    twin_run(unary, EK_UNARY_TANH, ON(h), ON(x), 0, 0);
    for (int i = 0; i < 3; i++)
        case_must(case_get(s.host, at[i]) == sigmoid[i] && case_get(h.host, at[i]) == tanh_of[i]);
    twin_run(unary, EK_UNARY_LOG, ON(y), ON(x), 0, 0);
    case_must(case_get(y.host, 0) == -(double)INFINITY && isnan(case_get(y.host, 7)));
}

/* ---- two operands ---- */

/* The derivative of x s(x), from the gate s and its derivative. */
static double gated_slope(double x, double gate, double gate_slope)
{
    return gate + x * gate_slope;
}

static double slope_of(ek_unary op, double x)
{
    double logistic = 1 / (1 + exp(-x)), soft = tanh(log1p(exp(x)));
    double inner = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
    double inner_slope = sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
    switch (op) {
        CASE_IS(EK_UNARY_GELU,
                gated_slope(x, 0.5 * erfc(-x / sqrt(2)), exp(-x * x / 2) / sqrt(2 * acos(-1))));
        CASE_IS(EK_UNARY_GELU_TANH,
                gated_slope(x, 0.5 * (1 + tanh(inner)), 0.5 * inner_slope / pow(cosh(inner), 2)));
        CASE_IS(EK_UNARY_SILU, gated_slope(x, logistic, logistic * (1 - logistic)));
        CASE_IS(EK_UNARY_MISH, gated_slope(x, soft, (1 - soft * soft) * logistic));
    default:
        return NAN;
    }
}

/* NaN stays. */
static double at_least(double low, double x)
{
    return x < low ? low : x;
}

static double binary_of(ek_binary op, double x, double y, double a)
{
    switch (op) {
        CASE_IS(EK_BINARY_ADD, x + a * y);
        CASE_IS(EK_BINARY_SUB, x - y);
        CASE_IS(EK_BINARY_MUL, x * y);
        CASE_IS(EK_BINARY_DIV, x / y);
        CASE_IS(EK_BINARY_MAXIMUM, fmax(x, y));
        CASE_IS(EK_BINARY_MINIMUM, fmin(x, y));
        CASE_IS(EK_BINARY_RELU_GRADIENT, y <= 0 ? a * x : x);
        CASE_IS(EK_BINARY_SIGMOID_GRADIENT, x * y * (1 - y));
        CASE_IS(EK_BINARY_TANH_GRADIENT, x * (1 - y * y));
        CASE_IS(EK_BINARY_SIGN_MUL, x * ((y > 0) - (y < 0)));
        CASE_IS(EK_BINARY_SQUARED_DIFFERENCE, (x - y) * (x - y));
        CASE_IS(EK_BINARY_ABSOLUTE_DIFFERENCE, fabs(x - y));
        CASE_IS(EK_BINARY_HUBER,
                fabs(x - y) < a ? (x - y) * (x - y) / 2 : a * (fabs(x - y) - a / 2));
        CASE_IS(EK_BINARY_BCE, (y - 1) * at_least(-100, log(1 - x)) - y * at_least(-100, log(x)));
        CASE_IS(EK_BINARY_BCE_LOGITS, (1 - y) * log1p(exp(x)) + y * log1p(exp(-x)));
        CASE_IS(EK_BINARY_BCE_SLOPE, (x - y) / at_least(1e-12f, x * (1 - x)));
        CASE_IS(EK_BINARY_LERP, x + a * (y - x));
        CASE_IS(EK_BINARY_GELU_GRADIENT, x * slope_of(EK_UNARY_GELU, y));
        CASE_IS(EK_BINARY_GELU_TANH_GRADIENT, x * slope_of(EK_UNARY_GELU_TANH, y));
        CASE_IS(EK_BINARY_SILU_GRADIENT, x * slope_of(EK_UNARY_SILU, y));
        CASE_IS(EK_BINARY_MISH_GRADIENT, x * slope_of(EK_UNARY_MISH, y));
        CASE_IS(EK_BINARY_ELU_GRADIENT, y > 0 ? x : x * a * exp(y));
        CASE_IS(EK_BINARY_CELU_GRADIENT, y > 0 ? x : x * exp(y / a));
        CASE_IS(EK_BINARY_SELU_GRADIENT,
                x * 1.0507009873554805 * (y > 0 ? 1 : 1.6732632423543772 * exp(y)));
        CASE_IS(EK_BINARY_HARDSWISH_GRADIENT, y < -3 ? 0 : y < 3 ? x * (y / 3 + 0.5) : x);
        CASE_IS(EK_BINARY_SOFTSIGN_GRADIENT, x / pow(1 + fabs(y), 2));
        CASE_IS(EK_BINARY_LOG_SIGMOID_GRADIENT, x / (1 + exp(y)));
        CASE_IS(EK_BINARY_POW, pow(x, y));
        CASE_IS(EK_BINARY_ATAN2, atan2(x, y));
        CASE_IS(EK_BINARY_FMOD, fmod(x, y));
        CASE_IS(EK_BINARY_REMAINDER, y == 0 ? (double)NAN : x - floor(x / y) * y);
    default:
        return NAN;
    }
}

/* z may be x or y. */
static void check_binary(ek_binary op, twin z, twin x, twin y, double a, const char *what)
{
    ek_dtype dtype = z.host->dtype;
    double *left = case_values(x.host), *right = case_values(y.host);
    const double most = dtype == EK_F16 ? 65520 : INFINITY; /* rounded to infinity from there */
    for (int64_t i = 0; i < ek_count(x.host); i++) {
        double exact = binary_of(op, left[i], right[i], a);
        left[i] = fabs(exact) >= most ? copysign(INFINITY, exact) : exact;
    }
    twin_run(binary, op, ON(z), ON(x), ON(y), a);
    if (ek_dtype_is_floating(dtype))
        twin_expect(z, left, rounding_of(dtype), what);
    twin_close(z, tolerance_of(dtype), tolerance_of(dtype), what);
    free(left);
    free(right);
}

/* A second operand that is repeated along the dimensions of a mask. */
TEST_LOOP(binary, 0, EK_DTYPES)
{
    ek_dtype dtype = (ek_dtype)_i;
    for (int op = 0; op < EK_BINARY_COUNT; op++) {
        if (!takes(dtype, op <= EK_BINARY_MINIMUM || op >= EK_BINARY_FMOD))
            continue;
        for (int s = 0; s < SHAPES; s++)
            for (unsigned mask = 0; mask < 16; mask += 1 + (unsigned)(op > 1)) {
                ek_scope scope = ek_scope_begin();
                char what[120];
                twin_layout layout = (twin_layout)((mask + (unsigned)op) % TWIN_LAYOUTS);
                twin_layout other = mask % 3 ? layout : (twin_layout)(mask % TWIN_LAYOUTS);
                twin_layout to = mask % 4 ? layout : TWIN_LAST;
                twin x = operand(dtype, shapes[s], layout, (unsigned)op);
                twin y = twin_repeat(operand(dtype, shapes[s], other, mask + 99), mask);
                twin z = twin_new(dtype, 4, shapes[s], to);
                double a = mask % 2 ? 0.75 : -2;
                snprintf(what, sizeof what, "binary %d, shape %d, mask %u", op, s, mask);
                check_binary((ek_binary)op, z, x, y, a, what);
                check_binary((ek_binary)op, x, y, x, a, what); /* in place, repeated first */
                ek_scope_end(&scope);
            }
    }
}

/* To the bit, and with the sign of 0, if quotients are small and if some are not. */
TEST_LOOP(remainders, 0, 2)
{
    static const double special[] = {
        0,           -0.0, 1e-45,     -1e-45, 3e38, -1e30, (double)INFINITY, 0.7, -(double)INFINITY,
        (double)NAN, -2,   268435455, 3};
    enum { SPECIAL = sizeof special / sizeof special[0] };
    const int64_t dims[] = {1543};
    twin x = twin_new(EK_F32, 1, dims, TWIN_ROWS), y = twin_new(EK_F32, 1, dims, TWIN_ROWS);
    for (int64_t i = 0; i < dims[0]; i++) {
        const bool is_special = _i == 1 && i % 5 == 3;
        case_set(x.host, i,
                 is_special ? special[i / 5 % SPECIAL] : (double)(i * 7919 % 1009 - 500) / 8);
        case_set(y.host, i,
                 is_special ? special[i / 5 / SPECIAL % SPECIAL]
                            : (double)(i * 31 % 97) / 4 - 12.1);
    }
    twin_push(x);
    twin_push(y);
    for (int op = EK_BINARY_FMOD; op <= EK_BINARY_REMAINDER; op++) {
        twin z = twin_new(EK_F32, 1, dims, TWIN_ROWS);
        twin_run(binary, (ek_binary)op, ON(z), ON(x), ON(y), 0);
        for (int64_t i = 0; i < dims[0]; i++) {
            const double of_x = case_get(x.host, i), of_y = case_get(y.host, i),
                         got = case_get(z.host, i);
            double want = fmod(of_x, of_y);
            if (op == EK_BINARY_REMAINDER && want != 0 && (want < 0) != (of_y < 0))
                want = (double)((float)want + (float)of_y);
            case_must(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want));
        }
        twin_same(z, "remainders");
    }
}

/* The first columns of matrices: rows that are whole vectors or not, at starts that are aligned or
 * not, with a second operand that all rows share. */
TEST(columns)
{
    for (int d = 0; d < EK_DTYPES; d++)
        for (int64_t pitch = 8; pitch <= 24; pitch++)
            for (int64_t width = 5; width <= 8; width++) {
                ek_scope scope = ek_scope_begin();
                const int64_t base[] = {5, pitch}, shape[] = {5, width}, stride[] = {pitch, 1};
                twin t[3];
                for (int k = 0; k < 3; k++) {
                    twin whole = twin_new((ek_dtype)d, 2, base, TWIN_ROWS);
                    if (k > 0)
                        twin_integers(whole, 0, 9, (unsigned)k);
                    t[k] = twin_view(whole, 2, shape, stride, 0);
                }
                check_binary(EK_BINARY_ADD, t[0], t[1], t[2], 2, "columns");
                twin_same(t[0], "columns");
                check_binary(EK_BINARY_ADD, t[0], t[1], twin_repeat(t[2], 1), 2, "and a row");
                twin_same(t[0], "columns and a row");
                check_binary(EK_BINARY_ADD, t[0], twin_repeat(t[1], 2), t[2], 2, "and a column");
                twin_same(t[0], "columns and a column");
                ek_scope_end(&scope);
            }
}

/* Planes of short rows, which share tiles that begin and end within a plane, with a second operand
 * whose rows are equal in a plane, in all planes, or one number each. */
TEST_LOOP(planes, 0, EK_DTYPES)
{
    static const int64_t widths[] = {3, 16, 33, 100};
    for (int w = 0; w < 8; w++)
        for (unsigned mask = 0; mask < 8; mask++) {
            ek_scope scope = ek_scope_begin();
            const int64_t shape[] = {7, 61, widths[w / 2]};
            const twin_layout layout = w % 2 ? TWIN_ROWS : TWIN_GAPS;
            twin x = twin_integers(twin_new((ek_dtype)_i, 3, shape, layout), 0, 9, 1);
            twin y = twin_integers(twin_new((ek_dtype)_i, 3, shape, TWIN_ROWS), 0, 9, 2);
            twin z = twin_new((ek_dtype)_i, 3, shape, TWIN_ROWS);
            check_binary(EK_BINARY_ADD, z, x, twin_repeat(y, mask), 2, "planes");
            twin_same(z, "planes");
            check_binary(EK_BINARY_ADD, z, twin_repeat(y, mask), x, 2, "planes, repeated first");
            twin_same(z, "planes, repeated first");
            ek_scope_end(&scope);
        }
}

/* Computed as the first operand's dtype is. */
TEST(mixed_dtypes)
{
    for (int d = 0; d < EK_DTYPES * EK_DTYPES * EK_DTYPES; d++) {
        ek_scope scope = ek_scope_begin();
        ek_dtype of[] = {(ek_dtype)(d % EK_DTYPES), (ek_dtype)(d / EK_DTYPES % EK_DTYPES),
                         (ek_dtype)(d / EK_DTYPES / EK_DTYPES)};
        twin x = operand(of[0], shapes[0], TWIN_ROWS, 2);
        twin y = operand(of[1], shapes[0], TWIN_LAST, 4);
        twin z = twin_new(of[2], 4, shapes[0], TWIN_ROWS);
        twin b = twin_new(EK_U8, 4, shapes[0], TWIN_GAPS);
        twin_run(binary, EK_BINARY_SUB, ON(z), ON(x), ON(y), 0);
        twin_close(z, 8e-3, 1e-6, "sub of two dtypes");
        twin_run(compare, EK_COMPARE_LT, ON(b), ON(x), ON(y));
        twin_same(b, "compare of two dtypes");
        twin_run(where, ON(z), ON(b), ON(x), ON(y));
        twin_same(z, "where of two dtypes");
        ek_scope_end(&scope);
    }
}

/* NaN, infinities, zeros of either sign, subnormal and huge numbers, alone and in pairs. NaN stays
 * NaN if PyTorch keeps it. */
TEST_LOOP(special_values, 0, 3)
{
    const double nan = (double)NAN, inf = (double)INFINITY;
    const double values[] = {nan,  inf, -inf,  0,    -0.0, 1,     -1,    1e-40, -1e-40,
                             88.7, 89,  -87.5, -104, 1e30, -1e30, 0.625, 0.5};
    static const ek_unary keeps_nan[] = {EK_UNARY_RELU,  EK_UNARY_CLAMP,    EK_UNARY_EXP,
                                         EK_UNARY_LOG,   EK_UNARY_TANH,     EK_UNARY_SIGMOID,
                                         EK_UNARY_SQRT,  EK_UNARY_SOFTPLUS, EK_UNARY_LEAKY_RELU,
                                         EK_UNARY_SQUARE};
    enum { COUNT = sizeof values / sizeof values[0] };
    const int64_t dims[] = {COUNT, COUNT};
    ek_dtype dtype = (ek_dtype)_i;
    double left[COUNT * COUNT], right[COUNT * COUNT];
    char what[80];
    for (int i = 0; i < COUNT * COUNT; i++) {
        left[i] = values[i / COUNT];
        right[i] = values[i % COUNT];
    }
    twin x = twin_set(twin_new(dtype, 2, dims, TWIN_ROWS), left);
    twin y = twin_set(twin_new(dtype, 2, dims, TWIN_ROWS), right);
    twin z = twin_new(dtype, 2, dims, TWIN_ROWS);
    for (int op = 0; op < EK_UNARY_COUNT; op++) {
        snprintf(what, sizeof what, "unary %d of special values", op);
        twin_run(unary, (ek_unary)op, ON(z), ON(x), op == EK_UNARY_POW ? 3 : 0, 1);
        twin_close(z, tolerance_of(dtype), 3e-45, what);
    }
    for (size_t k = 0; k < sizeof keeps_nan / sizeof keeps_nan[0]; k++) {
        twin_run(unary, keeps_nan[k], ON(z), ON(y), 0, 1);
        for (int i = 0; i < COUNT * COUNT; i += COUNT)
            if (!isnan(case_get(z.host, i)))
                ck_abort_msg("unary %d loses NaN", (int)keeps_nan[k]);
    }
    /* A root, which infinity tells from pow. */
    twin_run(unary, EK_UNARY_POW, ON(z), ON(x), 0.5, 0);
    twin_close(z, tolerance_of(dtype), 3e-45, "a power that is a root");
    for (int op = 0; op < EK_BINARY_COUNT; op++) {
        snprintf(what, sizeof what, "binary %d of special values", op);
        twin_run(binary, (ek_binary)op, ON(z), ON(x), ON(y), 1);
        twin_close(z, tolerance_of(dtype), 3e-45, what);
        for (int i = 0; i < COUNT * COUNT; i++)
            if (op >= EK_BINARY_MAXIMUM && op <= EK_BINARY_MINIMUM && (i < COUNT || i % COUNT == 0))
                case_must(isnan(case_get(z.host, i)));
    }
}

/* ---- integers ---- */

/* A division by zero gives zero. */
TEST_LOOP(integers, 0, 3)
{
    const int64_t dims[] = {3, 5};
    ek_dtype dtype = (ek_dtype[]){EK_I64, EK_U8, EK_I32}[_i];
    double x[15], y[15], sum[15], quotient[15], clamped[15], affine[15];
    for (int i = 0; i < 15; i++) {
        x[i] = 2 * i;
        y[i] = i % 4;
        sum[i] = 2 * i + 3 * (i % 4);
        quotient[i] = i % 4 ? 2 * i / (i % 4) : 0;
        clamped[i] = i < 2 ? 4 : 2 * i;
        affine[i] = 4 * i + 1;
    }
    twin a = twin_set(twin_new(dtype, 2, dims, TWIN_GAPS), x);
    twin b = twin_set(twin_new(dtype, 2, dims, TWIN_ROWS), y),
         z = twin_new(dtype, 2, dims, TWIN_GAPS);
    twin_run(binary, EK_BINARY_ADD, ON(z), ON(a), ON(b), 3);
    twin_expect(z, sum, 0, "add");
    twin_run(binary, EK_BINARY_DIV, ON(z), ON(a), ON(b), 1);
    twin_expect(z, quotient, 0, "div");
    twin_same(z, "div");
    twin_run(unary, EK_UNARY_CLAMP, ON(z), ON(a), 3.5, (double)INFINITY);
    twin_expect(z, clamped, 0, "clamp");
    twin_run(unary, EK_UNARY_AFFINE, ON(z), ON(a), 2, 1);
    twin_expect(z, affine, 0, "affine");
    twin_refused(EK_E_DTYPE, "floating dtype, not ", unary, EK_UNARY_EXP, ON(z), ON(a), 0, 0);
    twin_refused(EK_E_DTYPE, "floating dtype, not ", binary, EK_BINARY_SIGN_MUL, ON(z), ON(a),
                 ON(b), 0);
}

TEST_LOOP(integers_wrap, 0, 3)
{
    const int64_t dims[] = {16};
    static const double values[] = {0,    1, -1, 9.2e18, -9.2e18, 4e18,  255, 256,
                                    -255, 3, 7,  -7,     1e10,    -1e10, 2,   -2};
    ek_dtype dtype = (ek_dtype[]){EK_I64, EK_U8, EK_I32}[_i];
    twin x = twin_new(dtype, 1, dims, TWIN_ROWS), y = twin_new(dtype, 1, dims, TWIN_ROWS);
    twin z = twin_new(dtype, 1, dims, TWIN_ROWS);
    x = _i == 2   ? twin_integers(x, INT32_MIN, INT32_MAX, 2)
        : _i == 1 ? twin_integers(x, 100, 255, 2)
                  : twin_set(x, values);
    y = _i == 1 ? twin_integers(y, 0, 200, 3) : twin_integers(y, -3, 3, 1);
    for (int op = 0; op <= EK_BINARY_MINIMUM; op++) {
        twin_run(binary, (ek_binary)op, ON(z), ON(x), ON(y), 3);
        twin_same(z, "wrapping");
    }
    twin_run(unary, EK_UNARY_AFFINE, ON(z), ON(x), 3, -5);
    twin_same(z, "affine of integers");
    twin_run(unary, EK_UNARY_CLAMP, ON(z), ON(x), -2.5, (double)INFINITY);
    twin_same(z, "clamp of integers");
}

/* ---- comparisons ---- */

TEST_LOOP(comparing, 0, EK_DTYPES)
{
    ek_dtype dtype = (ek_dtype)_i;
    for (int op = EK_COMPARE_EQ; op <= EK_COMPARE_GE; op++)
        for (int s = 0; s < SHAPES; s++)
            for (int l = 0; l < TWIN_LAYOUTS; l++) {
                ek_scope scope = ek_scope_begin();
                twin_layout layout = (twin_layout)l;
                twin_layout other = op % 2 ? layout : (twin_layout)((l + op) % TWIN_LAYOUTS);
                twin x = twin_integers(twin_new(dtype, 4, shapes[s], layout), 0, 4, 1);
                twin y = twin_integers(twin_new(dtype, 4, shapes[s], other), 0, 4, 2);
                if (op == EK_COMPARE_LE)
                    y = twin_repeat(y, 13); /* along all but the channels */
                twin z = twin_new(EK_BOOL, 4, shapes[s], layout);
                twin w = twin_new(dtype, 4, shapes[s], layout);
                twin_run(compare, (ek_compare)op, ON(z), ON(x), ON(y));
                twin_run(where, ON(w), ON(z), ON(x), ON(y));
                for (int64_t i = 0; i < ek_count(x.host); i++) {
                    double a = case_get(x.host, i), b = case_get(y.host, i);
                    const bool wanted[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
                    case_must(case_get(z.host, i) == (double)wanted[op]);
                    case_must(case_get(w.host, i) == (wanted[op] ? a : b));
                }
                twin_same(z, "compare");
                twin_same(w, "where");
                ek_scope_end(&scope);
            }
}

/* ---- many elements ---- */

/* More than all blocks of a grid take in one round. */
TEST(large)
{
    const int64_t flat[] = {130003}, rows[] = {20000, 8}, turned[] = {170, 201};
    twin x = twin_uniform(twin_new(EK_F32, 1, flat, TWIN_ROWS), -1, 1, 1);
    twin y = twin_new(EK_F32, 1, flat, TWIN_ROWS);
    check_unary(EK_UNARY_RELU, y, x, 0, 0, "flat");
    twin_same(y, "flat");
    twin u = twin_uniform(twin_new(EK_F32, 2, rows, TWIN_ROWS), -1, 1, 2);
    twin bias = twin_repeat(twin_uniform(twin_new(EK_F32, 2, rows, TWIN_ROWS), -1, 1, 3), 1);
    twin v = twin_new(EK_F32, 2, rows, TWIN_ROWS);
    check_binary(EK_BINARY_ADD, v, u, bias, 1, "rows");
    twin_same(v, "rows");
    twin s = twin_uniform(twin_new(EK_F32, 2, turned, TWIN_SWAPPED), -1, 1, 4);
    twin t = twin_new(EK_F32, 2, turned, TWIN_ROWS);
    check_binary(EK_BINARY_MUL, t, s, s, 0, "strided");
    twin_same(t, "strided");
}
