/* Matrix products: the host's against loops in double, the GPU's against the host's, with the GPU's
 * libraries; test_kernel_matmul_own.c does without these. */
#include "host/dnn.h"
#include "host/gemm.h"
#include "host/isa.h"
#include "twin.h"

COST(15)

/* How a matrix lies in memory: STEPS has no unit stride, SLICE is part of a wider one and BROADCAST
 * is one for all batches. */
typedef enum form { ROWS, TRANSPOSED, SLICE, STEPS, BROADCAST, FORMS } form;

static twin matrix(ek_dtype dtype, int64_t batch, int64_t rows, int64_t columns, form how,
                   unsigned seed)
{
    const int64_t dims[] = {batch, rows, columns};
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
    } else if (how == STEPS) {
        stored[1] = 2 * rows;
        stored[2] = 3 * columns;
        stride[0] = 6 * rows * columns;
        stride[1] = 6 * columns;
        stride[2] = 3;
    } else if (how == BROADCAST) {
        stored[0] = 1;
        stride[0] = 0;
    }
    twin base = twin_new(dtype, 3, stored, TWIN_ROWS);
    return twin_uniform(twin_view(base, 3, dims, stride, skip), -1, 1, seed);
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

/* Operands of `dtype`, and of `sum` what is added and written. */
typedef struct problem {
    twin x, y, out, bias;
    bool accumulate;
    double *wanted;
    const char *what;
} problem;

/* Returns the sums of a problem's products in f64, which the caller does not free. They depend on
 * the product, the dtype and which of the operands are one for all batches. Seeds are fixed, so
 * that the sums of one product are kept for all forms of its matrices. */
static const double *sums_of(const product *p, const twin *x, const twin *y, const form forms[3])
{
    static double *sums_kept[2][2];
    static product sums_product;
    static ek_dtype sums_dtype;
    if (memcmp(&sums_product, p, sizeof *p) != 0 || sums_dtype != x->host->dtype)
        for (int k = 0; k < 4; k++) {
            free(sums_kept[k / 2][k % 2]);
            sums_kept[k / 2][k % 2] = NULL;
        }
    sums_product = *p;
    sums_dtype = x->host->dtype;
    double **sums = &sums_kept[forms[0] == BROADCAST][forms[1] == BROADCAST];
    if (*sums)
        return *sums;
    *sums = case_zeros(p->batch * p->n * p->m);
    double *a = case_values(x->host), *b = case_values(y->host);
    /* Columns are innermost, so that b is read in order. */
    for (int64_t row = 0; row < p->batch * p->n; row++)
        for (int64_t l = 0; l < p->k; l++)
            for (int64_t column = 0; column < p->m; column++)
                (*sums)[row * p->m + column] +=
                    a[row * p->k + l] * b[(row / p->n * p->k + l) * p->m + column];
    free(a), free(b);
    return *sums;
}

static problem problem_of(ek_dtype dtype, ek_dtype sum, const product *p, const form forms[3],
                          bool with_bias, bool accumulate)
{
    problem q = {.x = matrix(dtype, p->batch, p->n, p->k, forms[0], 5),
                 .y = matrix(dtype, p->batch, p->k, p->m, forms[1], 6),
                 .out = matrix(sum, p->batch, p->n, p->m, forms[2], 8),
                 .accumulate = accumulate};
    if (with_bias)
        q.bias = twin_uniform(twin_new(sum, 1, &p->m, TWIN_GAPS), -1, 1, 7);
    q.wanted = case_values(q.out.host);
    if (!accumulate) { /* what was there must not matter */
        case_poison(q.out.host);
        twin_push(q.out);
    }
    const double *sums = sums_of(p, &q.x, &q.y, forms);
    for (int64_t i = 0; i < p->batch * p->n * p->m; i++)
        q.wanted[i] = sums[i] + (with_bias ? case_get(q.bias.host, i % p->m) : 0) +
                      (accumulate ? q.wanted[i] : 0);
    q.what = text_of("%s to %s %lld x (%lld, %lld, %lld), forms %d %d %d, bias %d, add %d",
                     ek_dtype_name(dtype), ek_dtype_name(sum), (long long)p->batch, (long long)p->n,
                     (long long)p->k, (long long)p->m, forms[0], forms[1], forms[2], with_bias,
                     accumulate);
    return q;
}

