/* transform_tone.c: transforms of colors: grayscale, color_jitter, and random_invert to
 * random_equalize, whose formulas are in transform_color.c. */
#include <math.h>
#include <string.h>

#include "data/transform_operation.h"

/* ---- grey values ---- */

/* `channels` of grayscale, `p` of random_grayscale. */
typedef union grey {
    int channels;
    double p;
} grey;

static int random_grey_describe(const ek_transform *self, ek_array *array)
{
    char text[200];
    if (array->shape.ndim < 3)
        return EK_FAIL(EK_E_SHAPE, "%s: %s; channels are the third dimension from the end",
                       self->type->name, ek_array_text(array, text));
    return 0;
}

static int grey_describe(const ek_transform *self, ek_array *array)
{
    EK_TRY(random_grey_describe(self, array));
    array->shape.dims[array->shape.ndim - 3] = ((const grey *)ek_options_of(self))->channels;
    return 0;
}

static int grey_apply(ek_application *a)
{
    ek_picture_grey(a->in, a->out);
    return 0;
}

static const ek_operation grayscale = {
    EK_OPERATION(grayscale, grey, EK_COLORS, grey_describe, NULL, grey_apply)};
static const ek_operation random_grayscale = {EK_OPERATION(random_grayscale, grey, EK_COLORS,
                                                           random_grey_describe, NULL, grey_apply),
                                              EK_CHANCE(grey)};

ek_transform *ek_grayscale(int channels)
{
    const grey options = {.channels = channels};
    if (channels != 1 && channels != 3)
        return EK_FAIL_NULL(EK_E_INVALID, "grayscale: %d channels; 1 or 3 can be made", channels);
    return ek_operation_new(&grayscale, &options, 0);
}

ek_transform *ek_random_grayscale(double p)
{
    const grey options = {.p = p};
    return ek_operation_new(&random_grayscale, &options, 0);
}

/* ---- color_jitter ---- */

enum { JITTERS = EK_ADJUST_HUE + 1 };

typedef struct jitter {
    double range[JITTERS][2];
    bool changes[JITTERS]; /* false: the range is one factor that changes nothing */
} jitter;

/* Draws in torchvision's order: the order of the adjustments, then a factor for each that changes
 * anything. In a->number, the order lies after the factors. */
