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

typedef struct resampling {
    bool nearest, bicubic, antialias;
} resampling;

/* ---- filters ---- */

/* The source pixels of one result pixel along one side: first + j * step for weight j. Step 0: the
 * pixel on the edge stands for the one beyond it, too. */
typedef struct resize_span {
    int64_t first, step, count;
} resize_span;

/* The weights of span i begin at weights[i * most]. */
typedef struct filter {
    int64_t most; /* weights of a span at most */
    resize_span *spans;
    double *weights; /* all of them are rounded to f32 for u8 and f32 elements */
} filter;

static void filter_close(filter *self)
{
    free(self->spans);
    free(self->weights);
}

/* The weight by the distance from the center: linear, or the cubic convolution of Keys (1981) with
 * his a, which is -0.75 in PyTorch without antialiasing, and Pillow's -0.5 with it. */
static double filter_weight(double x, const resampling *how)
{
    const double a = how->antialias ? -0.5 : -0.75;
    x = fabs(x);
    if (!how->bicubic)
        return x < 1 ? 1 - x : 0;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static resize_span filter_antialias(double *weights, int64_t i, int64_t in, double scale,
                                    double support, const resampling *how)
{
    double center = scale * ((double)i + 0.5), sum = 0, inverse = scale >= 1 ? 1 / scale : 1;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    first = first > 0 ? first : 0;
    end = end < in ? end : in;
    for (int64_t j = first; j < end; j++) {
        weights[j - first] = filter_weight(((double)j - center + 0.5) * inverse, how);
        sum += weights[j - first];
    }
    for (int64_t j = first; j < end && sum != 0; j++)
        weights[j - first] /= sum;
    return (resize_span){first, 1, end > first ? end - first : 0};
}

/* Four pixels; those beyond an edge give their weights to the pixel on it. */
static resize_span filter_cubic(double *weights, int64_t i, int64_t in, double scale,
                                const resampling *how)
{
    double source = scale * ((double)i + 0.5) - 0.5;
    int64_t low = (int64_t)floor(source) - 1;
    int64_t first = low < 0 ? 0 : low < in - 1 ? low : in - 1;
    int64_t end = low + 4 < in ? low + 4 : in;
    for (int64_t j = low; j < low + 4; j++) {
        int64_t at = j < first ? first : j < in - 1 ? j : in - 1;
        weights[at - first] += filter_weight((double)j - source, how);
    }
    return (resize_span){first, 1, end - first};
}

/* Rounds to f32 if elements are computed so. A sum, product or quotient of two floats that is
 * rounded to double first becomes the same float. */
static double filter_round(double x, bool is_f32)
{
    return is_f32 ? (double)(float)x : x;
}

/* The pixels on both sides of the result pixel's center, which is scale * (i + 0.5) - 0.5. */
static resize_span filter_linear(double *weights, int64_t i, int64_t in, int64_t out, double scale,
                                 bool is_f32)
{
    double place = filter_round((double)i, is_f32), source = place;
    if (in != out) {
        source = filter_round(scale * filter_round(place + 0.5, is_f32), is_f32);
        source = filter_round(source - 0.5, is_f32);
        source = source < 0 ? 0 : source;
    }
    int64_t lower = (int64_t)source < in - 1 ? (int64_t)source : in - 1;
    double upper = filter_round(source - filter_round((double)lower, is_f32), is_f32);
    weights[1] = in == out ? 0 : upper > 1 ? 1 : upper;
    weights[0] = filter_round(1 - weights[1], is_f32);
    return (resize_span){lower, in != out && lower < in - 1, 2};
}

static int filter_open(filter *self, int64_t in, int64_t out, bool is_f32, const resampling *how)
{
    double scale = filter_round((double)in, is_f32) / filter_round((double)out, is_f32);
    scale = filter_round(scale, is_f32);
    double support = (how->bicubic ? 2 : 1) * (how->antialias && scale >= 1 ? scale : 1);
    self->most = how->bicubic || how->antialias ? (int64_t)ceil(support) * 2 + 1 : 2;
    self->spans = ek_calloc((size_t)out, sizeof *self->spans);
    self->weights = ek_calloc((size_t)(out * self->most), sizeof *self->weights);
    if (!self->spans || !self->weights)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < out; i++) {
        double *weights = self->weights + i * self->most;
        self->spans[i] = how->antialias ? filter_antialias(weights, i, in, scale, support, how)
                         : how->bicubic ? filter_cubic(weights, i, in, scale, how)
                                        : filter_linear(weights, i, in, out, scale, is_f32);
    }
    return 0;
}

