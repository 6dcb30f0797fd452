/* test_image.c: pictures as Pillow reads them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "evenkeel/data.h"
#include "unit.h"

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
    char path[100];
    snprintf(path, sizeof path, "%s/%s", name, what);
    return golden_has(file, path) ? golden(file, path) : NULL;
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
    char path[100];
    assert_made(tensor);
    snprintf(path, sizeof path, "%s/values", name);
    ck_assert_int_eq(golden_has(values, path), strstr(name, "palette") || strstr(name, "16"));
    if (golden_has(values, path))
        assert_close(tensor, golden(values, path), 0, 0);
}

/* ---- files ---- */

static char directory[] = "/tmp/evenkeel-image-XXXXXX";
static char path[100];

static void make_directory(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/picture", directory);
}

static void remove_directory(void)
{
    unlink(path);
    rmdir(directory);
    memcpy(directory + strlen(directory) - 6, "XXXXXX", 6);
}

FIXTURE(make_directory, remove_directory)

static void write_bytes(const void *bytes, size_t nbytes)
{
    FILE *stream = fopen(path, "wb");
    ck_assert_ptr_nonnull(stream);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, stream), nbytes);
    ck_assert_int_eq(fclose(stream), 0);
}

/* The name's ending does not matter. */
TEST(from_files)
{
    static const char *const names[] = {"rgb_alpha8", "jpeg_420"};
    for (int i = 0; i < 2; i++) {
        ek_tensor *bytes = part(names[i], "file");
        write_bytes(ek_tensor_data(bytes), (size_t)ek_tensor_count(bytes));
        ek_tensor *tensor = ek_read_image(path, 3);
        assert_made(tensor);
        assert_close(tensor, decode(names[i], 3), 0, 0);
    }
}

TEST(unreadable)
{
    ck_assert_ptr_null(ek_read_image("/nowhere/cat.png", 3));
    assert_error(EK_E_IO, "read_image: cannot open /nowhere/cat.png: No such file");
    ck_assert_ptr_null(ek_read_image("/tmp", 3));
    assert_error(EK_E_IO, "read_image: cannot open /tmp: Is a directory");
    ck_assert_ptr_null(ek_read_image(NULL, 3));
    assert_error(EK_E_INVALID, "NULL");
    ck_assert_ptr_null(ek_read_image("/nowhere/cat.png", 5));
    assert_error(EK_E_INVALID, "read_image: /nowhere/cat.png: 5 channels; 1 (brightness)");
    ck_assert_ptr_null(ek_decode_image("", 0, -1, "cat"));
    assert_error(EK_E_INVALID, "decode_image: cat: -1 channels");
    ck_assert_ptr_null(ek_decode_image(NULL, 3, 0, "cat"));
    assert_error(EK_E_INVALID, "decode_image: cat: the bytes are NULL");
    ck_assert_ptr_null(ek_decode_image(NULL, 0, 0, NULL));
    assert_error(EK_E_FORMAT, "decode_image: a picture: empty; PNG and JPEG are read");
}

TEST(other_formats)
{
    write_bytes("GIF89a\1\0\1\0", 10);
    ck_assert_ptr_null(ek_read_image(path, 3));
    assert_error(EK_E_FORMAT, "picture: neither PNG nor JPEG: it begins with 47 49 46 38 39 61 01 "
                              "00");
    write_bytes("\x89P", 2);
    ck_assert_ptr_null(ek_read_image(path, 3));
    assert_error(EK_E_FORMAT, "it begins with 89 50");
    write_bytes("", 0);
    ck_assert_ptr_null(ek_read_image(path, 3));
    assert_error(EK_E_FORMAT, "picture: empty");
}

/* A sentence of a long name still says what is wrong. */
TEST(long_names)
{
    char name[4000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    ck_assert_ptr_null(ek_decode_image("GIF89a", 6, 3, name));
    assert_error(EK_E_FORMAT, "neither PNG nor JPEG");
    ck_assert_ptr_null(ek_read_image(name, 3));
    assert_error(EK_E_IO, "File name too long");
}
