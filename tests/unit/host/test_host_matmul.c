/* Matrix products on the host against a naive reference in double precision. */
#include "host/dnn.h"
#include "host/host.h"
#include "host_cases.h"

/* How a matrix lies in memory. */
typedef enum form { ROWS, TRANSPOSED, GAPS, STEPS, BROADCAST, FORMS } form;

static ek_tensor *matrix(ek_dev *dev, ek_dtype dtype, int64_t batch, int64_t rows, int64_t columns,
                         form how)
{
    int64_t dims[3] = {batch, rows, columns};
    if (how == ROWS || how == GAPS)
        return case_tensor(dev, dtype, 3, dims, how == ROWS ? CASE_ROWS : CASE_GAPS);
    if (how == TRANSPOSED) {
        int64_t stored[3] = {batch, columns, rows};
        ek_tensor *base = case_tensor(dev, dtype, 3, stored, CASE_ROWS);
        int64_t stride[3] = {rows * columns, 1, rows};
        return ek_tensor_view(base, 3, dims, stride, base->offset);
    }
    if (how == STEPS) { /* no unit stride */
        int64_t stored[3] = {batch, 2 * rows, 3 * columns};
        ek_tensor *base = case_tensor(dev, dtype, 3, stored, CASE_ROWS);
        int64_t stride[3] = {6 * rows * columns, 6 * columns, 3};
        return ek_tensor_view(base, 3, dims, stride, base->offset);
    }
    int64_t stored[3] = {1, rows, columns};
    ek_tensor *base = case_tensor(dev, dtype, 3, stored, CASE_ROWS);
    int64_t stride[3] = {0, columns, 1};
    return ek_tensor_view(base, 3, dims, stride, base->offset);
}

static void reference(double *out, const ek_tensor *x, const ek_tensor *y, const ek_tensor *bias)
{
    int64_t n = x->shape[1], k = x->shape[2], m = y->shape[2];
    double *a = case_values(x), *b = case_values(y);
    for (int64_t batch = 0; batch < x->shape[0]; batch++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < m; j++) {
                double sum = bias ? case_get(bias, j) : 0;
                for (int64_t l = 0; l < k; l++)
                    sum += a[(batch * n + i) * k + l] * b[(batch * k + l) * m + j];
                out[(batch * n + i) * m + j] += sum;
            }
    free(a);
    free(b);
}

typedef struct product {
    int64_t batch, n, k, m;
} product;

static void check(ek_dev *dev, ek_dtype dtype, const product *p, const form forms[3],
                  bool with_bias, bool accumulate)
{
    const ek_kernels *kernels = dev->backend->kernels;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = matrix(dev, dtype, p->batch, p->n, p->k, forms[0]);
    ek_tensor *y = matrix(dev, dtype, p->batch, p->k, p->m, forms[1]);
    ek_tensor *out = matrix(dev, dtype, p->batch, p->n, p->m, forms[2]);
    ek_tensor *bias = with_bias ? case_tensor(dev, dtype, 1, &p->m, CASE_ROWS) : NULL;
    ek_tensor *again = matrix(dev, dtype, p->batch, p->n, p->m, forms[2]);
    double *truth = case_zeros(ek_count(out));
    case_fill(x, 5);
    case_fill(y, 6);
    if (bias)
        case_fill(bias, 7);
    if (accumulate) {
        case_fill(out, 8);
        case_fill(again, 8);
        for (int64_t i = 0; i < ek_count(out); i++)
            truth[i] = case_get(out, i);
    } else {
        case_poison(out);
        case_poison(again);
    }
    reference(truth, x, y, bias);
    assert_ok(kernels->matmul(dev, out, x, y, bias, accumulate));
    assert_ok(kernels->matmul(dev, again, x, y, bias, accumulate));
    char what[160];
    snprintf(what, sizeof what, "%s %lld x (%lld, %lld, %lld), forms %d %d %d, bias %d, add %d",
             ek_dtype_name(dtype), (long long)p->batch, (long long)p->n, (long long)p->k,
             (long long)p->m, forms[0], forms[1], forms[2], with_bias, accumulate);
    case_compare(out, truth, case_tolerance(dtype), what);
    case_same(out, again, what);
    free(truth);
    ek_scope_end(&scope);
}

