/* Reductions against loops over doubles. */
#include "host/host.h"
#include "host_cases.h"

static const int64_t shapes[][4] = {{2, 5, 3, 4},   {3, 70, 1, 33}, {1, 1, 1, 1}, {64, 10, 1, 1},
                                    {3, 300, 1, 7}, {2, 3, 31, 61}, {2, 0, 3, 4}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

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

/* Position in `out` (size 1 where mask has a bit) of element i of x, both row-major. */
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

static void check_reduce(ek_dev *dev, ek_reduce_kind kind, ek_dtype dtype, int s, unsigned mask,
                         case_layout layout)
{
    int64_t dims[4];
    for (int d = 0; d < 4; d++)
        dims[d] = mask >> d & 1 ? 1 : shapes[s][d];
    ek_dtype result = dtype == EK_U8 && kind <= EK_REDUCE_SUM_SQUARES ? EK_I64 : dtype;
    ek_tensor *x = case_tensor(dev, dtype, 4, shapes[s], layout);
    ek_tensor *out = case_tensor(dev, result, 4, dims, (case_layout)((mask + 1) % 3));
    case_fill(x, mask);
    if (!ek_dtype_is_floating(dtype))
        for (int64_t i = 0; i < ek_count(x); i++)
            case_set(x, i, (double)(i * 37 % 101));
    case_poison(out);
    int64_t count = ek_count(out);
    double *want = case_zeros(count);
    for (int64_t i = 0; i < count; i++)
        want[i] = kind == EK_REDUCE_MAX ? -1e30 : kind == EK_REDUCE_MIN ? 1e30 : 0;
    for (int64_t i = 0; i < ek_count(x); i++) {
        int64_t at = kept_position(x, mask, i);
        want[at] = take(kind, want[at], case_get(x, i));
    }
    int rc = ek_host_reduce(dev, kind, out, x);
    if (ek_count(x) == 0 && count > 0 && kind >= EK_REDUCE_MAX) {
        ck_assert_int_eq(rc, EK_E_INVALID);
        assert_error(EK_E_INVALID, "no elements");
        free(want);
        return;
    }
    assert_ok(rc);
    /* The inputs are multiples of 1/16: f32 and f64 sums in f64 are exact but for the last
     * rounding. */
    double tolerance = result == EK_F32 ? 6e-8 : result == EK_BF16 ? 4e-3 : 0;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(case_get(out, i) - want[i]) <= tolerance * fabs(want[i])))
            ck_abort_msg("kind %d, %s, shape %d, mask %u, layout %d, element %lld: %.9g, not %.9g",
                         (int)kind, ek_dtype_name(dtype), s, mask, (int)layout, (long long)i,
                         case_get(out, i), want[i]);
    free(want);
}

TEST(reduce)
{
    ek_dev *dev = case_device(2);
    for (int kind = EK_REDUCE_SUM; kind <= EK_REDUCE_MIN; kind++)
        for (int dtype = 0; dtype < EK_DTYPES; dtype++)
            for (int s = 0; s < SHAPES; s++)
                for (unsigned mask = (unsigned)(kind + dtype) % 2; mask < 16; mask += 2)
                    for (int l = 0; l < 3; l++) {
                        ek_scope scope = ek_scope_begin();
                        check_reduce(dev, (ek_reduce_kind)kind, (ek_dtype)dtype, s, mask,
                                     (case_layout)l);
                        ek_scope_end(&scope);
                    }
}

TEST(scalars)
{
    ek_dev *dev = case_device(1);
    ek_shape none = ek_scalar_shape();
    ek_tensor *x = ek_tensor_new(dev, EK_F32, &none, EK_CONTIGUOUS);
    ek_tensor *y = ek_tensor_new(dev, EK_F32, &none, EK_CONTIGUOUS);
    ek_tensor *index = ek_tensor_new(dev, EK_I64, &none, EK_CONTIGUOUS);
    assert_ok(ek_host_fill(dev, x, 3));
    assert_ok(ek_host_reduce(dev, EK_REDUCE_SUM_SQUARES, y, x));
    case_must(case_get(y, 0) == 9);
    assert_ok(ek_host_arg_reduce(dev, EK_REDUCE_MAX, index, x, 0));
    case_must(case_get(index, 0) == 0);
}

