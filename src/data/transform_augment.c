/* transform_augment.c: policies that draw operations and magnitudes: auto_augment, rand_augment,
 * trivial_augment_wide.
 *
 * AutoAugment: Cubuk et al., 2019; RandAugment: Cubuk et al., 2020; TrivialAugment: Müller and
 * Hutter, 2021. Operations, magnitudes and draws are torchvision's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "core/linspace.h"
#include "data/transform_picture.h"

/* In torchvision's order. rand_augment and trivial_augment_wide draw all but AUGMENT_INVERT. */
typedef enum operation {
    AUGMENT_IDENTITY,
    AUGMENT_SHEAR_X,
    AUGMENT_SHEAR_Y,
    AUGMENT_TRANSLATE_X,
    AUGMENT_TRANSLATE_Y,
    AUGMENT_ROTATE,
    AUGMENT_BRIGHTNESS,
    AUGMENT_COLOR,
    AUGMENT_CONTRAST,
    AUGMENT_SHARPNESS,
    AUGMENT_POSTERIZE,
    AUGMENT_SOLARIZE,
    AUGMENT_AUTOCONTRAST,
    AUGMENT_EQUALIZE,
    AUGMENT_INVERT
} operation;

/* An operation of a policy: its probability in tenths, and its magnitude in [0, 10). */
typedef struct policy_step {
    operation what;
    int tenths, magnitude;
} policy_step;

enum { POLICIES = 3, PAIRS = 25 };

