/* transform_color.c: the formulas of colors, as torchvision's functions for tensors: u8 pixels are
 * computed in f32 and cut off after each adjustment. A formula changes one picture in place; a row
 * of the table has its functions for u8, f32 and f64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/transform_operation.h"

/* What a formula changes: one picture, or one of its planes. */
typedef struct color_part {
    void *pixels;
    const void *before; /* a copy of the pixels, if the row says `copies` */
    int64_t channels, height, width;
    int64_t plane; /* height * width */
    double number;
} color_part;

/* The element that stores a number: bytes are cut off. */
#define CUT_OFF_u8(v) ((uint8_t)(int32_t)(v))
#define CUT_OFF_f32(v) (v)
#define CUT_OFF_f64(v) (v)

/* ---- grey values ---- */

#define GREY(name, real, r, g, b) \
    CUT_OFF_##name(((real)0.2989 * (real)(r) + (real)0.587 * (real)(g)) + (real)0.114 * (real)(b))

#define DEFINE_GREY(name, element, real, white)                              \
    EK_MULTIVERSION                                                          \
    static void grey_##name(int64_t count, const void *colors, void *result) \
    {                                                                        \
        const element *restrict r = colors, *restrict g = r + count;         \
        const element *restrict b = g + count;                               \
        element *restrict out = result;                                      \
        for (int64_t i = 0; i < count; i++)                                  \
            out[i] = GREY(name, real, r[i], g[i], b[i]);                     \
    }
EK_PIXEL_ROWS(DEFINE_GREY)

void ek_picture_grey(const ek_array *in, ek_array *out)
{
    const ek_picture picture = ek_picture_of(in);
    int64_t from = ek_picture_channels(in), to = ek_picture_channels(out);
    int64_t plane = picture.height * picture.width;
    size_t nbytes = (size_t)plane * picture.size;
    for (int64_t p = 0; p < picture.planes / from; p++) {
        void *grey = ek_picture_row(out, p * to, 0);
        if (from == 3)
            EK_PIXEL_FUNCTION(grey, in->dtype)(plane, ek_picture_row(in, 3 * p, 0), grey);
        for (int64_t c = from == 3; c < to && nbytes; c++)
            memcpy(ek_picture_row(out, p * to + c, 0), from == 3 ? grey : ek_picture_row(in, p, 0),
                   nbytes);
    }
}

/* ---- blends: ratio * x + (1 - ratio) * other, cut to [black, white] ---- */

#define DEFINE_BLEND(name, element, real, white)                                           \
    EK_MULTIVERSION                                                                        \
    static void blend_##name(int64_t count, element *restrict x, double ratio, double add) \
    {                                                                                      \
        const real times = (real)ratio, plus = (real)add;                                  \
        for (int64_t i = 0; i < count; i++) {                                              \
            real value = times * (real)x[i] + plus;                                        \
            x[i] = CUT_OFF_##name(EK_CUT(value, white));                                   \
        }                                                                                  \
    }                                                                                      \
    static void brightness_##name(const color_part *c)                                     \
    {                                                                                      \
        blend_##name(c->channels * c->plane, c->pixels, c->number, 0);                     \
    }
EK_PIXEL_ROWS(DEFINE_BLEND)

/* Blends with the mean of the grey values, which are rounded before they are added. */
#define DEFINE_CONTRAST(name, element, real, white)                                        \
    EK_MULTIVERSION                                                                        \
    static void contrast_##name(const color_part *c)                                       \
    {                                                                                      \
        const int64_t n = c->plane;                                                        \
        const element *r = c->pixels, *g = r + n, *b = g + n;                              \
        double sum = 0;                                                                    \
        for (int64_t i = 0; i < n; i++)                                                    \
            sum += (double)(c->channels == 3 ? GREY(name, real, r[i], g[i], b[i]) : r[i]); \
        real add = (real)(1 - c->number) * ((real)sum / (real)n);                          \
        blend_##name(c->channels *n, c->pixels, c->number, (double)add);                   \
    }
EK_PIXEL_ROWS(DEFINE_CONTRAST)

#define DEFINE_SATURATION(name, element, real, white)                                    \
    EK_MULTIVERSION                                                                      \
    static void saturate_##name(int64_t count, element *restrict r, element *restrict g, \
                                element *restrict b, double factor)                      \
    {                                                                                    \
        const real ratio = (real)factor, rest = (real)(1 - factor);                      \
        for (int64_t i = 0; i < count; i++) {                                            \
            real grey = rest * (real)GREY(name, real, r[i], g[i], b[i]);                 \
            real x = ratio * (real)r[i] + grey, y = ratio * (real)g[i] + grey;           \
            real z = ratio * (real)b[i] + grey;                                          \
            r[i] = CUT_OFF_##name(EK_CUT(x, white));                                     \
            g[i] = CUT_OFF_##name(EK_CUT(y, white));                                     \
            b[i] = CUT_OFF_##name(EK_CUT(z, white));                                     \
        }                                                                                \
    }                                                                                    \
    static void saturation_##name(const color_part *c)                                   \
    {                                                                                    \
        element *r = c->pixels;                                                          \
        if (c->channels == 3)                                                            \
            saturate_##name(c->plane, r, r + c->plane, r + 2 * c->plane, c->number);     \
    }