static void problem_check(problem *q)
{
    const double tolerance = tolerance_of(q->out.host->dtype, q->x.host->shape[2]);
    twin_run(matmul, ON(q->out), ON(q->x), ON(q->y), ON(q->bias), q->accumulate);
    twin_expect_norm(q->out, q->wanted, case_tolerance(q->out.host->dtype), q->what);
    twin_close(q->out, tolerance, tolerance, q->what);
    free(q->wanted);
}

static const product products[] = {{1, 1, 1, 1},     {1, 5, 7, 3},       {1, 64, 33, 10},
                                   {1, 1, 65, 40},   {1, 40, 65, 1},     {1, 13, 1, 17},
                                   {3, 6, 8, 5},     {5, 12, 16, 16},    {2, 1, 9, 4},
                                   {1, 3, 0, 4},     {2, 70, 20, 67},    {4, 3, 5, 2},
                                   {2, 97, 40, 130}, {1, 100, 300, 260}, {1, 33, 270, 530},
                                   {1, 8, 1100, 90}, {1, 130, 600, 150}, {1, 140, 530, 7}};
enum { PRODUCTS = sizeof products / sizeof *products };

static void check_all_forms(const product *p, ek_dtype dtype, int turn)
{
    const int64_t size = p->n * p->k * p->m;
    const int sparse = size > 100000 ? 16 : size > 2000 ? 4 : 1;
    for (int f = 0; f < FORMS * FORMS * BROADCAST; f++) {
        const int x = f % FORMS, y = f / FORMS % FORMS, out = f / FORMS / FORMS;
        const form forms[] = {(form)x, (form)y, (form)out};
        if ((x + 2 * y + 3 * out + turn) % sparse != 0)
            continue;
        ek_scope scope = ek_scope_begin();
        problem q = problem_of(dtype, dtype, p, forms, (x + y + out) % 2, (x + out + turn) % 2);
        problem_check(&q);
        ek_scope_end(&scope);
    }
}

/* An emulated GPU takes its time for our own kernels. */
static bool too_long(const product *p)
{
#ifdef TWIN_WITHOUT_LIBRARIES
    return test_is_short() && p->n * p->k * p->m > 100000;
#else
    return false;
#endif
}

TEST_LOOP(matmul, 0, 6 * PRODUCTS)
{
    const product *p = &products[_i / 6];
    if (too_long(p))
        return;
    case_device(1 + _i % 2);
    check_all_forms(p, (ek_dtype)(_i / 2 % 3), _i % 2);
}

#ifndef TWIN_WITHOUT_LIBRARIES

/* oneDNN's primitive is taken for bf16 where the processor has AMX. In f32 it can be tried on all.
 */
TEST_LOOP(by_onednns_primitive, 0, 3 * PRODUCTS)
{
    if (test_is_short())
        return;
    static const ek_dtype pairs[][2] = {{EK_F32, EK_F32}, {EK_BF16, EK_BF16}, {EK_BF16, EK_F32}};
    ek_dev *dev = case_device(1 + _i % 2);
    const product *p = &products[_i / 3];
    const ek_dtype dtype = pairs[_i % 3][0], sum = pairs[_i % 3][1];
    ek_memory_stats before, after;
    assert_ok(ek_memory_get_stats(ek_host(0), &before));
    if (p->k == 0 || (dtype == EK_BF16 && !ek_dnn_has_bf16()))
        return;
    for (int f = 0; f < FORMS * FORMS * BROADCAST; f++) {
        const form forms[3] = {(form)(f % FORMS), (form)(f / FORMS % FORMS),
                               (form)(f / FORMS / FORMS)};
        const unsigned all = forms[0] + forms[1] + forms[2];
        if (p->n * p->k * p->m > 2000 && all % 4 != 0)
            continue;
        ek_scope scope = ek_scope_begin();
        problem q =
            problem_of(dtype, sum, p, forms, (forms[0] + forms[1]) % 2, (forms[0] + forms[2]) % 2);
        int done = ek_dnn_matmul(dev, q.out.host, q.x.host, q.y.host, q.bias.host, q.accumulate);
        /* In bf16, which products oneDNN has fast code for is its own matter but for the plainest.
         */
        if (done < 0 || (done == 0 && (dtype == EK_F32 || (p->batch == 1 && all == 0))))
            ck_abort_msg("%s: %d, not done", q.what, done);
        if (done)
            twin_expect_norm(q.out, q.wanted, case_tolerance(sum), q.what);
        free(q.wanted);
        ek_scope_end(&scope);
    }
    assert_ok(ek_memory_get_stats(ek_host(0), &after));
    ck_assert(after.now[EK_MEMORY_WORKSPACE] == before.now[EK_MEMORY_WORKSPACE]);
}

