/* transform_resize.c: makes pictures larger or smaller, as PyTorch's interpolate: resize, and
 * random_resized_crop for a part of random size and shape.
 *
 * A result pixel is the nearest one, or a weighted sum of pixels: first each row is resized, then
 * rows are added. Antialiasing widens the filter by the factor by which a picture shrinks, as
 * Pillow does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/transform_operation.h"

/* The options of resize and random_resized_crop. */
typedef struct resizing {
    int64_t height, width; /* width 0: the shorter edge becomes `height` */
    bool nearest, bicubic, antialias;
    double scale[2], ratio[2]; /* of the part; random_resized_crop only */
} resizing;

/* ---- filters ---- */

/* The source pixels of one result pixel along one side: first, second, second + 1 and so on. On the
 * edge, `second` may equal `first`. */
typedef struct resize_span {
    int64_t first, second, count;
} resize_span;

/* The weights of span i begin at weights[i * most]. */
typedef struct filter {
    int64_t most; /* weights of a span at most */
    resize_span *spans;
    void *weights; /* float for u8 and f32 elements, double for f64 ones */
} filter;

static void filter_close(filter *self)
{
    free(self->spans);
    free(self->weights);
}

/* Returns the weight at distance x from the center: linear, or the cubic convolution of Keys
 * (1981). Its parameter a is -0.75 in PyTorch without antialiasing, and Pillow's -0.5 with
 * antialiasing. */
static double filter_weight(double x, const resizing *how)
{
    const double a = how->antialias ? -0.5 : -0.75;
    x = fabs(x);
    if (!how->bicubic)
        return x < 1 ? 1 - x : 0;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* Writes the weights of result pixel i, over all pixels within `support` of its center. */
static resize_span filter_antialias(double *weights, int64_t i, int64_t in, double scale,
                                    double support, const resizing *how)
{
    double center = scale * ((double)i + 0.5), sum = 0, inverse = scale >= 1 ? 1 / scale : 1;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    first = first < 0 ? 0 : first < in ? first : in - 1;
    end = end <= first ? first + 1 : end < in ? end : in;
    for (int64_t j = first; j < end; j++) {
        weights[j - first] = filter_weight(((double)j - center + 0.5) * inverse, how);
        sum += weights[j - first];
    }
    for (int64_t j = first; j < end && sum != 0; j++)
        weights[j - first] /= sum;
    return (resize_span){first, first + 1, end - first};
}

/* Writes the weights of result pixel i: four pixels, of which those beyond an edge give their
 * weights to the pixel on the edge. */
static resize_span filter_cubic(double *weights, int64_t i, int64_t in, double scale,
                                const resizing *how)
{
    double source = scale * ((double)i + 0.5) - 0.5;
    int64_t low = (int64_t)floor(source) - 1;
    int64_t first = low < 0 ? 0 : low < in - 1 ? low : in - 1;
    int64_t end = low + 4 < in ? low + 4 : in;
    memset(weights, 0, 4 * sizeof *weights);
    for (int64_t j = low; j < low + 4; j++) {
        int64_t at = j < first ? first : j < in - 1 ? j : in - 1;
        weights[at - first] += filter_weight((double)j - source, how);
    }
    return (resize_span){first, first + 1, end - first};
}

/* Fills a bilinear filter: the pixels on both sides of a result pixel's center, which is
 * scale * (i + 0.5) - 0.5. */
#define DEFINE_LINEAR(real)                                                       \
    static void filter_linear_##real(const filter *self, int64_t in, int64_t out) \
    {                                                                             \
        const real scale = (real)in / (real)out;                                  \
        real *weights = self->weights;                                            \
        for (int64_t i = 0; i < out; i++, weights += 2) {                         \
            real source = scale * ((real)i + (real)0.5) - (real)0.5;              \
            source = in == out ? (real)i : source < 0 ? 0 : source;               \
            int64_t lower = (int64_t)source < in - 1 ? (int64_t)source : in - 1;  \
            bool has_upper = in != out && lower < in - 1;                         \
            real upper = in == out ? 0 : source - (real)lower;                    \
            weights[1] = upper > 1 ? 1 : upper;                                   \
            weights[0] = 1 - weights[1];                                          \
            self->spans[i] = (resize_span){lower, lower + has_upper, 2};          \
        }                                                                         \
    }
DEFINE_LINEAR(float)
DEFINE_LINEAR(double)

/* Fills a bicubic or antialiased filter. */
static int filter_wide(const filter *self, int64_t in, int64_t out, double scale, double support,
                       bool is_f32, const resizing *how)
{
    double *weights = ek_calloc((size_t)self->most, sizeof *weights);
    if (!weights)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < out; i++) {
        self->spans[i] = how->antialias ? filter_antialias(weights, i, in, scale, support, how)
                                        : filter_cubic(weights, i, in, scale, how);
        for (int64_t at = i * self->most, j = 0; j < self->spans[i].count; j++)
            if (is_f32)
                ((float *)self->weights)[at + j] = (float)weights[j];
            else
                ((double *)self->weights)[at + j] = weights[j];
    }
    free(weights);
    return 0;
}

