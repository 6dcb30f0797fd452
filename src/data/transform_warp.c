/* transform_warp.c: pictures whose pixels come from other places: affine maps and perspectives.
 *
 * As torchvision does by grid_sample with padding by zeros and without aligned corners: places are
 * computed in f32 (f64 for f64 elements), in units of half a picture. For each row of the result
 * they are found once, for all planes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/transform_picture.h"

/* ---- the inverse of rotation, scale and shear ---- */

static double warp_radians(double degrees)
{
    return degrees * (3.14159265358979323846 / 180);
}

void ek_warp_affine(ek_warp *warp, const double center[2], double angle, const double shift[2],
                    double scale, const double shear[2])
{
    double turn = warp_radians(angle), x = warp_radians(shear[0]), y = warp_radians(shear[1]);
    double a = cos(turn - y) / cos(y);
    double b = -cos(turn - y) * tan(x) / cos(y) - sin(turn);
    double c = sin(turn - y) / cos(y);
    double d = -sin(turn - y) * tan(x) / cos(y) + cos(turn);
    double *m = warp->c;
    m[0] = d / scale;
    m[1] = -b / scale;
    m[2] = 0 / scale + (m[0] * (-center[0] - shift[0]) + m[1] * (-center[1] - shift[1]));
    m[3] = -c / scale;
    m[4] = a / scale;
    m[5] = 0 / scale + (m[3] * (-center[0] - shift[0]) + m[4] * (-center[1] - shift[1]));
    m[2] += center[0];
    m[5] += center[1];
}

/* ---- places ---- */

/* Writes where the pixels of result row y come from, in pixels of the source. Sums are fused as in
 * a matrix product. */
#define DEFINE_PLACES(name, real, fused)                                                      \
    EK_MULTIVERSION                                                                           \
    static void warp_places_##name(const ek_warp *warp, int64_t h, int64_t w, int64_t y,      \
                                   real *restrict to_x, real *restrict to_y)                  \
    {                                                                                         \
        const double *m = warp->c;                                                            \
        const real half_w = (real)(0.5 * (double)w), half_h = (real)(0.5 * (double)h);        \
        const bool perspective = warp->perspective;                                           \
        const real row = (real)y + (real)0.5 - (perspective ? 0 : half_h);                    \
        const real first = (real)0.5 - (perspective ? 0 : half_w);                            \
        const real a = (real)m[0] / half_w, b = (real)m[1] / half_w, c = (real)m[2] / half_w; \
        const real d = (real)m[3] / half_h, e = (real)m[4] / half_h, f = (real)m[5] / half_h; \
        const real u = perspective ? (real)m[6] : 0, v = perspective ? (real)m[7] : 0;        \
        for (int64_t i = 0; i < w; i++) {                                                     \
            real x = (real)i + first;                                                         \
            real gx = fused(row, b, x * a) + c, gy = fused(row, e, x * d) + f;                \
            if (perspective) {                                                                \
                real depth = fused(row, v, x * u) + 1;                                        \
                gx = gx / depth - 1;                                                          \
                gy = gy / depth - 1;                                                          \
            }                                                                                 \
            to_x[i] = fused(gx + 1, half_w, (real)-0.5);                                      \
            to_y[i] = fused(gy + 1, half_h, (real)-0.5);                                      \
        }                                                                                     \
    }
DEFINE_PLACES(f32, float, fmaf)
DEFINE_PLACES(f64, double, fma)

/* ---- nearest ---- */

/* The nearest pixel's index in a plane; -1: none, outside. Halves go to the even neighbour. */
static int64_t warp_nearest_index(double x, double y, int64_t h, int64_t w)
{
    double column = rint(x), line = rint(y);
    bool inside = column >= 0 && column < (double)w && line >= 0 && line < (double)h;
    return inside ? (int64_t)line * w + (int64_t)column : -1;
}

static void warp_pick(const ek_warp *warp, const ek_array *in, ek_array *out, int64_t y,
                      const int64_t *from)
{
    ek_picture picture = ek_picture_of(in);
    int64_t h = picture.height, w = picture.width;
    unsigned char element[8];
    ek_fill_element(in->dtype, warp->fills ? warp->fill : 0, element);
    for (int64_t p = 0; p < picture.planes; p++) {
        const char *plane = (const char *)in->data + (size_t)(p * h * w) * picture.size;
        char *row = (char *)out->data + (size_t)((p * h + y) * w) * picture.size;
        ek_pick_run(w, from, picture.size, plane, element, row);
    }
}

/* ---- bilinear ---- */

/* The four pixels around a place, and their weights; 0 for those outside. */
#define DEFINE_CORNERS(name, real, floored)                                              \
    typedef struct corners_##name {                                                      \
        int64_t at[4];                                                                   \
        real weight[4], inside; /* the sum of the weights */                             \
    } corners_##name;                                                                    \
    static corners_##name warp_find_##name(real x, real y, int64_t h, int64_t w)         \
    {                                                                                    \
        corners_##name c = {.inside = 0};                                                \
        if (!(x > -1 && x < (real)w && y > -1 && y < (real)h))                           \
            return c;                                                                    \
        real left = floored(x), top = floored(y);                                        \
        real east = x - left, south = y - top, west = 1 - east, north = 1 - south;       \
        const real weight[4] = {west * north, east * north, west * south, east * south}; \
        int64_t column = (int64_t)left, line = (int64_t)top;                             \
        for (int k = 0; k < 4; k++) {                                                    \
            int64_t i = column + k % 2, j = line + k / 2;                                \
            bool inside = i >= 0 && i < w && j >= 0 && j < h;                            \
            c.at[k] = inside ? j * w + i : 0;                                            \
            c.weight[k] = inside ? weight[k] : 0;                                        \
            c.inside += c.weight[k];                                                     \
        }                                                                                \
        return c;                                                                        \
    }
