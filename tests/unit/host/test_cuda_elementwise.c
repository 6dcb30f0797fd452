/* The GPU's elementwise kernels against the host's. */
#include "cuda_cases.h"

/* Whole vectors and not, rows that are and that aren't, nothing, one, more than a grid. */
static const int64_t shapes[][4] = {{2, 5, 3, 4}, {3, 8, 2, 16},  {1, 1, 1, 1},
                                    {2, 0, 3, 4}, {2, 3, 2, 131}, {1, 7, 1, 33}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-14 : dtype == EK_F32 ? 1e-6 : 8e-3;
}

/* Values that the operation takes, and that tell operations apart. */
static twin operand(ek_dtype dtype, const int64_t *shape, twin_layout layout, unsigned seed)
{
    twin t = twin_new(dtype, 4, shape, layout);
    if (dtype == EK_U8)
        return twin_integers(t, 0, 255, seed);
    if (dtype == EK_I64)
        return twin_integers(t, -9, 9, seed);
    return twin_uniform(t, -3, 3, seed);
}

static bool takes(ek_dtype dtype, bool integers)
{
    return integers || ek_dtype_is_floating(dtype);
}

static int run_unary(ek_unary op, twin y, twin x, double a, double b)
{
    int rc = twin_host()->unary(twin_dev(EK_HOST), op, y.host, x.host, a, b);
    ck_assert_int_eq(twin_cuda()->unary(twin_dev(EK_CUDA), op, y.cuda, x.cuda, a, b), rc);
    return rc;
}

static int run_binary(ek_binary op, twin z, twin x, twin y, double a)
{
    int rc = twin_host()->binary(twin_dev(EK_HOST), op, z.host, x.host, y.host, a);
    ck_assert_int_eq(twin_cuda()->binary(twin_dev(EK_CUDA), op, z.cuda, x.cuda, y.cuda, a), rc);
    return rc;
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
                twin_layout to = (twin_layout)((l + op) % 3 ? l : (l + 1) % TWIN_LAYOUTS);
                twin x = operand(dtype, shapes[s], (twin_layout)l, (unsigned)(op + s));
                twin y = twin_new(dtype, 4, shapes[s], to);
                double a = op == EK_UNARY_POW ? 2.5 : -2, b = op == EK_UNARY_CLAMP ? 1.5 : 0.5;
                snprintf(what, sizeof what, "unary %d, shape %d, layouts %d to %d", op, s, l, to);
                assert_ok(run_unary((ek_unary)op, y, x, a, b));
                twin_close(y, tolerance_of(dtype), tolerance_of(dtype), what);
                assert_ok(run_unary((ek_unary)op, x, x, a, b)); /* in place */
                twin_close(x, tolerance_of(dtype), tolerance_of(dtype), what);
                ek_scope_end(&scope);
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
            assert_ok(run_unary(EK_UNARY_POW, y, x, exponents[e], 0));
            twin_close(y, tolerance_of((ek_dtype)d), 0, "pow");
        }
}

