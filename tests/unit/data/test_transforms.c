/* test_transforms.c: each transform against torch, what it refuses, and how it says so. */
#include "transforms_setup.h"

static const char file[] = "transforms.golden";
static const char *const dtypes[] = {"u8", "i64", "f32", "f64", "bf16"};
enum { DTYPES = 5 };

static ek_tensor *named(const char *format, const char *a, const char *b)
{
    char name[80];
    snprintf(name, sizeof name, format, a, b);
    return golden(file, name);
}

/* Applied again and again, from `seed` on. Frees the transform. */
static void assert_draws(ek_transform *transform, ek_tensor *in, uint64_t seed,
                         const ek_tensor *rows, const ek_tensor *next)
{
    ek_generator *generator = ek_generator_new(seed);
    assert_made(transform);
    for (int64_t i = 0; i < ek_tensor_size(rows, 0); i++)
        assert_close(ek_transform_apply(&transform, 1, in, generator), row(rows, i), 0, 0);
    assert_next(generator, next);
    /* Without a generator: from the default one. */
    ek_manual_seed(seed);
    assert_close(ek_transform_apply(&transform, 1, in, NULL), row(rows, 0), 0, 0);
    ek_generator_free(generator);
    ek_transform_free(transform);
}

/* ---- crops ---- */

