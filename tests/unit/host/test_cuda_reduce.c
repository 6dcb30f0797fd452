/* Reductions and positions of extremes: the GPU's kernels against the host's. */
#include "cuda_cases.h"

#include "evenkeel/device.h"

static const int64_t no_dims[1] = {0}; /* of a scalar */
static const int64_t shapes[][4] = {{2, 5, 3, 4},  {3, 70, 1, 33}, {1, 1, 1, 1},    {64, 10, 1, 1},
                                    {2, 90, 1, 7}, {2, 3, 31, 61}, {12, 24, 2, 16}, {2, 0, 3, 4}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static ek_dtype result_dtype(ek_reduce_kind kind, ek_dtype dtype)
{
    return dtype == EK_U8 && kind <= EK_REDUCE_SUM_SQUARES ? EK_I64 : dtype;
}

static twin values(twin x, unsigned seed)
{
    if (ek_dtype_is_floating(x.host->dtype))
        return twin_uniform(x, -2, 2, seed);
    return twin_integers(x, x.host->dtype == EK_U8 ? 0 : -100, 200, seed);
}

/* n values of at most 4: what their sum may be off by, wherever it is rounded. */
static void close_sums(twin y, ek_reduce_kind kind, ek_dtype dtype, int64_t n, const char *what)
{
    double unit = dtype == EK_F64 ? 1e-14 : 5e-7;
    if (kind >= EK_REDUCE_MAX || !ek_dtype_is_floating(dtype))
        twin_same(y, what);
    else
        twin_close(y, dtype == EK_BF16 ? 8e-3 : 0, unit * (double)n, what);
}

static void check_reduce(ek_reduce_kind kind, ek_dtype dtype, const int64_t *shape, unsigned mask,
                         twin_layout layout)
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
    twin x = values(twin_new(dtype, 4, shape, layout), mask + 1);
    twin y = twin_new(result_dtype(kind, dtype), 4, dims, (twin_layout)((mask + 1) % 3));
    int wanted = twin_host()->reduce(twin_dev(EK_HOST), kind, y.host, x.host);
    if (wanted < 0)
        assert_error(wanted, "no elements");
    int rc = twin_cuda()->reduce(twin_dev(EK_CUDA), kind, y.cuda, x.cuda);
    case_must(rc == wanted);
    if (wanted < 0)
        assert_error(wanted, "no elements");
    else
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
                check_reduce(kind, dtype, shapes[s], mask, (twin_layout)l);
                ek_scope_end(&scope);
            }
}

/* Few outputs of many elements: work is cut into chunks, in both orders of memory. */
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
    for (unsigned c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int kind = EK_REDUCE_SUM; kind <= EK_REDUCE_MIN; kind++)
            for (int l = (int)(c % 2); l <= TWIN_DENSE_OFFSET; l += 2) {
                ek_scope scope = ek_scope_begin();
                check_reduce((ek_reduce_kind)kind, (ek_dtype)_i, cases[c].shape, cases[c].mask,
                             (twin_layout)l);
                ek_scope_end(&scope);
            }
}

TEST(scalars_and_repeats)
{
    twin x = values(twin_new(EK_F32, 0, no_dims, TWIN_ROWS), 1);
    twin y = twin_new(EK_F32, 0, no_dims, TWIN_ROWS),
         index = twin_new(EK_I64, 0, no_dims, TWIN_ROWS);
    assert_ok(twin_host()->reduce(twin_dev(EK_HOST), EK_REDUCE_SUM_SQUARES, y.host, x.host));
    assert_ok(twin_cuda()->reduce(twin_dev(EK_CUDA), EK_REDUCE_SUM_SQUARES, y.cuda, x.cuda));
    twin_same(y, "a square");
    assert_ok(twin_cuda()->arg_reduce(twin_dev(EK_CUDA), EK_REDUCE_MAX, index.cuda, x.cuda, 0));
    case_set(index.host, 0, 0);
    twin_same(index, "the only position");
    const int64_t shape[] = {3, 40, 5, 70};
    for (unsigned repeated = 1; repeated < 16; repeated++)
        for (unsigned mask = 1; mask < 16; mask++) {
            ek_scope scope = ek_scope_begin();
            int64_t dims[4];
            for (int d = 0; d < 4; d++)
                dims[d] = mask >> d & 1 ? 1 : shape[d];
            twin a = twin_repeat(values(twin_new(EK_F32, 4, shape, TWIN_ROWS), 2), repeated);
            twin b = twin_new(EK_F32, 4, dims, TWIN_ROWS);
            assert_ok(twin_host()->reduce(twin_dev(EK_HOST), EK_REDUCE_SUM, b.host, a.host));
            assert_ok(twin_cuda()->reduce(twin_dev(EK_CUDA), EK_REDUCE_SUM, b.cuda, a.cuda));
            close_sums(b, EK_REDUCE_SUM, EK_F32, 42000, "repeated");
            ek_scope_end(&scope);
        }
}

