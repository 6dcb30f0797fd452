/* Numbers that meet tensors of integers: those that the dtype holds count exactly, others are
 * refused. */
#include "home.h"

static ek_tensor *integers(ek_dtype dtype)
{
    return tensor_of((const double[]){7, 200, 0}, EK_SHAPE(3), dtype, test_home());
}

typedef ek_tensor *with_number(ek_tensor *x, double number);

static ek_tensor *add_scaled(ek_tensor *x, double number)
{
    return ek_add_scaled(x, x, number);
}

static ek_tensor *add_scaled_(ek_tensor *x, double number)
{
    return ek_add_scaled_(x, integers(ek_tensor_dtype(x)), number);
}

static ek_tensor *clamp_low(ek_tensor *x, double number)
{
    return ek_clamp(x, number, 250);
}

static ek_tensor *clamp_high(ek_tensor *x, double number)
{
    return ek_clamp(x, 0, number);
}

static ek_tensor *full(ek_tensor *x, double number)
{
    return ek_full(number, EK_SHAPE(2), ek_tensor_dtype(x));
}

static ek_tensor *scalar(ek_tensor *x, double number)
{
    return ek_scalar(number, ek_tensor_dtype(x), test_home());
}

static const struct {
    const char *name, *number;
    with_number *function;
} functions[] = {
    {"add_scalar", "c", ek_add_scalar},   {"mul_scalar", "c", ek_mul_scalar},
    {"mul_scalar_", "c", ek_mul_scalar_}, {"fill_", "the value", ek_fill_},
    {"add_scaled", "alpha", add_scaled},  {"add_", "alpha", add_scaled_},
    {"clamp", "low", clamp_low},          {"clamp", "high", clamp_high},
    {"full", "the value", full},          {"full", "the value", scalar},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

TEST(fractions_are_refused)
{
    static const struct {
        double number;
        const char *text;
    } fractions[] = {{0.5, "0.5"},
                     {1 / 255., "0.0039215686274509803"},
                     {1e-300, "1e-300"},
                     {100.25, "100.25"}};
    for (int f = 0; f < FUNCTIONS; f++)
        for (int d = 0; d < 2; d++)
            for (int i = 0; i < 4; i++) {
                ek_dtype dtype = d ? EK_U8 : EK_I64;
                ek_tensor *x = integers(dtype);
                uint64_t version = ek_tensor_version(x);
                char wanted[160];
                snprintf(wanted, sizeof wanted, "%s: %s is %s, but %s holds whole numbers",
                         functions[f].name, functions[f].number, fractions[i].text,
                         ek_dtype_name(dtype));
                ck_assert_msg(!functions[f].function(x, fractions[i].number), "%s took %s",
                              functions[f].name, fractions[i].text);
                ck_assert_ptr_nonnull(strstr(ek_error_message(), "ek_to_dtype first"));
                assert_error(EK_E_DTYPE, wanted);
                assert_close(x, integers(dtype), 0, 0);
                ck_assert_uint_eq(ek_tensor_version(x), version);
            }
}

TEST(numbers_out_of_range_are_refused)
{
    static const double beyond_u8[] = {-1, 256, 1e300, NAN}, beyond_i64[] = {0x1p63, -1e19, NAN};
    for (int f = 0; f < FUNCTIONS; f++) {
        /* An end that no element reaches bounds nothing. */
        bool low = functions[f].function == clamp_low, high = functions[f].function == clamp_high;
        for (int i = 0; i < 4; i++) {
            if ((low && beyond_u8[i] < 0) || (high && beyond_u8[i] > 255))
                continue;
            assert_refused(functions[f].function(integers(EK_U8), beyond_u8[i]), EK_E_DTYPE,
                           "but u8 holds whole numbers from 0 to 255; convert with");
        }
        for (int i = 0; i < 3; i++) {
            if ((low && beyond_i64[i] < 0) || (high && beyond_i64[i] > 0))
                continue;
            assert_refused(functions[f].function(integers(EK_I64), beyond_i64[i]), EK_E_DTYPE,
                           "but i64 holds whole numbers from -2^63 to 2^63 - 1");
        }
        if (!low && !high) {
            assert_refused(functions[f].function(integers(EK_I64), (double)INFINITY), EK_E_DTYPE,
                           "is inf, but i64 holds");
        }
    }
    assert_made(ek_arange(256, EK_U8, test_home()));
    assert_refused(ek_arange(257, EK_U8, test_home()), EK_E_DTYPE,
                   "arange: the last number is 256, but u8 holds");
}

TEST(whole_numbers_count)
{
    ek_tensor *i64 = integers(EK_I64), *u8 = integers(EK_U8);
    assert_close(ek_mul_scalar(i64, -2),
                 tensor_of((const double[]){-14, -400, 0}, EK_SHAPE(3), EK_I64, test_home()), 0, 0);
    assert_close(ek_add_scalar(u8, 50),
                 tensor_of((const double[]){57, 250, 50}, EK_SHAPE(3), EK_U8, test_home()), 0, 0);
    assert_close(ek_add_scaled(i64, i64, -1), ek_zeros(EK_SHAPE(3), EK_I64), 0, 0);
    assert_close(ek_sub(u8, u8), ek_zeros(EK_SHAPE(3), EK_U8), 0, 0);
    assert_close(ek_clamp(u8, 7, 100),
                 tensor_of((const double[]){7, 100, 7}, EK_SHAPE(3), EK_U8, test_home()), 0, 0);
    assert_close(ek_clamp(u8, -(double)INFINITY, 300), u8, 0, 0);
    assert_close(ek_fill_(u8, 255), ek_full(255, EK_SHAPE(3), EK_U8), 0, 0);
    assert_made(ek_mul_scalar(ek_to_dtype(u8, EK_F32), 1 / 255.));
}

static void assert_i64(ek_tensor *x, int64_t wanted)
{
    int64_t value;
    assert_made(x);
    assert_ok(ek_to_data(x, &value, sizeof value));
    ck_assert_int_eq(value, wanted);
}

/* What the double is counts; i64 that no double holds are not touched. */
TEST(beyond_doubles)
{
    const int64_t odd = (1LL << 53) + 1, least = INT64_MIN, most = INT64_MAX;
    ek_tensor *x = ek_from_data(&odd, ek_scalar_shape(), EK_I64);
    assert_i64(ek_scalar(0x1p62 + 0x1p10, EK_I64, test_home()), (1LL << 62) + (1LL << 10));
    assert_i64(ek_scalar(-0x1p63, EK_I64, test_home()), INT64_MIN);
    assert_i64(ek_add_scalar(x, 0x1p53), (1LL << 54) + 1);
    assert_i64(ek_mul_scalar(x, 3), 3 * odd);
    assert_i64(ek_clamp(x, 0, 0x1p53), 1LL << 53);
    assert_i64(ek_clamp(x, 0x1p53 + 2, 0x1p60), odd + 1);
    assert_i64(ek_clamp(x, -(double)INFINITY, (double)INFINITY), odd);
    assert_i64(ek_clamp(ek_from_data(&most, ek_scalar_shape(), EK_I64), -0x1p63, 0x1p63), most);
    assert_i64(ek_clamp(ek_from_data(&least, ek_scalar_shape(), EK_I64), -0x1p63, 0), least);
}

/* A target that no double holds is ignored in derivatives of every order. */
TEST(ignored_index_beyond_doubles)
{
    const int64_t ignored = (1LL << 53) + 1, targets[] = {0, ignored, 1};
    ek_tensor *target = ek_from_data(targets, EK_SHAPE(3), EK_I64);
    ck_assert(element(ek_target_weight(target, NULL, ignored, EK_F64), 0) == 2);
    ek_tensor *x = ek_zeros(EK_SHAPE(3, 2), EK_F64, .requires_grad = true);
    ek_tensor *loss = ek_f_cross_entropy(x, target, .ignore_index = ignored, .reduction = EK_SUM);
    ek_tensor *first = NULL, *second = NULL;
    assert_made(loss);
    ck_assert_double_eq_tol(element(loss, 0), 2 * log(2), 1e-15);
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &first, .create_graph = true));
    ek_tensor *chosen = ek_sum(ek_select(first, 1, 0));
    assert_ok(ek_grad(.outputs = &chosen, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &second));
    const double curvature[] = {0.25, -0.25, 0, 0, 0.25, -0.25};
    assert_close(second, tensor_of(curvature, EK_SHAPE(3, 2), EK_F64, test_home()), 0, 1e-15);
}
