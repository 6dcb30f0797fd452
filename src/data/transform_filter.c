/* transform_filter.c: resizes pictures by bicubic interpolation, and bilinearly or bicubically with
 * antialiasing, as PyTorch's interpolate: first all rows, then all columns. Antialiasing widens the
 * filter by the factor by which a picture shrinks, as Pillow does. */
#include <math.h>
#include <stdlib.h>

#include "data/transform_filter.h"

/* The source pixels [first, first + count) of one result pixel along one dimension. Their weights
 * begin at weights[number * most]. */
typedef struct filter_span {
    int64_t first, count;
} filter_span;

typedef struct filter {
    int64_t most; /* weights of a result pixel at most */
    filter_span *spans;
    double *weights; /* all of them are rounded to f32 for u8 and f32 elements */
} filter;

static void filter_close(filter *self)
{
    free(self->spans);
    free(self->weights);
}

/* ---- kernels: weights by the distance from the center ---- */

static double kernel_linear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* The cubic convolution of Keys (1981), with his a. */
static double kernel_cubic(double x, double a)
{
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* PyTorch has a = -0.75 without antialiasing, and Pillow's -0.5 with it. */
static double kernel_weight(double x, const ek_resampling *how)
{
    if (!how->bicubic)
        return kernel_linear(x);
    return kernel_cubic(x, how->antialias ? -0.5 : -0.75);
}

/* ---- spans ---- */

static void filter_span_antialias(filter *self, int64_t i, int64_t in, double scale, double support,
                                  const ek_resampling *how)
{
    double center = scale * ((double)i + 0.5), sum = 0, *weights = self->weights + i * self->most;
    double inverse = scale >= 1 ? 1 / scale : 1;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    first = first > 0 ? first : 0;
    end = end < in ? end : in;
    for (int64_t j = first; j < end; j++) {
        weights[j - first] = kernel_weight(((double)j - center + 0.5) * inverse, how);
        sum += weights[j - first];
    }
    for (int64_t j = first; j < end && sum != 0; j++)
        weights[j - first] /= sum;
    self->spans[i] = (filter_span){first, end > first ? end - first : 0};
}

/* Four pixels; those beyond an edge give their weights to the pixel on it. */
static void filter_span_cubic(filter *self, int64_t i, int64_t in, double scale,
                              const ek_resampling *how)
{
    double source = scale * ((double)i + 0.5) - 0.5, *weights = self->weights + i * self->most;
    int64_t low = (int64_t)floor(source) - 1;
    int64_t first = low < 0 ? 0 : low < in - 1 ? low : in - 1;
    int64_t end = low + 4 < in ? low + 4 : in;
    for (int64_t j = low; j < low + 4; j++) {
        int64_t at = j < first ? first : j < in - 1 ? j : in - 1;
        weights[at - first] += kernel_weight((double)j - source, how);
    }
    self->spans[i] = (filter_span){first, end - first};
}

static int filter_open(filter *self, int64_t in, int64_t out, bool is_f32, const ek_resampling *how)
{
    double scale = is_f32 ? (double)((float)in / (float)out) : (double)in / (double)out;
    double support = (how->bicubic ? 2 : 1) * (how->antialias && scale >= 1 ? scale : 1);
    self->most = (int64_t)ceil(support) * 2 + 1;
    self->spans = ek_calloc((size_t)out, sizeof *self->spans);
    self->weights = ek_calloc((size_t)(out * self->most), sizeof *self->weights);
    if (!self->spans || !self->weights)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < out; i++) {
        if (how->antialias)
            filter_span_antialias(self, i, in, scale, support, how);
        else
            filter_span_cubic(self, i, in, scale, how);
    }
    return 0;
}

/* ---- rows and columns ---- */

/* Resizes one row to `count` pixels. */
#define DEFINE_ROW(name, element, real)                                                           \
    static void filter_row_##name(const filter *self, int64_t count, const void *row, void *wide) \
    {                                                                                             \
        const element *x = row;                                                                   \
        real *y = wide;                                                                           \
        for (int64_t i = 0; i < count; i++) {                                                     \
            const element *from = x + self->spans[i].first;                                       \
            const double *weights = self->weights + i * self->most;                               \
            real sum = 0;                                                                         \
            for (int64_t j = 0; j < self->spans[i].count; j++)                                    \
                sum += (real)from[j] * (real)weights[j];                                          \
            y[i] = sum;                                                                           \
        }                                                                                         \
    }
