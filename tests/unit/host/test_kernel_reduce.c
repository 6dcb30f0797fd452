/* Reductions and positions of extremes: the host's kernels against loops over doubles, the GPU's
 * against the host's. */
#include "twin.h"

static const int64_t no_dims[1] = {0}; /* of a scalar */
static const int64_t shapes[][4] = {{2, 5, 3, 4},   {3, 70, 1, 33},  {1, 1, 1, 1},
                                    {64, 10, 1, 1}, {2, 90, 1, 7},   {3, 300, 1, 7},
                                    {2, 3, 31, 61}, {12, 24, 2, 16}, {2, 0, 3, 4}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static ek_dtype result_dtype(ek_reduce_kind kind, ek_dtype dtype)
{
    return !ek_dtype_is_floating(dtype) && kind <= EK_REDUCE_SUM_SQUARES ? EK_I64 : dtype;
}

/* Floating ones are any, or short sums of powers of two. */
static twin values(twin x, unsigned seed, bool uniform)
{
    if (ek_dtype_is_floating(x.host->dtype)) {
        if (uniform)
            return twin_uniform(x, -2, 2, seed);
        case_fill(x.host, seed);
        twin_push(x);
        return x;
    }
    return twin_integers(x, x.host->dtype == EK_U8 ? 0 : -100, 200, seed);
}

/* n values of at most 4: what their sum may be off by, wherever it is rounded. */
static void close_sums(twin y, ek_reduce_kind kind, ek_dtype dtype, int64_t n, const char *what)
{
    double unit = dtype == EK_F64 ? 1e-14 : 5e-7;
    if (kind >= EK_REDUCE_MAX || !ek_dtype_is_floating(dtype))
        twin_same(y, what);
    else
        twin_close(y, dtype == EK_BF16 ? 8e-3 : dtype == EK_F16 ? 1e-3 : 0, unit * (double)n, what);
}

static double take(ek_reduce_kind kind, double sum, double x)
{
    switch (kind) {
    case EK_REDUCE_SUM:
        return sum + x;
    case EK_REDUCE_SUM_SQUARES:
        return sum + x * x;
    case EK_REDUCE_MAX:
        return x > sum ? x : sum;
    default:
        return x < sum ? x : sum;
    }
}

/* Position in `out` (size 1 if mask has a bit) of element i of x, both row-major. */
static int64_t kept_position(const ek_tensor *x, unsigned mask, int64_t i)
{
    int64_t position = 0, step = 1;
    for (int d = x->ndim - 1; d >= 0; d--) {
        if (!(mask >> d & 1)) {
            position += i % x->shape[d] * step;
            step *= x->shape[d];
        }
        i /= x->shape[d];
    }
    return position;
}

/* The host's, to the last rounding: elements that case_fill makes are multiples of 1/16, whose sums
 * are exact in f64. */
static void expect_reduced(twin y, ek_reduce_kind kind, twin x, unsigned mask, const char *what)
{
    ek_dtype dtype = y.host->dtype;
    int64_t count = ek_count(y.host);
    double *wanted = case_zeros(count);
    for (int64_t i = 0; i < count; i++)
        wanted[i] = kind == EK_REDUCE_MAX ? -1e30 : kind == EK_REDUCE_MIN ? 1e30 : 0;
    for (int64_t i = 0; i < ek_count(x.host); i++) {
        int64_t at = kept_position(x.host, mask, i);
        wanted[at] = take(kind, wanted[at], case_get(x.host, i));
    }
    double rounding = dtype == EK_F32 ? 6e-8 : dtype == EK_BF16 ? 4e-3 : dtype == EK_F16 ? 5e-4 : 0;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(case_get(y.host, i) - wanted[i]) <= rounding * fabs(wanted[i])))
            ck_abort_msg("%s, %s, element %lld: %.9g, not %.9g", what, ek_dtype_name(dtype),
                         (long long)i, case_get(y.host, i), wanted[i]);
    free(wanted);
}

static void check_reduce(ek_reduce_kind kind, ek_dtype dtype, const int64_t *shape, unsigned mask,
                         twin_layout layout, bool uniform)
{
    int64_t dims[4], n = 1;
    for (int d = 0; d < 4; d++) {
        dims[d] = mask >> d & 1 ? 1 : shape[d];
        n *= mask >> d & 1 ? shape[d] : 1;
    }
    char what[120];
    snprintf(what, sizeof what, "kind %d, %lld x %lld x %lld x %lld, mask %u, layout %d", (int)kind,
             (long long)shape[0], (long long)shape[1], (long long)shape[2], (long long)shape[3],
             mask, (int)layout);
    twin x = values(twin_new(dtype, 4, shape, layout), mask + 1, uniform);
    twin y = twin_new(result_dtype(kind, dtype), 4, dims, (twin_layout)((mask + 1) % 3));
    if (ek_count(x.host) == 0 && ek_count(y.host) > 0 && kind >= EK_REDUCE_MAX) {
        twin_refused(EK_E_INVALID, "no elements", reduce, kind, ON(y), ON(x));
        return;
    }
    twin_run(reduce, kind, ON(y), ON(x));
    if (!uniform)
        expect_reduced(y, kind, x, mask, what);
    close_sums(y, kind, dtype, n, what);
}