EK_PIXEL_ROWS(DEFINE_SATURATION)

/* ---- hue ---- */

#define SHARE_OF_u8(x) ((float)(x) / 255.0f)
#define SHARE_OF_f32(x) (x)
#define SHARE_OF_f64(x) (x)
#define OF_SHARE_u8(v) CUT_OFF_u8((v)*255.999f) /* as torchvision's convert_image_dtype */
#define OF_SHARE_f32(v) (v)
#define OF_SHARE_f64(v) (v)

/* Shifts the hue by way of hue, saturation and value, in torchvision's steps with its rounding. A
 * hue of 1 is a whole circle; `sector` counts sixths of the circle. */
#define DEFINE_HUE(name, element, real, white)                                                    \
    EK_MULTIVERSION                                                                               \
    static void hue_##name(const color_part *c)                                                   \
    {                                                                                             \
        const int64_t n = c->plane;                                                               \
        element *restrict red = c->pixels, *restrict green = red + n, *restrict blue = green + n; \
        for (int64_t i = 0; i < n && c->channels == 3; i++) {                                     \
            real r = SHARE_OF_##name(red[i]), g = SHARE_OF_##name(green[i]);                      \
            real b = SHARE_OF_##name(blue[i]);                                                    \
            real most = r > g ? r : g, least = r < g ? r : g;                                     \
            most = most > b ? most : b;                                                           \
            least = least < b ? least : b;                                                        \
            real range = most - least;                                                            \
            real s = range / (range == 0 ? 1 : most), d = range == 0 ? 1 : range;                 \
            real rc = (most - r) / d, gc = (most - g) / d, bc = (most - b) / d;                   \
            real h = most == r ? bc - gc : most == g ? 2 + rc - bc : 4 + gc - rc;                 \
            h = h / 6 + 1;                                                                        \
            h = (h >= 1 ? h - 1 : h) + (real)c->number;                                           \
            h = h < 0 ? h + 1 : h >= 1 ? h - 1 : h;                                               \
            real six = h * 6, sector = (real)(int32_t)six, f = six - sector;                      \
            real p = most * (1 - s), q = most * (1 - s * f), t = most * (1 - s * (1 - f));        \
            p = EK_CUT(p, 1);                                                                     \
            q = EK_CUT(q, 1);                                                                     \
            t = EK_CUT(t, 1);                                                                     \
            sector = sector >= 6 ? sector - 6 : sector;                                           \
            real x = sector == 1 ? q : sector == 2 || sector == 3 ? p : sector == 4 ? t : most;   \
            real y = sector == 0 ? t : sector <= 2 ? most : sector == 3 ? q : p;                  \
            real z = sector <= 1 ? p : sector == 2 ? t : sector <= 4 ? most : q;                  \
            red[i] = OF_SHARE_##name(x);                                                          \
            green[i] = OF_SHARE_##name(y);                                                        \
            blue[i] = OF_SHARE_##name(z);                                                         \
        }                                                                                         \
    }
EK_PIXEL_ROWS(DEFINE_HUE)

/* ---- sharpness ---- */

/* Blends an inner pixel with the mean of its 3 x 3 neighbourhood, in which the pixel counts
 * fivefold, and a pixel on the edge with itself. A picture with a side of 1 or 2 stays. */
#define DEFINE_SHARPNESS(name, element, real, white)                                         \
    EK_MULTIVERSION                                                                          \
    static void sharpness_##name(const color_part *c)                                        \
    {                                                                                        \
        const int64_t h = c->height, w = c->width;                                           \
        const real ratio = (real)c->number, rest = (real)(1 - c->number);                    \
        const real one = (real)1 / 13, five = (real)5 / 13;                                  \
        const element *restrict x = c->before;                                               \
        element *restrict out = c->pixels;                                                   \
        for (int64_t y = 0; y < h && h > 2 && w > 2; y++, x += w, out += w) {                \
            for (int64_t i = 0; i < w; i++) {                                                \
                real value = ratio * (real)x[i] + rest * (real)x[i];                         \
                out[i] = (element)EK_CUT(value, white);                                      \
            }                                                                                \
            for (int64_t i = 1; i < w - 1 && y > 0 && y < h - 1; i++) {                      \
                const element *up = x + i - w, *at = x + i, *down = x + i + w;               \
                real sum = (real)up[-1] * one + (real)up[0] * one + (real)up[1] * one +      \
                           (real)at[-1] * one + (real)at[0] * five + (real)at[1] * one +     \
                           (real)down[-1] * one + (real)down[0] * one + (real)down[1] * one; \
                real value = ratio * (real)*at + rest * (real)EK_ROUNDED_##name(sum);        \
                out[i] = (element)EK_CUT(value, white);                                      \
            }                                                                                \
        }                                                                                    \
    }