/* The host's own products of 16 bits, by every instruction set and both kinds of words: an element
 * has the same bits with one thread, with three, and in a product of some of the rows and columns.
 */
TEST_LOOP(narrow_by_words, 0, 3 * PRODUCTS)
{
    if (test_is_short())
        return;
    static const struct {
        ek_dtype dtype, sum;
        bool pairs;
    } kinds[] = {{EK_BF16, EK_F32, true}, {EK_BF16, EK_F32, false}, {EK_F16, EK_F16, false}};
    const product *p = &products[_i / 3];
    const ek_dtype dtype = kinds[_i % 3].dtype, sum = kinds[_i % 3].sum;
    const bool pairs = kinds[_i % 3].pairs;
    for (int isa = EK_ISA_PLAIN; isa <= EK_ISA_AVX512; isa++) {
        static const char *const names[] = {"plain", "avx2", "avx512"};
        setenv("EVENKEEL_HOST_ISA", names[isa], 1);
        assert_ok(ek_host_read_settings());
        if ((int)ek_host_isa() != isa || (pairs && !ek_host_has_bf16()))
            continue;
        for (int f = 0; f < FORMS * FORMS * BROADCAST; f++) {
            const form forms[3] = {(form)(f % FORMS), (form)(f / FORMS % FORMS),
                                   (form)(f / FORMS / FORMS)};
            if (p->n * p->k * p->m > 2000 && (forms[0] + forms[1] + forms[2]) % 4 != 0)
                continue;
            ek_scope scope = ek_scope_begin();
            problem q = problem_of(dtype, sum, p, forms, (forms[0] + forms[1]) % 2,
                                   (forms[0] + forms[2]) % 2);
            twin part = matrix(sum, p->batch, p->n, p->m, ROWS, 8);
            ek_tensor *out = q.out.host, *x = q.x.host, *y = q.y.host, *bias = q.bias.host;
            double *once = NULL, *before = case_values(out);
            for (int threads = 1; threads <= 3; threads += 2) {
                for (int64_t i = 0; i < ek_count(out) && q.accumulate; i++)
                    case_set(out, i, before[i]);
                assert_ok(ek_gemm_narrow(case_device(threads), out, x, y, bias, q.accumulate, false,
                                         pairs));
                twin_expect_norm(q.out, q.wanted, case_tolerance(sum), q.what);
                twin_repeated(out, &once, q.what);
            }
            if (!q.accumulate && !bias && p->n > 2 && p->m > 2) {
                const int64_t row = p->n / 3, column = p->m / 5;
                ek_tensor some_x = *x, some_y = *y, some = *out, some_part = *part.host;
                some_x.shape[1] = some.shape[1] = some_part.shape[1] = p->n / 2;
                some_y.shape[2] = some.shape[2] = some_part.shape[2] = p->m / 2;
                some_x.offset += row * x->stride[1];
                some_y.offset += column * y->stride[2];
                some.offset += row * out->stride[1] + column * out->stride[2];
                assert_ok(ek_gemm_narrow(case_device(2), &some_part, &some_x, &some_y, NULL, false,
                                         false, pairs));
                case_same(&some_part, &some, q.what);
            }
            free(once), free(before), free(q.wanted);
            ek_scope_end(&scope);
        }
    }
}

