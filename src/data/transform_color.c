/* transform_color.c: brightness, contrast, saturation, hue and grey values, as torchvision's
 * functions for tensors: u8 pixels are computed in f32 and truncated after each adjustment. */
#include "data/transform_picture.h"

/* The dtypes: name, element, the type that it is computed in, the value of white. */
#define COLOR_ROWS(X)          \
    X(u8, uint8_t, float, 255) \
    X(f32, float, float, 1)    \
    X(f64, double, double, 1)

static inline uint8_t pixel_u8(float value)
{
    return (uint8_t)(int32_t)value;
}

static inline float pixel_f32(float value)
{
    return value;
}

static inline double pixel_f64(double value)
{
    return value;
}

/* Calls a function of the array's dtype. */
#define COLOR_CALL(function, dtype, ...) \
    do {                                 \
        if ((dtype) == EK_U8)            \
            function##_u8(__VA_ARGS__);  \
        else if ((dtype) == EK_F32)      \
            function##_f32(__VA_ARGS__); \
        else                             \
            function##_f64(__VA_ARGS__); \
    } while (0)

/* ---- arrays of colors ---- */

int64_t ek_color_channels(const ek_array *array)
{
    return array->shape.ndim < 3 ? 1 : array->shape.dims[array->shape.ndim - 3];
}

int ek_color_check(const ek_transform *transform, const ek_array *array)
{
    char text[200];
    EK_TRY(ek_picture_check(transform, array));
    if (array->dtype != EK_U8 && array->dtype != EK_F32 && array->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "%s: %s; colors are u8, f32 or f64", transform->type->name,
                       ek_array_text(array, text));
    int64_t channels = ek_color_channels(array);
    if (channels != 1 && channels != 3)
        return EK_FAIL(EK_E_SHAPE, "%s: %s; pictures have 1 or 3 channels, (..., C, H, W)",
                       transform->type->name, ek_array_text(array, text));
    return 0;
}

/* The pictures of an array: how many there are, and the pixels of one channel of one. */
static void color_sizes(const ek_array *x, int64_t *pictures, int64_t *plane)
{
    ek_picture picture = ek_picture_of(x);
    *pictures = picture.planes / ek_color_channels(x);
    *plane = picture.height * picture.width;
}

static void *color_plane(const ek_array *x, int64_t plane, int64_t pixels)
{
    return (char *)x->data + (size_t)(plane * pixels) * ek_dtype_size(x->dtype);
}

/* ---- grey values ---- */

#define GREY(real, r, g, b) \
    (((real)0.2989 * (real)(r) + (real)0.587 * (real)(g)) + (real)0.114 * (real)(b))

#define DEFINE_GREY(name, element, real, white)                                                  \
    EK_MULTIVERSION                                                                              \
    static void grey_##name(int64_t count, const element *restrict r, const element *restrict g, \
                            const element *restrict b, element *restrict out)                    \
    {                                                                                            \
        for (int64_t i = 0; i < count; i++)                                                      \
            out[i] = pixel_##name(GREY(real, r[i], g[i], b[i]));                                 \
    }
COLOR_ROWS(DEFINE_GREY)

void ek_picture_grey(const ek_array *in, ek_array *out)
{
    int64_t pictures, plane, from = ek_color_channels(in), to = ek_color_channels(out);
    color_sizes(in, &pictures, &plane);
    for (int64_t p = 0; p < pictures; p++) {
        ek_array grey = {.dtype = in->dtype, .shape = {.ndim = 1, .dims = {plane}}};
        grey.data = color_plane(out, p * to, plane);
        if (from == 1)
            ek_array_keep(&(ek_array){grey.dtype, grey.shape, color_plane(in, p, plane)}, &grey);
        else
            COLOR_CALL(grey, in->dtype, plane, color_plane(in, 3 * p, plane),
                       color_plane(in, 3 * p + 1, plane), color_plane(in, 3 * p + 2, plane),
                       grey.data);
        for (int64_t c = 1; c < to; c++) {
            ek_array copy = {.data = color_plane(out, p * to + c, plane)};
            ek_array_keep(&grey, &copy);
        }
    }
}

/* ---- blends: ratio * x + (1 - ratio) * other, cut to [black, white] ---- */

#define CUT(value, white) ((value) < 0 ? 0 : (value) > (white) ? (white) : (value))

#define DEFINE_BLEND(name, element, real, white)                                           \
    EK_MULTIVERSION                                                                        \
    static void blend_##name(int64_t count, element *restrict x, double ratio, double add) \
    {                                                                                      \
        const real times = (real)ratio, plus = (real)add;                                  \
        for (int64_t i = 0; i < count; i++) {                                              \
            real value = times * (real)x[i] + plus;                                        \
            x[i] = pixel_##name(CUT(value, white));                                        \
        }                                                                                  \
    }
COLOR_ROWS(DEFINE_BLEND)

void ek_adjust_brightness(ek_array *x, double factor)
{
    COLOR_CALL(blend, x->dtype, ek_shape_count(&x->shape), x->data, factor, 0);
}

