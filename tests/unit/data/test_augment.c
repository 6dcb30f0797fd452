/* test_augment.c: random changes of pictures against torchvision's, from the same seeds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/transform.h"
#include "unit.h"

static const char file[] = "augment.golden";
static const char *const dtypes[] = {"u8", "f32", "f64"};
enum { U8, F32, F64, DTYPES };

static ek_tensor *named(const char *name, int dtype, const char *end)
{
    char text[80];
    snprintf(text, sizeof text, "%s/%s%s", name, dtypes[dtype], end);
    return golden(file, text);
}

/* Row i of a golden of several results. */
static ek_tensor *row(const ek_tensor *rows, int64_t i)
{
    ek_shape shape = ek_tensor_shape(rows);
    size_t nbytes =
        (size_t)(ek_tensor_count(rows) / shape.dims[0]) * ek_dtype_size(ek_tensor_dtype(rows));
    shape.ndim--;
    memmove(shape.dims, shape.dims + 1, (size_t)shape.ndim * sizeof *shape.dims);
    return ek_from_data((char *)ek_tensor_data(rows) + (size_t)i * nbytes, shape,
                        ek_tensor_dtype(rows));
}

/* Floating-point results agree to a few roundings. Bytes agree; if `ties` are allowed, single ones
 * may differ by 1: where the sum lies at a half, it depends on the order of its terms. */
static void assert_same(const ek_tensor *out, const ek_tensor *expected, int ties, double close)
{
    int64_t count = ek_tensor_count(expected), differ = 0;
    if (ek_tensor_dtype(expected) != EK_U8) {
        assert_close(out, expected, 0, ek_tensor_dtype(expected) == EK_F64 ? close * 1e-6 : close);
        return;
    }
    assert_close(out, expected, 0, ties > 0);
    for (int64_t i = 0; i < count; i++)
        differ += element(out, i) != element(expected, i);
    ck_assert_msg(differ <= ties, "%d bytes of %d differ", (int)differ, (int)count);
}

/* Applies the transform once for each of the golden's results. Frees it. */
static void assert_drawn(ek_transform *transform, const char *name, int dtype, ek_tensor *in,
                         int ties, double close)
{
    const ek_tensor *rows = named(name, dtype, ""), *next = named(name, dtype, "/next");
    ek_generator *generator = ek_generator_new(5);
    assert_made(transform);
    for (int64_t i = 0; i < ek_tensor_size(rows, 0); i++) {
        ek_scope scope = ek_scope_begin();
        assert_same(ek_transform_apply(&transform, 1, in, generator), row(rows, i), ties, close);
        ek_scope_end(&scope);
    }
    for (int64_t i = 0; i < ek_tensor_count(next); i++)
        ck_assert_int_eq(ek_random_u32(generator) % 1000, (int64_t)element(next, i));
    ek_generator_free(generator);
    ek_transform_free(transform);
}

static void assert_drawn_all(ek_transform *(*make)(double white), const char *name, int ties)
{
    for (int d = 0; d < DTYPES; d++)
        assert_drawn(make(d == U8 ? 255 : 1), name, d, named("in", d, ""), ties, 2e-6);
}