/* The host's slot takes a sum of f32, too. */
TEST(bf16_into_f32)
{
    const form forms[] = {ROWS, TRANSPOSED, SLICE};
    for (int add = 0; add < 2; add++) {
        problem q = problem_of(EK_BF16, EK_F32, &(product){2, 17, 33, 9}, forms, true, add);
        assert_ok(twin_host()->matmul(twin_dev(EK_HOST), q.out.host, q.x.host, q.y.host,
                                      q.bias.host, add));
        twin_expect_norm(q.out, q.wanted, case_tolerance(EK_F32), q.what);
        free(q.wanted);
    }
}

#endif

TEST_LOOP(nothing, 0, 12)
{
    static const product empty[] = {{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 3, 4, 0}, {0, 0, 0, 0}};
    const form rows[] = {ROWS, ROWS, ROWS};
    problem q =
        problem_of((ek_dtype)(_i % 3), (ek_dtype)(_i % 3), &empty[_i / 3], rows, true, _i % 2);
    problem_check(&q);
}

/* A bias and operands that are the same everywhere, and a bias with a stride. */
TEST_LOOP(repeated_operands, 0, 3)
{
    const int64_t wide = 21, stride[] = {3}, seven[] = {7};
    const ek_dtype dtype = (ek_dtype)_i;
    twin x = twin_repeat(matrix(dtype, 2, 9, 6, ROWS, 1), 7);
    twin y = twin_repeat(matrix(dtype, 2, 6, 7, ROWS, 2), 4), out = matrix(dtype, 2, 9, 7, ROWS, 3);
    twin base = twin_uniform(twin_new(dtype, 1, &wide, TWIN_ROWS), -1, 1, 4);
    twin bias = twin_view(base, 1, seven, stride, 0);
    double wanted[2 * 9 * 7];
    for (int i = 0; i < 126; i++) {
        wanted[i] = case_get(bias.host, i % 7);
        for (int k = 0; k < 6; k++)
            wanted[i] += case_get(x.host, k) * case_get(y.host, i / 63 * 42 + k * 7);
    }
    twin_run(matmul, ON(out), ON(x), ON(y), ON(bias), false);
    twin_expect_norm(out, wanted, case_tolerance(dtype), "repeated");
    twin_close(out, tolerance_of(dtype, 6), tolerance_of(dtype, 6), "repeated");
}