static int filter_open(filter *self, int64_t in, int64_t out, bool is_f32, const resizing *how)
{
    bool is_wide = how->bicubic || how->antialias;
    double scale = is_f32 ? (double)((float)in / (float)out) : (double)in / (double)out;
    double support = (how->bicubic ? 2 : 1) * (how->antialias && scale >= 1 ? scale : 1);
    self->most = is_wide ? (int64_t)ceil(support) * 2 + 1 : 2;
    self->spans = ek_calloc((size_t)out, sizeof *self->spans);
    self->weights = ek_calloc((size_t)(out * self->most), is_f32 ? sizeof(float) : sizeof(double));
    if (!self->spans || !self->weights)
        return EK_E_NO_MEMORY;
    if (is_wide)
        return filter_wide(self, in, out, scale, support, is_f32, how);
    (is_f32 ? filter_linear_float : filter_linear_double)(self, in, out);
    return 0;
}

/* ---- rows and sums of rows ---- */

/* Adding 1.5 * 2^23 rounds to a whole number: a float of that size has no bits below 1. */
static inline uint8_t stored_u8(float value)
{
    value = EK_CUT(value, 255);
    return (uint8_t)(int32_t)((value + 0x1.8p23f) - 0x1.8p23f);
}
#define stored_f32(value) (value)
#define stored_f64(value) (value)

enum { RESIZE_BLOCK = 256 };

/* resize_spread resizes one row of the picture to `count` pixels.
 *
 * resize_sum writes a result row of `count` pixels: the weighted sum of the rows of span `number`.
 * A block of sums stays in the cache. */
#define DEFINE_RESIZE(name, element, real, white)                                              \
    static void resize_spread_##name(const filter *self, int64_t count, const void *row,       \
                                     void *wide)                                               \
    {                                                                                          \
        const element *restrict x = row;                                                       \
        const real *restrict weights = self->weights;                                          \
        const resize_span *restrict spans = self->spans;                                       \
        real *restrict y = wide;                                                               \
        for (int64_t i = 0; i < count && self->most == 2; i++)                                 \
            y[i] = (real)x[spans[i].first] * weights[2 * i] +                                  \
                   (real)x[spans[i].second] * weights[2 * i + 1];                              \
        for (int64_t i = 0; i < count && self->most > 2; i++, weights += self->most) {         \
            const element *from = x + spans[i].first;                                          \
            real sum = (real)from[0] * weights[0];                                             \
            for (int64_t j = 1; j < spans[i].count; j++)                                       \
                sum += (real)from[j] * weights[j];                                             \
            y[i] = sum;                                                                        \
        }                                                                                      \
    }                                                                                          \
    EK_MULTIVERSION                                                                            \
    static void resize_sum_##name(const filter *self, int64_t number, const void *const *rows, \
                                  int64_t count, void *result)                                 \
    {                                                                                          \
        const real *restrict weights = (const real *)self->weights + number * self->most;      \
        const int64_t terms = self->spans[number].count;                                       \
        const real *restrict u = rows[0], *restrict v = rows[terms > 1];                       \
        element *restrict out = result;                                                        \
        for (int64_t i = 0; i < count && terms == 2; i++)                                      \
            out[i] = stored_##name(u[i] * weights[0] + v[i] * weights[1]);                     \
        for (int64_t at = 0; at < count && terms != 2; at += RESIZE_BLOCK) {                   \
            const int64_t n = count - at < RESIZE_BLOCK ? count - at : RESIZE_BLOCK;           \
            real sum[RESIZE_BLOCK];                                                            \
            for (int64_t i = 0; i < n; i++)                                                    \
                sum[i] = u[at + i] * weights[0];                                               \
            for (int64_t j = 1; j < terms; j++)                                                \
                for (int64_t i = 0; i < n; i++)                                                \
                    sum[i] += ((const real *)rows[j])[at + i] * weights[j];                    \
            for (int64_t i = 0; i < n; i++)                                                    \
                out[at + i] = stored_##name(sum[i]);                                           \
        }                                                                                      \
    }
