/* Matrix products on the GPU against the host's, by cuBLAS and without it. */
#include "cuda_cases.h"
#include "evenkeel/precision.h"

/* How a matrix lies in memory: the last has no unit stride, SLICE is part of a wider one and
 * BROADCAST is one for all batches. */
typedef enum form { ROWS, TRANSPOSED, SLICE, BROADCAST, STEPS, FORMS } form;

static ek_tensor *host_matrix(ek_dtype dtype, const int64_t dims[3], form how)
{
    int64_t batch = dims[0], rows = dims[1], columns = dims[2];
    int64_t stored[3] = {batch, rows, columns}, stride[3] = {rows * columns, columns, 1}, skip = 0;
    if (how == TRANSPOSED) {
        stored[1] = columns;
        stored[2] = rows;
        stride[1] = 1;
        stride[2] = rows;
    } else if (how == SLICE) {
        stored[2] = columns + 3;
        stride[1] = columns + 3;
        stride[0] = rows * (columns + 3);
        skip = 1;
    } else if (how == BROADCAST) {
        stored[0] = 1;
        stride[0] = 0;
    } else if (how == STEPS) {
        stored[1] = 2 * rows;
        stored[2] = 3 * columns;
        stride[0] = 6 * rows * columns;
        stride[1] = 6 * columns;
        stride[2] = 3;
    }
    ek_tensor *base = case_tensor(twin_dev(EK_HOST), dtype, 3, stored, CASE_ROWS);
    memset(base->storage->data, TWIN_PATTERN, base->storage->nbytes);
    ek_tensor *view = ek_tensor_view(base, 3, dims, stride, base->offset + skip);
    assert_made(view);
    return view;
}

static twin matrix(ek_dtype dtype, int64_t batch, int64_t rows, int64_t columns, form how,
                   unsigned seed)
{
    int64_t dims[3] = {batch, rows, columns};
    twin t = twin_of(host_matrix(dtype, dims, how));
    return twin_uniform(t, -1, 1, seed);
}

typedef struct product {
    int64_t batch, n, k, m;
} product;

/* Sums of k products of numbers below 1, in another order than the host's. */
static double tolerance_of(ek_dtype dtype, int64_t k)
{
    double epsilon = dtype == EK_F64 ? 2.3e-16 : dtype == EK_F32 ? 1.2e-7 : 0;
    return (dtype == EK_BF16 ? 8e-3 : 0) + epsilon * (double)(k + 8);
}

static void check(ek_dtype dtype, const product *p, const form forms[3], bool with_bias,
                  bool accumulate)
{
    ek_scope scope = ek_scope_begin();
    twin x = matrix(dtype, p->batch, p->n, p->k, forms[0], 5);
    twin y = matrix(dtype, p->batch, p->k, p->m, forms[1], 6);
    twin out = matrix(dtype, p->batch, p->n, p->m, forms[2], 8);
    twin bias = {NULL, NULL};
    if (with_bias)
        bias = twin_uniform(twin_new(dtype, 1, &p->m, TWIN_ROWS), -1, 1, 7);
    if (!accumulate) { /* what was there must not matter */
        case_poison(out.host);
        twin_push(out);
    }
    char what[160];
    snprintf(what, sizeof what, "%lld x (%lld, %lld, %lld), forms %d %d %d, bias %d, add %d",
             (long long)p->batch, (long long)p->n, (long long)p->k, (long long)p->m, forms[0],
             forms[1], forms[2], with_bias, accumulate);
    assert_ok(
        twin_host()->matmul(twin_dev(EK_HOST), out.host, x.host, y.host, bias.host, accumulate));
    assert_ok(
        twin_cuda()->matmul(twin_dev(EK_CUDA), out.cuda, x.cuda, y.cuda, bias.cuda, accumulate));
    twin_close(out, tolerance_of(dtype, p->k), tolerance_of(dtype, p->k), what);
    ek_scope_end(&scope);
}

static const product products[] = {{1, 1, 1, 1},   {1, 5, 7, 3},    {1, 64, 33, 10}, {1, 1, 65, 40},
                                   {1, 40, 65, 1}, {1, 13, 1, 17},  {3, 6, 8, 5},    {2, 1, 9, 4},
                                   {1, 3, 0, 4},   {2, 70, 20, 67}, {4, 3, 5, 2}};
enum { PRODUCTS = sizeof products / sizeof *products };
static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};

static void check_all_forms(const product *p, ek_dtype dtype, int sparse)
{
    for (int x = 0; x < FORMS; x++)
        for (int y = 0; y < FORMS; y++)
            for (int out = 0; out < FORMS; out++) {
                form forms[3] = {(form)x, (form)y, (form)out};
                if (out == BROADCAST || (x + 2 * y + 3 * out) % sparse != 0)
                    continue;
                check(dtype, p, forms, (x + y + out) % 2, (x + out) % 2);
                check(dtype, p, forms, (x + y + out) % 2, (x + out + 1) % 2);
            }
}

