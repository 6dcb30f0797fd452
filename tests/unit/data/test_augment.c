/* test_augment.c: random changes of pictures against torchvision's, from the same seeds. */
#include "transforms_setup.h"

static const char file[] = "augment.golden";
static const char *const dtypes[] = {"u8", "f32", "f64"};
enum { U8, F32, F64, DTYPES };

static ek_tensor *named(const char *name, int dtype, const char *end)
{
    char text[80];
    snprintf(text, sizeof text, "%s/%s%s", name, dtypes[dtype], end);
    return golden(file, text);
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
static void assert_drawn_from(uint64_t seed, ek_transform *transform, const char *name, int dtype,
                              ek_tensor *in, int ties, double close)
{
    const ek_tensor *rows = named(name, dtype, ""), *next = named(name, dtype, "/next");
    ek_generator *generator = ek_generator_new(seed);
    assert_made(transform);
    for (int64_t i = 0; i < ek_tensor_size(rows, 0); i++) {
        ek_scope scope = ek_scope_begin();
        assert_same(ek_transform_apply(&transform, 1, in, generator), row(rows, i), ties, close);
        ek_scope_end(&scope);
    }
    assert_next(generator, next);
    ek_generator_free(generator);
    ek_transform_free(transform);
}

static void assert_drawn(ek_transform *transform, const char *name, int dtype, ek_tensor *in,
                         int ties, double close)
{
    assert_drawn_from(5, transform, name, dtype, in, ties, close);
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_same(apply(ek_pad_picture_with(cases[i].options), in, NULL),
                    golden(file, cases[i].name), 0, 0);
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
        for (int d = 0; d < DTYPES; d++)
            assert_same(apply(ek_resize_with(cases[i].options), named("in", d, ""), NULL),
                        named(cases[i].name, d, ""), 12, 2e-6);
}

DRAWN(rotate_nearest, "rotate/nearest", 0, ek_random_rotation(40))
DRAWN(rotate_bilinear, "rotate/bilinear", 0,
      ek_random_rotation(.bilinear = true, .fill = W(7), .degrees_range = {20, 70}))
DRAWN(rotate_center, "rotate/centre", 0, ek_random_rotation(180, .fill = W(200), .center = {3, 5}))
DRAWN(affine_turn, "affine/turn", 0, ek_random_affine(30))
DRAWN(affine_shift, "affine/shift", 0, ek_random_affine(0, .fill = W(11), .translate = {0.3, 0.2}))
DRAWN(affine_all, "affine/all", 0,
      ek_random_affine(.degrees_range = {-15, 40}, .translate = {0.1, 0.3}, .scale = {0.6, 1.7},
                       .shear_range = {-20, 20}, .shear_y_range = {-5, 15}))
DRAWN(affine_bilinear, "affine/bilinear", 0,
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
    for (int d = 0; d < DTYPES; d++)
        assert_same(apply(ek_grayscale(1), named("in", d, ""), NULL), named("grey", d, ""), 0,
                    2e-7);
}

/* torchvision solves for the map in f32. */
TEST(perspective)
{
    for (int d = 0; d < DTYPES; d++)
        assert_drawn(ek_random_perspective(0.6, 0.8, .fill = d == U8 ? 40 : 40.0 / 256),
                     "perspective", d, named("in", d, ""), 20, d == F64 ? 2e3 : 2e-3);
}

DRAWN(random_apply, "apply", 0,
      ek_random_apply(0.6, ek_random_invert(0.5), ek_random_horizontal_flip(0.5)))

#define POLICY(label, golden_name, ties, ...)                                       \
    TEST(label)                                                                     \
    {                                                                               \
        assert_drawn((__VA_ARGS__), golden_name, U8, named("in", U8, ""), ties, 0); \
    }
POLICY(auto_imagenet, "auto/imagenet", 0, ek_auto_augment(EK_POLICY_IMAGENET))
POLICY(auto_cifar10, "auto/cifar10", 0, ek_auto_augment(EK_POLICY_CIFAR10))
POLICY(auto_svhn, "auto/svhn", 0, ek_auto_augment(EK_POLICY_SVHN))
POLICY(auto_filled, "auto/filled", 0,
       ek_auto_augment(EK_POLICY_SVHN, .bilinear = true, .fill = 128))
POLICY(rand_default, "rand/default", 0, ek_rand_augment())
POLICY(rand_bilinear, "rand/bilinear", 0, ek_rand_augment(3, 20, .bilinear = true))
POLICY(trivial, "trivial/default", 0, ek_trivial_augment_wide())

TEST(trivial_grey)
{
    ek_tensor *in = named("in", U8, "");
    ek_shape shape = ek_tensor_shape(in);
    shape.dims[0] = 1;
    assert_drawn(ek_trivial_augment_wide(11), "trivial/grey", U8,
                 ek_from_data(ek_tensor_data(in), shape, EK_U8), 0, 0);
}

/* Translations by 15.999999 pixels are cut to 15. */
TEST(trivial_sixteenth)
{
    assert_drawn_from(6552, ek_trivial_augment_wide(), "trivial/sixteenth", U8,
                      golden(file, "trivial/sixteenth/in"), 0, 0);
}

/* ---- pictures and masks alike ---- */

/* The mask is the picture's first channel: what moves pixels moves both in the same way, and what
 * changes colors comes last. */
TEST(alike)
{
    ek_tensor *in = named("in", U8, "");
    int64_t h = ek_tensor_size(in, 1), w = ek_tensor_size(in, 2);
    ek_tensor *pictures = ek_from_data(ek_tensor_data(in), EK_SHAPE(1, 3, h, w), EK_U8);
    ek_tensor *masks = ek_from_data(ek_tensor_data(in), EK_SHAPE(1, 1, h, w), EK_U8);
    ek_dataset *set = ek_transformed_alike(
        ek_tensor_dataset(pictures, masks),
        EK_FIELD(0, ek_random_rotation(30, .fill = 9), ek_random_affine(9, .translate = {0.1, 0.2}),
                 ek_random_perspective(0.4, 1, .nearest = true),
                 ek_random_resized_crop(8, 9, .nearest = true),
                 ek_random_choice(ek_random_vertical_flip(1), ek_random_horizontal_flip(1)),
                 ek_random_erasing(0.9, .value = 3), ek_random_grayscale(0), ek_color_jitter(0.5)),
        EK_FIELD(1, ek_random_rotation(30, .fill = 9), ek_random_affine(9, .translate = {0.1, 0.2}),
                 ek_random_perspective(0.4, 1, .nearest = true),
                 ek_random_resized_crop(8, 9, .nearest = true),
                 ek_random_choice(ek_random_vertical_flip(1), ek_random_horizontal_flip(1)),
                 ek_random_erasing(0.9, .value = 3), ek_random_grayscale(0), ek_color_jitter(0.5)));
    assert_made(set);
    for (int i = 0; i < 20; i++) {
        ek_value sample = ek_dataset_get(set, 0);
        ek_tensor *picture = ek_value_at(sample, 0).as.tensor;
        ek_tensor *mask = ek_value_at(sample, 1).as.tensor;
        for (int64_t at = 0; at < 72; at++)
            ck_assert_double_eq(element(picture, at), element(mask, at));
    }
    ek_dataset_free(set);
}

/* ---- what is refused ---- */

TEST(options_refused)
{
    const double values[] = {1, 2};
    assert_not_made(ek_random_erasing(1.5), "random_erasing: the probability");
    assert_not_made(ek_random_erasing(.scale = {0.5, 0.2}),
                    "random_erasing: scale from 0.5 to 0.2");
    assert_not_made(ek_random_erasing(.scale = {0.5, 2}), "in [0, 1]");
    assert_not_made(ek_random_erasing(.ratio = {0, 2}), "random_erasing: a ratio of 0");
    assert_not_made(ek_random_erasing(.ratio = {NAN, 2}), "ratio from nan to 2");
    assert_not_made(ek_random_erasing(.values = values), "0 channels; .values and .channels");
    assert_not_made(ek_random_erasing(.random = true, .value = 1), ".random excludes values");
    assert_not_made(ek_random_erasing(.values = values, .channels = 2, .value = 1),
                    ".value and .values exclude");
    assert_not_made(ek_pad_picture(-1), "pad_picture: a padding of -1");
    assert_not_made(ek_pad_picture(.left = INT64_MAX), "pad_picture: a padding of 92");
    assert_not_made(ek_pad_picture(1, (ek_border_mode)9), "pad_picture: mode 9");
    assert_not_made(ek_random_resized_crop(0), "random_resized_crop: a size of 0 x 0");
    assert_not_made(ek_random_resized_crop(4, .nearest = true, .antialias = true),
                    ".nearest excludes .antialias");
    assert_not_made(ek_random_resized_crop(4, .ratio = {0, 1}), "a ratio of 0");
    assert_not_made(ek_resize(4, .nearest = true, .bicubic = true), ".nearest excludes .bicubic");
    assert_not_made(ek_color_jitter(-0.1), "color_jitter: brightness -0.1");
    assert_not_made(ek_color_jitter(.hue = 0.6), "color_jitter: hue from -0.6 to 0.6");
    assert_not_made(ek_color_jitter(0.1, .brightness_range = {0, 0}),
                    "brightness and brightness_range exclude");
    assert_not_made(ek_color_jitter(.contrast_range = {2, 1}), "contrast_range from 2 to 1");
    assert_not_made(ek_grayscale(2), "grayscale: 2 channels");
    assert_not_made(ek_random_grayscale(-1), "random_grayscale: the probability");
    assert_not_made(ek_random_posterize(9, 1), "random_posterize: 9 bits");
    assert_not_made(ek_random_solarize(NAN, 1), "random_solarize: the threshold");
    assert_not_made(ek_random_adjust_sharpness(-1, 1), "random_adjust_sharpness: a factor of -1");
    assert_not_made(ek_random_invert(2), "random_invert: the probability");
    assert_not_made(ek_gaussian_blur(4), "gaussian_blur: a kernel of 4 x 4");
    assert_not_made(ek_gaussian_blur(3, .sigma = {0, 1}), "in [1e-06, 1e+06]");
    assert_not_made(ek_color_jitter(1e300), "color_jitter: brightness from 0 to 1e+300");
    assert_not_made(ek_gaussian_blur(3, .sigma = {2, 1}), "gaussian_blur: sigma from 2 to 1");
    assert_not_made(ek_random_rotation(-3), "random_rotation: degrees -3");
    assert_not_made(ek_random_rotation(3, .degrees_range = {1, 2}), "degrees and degrees_range");
    assert_not_made(ek_random_affine(3, .translate = {0, 2}), "random_affine: translate 2");
    assert_not_made(ek_random_affine(3, .scale = {0, 2}), "random_affine: a scale of 0");
    assert_not_made(ek_random_affine(3, .shear = NAN), "random_affine: shear nan");
    assert_not_made(ek_random_affine(3, .center = {NAN, 0}), "a center that is not finite");
    assert_not_made(ek_random_perspective(1.5), "random_perspective: distortion_scale 1.5");
    assert_not_made(ek_auto_augment((ek_augment_policy)3), "auto_augment: policy 3");
    assert_not_made(ek_rand_augment(-1), "rand_augment: num_ops -1");
    assert_not_made(ek_rand_augment(2, 31), "magnitude 31");
    assert_not_made(ek_trivial_augment_wide(1), "trivial_augment_wide: 1 num_magnitude_bins");
    assert_not_made(ek_random_apply(2, ek_random_invert(1)), "random_apply: the probability");
    assert_not_made(ek_random_choice_of((ek_transform *[]){ek_random_invert(1)}, 1, (double[]){0}),
                    "random_choice: no weight is above 0");
    assert_not_made(ek_random_choice_of((ek_transform *[]){ek_random_invert(1)}, 1, (double[]){-1}),
                    "random_choice: weight 0 is -1");
    assert_not_made(ek_random_order_of(NULL, 0), "random_order: 0 transforms");
}

/* Ranges that f32 cannot hold find no part, and take the middle. */
TEST(extreme_ranges)
{
    ek_tensor *in = named("in", U8, "");
    ek_transform *transforms[] = {ek_random_resized_crop(3, 3, .scale = {1e299, 1e300}),
                                  ek_random_erasing(1, .ratio = {1e-300, 1e300}),
                                  ek_random_affine(0, .shear = 1e300, .bilinear = true,
                                                   .scale = {1e-300, 1e300}),
                                  ek_gaussian_blur(3, .sigma = {1e-6, 1e-6}),
                                  ek_color_jitter(1e29, 1e29, .saturation = 1e29),
                                  ek_random_adjust_sharpness(1e30, 1)};
    for (int i = 0; i < 6; i++) {
        for (int n = 0; n < 10; n++)
            assert_made(ek_transform_apply(&transforms[i], 1, in, NULL));
        ek_transform_free(transforms[i]);
    }
}

TEST(pictures_refused)
{
    const ek_shape colors = EK_SHAPE(3, 5, 5), two = EK_SHAPE(2, 5, 5);
    assert_not_applied(ek_random_erasing(1, .random = true), colors, EK_U8, EK_E_DTYPE,
                       "random_erasing: u8[3, 5, 5]; f32 and f64");
    assert_not_applied(ek_random_erasing(1, .value = 0.5), colors, EK_U8, EK_E_DTYPE,
                       "random_erasing: u8[3, 5, 5] cannot be filled by 0.5");
    assert_not_applied(ek_random_erasing(1, .values = (double[]){1, 2, 3}, .channels = 3), two,
                       EK_U8, EK_E_SHAPE, "3 values are for pictures of as many channels");
    assert_not_applied(ek_pad_picture(5, EK_BORDER_REFLECT), colors, EK_U8, EK_E_SHAPE,
                       "pad_picture: u8[3, 5, 5], padded by 5 in mode reflect");
    assert_not_applied(ek_pad_picture(6, EK_BORDER_SYMMETRIC), colors, EK_U8, EK_E_SHAPE,
                       "in mode symmetric; a side of 5 has at most 5");
    assert_not_applied(ek_pad_picture(6, EK_BORDER_EDGE), EK_SHAPE(3, 0, 5), EK_U8, EK_E_SHAPE,
                       "no pixels to repeat");
    assert_not_applied(ek_pad_picture(.right = 2, .mode = EK_BORDER_REFLECT), EK_SHAPE(3, 5, 0),
                       EK_U8, EK_E_SHAPE, "a side of 0 has at most 0 pixels to mirror");
    assert_not_applied(ek_color_jitter(0.5), two, EK_U8, EK_E_SHAPE, "1 or 3 channels");
    assert_not_applied(ek_color_jitter(0.5), colors, EK_I64, EK_E_DTYPE,
                       "color_jitter: i64[3, 5, 5]; colors are u8, f32 or f64");
    assert_not_applied(ek_grayscale(1), EK_SHAPE(5, 5), EK_U8, EK_E_SHAPE, "third dimension");
    assert_not_applied(ek_random_equalize(1), colors, EK_F32, EK_E_DTYPE, "u8 is needed");
    assert_not_applied(ek_random_solarize(2, 1), colors, EK_F32, EK_E_INVALID,
                       "a threshold of 2 for f32[3, 5, 5], whose white is 1");
    assert_not_applied(ek_gaussian_blur(11), colors, EK_U8, EK_E_SHAPE,
                       "u8[3, 5, 5] is too small for a kernel of 11 x 11");
    assert_not_applied(ek_random_rotation(5, .bilinear = true), colors, EK_I64, EK_E_DTYPE,
                       "random_rotation: i64[3, 5, 5]; u8, f32 and f64 are interpolated");
    assert_not_applied(ek_random_rotation(5, .fill = 300), colors, EK_U8, EK_E_DTYPE,
                       "filled by 300");
    assert_not_applied(ek_random_resized_crop(3), EK_SHAPE(0, 5), EK_U8, EK_E_SHAPE, "no pixels");
    assert_not_applied(ek_random_resized_crop(3), colors, EK_I64, EK_E_DTYPE, ".nearest = true");
    assert_not_applied(ek_auto_augment(), colors, EK_F32, EK_E_DTYPE, "before ek_to_float");
    assert_not_applied(ek_random_apply(0.5, ek_resize(3, 3)), colors, EK_U8, EK_E_SHAPE,
                       "random_apply: u8[3, 5, 5] becomes u8[3, 3, 3] if the transforms");
    assert_not_applied(ek_random_choice(ek_resize(3, 3), ek_random_invert(0)), colors, EK_U8,
                       EK_E_SHAPE, "by another of the transforms");
    assert_not_applied(ek_random_order(ek_to_float(), ek_random_invert(0)), colors, EK_U8,
                       EK_E_SHAPE, "random_order: u8[3, 5, 5] becomes f32[3, 5, 5]");
}

/* Shares of choices, and every order. */
TEST(choices)
{
    ek_generator *generator = ek_generator_new(3);
    ek_transform *choice =
        ek_random_choice_of((ek_transform *[]){ek_random_invert(0), ek_random_invert(1),
                                               ek_random_posterize(1, 1)},
                            3, (double[]){1, 0, 3});
    ek_transform *order =
        ek_random_order(ek_random_posterize(1, 1), ek_random_solarize(100, 1), ek_random_invert(1));
    ek_tensor *in = tensor_of((double[]){70}, EK_SHAPE(1, 1, 1), EK_U8, ek_cpu());
    int kept = 0, orders[256] = {0}, seen = 0;
    for (int i = 0; i < 400; i++) {
        double value = element(ek_transform_apply(&choice, 1, in, generator), 0);
        ck_assert(value == 70 || value == 0);
        kept += value == 70;
        orders[(int)element(ek_transform_apply(&order, 1, in, generator), 0)]++;
    }
    ck_assert_int_gt(kept, 60);
    ck_assert_int_lt(kept, 140);
    for (int v = 0; v < 256; v++)
        seen += orders[v] > 0;
    ck_assert_int_ge(seen, 3);
    ek_transform_free(choice);
    ek_transform_free(order);
    ek_generator_free(generator);
}
