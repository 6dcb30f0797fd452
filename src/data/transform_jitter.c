/* transform_jitter.c: grayscale, random_grayscale, color_jitter. */
#include <string.h>

#include "core/generator.h"
#include "data/transform_picture.h"

/* ---- grey values ---- */

typedef struct grey {
    ek_transform transform;
    int channels; /* 0: as many as the picture has, with probability p */
    double p;
} grey;

static int grey_describe(const ek_transform *transform, ek_array *array)
{
    const grey *self = (const grey *)transform;
    char text[200];
    EK_TRY(ek_color_check(transform, array));
    if (array->shape.ndim < 3)
        return EK_FAIL(EK_E_SHAPE, "%s: %s; channels are the third dimension from the end",
                       transform->type->name, ek_array_text(array, text));
    if (self->channels)
        array->shape.dims[array->shape.ndim - 3] = self->channels;
    return 0;
}

static int grey_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                      ek_generator *generator)
{
    const grey *self = (const grey *)transform;
    if (self->channels || ek_draw_chance(generator, self->p))
        ek_picture_grey(in, out);
    else
        ek_array_keep(in, out);
    return 0;
}

static const ek_transform_type grayscale_type = {.name = "grayscale",
                                                 .size = sizeof(grey),
                                                 .describe = grey_describe,
                                                 .apply = grey_apply};
static const ek_transform_type random_grayscale_type = {.name = "random_grayscale",
                                                        .size = sizeof(grey),
                                                        .describe = grey_describe,
                                                        .apply = grey_apply};

ek_transform *ek_grayscale(int channels)
{
    if (channels != 1 && channels != 3)
        return EK_FAIL_NULL(EK_E_INVALID, "grayscale: %d channels; 1 or 3 can be made", channels);
    grey *self = (grey *)ek_transform_new(&grayscale_type);
    if (self)
        self->channels = channels;
    return (ek_transform *)self;
}

ek_transform *ek_random_grayscale(double p)
{
    if (ek_check_chance("random_grayscale", p) < 0)
        return NULL;
    grey *self = (grey *)ek_transform_new(&random_grayscale_type);
    if (self)
        self->p = p;
    return (ek_transform *)self;
}

/* ---- color_jitter ---- */

enum { JITTER_BRIGHTNESS, JITTER_CONTRAST, JITTER_SATURATION, JITTER_HUE, JITTER_ADJUSTMENTS };

typedef struct jitter {
    ek_transform transform;
    double range[JITTER_ADJUSTMENTS][2];
    bool changes[JITTER_ADJUSTMENTS]; /* false: the range is one factor that changes nothing */
} jitter;

static int jitter_describe(const ek_transform *transform, ek_array *array)
{
    return ek_color_check(transform, array);
}

/* Draws in torchvision's order: the order of the adjustments, then a factor for each that changes
 * anything. */
static void jitter_draw(const jitter *self, ek_generator *generator, int order[JITTER_ADJUSTMENTS],
                        double factor[JITTER_ADJUSTMENTS])
{
    generator = ek_generator_lock(generator);
    for (int i = 0; i < JITTER_ADJUSTMENTS; i++)
        order[i] = i;
    for (int i = 0; i < JITTER_ADJUSTMENTS - 1; i++) {
        int other = i + (int)(ek_generator_u32(generator) % (uint32_t)(JITTER_ADJUSTMENTS - i));
        int kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (int i = 0; i < JITTER_ADJUSTMENTS; i++)
        if (self->changes[i])
            factor[i] = (double)ek_draw_between(generator, self->range[i][0], self->range[i][1]);
    ek_generator_unlock(generator);
}

static int jitter_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                        ek_generator *generator)
{
    static void (*const adjust[JITTER_ADJUSTMENTS])(ek_array * x, double factor) = {
        ek_adjust_brightness, ek_adjust_contrast, ek_adjust_saturation, ek_adjust_hue};
    const jitter *self = (const jitter *)transform;
    int order[JITTER_ADJUSTMENTS];
    double factor[JITTER_ADJUSTMENTS];
    jitter_draw(self, generator, order, factor);
    ek_array_keep(in, out);
    for (int i = 0; i < JITTER_ADJUSTMENTS; i++)
        if (self->changes[order[i]])
            adjust[order[i]](out, factor[order[i]]);
    return 0;
}

static const ek_transform_type jitter_type = {.name = "color_jitter",
                                              .size = sizeof(jitter),
                                              .describe = jitter_describe,
                                              .apply = jitter_apply};

/* Sets the range of one adjustment: {low, high} if that is written, else within `spread` of the
 * factor that changes nothing. */
static int jitter_set(jitter *self, int number, const ek_jitter_options *options)
{
    static const char *const names[JITTER_ADJUSTMENTS][2] = {{"brightness", "brightness_range"},
                                                             {"contrast", "contrast_range"},
                                                             {"saturation", "saturation_range"},
                                                             {"hue", "hue_range"}};
    const double spreads[] = {options->brightness, options->contrast, options->saturation,
                              options->hue};
    const double *const ranges[] = {options->brightness_range, options->contrast_range,
                                    options->saturation_range, options->hue_range};
    const double *given = ranges[number];
    double center = number == JITTER_HUE ? 0 : 1, spread = spreads[number],
           *range = self->range[number];
    bool written = given[0] != EK_UNSET;
    if (written && spread != 0)
        return EK_FAIL(EK_E_INVALID, "color_jitter: %s and %s exclude each other", names[number][0],
                       names[number][1]);
    if (!(spread >= 0))
        return EK_FAIL(EK_E_INVALID, "color_jitter: %s %g; a number that is not negative is needed",
                       names[number][0], spread);
    range[0] = written ? given[0] : center - spread;
    range[1] = written ? given[1] : center + spread;
    if (!written && number != JITTER_HUE && range[0] < 0)
        range[0] = 0;
    self->changes[number] = range[0] != center || range[1] != center;
    return ek_check_range("color_jitter", names[number][written], range,
                          number == JITTER_HUE ? -0.5 : 0,
                          number == JITTER_HUE ? 0.5 : 1e30 /* of which f32 holds products */);
}

ek_transform *ek_color_jitter_with(ek_jitter_options options)
{
    jitter *self = (jitter *)ek_transform_new(&jitter_type);
    for (int i = 0; self && i < JITTER_ADJUSTMENTS; i++)
        if (jitter_set(self, i, &options) < 0) {
            ek_transform_free(&self->transform);
            return NULL;
        }
    return (ek_transform *)self;
}