/* Few rows, packed operands, several blocks of k, few columns, many small ones. */
static const product kinds[] = {{1, 65, 130, 70},    {1, 200, 300, 520}, {1, 8, 1100, 90},
                                {1, 150, 1100, 200}, {1, 300, 600, 10},  {5, 30, 40, 50}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* f32 products of matrices that lie row by row are oneDNN's on some processors. */
static bool own(ek_dtype dtype, const form forms[2])
{
    return dtype == EK_F64 ||
           (dtype == EK_F32 && (forms[0] == TRANSPOSED || forms[1] == TRANSPOSED));
}

/* The host's own don't depend on threads; others repeat on as many. */
TEST_LOOP(repeats_to_the_bit, 0, 3 * KINDS)
{
    const ek_dtype dtype = (ek_dtype)(_i % 3);
    const product *p = &kinds[_i / 3];
    if (too_long(p))
        return;
    ek_use_deterministic_algorithms(true);
    for (int f = 0; f < 4; f++) {
        const form forms[] = {f % 2 ? TRANSPOSED : ROWS, f / 2 ? TRANSPOSED : ROWS};
        twin x = matrix(dtype, p->batch, p->n, p->k, forms[0], 1);
        twin y = matrix(dtype, p->batch, p->k, p->m, forms[1], 2);
        twin out = matrix(dtype, p->batch, p->n, p->m, ROWS, 3);
        twin again = matrix(dtype, p->batch, p->n, p->m, ROWS, 4);
        if (own(dtype, forms))
            twin_repeats(out, matmul, ON(out), ON(x), ON(y), NULL, false);
        twin_run(matmul, ON(out), ON(x), ON(y), NULL, false);
        twin_run(matmul, ON(again), ON(x), ON(y), NULL, false);
        case_same(out.host, again.host, "again");
        if (twin_sides() == 2)
            case_same(twin_pull(out.cuda), twin_pull(again.cuda), "again");
    }
}

#ifndef TWIN_WITHOUT_LIBRARIES

/* The sum of an element has one order: in a product of some of the rows and columns it has the same
 * bits. */
TEST_LOOP(part_to_the_bit, 0, 2 * KINDS)
{
    if (test_is_short())
        return;
    const ek_dtype dtype = _i % 2 ? EK_F64 : EK_F32;
    const product *p = &kinds[_i / 2];
    ek_dev *dev = case_device(2);
    for (int f = 0; f < 4; f++) {
        const form forms[] = {f % 2 ? TRANSPOSED : ROWS, f / 2 ? TRANSPOSED : ROWS};
        if (!own(dtype, forms))
            continue;
        twin x = matrix(dtype, p->batch, p->n, p->k, forms[0], 1);
        twin y = matrix(dtype, p->batch, p->k, p->m, forms[1], 2);
        twin out = matrix(dtype, p->batch, p->n, p->m, ROWS, 3);
        assert_ok(twin_host()->matmul(dev, out.host, x.host, y.host, NULL, false));
        const int64_t row = p->n / 3, rows = p->n / 2, column = p->m / 5, columns = p->m / 2;
        ek_tensor some_x = *x.host, some_y = *y.host, some_out = *out.host;
        some_x.shape[1] = some_out.shape[1] = rows;
        some_y.shape[2] = some_out.shape[2] = columns;
        some_x.offset += row * some_x.stride[1];
        some_y.offset += column * some_y.stride[2];
        some_out.offset += row * some_out.stride[1] + column;
        twin part = matrix(dtype, p->batch, rows, columns, ROWS, 4);
        assert_ok(twin_host()->matmul(dev, part.host, &some_x, &some_y, NULL, false));
        case_same(part.host, &some_out, "part");
    }
}

/* So many rows that packed ones are several parts. Sums of small whole numbers are exact. */
TEST_LOOP(many_rows, 0, 8)
{
    if (test_is_short())
        return;
    const ek_dtype dtype = _i % 2 ? EK_F64 : EK_F32;
    const bool accumulate = _i / 2 % 2;
    const int64_t n = 2101, k = 530, m = 75;
    ek_dev *dev = case_device(1 + _i / 4);
    twin x = twin_integers(matrix(dtype, 1, n, k, TRANSPOSED, 1), -2, 2, 5);
    twin y = twin_integers(matrix(dtype, 1, k, m, ROWS, 1), -3, 3, 6);
    twin out = twin_integers(matrix(dtype, 1, n, m, ROWS, 1), -4, 4, 7);
    double *a = case_values(x.host), *b = case_values(y.host), *wanted = case_values(out.host);
    for (int64_t i = 0; i < n; i++) {
        double *sum = wanted + i * m;
        for (int64_t j = 0; j < m && !accumulate; j++)
            sum[j] = 0;
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < m; j++)
                sum[j] += a[i * k + l] * b[l * m + j];
    }
    assert_ok(twin_host()->matmul(dev, out.host, x.host, y.host, NULL, accumulate));
    double *got = case_values(out.host);
    for (int64_t i = 0; i < n * m; i++)
        if (!(got[i] == wanted[i]))
            ck_abort_msg("element %lld: %g instead of %g", (long long)i, got[i], wanted[i]);
    free(a), free(b), free(wanted), free(got);
}

#endif

/* NaN and infinity go where the formula has them, and what is in out doesn't matter. */
TEST(not_finite)
{
    twin x = matrix(EK_F32, 1, 4, 4, ROWS, 1), y = matrix(EK_F32, 1, 4, 4, ROWS, 2);
    twin out = matrix(EK_F32, 1, 4, 4, ROWS, 3);
    case_set(x.host, 0, (double)NAN);
    case_set(y.host, 7, (double)INFINITY);
    case_poison(out.host);
    twin_push(x);
    twin_push(y);
    twin_push(out);
    twin_run(matmul, ON(out), ON(x), ON(y), NULL, false);
    ck_assert(isnan(case_get(out.host, 0)) && isfinite(case_get(out.host, 4)));
    twin_close(out, 1e-6, 1e-6, "not finite");
}