/* A second operand that is repeated along the dimensions of a mask. */
TEST_LOOP(binary, 0, EK_DTYPES)
{
    ek_dtype dtype = (ek_dtype)_i;
    for (int op = 0; op < EK_BINARY_COUNT; op++) {
        if (!takes(dtype, op <= EK_BINARY_MINIMUM))
            continue;
        for (int s = 0; s < SHAPES; s++)
            for (unsigned mask = 0; mask < 16; mask += 1 + (unsigned)(op > 1)) {
                ek_scope scope = ek_scope_begin();
                char what[120];
                twin_layout layout = (twin_layout)((mask + (unsigned)op) % TWIN_LAYOUTS);
                twin_layout other = mask % 3 ? layout : (twin_layout)(mask % TWIN_LAYOUTS);
                twin x = operand(dtype, shapes[s], layout, (unsigned)op);
                twin y = twin_repeat(operand(dtype, shapes[s], other, mask + 99), mask);
                twin z = twin_new(dtype, 4, shapes[s], layout);
                snprintf(what, sizeof what, "binary %d, shape %d, mask %u", op, s, mask);
                assert_ok(run_binary((ek_binary)op, z, x, y, -2));
                twin_close(z, tolerance_of(dtype), tolerance_of(dtype), what);
                assert_ok(run_binary((ek_binary)op, x, y, x, -2)); /* in place, repeated first */
                twin_close(x, tolerance_of(dtype), tolerance_of(dtype), what);
                ek_scope_end(&scope);
            }
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
                    t[k] = (twin){ek_tensor_view(whole.host, 2, shape, stride, 0),
                                  ek_tensor_view(whole.cuda, 2, shape, stride, 0)};
                    assert_made(t[k].host), assert_made(t[k].cuda);
                }
                assert_ok(run_binary(EK_BINARY_ADD, t[0], t[1], t[2], 2));
                twin_same(t[0], "columns");
                assert_ok(run_binary(EK_BINARY_ADD, t[0], t[1], twin_repeat(t[2], 1), 2));
                twin_same(t[0], "columns and a row");
                assert_ok(run_binary(EK_BINARY_ADD, t[0], twin_repeat(t[1], 2), t[2], 2));
                twin_same(t[0], "columns and a column");
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
        twin x = operand(of[0], shapes[0], TWIN_ROWS, 1),
             y = operand(of[1], shapes[0], TWIN_LAST, 2);
        twin z = twin_new(of[2], 4, shapes[0], TWIN_ROWS),
             b = twin_new(EK_U8, 4, shapes[0], TWIN_GAPS);
        assert_ok(run_binary(EK_BINARY_SUB, z, x, y, 0));
        twin_close(z, 8e-3, 1e-6, "sub of two dtypes");
        assert_ok(twin_host()->compare(twin_dev(EK_HOST), EK_COMPARE_LT, b.host, x.host, y.host));
        assert_ok(twin_cuda()->compare(twin_dev(EK_CUDA), EK_COMPARE_LT, b.cuda, x.cuda, y.cuda));
        twin_same(b, "compare of two dtypes");
        assert_ok(twin_host()->where(twin_dev(EK_HOST), z.host, b.host, x.host, y.host));
        assert_ok(twin_cuda()->where(twin_dev(EK_CUDA), z.cuda, b.cuda, x.cuda, y.cuda));
        twin_same(z, "where of two dtypes");
        ek_scope_end(&scope);
    }
}

TEST(integers_have_fewer_operations)
{
    twin x = operand(EK_I64, shapes[0], TWIN_ROWS, 1);
    assert_refused(twin_cuda()->unary(twin_dev(EK_CUDA), EK_UNARY_EXP, x.cuda, x.cuda, 0, 0),
                   EK_E_DTYPE, "takes a floating dtype, not i64");
    assert_refused(twin_cuda()->binary(twin_dev(EK_CUDA), EK_BINARY_SIGN_MUL, x.cuda, x.cuda,
                                       x.cuda, 0),
                   EK_E_DTYPE, "takes a floating dtype, not i64");
}

/* NaN, infinities, zeros of either sign, subnormal and huge numbers, alone and in pairs. */
TEST(special_values)
{
    static const double values[] = {(double)NAN,
                                    (double)INFINITY,
                                    -(double)INFINITY,
                                    0,
                                    -0.0,
                                    1,
                                    -1,
                                    1e-40,
                                    -1e-40,
                                    88.7,
                                    89,
                                    -87.5,
                                    -104,
                                    1e30,
                                    -1e30,
                                    0.625};
    enum { COUNT = sizeof values / sizeof values[0] };
    const int64_t dims[] = {COUNT, COUNT};
    for (int d = 0; d < 3; d++) {
        ek_dtype dtype = (ek_dtype)d;
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
            assert_ok(run_unary((ek_unary)op, z, x, op == EK_UNARY_POW ? 3 : 0, 1));
            twin_close(z, tolerance_of(dtype), 3e-45, what);
        }
        assert_ok(
            run_unary(EK_UNARY_POW, z, x, 0.5, 0)); /* a root, which infinity tells from pow */
        twin_close(z, tolerance_of(dtype), 3e-45, "a power that is a root");
        for (int op = 0; op < EK_BINARY_COUNT; op++) {
            snprintf(what, sizeof what, "binary %d of special values", op);
            assert_ok(run_binary((ek_binary)op, z, x, y, 1));
            twin_close(z, tolerance_of(dtype), 3e-45, what);
        }
    }
}