/* A test of one transform. `W` scales values for bytes to those of floating-point pictures. */
#define W(byte) ((byte) / (white == 1 ? 256.0 : 1))
#define DRAWN(label, golden_name, ties, ...)               \
    static ek_transform *make_##label(double white)        \
    {                                                      \
        (void)white;                                       \
        return __VA_ARGS__;                                \
    }                                                      \
    TEST(label)                                            \
    {                                                      \
        assert_drawn_all(make_##label, golden_name, ties); \
    }

DRAWN(erase_zero, "erase/zero", 0, ek_random_erasing(0.7))
DRAWN(erase_mean, "erase/mean", 0,
      ek_random_erasing(1, .values = (double[]){W(10), W(20), W(30)}, .channels = 3,
                        .scale = {0.1, 0.4}))
DRAWN(erase_wide, "erase/wide", 0,
      ek_random_erasing(1, .value = W(5), .scale = {0.9, 1}, .ratio = {0.2, 6}))

TEST(erase_random)
{
    for (int d = F32; d < DTYPES; d++)
        assert_drawn(ek_random_erasing(0.9, .random = true), "erase/random", d, named("in", d, ""),
                     0, 2e-6);
}

TEST(pad)
{
    ek_tensor *in = named("in", U8, "");
    static const struct {
        const char *name;
        ek_pad_picture_options options;
    } cases[] = {
        {"pad/constant", {.padding = 3, .fill = 9}},
        {"pad/edge", {.left = 2, .top = 5, .bottom = 1, .mode = EK_BORDER_EDGE}},
        {"pad/reflect", {.padding = 4, .mode = EK_BORDER_REFLECT}},
        {"pad/symmetric",
         {.left = 14, .top = 11, .right = 2, .bottom = 3, .mode = EK_BORDER_SYMMETRIC}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ek_transform *transform = ek_pad_picture_with(cases[i].options);
        assert_same(ek_transform_apply(&transform, 1, in, NULL), golden(file, cases[i].name), 0, 0);
        ek_transform_free(transform);
    }
}

DRAWN(jitter_brightness, "jitter/brightness", 0, ek_color_jitter(0.7))
DRAWN(jitter_contrast, "jitter/contrast", 0, ek_color_jitter(.contrast = 0.6))
DRAWN(jitter_saturation, "jitter/saturation", 0, ek_color_jitter(.saturation = 1.5))
DRAWN(jitter_hue, "jitter/hue", 0, ek_color_jitter(.hue = 0.5))
DRAWN(jitter_all, "jitter/all", 0, ek_color_jitter(0.4, 0.4, .saturation = 0.4, .hue = 0.1))
DRAWN(jitter_ranges, "jitter/ranges", 0,
      ek_color_jitter(.brightness_range = {0.2, 0.3}, .contrast_range = {1.5, 2.5},
                      .hue_range = {-0.2, -0.1}))

DRAWN(crop_bilinear, "resized_crop/bilinear", 2, ek_random_resized_crop(9, 7))
DRAWN(crop_nearest, "resized_crop/nearest", 0, ek_random_resized_crop(9, 7, .nearest = true))
DRAWN(crop_bicubic, "resized_crop/bicubic", 2, ek_random_resized_crop(20, 8, .bicubic = true))
DRAWN(crop_antialias, "resized_crop/antialias", 2, ek_random_resized_crop(4, 5, .antialias = true))
DRAWN(crop_middle, "resized_crop/middle", 2,
      ek_random_resized_crop(5, 5, .scale = {1.5, 2}, .ratio = {0.5, 0.9}))
DRAWN(crop_narrow, "resized_crop/narrow", 2,
      ek_random_resized_crop(6, .scale = {0.2, 0.5}, .ratio = {1, 3}))

TEST(resize)
{
    static const struct {
        const char *name;
        ek_resize_options options;
    } cases[] = {
        {"resize/cubic_up", {.height = 23, .width = 31, .bicubic = true}},
        {"resize/cubic_down", {.height = 5, .width = 7, .bicubic = true}},
        {"resize/cubic_one", {.height = 1, .width = 1, .bicubic = true}},
        {"resize/aa_down", {.height = 4, .width = 5, .antialias = true}},
        {"resize/aa_up", {.height = 22, .width = 40, .antialias = true}},
        {"resize/aa_mixed", {.height = 30, .width = 3, .antialias = true}},
        {"resize/aa_cubic_down", {.height = 4, .width = 5, .bicubic = true, .antialias = true}},
        {"resize/aa_cubic_up", {.height = 19, .width = 27, .bicubic = true, .antialias = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int d = 0; d < DTYPES; d++) {
            ek_transform *transform = ek_resize_with(cases[i].options);
            assert_same(ek_transform_apply(&transform, 1, named("in", d, ""), NULL),
                        named(cases[i].name, d, ""), 12, 2e-6);
            ek_transform_free(transform);
        }
}

DRAWN(rotate_nearest, "rotate/nearest", 0, ek_random_rotation(40))
DRAWN(rotate_bilinear, "rotate/bilinear", 2,
      ek_random_rotation(.bilinear = true, .fill = W(7), .degrees_range = {20, 70}))
DRAWN(rotate_centre, "rotate/centre", 0, ek_random_rotation(180, .fill = W(200), .center = {3, 5}))
DRAWN(affine_turn, "affine/turn", 0, ek_random_affine(30))
DRAWN(affine_shift, "affine/shift", 0, ek_random_affine(0, .fill = W(11), .translate = {0.3, 0.2}))
DRAWN(affine_all, "affine/all", 0,
      ek_random_affine(.degrees_range = {-15, 40}, .translate = {0.1, 0.3}, .scale = {0.6, 1.7},
                       .shear_range = {-20, 20}, .shear_y_range = {-5, 15}))
DRAWN(affine_bilinear, "affine/bilinear", 2,
      ek_random_affine(25, .shear = 12, .bilinear = true, .fill = W(50), .scale = {0.8, 0.9}))

DRAWN(invert, "tone/invert", 0, ek_random_invert(0.6))
DRAWN(sharpen, "tone/sharpen", 0, ek_random_adjust_sharpness(2.3, 0.6))
DRAWN(soften, "tone/soften", 0, ek_random_adjust_sharpness(0.2, 0.6))
DRAWN(autocontrast, "tone/autocontrast", 0, ek_random_autocontrast(0.6))
DRAWN(random_grayscale, "tone/grayscale", 0, ek_random_grayscale(0.6))

/* The weights are computed in f32, also for f64 pictures. */
TEST(blur)
{
    for (int d = 0; d < DTYPES; d++) {
        double close = d == F64 ? 0.1 : 2e-6;
        ek_tensor *in = named("in", d, "");
        assert_drawn(ek_gaussian_blur(5), "blur/square", d, in, 2, close);
        assert_drawn(ek_gaussian_blur(9, 3, .sigma = {0.5, 3}), "blur/oblong", d, in, 2, close);
    }
}

TEST(tones)
{
    ek_tensor *bytes = named("in", U8, "");
    assert_drawn(ek_random_solarize(0.4, 0.6), "tone/solarize", F32, named("in", F32, ""), 0, 0);
    assert_drawn(ek_random_solarize(0.4, 0.6), "tone/solarize", F64, named("in", F64, ""), 0, 0);
    assert_drawn(ek_random_solarize(100.5, 0.6), "tone/solarize_bytes", U8, bytes, 0, 0);
    assert_drawn(ek_random_posterize(3, 0.6), "tone/posterize", U8, bytes, 0, 0);
    assert_drawn(ek_random_equalize(0.6), "tone/equalize", U8, bytes, 0, 0);
    for (int d = 0; d < DTYPES; d++) {
        ek_transform *transform = ek_grayscale(1);
        assert_same(ek_transform_apply(&transform, 1, named("in", d, ""), NULL),
                    named("grey", d, ""), 0, 2e-7);
        ek_transform_free(transform);
    }
}

/* torchvision solves for the map in f32. */
TEST(perspective)
{
    for (int d = 0; d < DTYPES; d++)
        assert_drawn(ek_random_perspective(0.6, 0.8, .fill = d == U8 ? 40 : 40.0 / 256),
                     "perspective", d, named("in", d, ""), 20, d == F64 ? 2e3 : 2e-3);
}

DRAWN(apply, "apply", 0,
      ek_random_apply(0.6, ek_random_invert(0.5), ek_random_horizontal_flip(0.5)))

#define POLICY(label, golden_name, ties, ...)                                       \
    TEST(label)                                                                     \
    {                                                                               \
        assert_drawn((__VA_ARGS__), golden_name, U8, named("in", U8, ""), ties, 0); \
    }
POLICY(auto_imagenet, "auto/imagenet", 0, ek_auto_augment(EK_POLICY_IMAGENET))
POLICY(auto_cifar10, "auto/cifar10", 0, ek_auto_augment(EK_POLICY_CIFAR10))
POLICY(auto_svhn, "auto/svhn", 0, ek_auto_augment(EK_POLICY_SVHN))
/* Later operations spread what one of the first ones has rounded otherwise. */
POLICY(auto_filled, "auto/filled", 12,
       ek_auto_augment(EK_POLICY_SVHN, .bilinear = true, .fill = 128))
POLICY(rand_default, "rand/default", 0, ek_rand_augment())
POLICY(rand_bilinear, "rand/bilinear", 12, ek_rand_augment(3, 20, .bilinear = true))
POLICY(trivial, "trivial/default", 0, ek_trivial_augment_wide())

TEST(trivial_grey)
{
    ek_tensor *in = named("in", U8, "");
    ek_shape shape = ek_tensor_shape(in);
    shape.dims[0] = 1;
    assert_drawn(ek_trivial_augment_wide(11), "trivial/grey", U8,
                 ek_from_data(ek_tensor_data(in), shape, EK_U8), 0, 0);
}