DEFINE_ROW(u8, uint8_t, float)
DEFINE_ROW(f32, float, float)
DEFINE_ROW(f64, double, double)

/* Adds a row that is weighted to the sum of rows. */
#define DEFINE_ADD(name, real)                                                              \
    EK_MULTIVERSION                                                                         \
    static void filter_add_##name(int64_t count, double weight, const void *row, void *sum, \
                                  bool first)                                               \
    {                                                                                       \
        const real *restrict x = row, times = (real)weight;                                 \
        real *restrict y = sum;                                                             \
        for (int64_t i = 0; i < count && first; i++)                                        \
            y[i] = x[i] * times;                                                            \
        for (int64_t i = 0; i < count && !first; i++)                                       \
            y[i] += x[i] * times;                                                           \
    }
DEFINE_ADD(f32, float)
DEFINE_ADD(f64, double)

EK_MULTIVERSION
static void filter_round_u8(int64_t count, const float *restrict x, uint8_t *restrict y)
{
    const float whole = 0x1.8p23f; /* rounds sums: a float of that size has no bits below 1 */
    for (int64_t i = 0; i < count; i++) {
        float value = x[i] < 0 ? 0 : x[i] > 255 ? 255 : x[i];
        y[i] = (uint8_t)(int32_t)((value + whole) - whole);
    }
}

/* `wide` has room for all rows of the window and one more, each of to_w numbers. */
static void filter_plane(const filter *columns, const filter *lines, const char *plane,
                         size_t pitch, int64_t h, ek_array *out, char *result, char *wide)
{
    int64_t to_h = ek_picture_of(out).height, to_w = ek_picture_of(out).width;
    ek_dtype dtype = out->dtype;
    bool is_f64 = dtype == EK_F64;
    size_t row = (size_t)to_w * (is_f64 ? sizeof(double) : sizeof(float));
    char *sum = wide + (size_t)h * row;
    for (int64_t y = 0; y < h; y++) {
        const char *from = plane + (size_t)y * pitch;
        (dtype == EK_U8 ? filter_row_u8
         : is_f64       ? filter_row_f64
                        : filter_row_f32)(columns, to_w, from, wide + (size_t)y * row);
    }
    for (int64_t y = 0; y < to_h; y++) {
        const filter_span *span = &lines->spans[y];
        char *to = dtype == EK_U8 ? sum : result + (size_t)y * row;
        for (int64_t j = 0; j < span->count; j++)
            (is_f64 ? filter_add_f64 : filter_add_f32)(to_w, lines->weights[y * lines->most + j],
                                                       wide + (size_t)(span->first + j) * row, to,
                                                       j == 0);
        if (dtype == EK_U8)
            filter_round_u8(to_w, (const float *)sum, (uint8_t *)result + y * to_w);
    }
}

int ek_picture_filter(const ek_array *in, const ek_window *window, ek_array *out,
                      const ek_resampling *how)
{
    ek_picture from = ek_picture_of(in), to = ek_picture_of(out);
    bool is_f64 = in->dtype == EK_F64;
    filter columns = {0}, lines = {0};
    char *wide = ek_calloc((size_t)((window->height + 1) * to.width),
                           is_f64 ? sizeof(double) : sizeof(float));
    int rc = wide ? filter_open(&columns, window->width, to.width, !is_f64, how) : EK_E_NO_MEMORY;
    if (rc == 0)
        rc = filter_open(&lines, window->height, to.height, !is_f64, how);
    for (int64_t p = 0; rc == 0 && p < from.planes; p++) {
        int64_t first = (p * from.height + window->top) * from.width + window->left;
        filter_plane(&columns, &lines, (const char *)in->data + (size_t)first * from.size,
                     (size_t)from.width * from.size, window->height, out,
                     (char *)out->data + (size_t)(p * to.height * to.width) * to.size, wide);
    }
    filter_close(&columns);
    filter_close(&lines);
    free(wide);
    return rc;
}
