/* Dtypes: conversions between all of them against PyTorch's, f16 to the bit, bool as PyTorch has
 * it, i32 as an index. */
#include "core/bits.h"
#include "core/tensor.h"

#include "home.h"

#define DTYPES_GOLDEN "dtypes.golden"

static ek_tensor *stored(const char *group, const char *part, const char *to)
{
    char name[80];
    snprintf(name, sizeof name, "%s/%s%s", group, part, to);
    return golden(DTYPES_GOLDEN, name);
}

/* Equal elements; NaN is NaN, and zeros have signs. */
static void assert_same_numbers(const ek_tensor *a, const ek_tensor *b, const char *what)
{
    assert_made(a);
    ck_assert_msg(ek_tensor_dtype(a) == ek_tensor_dtype(b), "%s", what);
    int64_t count = ek_tensor_count(a);
    size_t size = ek_dtype_size(ek_tensor_dtype(a));
    char *rows_a = malloc((size_t)count * size), *rows_b = malloc((size_t)count * size);
    assert_ok(ek_to_data(a, rows_a, (size_t)count * size));
    assert_ok(ek_to_data(b, rows_b, (size_t)count * size));
    for (int64_t i = 0; i < count; i++) {
        const char *at_a = rows_a + (size_t)i * size, *at_b = rows_b + (size_t)i * size;
        double x = ek_element_double(at_a, a->dtype), y = ek_element_double(at_b, b->dtype);
        if (isnan(y) ? !isnan(x) : memcmp(at_a, at_b, size) != 0)
            ck_abort_msg("%s, element %lld: %.17g, not %.17g", what, (long long)i, x, y);
    }
    free(rows_a);
    free(rows_b);
}

static void assert_conversion(const char *group, ek_dtype to, bool required)
{
    char what[80];
    snprintf(what, sizeof what, "%s/to/%s", group, ek_dtype_name(to));
    if (!required && !golden_has(DTYPES_GOLDEN, what))
        return;
    ek_tensor *from = stored(group, "from", ""), *wanted = golden(DTYPES_GOLDEN, what);
    assert_same_numbers(ek_to_dtype(from, to), wanted, what);
    /* Also of elements that don't follow each other, and of a layout that vectors can't take. */
    ek_tensor *every = ek_slice(from, 0, 1, ek_tensor_count(from), 2);
    ek_tensor *wanted_every = ek_slice(wanted, 0, 1, ek_tensor_count(from), 2);
    assert_same_numbers(ek_to_dtype(every, to), ek_clone(wanted_every), what);
}

TEST_LOOP(all_pairs, 0, (EK_DTYPES * EK_DTYPES))
{
    char edges[40];
    ek_dtype from = (ek_dtype)(_i / EK_DTYPES), to = (ek_dtype)(_i % EK_DTYPES);
    assert_conversion(ek_dtype_name(from), to, true);
    snprintf(edges, sizeof edges, "edges/%s", ek_dtype_name(from));
    assert_conversion(edges, to, false);
    if (from == EK_I64)
        assert_conversion("whole/i64", to, true);
}

/* ---- f16 ---- */

TEST(all_numbers_of_f16)
{
    enum { ALL = 65536 };
    static uint16_t halves[ALL], back[ALL];
    static float wide[ALL];
    static double wider[ALL];
    for (int i = 0; i < ALL; i++)
        halves[i] = (uint16_t)i;
    ek_tensor *x = ek_from_data(halves, EK_SHAPE(ALL), EK_F16), *y = ek_to_dtype(x, EK_F32);
    assert_ok(ek_to_data(y, wide, sizeof wide));
    assert_ok(ek_to_data(ek_to_dtype(x, EK_F64), wider, sizeof wider));
    assert_ok(ek_to_data(ek_to_dtype(y, EK_F16), back, sizeof back));
    for (int i = 0; i < ALL; i++) {
        double wanted = f16_value(halves[i]), host = (double)ek_float_of_f16(halves[i]);
        if (isnan(wanted)) {
            ck_assert(isnan(wide[i]) && isnan(wider[i]) && isnan(host));
            ck_assert(isnan(f16_value(back[i])) && isnan(f16_value(ek_f16_of(wide[i]))));
            continue;
        }
        ck_assert((double)wide[i] == wanted && wider[i] == wanted && host == wanted);
        ck_assert(!signbit(wide[i]) == !signbit(wanted));
        ck_assert_uint_eq(back[i], halves[i]);
        ck_assert_uint_eq(ek_f16_of((float)wanted), halves[i]);
    }
}

