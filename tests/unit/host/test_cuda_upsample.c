/* Upsampling on the GPU against the host's. */
#include "cuda_cases.h"

/* n, c, input height and width, output height and width */
static const int64_t cases[][6] = {{2, 3, 4, 5, 8, 10}, {1, 11, 7, 6, 13, 17}, {2, 4, 9, 8, 5, 3},
                                   {1, 2, 1, 1, 4, 3},  {2, 5, 6, 6, 6, 6},    {1, 1, 5, 7, 1, 1},
                                   {1, 3, 8, 8, 41, 9}, {1, 2, 31, 2, 7, 29},  {0, 2, 3, 3, 6, 6},
                                   {2, 8, 5, 3, 11, 7}, {1, 16, 4, 6, 3, 13}};
enum { CASES = sizeof cases / sizeof cases[0], MODES = 3 };
static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};

static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 2e-5 : 8e-3;
}

static void check_case(const int64_t *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y,
                       int mode)
{
    const int64_t in[] = {c[0], c[1], c[2], c[3]}, out[] = {c[0], c[1], c[4], c[5]};
    bool bilinear = mode > 0, corners = mode == 2;
    double tolerance = tolerance_of(dtype);
    twin x = twin_uniform(twin_new(dtype, 4, in, of_x), -2, 2, 1);
    twin dx = twin_new(dtype, 4, in, of_x), y = twin_new(dtype, 4, out, of_y);
    twin dy = twin_uniform(twin_new(dtype, 4, out, of_y), -2, 2, 2);
    char what[100];
    snprintf(what, sizeof what, "%dx%d to %dx%d, mode %d, layouts %d and %d", (int)c[2], (int)c[3],
             (int)c[4], (int)c[5], mode, (int)of_x, (int)of_y);
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    assert_ok(twin_host()->upsample_forward(host, y.host, x.host, bilinear, corners));
    assert_ok(twin_cuda()->upsample_forward(cuda, y.cuda, x.cuda, bilinear, corners));
    twin_close(y, tolerance, tolerance, what);
    assert_ok(twin_host()->upsample_gradient(host, dx.host, dy.host, bilinear, corners));
    assert_ok(twin_cuda()->upsample_gradient(cuda, dx.cuda, dy.cuda, bilinear, corners));
    twin_close(dx, tolerance, 4 * tolerance, what);
}

TEST_LOOP(upsampling_agrees, 0, CASES)
{
    for (int k = 0; k < 3 * TWIN_LAYOUTS * MODES; k++) {
        ek_scope scope = ek_scope_begin();
        int layout = k / MODES % TWIN_LAYOUTS;
        check_case(cases[_i], dtypes[k / MODES / TWIN_LAYOUTS], (twin_layout)layout,
                   (twin_layout)((layout + _i) % TWIN_LAYOUTS), k % MODES);
        ek_scope_end(&scope);
    }
}

/* Every ratio of small sizes: the adjoint asks exactly the positions that read a place. */
TEST_LOOP(all_ratios_agree, 0, MODES)
{
    for (int64_t in = 1; in <= 12; in++)
        for (int64_t out = 1; out <= 24; out++) {
            ek_scope scope = ek_scope_begin();
            check_case((const int64_t[]){1, 2, in, 3, out, 2}, EK_F32, TWIN_LAST, TWIN_LAST, _i);
            check_case((const int64_t[]){1, 2, 2, in, 1, out}, EK_F64, TWIN_ROWS, TWIN_ROWS, _i);
            ek_scope_end(&scope);
        }
}

/* Many positions: groups of channels of a position share a thread. */
TEST_LOOP(many_positions_agree, 0, 12)
{
    static const twin_layout layouts[] = {TWIN_LAST, TWIN_ROWS, TWIN_GAPS, TWIN_DENSE_OFFSET};
    check_case((const int64_t[]){2, 11, 41, 43, 45, 47}, dtypes[_i / 4 % 3], layouts[_i % 4],
               layouts[_i % 4], 1 + _i % 2);
}

/* Vectors of channels that start at any element, with neighbours on either side. */
TEST_LOOP(some_channels_agree, 0, 9)
{
    static const int64_t firsts[] = {0, 1, 8};
    const int64_t first = firsts[_i % 3], all[] = {2, 24, 4, 5}, more[] = {2, 24, 9, 7};
    ek_dtype dtype = dtypes[_i / 3];
    twin sides[] = {twin_uniform(twin_new(dtype, 4, all, TWIN_LAST), -2, 2, 1),
                    twin_uniform(twin_new(dtype, 4, more, TWIN_LAST), -2, 2, 2)};
    for (int k = 0; k < 2; k++) {
        const int64_t shape[] = {2, 8, k == 0 ? 4 : 9, k == 0 ? 5 : 7};
        ek_tensor **both[] = {&sides[k].host, &sides[k].cuda};
        for (int side = 0; side < 2; side++) {
            *both[side] = ek_tensor_view(*both[side], 4, shape, (*both[side])->stride, first);
            assert_made(*both[side]);
        }
    }
    twin small = sides[0], large = sides[1];
    double tolerance = tolerance_of(dtype);
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    assert_ok(twin_host()->upsample_gradient(host, small.host, large.host, true, false));
    assert_ok(twin_cuda()->upsample_gradient(cuda, small.cuda, large.cuda, true, false));
    twin_close(small, tolerance, 4 * tolerance, "gradient");
    twin_push(small);
    assert_ok(twin_host()->upsample_forward(host, large.host, small.host, true, false));
    assert_ok(twin_cuda()->upsample_forward(cuda, large.cuda, small.cuda, true, false));
    twin_close(large, tolerance, 4 * tolerance, "forward");
}

/* An infinite element is seen only if it has a share; by both backends. */
TEST_LOOP(infinity_stays_in_its_place, 0, 6)
{
    const int64_t in[] = {1, 8, 4, 4}, out[] = {1, 8, 7, 7};
    const int mode = _i % 3;
    twin x = twin_uniform(twin_new(EK_F32, 4, in, _i < 3 ? TWIN_LAST : TWIN_ROWS), 1, 2, 1);
    twin y = twin_new(EK_F32, 4, out, _i < 3 ? TWIN_LAST : TWIN_ROWS);
    case_set(x.host, 6, (double)INFINITY);
    twin_push(x);
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    assert_ok(twin_host()->upsample_forward(host, y.host, x.host, mode > 0, mode == 2));
    assert_ok(twin_cuda()->upsample_forward(cuda, y.cuda, x.cuda, mode > 0, mode == 2));
    int64_t infinite = 0;
    for (int64_t i = 0; i < ek_count(y.host); i++)
        infinite += isinf(case_get(y.host, i));
    ck_assert_int_gt(infinite, 0);
    for (int64_t i = 0; i < ek_count(y.host); i++)
        ck_assert(!isnan(case_get(y.host, i)));
    twin_close(y, 1e-6, 1e-6, "infinity");
}