EK_PIXEL_ROWS(DEFINE_RESIZE)

/* Resized rows of a plane, kept while sums need them. Row `number` lies in slot number % slots. */
typedef struct resize_ring {
    int64_t slots;     /* a power of 2 that is at least the rows of a sum */
    int64_t *numbers;  /* the row in each slot; -1: none */
    char *elements;    /* `slots` rows */
    const void **rows; /* those of one sum */
} resize_ring;

static void resize_plane(const filter *columns, const filter *lines, resize_ring *ring,
                         const char *plane, size_t pitch, ek_array *out, int64_t number)
{
    ek_picture to = ek_picture_of(out);
    size_t nbytes = (size_t)to.width * (out->dtype == EK_F64 ? sizeof(double) : sizeof(float));
    for (int64_t i = 0; i < ring->slots; i++)
        ring->numbers[i] = -1;
    for (int64_t y = 0; y < to.height; y++) {
        const resize_span *span = &lines->spans[y];
        for (int64_t j = 0; j < span->count; j++) {
            int64_t line = j ? span->second + j - 1 : span->first, slot = line & (ring->slots - 1);
            char *row = ring->elements + (size_t)slot * nbytes;
            if (ring->numbers[slot] != line)
                EK_PIXEL_FUNCTION(resize_spread, out->dtype)
            (columns, to.width, plane + (size_t)line * pitch, row);
            ring->numbers[slot] = line;
            ring->rows[j] = row;
        }
        EK_PIXEL_FUNCTION(resize_sum, out->dtype)
        (lines, y, ring->rows, to.width, ek_picture_row(out, number, y));
    }
}

static int resize_planes(const ek_array *in, const ek_window *window, ek_array *out,
                         const filter *columns, const filter *lines)
{
    ek_picture from = ek_picture_of(in);
    size_t real_size = in->dtype == EK_F64 ? sizeof(double) : sizeof(float);
    resize_ring ring = {.slots = 1};
    while (ring.slots < lines->most)
        ring.slots *= 2;
    ring.elements = ek_calloc((size_t)ring.slots, (size_t)ek_picture_of(out).width * real_size);
    ring.numbers = ek_calloc((size_t)ring.slots, sizeof *ring.numbers);
    ring.rows = ek_calloc((size_t)lines->most, sizeof *ring.rows);
    int rc = ring.elements && ring.numbers && ring.rows ? 0 : EK_E_NO_MEMORY;
    for (int64_t p = 0; rc == 0 && p < from.planes; p++) {
        const char *plane = ek_picture_row(in, p, window->top);
        resize_plane(columns, lines, &ring, plane + (size_t)window->left * from.size,
                     (size_t)from.width * from.size, out, p);
    }
    free(ring.elements);
    free(ring.numbers);
    free(ring.rows);
    return rc;
}

/* ---- a window of a picture ---- */

/* Writes the places of the nearest pixels. Computes in float, as PyTorch does for every dtype. */
static void nearest_places(const void *user, int side, int64_t out, int64_t *places)
{
    const ek_window *window = user;
    const int64_t in = side ? window->width : window->height;
    const float scale = (float)in / (float)out;
    for (int64_t i = 0; i < out; i++) {
        int64_t at = in == out ? i : out == 2 * in ? i / 2 : (int64_t)((float)i * scale);
        places[i] = (side ? window->left : window->top) + (at < in - 1 ? at : in - 1);
    }
}

/* Resizes a window inside the picture, in every plane of `in`, to the size of `out`. A window of
 * the size of `out` is copied unchanged. */
static int resize_window(const ek_array *in, const ek_window *window, ek_array *out,
                         const resizing *how)
{
    ek_picture to = ek_picture_of(out);
    bool is_copy = window->height == to.height && window->width == to.width;
    bool is_f32 = in->dtype != EK_F64;
    if (how->nearest || is_copy)
        return ek_picture_gather(in, out, nearest_places, window, 0);
    filter columns = {0}, lines = {0};
    int rc = filter_open(&columns, window->width, to.width, is_f32, how);
    if (rc == 0)
        rc = filter_open(&lines, window->height, to.height, is_f32, how);
    if (rc == 0)
        rc = resize_planes(in, window, out, &columns, &lines);
    filter_close(&columns);
    filter_close(&lines);
    return rc;
}