/* Between each two neighbours: the tie, and the numbers beside it. */
TEST(rounding_to_f16)
{
    for (unsigned i = 0; i < 0x7c00; i++) {
        double low = f16_value((uint16_t)i),
               high = i == 0x7bff ? 65536 : f16_value((uint16_t)(i + 1));
        float tie = (float)((low + high) / 2);
        uint16_t even = (uint16_t)(i + (i & 1));
        ck_assert_uint_eq(ek_f16_of(tie), even);
        ck_assert_uint_eq(ek_f16_of(nextafterf(tie, 0)), i);
        ck_assert_uint_eq(ek_f16_of(nextafterf(tie, INFINITY)), i + 1);
        ck_assert_uint_eq(ek_f16_of(-tie), even | 0x8000);
        ck_assert_uint_eq(f16_bits((double)tie), even);
    }
    ck_assert_uint_eq(ek_f16_of(3e38f), 0x7c00);
    ck_assert_uint_eq(ek_f16_of(-INFINITY), 0xfc00);
}

TEST(rounding_as_pytorch)
{
    ek_tensor *near = golden(DTYPES_GOLDEN, "near/f32"), *bits = golden(DTYPES_GOLDEN, "bits/f32");
    assert_same_numbers(ek_to_dtype(near, EK_F16), golden(DTYPES_GOLDEN, "near/f16"), "near");
    int64_t count = ek_tensor_count(bits);
    int32_t *words = malloc((size_t)count * sizeof *words);
    assert_ok(ek_to_data(bits, words, (size_t)count * sizeof *words));
    ek_tensor *x = ek_from_data(words, EK_SHAPE(count), EK_F32);
    assert_same_numbers(ek_to_dtype(x, EK_F16), golden(DTYPES_GOLDEN, "bits/f16"), "bits");
    free(words);
}

/* Sums that f16 can't hold don't spoil means. */
TEST(means_of_f16)
{
    ek_tensor *x = ek_full(60000, EK_SHAPE(7, 5), EK_F16, .requires_grad = true);
    ek_tensor *mean = ek_mean(x);
    ck_assert_int_eq(ek_tensor_dtype(mean), EK_F16);
    ck_assert(element(mean, 0) == 60000);
    assert_ok(ek_backward(mean));
    ck_assert_int_eq(ek_tensor_dtype(ek_tensor_grad(x)), EK_F16);
    ck_assert(element(ek_tensor_grad(x), 0) == f16_value(f16_bits(1 / 35.)));
    ek_tensor *logits = ek_zeros(EK_SHAPE(9000, 4), EK_F16),
              *minus = ek_full(-100, EK_SHAPE(9000, 1), EK_F16);
    ek_tensor *rows = ek_cat((ek_tensor *[]){minus, logits}, 2, 1);
    ek_tensor *loss = ek_f_cross_entropy(rows, ek_zeros(EK_SHAPE(9000), EK_I64));
    ck_assert(fabs(element(loss, 0) - (100 + log(4))) < 0.1);
    ck_assert_int_eq(ek_tensor_dtype(loss), EK_F16);
}

/* ---- bool ---- */

static ek_tensor *flags(const char *text)
{
    bool bytes[40];
    int64_t count = (int64_t)strlen(text);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = text[i] == '1';
    return ek_from_data(bytes, EK_SHAPE(count), EK_BOOL);
}

static void assert_flags(const ek_tensor *tensor, const char *wanted)
{
    assert_made(tensor);
    ck_assert_int_eq(ek_tensor_dtype(tensor), EK_BOOL);
    for (int64_t i = 0; i < (int64_t)strlen(wanted); i++)
        ck_assert_int_eq((int)element(tensor, i), wanted[i] == '1');
}

TEST(comparisons_are_bool)
{
    for (int d = 0; d < EK_BOOL; d++) {
        ek_dtype dtype = (ek_dtype)d;
        ek_tensor *x = tensor_of((const double[]){1, 2, 3}, EK_SHAPE(3), dtype, test_home());
        ek_tensor *y = tensor_of((const double[]){2, 2, 2}, EK_SHAPE(3), dtype, test_home());
        assert_flags(ek_lt(x, y), "100");
        assert_flags(ek_ge(x, y), "011");
        ek_tensor *condition = ek_eq(x, y), *bytes = ek_to_dtype(condition, EK_U8);
        assert_close(ek_where(condition, x, y), ek_where(bytes, x, y), 0, 0);
        ck_assert_int_eq(ek_tensor_dtype(bytes), EK_U8);
    }
    assert_flags(ek_eq(flags("0011"), flags("0101")), "1001");
    assert_flags(ek_lt(flags("0011"), flags("0101")), "0100");
    ek_tensor *x = ek_ones(EK_SHAPE(2));
    assert_refused(ek_where(ek_ones(EK_SHAPE(2), EK_I64), x, x), EK_E_DTYPE,
                   "where: the condition has dtype i64 and must have bool");
}

