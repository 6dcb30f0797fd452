/* image_planes.c: checks of sizes, and the conversion of pixels to planes, for all decoders. */
#include <string.h>

#include "core/error.h"
#include "core/multiversion.h"
#include "data/image.h"

int ek_encoded_fail_memory(const ek_encoded *picture)
{
    return EK_FAIL(EK_E_NO_MEMORY, "%s: %.500s: the process has no memory left to decode it",
                   picture->what, picture->path);
}

int ek_encoded_check_size(const ek_encoded *picture, int64_t width, int64_t height)
{
    if (width < 1 || height < 1)
        return EK_FAIL_IN(EK_E_FORMAT, picture, "%lld x %lld pixels are no picture",
                          (long long)width, (long long)height);
    if (height > picture->max_pixels / width)
        return EK_FAIL_IN(EK_E_FORMAT, picture, "%lld x %lld pixels; at most %lld in all are read",
                          (long long)width, (long long)height, (long long)picture->max_pixels);
    return 0;
}

ek_tensor *ek_encoded_tensor(const ek_encoded *picture, int own, int64_t width, int64_t height,
                             ek_dtype dtype)
{
    int channels = picture->channels ? picture->channels : own;
    return ek_empty(EK_SHAPE(channels, height, width), .dtype = dtype);
}

/* ---- colors: these loops are ten times as fast if the compiler may use AVX2's shuffles ---- */

static inline void planes_split(const uint8_t *restrict pixels, size_t step, uint8_t *restrict red,
                                uint8_t *restrict green, uint8_t *restrict blue, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        red[i] = pixels[step * i];
        green[i] = pixels[step * i + 1];
        blue[i] = pixels[step * i + 2];
    }
}

EK_MULTIVERSION static void planes_split_colors(const uint8_t *pixels, int from, uint8_t *planes,
                                                size_t plane, size_t count)
{
    if (from == 3)
        planes_split(pixels, 3, planes, planes + plane, planes + 2 * plane, count);
    else
        planes_split(pixels, 4, planes, planes + plane, planes + 2 * plane, count);
}

/* Luma of ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B in units of 1/65536. */
static inline void planes_weigh(const uint8_t *restrict pixels, size_t step,
                                uint8_t *restrict plane, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint8_t *pixel = pixels + step * i;
        plane[i] =
            (uint8_t)((pixel[0] * 19595u + pixel[1] * 38470u + pixel[2] * 7471u + 0x8000u) >> 16);
    }
}

EK_MULTIVERSION static void planes_weigh_colors(const uint8_t *pixels, int from, uint8_t *plane,
                                                size_t count)
{
    if (from == 3)
        planes_weigh(pixels, 3, plane, count);
    else
        planes_weigh(pixels, 4, plane, count);
}

/* ---- single channels ---- */

static void planes_take(const uint8_t *restrict pixels, int step, uint8_t *restrict plane,
                        size_t count)
{
    if (step == 1)
        memcpy(plane, pixels, count);
    else
        for (size_t i = 0; i < count; i++)
            plane[i] = pixels[(size_t)step * i];
}

void ek_decoded_planes(const uint8_t *pixels, int from, uint8_t *planes, size_t plane, int to,
                       size_t count)
{
    const bool colors = from >= 3;
    if (to < 3 && colors)
        planes_weigh_colors(pixels, from, planes, count);
    else if (colors)
        planes_split_colors(pixels, from, planes, plane, count);
    else
        for (int i = 0; i < (to < 3 ? 1 : 3); i++)
            planes_take(pixels, from, planes + (size_t)i * plane, count);
    if (to % 2 == 1)
        return;
    uint8_t *alpha = planes + (size_t)(to - 1) * plane;
    if (from % 2 == 0)
        planes_take(pixels + from - 1, from, alpha, count);
    else
        memset(alpha, 255, count);
}

void ek_decoded_wide_planes(const uint8_t *pixels, int channels, int64_t *planes, size_t plane,
                            size_t count)
{
    for (int c = 0; c < channels; c++)
        for (size_t i = 0; i < count; i++) {
            const uint8_t *sample = pixels + 2 * (i * (size_t)channels + (size_t)c);
            planes[(size_t)c * plane + i] = sample[0] << 8 | sample[1];
        }
}