static const policy_step policies[POLICIES][PAIRS][2] =
    {
        [EK_POLICY_IMAGENET] =
            {
                {{AUGMENT_POSTERIZE, 4, 8}, {AUGMENT_ROTATE, 6, 9}},
                {{AUGMENT_SOLARIZE, 6, 5}, {AUGMENT_AUTOCONTRAST, 6, 0}},
                {{AUGMENT_EQUALIZE, 8, 0}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_POSTERIZE, 6, 7}, {AUGMENT_POSTERIZE, 6, 6}},
                {{AUGMENT_EQUALIZE, 4, 0}, {AUGMENT_SOLARIZE, 2, 4}},
                {{AUGMENT_EQUALIZE, 4, 0}, {AUGMENT_ROTATE, 8, 8}},
                {{AUGMENT_SOLARIZE, 6, 3}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_POSTERIZE, 8, 5}, {AUGMENT_EQUALIZE, 10, 0}},
                {{AUGMENT_ROTATE, 2, 3}, {AUGMENT_SOLARIZE, 6, 8}},
                {{AUGMENT_EQUALIZE, 6, 0}, {AUGMENT_POSTERIZE, 4, 6}},
                {{AUGMENT_ROTATE, 8, 8}, {AUGMENT_COLOR, 4, 0}},
                {{AUGMENT_ROTATE, 4, 9}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_EQUALIZE, 0, 0}, {AUGMENT_EQUALIZE, 8, 0}},
                {{AUGMENT_INVERT, 6, 0}, {AUGMENT_EQUALIZE, 10, 0}},
                {{AUGMENT_COLOR, 6, 4}, {AUGMENT_CONTRAST, 10, 8}},
                {{AUGMENT_ROTATE, 8, 8}, {AUGMENT_COLOR, 10, 2}},
                {{AUGMENT_COLOR, 8, 8}, {AUGMENT_SOLARIZE, 8, 7}},
                {{AUGMENT_SHARPNESS, 4, 7}, {AUGMENT_INVERT, 6, 0}},
                {{AUGMENT_SHEAR_X, 6, 5}, {AUGMENT_EQUALIZE, 10, 0}},
                {{AUGMENT_COLOR, 4, 0}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_EQUALIZE, 4, 0}, {AUGMENT_SOLARIZE, 2, 4}},
                {{AUGMENT_SOLARIZE, 6, 5}, {AUGMENT_AUTOCONTRAST, 6, 0}},
                {{AUGMENT_INVERT, 6, 0}, {AUGMENT_EQUALIZE, 10, 0}},
                {{AUGMENT_COLOR, 6, 4}, {AUGMENT_CONTRAST, 10, 8}},
                {{AUGMENT_EQUALIZE, 8, 0}, {AUGMENT_EQUALIZE, 6, 0}},
            },
        [EK_POLICY_CIFAR10] =
            {
                {{AUGMENT_INVERT, 1, 0}, {AUGMENT_CONTRAST, 2, 6}},
                {{AUGMENT_ROTATE, 7, 2}, {AUGMENT_TRANSLATE_X, 3, 9}},
                {{AUGMENT_SHARPNESS, 8, 1}, {AUGMENT_SHARPNESS, 9, 3}},
                {{AUGMENT_SHEAR_Y, 5, 8}, {AUGMENT_TRANSLATE_Y, 7, 9}},
                {{AUGMENT_AUTOCONTRAST, 5, 0}, {AUGMENT_EQUALIZE, 9, 0}},
                {{AUGMENT_SHEAR_Y, 2, 7}, {AUGMENT_POSTERIZE, 3, 7}},
                {{AUGMENT_COLOR, 4, 3}, {AUGMENT_BRIGHTNESS, 6, 7}},
                {{AUGMENT_SHARPNESS, 3, 9}, {AUGMENT_BRIGHTNESS, 7, 9}},
                {{AUGMENT_EQUALIZE, 6, 0}, {AUGMENT_EQUALIZE, 5, 0}},
                {{AUGMENT_CONTRAST, 6, 7}, {AUGMENT_SHARPNESS, 6, 5}},
                {{AUGMENT_COLOR, 7, 7}, {AUGMENT_TRANSLATE_X, 5, 8}},
                {{AUGMENT_EQUALIZE, 3, 0}, {AUGMENT_AUTOCONTRAST, 4, 0}},
                {{AUGMENT_TRANSLATE_Y, 4, 3}, {AUGMENT_SHARPNESS, 2, 6}},
                {{AUGMENT_BRIGHTNESS, 9, 6}, {AUGMENT_COLOR, 2, 8}},
                {{AUGMENT_SOLARIZE, 5, 2}, {AUGMENT_INVERT, 0, 0}},
                {{AUGMENT_EQUALIZE, 2, 0}, {AUGMENT_AUTOCONTRAST, 6, 0}},
                {{AUGMENT_EQUALIZE, 2, 0}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_COLOR, 9, 9}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_AUTOCONTRAST, 8, 0}, {AUGMENT_SOLARIZE, 2, 8}},
                {{AUGMENT_BRIGHTNESS, 1, 3}, {AUGMENT_COLOR, 7, 0}},
                {{AUGMENT_SOLARIZE, 4, 5}, {AUGMENT_AUTOCONTRAST, 9, 0}},
                {{AUGMENT_TRANSLATE_Y, 9, 9}, {AUGMENT_TRANSLATE_Y, 7, 9}},
                {{AUGMENT_AUTOCONTRAST, 9, 0}, {AUGMENT_SOLARIZE, 8, 3}},
                {{AUGMENT_EQUALIZE, 8, 0}, {AUGMENT_INVERT, 1, 0}},
                {{AUGMENT_TRANSLATE_Y, 7, 9}, {AUGMENT_AUTOCONTRAST, 9, 0}},
            },
        [EK_POLICY_SVHN] =
            {
                {{AUGMENT_SHEAR_X, 9, 4}, {AUGMENT_INVERT, 2, 0}},
                {{AUGMENT_SHEAR_Y, 9, 8}, {AUGMENT_INVERT, 7, 0}},
                {{AUGMENT_EQUALIZE, 6, 0}, {AUGMENT_SOLARIZE, 6, 6}},
                {{AUGMENT_INVERT, 9, 0}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_EQUALIZE, 6, 0}, {AUGMENT_ROTATE, 9, 3}},
                {{AUGMENT_SHEAR_X, 9, 4}, {AUGMENT_AUTOCONTRAST, 8, 0}},
                {{AUGMENT_SHEAR_Y, 9, 8}, {AUGMENT_INVERT, 4, 0}},
                {{AUGMENT_SHEAR_Y, 9, 5}, {AUGMENT_SOLARIZE, 2, 6}},
                {{AUGMENT_INVERT, 9, 0}, {AUGMENT_AUTOCONTRAST, 8, 0}},
                {{AUGMENT_EQUALIZE, 6, 0}, {AUGMENT_ROTATE, 9, 3}},
                {{AUGMENT_SHEAR_X, 9, 4}, {AUGMENT_SOLARIZE, 3, 3}},
                {{AUGMENT_SHEAR_Y, 8, 8}, {AUGMENT_INVERT, 7, 0}},
                {{AUGMENT_EQUALIZE, 9, 0}, {AUGMENT_TRANSLATE_Y, 6, 6}},
                {{AUGMENT_INVERT, 9, 0}, {AUGMENT_EQUALIZE, 6, 0}},
                {{AUGMENT_CONTRAST, 3, 3}, {AUGMENT_ROTATE, 8, 4}},
                {{AUGMENT_INVERT, 8, 0}, {AUGMENT_TRANSLATE_Y, 0, 2}},
                {{AUGMENT_SHEAR_Y, 7, 6}, {AUGMENT_SOLARIZE, 4, 8}},
                {{AUGMENT_INVERT, 6, 0}, {AUGMENT_ROTATE, 8, 4}},
                {{AUGMENT_SHEAR_Y, 3, 7}, {AUGMENT_TRANSLATE_X, 9, 3}},
                {{AUGMENT_SHEAR_X, 1, 6}, {AUGMENT_INVERT, 6, 0}},
                {{AUGMENT_SOLARIZE, 7, 2}, {AUGMENT_TRANSLATE_Y, 6, 7}},
                {{AUGMENT_SHEAR_Y, 8, 4}, {AUGMENT_INVERT, 8, 0}},
                {{AUGMENT_SHEAR_X, 7, 9}, {AUGMENT_TRANSLATE_Y, 8, 3}},
                {{AUGMENT_SHEAR_Y, 8, 5}, {AUGMENT_AUTOCONTRAST, 7, 0}},
                {{AUGMENT_SHEAR_X, 7, 2}, {AUGMENT_INVERT, 1, 0}},
            },
};