TEST(random_crops)
{
    static const struct {
        const char *name;
        ek_crop_options options;
    } cases[] = {
        {"padded", {.height = 11, .padding = 2}},
        {"inside", {.height = 8, .width = 5}},
        {"exact", {.height = 11}},
        {"needed", {.height = 14, .width = 17, .padding = 1, .fill = 5, .pad_if_needed = true}},
        {"needed_width", {.height = 9, .width = 15, .pad_if_needed = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_draws(ek_random_crop_with(cases[i].options), named("in/%s", "u8", ""), 42,
                     named("random_crop/%s/u8", cases[i].name, ""),
                     named("random_crop/%s/u8/next", cases[i].name, ""));
}

TEST(random_crops_of_all_dtypes)
{
    for (int i = 0; i < DTYPES; i++)
        assert_draws(ek_random_crop(5, 7, .padding = 3, .fill = 7), named("in/%s", dtypes[i], ""),
                     42, named("random_crop/filled/%s", dtypes[i], ""),
                     named("random_crop/filled/%s/next", dtypes[i], ""));
}

TEST(center_crops)
{
    ek_tensor *in = named("in/%s", "u8", "");
    assert_close(apply(ek_center_crop(7, 9), in, NULL), golden(file, "center_crop/even"), 0, 0);
    assert_close(apply(ek_center_crop(8, 6), in, NULL), golden(file, "center_crop/odd"), 0, 0);
    assert_close(apply(ek_center_crop(14, 5, .fill = 3), in, NULL),
                 golden(file, "center_crop/larger"), 0, 0);
    /* It pads by itself, so that asking for it changes nothing. */
    assert_close(apply(ek_center_crop(14, 5, .fill = 3, .pad_if_needed = true), in, NULL),
                 golden(file, "center_crop/larger"), 0, 0);
    assert_close(apply(ek_center_crop(17, 13, .padding = 2, .fill = 9), in, NULL),
                 golden(file, "center_crop/padded"), 0, 0);
}

/* Every dtype becomes f32; only u8 is scaled. */
TEST(to_float_of_every_dtype)
{
    const double values[] = {0, 1, 1, 0}, bytes[] = {0, 255, 255, 0};
    for (int d = 0; d < EK_DTYPES; d++) {
        ek_dtype dtype = (ek_dtype)d;
        const double *given = dtype == EK_U8 ? bytes : values;
        assert_close(apply(ek_to_float(), tensor_of(given, EK_SHAPE(2, 2), dtype, ek_cpu()), NULL),
                     tensor_of(values, EK_SHAPE(2, 2), EK_F32, ek_cpu()), 0, 0);
    }
    ek_tensor *labels = tensor_of((const double[]){2, 0}, EK_SHAPE(2), EK_I32, ek_cpu());
    assert_close(apply(ek_one_hot(3), labels, NULL),
                 tensor_of((const double[]){0, 0, 1, 1, 0, 0}, EK_SHAPE(2, 3), EK_F32, ek_cpu()), 0,
                 0);
    assert_refused(apply(ek_center_crop(3, .fill = 2), full(0, EK_SHAPE(2, 2), EK_BOOL), NULL),
                   EK_E_DTYPE, "bool[2, 2] cannot be filled by 2; a whole number in [0, 1]");
}

/* A fill that each dtype rounds in its own way. */
TEST(fills)
{
    ek_tensor *in = tensor_of((double[]){1, 2, 3, 4}, EK_SHAPE(2, 2), EK_BF16, ek_cpu());
    ek_tensor *out = apply(ek_center_crop(2, 4, .fill = -0.3), in, NULL);
    double third = -0.30078125;
    assert_close(out,
                 tensor_of((double[]){third, 1, 2, third, third, 3, 4, third}, EK_SHAPE(2, 4),
                           EK_BF16, ek_cpu()),
                 0, 0);
    out = apply(ek_center_crop(1, 4, .fill = NAN), in, NULL);
    ck_assert(isnan(element(out, 0)));
    in = tensor_of((double[]){1}, EK_SHAPE(1, 1), EK_I64, ek_cpu());
    ck_assert_double_eq(element(apply(ek_center_crop(3, .fill = -5e9), in, NULL), 0), -5e9);
}

/* Windows that lie beside the picture, and pictures without pixels. */
TEST(crops_of_little)
{
    ek_tensor *in = tensor_of((double[]){7}, EK_SHAPE(1, 1), EK_U8, ek_cpu());
    ek_generator *generator = ek_generator_new(5);
    int seen = 0;
    for (int i = 0; i < 200; i++) {
        ek_tensor *out = apply(ek_random_crop(1, .padding = 1, .fill = 1), in, generator);
        seen += element(out, 0) == 7;
        ck_assert(element(out, 0) == 7 || element(out, 0) == 1);
    }
    ck_assert_int_gt(seen, 5); /* a ninth of them */
    ck_assert_int_lt(seen, 50);
    ek_generator_free(generator);

    ek_tensor *none = full(0, EK_SHAPE(3, 0, 4), EK_F32);
    ek_tensor *out = apply(ek_center_crop(2, .fill = 0.5), none, NULL);
    assert_close(out, full(0.5, EK_SHAPE(3, 2, 2), EK_F32), 0, 0);
    ck_assert_int_eq(ek_tensor_count(
                         apply(ek_center_crop(2), full(0, EK_SHAPE(0, 1, 4), EK_F32), NULL)),
                     0);
}

/* ---- flips ---- */

TEST(flips)
{
    for (int i = 0; i < DTYPES; i++) {
        ek_tensor *in =
            row(named("in/%s", dtypes[i], ""), 0); /* 11 x 11; a part of it is flipped */
        double values[35];
        for (int at = 0; at < 35; at++)
            values[at] = element(in, at / 7 * 11 + at % 7);
        in = tensor_of(values, EK_SHAPE(5, 7), ek_tensor_dtype(in), ek_cpu());
        assert_draws(ek_random_horizontal_flip(0.3), in, 3,
                     named("flip/horizontal/%s", dtypes[i], ""),
                     named("flip/horizontal/%s/next", dtypes[i], ""));
        assert_draws(ek_random_vertical_flip(0.3), in, 3, named("flip/vertical/%s", dtypes[i], ""),
                     named("flip/vertical/%s/next", dtypes[i], ""));
    }
}

TEST(flips_of_planes)
{
    ek_tensor *in =
        tensor_of((double[]){1, 2, 3, 4, 5, 6, 7, 8}, EK_SHAPE(2, 2, 2), EK_F32, ek_cpu());
    assert_close(apply(ek_random_horizontal_flip(1), in, NULL),
                 tensor_of((double[]){2, 1, 4, 3, 6, 5, 8, 7}, EK_SHAPE(2, 2, 2), EK_F32, ek_cpu()),
                 0, 0);
    assert_close(apply(ek_random_vertical_flip(1), in, NULL),
                 tensor_of((double[]){3, 4, 1, 2, 7, 8, 5, 6}, EK_SHAPE(2, 2, 2), EK_F32, ek_cpu()),
                 0, 0);
    for (int i = 0; i < 20; i++)
        assert_close(apply(ek_random_vertical_flip(0), in, NULL), in, 0, 0);
    ek_tensor *none = full(0, EK_SHAPE(2, 3, 0), EK_F32);
    ck_assert_int_eq(ek_tensor_count(apply(ek_random_vertical_flip(1), none, NULL)), 0);
    ck_assert_int_eq(ek_tensor_count(apply(ek_random_horizontal_flip(1), none, NULL)), 0);
}

/* ---- elements ---- */

TEST(floats)
{
    for (int i = 0; i < DTYPES; i++)
        assert_close(apply(ek_to_float(), named("in/%s", dtypes[i], ""), NULL),
                     named("to_float/%s", dtypes[i], ""), 0, 0);
    assert_close(apply(ek_to_float(),
                       tensor_of((double[]){255}, ek_scalar_shape(), EK_U8, ek_cpu()), NULL),
                 full(1, ek_scalar_shape(), EK_F32), 0, 0);
}

TEST(normalized)
{
    double mean[3] = {0.4914, 0.4822, 0.4465}, std[3] = {0.247, 0.2435, 0.2616};
    for (int i = 2; i < 4; i++) {
        ek_tensor *in = named("normalize/in/%s", dtypes[i], "");
        ek_transform *transform = ek_normalize(mean, std, 3);
        double kept = mean[1];
        mean[1] = 1e9; /* they were copied */
        assert_close(apply(transform, in, NULL), named("normalize/channels/%s", dtypes[i], ""), 0,
                     0);
        mean[1] = kept;
        assert_close(apply(ek_normalize((double[]){0.1307}, (double[]){0.3081}, 1), in, NULL),
                     named("normalize/one/%s", dtypes[i], ""), 0, 0);
    }
}

TEST(all_bytes)
{
    double values[256];
    for (int i = 0; i < 256; i++)
        values[i] = i;
    ek_transform *chain[] = {ek_to_float(),
                             ek_normalize((double[]){0.1307}, (double[]){0.3081}, 1)};
    ek_tensor *in = tensor_of(values, EK_SHAPE(1, 16, 16), EK_U8, ek_cpu());
    assert_close(ek_transform_apply(chain, 2, in, NULL), golden(file, "pixels"), 0, 0);
    ek_transform_free(chain[0]);
    ek_transform_free(chain[1]);
}

TEST(one_hots)
{
    ek_tensor *labels = golden(file, "labels"), *expected = golden(file, "one_hot");
    assert_close(apply(ek_one_hot(10), labels, NULL), expected, 0, 0);
    double values[6];
    for (int i = 0; i < 6; i++)
        values[i] = element(labels, i);
    assert_close(apply(ek_one_hot(10), tensor_of(values, EK_SHAPE(2, 3), EK_U8, ek_cpu()), NULL),
                 expected, 0, 0);
    assert_refused(apply(ek_one_hot(9), labels, NULL), EK_E_INVALID,
                   "one_hot: label 9; labels of 9 classes lie in [0, 9)");
    assert_refused(apply(ek_one_hot(9), full(-1, EK_SHAPE(1), EK_I64), NULL), EK_E_INVALID,
                   "label -1");
    assert_refused(apply(ek_one_hot(200), full(200, EK_SHAPE(1), EK_U8), NULL), EK_E_INVALID,
                   "label 200");
}

/* ---- resizing ---- */

static const struct {
    const char *name;
    int64_t height, width;
} sizes[] = {{"down", 5, 6}, {"up", 19, 17}, {"double", 26, 18},
             {"edge", 7, 0}, {"one", 1, 1},  {"wide", 13, 5}};

TEST(nearest)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int d = 0; d < DTYPES; d++)
            assert_close(apply(ek_resize(sizes[i].height, sizes[i].width, .nearest = true),
                               named("tall/%s", dtypes[d], ""), NULL),
                         named("nearest/%s/%s", sizes[i].name, dtypes[d]), 0, 0);
}

static ek_tensor *resized(size_t size, const char *dtype)
{
    return apply(ek_resize(sizes[size].height, sizes[size].width), named("tall/%s", dtype, ""),
                 NULL);
}

/* Torch may fuse products and sums: places in [8, 16) then differ by half a unit, 2^-21 of f32, in
 * either direction, between pixels that differ by up to 6. */
TEST(bilinear)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_close(resized(i, "f32"), named("bilinear/%s/f32", sizes[i].name, ""), 0, 6e-6);
        assert_close(resized(i, "f64"), named("bilinear/%s/f64", sizes[i].name, ""), 0, 1.2e-14);
    }
}