/* ---- the transforms ---- */

static int resize_describe(const ek_transform *self, ek_array *array)
{
    const resizing *o = ek_options_of(self);
    int64_t h = ek_picture_of(array).height, w = ek_picture_of(array).width, edge = o->height;
    if (!o->nearest)
        EK_TRY(
            ek_check_pixels(self, array, "resized bilinearly, other elements by .nearest = true"));
    EK_TRY(ek_check_filled(self, array));
    if (o->width)
        ek_picture_set_size(array, o->height, o->width);
    else
        ek_picture_set_size(array, w <= h ? edge * h / w : edge, w <= h ? edge : edge * w / h);
    return 0;
}

static int resize_apply(ek_application *a)
{
    const ek_window whole = {0, 0, ek_picture_of(a->in).height, ek_picture_of(a->in).width};
    return resize_window(a->in, &whole, a->out, a->options);
}

/* Sets the window to the largest part in the middle whose aspect ratio is allowed. */
static void resized_crop_middle(const resizing *o, ek_picture picture, ek_window *window)
{
    double ratio = (double)picture.width / (double)picture.height;
    window->height = picture.height;
    window->width = picture.width;
    if (ratio < o->ratio[0])
        window->height = (int64_t)rint((double)picture.width / o->ratio[0]);
    else if (ratio > o->ratio[1])
        window->width = (int64_t)rint((double)picture.height * o->ratio[1]);
    window->height = window->height < 1 ? 1 : window->height;
    window->width = window->width < 1 ? 1 : window->width;
    window->top = (picture.height - window->height) / 2;
    window->left = (picture.width - window->width) / 2;
}

static int resized_crop_draw(ek_application *a)
{
    const resizing *o = a->options;
    if (ek_draw_part(a, o->scale, o->ratio, true, 1))
        ek_draw_place(a);
    else
        resized_crop_middle(o, ek_picture_of(a->in), &a->window);
    return 1;
}

static int resized_crop_apply(ek_application *a)
{
    return resize_window(a->in, &a->window, a->out, a->options);
}

static const ek_operation resize = {
    EK_OPERATION(resize, resizing, EK_PICTURE, resize_describe, NULL, resize_apply)};
static const ek_operation random_resized_crop = {
    EK_OPERATION(random_resized_crop, resizing, EK_PICTURE, resize_describe, resized_crop_draw,
                 resized_crop_apply)};

static ek_transform *resize_new(const ek_operation *operation, const resizing *o)
{
    if (o->nearest && (o->bicubic || o->antialias))
        return EK_FAIL_NULL(EK_E_INVALID, "%s: .nearest excludes .%s", operation->type.name,
                            o->bicubic ? "bicubic" : "antialias");
    return ek_operation_new(operation, o, 0);
}

ek_transform *ek_resize_with(ek_resize_options options)
{
    const resizing self = {.height = options.height,
                           .width = options.width,
                           .nearest = options.nearest,
                           .bicubic = options.bicubic,
                           .antialias = options.antialias};
    if (options.height < 1 || options.height > EK_PICTURE_MOST || options.width < 0 ||
        options.width > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "resize: to %lld x %lld; sizes lie in [1, %lld] (no width: the shorter "
                            "edge becomes the first)",
                            (long long)options.height, (long long)options.width,
                            (long long)EK_PICTURE_MOST);
    return resize_new(&resize, &self);
}

ek_transform *ek_random_resized_crop_with(ek_resized_crop_options options)
{
    const char *name = "random_resized_crop";
    ek_range_default(options.scale, 0.08, 1);
    ek_range_default(options.ratio, 3.0 / 4, 4.0 / 3);
    const resizing self = {.height = options.height,
                           .width = options.width ? options.width : options.height,
                           .nearest = options.nearest,
                           .bicubic = options.bicubic,
                           .antialias = options.antialias,
                           .scale = {options.scale[0], options.scale[1]},
                           .ratio = {options.ratio[0], options.ratio[1]}};
    if (ek_check_size(name, self.height, self.width) < 0 ||
        ek_check_range(name, "scale", self.scale, 0, INFINITY) < 0 ||
        ek_check_ratio(name, "ratio", self.ratio) < 0)
        return NULL;
    return resize_new(&random_resized_crop, &self);
}
