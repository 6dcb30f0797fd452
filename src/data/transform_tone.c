/* transform_tone.c: invert, posterize, solarize, autocontrast, equalize and sharpness of pictures,
 * as torchvision's functions for tensors, and the transforms that apply them at random. */
#include <math.h>
#include <string.h>

#include "data/transform_picture.h"

static int64_t tone_count(const ek_array *x)
{
    return ek_shape_count(&x->shape);
}

/* ---- pixels by themselves ---- */

#define DEFINE_INVERT(name, element, white)                                          \
    EK_MULTIVERSION                                                                  \
    static void tone_invert_##name(int64_t count, element *restrict x, double least) \
    {                                                                                \
        const element limit = (element)least;                                        \
        for (int64_t i = 0; i < count; i++)                                          \
            x[i] = x[i] >= limit ? (element)((white)-x[i]) : x[i];                   \
    }
DEFINE_INVERT(u8, uint8_t, 255)
DEFINE_INVERT(f32, float, 1)
DEFINE_INVERT(f64, double, 1)

void ek_picture_invert(ek_array *x)
{
    ek_picture_solarize(x, -INFINITY);
}

/* Inverts pixels from the threshold on. */
void ek_picture_solarize(ek_array *x, double threshold)
{
    if (x->dtype == EK_F32)
        tone_invert_f32(tone_count(x), x->data, threshold);
    else if (x->dtype == EK_F64)
        tone_invert_f64(tone_count(x), x->data, threshold);
    else if (threshold <= 255)
        tone_invert_u8(tone_count(x), x->data, threshold > 0 ? ceil(threshold) : 0);
}

void ek_picture_posterize(ek_array *x, int bits)
{
    uint8_t *restrict pixels = x->data, mask = (uint8_t)(0xff << (8 - bits));
    for (int64_t i = 0, count = tone_count(x); i < count; i++)
        pixels[i] &= mask;
}

/* ---- pixels by the range and the histogram of their plane ---- */

/* torchvision stretches [least, most] to [black, white], with a rounded reciprocal; a plane of one
 * value stays. */
#define DEFINE_STRETCH(name, element, real, white)                                \
    EK_MULTIVERSION                                                               \
    static void tone_stretch_##name(int64_t count, element *restrict x)           \
    {                                                                             \
        element least = x[0], most = x[0];                                        \
        for (int64_t i = 1; i < count; i++) {                                     \
            least = x[i] < least ? x[i] : least;                                  \
            most = x[i] > most ? x[i] : most;                                     \
        }                                                                         \
        real low = (real)least, scale = 1 / ((real)most - (real)least) * (white); \
        if (!isfinite(scale)) {                                                   \
            low = 0;                                                              \
            scale = 1;                                                            \
        }                                                                         \
        for (int64_t i = 0; i < count; i++) {                                     \
            real value = ((real)x[i] - low) * scale;                              \
            x[i] = (element)(value < 0 ? 0 : value > (white) ? (white) : value);  \
        }                                                                         \
    }
DEFINE_STRETCH(u8, uint8_t, float, 255.0f)
DEFINE_STRETCH(f32, float, float, 1.0f)
DEFINE_STRETCH(f64, double, double, 1.0)

void ek_picture_autocontrast(ek_array *x)
{
    ek_picture picture = ek_picture_of(x);
    int64_t plane = picture.height * picture.width;
    for (int64_t p = 0; p < picture.planes && plane > 0; p++) {
        void *pixels = (char *)x->data + (size_t)(p * plane) * picture.size;
        if (x->dtype == EK_U8)
            tone_stretch_u8(plane, pixels);
        else if (x->dtype == EK_F32)
            tone_stretch_f32(plane, pixels);
        else
            tone_stretch_f64(plane, pixels);
    }
}

/* Replaces each value by its place in the sum of the histogram. The last value that occurs does
 * not count towards the step. */