typedef struct augment {
    ek_transform transform;
    ek_augment_policy policy;
    int operations, magnitude, bins;
    bool wide;    /* the ranges of trivial_augment_wide */
    ek_warp warp; /* interpolation and fill */
} augment;

/* ---- magnitudes ---- */

static bool augment_is_signed(operation what)
{
    return what >= AUGMENT_SHEAR_X && what <= AUGMENT_SHARPNESS;
}

static bool augment_has_magnitude(operation what)
{
    return what >= AUGMENT_SHEAR_X && what <= AUGMENT_SOLARIZE;
}

static double augment_most(const augment *self, operation what, ek_picture picture)
{
    const double share = 150.0 / 331.0;
    switch (what) {
    case AUGMENT_SHEAR_X:
    case AUGMENT_SHEAR_Y:
        return self->wide ? 0.99 : 0.3;
    case AUGMENT_TRANSLATE_X:
        return self->wide ? 32 : share * (double)picture.width;
    case AUGMENT_TRANSLATE_Y:
        return self->wide ? 32 : share * (double)picture.height;
    case AUGMENT_ROTATE:
        return self->wide ? 135 : 30;
    default:
        return self->wide ? 0.99 : 0.9;
    }
}

/* The magnitude of bin `number` of self->bins. */
static double augment_magnitude(const augment *self, operation what, int number, ek_picture picture)
{
    if (!augment_has_magnitude(what))
        return 0;
    if (what == AUGMENT_SOLARIZE)
        return ek_linspace_f32(255, 0, self->bins, number);
    if (what == AUGMENT_POSTERIZE) {
        double unit = (double)(self->bins - 1) / (self->wide ? 6 : 4);
        return 8 - (double)rintf((float)number / (float)unit);
    }
    return ek_linspace_f32(0, (float)augment_most(self, what, picture), self->bins, number);
}

/* ---- operations ---- */

