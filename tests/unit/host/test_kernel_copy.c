/* Fill and copy: the host's against what they are to give, the GPU's against the host's. */
#include "twin.h"

static void run_copy(twin to, twin from, const char *what)
{
    twin_run(copy, ON(to), ON(from));
    twin_same(to, what);
}

static void run_fill(twin t, double value, const char *what)
{
    twin_run(fill, ON(t), value);
    twin_same(t, what);
}

/* Whole numbers and halves, negative ones where the dtype has them. */
static twin numbered(twin t)
{
    ek_dtype dtype = t.host->dtype;
    for (int64_t i = 0; i < ek_count(t.host); i++)
        case_set(t.host, i,
                 dtype == EK_BOOL ? (double)(i * 31 % 3 == 0)
                                  : (double)(i * 31 % 113) - (dtype == EK_U8 ? 0 : 40) +
                                        (ek_dtype_is_floating(dtype) ? 0.5 : 0));
    twin_push(t);
    return t;
}

/* All pairs of dtypes; rows of odd and even lengths, tiles that are full and that aren't. */
TEST_LOOP(every_dtype_and_layout, 0, (EK_DTYPES * EK_DTYPES))
{
    static const int64_t shapes[][4] = {{2, 3, 5, 7},   {2, 40, 3, 37}, {1, 16, 4, 8},
                                        {1, 3, 33, 65}, {3, 2, 45, 2},  {3, 2, 2, 37},
                                        {3, 1, 0, 2},   {1, 1, 1, 1}};
    ek_dtype from = (ek_dtype)(_i % EK_DTYPES), to = (ek_dtype)(_i / EK_DTYPES);
    for (int s = 0; s < 8; s++)
        for (int l = 0; l < TWIN_LAYOUTS * TWIN_LAYOUTS; l++) {
            ek_scope scope = ek_scope_begin();
            char what[120];
            int a = l % TWIN_LAYOUTS, b = l / TWIN_LAYOUTS;
            snprintf(what, sizeof what, "copy from %s, shape %d, layouts %d to %d",
                     ek_dtype_name(from), s, a, b);
            twin x = numbered(twin_new(from, 4, shapes[s], (twin_layout)a));
            twin y = twin_new(to, 4, shapes[s], (twin_layout)b);
            run_copy(y, x, what);
            for (int64_t i = 0; i < ek_count(x.host); i++) {
                double value = case_get(x.host, i);
                if (to != EK_U8 || value >= 0)
                    case_must(case_get(y.host, i) == (ek_dtype_is_floating(to) ? value
                                                      : to == EK_BOOL          ? value != 0
                                                                               : trunc(value)));
            }
            ek_scope_end(&scope);
        }
}

/* Biases and such: the source repeats. */
TEST(repeated)
{
    static const int64_t dims[] = {3, 16, 4, 12};
    for (int d = 0; d < EK_DTYPES; d++)
        for (unsigned mask = 0; mask < 16; mask++)
            for (int l = 0; l < TWIN_LAYOUTS; l++) {
                ek_scope scope = ek_scope_begin();
                twin x =
                    twin_repeat(numbered(twin_new((ek_dtype)d, 4, dims, (twin_layout)l)), mask);
                run_copy(twin_new((ek_dtype)d, 4, dims, TWIN_ROWS), x, "repeated");
                run_copy(twin_new((ek_dtype)d, 4, dims, TWIN_LAST), x, "repeated, channels last");
                run_copy(twin_new(d ? EK_F32 : EK_BF16, 4, dims, TWIN_LAST), x, "converted");
                ek_scope_end(&scope);
            }
}

/* Every other element, and parts, without the last: what ek_slice makes. */
TEST(parts)
{
    static const int64_t dims[] = {6, 8, 9};
    for (int d = 0; d < EK_DTYPES; d++)
        for (int64_t step = 1; step <= 3; step++)
            for (int dim = 0; dim < 3; dim++)
                for (int64_t start = 0; start < 3; start++) {
                    ek_scope scope = ek_scope_begin();
                    twin whole = numbered(twin_new((ek_dtype)d, 3, dims, TWIN_ROWS));
                    int64_t shape[3], stride[3];
                    for (int k = 0; k < 3; k++) {
                        shape[k] = k == dim ? (dims[k] - start + step - 2) / step : dims[k];
                        stride[k] = whole.host->stride[k] * (k == dim ? step : 1);
                    }
                    int64_t offset = start * whole.host->stride[dim];
                    twin part = twin_view(whole, 3, shape, stride, offset);
                    run_copy(twin_new((ek_dtype)d, 3, shape, TWIN_ROWS), part, "out of a part");
                    twin back = numbered(twin_new((ek_dtype)d, 3, shape, TWIN_SWAPPED));
                    run_copy(part, back, "into a part");
                    run_fill(part, 3, "fill of a part");
                    ek_scope_end(&scope);
                }
}

TEST(conversions_of_special_values)
{
    static const double values[] = {(double)NAN,
                                    (double)INFINITY,
                                    -(double)INFINITY,
                                    -0.0,
                                    1e-40,
                                    3.3895314e38,
                                    1e30,
                                    -1e19,
                                    255.9,
                                    256,
                                    -1.5,
                                    4294967296.5,
                                    1.00390625,
                                    1.01171875,
                                    0.1,
                                    16777217};
    const int64_t dims[] = {16};
    for (int pair = 0; pair < EK_DTYPES * EK_DTYPES; pair++) {
        twin x = twin_new((ek_dtype)(pair % EK_DTYPES), 1, dims, TWIN_ROWS);
        if (ek_dtype_is_floating(x.host->dtype))
            twin_set(x, values);
        else
            twin_integers(x, 0, 255, 1);
        run_copy(twin_new((ek_dtype)(pair / EK_DTYPES), 1, dims, TWIN_ROWS), x, "special values");
        run_copy(twin_new((ek_dtype)(pair / EK_DTYPES), 1, dims, TWIN_GAPS), x, "special values");
    }
    twin big = twin_new(EK_I64, 1, dims, TWIN_ROWS);
    for (int i = 0; i < 16; i++)
        ((int64_t *)ek_tensor_address(big.host))[i] = (i % 2 ? -1 : 1) * ((INT64_MAX >> i) - i);
    twin_push(big);
    for (int d = 0; d < EK_DTYPES; d++)
        run_copy(twin_new((ek_dtype)d, 1, dims, TWIN_ROWS), big, "large integers");
}

