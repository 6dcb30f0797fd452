/* Indexing kernels against loops. */
#include "host/host.h"
#include "host_cases.h"

static const int64_t dims[] = {3, 6, 4, 5};
enum { PICKED = 7 };

/* Row-major position i of a tensor as one index per dimension. */
static void unravel(const ek_tensor *x, int64_t i, int64_t at[4])
{
    for (int d = 3; d >= 0; d--) {
        at[d] = i % x->shape[d];
        i /= x->shape[d];
    }
}

static int64_t ravel(const ek_tensor *x, const int64_t at[4])
{
    int64_t i = 0;
    for (int d = 0; d < 4; d++)
        i = i * x->shape[d] + at[d];
    return i;
}

static ek_tensor *vector_of_indices(ek_dev *dev, int64_t size)
{
    ek_tensor *index = case_tensor(dev, EK_I64, 1, (const int64_t[]){PICKED}, CASE_GAPS);
    for (int i = 0; i < PICKED; i++)
        case_set(index, i, (double)(i * 5 % size));
    return index;
}

TEST(select_and_add)
{
    ek_dev *dev = case_device(2);
    for (int dtype = 0; dtype < EK_DTYPES; dtype++)
        for (int dim = 0; dim < 4; dim++)
            for (int l = 0; l < 9; l++) {
                ek_scope scope = ek_scope_begin();
                int64_t picked[4];
                memcpy(picked, dims, sizeof picked);
                picked[dim] = PICKED;
                ek_tensor *x = case_tensor(dev, (ek_dtype)dtype, 4, dims, (case_layout)(l % 3));
                ek_tensor *y = case_tensor(dev, (ek_dtype)dtype, 4, picked, (case_layout)(l / 3));
                ek_tensor *index = vector_of_indices(dev, dims[dim]);
                for (int64_t i = 0; i < ek_count(x); i++)
                    case_set(x, i, (double)(i % 251));
                assert_ok(ek_host_index_select(dev, y, x, dim, index));
                double *want = case_zeros(ek_count(x));
                for (int64_t i = 0; i < ek_count(y); i++) {
                    int64_t at[4];
                    unravel(y, i, at);
                    at[dim] = (int64_t)case_get(index, at[dim]);
                    case_must(case_get(y, i) == case_get(x, ravel(x, at)));
                    want[ravel(x, at)] += case_get(y, i);
                }
                if (dtype <= EK_F64) {
                    case_poison(x);
                    assert_ok(ek_host_index_add(dev, x, y, dim, index));
                    for (int64_t i = 0; i < ek_count(x); i++)
                        case_must(case_get(x, i) == want[i]);
                }
                free(want);
                ek_scope_end(&scope);
            }
}

TEST(gather_and_scatter)
{
    ek_dev *dev = case_device(2);
    for (int dtype = 0; dtype < EK_DTYPES; dtype++)
        for (int dim = 0; dim < 4; dim++)
            for (int l = 0; l < 9; l++) {
                ek_scope scope = ek_scope_begin();
                int64_t part[4];
                for (int d = 0; d < 4; d++)
                    part[d] = d == dim ? PICKED : dims[d] - 1;
                ek_tensor *x = case_tensor(dev, (ek_dtype)dtype, 4, dims, (case_layout)(l % 3));
                ek_tensor *y = case_tensor(dev, (ek_dtype)dtype, 4, part, (case_layout)(l / 3));
                ek_tensor *index = case_tensor(dev, EK_I64, 4, part, (case_layout)(l % 2));
                for (int64_t i = 0; i < ek_count(x); i++)
                    case_set(x, i, (double)(i % 251));
                for (int64_t i = 0; i < ek_count(index); i++)
                    case_set(index, i, (double)(i * 11 % dims[dim]));
                assert_ok(ek_host_gather(dev, y, x, dim, index));
                double *want = case_zeros(ek_count(x));
                for (int64_t i = 0; i < ek_count(y); i++) {
                    int64_t at[4];
                    unravel(y, i, at);
                    at[dim] = (int64_t)case_get(index, i);
                    case_must(case_get(y, i) == case_get(x, ravel(x, at)));
                    want[ravel(x, at)] += case_get(y, i);
                }
                if (dtype <= EK_F64) {
                    case_poison(x);
                    assert_ok(ek_host_scatter_add(dev, x, y, dim, index));
                    for (int64_t i = 0; i < ek_count(x); i++)
                        case_must(case_get(x, i) == want[i]);
                }
                free(want);
                ek_scope_end(&scope);
            }
}

