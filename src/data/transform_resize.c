/* transform_resize.c: makes pictures larger or smaller, as PyTorch's interpolate: by the nearest
 * pixel, or bilinearly. Bilinearly first each row is resized, then rows are blended. */
#include <stdlib.h>
#include <string.h>

#include "data/transform_filter.h"

typedef struct resize {
    ek_transform transform;
    int64_t height, width;
    ek_resampling how;
} resize;

/* ---- what can be resized ---- */

int ek_resampling_check(const char *name, const ek_resampling *how)
{
    if (how->nearest && (how->bicubic || how->antialias))
        return EK_FAIL(EK_E_INVALID, "%s: .nearest excludes .%s", name,
                       how->bicubic ? "bicubic" : "antialias");
    return 0;
}

int ek_resampling_check_dtype(const ek_transform *transform, const ek_array *array,
                              const ek_resampling *how)
{
    char text[200];
    if (how->nearest || array->dtype == EK_U8 || array->dtype == EK_F32 || array->dtype == EK_F64)
        return 0;
    return EK_FAIL(EK_E_DTYPE,
                   "%s: %s; u8, f32 and f64 are resized bilinearly, other elements by "
                   ".nearest = true",
                   transform->type->name, ek_array_text(array, text));
}

/* ---- sizes ---- */

static int resize_describe(const ek_transform *transform, ek_array *array)
{
    const resize *self = (const resize *)transform;
    char text[200];
    EK_TRY(ek_picture_check(transform, array));
    int64_t h = ek_picture_of(array).height, w = ek_picture_of(array).width;
    EK_TRY(ek_resampling_check_dtype(transform, array, &self->how));
    if (h < 1 || w < 1)
        return EK_FAIL(EK_E_SHAPE, "resize: %s has no pixels; at least one is needed",
                       ek_array_text(array, text));
    int64_t to_h = self->height, to_w = self->width;
    if (to_w == 0) {
        int64_t edge = self->height;
        to_h = w <= h ? edge * h / w : edge;
        to_w = w <= h ? edge : edge * w / h;
    }
    array->shape.dims[array->shape.ndim - 2] = to_h;
    array->shape.dims[array->shape.ndim - 1] = to_w;
    return 0;
}

/* ---- bilinear ---- */

/* The weight of one of the two source pixels that a result pixel is blended from. */
typedef union share {
    float f32; /* for u8 and f32 elements */
    double f64;
} share;

typedef struct tap {
    int64_t lower, upper;
    share lower_share, upper_share;
} tap;

/* Fills taps[i]: the source pixels, along one dimension, on both sides of the center of result
 * pixel i, and their weights. In source coordinates that center is scale * (i + 0.5) - 0.5. It is
 * computed in f32 for u8 and f32 elements, in f64 for f64 ones. */
#define DEFINE_TAPS(real, member)                                                \
    static void taps_##member(tap *taps, int64_t in, int64_t out)                \
    {                                                                            \
        real scale = (real)in / (real)out;                                       \
        for (int64_t i = 0; i < out; i++) {                                      \
            tap *t = &taps[i];                                                   \
            real source = scale * ((real)i + (real)0.5) - (real)0.5;             \
            source = in == out ? (real)i : source < 0 ? 0 : source;              \
            t->lower = (int64_t)source < in - 1 ? (int64_t)source : in - 1;      \
            t->upper = in != out && t->lower < in - 1 ? t->lower + 1 : t->lower; \
            real upper = in == out ? 0 : source - (real)t->lower;                \
            t->upper_share.member = upper > 1 ? 1 : upper;                       \
            t->lower_share.member = 1 - t->upper_share.member;                   \
        }                                                                        \
    }
DEFINE_TAPS(float, f32)
DEFINE_TAPS(double, f64)
#undef DEFINE_TAPS

/* Resizes one row of the picture to the result's width. */
#define DEFINE_SPREAD(name, element, real, member)                                         \
    static void name(int64_t count, const tap *restrict taps, const void *row, void *wide) \
    {                                                                                      \
        const element *restrict x = row;                                                   \
        real *restrict y = wide;                                                           \
        for (int64_t i = 0; i < count; i++)                                                \
            y[i] = taps[i].lower_share.member * (real)x[taps[i].lower] +                   \
                   taps[i].upper_share.member * (real)x[taps[i].upper];                    \
    }
