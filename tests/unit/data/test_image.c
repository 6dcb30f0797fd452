/* test_image.c: pictures as Pillow reads them. */
#include <unistd.h>

#include "kit/files.h"

static const char file[] = "images.golden", values[] = "image_values.golden";

/* Pictures of the golden file, and the channels that each has itself. */
static const struct picture {
    const char *name;
    int channels;
} pictures[] = {
    {"gray1", 1},
    {"gray2", 1},
    {"gray4", 1},
    {"gray8", 1},
    {"gray16", 1},
    {"palette1", 3},
    {"palette2", 3},
    {"palette4", 3},
    {"palette8", 3},
    {"rgb8", 3},
    {"gray_alpha8", 2},
    {"rgb_alpha8", 4},
    {"rgb16", 3},
    {"gray_alpha16", 2},
    {"rgb_alpha16", 4},
    {"gray1_interlaced", 1},
    {"gray2_interlaced", 1},
    {"gray4_interlaced", 1},
    {"gray8_interlaced", 1},
    {"gray16_interlaced", 1},
    {"palette1_interlaced", 3},
    {"palette2_interlaced", 3},
    {"palette4_interlaced", 3},
    {"palette8_interlaced", 3},
    {"rgb8_interlaced", 3},
    {"gray_alpha8_interlaced", 2},
    {"rgb_alpha8_interlaced", 4},
    {"rgb16_interlaced", 3},
    {"gray_alpha16_interlaced", 2},
    {"rgb_alpha16_interlaced", 4},
    {"rgb8_interlaced_1_1", 3},
    {"rgb8_interlaced_2_3", 3},
    {"rgb8_interlaced_5_1", 3},
    {"palette4_transparent", 3},
    {"gray1_transparent", 1},
    {"gray4_transparent", 1},
    {"gray8_transparent", 1},
    {"gray16_transparent", 1},
    {"rgb8_transparent", 3},
    {"rgb16_transparent", 3},
    {"rgb8_gamma", 3},
    {"gray16_gamma", 1},
    {"rgb_alpha8_background", 4},
    {"filters_png", 3},
    {"gray_jpeg", 1},
    {"jpeg_444", 3},
    {"jpeg_422", 3},
    {"jpeg_420", 3},
    {"jpeg_progressive", 3},
    {"jpeg_exif", 3},
    {"jpeg_cmyk", 3},
    {"jpeg_ycck", 3},
    {"jpeg_cmyk_plain", 3},
    {"jpeg_rgb", 3},
    {"jpeg_31", 3},
    {"jpeg_restart", 3},
    {"jpeg_arithmetic", 3},
};
enum { PICTURES = sizeof pictures / sizeof *pictures };

static ek_tensor *part(const char *name, const char *what)
{
    char key[100];
    snprintf(key, sizeof key, "%s/%s", name, what);
    return golden_has(file, key) ? golden(file, key) : NULL;
}

static ek_tensor *decode(const char *name, int channels)
{
    ek_tensor *bytes = part(name, "file");
    ck_assert_ptr_nonnull(bytes);
    return ek_decode_image(ek_tensor_data(bytes), (size_t)ek_tensor_count(bytes), channels, name);
}

/* Planes [0, count) of `expected` are those of `tensor` from plane `first`: the same in PNG;
 * libraries may round the cosine transform of JPEG otherwise. */
static void assert_planes(const char *name, const ek_tensor *tensor, int first,
                          const ek_tensor *expected)
{
    int most = strstr(name, "jpeg") ? 1 : 0;
    int64_t plane = ek_tensor_size(tensor, 1) * ek_tensor_size(tensor, 2);
    const uint8_t *got = (const uint8_t *)ek_tensor_data(tensor) + first * plane;
    const uint8_t *wanted = ek_tensor_data(expected);
    ck_assert_int_eq(ek_tensor_size(tensor, 1), ek_tensor_size(expected, 1));
    ck_assert_int_eq(ek_tensor_size(tensor, 2), ek_tensor_size(expected, 2));
    for (int64_t i = 0; i < ek_tensor_count(expected); i++)
        if (!(abs(got[i] - wanted[i]) <= most))
            ck_abort_msg("%s, plane %d, byte %d: %d instead of %d", name, first + (int)(i / plane),
                         (int)(i % plane), got[i], wanted[i]);
}

static void assert_alpha(const char *name, const ek_tensor *tensor, int first)
{
    ek_tensor *alpha = part(name, "A");
    if (!alpha) {
        alpha = ek_empty(EK_SHAPE(1, ek_tensor_size(tensor, 1), ek_tensor_size(tensor, 2)),
                         .dtype = EK_U8);
        assert_made(alpha);
        memset(ek_tensor_data(alpha), 255, (size_t)ek_tensor_count(alpha));
    }
    assert_planes(name, tensor, first, alpha);
}