TEST(out_of_range)
{
    ek_dev *dev = case_device(1);
    ek_tensor *x = case_tensor(dev, EK_F32, 4, dims, CASE_ROWS);
    ek_tensor *y = case_tensor(dev, EK_F32, 4, (const int64_t[]){3, PICKED, 4, 5}, CASE_ROWS);
    ek_tensor *index = vector_of_indices(dev, 6);
    case_set(index, 4, 6);
    assert_refused(ek_host_index_select(dev, y, x, 1, index), EK_E_INVALID,
                   "index 6 at position 4 is out of range for dimension 1 of size 6");
    case_set(index, 4, -1);
    assert_refused(ek_host_index_add(dev, x, y, 1, index), EK_E_INVALID, "index -1 at position 4");
    ek_tensor *full = case_tensor(dev, EK_I64, 4, y->shape, CASE_LAST);
    assert_ok(ek_host_fill(dev, full, 0));
    case_set(full, 31, 9);
    assert_refused(ek_host_gather(dev, y, x, 1, full), EK_E_INVALID, "index 9 at position 31");
    assert_refused(ek_host_scatter_add(dev, x, y, 1, full), EK_E_INVALID, "index 9 at position 31");
    ek_tensor *bytes = case_tensor(dev, EK_U8, 4, dims, CASE_ROWS);
    assert_refused(ek_host_index_add(dev, bytes, bytes, 1, index), EK_E_DTYPE, "f32 or f64");
}

TEST(empty)
{
    ek_dev *dev = case_device(1);
    ek_tensor *x = case_tensor(dev, EK_F32, 2, (const int64_t[]){4, 3}, CASE_ROWS);
    ek_tensor *y = case_tensor(dev, EK_F32, 2, (const int64_t[]){0, 3}, CASE_ROWS);
    ek_tensor *index = case_tensor(dev, EK_I64, 1, (const int64_t[]){0}, CASE_ROWS);
    assert_ok(ek_host_index_select(dev, y, x, 0, index));
    assert_ok(ek_host_index_add(dev, x, y, 0, index));
    for (int i = 0; i < 12; i++)
        case_must(case_get(x, i) == 0);
}

/* Additions that meet keep their order whatever the threads: rounding would show it. */
TEST(threads)
{
    ek_tensor *out[2][2];
    const int64_t wide[] = {4000, 17}, narrow[] = {5, 17};
    for (int t = 0; t < 2; t++) {
        ek_dev *dev = case_device(t + 1);
        ek_tensor *x = case_tensor(dev, EK_F32, 2, wide, CASE_ROWS);
        ek_tensor *index = case_tensor(dev, EK_I64, 1, wide, CASE_ROWS);
        ek_tensor *full = case_tensor(dev, EK_I64, 2, wide, CASE_ROWS);
        case_fill(x, 5);
        assert_ok(ek_host_unary(dev, EK_UNARY_EXP, x, x, 0, 0));
        for (int i = 0; i < 4000; i++)
            case_set(index, i, i * 3 % 5);
        for (int64_t i = 0; i < ek_count(full); i++)
            case_set(full, i, (double)(i * 7 % 5));
        for (int k = 0; k < 2; k++)
            out[t][k] = case_tensor(dev, EK_F32, 2, narrow, CASE_ROWS);
        assert_ok(ek_host_index_add(dev, out[t][0], x, 0, index));
        assert_ok(ek_host_scatter_add(dev, out[t][1], x, 0, full));
    }
    case_same(out[0][0], out[1][0], "index_add on one and two threads");
    case_same(out[0][1], out[1][1], "scatter_add on one and two threads");
}