static void tone_equalize_plane(int64_t count, uint8_t *pixels)
{
    int64_t histogram[256] = {0}, sum = 0;
    uint8_t table[256];
    int last = 0;
    for (int64_t i = 0; i < count; i++)
        histogram[pixels[i]]++;
    for (int v = 0; v < 256; v++)
        last = histogram[v] ? v : last;
    int64_t step = (count - histogram[last]) / 255;
    if (step == 0)
        return;
    for (int v = 0; v < 256; v++) {
        int64_t place = (sum + step / 2) / step;
        table[v] = (uint8_t)(v == 0 ? 0 : place > 255 ? 255 : place);
        sum += histogram[v];
    }
    for (int64_t i = 0; i < count; i++)
        pixels[i] = table[pixels[i]];
}

void ek_picture_equalize(ek_array *x)
{
    ek_picture picture = ek_picture_of(x);
    int64_t plane = picture.height * picture.width;
    for (int64_t p = 0; p < picture.planes; p++)
        tone_equalize_plane(plane, (uint8_t *)x->data + p * plane);
}

/* ---- sharpness ---- */

/* A pixel inside is blended with the mean of its 3 x 3 neighbourhood, in which it counts fivefold;
 * one on the edge with itself. */
#define DEFINE_SHARPEN(name, element, real, white, rounded)                                     \
    EK_MULTIVERSION                                                                             \
    static void tone_sharpen_##name(int64_t h, int64_t w, const element *restrict x,            \
                                    element *restrict out, double factor)                       \
    {                                                                                           \
        const real ratio = (real)factor, rest = (real)(1 - factor);                             \
        const real one = (real)1 / 13, five = (real)5 / 13;                                     \
        for (int64_t y = 0; y < h; y++)                                                         \
            for (int64_t i = 0; i < w; i++) {                                                   \
                const element *at = x + y * w + i, *up = at - w, *down = at + w;                \
                bool inside = y > 0 && y < h - 1 && i > 0 && i < w - 1;                         \
                real blurred = (real)*at;                                                       \
                if (inside) {                                                                   \
                    blurred = (real)up[-1] * one + (real)up[0] * one + (real)up[1] * one +      \
                              (real)at[-1] * one + (real)at[0] * five + (real)at[1] * one +     \
                              (real)down[-1] * one + (real)down[0] * one + (real)down[1] * one; \
                    blurred = rounded(blurred);                                                 \
                }                                                                               \
                real value = ratio * (real)*at + rest * blurred;                                \
                out[y * w + i] = (element)(value < 0 ? 0 : value > (white) ? (white) : value);  \
            }                                                                                   \
    }
#define ITSELF(x) (x)
DEFINE_SHARPEN(u8, uint8_t, float, 255.0f, rintf)
DEFINE_SHARPEN(f32, float, float, 1.0f, ITSELF)
DEFINE_SHARPEN(f64, double, double, 1.0, ITSELF)

void ek_picture_sharpen(const ek_array *in, ek_array *out, double factor)
{
    ek_picture picture = ek_picture_of(in);
    int64_t h = picture.height, w = picture.width;
    if (h <= 2 || w <= 2) {
        ek_array_keep(in, out);
        return;
    }
    for (int64_t p = 0; p < picture.planes; p++) {
        const char *from = (const char *)in->data + (size_t)(p * h * w) * picture.size;
        char *to = (char *)out->data + (size_t)(p * h * w) * picture.size;
        if (in->dtype == EK_U8)
            tone_sharpen_u8(h, w, (const uint8_t *)from, (uint8_t *)to, factor);
        else if (in->dtype == EK_F32)
            tone_sharpen_f32(h, w, (const float *)from, (float *)to, factor);
        else
            tone_sharpen_f64(h, w, (const double *)from, (double *)to, factor);
    }
}

/* ---- the transforms ---- */

typedef enum tone_kind {
    TONE_INVERT,
    TONE_POSTERIZE,
    TONE_SOLARIZE,
    TONE_SHARPEN,
    TONE_AUTOCONTRAST,
    TONE_EQUALIZE
} tone_kind;

typedef struct tone {
    ek_transform transform;
    tone_kind kind;
    double p, number; /* bits, threshold or factor */
} tone;