DEFINE_SPREAD(spread_u8, uint8_t, float, f32)
DEFINE_SPREAD(spread_f32, float, float, f32)
DEFINE_SPREAD(spread_f64, double, double, f64)
#undef DEFINE_SPREAD

#define DEFINE_BLEND(real, member)                                                                \
    EK_MULTIVERSION                                                                               \
    static void blend_##member(int64_t count, const tap *t, const void *lower, const void *upper, \
                               void *result)                                                      \
    {                                                                                             \
        const real *restrict u = lower, *restrict v = upper;                                      \
        real *restrict y = result, a = t->lower_share.member, b = t->upper_share.member;          \
        for (int64_t i = 0; i < count; i++)                                                       \
            y[i] = a * u[i] + b * v[i];                                                           \
    }
DEFINE_BLEND(float, f32)
DEFINE_BLEND(double, f64)
#undef DEFINE_BLEND

/* Adding 1.5 * 2^23 rounds the sum to a whole number: a float of that size has no bits below 1. */
EK_MULTIVERSION
static void blend_u8(int64_t count, const tap *t, const void *lower, const void *upper,
                     void *result)
{
    const float *restrict u = lower, *restrict v = upper, whole = 0x1.8p23f;
    uint8_t *restrict y = result;
    float a = t->lower_share.f32, b = t->upper_share.f32;
    for (int64_t i = 0; i < count; i++) {
        float sum = a * u[i] + b * v[i] + whole;
        y[i] = (uint8_t)(int32_t)(sum - whole);
    }
}

/* The functions that read, blend and write the elements of one dtype. */
typedef struct blending {
    void (*taps)(tap *taps, int64_t in, int64_t out);
    void (*spread)(int64_t count, const tap *taps, const void *row, void *wide);
    void (*blend)(int64_t count, const tap *t, const void *lower, const void *upper, void *result);
    size_t real_size;
} blending;

static const blending blendings[EK_DTYPES] = {
    [EK_U8] = {taps_f32, spread_u8, blend_u8, sizeof(float)},
    [EK_F32] = {taps_f32, spread_f32, blend_f32, sizeof(float)},
    [EK_F64] = {taps_f64, spread_f64, blend_f64, sizeof(double)}};

/* A resized row of the picture, kept so that each is resized once; `number` -1: none. */
typedef struct wide_row {
    int64_t number;
    void *elements;
} wide_row;

static const void *wide_row_of(wide_row rows[2], int64_t number, int64_t other, int64_t count,
                               const blending *how, const tap *columns, const char *plane,
                               size_t pitch)
{
    if (rows[0].number == number || rows[1].number == number)
        return rows[rows[0].number != number].elements;
    wide_row *row = &rows[rows[0].number == other];
    how->spread(count, columns, plane + (size_t)number * pitch, row->elements);
    row->number = number;
    return row->elements;
}

static void resize_bilinear_plane(const blending *how, const tap *columns, const tap *lines,
                                  wide_row rows[2], const char *plane, size_t pitch, int64_t h,
                                  int64_t w, char *out, size_t out_pitch)
{
    rows[0].number = rows[1].number = -1;
    for (int64_t y = 0; y < h; y++) {
        const tap *t = &lines[y];
        const void *u = wide_row_of(rows, t->lower, t->upper, w, how, columns, plane, pitch);
        const void *v = wide_row_of(rows, t->upper, t->lower, w, how, columns, plane, pitch);
        how->blend(w, t, u, v, out + (size_t)y * out_pitch);
    }
}

/* The window's first pixel in a plane of `in`. */
static const char *window_at(const ek_array *in, int64_t plane, const ek_window *window)
{
    ek_picture from = ek_picture_of(in);
    int64_t row = plane * from.height + window->top;
    return (const char *)in->data + (size_t)(row * from.width + window->left) * from.size;
}