/* ---- rows and sums of rows ---- */

/* Resizes one row to `count` pixels. */
#define DEFINE_SPREAD(name, element, real, white)                                             \
    static void spread_##name(const filter *self, int64_t count, const void *row, void *wide) \
    {                                                                                         \
        const element *restrict x = row;                                                      \
        const double *restrict weights = self->weights;                                       \
        real *restrict y = wide;                                                              \
        for (int64_t i = 0; i < count; i++, weights += self->most) {                          \
            const resize_span *span = &self->spans[i];                                        \
            const element *from = x + span->first;                                            \
            real sum = (real)from[0] * (real)weights[0];                                      \
            if (span->count > 1)                                                              \
                sum += (real)from[span->step] * (real)weights[1];                             \
            for (int64_t j = 2; j < span->count; j++)                                         \
                sum += (real)from[j] * (real)weights[j];                                      \
            y[i] = sum;                                                                       \
        }                                                                                     \
    }
EK_PIXEL_ROWS(DEFINE_SPREAD)

/* Writes the weighted sum of two rows; adds one more row. */
#define DEFINE_SUMS(name, real)                                                                  \
    EK_MULTIVERSION                                                                              \
    static void blend_##name(int64_t count, const double *weights, const void *lower,            \
                             const void *upper, void *sum)                                       \
    {                                                                                            \
        const real *restrict u = lower, *restrict v = upper;                                     \
        const real a = (real)weights[0], b = (real)weights[1];                                   \
        real *restrict y = sum;                                                                  \
        for (int64_t i = 0; i < count; i++)                                                      \
            y[i] = a * u[i] + b * v[i];                                                          \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void add_##name(int64_t count, double weight, const void *row, void *sum, bool first) \
    {                                                                                            \
        const real *restrict x = row, times = (real)weight;                                      \
        real *restrict y = sum;                                                                  \
        for (int64_t i = 0; i < count && first; i++)                                             \
            y[i] = x[i] * times;                                                                 \
        for (int64_t i = 0; i < count && !first; i++)                                            \
            y[i] += x[i] * times;                                                                \
    }
DEFINE_SUMS(f32, float)
DEFINE_SUMS(f64, double)

/* Adding 1.5 * 2^23 rounds a sum to a whole number: a float of that size has no bits below 1. */
EK_MULTIVERSION
static void round_u8(int64_t count, const float *restrict x, uint8_t *restrict y)
{
    const float whole = 0x1.8p23f;
    for (int64_t i = 0; i < count; i++) {
        float value = EK_CUT(x[i], 255);
        y[i] = (uint8_t)(int32_t)((value + whole) - whole);
    }
}

/* Resized rows of a plane, kept while sums need them. Row `number` lies in slot number % slots. */
typedef struct rows {
    const filter *columns;
    ek_dtype dtype;
    int64_t width, slots;
    int64_t *numbers; /* the row in each slot; -1: none */
    char *elements;   /* slots + 1 rows; the last is for sums */
    size_t nbytes;    /* of one row */
} rows;

static const void *rows_get(rows *self, const char *plane, size_t pitch, int64_t number)
{
    int64_t slot = number % self->slots;
    char *row = self->elements + (size_t)slot * self->nbytes;
    if (self->numbers[slot] != number)
        EK_PIXEL_FUNCTION(spread, self->dtype)
    (self->columns, self->width, plane + (size_t)number * pitch, row);
    self->numbers[slot] = number;
    return row;
}

static void resize_row(rows *self, const resize_span *span, const double *weights,
                       const char *plane, size_t pitch, void *out)
{
    bool is_f64 = self->dtype == EK_F64, is_u8 = self->dtype == EK_U8;
    void *sum = is_u8 ? self->elements + (size_t)self->slots * self->nbytes : out;
    const void *first = rows_get(self, plane, pitch, span->first);
    int64_t j = 1;
    if (span->count > 1)
        (is_f64 ? blend_f64 : blend_f32)(self->width, weights, first,
                                         rows_get(self, plane, pitch, span->first + span->step),
                                         sum);
    else
        (is_f64 ? add_f64 : add_f32)(self->width, weights[0], first, sum, true);
    while (++j < span->count)
        (is_f64 ? add_f64 : add_f32)(self->width, weights[j],
                                     rows_get(self, plane, pitch, span->first + j), sum, false);
    if (is_u8)
        round_u8(self->width, sum, out);
}

static int resize_rows(const ek_array *in, const ek_window *window, ek_array *out,
                       const filter *columns, const filter *lines)
{
    ek_picture from = ek_picture_of(in), to = ek_picture_of(out);
    int64_t slots = lines->most < window->height ? lines->most : window->height;
    rows r = {columns, in->dtype, .width = to.width, .slots = slots};
    r.nbytes = (size_t)to.width * (in->dtype == EK_F64 ? sizeof(double) : sizeof(float));
    r.elements = ek_calloc((size_t)slots + 1, r.nbytes);
    r.numbers = ek_calloc((size_t)slots, sizeof *r.numbers);
    int rc = r.elements && r.numbers ? 0 : EK_E_NO_MEMORY;
    for (int64_t p = 0; rc == 0 && p < from.planes; p++) {
        const char *plane = ek_picture_row(in, p, window->top);
        plane += (size_t)window->left * from.size;
        for (int64_t i = 0; i < slots; i++)
            r.numbers[i] = -1;
        for (int64_t y = 0; y < to.height; y++)
            resize_row(&r, &lines->spans[y], lines->weights + y * lines->most, plane,
                       (size_t)from.width * from.size, ek_picture_row(out, p, y));
    }
    free(r.elements);
    free(r.numbers);
    return rc;
}

/* ---- a window of a picture ---- */

/* The nearest pixel as in PyTorch, which computes in float for every dtype. */
static int64_t nearest_place(const void *user, int side, int64_t at)
{
    const ek_window *both = user; /* the window, and the result */
    int64_t in = side ? both->width : both->height;
    int64_t out = side ? both[1].width : both[1].height;
    float scale = (float)in / (float)out;
    int64_t place = in == out ? at : out == 2 * in ? at / 2 : (int64_t)((float)at * scale);
    return (side ? both->left : both->top) + (place < in - 1 ? place : in - 1);
}

/* Resizes the window of every plane of `in`, which lies inside it, to the size of `out`. A window
 * of that size is copied unchanged. */
static int resize_window(const ek_array *in, const ek_window *window, ek_array *out,
                         const resampling *how)
{
    ek_picture to = ek_picture_of(out);
    const ek_window both[] = {*window, {0, 0, to.height, to.width}};
    bool is_copy = window->height == to.height && window->width == to.width;
    bool is_f32 = in->dtype != EK_F64;
    if (how->nearest || is_copy)
        return ek_picture_gather(in, out, nearest_place, both, 0);
    filter columns = {0}, lines = {0};
    int rc = filter_open(&columns, window->width, to.width, is_f32, how);
    if (rc == 0)
        rc = filter_open(&lines, window->height, to.height, is_f32, how);
    if (rc == 0)
        rc = resize_rows(in, window, out, &columns, &lines);
    filter_close(&columns);
    filter_close(&lines);
    return rc;
}

static int resampling_check(const char *name, const resampling *how)
{
    if (how->nearest && (how->bicubic || how->antialias))
        return EK_FAIL(EK_E_INVALID, "%s: .nearest excludes .%s", name,
                       how->bicubic ? "bicubic" : "antialias");
    return 0;
}

static int resampling_check_array(const ek_transform *self, const ek_array *array,
                                  const resampling *how)
{
    if (!how->nearest)
        EK_TRY(
            ek_check_pixels(self, array, "resized bilinearly, other elements by .nearest = true"));
    return ek_check_filled(self, array);
}

/* ---- resize ---- */

static resampling resize_how(const ek_resize_options *o)
{
    return (resampling){o->nearest, o->bicubic, o->antialias};
}

static int resize_describe(const ek_transform *self, ek_array *array)
{
    const ek_resize_options *o = ek_options_of(self);
    const resampling how = resize_how(o);
    int64_t h = ek_picture_of(array).height, w = ek_picture_of(array).width, edge = o->height;
    EK_TRY(resampling_check_array(self, array, &how));
    if (o->width)
        ek_picture_set_size(array, o->height, o->width);
    else
        ek_picture_set_size(array, w <= h ? edge * h / w : edge, w <= h ? edge : edge * w / h);
    return 0;
}

static int resize_apply(const ek_transform *self, const ek_drawn *drawn, const ek_array *in,
                        ek_array *out)
{
    ek_picture picture = ek_picture_of(in);
    const ek_window whole = {0, 0, picture.height, picture.width};
    const resampling how = resize_how(ek_options_of(self));
    (void)drawn;
    return resize_window(in, &whole, out, &how);
}

static const ek_operation resize = {EK_OPERATION(resize, ek_resize_options), .takes = EK_PICTURE,
                                    .describe = resize_describe, .apply = resize_apply};

ek_transform *ek_resize_with(ek_resize_options options)
{
    const resampling how = resize_how(&options);
    if (options.height < 1 || options.height > EK_PICTURE_MOST || options.width < 0 ||
        options.width > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "resize: to %lld x %lld; sizes lie in [1, %lld] (no width: the shorter "
                            "edge becomes the first)",
                            (long long)options.height, (long long)options.width,
                            (long long)EK_PICTURE_MOST);
    return resampling_check("resize", &how) < 0 ? NULL : ek_operation_new(&resize, &options, 0);
}

/* ---- random_resized_crop ---- */

static resampling resized_crop_how(const ek_resized_crop_options *o)
{
    return (resampling){o->nearest, o->bicubic, o->antialias};
}

static int resized_crop_describe(const ek_transform *self, ek_array *array)
{
    const ek_resized_crop_options *o = ek_options_of(self);
    const resampling how = resized_crop_how(o);
    EK_TRY(resampling_check_array(self, array, &how));
    ek_picture_set_size(array, o->height, o->width);
    return 0;
}

/* The largest part in the middle whose aspect ratio is allowed. */
static ek_window resized_crop_middle(const ek_resized_crop_options *o, ek_picture picture)
{
    ek_window window = {.height = picture.height, .width = picture.width};
    double ratio = (double)picture.width / (double)picture.height;
    if (ratio < o->ratio[0])
        window.height = (int64_t)rint((double)picture.width / o->ratio[0]);
    else if (ratio > o->ratio[1])
        window.width = (int64_t)rint((double)picture.height * o->ratio[1]);
    window.height = window.height < 1 ? 1 : window.height;
    window.width = window.width < 1 ? 1 : window.width;
    window.top = (picture.height - window.height) / 2;
    window.left = (picture.width - window.width) / 2;
    return window;
}

static ek_window resized_crop_window(const ek_resized_crop_options *o, ek_picture picture,
                                     ek_generator *locked)
{
    double area = (double)(picture.height * picture.width);
    for (int attempt = 0; attempt < 10; attempt++) {
        int64_t sides[2];
        ek_draw_sides(locked, area, o->scale, o->ratio, sides);
        ek_window window = {.height = sides[1], .width = sides[0]};
        if (window.width < 1 || window.width > picture.width || window.height < 1 ||
            window.height > picture.height)
            continue;
        window.top = ek_generator_below(locked, picture.height - window.height + 1);
        window.left = ek_generator_below(locked, picture.width - window.width + 1);
        return window;
    }
    return resized_crop_middle(o, picture);
}

static int resized_crop_draw(const ek_transform *self, const ek_array *in, ek_generator *locked,
                             ek_drawn *drawn)
{
    drawn->window = resized_crop_window(ek_options_of(self), ek_picture_of(in), locked);
    return 1;
}

static int resized_crop_apply(const ek_transform *self, const ek_drawn *drawn, const ek_array *in,
                              ek_array *out)
{
    const resampling how = resized_crop_how(ek_options_of(self));
    return resize_window(in, &drawn->window, out, &how);
}

static const ek_operation random_resized_crop = {
    EK_OPERATION(random_resized_crop, ek_resized_crop_options), .takes = EK_PICTURE,
    .describe = resized_crop_describe, .draw = resized_crop_draw, .apply = resized_crop_apply};

ek_transform *ek_random_resized_crop_with(ek_resized_crop_options options)
{
    const char *name = "random_resized_crop";
    const resampling how = resized_crop_how(&options);
    options.width = options.width ? options.width : options.height;
    ek_range_default(options.scale, 0.08, 1);
    ek_range_default(options.ratio, 3.0 / 4, 4.0 / 3);
    if (ek_check_size(name, options.height, options.width) < 0 ||
        resampling_check(name, &how) < 0 ||
        ek_check_range(name, "scale", options.scale, 0, INFINITY) < 0 ||
        ek_check_ratio(name, "ratio", options.ratio) < 0)
        return NULL;
    return ek_operation_new(&random_resized_crop, &options, 0);
}
