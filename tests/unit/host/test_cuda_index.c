/* Selecting and adding at indices: the GPU's kernels against the host's. */
#include "cuda_cases.h"

#include "evenkeel/device.h"
#include "evenkeel/precision.h"

static const int64_t no_dims[1] = {0}; /* of a scalar */
static const int64_t shapes[][4] = {{2, 5, 3, 4},   {3, 20, 1, 33}, {1, 1, 1, 1},
                                    {40, 10, 1, 1}, {5, 6, 4, 16},  {2, 0, 3, 4}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static twin values(twin x, unsigned seed)
{
    if (ek_dtype_is_floating(x.host->dtype))
        return twin_uniform(x, -2, 2, seed);
    return twin_integers(x, 0, 200, seed);
}

typedef int selecting(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                      const ek_tensor *index);

/* Of one call on both sides, the first within (0, 1, 2 or 3): index_select, index_add, gather,
 * scatter_add. */
static selecting *kernel(const ek_kernels *kernels, int which)
{
    selecting *const all[] = {kernels->index_select, kernels->index_add, kernels->gather,
                              kernels->scatter_add};
    return all[which];
}

static void check(int which, ek_dtype dtype, int s, int dim, int layout, int64_t count)
{
    bool is_list = which < 2, adds = which % 2;
    int64_t size = shapes[s][dim], part[4];
    memcpy(part, shapes[s], sizeof part);
    part[dim] = size > 0 ? count : 0;
    if (!is_list && layout % 2)
        for (int d = 0; d < 4; d++)
            if (d != dim && part[d] > 1)
                part[d]--; /* index may be smaller */
    twin whole = twin_new(dtype, 4, shapes[s], (twin_layout)layout);
    twin some = twin_new(dtype, 4, part, (twin_layout)((layout + s) % TWIN_LAYOUTS));
    twin index = is_list ? twin_new(EK_I64, 1, &part[dim], TWIN_GAPS)
                         : twin_new(EK_I64, 4, part, (twin_layout)((layout + dim) % TWIN_LAYOUTS));
    twin_integers(index, 0, size > 0 ? size - 1 : 0, 3);
    twin from = values(adds ? some : whole, 4), to = adds ? whole : some;
    assert_ok(kernel(twin_host(), which)(twin_dev(EK_HOST), to.host, from.host, dim, index.host));
    assert_ok(kernel(twin_cuda(), which)(twin_dev(EK_CUDA), to.cuda, from.cuda, dim, index.cuda));
    char what[96];
    snprintf(what, sizeof what, "kernel %d, shape %d, dimension %d, layout %d", which, s, dim,
             layout);
    if (adds && !ek_deterministic())
        twin_close(to, 0, (double)count * (dtype == EK_F32 ? 3e-7 : 1e-15), what);
    else
        twin_same(to, what); /* additions in the host's order */
}

TEST_LOOP(selected, 0, EK_DTYPES)
{
    for (int s = 0; s < SHAPES; s++)
        for (int dim = 0; dim < 4; dim++)
            for (int l = 0; l < TWIN_LAYOUTS; l++)
                for (int which = 0; which < 4; which += 2) {
                    ek_scope scope = ek_scope_begin();
                    check(which, (ek_dtype)_i, s, dim, l, l == 5 ? 0 : 7);
                    ek_scope_end(&scope);
                }
}

TEST_LOOP(added, 0, 4)
{
    ek_use_deterministic_algorithms(_i >= 2);
    for (int s = 0; s < SHAPES; s++)
        for (int dim = 0; dim < 4; dim++)
            for (int l = 0; l < TWIN_LAYOUTS; l++)
                for (int which = 1; which < 4; which += 2) {
                    ek_scope scope = ek_scope_begin();
                    check(which, _i % 2 ? EK_F64 : EK_F32, s, dim, l, l == 5 ? 0 : 23);
                    ek_scope_end(&scope);
                }
}

TEST(scalars_and_dtypes)
{
    const int64_t one[] = {1}, three[] = {3};
    twin x = values(twin_new(EK_F32, 0, no_dims, TWIN_ROWS), 1);
    twin y = twin_new(EK_F32, 0, no_dims, TWIN_ROWS);
    twin index = twin_integers(twin_new(EK_I64, 1, one, TWIN_ROWS), 0, 0, 1);
    for (int deterministic = 0; deterministic < 2; deterministic++)
        for (int which = 0; which < 2; which++) {
            ek_use_deterministic_algorithms(deterministic);
            assert_ok(kernel(twin_host(), which)(twin_dev(EK_HOST), y.host, x.host, 0, index.host));
            assert_ok(kernel(twin_cuda(), which)(twin_dev(EK_CUDA), y.cuda, x.cuda, 0, index.cuda));
            twin_same(y, "a scalar");
        }
    twin coarse = values(twin_new(EK_BF16, 1, three, TWIN_ROWS), 1);
    twin sum = twin_new(EK_BF16, 1, three, TWIN_ROWS);
    twin at = twin_integers(twin_new(EK_I64, 1, three, TWIN_ROWS), 0, 2, 1);
    assert_refused(twin_cuda()->index_add(twin_dev(EK_CUDA), sum.cuda, coarse.cuda, 0, at.cuda),
                   EK_E_DTYPE, "take f32 or f64, not bf16");
}

/* The kernel's error comes with a later call; what is in range is done, and the device goes on. */
TEST(out_of_range)
{
    const int64_t shape[] = {4, 3};
    static const char *const names[] = {"index_select", "index_add", "gather", "scatter_add"};
    for (int round = 0; round < 8; round++) {
        int which = round % 4;
        ek_use_deterministic_algorithms(round >= 4);
        twin x = values(twin_new(EK_F32, 2, shape, TWIN_ROWS), 1);
        twin y = twin_new(EK_F32, 2, shape, TWIN_ROWS);
        twin index = which < 2 ? twin_new(EK_I64, 1, shape, TWIN_ROWS)
                               : twin_new(EK_I64, 2, shape, TWIN_ROWS);
        twin_integers(index, 0, 3, 2);
        case_set(index.host, 2, round % 2 ? -3 : 4);
        twin_push(index);
        assert_ok(kernel(twin_cuda(), which)(twin_dev(EK_CUDA), y.cuda, x.cuda, 0, index.cuda));
        assert_refused(ek_synchronize(ek_cuda(0)), EK_E_INVALID,
                       round % 2 ? "index -3 is out of range for a dimension of size 4"
                                 : "index 4 is out of range for a dimension of size 4");
        ck_assert_int_eq(ek_synchronize(ek_cuda(0)), 0);
        case_set(index.host, 2, 0);
        twin_push(index);
        assert_ok(kernel(twin_host(), which)(twin_dev(EK_HOST), y.host, x.host, 0, index.host));
        assert_ok(kernel(twin_cuda(), which)(twin_dev(EK_CUDA), y.cuda, x.cuda, 0, index.cuda));
        twin_close(y, 0, 1e-6, names[which]);
        assert_ok(ek_synchronize(ek_cuda(0)));
    }
}