TEST_LOOP(reduce, 0, 4 * EK_DTYPES)
{
    ek_reduce_kind kind = (ek_reduce_kind)(_i / EK_DTYPES);
    ek_dtype dtype = (ek_dtype)(_i % EK_DTYPES);
    for (int s = 0; s < SHAPES; s++)
        for (unsigned mask = 0; mask < 16; mask++)
            for (unsigned l = (mask + (unsigned)s) % 3; l < TWIN_LAYOUTS; l += 3) {
                ek_scope scope = ek_scope_begin();
                check_reduce(kind, dtype, shapes[s], mask, (twin_layout)l, l >= 3);
                ek_scope_end(&scope);
            }
}

/* Few outputs of many elements: a GPU's work is cut into chunks, in both orders of memory. */
TEST_LOOP(chunks, 0, EK_DTYPES)
{
    static const struct {
        int64_t shape[4];
        unsigned mask;
    } cases[] = {
        {{1, 1, 1, 70001}, 15}, {{2, 1, 1, 40000}, 8},  {{6000, 1, 1, 3}, 1}, {{6000, 1, 1, 3}, 15},
        {{3000, 1, 1, 40}, 1},  {{900, 2, 1, 64}, 1},   {{5, 4, 50, 71}, 13}, {{2, 3, 100, 80}, 13},
        {{7, 3, 1, 4200}, 9},   {{2, 700, 3, 16}, 2},   {{7, 700, 1, 1}, 3},  {{300, 3, 20, 1}, 5},
        {{17, 3000, 1, 2}, 1},  {{1, 20, 6000, 2}, 13}, {{9000, 1, 1, 1}, 0},
    };
    for (unsigned c = 0; c < sizeof cases / sizeof cases[0] && twin_sides() == 2; c++)
        for (int kind = EK_REDUCE_SUM; kind <= EK_REDUCE_MIN; kind++)
            for (int l = (int)(c % 2); l <= TWIN_DENSE_OFFSET; l += 2) {
                ek_scope scope = ek_scope_begin();
                check_reduce((ek_reduce_kind)kind, (ek_dtype)_i, cases[c].shape, cases[c].mask,
                             (twin_layout)l, true);
                ek_scope_end(&scope);
            }
}

TEST(scalars_and_repeats)
{
    twin x = values(twin_new(EK_F32, 0, no_dims, TWIN_ROWS), 1, true);
    twin y = twin_new(EK_F32, 0, no_dims, TWIN_ROWS);
    twin index = twin_new(EK_I64, 0, no_dims, TWIN_ROWS);
    twin_run(fill, ON(x), 3);
    twin_run(reduce, EK_REDUCE_SUM_SQUARES, ON(y), ON(x));
    case_must(case_get(y.host, 0) == 9);
    twin_same(y, "a square");
    twin_run(arg_reduce, EK_REDUCE_MAX, ON(index), ON(x), 0);
    case_must(case_get(index.host, 0) == 0);
    twin_same(index, "the only position");
    const int64_t gpus[] = {3, 40, 5, 70}, hosts[] = {3, 8, 5, 14};
    const int64_t *shape = twin_sides() == 2 ? gpus : hosts;
    for (unsigned repeated = 1; repeated < 16; repeated++)
        for (unsigned mask = 1; mask < 16; mask++) {
            ek_scope scope = ek_scope_begin();
            int64_t dims[4];
            for (int d = 0; d < 4; d++)
                dims[d] = mask >> d & 1 ? 1 : shape[d];
            twin a = values(twin_new(EK_F32, 4, shape, TWIN_ROWS), 2, repeated % 2);
            a = twin_repeat(a, repeated);
            twin b = twin_new(EK_F32, 4, dims, TWIN_ROWS);
            twin_run(reduce, EK_REDUCE_SUM, ON(b), ON(a));
            if (repeated % 2 == 0 && shape == hosts)
                expect_reduced(b, EK_REDUCE_SUM, a, mask, "repeated");
            close_sums(b, EK_REDUCE_SUM, EK_F32, 42000, "repeated");
            ek_scope_end(&scope);
        }
}