TEST(integers_wrap)
{
    const int64_t dims[] = {16};
    static const double values[] = {0,    1, -1, 9.2e18, -9.2e18, 4e18,  255, 256,
                                    -255, 3, 7,  -7,     1e10,    -1e10, 2,   -2};
    for (int d = 0; d < 2; d++) {
        twin x = twin_set(twin_new(EK_I64, 1, dims, TWIN_ROWS), values);
        twin y = twin_integers(twin_new(EK_I64, 1, dims, TWIN_ROWS), -3, 3, 1);
        twin z = twin_new(EK_I64, 1, dims, TWIN_ROWS);
        if (d == 1) {
            x = twin_integers(twin_new(EK_U8, 1, dims, TWIN_ROWS), 100, 255, 2);
            y = twin_integers(twin_new(EK_U8, 1, dims, TWIN_ROWS), 0, 200, 3);
            z = twin_new(EK_U8, 1, dims, TWIN_ROWS);
        }
        for (int op = 0; op <= EK_BINARY_MINIMUM; op++) {
            assert_ok(run_binary((ek_binary)op, z, x, y, 3));
            twin_same(z, "wrapping");
        }
        assert_ok(run_unary(EK_UNARY_AFFINE, z, x, 3, -5));
        twin_same(z, "affine of integers");
        assert_ok(run_unary(EK_UNARY_CLAMP, z, x, -2.5, (double)INFINITY));
        twin_same(z, "clamp of integers");
    }
}

TEST(comparing)
{
    for (int d = 0; d < EK_DTYPES; d++)
        for (int op = EK_COMPARE_EQ; op <= EK_COMPARE_GE; op++)
            for (int s = 0; s < SHAPES; s++)
                for (int l = 0; l < TWIN_LAYOUTS; l++) {
                    ek_scope scope = ek_scope_begin();
                    ek_dtype dtype = (ek_dtype)d;
                    twin_layout layout = (twin_layout)l;
                    twin_layout other = op % 2 ? layout : (twin_layout)((l + op) % TWIN_LAYOUTS);
                    twin x = twin_integers(twin_new(dtype, 4, shapes[s], layout), 0, 4, 1);
                    twin y = twin_integers(twin_new(dtype, 4, shapes[s], other), 0, 4, 2);
                    if (op == EK_COMPARE_LE)
                        y = twin_repeat(y, 13); /* along all but the channels */
                    twin z = twin_new(EK_U8, 4, shapes[s], layout);
                    twin w = twin_new(dtype, 4, shapes[s], layout);
                    assert_ok(twin_host()->compare(twin_dev(EK_HOST), (ek_compare)op, z.host,
                                                   x.host, y.host));
                    assert_ok(twin_cuda()->compare(twin_dev(EK_CUDA), (ek_compare)op, z.cuda,
                                                   x.cuda, y.cuda));
                    twin_same(z, "compare");
                    assert_ok(
                        twin_host()->where(twin_dev(EK_HOST), w.host, z.host, x.host, y.host));
                    assert_ok(
                        twin_cuda()->where(twin_dev(EK_CUDA), w.cuda, z.cuda, x.cuda, y.cuda));
                    twin_same(w, "where");
                    ek_scope_end(&scope);
                }
}

/* More than all blocks of a grid take in one round. */
TEST(large)
{
    const int64_t flat[] = {130003}, rows[] = {20000, 8}, turned[] = {170, 201};
    twin x = twin_uniform(twin_new(EK_F32, 1, flat, TWIN_ROWS), -1, 1, 1);
    twin y = twin_new(EK_F32, 1, flat, TWIN_ROWS);
    assert_ok(run_unary(EK_UNARY_RELU, y, x, 0, 0));
    twin_same(y, "flat");
    twin u = twin_uniform(twin_new(EK_F32, 2, rows, TWIN_ROWS), -1, 1, 2);
    twin bias = twin_repeat(twin_uniform(twin_new(EK_F32, 2, rows, TWIN_ROWS), -1, 1, 3), 1);
    twin v = twin_new(EK_F32, 2, rows, TWIN_ROWS);
    assert_ok(run_binary(EK_BINARY_ADD, v, u, bias, 1));
    twin_same(v, "rows");
    twin s = twin_uniform(twin_new(EK_F32, 2, turned, TWIN_SWAPPED), -1, 1, 4);
    twin t = twin_new(EK_F32, 2, turned, TWIN_ROWS);
    assert_ok(run_binary(EK_BINARY_MUL, t, s, s, 0));
    twin_same(t, "strided");
}

