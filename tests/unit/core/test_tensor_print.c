/* What ek_tensor_print writes. */
#include "unit.h"

static char *printed(const ek_tensor *tensor)
{
    char *text;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    assert_ok(ek_tensor_print(tensor, stream));
    fclose(stream);
    return text;
}

static void assert_printed(const ek_tensor *tensor, const char *wanted)
{
    char *text = printed(tensor);
    ck_assert_str_eq(text, wanted);
    free(text);
}

static ek_tensor *counted(ek_shape shape, ek_dtype dtype, double step)
{
    int64_t count = ek_shape_count(&shape);
    double *values = malloc((size_t)(count ? count : 1) * sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)i * step;
    ek_tensor *tensor = tensor_of(values, shape, dtype, ek_cpu());
    free(values);
    return tensor;
}

TEST(small_ones_stand_on_a_line)
{
    double value = 3.25;
    assert_printed(tensor_of(&value, ek_scalar_shape(), EK_BF16, ek_cpu()),
                   "bf16[] on cpu: 3.25\n");
    assert_printed(counted(EK_SHAPE(4), EK_F32, 0.5), "f32[4] on cpu: [0, 0.5, 1, 1.5]\n");
    assert_printed(ek_empty(EK_SHAPE(0)), "f32[0] on cpu: []\n");
    assert_printed(NULL, "NULL\n");
}

TEST(rows_are_rows)
{
    assert_printed(tensor_of((const double[]){1, 0, 0, 1}, EK_SHAPE(2, 2), EK_BOOL, ek_cpu()),
                   "bool[2, 2] on cpu:\n"
                   "[[ true, false],\n"
                   " [false,  true]]\n");
    assert_printed(counted(EK_SHAPE(3), EK_I32, -3), "i32[3] on cpu: [0, -3, -6]\n");
    assert_printed(counted(EK_SHAPE(3), EK_F16, 0.1),
                   "f16[3] on cpu: [0, 0.09997559, 0.1999512]\n");
    assert_printed(counted(EK_SHAPE(2, 3), EK_F64, 2.5), "f64[2, 3] on cpu:\n"
                                                         "[[   0,  2.5,    5],\n"
                                                         " [ 7.5,   10, 12.5]]\n");
    assert_printed(counted(EK_SHAPE(2, 2, 2), EK_U8, 1), "u8[2, 2, 2] on cpu:\n"
                                                         "[[[0, 1],\n"
                                                         "  [2, 3]],\n"
                                                         "\n"
                                                         " [[4, 5],\n"
                                                         "  [6, 7]]]\n");
    assert_printed(ek_empty(EK_SHAPE(2, 0)), "f32[2, 0] on cpu: []\n");
    assert_printed(ek_empty(EK_SHAPE(INT64_C(1) << 40, 0)), "f32[1099511627776, 0] on cpu: []\n");
}

TEST(integers_are_whole)
{
    int64_t values[2] = {INT64_MAX, -1};
    assert_printed(ek_from_data(values, EK_SHAPE(2), .dtype = EK_I64),
                   "i64[2] on cpu: [9223372036854775807, -1]\n");
}

TEST(nan_has_no_sign)
{
    float values[3] = {copysignf(NAN, -1), copysignf(NAN, 1), -INFINITY};
    assert_printed(ek_from_data(values, EK_SHAPE(3)), "f32[3] on cpu: [nan, nan, -inf]\n");
    double item;
    assert_ok(ek_item(ek_from_data(values, EK_SHAPE(1)), &item));
    ck_assert(isnan(item) && !signbit(item));
    ek_error(EK_E_INVALID, "%g of \"%s\" is (%.3f), not -%g", copysign(NAN, -1), "a-nan -nano",
             copysign(NAN, -1), 2.0);
    assert_error(EK_E_INVALID, "nan of \"a-nan -nano\" is (nan), not -2 [");
    ek_error(EK_E_INVALID, "the file %s", "-nan"); /* no number */
    assert_error(EK_E_INVALID, "the file -nan [");
}

TEST(long_rows_go_on_below)
{
    char *text = printed(counted(EK_SHAPE(2, 50), EK_F32, 1));
    int lines = 0;
    for (char *line = text, *end; *line; line = end + 1, lines++) {
        end = strchr(line, '\n');
        ck_assert_ptr_nonnull(end);
        ck_assert_int_le(end - line, 80);
    }
    ck_assert_int_eq(lines, 1 + 2 * 3);
    ck_assert_ptr_nonnull(strstr(text, ":\n[[ 0,  1,"));
    ck_assert_ptr_nonnull(strstr(text, ",\n  "));    /* a row goes on behind both brackets */
    ck_assert_ptr_nonnull(strstr(text, "49],\n [")); /* the next one behind one */
    free(text);
    text = printed(counted(EK_SHAPE(50), EK_F32, 1));
    ck_assert_ptr_nonnull(strstr(text, "f32[50] on cpu:\n[ 0,  1,"));
    free(text);
}

TEST(large_ones_are_summarised)
{
    assert_printed(counted(EK_SHAPE(1001), EK_F32, 1),
                   "f32[1001] on cpu: [0, 1, 2, ..., 998, 999, 1000]\n");
    char *whole = printed(counted(EK_SHAPE(1000), EK_F32, 1));
    ck_assert_ptr_null(strstr(whole, "..."));
    free(whole);
    assert_printed(counted(EK_SHAPE(7, 200), EK_I64, 1),
                   "i64[7, 200] on cpu:\n"
                   "[[   0,    1,    2, ...,  197,  198,  199],\n"
                   " [ 200,  201,  202, ...,  397,  398,  399],\n"
                   " [ 400,  401,  402, ...,  597,  598,  599],\n"
                   " ...,\n"
                   " [ 800,  801,  802, ...,  997,  998,  999],\n"
                   " [1000, 1001, 1002, ..., 1197, 1198, 1199],\n"
                   " [1200, 1201, 1202, ..., 1397, 1398, 1399]]\n");
}

TEST(a_stream_that_takes_nothing)
{
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    assert_refused(ek_tensor_print(counted(EK_SHAPE(3), EK_F32, 1), full), EK_E_IO,
                   "tensor_print: the stream does not take what is written");
    fclose(full);
    assert_refused(ek_tensor_print(counted(EK_SHAPE(3), EK_F32, 1), NULL), EK_E_INVALID,
                   "tensor_print: the stream is NULL");
}