TEST(not_a_number)
{
    const int64_t shape[] = {300, 70}, rows[] = {300, 1}, columns[] = {1, 70};
    for (int place = 0; place < 21000; place += 2999)
        for (int kind = EK_REDUCE_SUM; kind <= EK_REDUCE_MIN; kind++)
            for (int by = 0; by < 2; by++) {
                ek_scope scope = ek_scope_begin();
                twin x = twin_new(EK_F32, 2, shape, TWIN_ROWS);
                twin y = twin_new(EK_F32, 2, by ? rows : columns, TWIN_ROWS);
                case_fill(x.host, 1);
                case_set(x.host, place, (double)NAN);
                case_set(x.host, (place + 1) % 21000, (double)INFINITY);
                twin_push(x);
                ek_reduce_kind k = (ek_reduce_kind)kind;
                assert_ok(twin_host()->reduce(twin_dev(EK_HOST), k, y.host, x.host));
                assert_ok(twin_cuda()->reduce(twin_dev(EK_CUDA), k, y.cuda, x.cuda));
                twin_close(y, 1e-5, 1e-3, "with NaN");
                ek_scope_end(&scope);
            }
}

/* A million f32 values of 0.1: sums that are added one after the other are off by percents. */
TEST(long_sum)
{
    const int64_t dims[] = {1000000}, one[] = {1};
    twin x = twin_new(EK_F32, 1, dims, TWIN_ROWS), y = twin_new(EK_F32, 1, one, TWIN_ROWS);
    assert_ok(twin_host()->fill(twin_dev(EK_HOST), x.host, 0.1));
    twin_push(x);
    assert_ok(twin_host()->reduce(twin_dev(EK_HOST), EK_REDUCE_SUM, y.host, x.host));
    assert_ok(twin_cuda()->reduce(twin_dev(EK_CUDA), EK_REDUCE_SUM, y.cuda, x.cuda));
    twin_close(y, 2e-6, 0, "a million values");
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
                int wanted =
                    twin_host()->arg_reduce(twin_dev(EK_HOST), kind, index.host, x.host, dim);
                if (wanted < 0)
                    assert_error(wanted, "no position");
                case_must(twin_cuda()->arg_reduce(twin_dev(EK_CUDA), kind, index.cuda, x.cuda,
                                                  dim) == wanted);
                if (wanted < 0)
                    assert_error(wanted, "no position");
                else
                    twin_same(index, "positions");
                ek_scope_end(&scope);
            }
    const int64_t dims[] = {2, 5001}, two[] = {2, 1};
    twin x = twin_integers(twin_new(dtype, 2, dims, TWIN_ROWS), 0, 200, 9);
    twin index = twin_new(EK_I64, 2, two, TWIN_ROWS);
    assert_ok(twin_host()->arg_reduce(twin_dev(EK_HOST), EK_REDUCE_MAX, index.host, x.host, 1));
    assert_ok(twin_cuda()->arg_reduce(twin_dev(EK_CUDA), EK_REDUCE_MAX, index.cuda, x.cuda, 1));
    twin_same(index, "long lines");
}