/* 64 addends, as there are devices; more than one launch takes; one. */
TEST(sums_of_many)
{
    static const int counts[] = {1, 2, 3, 64, 330};
    static const int64_t sizes[] = {0, 1, 7, 1003};
    for (int d = 0; d < EK_DTYPES; d++)
        for (int c = 0; c < 5; c++)
            for (int s = 0; s < 4; s++)
                for (int l = TWIN_ROWS; l <= TWIN_DENSE_OFFSET;
                     l += TWIN_DENSE_OFFSET - TWIN_ROWS) {
                    ek_scope scope = ek_scope_begin();
                    const ek_tensor *host[330], *cuda[330];
                    twin first = {NULL, NULL};
                    for (int k = 0; k < counts[c]; k++) {
                        twin x = twin_new((ek_dtype)d, 1, &sizes[s], (twin_layout)l);
                        x = twin_integers(x, 0, k ? 1 : 3, (unsigned)k);
                        first = k ? first : x;
                        host[k] = x.host;
                        cuda[k] = x.cuda;
                    }
                    twin y = twin_new((ek_dtype)d, 1, &sizes[s], TWIN_ROWS);
                    assert_ok(twin_host()->add_n(twin_dev(EK_HOST), 1, &y.host, host, counts[c]));
                    assert_ok(twin_cuda()->add_n(twin_dev(EK_CUDA), 1, &y.cuda, cuda, counts[c]));
                    twin_same(y, "add_n");
                    assert_ok(
                        twin_host()->add_n(twin_dev(EK_HOST), 1, &first.host, host, counts[c]));
                    assert_ok(
                        twin_cuda()->add_n(twin_dev(EK_CUDA), 1, &first.cuda, cuda, counts[c]));
                    twin_same(first, "add_n into the first");
                    ek_scope_end(&scope);
                }
    assert_refused(twin_cuda()->add_n(twin_dev(EK_CUDA), 1, NULL, NULL, 0), EK_E_INVALID,
                   "at least 1");
}

/* Many sums at once, of different sizes and addresses, more than one launch takes; the large ones
 * are of several blocks. */
TEST(lists_of_sums)
{
    enum { SUMS = 70, ADDENDS = 3 };
    static const int64_t sizes[] = {0, 1, 4096, 7, 4097, 64, 9001};
    for (int d = 0; d < EK_DTYPES; d++) {
        ek_scope scope = ek_scope_begin();
        twin sums[SUMS];
        ek_tensor *outs[2][SUMS];
        const ek_tensor *parts[2][ADDENDS * SUMS];
        for (int i = 0; i < SUMS; i++) {
            const int64_t *size = &sizes[i % 7];
            twin_layout layout = i % 3 == 1 ? TWIN_DENSE_OFFSET : TWIN_ROWS;
            for (int k = 0; k < ADDENDS; k++) {
                twin x = twin_new((ek_dtype)d, 1, size, layout);
                x = twin_integers(x, 0, 60, (unsigned)(i * ADDENDS + k));
                parts[0][k * SUMS + i] = x.host;
                parts[1][k * SUMS + i] = x.cuda;
            }
            if (i % 5) /* the others' are their first addends */
                sums[i] = twin_new((ek_dtype)d, 1, size, TWIN_ROWS);
            else
                sums[i] = (twin){(ek_tensor *)parts[0][i], (ek_tensor *)parts[1][i]};
            outs[0][i] = sums[i].host;
            outs[1][i] = sums[i].cuda;
        }
        assert_ok(twin_host()->add_n(twin_dev(EK_HOST), SUMS, outs[0], parts[0], ADDENDS));
        assert_ok(twin_cuda()->add_n(twin_dev(EK_CUDA), SUMS, outs[1], parts[1], ADDENDS));
        for (int i = 0; i < SUMS; i++)
            twin_same(sums[i], "a list of sums");
        ek_scope_end(&scope);
    }
}

/* The order of the addends is the caller's: with these the sum depends on it. */
TEST(order_of_sums)
{
    const int64_t dims[] = {5};
    static const double values[] = {1e8, 1, -1e8, 1};
    const ek_tensor *cuda[4], *host[4];
    for (int k = 0; k < 4; k++) {
        double row[5] = {values[k], values[k], values[k], values[k], values[k]};
        twin x = twin_set(twin_new(EK_F32, 1, dims, TWIN_ROWS), row);
        cuda[k] = x.cuda;
        host[k] = x.host;
    }
    twin y = twin_new(EK_F32, 1, dims, TWIN_ROWS);
    assert_ok(twin_host()->add_n(twin_dev(EK_HOST), 1, &y.host, host, 4));
    assert_ok(twin_cuda()->add_n(twin_dev(EK_CUDA), 1, &y.cuda, cuda, 4));
    twin_same(y, "the order of a sum");
    case_must(case_get(y.host, 0) == 1);
}