/* Halves that f32 represents go to the even neighbour; if it doesn't, to either. */
TEST(bilinear_bytes)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bool unsure = strcmp(sizes[i].name, "down") == 0 || strcmp(sizes[i].name, "edge") == 0;
        ek_tensor *out = resized(i, "u8"), *exact = named("bilinear/%s/exact", sizes[i].name, "");
        assert_close(out, named("bilinear/%s/u8", sizes[i].name, ""), 0, unsure);
        for (int64_t at = 0; at < ek_tensor_count(out); at++)
            ck_assert_double_le(fabs(element(out, at) - element(exact, at)), 0.5001);
    }
    assert_close(apply(ek_resize(23), golden(file, "wide"), NULL),
                 golden(file, "bilinear/edge_wide"), 0, 0);
    /* The right size already: as it is, also if arithmetic would change it. */
    ek_tensor *in =
        tensor_of((double[]){INFINITY, 1, -INFINITY, 3}, EK_SHAPE(2, 2), EK_F32, ek_cpu());
    ck_assert(element(apply(ek_resize(2, 2), in, NULL), 0) == INFINITY);
    ck_assert(element(apply(ek_resize(2), in, NULL), 2) == -INFINITY);
}

/* ---- what is refused ---- */

TEST(pictures_refused)
{
    const ek_shape flat = EK_SHAPE(28), small = EK_SHAPE(1, 20, 30);
    const double three[] = {1, 1, 1}, tiny[] = {1e-60};
    assert_not_applied(ek_random_crop(28), flat, EK_U8, EK_E_SHAPE,
                       "random_crop: u8[28] is no picture");
    assert_not_applied(ek_center_crop(28), flat, EK_U8, EK_E_SHAPE,
                       "center_crop: u8[28] is no picture");
    assert_not_applied(ek_random_horizontal_flip(1), flat, EK_U8, EK_E_SHAPE,
                       "random_horizontal_flip: u8[28] is no picture");
    assert_not_applied(ek_random_vertical_flip(1), flat, EK_U8, EK_E_SHAPE,
                       "random_vertical_flip: u8[28]");
    assert_not_applied(ek_resize(3), flat, EK_U8, EK_E_SHAPE, "resize: u8[28] is no picture");
    assert_not_applied(ek_random_crop(28), small, EK_U8, EK_E_SHAPE,
                       "random_crop: u8[1, 20, 30] is smaller than 28 x 28");
    assert_not_applied(ek_random_crop(20, 35, .padding = 2), small, EK_U8, EK_E_SHAPE,
                       "u8[1, 20, 30], padded, is smaller than 20 x 35; .pad_if_needed");
    assert_not_applied(
        ek_center_crop(28, .fill = 0.5), small, EK_U8, EK_E_DTYPE,
        "center_crop: u8[1, 20, 30] cannot be filled by 0.5; a whole number in [0, 255]");
    assert_not_applied(ek_random_crop(20, .fill = 256), small, EK_U8, EK_E_DTYPE, "filled by 256");
    assert_not_applied(ek_random_crop(20, .fill = -1), small, EK_U8, EK_E_DTYPE, "filled by -1");
    assert_not_applied(ek_center_crop(1, .fill = 0x1p63), EK_SHAPE(2, 2), EK_I64, EK_E_DTYPE,
                       "i64[2, 2] cannot be filled by 9.2");
    assert_not_applied(ek_center_crop(1, .fill = NAN), small, EK_U8, EK_E_DTYPE, "filled by nan");
    assert_not_applied(ek_resize(3), EK_SHAPE(1, 0, 4), EK_F32, EK_E_SHAPE,
                       "resize: f32[1, 0, 4] has no pixels");
    assert_not_applied(ek_resize(3), EK_SHAPE(1, 4, 4), EK_I64, EK_E_DTYPE,
                       "resize: i64[1, 4, 4]; u8, f32 and f64");
    assert_not_applied(ek_resize(3), EK_SHAPE(1, 4, 4), EK_BF16, EK_E_DTYPE, ".nearest");
    assert_not_applied(ek_normalize(three, three, 3), small, EK_U8, EK_E_DTYPE,
                       "normalize: u8[1, 20, 30]; f32 and f64 are normalized (ek_to_float");
    assert_not_applied(ek_normalize(three, three, 3), EK_SHAPE(2, 4, 4), EK_F32, EK_E_SHAPE,
                       "normalize: f32[2, 4, 4]; 3 means");
    assert_not_applied(ek_normalize(three, three, 3), EK_SHAPE(3, 3), EK_F32, EK_E_SHAPE,
                       "f32[3, 3]");
    assert_not_applied(ek_normalize(three, tiny, 1), EK_SHAPE(1), EK_F32, EK_E_DTYPE,
                       "normalize: a deviation of 1e-60 (channel 0) is 0 in f32");
    assert_made(apply(ek_normalize(three, tiny, 1), full(0, EK_SHAPE(1), EK_F64), NULL));
    assert_not_applied(ek_one_hot(2), EK_SHAPE(2), EK_F32, EK_E_DTYPE,
                       "one_hot: f32[2]; labels are");
    assert_not_applied(ek_one_hot(2), EK_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), EK_I64, EK_E_SHAPE,
                       "dimension 9");
    assert_not_applied(ek_center_crop(1), EK_SHAPE(0, INT64_C(1) << 40, 1), EK_F32, EK_E_SHAPE,
                       "larger than pictures are");
    assert_not_applied(ek_center_crop(INT64_C(1) << 31), small, EK_U8, EK_E_SHAPE,
                       "more than memory can hold");
    assert_not_applied(ek_one_hot(INT64_MAX), EK_SHAPE(2), EK_I64, EK_E_SHAPE,
                       "more than memory can hold");
}

