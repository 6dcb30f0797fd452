/* transform_augment.c: policies that draw operations and magnitudes: auto_augment, rand_augment,
 * trivial_augment_wide.
 *
 * AutoAugment: Cubuk et al., 2019; RandAugment: Cubuk et al., 2020; TrivialAugment: Müller and
 * Hutter, 2021. Operations, magnitudes and draws are torchvision's. */
#include <math.h>
#include <stdlib.h>

#include "core/linspace.h"
#include "data/transform_operation.h"

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
    ek_augment_policy policy;
    int operations, magnitude, bins;
    bool wide;    /* the ranges of trivial_augment_wide */
    ek_warp warp; /* interpolation and fill */
} augment;

/* ---- operations ---- */

/* What an operation does: an adjustment whose number is `base` plus the magnitude, or a warp. */
typedef struct augment_row {
    enum { AUGMENT_NOTHING, AUGMENT_ADJUSTS, AUGMENT_WARPS } does;
    ek_adjustment what;
    double base;
    double most[2];  /* the largest magnitude, and that of trivial_augment_wide; 0: has no sign */
    bool by_formula; /* augment_magnitude has a formula for the magnitude */
} augment_row;

static const augment_row augment_rows[] = {
    [AUGMENT_IDENTITY] = {.does = AUGMENT_NOTHING},
    [AUGMENT_SHEAR_X] = {AUGMENT_WARPS, .most = {0.3, 0.99}},
    [AUGMENT_SHEAR_Y] = {AUGMENT_WARPS, .most = {0.3, 0.99}},
    [AUGMENT_TRANSLATE_X] = {AUGMENT_WARPS, .most = {150.0 / 331 /* of the side */, 32}},
    [AUGMENT_TRANSLATE_Y] = {AUGMENT_WARPS, .most = {150.0 / 331 /* of the side */, 32}},
    [AUGMENT_ROTATE] = {AUGMENT_WARPS, .most = {30, 135}},
    [AUGMENT_BRIGHTNESS] = {AUGMENT_ADJUSTS, EK_ADJUST_BRIGHTNESS, .base = 1, .most = {0.9, 0.99}},
    [AUGMENT_COLOR] = {AUGMENT_ADJUSTS, EK_ADJUST_SATURATION, .base = 1, .most = {0.9, 0.99}},
    [AUGMENT_CONTRAST] = {AUGMENT_ADJUSTS, EK_ADJUST_CONTRAST, .base = 1, .most = {0.9, 0.99}},
    [AUGMENT_SHARPNESS] = {AUGMENT_ADJUSTS, EK_ADJUST_SHARPNESS, .base = 1, .most = {0.9, 0.99}},
    [AUGMENT_POSTERIZE] = {AUGMENT_ADJUSTS, EK_ADJUST_POSTERIZE, .by_formula = true},
    [AUGMENT_SOLARIZE] = {AUGMENT_ADJUSTS, EK_ADJUST_SOLARIZE, .by_formula = true},
    [AUGMENT_AUTOCONTRAST] = {AUGMENT_ADJUSTS, .what = EK_ADJUST_AUTOCONTRAST},
    [AUGMENT_EQUALIZE] = {AUGMENT_ADJUSTS, .what = EK_ADJUST_EQUALIZE},
    [AUGMENT_INVERT] = {AUGMENT_ADJUSTS, EK_ADJUST_SOLARIZE, .base = -INFINITY},
};

static bool augment_is_signed(operation what)
{
    return augment_rows[what].most[0] > 0;
}

static bool augment_has_magnitude(operation what)
{
    return augment_is_signed(what) || augment_rows[what].by_formula;
}

/* Returns the magnitude of bin `number` of self->bins. */
static double augment_magnitude(const augment *self, operation what, int number, ek_picture picture)
{
    double most = augment_rows[what].most[self->wide];
    if (!augment_has_magnitude(what))
        return 0;
    if (what == AUGMENT_SOLARIZE)
        return ek_linspace_f32(255, 0, self->bins, number);
    if (what == AUGMENT_POSTERIZE) {
        double unit = (double)(self->bins - 1) / (self->wide ? 6 : 4);
        return 8 - (double)rintf((float)number / (float)unit);
    }
    if (!self->wide && what == AUGMENT_TRANSLATE_X)
        most *= (double)picture.width;
    if (!self->wide && what == AUGMENT_TRANSLATE_Y)
        most *= (double)picture.height;
    return ek_linspace_f32(0, (float)most, self->bins, number);
}

static int augment_warp(const augment *self, operation what, double magnitude, ek_array *x)
{
    ek_picture picture = ek_picture_of(x);
    const double corner[2] = {-(double)picture.width * 0.5, -(double)picture.height * 0.5};
    const double middle[2] = {0, 0};
    double shift[2] = {0, 0}, shear[2] = {0, 0}, angle = 0;
    bool shears = what == AUGMENT_SHEAR_X || what == AUGMENT_SHEAR_Y;
    ek_warp warp = self->warp;
    ek_array from = *x;
    if (shears)
        shear[what - AUGMENT_SHEAR_X] = atan(magnitude) * (180 / 3.14159265358979323846);
    else if (what == AUGMENT_ROTATE)
        angle = -magnitude;
    else
        shift[what - AUGMENT_TRANSLATE_X] = trunc(magnitude);
    from.data = ek_realloc(NULL, (size_t)ek_shape_count(&x->shape) + 1); /* u8 */
    if (!from.data)
        return EK_E_NO_MEMORY;
    ek_array_keep(x, &from);
    ek_warp_affine(&warp, shears ? corner : middle, angle, shift, 1, shear);
    int rc = ek_picture_warp(&from, x, &warp);
    free(from.data);
    return rc;
}

