/* test_image_write.c: grids of pictures as torchvision's, and PNG files of them. */
#include <unistd.h>

#include "kit/files.h"

static const char file[] = "grid.golden";

static const char *const cases[] = {"plain", "grey",   "normalized", "each",
                                    "range", "single", "three",      "two"};

static ek_tensor *golden_of(int which, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s", cases[which], what);
    return golden(file, name);
}

/* The options of the case's call of make_grid. */
static ek_grid_options options_of(int which)
{
    ek_tensor *x = golden_of(which, "x");
    switch (which) {
    case 1:
        return EK_OPTIONS(ek_grid_options, x, 2, .padding = 0);
    case 2:
        return EK_OPTIONS(ek_grid_options, x, 4, .normalize = true);
    case 3:
        return EK_OPTIONS(ek_grid_options, x, .normalize = true, .scale_each = true,
                          .pad_value = 0.5);
    case 4:
        return EK_OPTIONS(ek_grid_options, x, .normalize = true, .low = -1, .high = 1,
                          .padding = 1);
    default:
        return EK_OPTIONS(ek_grid_options, x);
    }
}

TEST_LOOP(grids, 0, 8)
{
    assert_close(ek_make_grid_with(options_of(_i)), golden_of(_i, "grid"), 0, 1e-6);
}

static char path[] = "/tmp/test_image_write_XXXXXX";

static void begin_file(void)
{
    strcpy(path + sizeof path - 7, "XXXXXX");
    close(mkstemp(path));
}

static void end_file(void)
{
    unlink(path);
}

FIXTURE(begin_file, end_file)

/* Rounding may differ by one if a product lies between two numbers. */
TEST_LOOP(files_have_the_grid, 0, 8)
{
    ek_tensor *wanted = golden_of(_i, "bytes");
    if (ek_tensor_size(wanted, 0) > 4)
        return;
    assert_ok(ek_save_image_with(path, options_of(_i)));
    ek_tensor *read = ek_read_image(path, 0);
    assert_made(read);
    assert_close(read, wanted, 1, 0);
}

TEST(bytes_are_written_as_they_are)
{
    ek_tensor *x = ek_empty(EK_SHAPE(1, 4, 5), .dtype = EK_U8);
    uint8_t *bytes = ek_tensor_data(x);
    for (int i = 0; i < 20; i++)
        bytes[i] = (uint8_t)(13 * i);
    assert_ok(ek_save_image(path, x));
    assert_close(ek_read_image(path, 1), x, 0, 0);
}

/* 0, 1/4, 1/2 and 1. */
TEST(every_floating_dtype_is_written)
{
    static const uint16_t f16[] = {0, 0x3400, 0x3800, 0x3c00}, bf16[] = {0, 0x3e80, 0x3f00, 0x3f80};
    const float f32[] = {0, 0.25f, 0.5f, 1};
    const double f64[] = {0, 0.25, 0.5, 1};
    static const uint8_t wanted[] = {0, 64, 128, 255};
    const void *const values[] = {f32, f64, f16, bf16};
    const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_F16, EK_BF16};
    for (int i = 0; i < 4; i++) {
        assert_ok(ek_save_image(path, ek_from_data(values[i], EK_SHAPE(2, 2), dtypes[i])));
        ck_assert_mem_eq(ek_tensor_data(ek_read_image(path, 1)), wanted, 4);
    }
}

TEST(numbers_that_are_no_brightness_are_clamped)
{
    const float values[] = {-1, 2, NAN, 0.5f};
    static const uint8_t wanted[] = {0, 255, 0, 128};
    assert_ok(ek_save_image(path, ek_from_data(values, EK_SHAPE(2, 2), EK_F32)));
    ck_assert_mem_eq(ek_tensor_data(ek_read_image(path, 1)), wanted, 4);
}

/* Options are those of ek_empty. */
#define zeros(...) zeroed(ek_empty(__VA_ARGS__))
static ek_tensor *zeroed(ek_tensor *x)
{
    assert_made(x);
    memset(ek_tensor_data(x), 0, (size_t)ek_tensor_count(x) * ek_dtype_size(ek_tensor_dtype(x)));
    return x;
}

TEST(what_is_no_picture_is_refused)
{
    ck_assert_int_lt(ek_save_image(path, zeros(EK_SHAPE(3))), 0);
    assert_error(EK_E_SHAPE, "(N, C, H, W), (C, H, W) and (H, W) are possible");
    ck_assert_int_lt(ek_save_image(path, zeros(EK_SHAPE(5, 2, 2))), 0);
    assert_error(EK_E_SHAPE, "5 channels; PNG has 1 to 4");
    ck_assert_ptr_null(ek_make_grid(zeros(EK_SHAPE(2, 2), EK_I64)));
    assert_error(EK_E_DTYPE, "pictures are floating, in [0, 1], or u8");
    ck_assert_ptr_null(ek_make_grid(zeros(EK_SHAPE(2, 2)), 0));
    assert_error(EK_E_INVALID, "0 columns");
    ck_assert_ptr_null(ek_make_grid(zeros(EK_SHAPE(2, 2)), .low = 1));
    assert_error(EK_E_INVALID, "low 1 is above high 0");
    ck_assert_ptr_null(ek_make_grid(zeros(EK_SHAPE(2, 0))));
    assert_error(EK_E_SHAPE, "every size has to lie in");
    ck_assert_int_lt(ek_save_image("/nowhere/x.png", zeros(EK_SHAPE(2, 2))), 0);
    assert_error(EK_E_IO, "/nowhere/x.png");
    const ek_scope before = ek_scope_begin();
    ck_assert_int_lt(ek_save_image(NULL, zeros(EK_SHAPE(2, 2))), 0);
    assert_error(EK_E_INVALID, "the path");
    ek_scope after = ek_scope_begin();
    ck_assert_uint_eq(after.depth, before.depth + 1); /* no scope is left open */
}