static const product products[] = {{1, 1, 1, 1},     {1, 5, 7, 3},     {1, 64, 33, 10},
                                   {1, 1, 65, 40},   {1, 40, 65, 1},   {1, 13, 1, 17},
                                   {3, 6, 8, 5},     {5, 12, 16, 16},  {2, 1, 9, 4},
                                   {1, 3, 0, 4},     {2, 97, 40, 130}, {1, 100, 300, 260},
                                   {1, 33, 270, 530}};
enum { PRODUCTS = sizeof products / sizeof *products };
static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};

TEST_LOOP(matmul_agrees_with_reference, 0, 6 * PRODUCTS)
{
    ek_dev *dev = case_device(1 + _i % 2);
    const product *p = &products[_i / 6];
    ek_dtype dtype = dtypes[_i / 2 % 3];
    bool large = p->n * p->k * p->m > 2000;
    for (int x = 0; x < FORMS; x++)
        for (int y = 0; y < FORMS; y++)
            for (int out = 0; out < BROADCAST; out++) {
                form forms[3] = {(form)x, (form)y, (form)out};
                if (large && (x + y + out) % 4 != 0)
                    continue;
                check(dev, dtype, p, forms, (x + y) % 2, (x + out) % 2);
            }
}

/* oneDNN's primitive is taken for bf16 where the processor multiplies that. In f32 it can be tried
 * on all. */
static void check_primitive(ek_dev *dev, ek_dtype dtype, ek_dtype sum, const product *p,
                            const form forms[3], bool with_bias, bool accumulate)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = matrix(dev, dtype, p->batch, p->n, p->k, forms[0]);
    ek_tensor *y = matrix(dev, dtype, p->batch, p->k, p->m, forms[1]);
    ek_tensor *out = matrix(dev, sum, p->batch, p->n, p->m, forms[2]);
    ek_tensor *bias = with_bias ? case_tensor(dev, sum, 1, &p->m, CASE_GAPS) : NULL;
    double *truth = case_zeros(ek_count(out));
    case_fill(x, 5);
    case_fill(y, 6);
    if (bias)
        case_fill(bias, 7);
    if (accumulate) {
        case_fill(out, 8);
        for (int64_t i = 0; i < ek_count(out); i++)
            truth[i] = case_get(out, i);
    } else {
        case_poison(out);
    }
    reference(truth, x, y, bias);
    char what[160];
    snprintf(what, sizeof what,
             "%s to %s %lld x (%lld, %lld, %lld), forms %d %d %d, bias %d, add %d",
             ek_dtype_name(dtype), ek_dtype_name(sum), (long long)p->batch, (long long)p->n,
             (long long)p->k, (long long)p->m, forms[0], forms[1], forms[2], with_bias, accumulate);
    /* In bf16, which products oneDNN has fast code for is its own matter but for the plainest. */
    bool plain = p->batch == 1 && forms[0] == ROWS && forms[1] == ROWS && forms[2] == ROWS;
    int done = ek_dnn_matmul(dev, out, x, y, bias, accumulate);
    if (done < 0 || (done == 0 && (dtype == EK_F32 || plain)))
        ck_abort_msg("%s: %d, not done", what, done);
    if (done)
        case_compare(out, truth, case_tolerance(sum), what);
    free(truth);
    ek_scope_end(&scope);
}

