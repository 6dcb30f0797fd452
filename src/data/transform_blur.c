/* transform_blur.c: gaussian_blur: each pixel becomes a weighted mean of those around it. Pictures
 * are reflected at their edges. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "data/transform_picture.h"

typedef struct blur {
    ek_transform transform;
    int64_t height, width; /* of the kernel, odd */
    double sigma[2];
} blur;

static int blur_describe(const ek_transform *transform, ek_array *array)
{
    const blur *self = (const blur *)transform;
    char text[200];
    EK_TRY(ek_picture_check(transform, array));
    if (array->dtype != EK_U8 && array->dtype != EK_F32 && array->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "gaussian_blur: %s; u8, f32 and f64 are blurred",
                       ek_array_text(array, text));
    if (self->height / 2 >= ek_picture_of(array).height ||
        self->width / 2 >= ek_picture_of(array).width)
        return EK_FAIL(EK_E_SHAPE,
                       "gaussian_blur: %s is too small for a kernel of %lld x %lld, whose halves "
                       "are reflected at the edges",
                       ek_array_text(array, text), (long long)self->height, (long long)self->width);
    return 0;
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

static inline uint8_t blur_of_u8(float value)
{
    return (uint8_t)(int32_t)rintf(value);
}

#define ITSELF(x) (x)

/* Blurs one plane: `wide` has room for a row with its reflected ends, and one sum. Columns are
 * summed first, row by row, then each of those rows. */
#define DEFINE_BLUR(name, element, real, stored)                                           \
    EK_MULTIVERSION                                                                        \
    static void blur_##name(const blur *self, const double *weights, int64_t h, int64_t w, \
                            const element *restrict x, element *restrict out, real *wide,  \
                            real *restrict sum)                                            \
    {                                                                                      \
        const int64_t half_h = self->height / 2, half_w = self->width / 2;                 \
        for (int64_t y = 0; y < h; y++, out += w) {                                        \
            real *middle = wide + half_w;                                                  \
            for (int64_t k = 0; k < self->height; k++) {                                   \
                const element *restrict row = x + blur_reflected(y + k - half_h, h) * w;   \
                const real times = (real)weights[k];                                       \
                for (int64_t i = 0; i < w; i++)                                            \
                    middle[i] = (k ? middle[i] : 0) + times * (real)row[i];                \
            }                                                                              \
            for (int64_t i = 1; i <= half_w; i++) {                                        \
                middle[-i] = middle[i];                                                    \
                middle[w - 1 + i] = middle[w - 1 - i];                                     \
            }                                                                              \
            for (int64_t k = 0; k < self->width; k++) {                                    \
                const real times = (real)weights[self->height + k];                        \
                for (int64_t i = 0; i < w; i++)                                            \
                    sum[i] = (k ? sum[i] : 0) + times * wide[i + k];                       \
            }                                                                              \
            for (int64_t i = 0; i < w; i++)                                                \
                out[i] = stored(sum[i]);                                                   \
        }                                                                                  \
    }
DEFINE_BLUR(u8, uint8_t, float, blur_of_u8)
DEFINE_BLUR(f32, float, float, ITSELF)
DEFINE_BLUR(f64, double, double, ITSELF)

static void blur_planes(const blur *self, const double *weights, const ek_array *in, ek_array *out,
                        double *room)
{
    ek_picture picture = ek_picture_of(in);
    int64_t h = picture.height, w = picture.width, wide = w + self->width;
    float *narrow = (float *)room;
    for (int64_t p = 0; p < picture.planes; p++) {
        size_t at = (size_t)(p * h * w) * picture.size;
        const void *from = (const char *)in->data + at;
        void *to = (char *)out->data + at;
        if (in->dtype == EK_U8)
            blur_u8(self, weights, h, w, from, to, narrow, narrow + wide);
        else if (in->dtype == EK_F32)
            blur_f32(self, weights, h, w, from, to, narrow, narrow + wide);
        else
            blur_f64(self, weights, h, w, from, to, room, room + wide);
    }
}

static int blur_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                      ek_generator *generator)
{
    const blur *self = (const blur *)transform;
    int64_t w = ek_picture_of(in).width;
    double *weights = ek_calloc((size_t)(self->height + self->width), sizeof *weights);
    double *room = ek_calloc((size_t)(2 * w + self->width), sizeof *room);
    int rc = weights && room ? 0 : EK_E_NO_MEMORY;
    if (rc == 0) {
        generator = ek_generator_lock(generator);
        float sigma = ek_draw_between(generator, self->sigma[0], self->sigma[1]);
        ek_generator_unlock(generator);
        blur_weights(self->height, sigma, weights);
        blur_weights(self->width, sigma, weights + self->height);
        blur_planes(self, weights, in, out, room);
    }
    free(weights);
    free(room);
    return rc;
}

static const ek_transform_type blur_type = {.name = "gaussian_blur",
                                            .size = sizeof(blur),
                                            .describe = blur_describe,
                                            .apply = blur_apply};

ek_transform *ek_gaussian_blur_with(ek_blur_options options)
{
    int64_t height = options.height, width = options.width ? options.width : height;
    ek_range_default(options.sigma, 0.1, 2);
    if (height < 1 || width < 1 || height % 2 == 0 || width % 2 == 0 || height > EK_PICTURE_MOST ||
        width > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "gaussian_blur: a kernel of %lld x %lld; both have to be odd and "
                            "positive",
                            (long long)height, (long long)width);
    if (ek_check_range("gaussian_blur", "sigma", options.sigma, 1e-6, 1e6) < 0)
        return NULL;
    blur *self = (blur *)ek_transform_new(&blur_type);
    if (!self)
        return NULL;
    self->height = height;
    self->width = width;
    memcpy(self->sigma, options.sigma, sizeof self->sigma);
    return &self->transform;
}