/* Operations that move pixels. They read `from`, and write `x`. */
static int augment_move(const augment *self, operation what, double magnitude, const ek_array *from,
                        ek_array *x)
{
    ek_picture picture = ek_picture_of(x);
    const double corner[2] = {-(double)picture.width * 0.5, -(double)picture.height * 0.5};
    const double middle[2] = {0, 0};
    double shift[2] = {0, 0}, shear[2] = {0, 0}, angle = 0;
    bool shears = what == AUGMENT_SHEAR_X || what == AUGMENT_SHEAR_Y;
    ek_warp warp = self->warp;
    if (shears)
        shear[what - AUGMENT_SHEAR_X] = atan(magnitude) * (180 / 3.14159265358979323846);
    else if (what == AUGMENT_ROTATE)
        angle = -magnitude;
    else
        shift[what - AUGMENT_TRANSLATE_X] = trunc(magnitude);
    ek_warp_affine(&warp, shears ? corner : middle, angle, shift, 1, shear);
    return ek_picture_warp(from, x, &warp);
}

static void augment_change(operation what, double magnitude, ek_array *x)
{
    switch (what) {
    case AUGMENT_BRIGHTNESS:
        ek_adjust_brightness(x, 1 + magnitude);
        break;
    case AUGMENT_COLOR:
        ek_adjust_saturation(x, 1 + magnitude);
        break;
    case AUGMENT_CONTRAST:
        ek_adjust_contrast(x, 1 + magnitude);
        break;
    case AUGMENT_POSTERIZE:
        ek_picture_posterize(x, (int)magnitude);
        break;
    case AUGMENT_SOLARIZE:
        ek_picture_solarize(x, magnitude);
        break;
    case AUGMENT_AUTOCONTRAST:
        ek_picture_autocontrast(x);
        break;
    case AUGMENT_EQUALIZE:
        ek_picture_equalize(x);
        break;
    case AUGMENT_INVERT:
        ek_picture_invert(x);
        break;
    default:
        break;
    }
}

static int augment_run(const augment *self, operation what, double magnitude, ek_array *x)
{
    if (what != AUGMENT_SHARPNESS && (what < AUGMENT_SHEAR_X || what > AUGMENT_ROTATE)) {
        augment_change(what, magnitude, x);
        return 0;
    }
    ek_array from = *x;
    from.data = ek_calloc((size_t)ek_shape_count(&x->shape) + 1, 1); /* u8 */
    if (!from.data)
        return EK_E_NO_MEMORY;
    int rc = 0;
    ek_array_keep(x, &from);
    if (what == AUGMENT_SHARPNESS)
        ek_picture_sharpen(&from, x, 1 + magnitude);
    else
        rc = augment_move(self, what, magnitude, &from, x);
    free(from.data);
    return rc;
}

/* ---- the transforms ---- */

static int augment_describe(const ek_transform *transform, ek_array *array)
{
    const augment *self = (const augment *)transform;
    char text[200];
    EK_TRY(ek_color_check(transform, array));
    if (array->dtype != EK_U8)
        return EK_FAIL(EK_E_DTYPE, "%s: %s; u8 pictures are augmented (before ek_to_float)",
                       transform->type->name, ek_array_text(array, text));
    return ek_warp_check(transform, array, &self->warp);
}

static int augment_apply_auto(const ek_transform *transform, const ek_array *in, ek_array *out,
                              ek_generator *generator)
{
    const augment *self = (const augment *)transform;
    float chance[2];
    bool positive[2];
    ek_array_keep(in, out);
    generator = ek_generator_lock(generator);
    const policy_step *pair = policies[self->policy][ek_generator_below(generator, PAIRS)];
    for (int i = 0; i < 2; i++)
        chance[i] = ek_generator_f32(generator);
    for (int i = 0; i < 2; i++)
        positive[i] = ek_generator_below(generator, 2) != 0;
    ek_generator_unlock(generator);
    for (int i = 0; i < 2; i++) {
        operation what = pair[i].what;
        if (!(chance[i] <= (float)(pair[i].tenths / 10.0)))
            continue;
        double magnitude = augment_magnitude(self, what, pair[i].magnitude, ek_picture_of(in));
        bool negative = augment_is_signed(what) && !positive[i];
        EK_TRY(augment_run(self, what, negative ? -magnitude : magnitude, out));
    }
    return 0;
}