TEST_LOOP(matmul_by_primitive_agrees_with_reference, 0, 3 * PRODUCTS)
{
    static const struct {
        ek_dtype dtype, sum;
    } pairs[] = {{EK_F32, EK_F32}, {EK_BF16, EK_BF16}, {EK_BF16, EK_F32}};
    ek_dev *dev = case_device(1 + _i % 2);
    const product *p = &products[_i / 3];
    ek_memory_stats before, after;
    assert_ok(ek_memory_get_stats(ek_host(0), &before));
    if (p->k == 0 || (pairs[_i % 3].dtype == EK_BF16 && !ek_dnn_has_bf16()))
        return;
    for (int x = 0; x < FORMS; x++)
        for (int y = 0; y < FORMS; y++)
            for (int out = 0; out < BROADCAST; out++) {
                form forms[3] = {(form)x, (form)y, (form)out};
                bool large = p->n * p->k * p->m > 2000;
                if (!large || (x + y + out) % 4 == 0)
                    check_primitive(dev, pairs[_i % 3].dtype, pairs[_i % 3].sum, p, forms,
                                    (x + y) % 2, (x + out) % 2);
            }
    assert_ok(ek_memory_get_stats(ek_host(0), &after));
    ck_assert(after.now[EK_MEMORY_WORKSPACE] == before.now[EK_MEMORY_WORKSPACE]);
}

/* The slot takes a sum of f32, too. */
TEST(matmul_of_bf16_into_f32)
{
    ek_dev *dev = case_device(2);
    const ek_kernels *kernels = dev->backend->kernels;
    ek_tensor *x = matrix(dev, EK_BF16, 2, 17, 33, ROWS);
    ek_tensor *y = matrix(dev, EK_BF16, 2, 33, 9, TRANSPOSED);
    ek_tensor *out = matrix(dev, EK_F32, 2, 17, 9, GAPS);
    int64_t m = 9;
    ek_tensor *bias = case_tensor(dev, EK_F32, 1, &m, CASE_ROWS);
    case_fill(x, 1);
    case_fill(y, 2);
    case_fill(bias, 3);
    for (int add = 0; add < 2; add++) {
        double *truth = case_zeros(ek_count(out));
        case_fill(out, 4);
        for (int64_t i = 0; add && i < ek_count(out); i++)
            truth[i] = case_get(out, i);
        reference(truth, x, y, bias);
        assert_ok(kernels->matmul(dev, out, x, y, bias, add));
        case_compare(out, truth, case_tolerance(EK_F32), add ? "added" : "written");
        free(truth);
    }
}

TEST(matmul_results_do_not_depend_on_threads_in_f64)
{
    product p = {1, 200, 300, 520};
    ek_dev *dev = case_device(1);
    const ek_kernels *kernels = dev->backend->kernels;
    ek_tensor *x = matrix(dev, EK_F64, p.batch, p.n, p.k, ROWS);
    ek_tensor *y = matrix(dev, EK_F64, p.batch, p.k, p.m, TRANSPOSED);
    ek_tensor *one = matrix(dev, EK_F64, p.batch, p.n, p.m, ROWS);
    ek_tensor *two = matrix(dev, EK_F64, p.batch, p.n, p.m, ROWS);
    case_fill(x, 1);
    case_fill(y, 2);
    for (int64_t i = 0; i < ek_count(x); i++)
        case_set(x, i, sin(case_get(x, i) + (double)i));
    assert_ok(kernels->matmul(dev, one, x, y, NULL, false));
    assert_ok(ek_device_set_threads(ek_host(0), 2));
    assert_ok(kernels->matmul(dev, two, x, y, NULL, false));
    case_same(one, two, "threads");
}

TEST(matmul_of_nothing)
{
    ek_dev *dev = case_device(2);
    static const product empty[] = {{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 3, 4, 0}, {0, 0, 0, 0}};
    const form rows[3] = {ROWS, ROWS, ROWS};
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 3; d++)
            check(dev, dtypes[d], &empty[i], rows, true, i % 2);
}