TEST(not_a_number)
{
    ek_dev *dev = case_device(1);
    const int64_t dims[] = {50}, one[] = {1};
    for (int place = 0; place < 50; place += 7)
        for (int kind = EK_REDUCE_SUM; kind <= EK_REDUCE_MIN; kind++) {
            ek_tensor *x = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
            ek_tensor *y = case_tensor(dev, EK_F32, 1, one, CASE_ROWS);
            case_fill(x, 1);
            case_set(x, place, (double)NAN);
            assert_ok(ek_host_reduce(dev, (ek_reduce_kind)kind, y, x));
            case_must(isnan(case_get(y, 0)));
        }
}

/* Four million f32 values of 0.1: naive f32 sums are off by percents. */
TEST(long_sum)
{
    ek_dev *dev = case_device(2);
    const int64_t dims[] = {4000000}, one[] = {1};
    ek_tensor *x = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
    ek_tensor *y = case_tensor(dev, EK_F32, 1, one, CASE_ROWS);
    assert_ok(ek_host_fill(dev, x, 0.1));
    assert_ok(ek_host_reduce(dev, EK_REDUCE_SUM, y, x));
    case_must(fabs(case_get(y, 0) - 4e6 * (double)0.1f) <= 4e5 * 6e-8);
}

TEST(threads)
{
    const int64_t dims[] = {4, 37, 31, 29};
    for (unsigned mask = 1; mask < 16; mask++)
        for (int l = 0; l < 2; l++) {
            ek_scope scope = ek_scope_begin();
            int64_t small[4];
            for (int d = 0; d < 4; d++)
                small[d] = mask >> d & 1 ? 1 : dims[d];
            ek_tensor *out[2];
            for (int t = 0; t < 2; t++) {
                ek_dev *dev = case_device(t + 1);
                ek_tensor *x = case_tensor(dev, EK_F32, 4, dims, (case_layout)l);
                case_fill(x, 3);
                assert_ok(ek_host_unary(dev, EK_UNARY_EXP, x, x, 0, 0));
                out[t] = case_tensor(dev, EK_F32, 4, small, CASE_ROWS);
                assert_ok(ek_host_reduce(dev, EK_REDUCE_SUM, out[t], x));
            }
            case_same(out[0], out[1], "one and two threads");
            ek_scope_end(&scope);
        }
}

TEST(positions)
{
    ek_dev *dev = case_device(2);
    for (int dtype = 0; dtype < EK_DTYPES; dtype++)
        for (int s = 0; s < SHAPES - 1; s++)
            for (int dim = 0; dim < 4; dim++)
                for (int l = 0; l < 6; l++) {
                    ek_scope scope = ek_scope_begin();
                    bool smallest = l >= 3;
                    int64_t dims[4];
                    memcpy(dims, shapes[s], sizeof dims);
                    dims[dim] = 1;
                    ek_tensor *x =
                        case_tensor(dev, (ek_dtype)dtype, 4, shapes[s], (case_layout)(l % 3));
                    ek_tensor *index = case_tensor(dev, EK_I64, 4, dims, CASE_LAST);
                    for (int64_t i = 0; i < ek_count(x); i++)
                        case_set(x, i, (double)(i * 37 % 23));
                    assert_ok(ek_host_arg_reduce(dev, smallest ? EK_REDUCE_MIN : EK_REDUCE_MAX,
                                                 index, x, dim));
                    double *best = case_zeros(ek_count(index));
                    int64_t *at = calloc((size_t)ek_count(index), sizeof *at);
                    for (int64_t i = 0; i < ek_count(x); i++) {
                        int64_t k = kept_position(x, 1u << dim, i), step = 1;
                        for (int d = dim + 1; d < 4; d++)
                            step *= shapes[s][d];
                        int64_t j = i / step % shapes[s][dim];
                        double v = case_get(x, i);
                        if (j == 0 || (smallest ? v < best[k] : v > best[k])) {
                            best[k] = v;
                            at[k] = j;
                        }
                    }
                    for (int64_t i = 0; i < ek_count(index); i++)
                        case_must(case_get(index, i) == (double)at[i]);
                    free(best);
                    free(at);
                    ek_scope_end(&scope);
                }
    const int64_t dims[] = {5}, one[] = {1};
    ek_tensor *x = case_tensor(dev, EK_F32, 1, dims, CASE_ROWS);
    ek_tensor *index = case_tensor(dev, EK_I64, 1, one, CASE_ROWS);
    for (int i = 0; i < 5; i++)
        case_set(x, i, i == 2 || i == 3 ? (double)NAN : 10 * i);
    assert_ok(ek_host_arg_reduce(dev, EK_REDUCE_MAX, index, x, 0));
    case_must(case_get(index, 0) == 2);
}