TEST_LOOP(matmul_agrees_with_the_host, 0, 3 * PRODUCTS)
{
    check_all_forms(&products[_i / 3], dtypes[_i % 3], 1);
}

TEST_LOOP(matmul_without_cublas_agrees_with_the_host, 0, 3 * PRODUCTS)
{
    setenv("EVENKEEL_CUDA_WITHOUT", "cublas", 1);
    check_all_forms(&products[_i / 3], dtypes[_i % 3], 2);
}

TEST(matmul_of_nothing)
{
    static const product empty[] = {{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 3, 4, 0}, {0, 0, 0, 0}};
    const form rows[3] = {ROWS, ROWS, ROWS};
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 3; d++)
            check(dtypes[d], &empty[i], rows, true, i % 2);
}

/* A bias and an operand that are the same everywhere, and a bias with a stride. */
TEST(matmul_takes_repeated_operands)
{
    int64_t wide = 21, strides[1] = {3}, seven[1] = {7};
    for (int d = 0; d < 3; d++) {
        twin x = twin_repeat(matrix(dtypes[d], 2, 9, 6, ROWS, 1), 7);
        twin y = twin_repeat(matrix(dtypes[d], 2, 6, 7, ROWS, 2), 4);
        twin out = matrix(dtypes[d], 2, 9, 7, ROWS, 3);
        twin base = twin_uniform(twin_new(dtypes[d], 1, &wide, TWIN_ROWS), -1, 1, 4);
        ek_tensor *host = ek_tensor_view(base.host, 1, seven, strides, 0);
        ek_tensor *cuda = ek_tensor_view(base.cuda, 1, seven, strides, 0);
        assert_ok(twin_host()->matmul(twin_dev(EK_HOST), out.host, x.host, y.host, host, false));
        assert_ok(twin_cuda()->matmul(twin_dev(EK_CUDA), out.cuda, x.cuda, y.cuda, cuda, false));
        twin_close(out, tolerance_of(dtypes[d], 6), tolerance_of(dtypes[d], 6), "repeated");
    }
}

TEST(matmul_repeats_to_the_bit)
{
    ek_use_deterministic_algorithms(true);
    for (int d = 0; d < 3; d++) {
        twin x = matrix(dtypes[d], 1, 65, 130, ROWS, 1), y = matrix(dtypes[d], 1, 130, 70, ROWS, 2);
        twin one = matrix(dtypes[d], 1, 65, 70, ROWS, 3);
        twin two = matrix(dtypes[d], 1, 65, 70, ROWS, 4);
        for (int i = 0; i < 3; i++) {
            assert_ok(
                twin_cuda()->matmul(twin_dev(EK_CUDA), one.cuda, x.cuda, y.cuda, NULL, false));
            assert_ok(
                twin_cuda()->matmul(twin_dev(EK_CUDA), two.cuda, x.cuda, y.cuda, NULL, false));
            case_same(twin_pull(one.cuda), twin_pull(two.cuda), "again");
        }
    }
}

/* NaN and infinity go where the formula has them, and what is in out doesn't matter. */
TEST(matmul_carries_what_is_not_finite)
{
    twin x = matrix(EK_F32, 1, 4, 4, ROWS, 1), y = matrix(EK_F32, 1, 4, 4, ROWS, 2);
    twin out = matrix(EK_F32, 1, 4, 4, ROWS, 3);
    case_set(x.host, 0, (double)NAN);
    case_set(y.host, 7, (double)INFINITY);
    case_poison(out.host);
    twin_push(x);
    twin_push(y);
    twin_push(out);
    assert_ok(twin_host()->matmul(twin_dev(EK_HOST), out.host, x.host, y.host, NULL, false));
    assert_ok(twin_cuda()->matmul(twin_dev(EK_CUDA), out.cuda, x.cuda, y.cuda, NULL, false));
    ck_assert(isnan(case_get(out.host, 0)) && isfinite(case_get(out.host, 4)));
    twin_close(out, 1e-6, 1e-6, "not finite");
}

/* The workspace is counted, and stays with the device; products are computed without it too. */
TEST(matmul_without_memory_for_a_workspace)
{
    ek_memory_stats stats;
    twin x = matrix(EK_F32, 1, 40, 50, ROWS, 1), y = matrix(EK_F32, 1, 50, 60, ROWS, 2);
    twin out = matrix(EK_F32, 1, 40, 60, ROWS, 3);
    assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
    assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.reserved + 4096));
    assert_ok(twin_host()->matmul(twin_dev(EK_HOST), out.host, x.host, y.host, NULL, false));
    assert_ok(twin_cuda()->matmul(twin_dev(EK_CUDA), out.cuda, x.cuda, y.cuda, NULL, false));
    ck_assert_int_eq(ek_error_status(), 0);
    twin_close(out, 1e-5, 1e-5, "no workspace");
}