/* Applies an operation with the magnitude of a bin, or its negative if the operation has a sign. */
static int augment_run(const augment *self, operation what, int number, bool negative, ek_array *x)
{
    const augment_row *row = &augment_rows[what];
    double magnitude = augment_magnitude(self, what, number, ek_picture_of(x));
    magnitude = negative && augment_is_signed(what) ? -magnitude : magnitude;
    if (row->does == AUGMENT_WARPS)
        return augment_warp(self, what, magnitude, x);
    return row->does ? ek_picture_adjust(x, row->what, row->base + magnitude) : 0;
}

/* ---- the transforms ---- */

static int augment_describe(const ek_transform *self, ek_array *array)
{
    char text[200];
    if (array->dtype != EK_U8)
        return EK_FAIL(EK_E_DTYPE, "%s: %s; u8 pictures are augmented (before ek_to_float)",
                       self->type->name, ek_array_text(array, text));
    return ek_warp_check(self, array, &((const augment *)ek_options_of(self))->warp);
}

/* Draws the pair, two chances and two signs. */
static int augment_draw_auto(ek_application *a)
{
    a->number[0] = (double)ek_generator_below(a->generator, PAIRS);
    for (int i = 1; i < 3; i++)
        a->number[i] = (double)ek_generator_f32(a->generator);
    for (int i = 3; i < 5; i++)
        a->number[i] = (double)ek_generator_below(a->generator, 2);
    return 1;
}

static int augment_apply_auto(ek_application *a)
{
    const augment *o = a->options;
    const policy_step *pair = policies[o->policy][(int)a->number[0]];
    for (int i = 0; i < 2; i++)
        if ((float)a->number[1 + i] <= (float)(pair[i].tenths / 10.0))
            EK_TRY(augment_run(o, pair[i].what, pair[i].magnitude, a->number[3 + i] == 0, a->out));
    return 0;
}

/* Draws an operation after the operation before is applied, as torchvision does. Operations draw no
 * numbers. */
static int augment_apply_rand(ek_application *a)
{
    const augment *o = a->options;
    for (int i = 0; i < o->operations; i++) {
        ek_generator *locked = ek_generator_lock(a->generator);
        operation what = (operation)ek_generator_below(locked, AUGMENT_INVERT);
        int number = o->magnitude;
        if (o->wide && augment_has_magnitude(what))
            number = (int)ek_generator_below(locked, o->bins);
        bool negative = augment_is_signed(what) && ek_generator_below(locked, 2) != 0;
        ek_generator_unlock(locked);
        EK_TRY(augment_run(o, what, number, negative, a->out));
    }
    return 0;
}

static const ek_operation auto_augment = {EK_OPERATION(auto_augment, augment, EK_COLORS,
                                                       augment_describe, augment_draw_auto,
                                                       augment_apply_auto),
                                          .in_place = true};
static const ek_operation rand_augment = {EK_OPERATION(rand_augment, augment, EK_COLORS,
                                                       augment_describe, NULL, augment_apply_rand),
                                          .in_place = true};
static const ek_operation trivial_augment_wide = {EK_OPERATION(trivial_augment_wide, augment,
                                                               EK_COLORS, augment_describe, NULL,
                                                               augment_apply_rand),
                                                  .in_place = true};

/* `fill` is EK_UNSET if there is none. */
static ek_warp augment_filled(bool bilinear, double fill)
{
    const bool fills = fill != EK_UNSET;
    return (ek_warp){.bilinear = bilinear, .fills = fills, .fill = fills ? fill : 0};
}

ek_transform *ek_auto_augment_with(ek_auto_augment_options options)
{
    const augment self = {.policy = options.policy,
                          .bins = 10,
                          .warp = augment_filled(options.bilinear, options.fill)};
    if ((int)options.policy < 0 || (int)options.policy >= POLICIES)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "auto_augment: policy %d; EK_POLICY_IMAGENET, EK_POLICY_CIFAR10 and "
                            "EK_POLICY_SVHN there are",
                            (int)options.policy);
    return ek_operation_new(&auto_augment, &self, 0);
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
    const augment self = {.operations = options.num_ops,
                          .magnitude = options.magnitude,
                          .bins = options.num_magnitude_bins,
                          .warp = augment_filled(options.bilinear, options.fill)};
    if (augment_check_bins("rand_augment", self.bins) < 0)
        return NULL;
    if (self.operations < 0 || self.magnitude < 0 || self.magnitude >= self.bins)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "rand_augment: num_ops %d, magnitude %d; num_ops is not negative, "
                            "and the magnitude is in [0, num_magnitude_bins = %d)",
                            self.operations, self.magnitude, self.bins);
    return ek_operation_new(&rand_augment, &self, 0);
}

ek_transform *ek_trivial_augment_wide_with(ek_trivial_augment_options options)
{
    const augment self = {.operations = 1,
                          .wide = true,
                          .bins = options.num_magnitude_bins,
                          .warp = augment_filled(options.bilinear, options.fill)};
    if (augment_check_bins("trivial_augment_wide", self.bins) < 0)
        return NULL;
    return ek_operation_new(&trivial_augment_wide, &self, 0);
}