static int tone_describe(const ek_transform *transform, ek_array *array)
{
    const tone *self = (const tone *)transform;
    char text[200];
    EK_TRY(ek_color_check(transform, array));
    if ((self->kind == TONE_POSTERIZE || self->kind == TONE_EQUALIZE) && array->dtype != EK_U8)
        return EK_FAIL(EK_E_DTYPE, "%s: %s; u8 is needed", transform->type->name,
                       ek_array_text(array, text));
    if (self->kind == TONE_SOLARIZE && self->number > (array->dtype == EK_U8 ? 255 : 1))
        return EK_FAIL(EK_E_INVALID, "%s: a threshold of %g for %s, whose white is %d",
                       transform->type->name, self->number, ek_array_text(array, text),
                       array->dtype == EK_U8 ? 255 : 1);
    return 0;
}

static void tone_change(const tone *self, ek_array *x)
{
    switch (self->kind) {
    case TONE_INVERT:
        ek_picture_invert(x);
        break;
    case TONE_POSTERIZE:
        ek_picture_posterize(x, (int)self->number);
        break;
    case TONE_SOLARIZE:
        ek_picture_solarize(x, self->number);
        break;
    case TONE_AUTOCONTRAST:
        ek_picture_autocontrast(x);
        break;
    case TONE_EQUALIZE:
        ek_picture_equalize(x);
        break;
    case TONE_SHARPEN: /* which needs its input beside its output */
        break;
    }
}

static int tone_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                      ek_generator *generator)
{
    const tone *self = (const tone *)transform;
    bool yes = ek_draw_chance(generator, self->p);
    if (yes && self->kind == TONE_SHARPEN) {
        ek_picture_sharpen(in, out, self->number);
        return 0;
    }
    ek_array_keep(in, out);
    if (yes)
        tone_change(self, out);
    return 0;
}

static const ek_transform_type tone_types[] = {
#define TONE_TYPE(text)                                                                      \
    {                                                                                        \
        .name = (text), .size = sizeof(tone), .describe = tone_describe, .apply = tone_apply \
    }
    [TONE_INVERT] = TONE_TYPE("random_invert"),
    [TONE_POSTERIZE] = TONE_TYPE("random_posterize"),
    [TONE_SOLARIZE] = TONE_TYPE("random_solarize"),
    [TONE_SHARPEN] = TONE_TYPE("random_adjust_sharpness"),
    [TONE_AUTOCONTRAST] = TONE_TYPE("random_autocontrast"),
    [TONE_EQUALIZE] = TONE_TYPE("random_equalize"),
#undef TONE_TYPE
};

static ek_transform *tone_new(tone_kind kind, double number, double p)
{
    if (ek_check_chance(tone_types[kind].name, p) < 0)
        return NULL;
    tone *self = (tone *)ek_transform_new(&tone_types[kind]);
    if (!self)
        return NULL;
    self->kind = kind;
    self->number = number;
    self->p = p;
    return &self->transform;
}

ek_transform *ek_random_invert(double p)
{
    return tone_new(TONE_INVERT, 0, p);
}

ek_transform *ek_random_posterize(int bits, double p)
{
    if (bits < 0 || bits > 8)
        return EK_FAIL_NULL(EK_E_INVALID, "random_posterize: %d bits; 0 to 8 can be kept", bits);
    return tone_new(TONE_POSTERIZE, bits, p);
}

ek_transform *ek_random_solarize(double threshold, double p)
{
    if (isnan(threshold))
        return EK_FAIL_NULL(EK_E_INVALID, "random_solarize: the threshold is not a number");
    return tone_new(TONE_SOLARIZE, threshold, p);
}

ek_transform *ek_random_adjust_sharpness(double factor, double p)
{
    if (!(factor >= 0 && factor <= 1e30)) /* of which f32 holds products */
        return EK_FAIL_NULL(EK_E_INVALID,
                            "random_adjust_sharpness: a factor of %g; it has to lie in [0, 1e30]",
                            factor);
    return tone_new(TONE_SHARPEN, factor, p);
}

ek_transform *ek_random_autocontrast(double p)
{
    return tone_new(TONE_AUTOCONTRAST, 0, p);
}

ek_transform *ek_random_equalize(double p)
{
    return tone_new(TONE_EQUALIZE, 0, p);
}
