/* Selecting and adding at indices: the host's kernels against loops, the GPU's against the host's.
 */
#include "twin.h"

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

/* Row-major position i of `some`, with the index in place of its position along dim: one of
 * `whole`. */
static int64_t position_of(const ek_tensor *some, int64_t i, const ek_tensor *whole, int dim,
                           const ek_tensor *index)
{
    int64_t at[4], rest = i, position = 0;
    for (int d = 3; d >= 0; d--) {
        at[d] = rest % some->shape[d];
        rest /= some->shape[d];
    }
    at[dim] = (int64_t)case_get(index, index->ndim == 1 ? at[dim] : i);
    for (int d = 0; d < 4; d++)
        position = position * whole->shape[d] + at[d];
    return position;
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
    double *wanted = case_zeros(ek_count(to.host));
    for (int64_t i = 0; i < ek_count(some.host); i++) {
        int64_t at = position_of(some.host, i, whole.host, dim, index.host);
        wanted[adds ? at : i] += case_get(from.host, adds ? i : at);
    }
    for (int side = 0; side < twin_sides(); side++) {
        ek_dev *dev = twin_dev(side ? EK_CUDA : EK_HOST);
        assert_ok(kernel(dev->backend->kernels, which)(dev, ON(to), ON(from), dim, ON(index)));
    }
    char what[96];
    snprintf(what, sizeof what, "kernel %d, shape %d, dimension %d, layout %d", which, s, dim,
             layout);
    double rounding = (double)count * (dtype == EK_F32 ? 3e-7 : 1e-15);
    twin_expect(to, wanted, adds ? rounding : 0, what);
    if (adds && !ek_deterministic())
        twin_close(to, 0, rounding, what);
    else
        twin_same(to, what); /* additions in the host's order */
    free(wanted);
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
            for (int side = 0; side < twin_sides(); side++) {
                ek_dev *dev = twin_dev(side ? EK_CUDA : EK_HOST);
                assert_ok(kernel(dev->backend->kernels, which)(dev, ON(y), ON(x), 0, ON(index)));
            }
            case_must(case_get(y.host, 0) == case_get(x.host, 0));
            twin_same(y, "a scalar");
        }
    twin coarse = values(twin_new(EK_BF16, 1, three, TWIN_ROWS), 1);
    twin sum = twin_new(EK_BF16, 1, three, TWIN_ROWS);
    twin at = twin_integers(twin_new(EK_I64, 1, three, TWIN_ROWS), 0, 2, 1);
    twin_refused(EK_E_DTYPE, "f32 or f64", index_add, ON(sum), ON(coarse), 0, ON(at));
}

/* The host's call is refused, with the first position; the kernel's error comes with a later call
 * of the GPU's, what is in range is done, and the device goes on. */
TEST_LOOP(out_of_range, 0, 8)
{
    const int64_t shape[] = {4, 3};
    const int which = _i % 4, bad = _i % 2 ? -3 : 4;
    char at[80], later[80];
    ek_use_deterministic_algorithms(_i >= 4);
    twin x = values(twin_new(EK_F32, 2, shape, TWIN_ROWS), 1);
    twin y = twin_new(EK_F32, 2, shape, TWIN_ROWS);
    twin index = twin_new(EK_I64, which < 2 ? 1 : 2, shape, which < 2 ? TWIN_GAPS : TWIN_LAST);
    twin_integers(index, 0, 3, 2);
    case_set(index.host, 2, bad);
    twin_push(index);
    snprintf(at, sizeof at, "index %d at position 2 is out of range for dimension 0 of size 4",
             bad);
    snprintf(later, sizeof later, "index %d is out of range for a dimension of size 4", bad);
    if (which == 0)
        twin_refused_late(EK_E_INVALID, at, later, index_select, ON(y), ON(x), 0, ON(index));
    else if (which == 1)
        twin_refused_late(EK_E_INVALID, at, later, index_add, ON(y), ON(x), 0, ON(index));
    else if (which == 2)
        twin_refused_late(EK_E_INVALID, at, later, gather, ON(y), ON(x), 0, ON(index));
    else
        twin_refused_late(EK_E_INVALID, at, later, scatter_add, ON(y), ON(x), 0, ON(index));
    case_set(index.host, 2, 0);
    twin_push(index);
    for (int side = 0; side < twin_sides(); side++) {
        ek_dev *dev = twin_dev(side ? EK_CUDA : EK_HOST);
        assert_ok(kernel(dev->backend->kernels, which)(dev, ON(y), ON(x), 0, ON(index)));
    }
    twin_close(y, 0, 1e-6, "after an error");
}

TEST(empty)
{
    const int64_t full[] = {4, 3}, none[] = {0, 3};
    twin x = twin_new(EK_F32, 2, full, TWIN_ROWS), y = twin_new(EK_F32, 2, none, TWIN_ROWS);
    twin index = twin_new(EK_I64, 1, none, TWIN_ROWS);
    const double zeros[12] = {0};
    twin_run(index_select, ON(y), ON(x), 0, ON(index));
    twin_run(index_add, ON(x), ON(y), 0, ON(index));
    twin_expect(x, zeros, 0, "nothing was added");
    twin_same(x, "nothing was added");
}

/* Additions that meet keep their order whatever the threads: rounding would show it. */
TEST(repeats)
{
    const int64_t wide[] = {4000, 17}, narrow[] = {5, 17};
    twin x = twin_uniform(twin_new(EK_F32, 2, wide, TWIN_ROWS), -3, 3, 5);
    twin list = twin_integers(twin_new(EK_I64, 1, wide, TWIN_ROWS), 0, 4, 1);
    twin full = twin_integers(twin_new(EK_I64, 2, wide, TWIN_ROWS), 0, 4, 2);
    twin out = twin_new(EK_F32, 2, narrow, TWIN_ROWS);
    ek_use_deterministic_algorithms(true);
    twin_repeats(out, index_add, ON(out), ON(x), 0, ON(list));
    twin_repeats(out, scatter_add, ON(out), ON(x), 0, ON(full));
}