TEST(options_refused)
{
    const double one[] = {1}, zero[] = {0}, negative[] = {-1}, nan_[] = {NAN};
    assert_not_made(ek_random_crop(0), "random_crop: a size of 0 x 0");
    assert_not_made(ek_random_crop(3, -1), "random_crop: a size of 3 x -1");
    assert_not_made(ek_random_crop(INT64_MAX), "a size of 9223372036854775807");
    assert_not_made(ek_center_crop(-3), "center_crop: a size of -3");
    assert_not_made(ek_random_crop(3, .padding = -1), "random_crop: a padding of -1");
    assert_not_made(ek_center_crop(3, .padding = INT64_MAX), "center_crop: a padding of 92");
    assert_not_made(ek_random_horizontal_flip(1.5), "random_horizontal_flip: the probability");
    assert_not_made(ek_random_vertical_flip(NAN), "random_vertical_flip: the probability");
    assert_not_made(ek_resize(0), "resize: to 0 x 0");
    assert_not_made(ek_resize(4, -1), "resize: to 4 x -1");
    assert_not_made(ek_resize(4, INT64_MAX), "resize: to 4 x 92");
    assert_not_made(ek_one_hot(0), "one_hot: 0 classes");
    assert_not_made(ek_normalize(one, one, 0), "normalize: 0 channels");
    assert_not_made(ek_normalize(NULL, one, 1), "no means");
    assert_not_made(ek_normalize(one, NULL, 1), "no deviations");
    assert_not_made(ek_normalize(one, zero, 1), "normalize: channel 0 has mean 1 and deviation 0");
    assert_not_made(ek_normalize(one, negative, 1), "deviation -1");
    assert_not_made(ek_normalize(one, nan_, 1), "deviation nan");
    assert_not_made(ek_normalize(nan_, one, 1), "mean nan");
}