/* Halfway cases go to even; NaN with a payload in the lower half stays NaN: to the bit. */
TEST(rounding_to_bf16)
{
    const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001,
                             0x7f800001, 0xff7fffff, 0x7f800000};
    const int64_t dims[] = {6};
    twin x = twin_new(EK_F32, 1, dims, TWIN_ROWS), y = twin_new(EK_BF16, 1, dims, TWIN_ROWS);
    memcpy(ek_tensor_address(x.host), bits, sizeof bits);
    twin_push(x);
    run_copy(y, x, "rounding");
    const uint16_t wanted[] = {0x3f80, 0x3f82, 0x3f81, 0x7fc0, 0xff80, 0x7f80};
    for (int side = 0; side < twin_sides(); side++)
        ck_assert_mem_eq(twin_bytes(y, side), wanted, sizeof wanted);
}

/* Copies of one dtype keep all bits, those of a NaN too. */
TEST(bits_are_kept)
{
    const int64_t dims[] = {5, 24};
    for (int l = 0; l < TWIN_LAYOUTS; l++) {
        twin x = twin_new(EK_F32, 2, dims, (twin_layout)l),
             y = twin_new(EK_F32, 2, dims, TWIN_ROWS);
        for (int64_t i = 0; i < 120; i++)
            ((uint32_t *)ek_tensor_address(x.host))[case_position(x.host, i)] =
                0x7f800001u + (uint32_t)i;
        twin_push(x);
        twin_run(copy, ON(y), ON(x));
        for (int side = 0; side < twin_sides(); side++) {
            const uint32_t *got = twin_bytes(y, side);
            for (uint32_t i = 0; i < 120; i++)
                case_must(got[i] == 0x7f800001u + i);
        }
    }
}

/* More tiles and units than a grid takes in one round. */
TEST(large)
{
    const int64_t picture[] = {1, 96, 31, 33}, rows[] = {300, 130};
    for (int d = 0; d < EK_DTYPES; d++) {
        ek_scope scope = ek_scope_begin();
        twin x = numbered(twin_new((ek_dtype)d, 4, picture, TWIN_ROWS));
        run_copy(twin_new((ek_dtype)d, 4, picture, TWIN_LAST), x, "to channels last");
        twin y = numbered(twin_new((ek_dtype)d, 4, picture, TWIN_LAST));
        run_copy(twin_new((ek_dtype)d, 4, picture, TWIN_ROWS), y, "from channels last");
        twin z = numbered(twin_new((ek_dtype)d, 2, rows, TWIN_GAPS));
        run_copy(twin_new((ek_dtype)d, 2, rows, TWIN_ROWS), z, "out of rows with gaps");
        run_fill(z, -7, "fill of rows with gaps");
        ek_scope_end(&scope);
    }
}

TEST(into_itself)
{
    const int64_t dims[] = {3, 4};
    for (int l = 0; l < TWIN_LAYOUTS; l++) {
        twin x = numbered(twin_new(EK_F32, 2, dims, (twin_layout)l));
        run_copy(x, x, "into itself");
    }
}

TEST(filling)
{
    static const int64_t shapes[][4] = {{2, 3, 5, 7}, {2, 16, 4, 8}, {1, 1, 1, 1},
                                        {1, 1, 1, 3}, {3, 1, 0, 2},  {3, 16, 20, 73}};
    static const double values[] = {0, -0.0, 1, 3.5, 257, -1, 1e10, (double)NAN, -(double)INFINITY};
    for (int d = 0; d < EK_DTYPES; d++)
        for (int v = 0; v < 9; v++)
            for (int s = 0; s < (v < 2 ? 6 : 5); s++)
                for (int l = 0; l < TWIN_LAYOUTS; l++) {
                    ek_scope scope = ek_scope_begin();
                    char what[120];
                    snprintf(what, sizeof what, "fill with %g, shape %d, layout %d", values[v], s,
                             l);
                    twin x = twin_new((ek_dtype)d, 4, shapes[s], (twin_layout)l);
                    run_fill(x, values[v], what);
                    double wanted = d == EK_BOOL                        ? values[v] != 0
                                    : ek_dtype_is_floating((ek_dtype)d) ? values[v]
                                                                        : trunc(values[v]);
                    for (int64_t i = 0; i < ek_count(x.host) && v < 4; i++)
                        case_must(case_get(x.host, i) == wanted);
                    ek_scope_end(&scope);
                }
    ek_shape none = ek_scalar_shape();
    ek_tensor *scalar = ek_tensor_new(twin_dev(EK_HOST), EK_F64, &none, EK_CONTIGUOUS);
    assert_made(scalar);
    memset(ek_tensor_address(scalar), 0, sizeof(double));
    twin x = twin_of(scalar);
    run_fill(x, 7, "a scalar");
    twin_run(unary, EK_UNARY_SQUARE, ON(x), ON(x), 0, 0);
    case_must(case_get(x.host, 0) == 49);
}
