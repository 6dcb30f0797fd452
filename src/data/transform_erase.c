/* transform_erase.c: random_erasing, which overwrites a rectangle of a picture. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/generator.h"
#include "data/transform_picture.h"

typedef struct erasing {
    ek_transform transform;
    double p, scale[2], ratio[2];
    bool random;    /* normal numbers instead of values */
    int channels;   /* how many values there are */
    double *values; /* one for all channels, or one for each; owned */
} erasing;

static void erasing_destroy(ek_transform *transform)
{
    free(((erasing *)transform)->values);
}

static int erasing_describe(const ek_transform *transform, ek_array *array)
{
    const erasing *self = (const erasing *)transform;
    char text[200];
    EK_TRY(ek_picture_check(transform, array));
    if (self->random && array->dtype != EK_F32 && array->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE,
                       "random_erasing: %s; f32 and f64 are erased by random numbers "
                       "(ek_to_float comes before it)",
                       ek_array_text(array, text));
    if (self->channels > 1 && ek_color_channels(array) != self->channels)
        return EK_FAIL(EK_E_SHAPE,
                       "random_erasing: %s; %d values are for pictures of as many channels, "
                       "(..., %d, height, width)",
                       ek_array_text(array, text), self->channels, self->channels);
    for (int c = 0; !self->random && c < self->channels; c++)
        EK_TRY(ek_fill_check(transform, array, self->values[c]));
    return 0;
}

/* The rectangle, and the numbers of its elements if they are random: (channels, height, width),
 * owned. */
typedef struct erased {
    ek_window window;
    float *numbers;
} erased;

/* Draws a rectangle that is smaller than the picture on both sides. Returns 1 with it, 0 if ten
 * attempts find none, or a negative status. */
static int erasing_draw(const erasing *self, const ek_array *in, ek_generator *locked,
                        erased *result)
{
    ek_picture picture = ek_picture_of(in);
    double area = (double)(picture.height * picture.width);
    for (int attempt = 0; attempt < 10; attempt++) {
        int64_t sides[2];
        ek_draw_sides(locked, area, self->scale, self->ratio, sides);
        int64_t h = sides[0], w = sides[1];
        if (h >= picture.height || w >= picture.width)
            continue;
        int64_t count = ek_color_channels(in) * h * w;
        if (self->random) {
            result->numbers = ek_calloc((size_t)count + 1, sizeof *result->numbers);
            if (!result->numbers)
                return EK_E_NO_MEMORY;
            ek_generator_normal_f32(locked, result->numbers, count, 0, 1);
        }
        result->window.height = h;
        result->window.width = w;
        result->window.top = ek_generator_below(locked, picture.height - h + 1);
        result->window.left = ek_generator_below(locked, picture.width - w + 1);
        return 1;
    }
    return 0;
}

static void erasing_copy(ek_dtype dtype, const float *numbers, int64_t count, void *out)
{
    for (int64_t i = 0; i < count && dtype == EK_F64; i++)
        ((double *)out)[i] = (double)numbers[i];
    if (dtype == EK_F32)
        memcpy(out, numbers, (size_t)count * sizeof *numbers);
}

static void erasing_erase(const erasing *self, ek_array *out, const erased *what)
{
    ek_picture picture = ek_picture_of(out);
    const ek_window *window = &what->window;
    int64_t channels = ek_color_channels(out), h = window->height, w = window->width;
    for (int64_t p = 0; p < picture.planes; p++) {
        int64_t channel = p % channels;
        unsigned char element[8];
        if (!self->random)
            ek_fill_element(out->dtype, self->values[channel % self->channels], element);
        for (int64_t y = 0; y < h; y++) {
            int64_t at = (p * picture.height + window->top + y) * picture.width + window->left;
            char *to = (char *)out->data + (size_t)at * picture.size;
            if (self->random)
                erasing_copy(out->dtype, what->numbers + (channel * h + y) * w, w, to);
            else
                ek_fill_run(w, picture.size, element, to);
        }
    }
}

static int erasing_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                         ek_generator *generator)
{
    const erasing *self = (const erasing *)transform;
    erased what = {.numbers = NULL};
    ek_array_keep(in, out);
    generator = ek_generator_lock(generator);
    bool yes = ek_generator_f32(generator) < (float)self->p;
    int rc = yes ? erasing_draw(self, in, generator, &what) : 0;
    ek_generator_unlock(generator);
    if (rc > 0)
        erasing_erase(self, out, &what);
    free(what.numbers);
    return rc < 0 ? rc : 0;
}

static const ek_transform_type erasing_type = {.name = "random_erasing",
                                               .size = sizeof(erasing),
                                               .describe = erasing_describe,
                                               .apply = erasing_apply,
                                               .destroy = erasing_destroy};

static int erasing_check(const ek_erasing_options *options, const double scale[2],
                         const double ratio[2])
{
    EK_TRY(ek_check_range("random_erasing", "scale", scale, 0, 1));
    EK_TRY(ek_check_range("random_erasing", "ratio", ratio, 0, INFINITY));
    if (ratio[0] == 0)
        return EK_FAIL(EK_E_INVALID, "random_erasing: a ratio of 0; it has to be above 0");
    if (options->channels < 0 || (options->channels > 0) != (options->values != NULL))
        return EK_FAIL(EK_E_INVALID,
                       "random_erasing: %d channels%s; .values and .channels go together",
                       options->channels, options->values ? "" : " without values");
    if (options->random && (options->values || options->value != 0))
        return EK_FAIL(EK_E_INVALID, "random_erasing: .random excludes values");
    if (options->values && options->value != 0)
        return EK_FAIL(EK_E_INVALID, "random_erasing: .value and .values exclude each other");
    return 0;
}

ek_transform *ek_random_erasing_with(ek_erasing_options options)
{
    ek_range_default(options.scale, 0.02, 0.33);
    ek_range_default(options.ratio, 0.3, 3.3);
    if (ek_check_chance("random_erasing", options.p) < 0 ||
        erasing_check(&options, options.scale, options.ratio) < 0)
        return NULL;
    erasing *self = (erasing *)ek_transform_new(&erasing_type);
    if (!self)
        return NULL;
    self->p = options.p;
    self->random = options.random;
    self->channels = options.values ? options.channels : 1;
    memcpy(self->scale, options.scale, sizeof self->scale);
    memcpy(self->ratio, options.ratio, sizeof self->ratio);
    self->values = ek_calloc((size_t)self->channels, sizeof *self->values);
    if (!self->values) {
        ek_transform_free(&self->transform);
        return NULL;
    }
    for (int c = 0; c < self->channels; c++)
        self->values[c] = options.values ? options.values[c] : options.value;
    return &self->transform;
}
