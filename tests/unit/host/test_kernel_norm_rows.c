/* Layer norm and RMS norm of rows with parameters per element: the host's kernels against two-pass
 * loops in double. */
#include "twin.h"

typedef struct rows_case {
    int64_t rows, size;
    ek_dtype dtype;
    bool mean, residual, affine, few; /* few: no bias, a residual of 16 bits, no dx */
    twin x, other, weight, bias, dy, total, y, dx, means, invstd, dweight, dbias;
} rows_case;

static rows_case rows_case_of(int64_t rows, int64_t size, ek_dtype dtype, unsigned kinds)
{
    const int64_t dims[] = {rows, size}, statistics[] = {rows, 1};
    rows_case c = {.rows = rows,
                   .size = size,
                   .dtype = dtype,
                   .mean = kinds & 1,
                   .residual = kinds & 2,
                   .affine = kinds & 4,
                   .few = kinds & 8};
    twin *const all[] = {&c.x, &c.other, &c.dy, &c.total, &c.y, &c.dx};
    for (unsigned i = 0; i < 6; i++) {
        const bool narrow = i == 1 && c.few && dtype == EK_F32;
        *all[i] = (i == 1 && !c.residual) || (i == 5 && c.few)
                      ? twin_none
                      : twin_uniform(twin_new(narrow ? EK_BF16 : dtype, 2, dims, TWIN_ROWS), -1, 3,
                                     i + 1);
    }
    c.means = c.mean ? twin_new(dtype, 2, statistics, TWIN_ROWS) : twin_none;
    c.invstd = twin_new(dtype, 2, statistics, TWIN_ROWS);
    if (c.affine) {
        c.weight = twin_uniform(twin_new(dtype, 1, dims + 1, TWIN_ROWS), 0.5, 1.5, 7);
        if (!c.few)
            c.bias = twin_uniform(twin_new(dtype, 1, dims + 1, TWIN_ROWS), -1, 1, 8);
    }
    c.dweight = twin_new(dtype, 1, dims + 1, TWIN_ROWS);
    c.dbias = twin_new(dtype, 1, dims + 1, TWIN_ROWS);
    return c;
}

/* Both kernels on the host. */
static void rows_run(const rows_case *c)
{
    const ek_kernels *kernels = twin_host();
    ek_dev *dev = twin_dev(EK_HOST);
    ek_norm_args args = {.x = c->x.host,
                         .weight = c->weight.host,
                         .bias = c->bias.host,
                         .residual = c->other.host,
                         .total = c->residual ? c->total.host : NULL};
    ck_assert_int_eq(kernels->norm_rows(dev, c->y.host, c->means.host, c->invstd.host, &args, 1e-2),
                     1);
    args.x = c->residual ? c->total.host : c->x.host;
    args.mean = c->means.host;
    args.invstd = c->invstd.host;
    args.dy = c->dy.host;
    const ek_norm_sums sums = {.dweight = c->dweight.host, .dbias = c->dbias.host};
    ck_assert_int_eq(kernels->norm_rows_gradient(dev, c->dx.host, &sums, &args), 1);
}

static void check_rows(const rows_case *c)
{
    const int64_t n = c->size, count = c->rows * n;
    double *y = case_zeros(count), *dx = case_zeros(count);
    double *dweight = case_zeros(n), *dbias = case_zeros(n);
    for (int64_t r = 0; r < c->rows; r++) {
        double mean = 0, var = 0, sum = 0, product = 0;
#define ROWS_X(i) (case_get(c->x.host, r * n + (i)) + twin_value(c->other, r * n + (i), 0))
#define ROWS_G(i) (case_get(c->dy.host, r * n + (i)) * twin_value(c->weight, (i), 1))
        for (int64_t i = 0; i < n && c->mean; i++)
            mean += ROWS_X(i) / (double)n;
        for (int64_t i = 0; i < n; i++)
            var += (ROWS_X(i) - mean) * (ROWS_X(i) - mean) / (double)n;
        const double invstd = 1 / sqrt(var + 1e-2);
        for (int64_t i = 0; i < n; i++) {
            sum += c->mean ? ROWS_G(i) / (double)n : 0;
            product += ROWS_G(i) * (ROWS_X(i) - mean) * invstd / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            const double xhat = (ROWS_X(i) - mean) * invstd, dy = case_get(c->dy.host, r * n + i);
            y[r * n + i] = xhat * twin_value(c->weight, i, 1) + twin_value(c->bias, i, 0);
            dx[r * n + i] =
                invstd * (ROWS_G(i) - sum - xhat * product) + twin_value(c->other, r * n + i, 0);
            dweight[i] += dy * xhat;
            dbias[i] += dy;
        }
    }
    const double exact = c->dtype == EK_F64 ? 1e-13 : 2e-6, many = exact * sqrt((double)c->rows);
    const char *what = text_of("rows (%lld, %lld), %d %d %d %d", (long long)c->rows, (long long)n,
                               c->mean, c->residual, c->affine, c->few);
    twin_expect((twin){c->y.host, NULL}, y, 4 * exact, what);
    if (c->dx.host)
        twin_expect((twin){c->dx.host, NULL}, dx, 20 * exact, what);
    twin_expect((twin){c->dweight.host, NULL}, dweight, 4 * many, what);
    twin_expect((twin){c->dbias.host, NULL}, dbias, 4 * many, what);
    free(y), free(dx), free(dweight), free(dbias);
}

/* Layer norm and RMS norm, of a sum or not, with parameters or without. The last rows are summed in
 * pieces. */
TEST_LOOP(rows_of_elements, 0, 16)
{
    static const int64_t sizes[][2] = {{1, 1},    {5, 3},    {40, 31},  {33, 32},
                                       {150, 40}, {70, 128}, {3, 1000}, {2100, 17},
                                       {2, 4096}, {1, 4097}, {70, 4100}};
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++)
        for (int wide = 0; wide < 2; wide++) {
            const rows_case c =
                rows_case_of(sizes[i][0], sizes[i][1], wide ? EK_F64 : EK_F32, (unsigned)_i);
            rows_run(&c);
            check_rows(&c);
        }
}

/* One thread and two make the same bits. */
TEST_LOOP(rows_repeat, 0, 4)
{
    double *once[4] = {NULL};
    for (int threads = 1; threads <= 2; threads++) {
        case_device(threads);
        const ek_dtype dtype = _i % 2 ? EK_F64 : EK_F32;
        const rows_case c = rows_case_of(_i < 2 ? 3000 : 40, _i < 2 ? 130 : 9000, dtype, 7);
        const twin all[] = {c.y, c.dx, c.dweight, c.dbias};
        rows_run(&c);
        for (int i = 0; i < 4; i++)
            twin_repeated(all[i].host, &once[i], "rows");
    }
    for (int i = 0; i < 4; i++)
        free(once[i]);
}