/* What lies between and beside the elements of a strided output stays. */
TEST_LOOP(nothing_else_is_written, 0, 3)
{
    const int64_t wide[] = {2, 10, 24}, stride[] = {240, 48, 3}, dims[] = {2, 5, 7};
    twin base = twin_integers(twin_new((ek_dtype)_i, 3, wide, TWIN_ROWS), -3, -3, 1);
    twin out = twin_view(base, 3, dims, stride, 1);
    twin x = twin_integers(matrix((ek_dtype)_i, 2, 5, 6, ROWS, 1), 1, 1, 1);
    twin y = twin_integers(matrix((ek_dtype)_i, 2, 6, 7, ROWS, 1), 1, 1, 1);
    twin_run(matmul, ON(out), ON(x), ON(y), NULL, false);
    double sum = 0;
    for (int64_t i = 0; i < ek_count(base.host); i++)
        sum += case_get(base.host, i);
    ck_assert(sum == -3.0 * (480 - 70) + 6.0 * 70);
    twin_same(base, "and what is about it");
}

/* The workspace is counted, and stays with the GPU; products are computed without it too. */
TEST(no_memory_for_a_workspace)
{
    ek_memory_stats stats;
    twin x = matrix(EK_F32, 1, 40, 50, ROWS, 1), y = matrix(EK_F32, 1, 50, 60, ROWS, 2);
    twin out = matrix(EK_F32, 1, 40, 60, ROWS, 3);
    if (twin_sides() == 2) {
        assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
        assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.in_use + 4096));
    }
    twin_run(matmul, ON(out), ON(x), ON(y), NULL, false);
    ck_assert_int_eq(ek_error_status(), 0);
    twin_close(out, 1e-5, 1e-5, "no workspace");
}

#ifndef TWIN_WITHOUT_LIBRARIES

/* So large that bf16, here with f32 against it, is converted in blocks of rows, of columns and of
 * the depth: as in one. Sums of small whole numbers are exact. */
TEST_LOOP(blocks, 0, 5)
{
    if (test_is_short())
        return;
    static const product large[] = {{1, (1 << 22) + 7, 1, 1},
                                    {1, 1, 1, (1 << 22) + 7},
                                    {2, 2, 66000, 70},
                                    {1, 70, 66000, 1},
                                    {(1 << 20) + 3, 4, 1, 1}};
    const bool accumulate = _i % 2 == 0, shared = _i == 2;
    const product *p = &large[_i];
    ek_dev *dev = case_device(2);
    const ek_kernels *host = dev->backend->kernels;
    ek_tensor *wide[5], *narrow[5]; /* x, y, bias, out and out again */
    const int64_t shapes[][3] = {{p->batch, p->n, p->k},
                                 {shared ? 1 : p->batch, p->k, p->m},
                                 {p->m},
                                 {p->batch, p->n, p->m},
                                 {p->batch, p->n, p->m}};
    for (int k = 0; k < 5; k++) {
        int ndim = k == 2 ? 1 : 3;
        wide[k] = case_tensor(dev, EK_F32, ndim, shapes[k], CASE_ROWS);
        narrow[k] = case_tensor(dev, EK_BF16, ndim, shapes[k],
                                k == 3 && accumulate ? CASE_GAPS : CASE_ROWS);
        float *values = ek_tensor_address(wide[k]);
        for (int64_t j = 0; j < ek_count(wide[k]); j++)
            values[j] = k == 0 ? (float)(j % 5 - 2) * (float)(j % 1001 == 7 || p->k < 100)
                               : (float)(k == 1   ? j % 7 - 3
                                         : k == 2 ? j % 3
                                                  : j % 4);
        assert_ok(host->copy(dev, narrow[k], wide[k]));
    }
    ek_tensor *y[] = {wide[1], narrow[1]};
    for (int k = 0; k < 2 && shared; k++) {
        y[k] = ek_tensor_view(y[k], 3, (const int64_t[]){p->batch, p->k, p->m},
                              (const int64_t[]){0, p->m, 1}, 0);
        assert_made(y[k]);
    }
    assert_ok(host->matmul(dev, wide[3], wide[0], y[0], wide[2], accumulate));
    assert_ok(host->matmul(dev, narrow[3], wide[0], y[1], narrow[2], accumulate));
    assert_ok(host->copy(dev, narrow[4], wide[3]));
    case_same(narrow[3], narrow[4], "blocks");
}

#endif