/* Draws each operation when the one before is done, as torchvision does; no operation draws. */
static int augment_apply_rand(const ek_transform *transform, const ek_array *in, ek_array *out,
                              ek_generator *generator)
{
    const augment *self = (const augment *)transform;
    ek_array_keep(in, out);
    for (int i = 0; i < self->operations; i++) {
        ek_generator *locked = ek_generator_lock(generator);
        operation what = (operation)ek_generator_below(locked, AUGMENT_INVERT);
        int number = self->magnitude;
        if (self->wide && augment_has_magnitude(what))
            number = (int)ek_generator_below(locked, self->bins);
        bool negative = augment_is_signed(what) && ek_generator_below(locked, 2) != 0;
        ek_generator_unlock(locked);
        double magnitude = augment_magnitude(self, what, number, ek_picture_of(in));
        EK_TRY(augment_run(self, what, negative ? -magnitude : magnitude, out));
    }
    return 0;
}

static const ek_transform_type auto_type = {.name = "auto_augment",
                                            .size = sizeof(augment),
                                            .describe = augment_describe,
                                            .apply = augment_apply_auto};
static const ek_transform_type rand_type = {.name = "rand_augment",
                                            .size = sizeof(augment),
                                            .describe = augment_describe,
                                            .apply = augment_apply_rand};
static const ek_transform_type trivial_type = {.name = "trivial_augment_wide",
                                               .size = sizeof(augment),
                                               .describe = augment_describe,
                                               .apply = augment_apply_rand};

/* `fill` is EK_UNSET if there is none. */
static augment *augment_new(const ek_transform_type *type, bool bilinear, double fill)
{
    augment *self = (augment *)ek_transform_new(type);
    const bool fills = fill != EK_UNSET;
    if (self)
        self->warp = (ek_warp){.bilinear = bilinear, .fills = fills, .fill = fills ? fill : 0};
    return self;
}

ek_transform *ek_auto_augment_with(ek_auto_augment_options options)
{
    if ((int)options.policy < 0 || (int)options.policy >= POLICIES)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "auto_augment: policy %d; EK_POLICY_IMAGENET, EK_POLICY_CIFAR10 and "
                            "EK_POLICY_SVHN there are",
                            (int)options.policy);
    augment *self = augment_new(&auto_type, options.bilinear, options.fill);
    if (!self)
        return NULL;
    self->policy = options.policy;
    self->bins = 10;
    return &self->transform;
}

static int augment_check_bins(const char *name, int64_t bins)
{
    if (bins >= 2 && bins <= 1 << 20)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: %lld num_magnitude_bins; 2 to 2^20 there can be", name,
                   (long long)bins);
}

ek_transform *ek_rand_augment_with(ek_rand_augment_options options)
{
    const int64_t operations = options.num_ops, magnitude = options.magnitude;
    const int64_t bins = options.num_magnitude_bins;
    if (augment_check_bins("rand_augment", bins) < 0)
        return NULL;
    if (operations < 0 || magnitude < 0 || magnitude >= bins)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "rand_augment: num_ops %lld, magnitude %lld; num_ops is not negative, "
                            "and the magnitude is in [0, num_magnitude_bins = %lld)",
                            (long long)operations, (long long)magnitude, (long long)bins);
    augment *self = augment_new(&rand_type, options.bilinear, options.fill);
    if (!self)
        return NULL;
    self->operations = (int)operations;
    self->magnitude = (int)magnitude;
    self->bins = (int)bins;
    return &self->transform;
}

ek_transform *ek_trivial_augment_wide_with(ek_trivial_augment_options options)
{
    const int64_t bins = options.num_magnitude_bins;
    if (augment_check_bins("trivial_augment_wide", bins) < 0)
        return NULL;
    augment *self = augment_new(&trivial_type, options.bilinear, options.fill);
    if (!self)
        return NULL;
    self->operations = 1;
    self->wide = true;
    self->bins = (int)bins;
    return &self->transform;
}
