/* Softmax and log-softmax: the GPU's kernels against the host's. */
#include "cuda_cases.h"

static const int64_t shapes[][4] = {{2, 5, 3, 4},  {3, 11, 9, 13}, {2, 1, 3, 3},
                                    {2, 70, 2, 3}, {40, 10, 1, 1}, {0, 3, 2, 2}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

/* Roundings of the values themselves and of sums of 70 of them. */
static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 2e-6 : 8e-3;
}

static void check(ek_dtype dtype, int ndim, const int64_t *shape, int dim, int layout,
                  bool logarithm, double scale)
{
    char what[80];
    snprintf(what, sizeof what, "%lld x %lld, dimension %d, layout %d, log %d", (long long)shape[0],
             (long long)shape[1], dim, layout, logarithm);
    double tolerance = tolerance_of(dtype);
    const int layouts = ndim > 0 ? TWIN_LAYOUTS : 1; /* a scalar has no layout */
    twin x = twin_new(dtype, ndim, shape, (twin_layout)layout);
    twin y = twin_new(dtype, ndim, shape, (twin_layout)((layout + dim) % layouts));
    twin dy = twin_new(dtype, ndim, shape, (twin_layout)((layout + 1) % layouts));
    twin dx = twin_new(dtype, ndim, shape, (twin_layout)((layout + 2) % layouts));
    twin_uniform(x, -scale, scale, 1);
    twin_uniform(dy, -2, 2, 2);
    assert_ok(twin_host()->softmax(twin_dev(EK_HOST), y.host, x.host, dim, logarithm));
    assert_ok(twin_cuda()->softmax(twin_dev(EK_CUDA), y.cuda, x.cuda, dim, logarithm));
    twin_close(y, tolerance, logarithm ? tolerance : tolerance / 100, what);
    twin_push(y);
    assert_ok(
        twin_host()->softmax_gradient(twin_dev(EK_HOST), dx.host, dy.host, y.host, dim, logarithm));
    assert_ok(
        twin_cuda()->softmax_gradient(twin_dev(EK_CUDA), dx.cuda, dy.cuda, y.cuda, dim, logarithm));
    twin_close(dx, tolerance, 3 * tolerance, what);
}

TEST_LOOP(softmax, 0, 3)
{
    for (int s = 0; s < SHAPES; s++)
        for (int dim = 0; dim < 4; dim++)
            for (int l = 0; l < TWIN_LAYOUTS; l++)
                for (int logarithm = 0; logarithm < 2; logarithm++) {
                    ek_scope scope = ek_scope_begin();
                    check(floating[_i], 4, shapes[s], dim, l, logarithm, 3);
                    ek_scope_end(&scope);
                }
    ek_scope scope = ek_scope_begin();
    check(floating[_i], 0, shapes[0], 0, TWIN_ROWS, false, 3);
    ek_scope_end(&scope);
}

/* Long lines, few or many, in both orders of memory. */
TEST_LOOP(long_lines, 0, 3)
{
    const int64_t long_shapes[][2] = {{3, 5000}, {5000, 3}, {37, 600}, {600, 37}, {1, 300}};
    for (int s = 0; s < 5; s++)
        for (int dim = 0; dim < 2; dim++)
            for (int l = TWIN_ROWS; l <= TWIN_SWAPPED; l++) {
                ek_scope scope = ek_scope_begin();
                check(floating[_i], 2, long_shapes[s], dim, l, l % 2, 30);
                ek_scope_end(&scope);
            }
}

/* Lines with NaN, with infinities, of nothing but -inf, and of huge numbers. */
TEST(special_values)
{
    const int64_t shape[] = {8, 19};
    const double infinity = (double)INFINITY;
    for (int dim = 0; dim < 2; dim++)
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            twin x = twin_new(EK_F32, 2, shape, dim == 1 ? TWIN_ROWS : TWIN_REVERSED);
            twin y = twin_new(EK_F32, 2, shape, TWIN_ROWS);
            for (int64_t i = 0; i < 8 * 19; i++) {
                int64_t line = i / 19, c = i % 19;
                case_set(x.host, i,
                         line == 0   ? -infinity
                         : line == 1 ? (c == 12 ? (double)NAN : 1)
                         : line == 2 ? (c == 7 ? infinity : (double)c)
                         : line == 3 ? (c < 9 ? -infinity : 2)
                         : line == 4 ? (c == 18 ? 1e4 : -infinity)
                         : line == 5 ? 1e4 + (double)(c % 3)
                         : line == 6 ? (c % 2 ? -3e38 : 3e38)
                                     : (c == 3 ? infinity : -infinity));
            }
            twin_push(x);
            assert_ok(twin_host()->softmax(twin_dev(EK_HOST), y.host, x.host, dim, logarithm));
            assert_ok(twin_cuda()->softmax(twin_dev(EK_CUDA), y.cuda, x.cuda, dim, logarithm));
            twin_close(y, 1e-6, 1e-6, "special values");
        }
}