TEST(arithmetic_of_bool)
{
    ek_tensor *x = flags("0011"), *y = flags("0101");
    assert_flags(ek_add(x, y), "0111");
    assert_flags(ek_mul(x, y), "0001");
    assert_flags(ek_maximum(x, y), "0111");
    assert_flags(ek_minimum(x, y), "0001");
    assert_flags(ek_where(x, y, x), "0001");
    assert_close(ek_sum(x), ek_full(2, ek_scalar_shape(), EK_I64), 0, 0);
    assert_flags(ek_to_dtype(ek_full(NAN, EK_SHAPE(2)), EK_BOOL), "11");
    assert_flags(ek_to_dtype(ek_full(0.25, EK_SHAPE(2), EK_F16), EK_BOOL), "11");
    assert_flags(ek_full(1, EK_SHAPE(3), EK_BOOL), "111");
    assert_flags(ek_add_(x, y), "0111");
    assert_refused(ek_sub(x, y), EK_E_DTYPE,
                   "sub: x has dtype bool; convert it with ek_to_dtype first");
    assert_refused(ek_neg(x), EK_E_DTYPE, "neg: x has dtype bool; convert it");
    assert_refused(ek_div(x, y), EK_E_DTYPE, "div: x has dtype bool");
    assert_refused(ek_add_scalar(x, 1), EK_E_DTYPE, "add_scalar: x has dtype bool");
    assert_refused(ek_mul_scalar_(x, 0), EK_E_DTYPE, "mul_scalar_: x has dtype bool");
    assert_refused(ek_full(2, EK_SHAPE(2), EK_BOOL), EK_E_DTYPE, "but bool holds 0 and 1");
}

/* ---- i32 ---- */

TEST(indices_of_i32)
{
    ek_tensor *x =
        ek_to_dtype(ek_reshape(ek_arange(12, EK_I64, test_home()), EK_SHAPE(3, 4)), EK_F32);
    ek_tensor *rows = tensor_of((const double[]){2, 0}, EK_SHAPE(2), EK_I64, test_home());
    ek_tensor *index =
        tensor_of((const double[]){3, 0, 1, 1, 2, 2}, EK_SHAPE(3, 2), EK_I64, test_home());
    ek_tensor *targets = tensor_of((const double[]){3, 0, 1}, EK_SHAPE(3), EK_I64, test_home());
#define NARROW(tensor) ek_to_dtype(tensor, EK_I32)
    assert_close(ek_index_select(x, 0, NARROW(rows)), ek_index_select(x, 0, rows), 0, 0);
    assert_close(ek_gather_dim(x, 1, NARROW(index)), ek_gather_dim(x, 1, index), 0, 0);
    ek_tensor *part = ek_narrow(x, 1, 0, 2);
    assert_close(ek_scatter_add_dim(part, 1, NARROW(index), EK_SHAPE(3, 4)),
                 ek_scatter_add_dim(part, 1, index, EK_SHAPE(3, 4)), 0, 0);
    assert_close(ek_f_cross_entropy(x, NARROW(targets)), ek_f_cross_entropy(x, targets), 0, 0);
    assert_close(ek_f_nll_loss(x, NARROW(targets)), ek_f_nll_loss(x, targets), 0, 0);
    assert_refused(ek_index_select(x, 0, ek_to_dtype(rows, EK_U8)), EK_E_DTYPE,
                   "index has dtype u8 and must have i64");
    ek_tensor *narrow = NARROW(index);
    assert_close(ek_sum(narrow), ek_full(9, ek_scalar_shape(), EK_I64), 0, 0);
    assert_close(ek_to_dtype(ek_mul(narrow, ek_sub(narrow, ek_neg(narrow))), EK_I64),
                 ek_mul_scalar(ek_square(index), 2), 0, 0);
    assert_refused(ek_full(2147483648., EK_SHAPE(2), EK_I32), EK_E_DTYPE,
                   "but i32 holds whole numbers from -2^31 to 2^31 - 1");
}
