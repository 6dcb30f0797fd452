/* transform_blur.c: gaussian_blur: each pixel becomes a weighted mean of those around it. Pictures
 * are reflected at their edges. */
#include <math.h>
#include <stdlib.h>

#include "data/transform_operation.h"

static int blur_describe(const ek_transform *self, ek_array *array)
{
    const ek_blur_options *o = ek_options_of(self);
    char text[200];
    EK_TRY(ek_check_pixels(self, array, "blurred"));
    if (o->height / 2 >= ek_picture_of(array).height || o->width / 2 >= ek_picture_of(array).width)
        return EK_FAIL(EK_E_SHAPE,
                       "gaussian_blur: %s is too small for a kernel of %lld x %lld, whose halves "
                       "are reflected at the edges",
                       ek_array_text(array, text), (long long)o->height, (long long)o->width);
    return 0;
}

static int blur_draw(ek_application *a)
{
    const ek_blur_options *o = a->options;
    a->number[0] = ek_draw_between(a->generator, o->sigma[0], o->sigma[1]);
    return 1;
}

/* Writes the weights of a Gaussian, computed in f32, which add up to 1. */
static void blur_weights(int64_t size, float sigma, double *weights)
{
    float sum = 0, half = (float)(size - 1) * 0.5f;
    for (int64_t i = 0; i < size; i++) {
        float x = ((float)i - half) / sigma;
        weights[i] = (double)expf(-0.5f * (x * x));
        sum += (float)weights[i];
    }
    for (int64_t i = 0; i < size; i++)
        weights[i] = (double)((float)weights[i] / sum);
}

static int64_t blur_reflected(int64_t at, int64_t size)
{
    return at < 0 ? -at : at < size ? at : 2 * size - 2 - at;
}

/* Blurs one plane: `room` is for a row with its reflected ends, and one sum. Columns are summed
 * first, row by row, then each of those rows. */
#define DEFINE_BLUR(name, element, real, white)                                                  \
    EK_MULTIVERSION                                                                              \
    static void blur_##name(const ek_blur_options *o, const double *weights, ek_picture picture, \
                            const void *plane, void *result, void *room)                         \
    {                                                                                            \
        const int64_t half_h = o->height / 2, half_w = o->width / 2, w = picture.width;          \
        const element *restrict x = plane;                                                       \
        element *restrict out = result;                                                          \
        real *wide = room, *restrict sum = wide + w + o->width;                                  \
        for (int64_t y = 0; y < picture.height; y++, out += w) {                                 \
            real *middle = wide + half_w;                                                        \
            for (int64_t k = 0; k < o->height; k++) {                                            \
                const element *restrict row =                                                    \
                    x + blur_reflected(y + k - half_h, picture.height) * w;                      \
                const real times = (real)weights[k];                                             \
                for (int64_t i = 0; i < w; i++)                                                  \
                    middle[i] = (k ? middle[i] : 0) + times * (real)row[i];                      \
            }                                                                                    \
            for (int64_t i = 1; i <= half_w; i++) {                                              \
                middle[-i] = middle[i];                                                          \
                middle[w - 1 + i] = middle[w - 1 - i];                                           \
            }                                                                                    \
            for (int64_t k = 0; k < o->width; k++) {                                             \
                const real times = (real)weights[o->height + k];                                 \
                for (int64_t i = 0; i < w; i++)                                                  \
                    sum[i] = (k ? sum[i] : 0) + times * wide[i + k];                             \
            }                                                                                    \
            for (int64_t i = 0; i < w; i++)                                                      \
                out[i] = EK_ROUNDED_##name(sum[i]);                                              \
        }                                                                                        \
    }
EK_PIXEL_ROWS(DEFINE_BLUR)

static int blur_apply(ek_application *a)
{
    const ek_blur_options *o = a->options;
    ek_picture picture = ek_picture_of(a->in);
    double *weights = ek_calloc((size_t)(o->height + o->width), sizeof *weights);
    double *room = ek_calloc((size_t)(2 * picture.width + o->width), sizeof *room);
    int rc = weights && room ? 0 : EK_E_NO_MEMORY;
    if (rc == 0) {
        blur_weights(o->height, (float)a->number[0], weights);
        blur_weights(o->width, (float)a->number[0], weights + o->height);
    }
    for (int64_t p = 0; rc == 0 && p < picture.planes; p++)
        EK_PIXEL_FUNCTION(blur, a->in->dtype)
    (o, weights, picture, ek_picture_row(a->in, p, 0), ek_picture_row(a->out, p, 0), room);
    free(weights);
    free(room);
    return rc;
}

static const ek_operation gaussian_blur = {
    EK_OPERATION(gaussian_blur, ek_blur_options, EK_PICTURE, blur_describe, blur_draw, blur_apply)};

ek_transform *ek_gaussian_blur_with(ek_blur_options options)
{
    int64_t height = options.height, width = options.width ? options.width : height;
    options.width = width;
    ek_range_default(options.sigma, 0.1, 2);
    if (height < 1 || width < 1 || height % 2 == 0 || width % 2 == 0 || height > EK_PICTURE_MOST ||
        width > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "gaussian_blur: a kernel of %lld x %lld; both have to be odd and "
                            "positive",
                            (long long)height, (long long)width);
    if (ek_check_range("gaussian_blur", "sigma", options.sigma, 1e-6, 1e6) < 0)
        return NULL;
    return ek_operation_new(&gaussian_blur, &options, 0);
}