static int jitter_draw(ek_application *a)
{
    const jitter *o = a->options;
    double *factor = a->number, *order = factor + JITTERS;
    for (int i = 0; i < JITTERS; i++)
        order[i] = i;
    for (int i = 0; i < JITTERS - 1; i++) {
        int other = i + (int)(ek_generator_u32(a->generator) % (uint32_t)(JITTERS - i));
        double kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (int i = 0; i < JITTERS; i++)
        if (o->changes[i])
            factor[i] = ek_draw_between(a->generator, o->range[i][0], o->range[i][1]);
    return 1;
}

static int jitter_apply(ek_application *a)
{
    const jitter *o = a->options;
    for (int i = 0; i < JITTERS; i++) {
        ek_adjustment what = (ek_adjustment)a->number[JITTERS + i];
        if (o->changes[what])
            EK_TRY(ek_picture_adjust(a->out, what, a->number[what]));
    }
    return 0;
}

static const ek_operation color_jitter = {EK_OPERATION(color_jitter, jitter, EK_COLORS, NULL,
                                                       jitter_draw, jitter_apply),
                                          .in_place = true};

/* Sets the range of one adjustment: {low, high} if that is written, else within `spread` of the
 * factor that changes nothing. */
static int jitter_set(jitter *self, ek_adjustment what, const char *option, double spread,
                      const double given[2], const char *range_option)
{
    const bool is_hue = what == EK_ADJUST_HUE, written = given[0] != EK_UNSET;
    double center = is_hue ? 0 : 1, *range = self->range[what];
    if (written && spread != 0)
        return EK_FAIL(EK_E_INVALID, "color_jitter: %s and %s exclude each other", option,
                       range_option);
    if (!(spread >= 0))
        return EK_FAIL(EK_E_INVALID, "color_jitter: %s %g; a number that is not negative is needed",
                       option, spread);
    range[0] = written ? given[0] : center - spread;
    range[1] = written ? given[1] : center + spread;
    if (!written && !is_hue && range[0] < 0)
        range[0] = 0;
    self->changes[what] = range[0] != center || range[1] != center;
    return ek_check_range("color_jitter", written ? range_option : option, range, is_hue ? -0.5 : 0,
                          is_hue ? 0.5 : 1e30 /* of which f32 holds products */);
}

ek_transform *ek_color_jitter_with(ek_jitter_options options)
{
    jitter self;
#define SET(what, option) \
    jitter_set(&self, what, #option, options.option, options.option##_range, #option "_range")
    if (SET(EK_ADJUST_BRIGHTNESS, brightness) < 0 || SET(EK_ADJUST_CONTRAST, contrast) < 0 ||
        SET(EK_ADJUST_SATURATION, saturation) < 0 || SET(EK_ADJUST_HUE, hue) < 0)
        return NULL;
#undef SET
    return ek_operation_new(&color_jitter, &self, 0);
}

/* ---- one adjustment at random ---- */

typedef struct tone {
    ek_adjustment what;
    double p, number; /* bits, threshold or factor */
} tone;

static int tone_describe(const ek_transform *self, ek_array *array)
{
    const tone *o = ek_options_of(self);
    const int white = array->dtype == EK_U8 ? 255 : 1;
    char text[200];
    if ((o->what == EK_ADJUST_POSTERIZE || o->what == EK_ADJUST_EQUALIZE) && array->dtype != EK_U8)
        return EK_FAIL(EK_E_DTYPE, "%s: %s; u8 is needed", self->type->name,
                       ek_array_text(array, text));
    if (o->what == EK_ADJUST_SOLARIZE && o->number > white)
        return EK_FAIL(EK_E_INVALID, "%s: a threshold of %g for %s, whose white is %d",
                       self->type->name, o->number, ek_array_text(array, text), white);
    return 0;
}

static int tone_apply(ek_application *a)
{
    const tone *o = a->options;
    return ek_picture_adjust(a->out, o->what, o->number);
}

static ek_transform *tone_new(const ek_operation *operation, ek_adjustment what, double number,
                              double p)
{
    const tone options = {what, p, number};
    return ek_operation_new(operation, &options, 0);
}

#define TONE_ROW(name)                                                                         \
    static const ek_operation name = {EK_OPERATION(name, tone, EK_COLORS, tone_describe, NULL, \
                                                   tone_apply),                                \
                                      EK_CHANCE(tone), .in_place = true};
TONE_ROW(random_invert)
TONE_ROW(random_posterize)
TONE_ROW(random_solarize)
TONE_ROW(random_adjust_sharpness)
TONE_ROW(random_autocontrast)
TONE_ROW(random_equalize)
#undef TONE_ROW

ek_transform *ek_random_invert(double p)
{
    return tone_new(&random_invert, EK_ADJUST_SOLARIZE, -INFINITY, p);
}

ek_transform *ek_random_posterize(int bits, double p)
{
    if (bits < 0 || bits > 8)
        return EK_FAIL_NULL(EK_E_INVALID, "random_posterize: %d bits; 0 to 8 can be kept", bits);
    return tone_new(&random_posterize, EK_ADJUST_POSTERIZE, bits, p);
}

ek_transform *ek_random_solarize(double threshold, double p)
{
    if (isnan(threshold))
        return EK_FAIL_NULL(EK_E_INVALID, "random_solarize: the threshold is not a number");
    return tone_new(&random_solarize, EK_ADJUST_SOLARIZE, threshold, p);
}

ek_transform *ek_random_adjust_sharpness(double factor, double p)
{
    if (!(factor >= 0 && factor <= 1e30)) /* of which f32 holds products */
        return EK_FAIL_NULL(EK_E_INVALID,
                            "random_adjust_sharpness: a factor of %g; it has to lie in [0, 1e30]",
                            factor);
    return tone_new(&random_adjust_sharpness, EK_ADJUST_SHARPNESS, factor, p);
}

ek_transform *ek_random_autocontrast(double p)
{
    return tone_new(&random_autocontrast, EK_ADJUST_AUTOCONTRAST, 0, p);
}

ek_transform *ek_random_equalize(double p)
{
    return tone_new(&random_equalize, EK_ADJUST_EQUALIZE, 0, p);
}