/* What lies between and beside the elements of a strided output stays. */
TEST(matmul_writes_nothing_else)
{
    ek_dev *dev = case_device(2);
    const ek_kernels *kernels = dev->backend->kernels;
    for (int d = 0; d < 3; d++) {
        int64_t wide[3] = {2, 10, 24}, stride[3] = {240, 48, 3};
        ek_tensor *base = case_tensor(dev, dtypes[d], 3, wide, CASE_ROWS);
        for (int64_t i = 0; i < ek_count(base); i++)
            case_set(base, i, -3);
        int64_t dims[3] = {2, 5, 7};
        ek_tensor *out = ek_tensor_view(base, 3, dims, stride, base->offset + 1);
        ek_tensor *x = matrix(dev, dtypes[d], 2, 5, 6, ROWS);
        ek_tensor *y = matrix(dev, dtypes[d], 2, 6, 7, ROWS);
        for (int64_t i = 0; i < ek_count(x); i++)
            case_set(x, i, 1);
        for (int64_t i = 0; i < ek_count(y); i++)
            case_set(y, i, 1);
        assert_ok(kernels->matmul(dev, out, x, y, NULL, false));
        double sum = 0;
        for (int64_t i = 0; i < ek_count(base); i++)
            sum += case_get(base, i);
        ck_assert(sum == -3.0 * (480 - 70) + 6.0 * 70);
    }
}

/* So large that bf16, here with f32 against it, is converted in blocks of rows, of columns and of
 * the depth: as in one. Sums of small whole numbers are exact. */
TEST(blocks)
{
    static const product large[] = {{1, (1 << 22) + 7, 1, 1},
                                    {1, 1, 1, (1 << 22) + 7},
                                    {2, 2, 66000, 70},
                                    {1, 70, 66000, 1},
                                    {(1 << 20) + 3, 4, 1, 1}};
    ek_dev *dev = case_device(2);
    for (int i = 0; i < 5; i++) {
        const bool accumulate = i % 2 == 0;
        ek_scope scope = ek_scope_begin();
        const product *p = &large[i];
        ek_tensor *x = matrix(dev, EK_F32, p->batch, p->n, p->k, ROWS);
        ek_tensor *y = matrix(dev, EK_BF16, p->batch, p->k, p->m, i == 2 ? BROADCAST : ROWS);
        ek_tensor *wide = matrix(dev, EK_F32, i == 2 ? 1 : p->batch, p->k, p->m, ROWS);
        ek_tensor *out = matrix(dev, EK_BF16, p->batch, p->n, p->m, accumulate ? GAPS : ROWS);
        ek_tensor *want = matrix(dev, EK_F32, p->batch, p->n, p->m, ROWS);
        ek_tensor *bias = case_tensor(dev, EK_BF16, 1, &p->m, CASE_ROWS);
        ek_tensor *wide_bias = case_tensor(dev, EK_F32, 1, &p->m, CASE_ROWS);
        float *values = ek_tensor_address(x), *sums = ek_tensor_address(want);
        for (int64_t j = 0; j < ek_count(x); j++)
            values[j] = (float)(j % 5 - 2) * (float)(j % 1001 == 7 || p->k < 100);
        ek_tensor *one = i == 2 ? ek_tensor_view(wide, 3, y->shape, y->stride, 0) : wide;
        for (int64_t j = 0; j < ek_count(wide); j++)
            ((float *)ek_tensor_address(wide))[j] = (float)(j % 7 - 3);
        assert_ok(ek_host_copy(dev, y, one));
        for (int64_t j = 0; j < p->m; j++)
            case_set(wide_bias, j, (double)(j % 3));
        assert_ok(ek_host_copy(dev, bias, wide_bias));
        for (int64_t j = 0; j < ek_count(want); j++)
            sums[j] = (float)(j % 4);
        assert_ok(ek_host_copy(dev, out, want));
        assert_ok(ek_host_matmul(dev, want, x, one, wide_bias, accumulate));
        assert_ok(ek_host_matmul(dev, out, x, y, bias, accumulate));
        ek_tensor *rounded = matrix(dev, EK_BF16, p->batch, p->n, p->m, ROWS);
        assert_ok(ek_host_copy(dev, rounded, want));
        case_same(out, rounded, "blocks");
        ek_scope_end(&scope);
    }
}