TEST_LOOP(as_pillow, 0, PICTURES)
{
    const char *name = pictures[_i].name;
    for (int channels = 1; channels <= 4; channels++) {
        ek_tensor *tensor = decode(name, channels);
        assert_made(tensor);
        ck_assert_int_eq(ek_tensor_dtype(tensor), EK_U8);
        ck_assert_int_eq(ek_tensor_ndim(tensor), 3);
        ck_assert_int_eq(ek_tensor_size(tensor, 0), channels);
        assert_planes(name, tensor, 0, part(name, channels < 3 ? "L" : "RGB"));
        if (channels % 2 == 0)
            assert_alpha(name, tensor, channels - 1);
    }
}

/* What 16 bits become in 8 has tests above. */
static ek_tensor *high_bytes(const ek_tensor *wide)
{
    ek_tensor *bytes = ek_empty(ek_tensor_shape(wide), .dtype = EK_U8);
    assert_made(bytes);
    for (int64_t i = 0; i < ek_tensor_count(wide); i++)
        ((uint8_t *)ek_tensor_data(bytes))[i] =
            (uint8_t)(((int64_t *)ek_tensor_data(wide))[i] >> 8);
    return bytes;
}

/* Transparency that is no channel of the file is not made one. */
TEST_LOOP(channels_of_the_file, 0, PICTURES)
{
    const char *name = pictures[_i].name;
    int channels = strstr(name, "palette") ? 1 : pictures[_i].channels;
    ek_tensor *tensor = decode(name, 0);
    assert_made(tensor);
    ck_assert_int_eq(ek_tensor_size(tensor, 0), channels);
    ck_assert_int_eq(ek_tensor_dtype(tensor), strstr(name, "16") ? EK_I64 : EK_U8);
    if (strstr(name, "palette"))
        return;
    if (ek_tensor_dtype(tensor) == EK_I64)
        tensor = high_bytes(tensor);
    assert_planes(name, tensor, 0, part(name, channels < 3 ? "L" : "RGB"));
    if (channels % 2 == 0)
        assert_alpha(name, tensor, channels - 1);
}

/* Indices, and samples of 16 bits, as they were written. */
TEST_LOOP(values_of_the_file, 0, PICTURES)
{
    const char *name = pictures[_i].name;
    ek_tensor *tensor = decode(name, 0);
    char key[100];
    assert_made(tensor);
    snprintf(key, sizeof key, "%s/values", name);
    ck_assert_int_eq(golden_has(values, key), strstr(name, "palette") || strstr(name, "16"));
    if (golden_has(values, key))
        assert_close(tensor, golden(values, key), 0, 0);
}

/* ---- files ---- */

FIXTURE(make_directory, remove_directory)

/* The name's ending does not matter. */
TEST(from_files)
{
    static const char *const names[] = {"rgb_alpha8", "jpeg_420"};
    for (int i = 0; i < 2; i++) {
        ek_tensor *bytes = part(names[i], "file");
        write_file("file", ek_tensor_data(bytes), (size_t)ek_tensor_count(bytes));
        ek_tensor *tensor = ek_read_image(file_path, 3);
        assert_made(tensor);
        assert_close(tensor, decode(names[i], 3), 0, 0);
    }
}

TEST(unreadable)
{
    assert_refused(ek_read_image("/nowhere/cat.png", 3), EK_E_IO,
                   "read_image: cannot open /nowhere/cat.png: No such file");
    assert_refused(ek_read_image("/tmp", 3), EK_E_IO,
                   "read_image: cannot open /tmp: Is a directory");
    assert_refused(ek_read_image(NULL, 3), EK_E_INVALID, "NULL");
    assert_refused(ek_read_image("/nowhere/cat.png", 5), EK_E_INVALID,
                   "read_image: /nowhere/cat.png: 5 channels; 1 (brightness)");
    assert_refused(ek_decode_image("", 0, -1, "cat"), EK_E_INVALID,
                   "decode_image: cat: -1 channels");
    assert_refused(ek_decode_image(NULL, 3, 0, "cat"), EK_E_INVALID,
                   "decode_image: cat: the bytes are NULL");
    assert_refused(ek_decode_image(NULL, 0, 0, NULL), EK_E_FORMAT,
                   "decode_image: a picture: empty; PNG and JPEG are read");
}

TEST(other_formats)
{
    write_file("file", "GIF89a\1\0\1\0", 10);
    assert_refused(ek_read_image(file_path, 3), EK_E_FORMAT,
                   "file: neither PNG nor JPEG: it begins with 47 49 46 38 39 61 01 "
                   "00");
    write_file("file", "\x89P", 2);
    assert_refused(ek_read_image(file_path, 3), EK_E_FORMAT, "it begins with 89 50");
    write_file("file", "", 0);
    assert_refused(ek_read_image(file_path, 3), EK_E_FORMAT, "file: empty");
}

/* A sentence of a long name still says what is wrong. */
TEST(long_names)
{
    char name[4000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_refused(ek_decode_image("GIF89a", 6, 3, name), EK_E_FORMAT, "neither PNG nor JPEG");
    assert_refused(ek_read_image(name, 3), EK_E_IO, "File name too long");
}