/* The mean grey value of a picture, whose pixels are rounded before they are added. */
#define DEFINE_MEAN(name, element, real, white)                                                  \
    EK_MULTIVERSION                                                                              \
    static void mean_##name(int64_t count, const element *restrict r, const element *restrict g, \
                            const element *restrict b, double *mean)                             \
    {                                                                                            \
        double sum = 0;                                                                          \
        for (int64_t i = 0; i < count; i++)                                                      \
            sum += (double)(g ? pixel_##name(GREY(real, r[i], g[i], b[i])) : r[i]);              \
        *mean = (double)((real)sum / (real)count);                                               \
    }
#define DEFINE_CONTRAST(name, element, real, white)                                        \
    static void contrast_##name(int64_t count, element *x, int64_t channels, double ratio) \
    {                                                                                      \
        double mean = 0;                                                                   \
        const element *g = channels == 3 ? x + count : NULL;                               \
        mean_##name(count, x, g, g ? g + count : NULL, &mean);                             \
        blend_##name(channels *count, x, ratio, (double)((real)(1 - ratio) * (real)mean)); \
    }
COLOR_ROWS(DEFINE_MEAN)
COLOR_ROWS(DEFINE_CONTRAST)

void ek_adjust_contrast(ek_array *x, double factor)
{
    int64_t pictures, plane, channels = ek_color_channels(x);
    color_sizes(x, &pictures, &plane);
    for (int64_t p = 0; p < pictures && plane > 0; p++)
        COLOR_CALL(contrast, x->dtype, plane, color_plane(x, p * channels, plane), channels,
                   factor);
}

#define DEFINE_SATURATE(name, element, real, white)                                      \
    EK_MULTIVERSION                                                                      \
    static void saturate_##name(int64_t count, element *restrict r, element *restrict g, \
                                element *restrict b, double factor)                      \
    {                                                                                    \
        const real ratio = (real)factor, rest = (real)(1 - factor);                      \
        for (int64_t i = 0; i < count; i++) {                                            \
            real grey = rest * (real)pixel_##name(GREY(real, r[i], g[i], b[i]));         \
            real x = ratio * (real)r[i] + grey, y = ratio * (real)g[i] + grey;           \
            real z = ratio * (real)b[i] + grey;                                          \
            r[i] = pixel_##name(CUT(x, white));                                          \
            g[i] = pixel_##name(CUT(y, white));                                          \
            b[i] = pixel_##name(CUT(z, white));                                          \
        }                                                                                \
    }
COLOR_ROWS(DEFINE_SATURATE)

/* ---- hue ---- */

#define SHARE_OF_u8(x) ((float)(x) / 255.0f)
#define SHARE_OF_f32(x) (x)
#define SHARE_OF_f64(x) (x)
#define OF_SHARE_u8(v) pixel_u8((v)*255.999f) /* as torchvision's convert_image_dtype */
#define OF_SHARE_f32(v) (v)
#define OF_SHARE_f64(v) (v)

/* Goes through hue, saturation and value: each step is one of torchvision's, rounded as there. The
 * hue is in units of a circle, of which `sector` is the sixth. */
#define DEFINE_HUE(name, element, real, white)                                                  \
    EK_MULTIVERSION                                                                             \
    static void hue_##name(int64_t count, element *restrict red, element *restrict green,       \
                           element *restrict blue, double shift)                                \
    {                                                                                           \
        for (int64_t i = 0; i < count; i++) {                                                   \
            real r = SHARE_OF_##name(red[i]), g = SHARE_OF_##name(green[i]);                    \
            real b = SHARE_OF_##name(blue[i]);                                                  \
            real most = r > g ? r : g, least = r < g ? r : g;                                   \
            most = most > b ? most : b;                                                         \
            least = least < b ? least : b;                                                      \
            real range = most - least;                                                          \
            real s = range / (range == 0 ? 1 : most), d = range == 0 ? 1 : range;               \
            real rc = (most - r) / d, gc = (most - g) / d, bc = (most - b) / d;                 \
            real h = most == r ? bc - gc : most == g ? 2 + rc - bc : 4 + gc - rc;               \
            h = h / 6 + 1;                                                                      \
            h = (h >= 1 ? h - 1 : h) + (real)shift;                                             \
            h = h < 0 ? h + 1 : h >= 1 ? h - 1 : h;                                             \
            real six = h * 6, sector = (real)(int32_t)six, f = six - sector;                    \
            real p = most * (1 - s), q = most * (1 - s * f), t = most * (1 - s * (1 - f));      \
            p = CUT(p, 1);                                                                      \
            q = CUT(q, 1);                                                                      \
            t = CUT(t, 1);                                                                      \
            sector = sector >= 6 ? sector - 6 : sector;                                         \
            real x = sector == 1 ? q : sector == 2 || sector == 3 ? p : sector == 4 ? t : most; \
            real y = sector == 0 ? t : sector <= 2 ? most : sector == 3 ? q : p;                \
            real z = sector <= 1 ? p : sector == 2 ? t : sector <= 4 ? most : q;                \
            red[i] = OF_SHARE_##name(x);                                                        \
            green[i] = OF_SHARE_##name(y);                                                      \
            blue[i] = OF_SHARE_##name(z);                                                       \
        }                                                                                       \
    }
COLOR_ROWS(DEFINE_HUE)

#define DEFINE_OF_THREE(function, operation)                                               \
    void function(ek_array *x, double number)                                              \
    {                                                                                      \
        int64_t pictures, plane;                                                           \
        color_sizes(x, &pictures, &plane);                                                 \
        for (int64_t p = 0; p < pictures && ek_color_channels(x) == 3; p++)                \
            COLOR_CALL(operation, x->dtype, plane, color_plane(x, 3 * p, plane),           \
                       color_plane(x, 3 * p + 1, plane), color_plane(x, 3 * p + 2, plane), \
                       number);                                                            \
    }
DEFINE_OF_THREE(ek_adjust_saturation, saturate)
DEFINE_OF_THREE(ek_adjust_hue, hue)