EK_PIXEL_ROWS(DEFINE_SHARPNESS)

/* ---- each pixel separately ---- */

/* Inverts values that are at least the threshold. The threshold of bytes is at most 255. */
#define LIMIT_u8(threshold) ((uint8_t)((threshold) > 0 ? ceil(threshold) : 0))
#define LIMIT_f32(threshold) ((float)(threshold))
#define LIMIT_f64(threshold) (threshold)
#define DEFINE_SOLARIZE(name, element, real, white)                \
    EK_MULTIVERSION                                                \
    static void solarize_##name(const color_part *c)               \
    {                                                              \
        const int64_t count = c->channels * c->plane;              \
        const element limit = LIMIT_##name(c->number);             \
        element *restrict x = c->pixels;                           \
        for (int64_t i = 0; i < count; i++)                        \
            x[i] = x[i] >= limit ? (element)((white)-x[i]) : x[i]; \
    }
EK_PIXEL_ROWS(DEFINE_SOLARIZE)

static void posterize(const color_part *c)
{
    const int64_t count = c->channels * c->plane;
    uint8_t *restrict x = c->pixels, mask = (uint8_t)(0xff << (8 - (int)c->number));
    for (int64_t i = 0; i < count; i++)
        x[i] &= mask;
}

/* ---- pixels by the range and the histogram of their plane ---- */

/* Stretches [least, most] to [black, white], as torchvision does, with a rounded reciprocal. A
 * plane of one value stays. */
#define DEFINE_AUTOCONTRAST(name, element, real, white)                           \
    EK_MULTIVERSION                                                               \
    static void autocontrast_##name(const color_part *c)                          \
    {                                                                             \
        const int64_t count = c->plane;                                           \
        element *restrict x = c->pixels;                                          \
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
            x[i] = (element)EK_CUT(value, white);                                 \
        }                                                                         \
    }
EK_PIXEL_ROWS(DEFINE_AUTOCONTRAST)

/* Replaces each value by the sum of the histogram before it, divided by `step`. The largest value
 * that occurs doesn't count towards the step. If the step is 0, the plane stays. */
static void equalize(const color_part *c)
{
    const int64_t count = c->plane;
    uint8_t *pixels = c->pixels;
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

/* ---- the table ---- */

#define ALL_PIXELS(formula)                        \
    {                                              \
        formula##_u8, formula##_f32, formula##_f64 \
    }

static const struct color_row {
    void (*of[3])(const color_part *c); /* u8, f32, f64 */
    bool copies;                        /* the formula reads `before` */
    bool by_plane;                      /* a part is a plane; else a picture */
} color_rows[EK_ADJUSTMENTS] = {
    [EK_ADJUST_BRIGHTNESS] = {.of = ALL_PIXELS(brightness)},
    [EK_ADJUST_CONTRAST] = {.of = ALL_PIXELS(contrast)},
    [EK_ADJUST_SATURATION] = {.of = ALL_PIXELS(saturation)},
    [EK_ADJUST_HUE] = {.of = ALL_PIXELS(hue)},
    [EK_ADJUST_SHARPNESS] = {.of = ALL_PIXELS(sharpness), .copies = true, .by_plane = true},
    [EK_ADJUST_SOLARIZE] = {.of = ALL_PIXELS(solarize)},
    [EK_ADJUST_POSTERIZE] = {.of = {posterize}},
    [EK_ADJUST_AUTOCONTRAST] = {.of = ALL_PIXELS(autocontrast), .by_plane = true},
    [EK_ADJUST_EQUALIZE] = {.of = {equalize}, .by_plane = true},
};

int ek_picture_adjust(ek_array *x, ek_adjustment what, double number)
{
    const struct color_row *row = &color_rows[what];
    const ek_picture picture = ek_picture_of(x);
    color_part c = {.channels = row->by_plane ? 1 : ek_picture_channels(x),
                    .height = picture.height,
                    .width = picture.width,
                    .plane = picture.height * picture.width,
                    .number = number};
    const size_t nbytes = (size_t)(c.channels * c.plane) * picture.size;
    if (nbytes == 0)
        return 0;
    void *before = row->copies ? ek_realloc(NULL, nbytes) : NULL;
    if (row->copies && !before)
        return EK_E_NO_MEMORY;
    c.before = before;
    for (int64_t p = 0; p < picture.planes; p += c.channels) {
        c.pixels = ek_picture_row(x, p, 0);
        if (before)
            memcpy(before, c.pixels, nbytes);
        row->of[x->dtype == EK_U8 ? 0 : x->dtype == EK_F32 ? 1 : 2](&c);
    }
    free(before);
    return 0;
}