/* In rows that are short, and long enough to be cut. */
TEST(not_a_number)
{
    const int64_t shapes_of[][2] = {{300, 70}, {1, 50}};
    for (int s = 0; s < 2; s++) {
        const int64_t *shape = shapes_of[s], rows[] = {shape[0], 1}, columns[] = {1, shape[1]};
        const int64_t count = shape[0] * shape[1];
        for (int64_t place = 0; place < count; place += s ? 7 : 2999)
            for (int kind = EK_REDUCE_SUM; kind <= EK_REDUCE_MIN; kind++)
                for (int by = 0; by < 2; by++) {
                    ek_scope scope = ek_scope_begin();
                    twin x = twin_new(EK_F32, 2, shape, TWIN_ROWS);
                    twin y = twin_new(EK_F32, 2, by ? rows : columns, TWIN_ROWS);
                    case_fill(x.host, 1);
                    case_set(x.host, place, (double)NAN);
                    case_set(x.host, (place + 1) % count, (double)INFINITY);
                    twin_push(x);
                    twin_run(reduce, (ek_reduce_kind)kind, ON(y), ON(x));
                    case_must(isnan(case_get(y.host, by ? place / shape[1] : place % shape[1])));
                    twin_close(y, 1e-5, 1e-3, "with NaN");
                    ek_scope_end(&scope);
                }
    }
}

/* Four million f32 values of 0.1: sums that are added one after the other are off by percents. */
TEST(long_sum)
{
    const int64_t dims[] = {4000000}, one[] = {1};
    twin x = twin_new(EK_F32, 1, dims, TWIN_ROWS), y = twin_new(EK_F32, 1, one, TWIN_ROWS);
    twin_run(fill, ON(x), 0.1);
    twin_run(reduce, EK_REDUCE_SUM, ON(y), ON(x));
    case_must(fabs(case_get(y.host, 0) - 4e6 * (double)0.1f) <= 4e5 * 6e-8);
    twin_close(y, 2e-6, 0, "millions of values");
}

/* The first of the largest, or of the smallest, along a dimension; NaN is both. */
static void expect_positions(twin index, ek_reduce_kind kind, twin x, int dim)
{
    int64_t step = 1, size = x.host->shape[dim];
    for (int d = dim + 1; d < x.host->ndim; d++)
        step *= x.host->shape[d];
    for (int64_t k = 0; k < ek_count(index.host); k++) {
        int64_t first = k / step * step * size + k % step, found = 0;
        double best = case_get(x.host, first);
        for (int64_t j = 1; j < size && !isnan(best); j++) {
            double v = case_get(x.host, first + j * step);
            if (isnan(v) || (kind == EK_REDUCE_MAX ? v > best : v < best)) {
                best = v;
                found = j;
            }
        }
        case_must(case_get(index.host, k) == (double)found);
    }
}

TEST_LOOP(positions, 0, EK_DTYPES)
{
    ek_dtype dtype = (ek_dtype)_i;
    for (int s = 0; s < SHAPES; s++)
        for (int dim = 0; dim < 4; dim++)
            for (int l = 0; l < TWIN_LAYOUTS; l++) {
                ek_scope scope = ek_scope_begin();
                ek_reduce_kind kind = (l + s) % 2 ? EK_REDUCE_MAX : EK_REDUCE_MIN;
                int64_t dims[4];
                memcpy(dims, shapes[s], sizeof dims);
                dims[dim] = 1;
                twin x = twin_new(dtype, 4, shapes[s], (twin_layout)l);
                twin_integers(x, 0, 9, (unsigned)(l + 1)); /* so that many are equal */
                if (ek_dtype_is_floating(dtype) && l >= 3 && ek_count(x.host) > 0) {
                    for (int64_t i = 0; i < ek_count(x.host); i += 29)
                        case_set(x.host, i, (double)NAN);
                    twin_push(x);
                }
                twin index = twin_new(EK_I64, 4, dims, (twin_layout)(s % 3));
                if (ek_count(x.host) == 0 && ek_count(index.host) > 0) {
                    twin_refused(EK_E_INVALID, "no position", arg_reduce, kind, ON(index), ON(x),
                                 dim);
                } else {
                    twin_run(arg_reduce, kind, ON(index), ON(x), dim);
                    expect_positions(index, kind, x, dim);
                    twin_same(index, "positions");
                }
                ek_scope_end(&scope);
            }
    const int64_t dims[] = {2, 5001}, two[] = {2, 1};
    twin x = twin_integers(twin_new(dtype, 2, dims, TWIN_ROWS), 0, 200, 9);
    twin index = twin_new(EK_I64, 2, two, TWIN_ROWS);
    twin_run(arg_reduce, EK_REDUCE_MAX, ON(index), ON(x), 1);
    expect_positions(index, EK_REDUCE_MAX, x, 1);
    twin_same(index, "long lines");
}

TEST_LOOP(repeats, 1, 16)
{
    const int64_t dims[] = {4, 37, 31, 29};
    int64_t small[4];
    for (int d = 0; d < 4; d++)
        small[d] = _i >> d & 1 ? 1 : dims[d];
    for (int l = 0; l < 2; l++) {
        twin x = twin_uniform(twin_new(EK_F32, 4, dims, (twin_layout)l), 0, 7, 3);
        twin y = twin_new(EK_F32, 4, small, TWIN_ROWS);
        twin_repeats(y, reduce, EK_REDUCE_SUM, ON(y), ON(x));
    }
}