static int resize_bilinear(const ek_array *in, const ek_window *window, ek_array *out)
{
    const blending *how = &blendings[in->dtype];
    ek_picture from = ek_picture_of(in), to = ek_picture_of(out);
    int64_t to_h = to.height, to_w = to.width;
    size_t size = from.size;
    tap *taps = ek_calloc((size_t)(to_h + to_w), sizeof *taps);
    char *room = ek_calloc(2 * (size_t)to_w, how->real_size);
    int rc = taps && room ? 0 : EK_E_NO_MEMORY;
    if (rc == 0) {
        wide_row rows[2] = {{-1, room}, {-1, room + (size_t)to_w * how->real_size}};
        how->taps(taps, window->height, to_h);
        how->taps(taps + to_h, window->width, to_w);
        for (int64_t p = 0; p < from.planes; p++)
            resize_bilinear_plane(how, taps + to_h, taps, rows, window_at(in, p, window),
                                  (size_t)from.width * size, to_h, to_w,
                                  (char *)out->data + (size_t)(p * to_h * to_w) * size,
                                  (size_t)to_w * size);
    }
    free(room);
    free(taps);
    return rc;
}

/* ---- nearest ---- */

/* The nearest pixels as in PyTorch, which computes them in float for every dtype. */
static void resize_nearest_places(int64_t *places, int64_t in, int64_t out)
{
    float scale = (float)in / (float)out;
    for (int64_t i = 0; i < out; i++) {
        int64_t at = in == out ? i : out == 2 * in ? i / 2 : (int64_t)((float)i * scale);
        places[i] = at < in - 1 ? at : in - 1;
    }
}

static int resize_nearest(const ek_array *in, const ek_window *window, ek_array *out)
{
    ek_picture from = ek_picture_of(in);
    int64_t to_h = ek_picture_of(out).height, to_w = ek_picture_of(out).width;
    size_t size = from.size, pitch = (size_t)from.width * size;
    int64_t *places = ek_calloc((size_t)(to_h + to_w), sizeof *places);
    if (!places)
        return EK_E_NO_MEMORY;
    resize_nearest_places(places, window->height, to_h);
    resize_nearest_places(places + to_h, window->width, to_w);
    char *to = out->data;
    for (int64_t p = 0; p < from.planes; p++)
        for (int64_t y = 0; y < to_h; y++, to += (size_t)to_w * size)
            ek_pick_run(to_w, places + to_h, size,
                        window_at(in, p, window) + (size_t)places[y] * pitch, NULL, to);
    free(places);
    return 0;
}

/* ---- the transform ---- */

/* A window of the right size already is copied as it is. */
static void resize_copy(const ek_array *in, const ek_window *window, ek_array *out)
{
    ek_picture from = ek_picture_of(in);
    size_t row = (size_t)window->width * from.size;
    char *to = out->data;
    for (int64_t p = 0; p < from.planes; p++)
        for (int64_t y = 0; y < window->height; y++, to += row)
            memcpy(to, window_at(in, p, window) + (size_t)(y * from.width) * from.size, row);
}

int ek_picture_resize(const ek_array *in, const ek_window *window, ek_array *out,
                      const ek_resampling *how)
{
    ek_picture to = ek_picture_of(out);
    if (window->height == to.height && window->width == to.width) {
        resize_copy(in, window, out);
        return 0;
    }
    if (how->nearest)
        return resize_nearest(in, window, out);
    return how->bicubic || how->antialias ? ek_picture_filter(in, window, out, how)
                                          : resize_bilinear(in, window, out);
}

static int resize_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                        ek_generator *generator)
{
    ek_picture picture = ek_picture_of(in);
    const ek_window whole = {0, 0, picture.height, picture.width};
    (void)generator;
    return ek_picture_resize(in, &whole, out, &((const resize *)transform)->how);
}

static const ek_transform_type resize_type = {.name = "resize",
                                              .size = sizeof(resize),
                                              .describe = resize_describe,
                                              .apply = resize_apply};

ek_transform *ek_resize_with(ek_resize_options options)
{
    if (options.height < 1 || options.height > EK_PICTURE_MOST || options.width < 0 ||
        options.width > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "resize: to %lld x %lld; sizes lie in [1, %lld] (no width: the shorter "
                            "edge becomes the first)",
                            (long long)options.height, (long long)options.width,
                            (long long)EK_PICTURE_MOST);
    const ek_resampling how = {options.nearest, options.bicubic, options.antialias};
    if (ek_resampling_check("resize", &how) < 0)
        return NULL;
    resize *self = (resize *)ek_transform_new(&resize_type);
    if (!self)
        return NULL;
    self->height = options.height;
    self->width = options.width;
    self->how = how;
    return &self->transform;
}