DEFINE_CORNERS(f32, float, floorf)
DEFINE_CORNERS(f64, double, floor)

static inline uint8_t rounded_u8(float value)
{
    return (uint8_t)(int32_t)rintf(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Sums are fused in the order of PyTorch's grid_sample, so that bytes are rounded alike. */
#define ITSELF(x) (x)
#define DEFINE_MIX(name, element, real, kind, stored, fused)                                       \
    EK_MULTIVERSION                                                                                \
    static void warp_mix_##name(int64_t count, const corners_##kind *restrict corners, bool fills, \
                                double fill, const element *restrict x, element *restrict out)     \
    {                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                      \
            const corners_##kind *c = &corners[i];                                                 \
            real value = (real)x[c->at[0]] * c->weight[0];                                         \
            value = fused((real)x[c->at[1]], c->weight[1], value);                                 \
            value = fused((real)x[c->at[2]], c->weight[2], value);                                 \
            value = fused((real)x[c->at[3]], c->weight[3], value);                                 \
            if (fills)                                                                             \
                value = value * c->inside + (1 - c->inside) * (real)fill;                          \
            out[i] = stored(value);                                                                \
        }                                                                                          \
    }
DEFINE_MIX(u8, uint8_t, float, f32, rounded_u8, fmaf)
DEFINE_MIX(f32, float, float, f32, ITSELF, fmaf)
DEFINE_MIX(f64, double, double, f64, ITSELF, fma)

static void warp_mix(const ek_warp *warp, const ek_array *in, ek_array *out, int64_t y,
                     const void *corners)
{
    ek_picture picture = ek_picture_of(in);
    int64_t h = picture.height, w = picture.width;
    for (int64_t p = 0; p < picture.planes; p++) {
        const void *plane = (const char *)in->data + (size_t)(p * h * w) * picture.size;
        void *row = (char *)out->data + (size_t)((p * h + y) * w) * picture.size;
        if (in->dtype == EK_U8)
            warp_mix_u8(w, corners, warp->fills, warp->fill, plane, row);
        else if (in->dtype == EK_F32)
            warp_mix_f32(w, corners, warp->fills, warp->fill, plane, row);
        else
            warp_mix_f64(w, corners, warp->fills, warp->fill, plane, row);
    }
}

/* ---- a picture ---- */

int ek_warp_check(const ek_transform *transform, const ek_array *array, const ek_warp *warp)
{
    char text[200];
    EK_TRY(ek_picture_check(transform, array));
    if (warp->bilinear && array->dtype != EK_U8 && array->dtype != EK_F32 && array->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE,
                       "%s: %s; u8, f32 and f64 are interpolated bilinearly, other elements by the "
                       "nearest",
                       transform->type->name, ek_array_text(array, text));
    return warp->fills ? ek_fill_check(transform, array, warp->fill) : 0;
}

/* Runs over the rows of the result. `room` has a place of two reals for each pixel of a row, then
 * indices or corners. */
#define DEFINE_RUN(name, real)                                                                   \
    static void warp_run_##name(const ek_array *in, ek_array *out, const ek_warp *warp, real *x, \
                                void *found)                                                     \
    {                                                                                            \
        int64_t h = ek_picture_of(in).height, w = ek_picture_of(in).width;                       \
        real *y = x + w;                                                                         \
        int64_t *from = found;                                                                   \
        corners_##name *corners = found;                                                         \
        for (int64_t row = 0; row < h; row++) {                                                  \
            warp_places_##name(warp, h, w, row, x, y);                                           \
            for (int64_t i = 0; i < w && warp->bilinear; i++)                                    \
                corners[i] = warp_find_##name(x[i], y[i], h, w);                                 \
            for (int64_t i = 0; i < w && !warp->bilinear; i++)                                   \
                from[i] = warp_nearest_index((double)x[i], (double)y[i], h, w);                  \
            if (warp->bilinear)                                                                  \
                warp_mix(warp, in, out, row, corners);                                           \
            else                                                                                 \
                warp_pick(warp, in, out, row, from);                                             \
        }                                                                                        \
    }
DEFINE_RUN(f32, float)
DEFINE_RUN(f64, double)

int ek_picture_warp(const ek_array *in, ek_array *out, const ek_warp *warp)
{
    int64_t w = ek_picture_of(in).width;
    if (ek_shape_count(&in->shape) == 0)
        return 0;
    double *room = ek_calloc(2 * (size_t)w, sizeof *room);
    void *found = ek_calloc((size_t)w, sizeof(corners_f64));
    int rc = room && found ? 0 : EK_E_NO_MEMORY;
    if (rc == 0 && in->dtype == EK_F64)
        warp_run_f64(in, out, warp, room, found);
    else if (rc == 0)
        warp_run_f32(in, out, warp, (float *)room, found);
    free(room);
    free(found);
    return rc;
}
