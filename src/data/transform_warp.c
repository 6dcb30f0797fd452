/* transform_warp.c: pictures whose pixels come from other places: affine maps and perspectives.
 *
 * As torchvision does by grid_sample with padding by zeros and without aligned corners: places are
 * computed in f32 (f64 for f64 elements), in units of half a picture. For each row of the result
 * they are found once, for all planes. */
#include <math.h>
#include <stdlib.h>

#include "data/transform_operation.h"

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

/* ---- places, in the type that a dtype is computed in ---- */

/* warp_places: where the pixels of result row y come from, in pixels of the source. Sums are fused
 * as in a matrix product.
 *
 * warp_corners: the four pixels around a place, and their weights; 0 for those outside. */
#define DEFINE_PLACES(name, real, fused, floored)                                             \
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
    }                                                                                         \
    typedef struct corners_##name {                                                           \
        int64_t at[4];                                                                        \
        real weight[4], inside; /* the sum of the weights */                                  \
    } corners_##name;                                                                         \
    static corners_##name warp_corners_##name(real x, real y, int64_t h, int64_t w)           \
    {                                                                                         \
        corners_##name c = {.inside = 0};                                                     \
        if (!(x > -1 && x < (real)w && y > -1 && y < (real)h))                                \
            return c;                                                                         \
        real left = floored(x), top = floored(y);                                             \
        real east = x - left, south = y - top, west = 1 - east, north = 1 - south;            \
        const real weight[4] = {west * north, east * north, west * south, east * south};      \
        int64_t column = (int64_t)left, line = (int64_t)top;                                  \
        for (int k = 0; k < 4; k++) {                                                         \
            int64_t i = column + k % 2, j = line + k / 2;                                     \
            bool inside = i >= 0 && i < w && j >= 0 && j < h;                                 \
            c.at[k] = inside ? j * w + i : 0;                                                 \
            c.weight[k] = inside ? weight[k] : 0;                                             \
            c.inside += c.weight[k];                                                          \
        }                                                                                     \
        return c;                                                                             \
    }
DEFINE_PLACES(f32, float, fmaf, floorf)
DEFINE_PLACES(f64, double, fma, floor)

/* Returns the nearest pixel's index in a plane, or -1 if the pixel is outside. Halves are rounded
 * to even. */
static int64_t warp_nearest(double x, double y, int64_t h, int64_t w)
{
    double column = rint(x), line = rint(y);
    bool inside = column >= 0 && column < (double)w && line >= 0 && line < (double)h;
    return inside ? (int64_t)line * w + (int64_t)column : -1;
}

/* ---- rows ---- */

/* Returns the weighted sum of four pixels, fused in the order of PyTorch's grid_sample, so that
 * bytes are rounded as there. */
#define DEFINE_MIX(name, element, real, kind, stored, fused)                           \
    EK_MULTIVERSION                                                                    \
    static void warp_mix_##name(int64_t count, const void *found, const ek_warp *warp, \
                                const void *plane, void *row)                          \
    {                                                                                  \
        const corners_##kind *restrict corners = found;                                \
        const element *restrict x = plane;                                             \
        element *restrict out = row;                                                   \
        const bool fills = warp->fills;                                                \
        const real fill = (real)warp->fill;                                            \
        for (int64_t i = 0; i < count; i++) {                                          \
            const corners_##kind *c = &corners[i];                                     \
            real value = (real)x[c->at[0]] * c->weight[0];                             \
            for (int k = 1; k < 4; k++)                                                \
                value = fused((real)x[c->at[k]], c->weight[k], value);                 \
            if (fills)                                                                 \
                value = value * c->inside + (1 - c->inside) * fill;                    \
            out[i] = stored(value);                                                    \
        }                                                                              \
    }
#define ROUNDED_BYTE(value) EK_ROUNDED_u8(EK_CUT(value, 255))
#define ITSELF(value) (value)
DEFINE_MIX(u8, uint8_t, float, f32, ROUNDED_BYTE, fmaf)
DEFINE_MIX(f32, float, float, f32, ITSELF, fmaf)
DEFINE_MIX(f64, double, double, f64, ITSELF, fma)

/* Writes row y of all planes. `found` has the pixels' indices or corners. */
static void warp_row(const ek_warp *warp, const ek_array *in, ek_array *out, int64_t y,
                     const void *found)
{
    ek_picture picture = ek_picture_of(in);
    unsigned char element[8];
    ek_fill_element(in->dtype, warp->fills ? warp->fill : 0, element);
    for (int64_t p = 0; p < picture.planes; p++) {
        const void *plane = ek_picture_row(in, p, 0);
        void *row = ek_picture_row(out, p, y);
        if (warp->bilinear)
            EK_PIXEL_FUNCTION(warp_mix, in->dtype)(picture.width, found, warp, plane, row);
        else
            ek_pick_run(picture.width, found, picture.size, plane, element, row);
    }
}

/* Runs over the rows of the result. `x` has room for two reals for each pixel of a row. */
#define DEFINE_RUN(name, real)                                                                   \
    static void warp_run_##name(const ek_array *in, ek_array *out, const ek_warp *warp, real *x, \
                                void *found)                                                     \
    {                                                                                            \
        int64_t h = ek_picture_of(in).height, w = ek_picture_of(in).width;                       \
        real *y = x + w;                                                                         \
        for (int64_t row = 0; row < h; row++) {                                                  \
            warp_places_##name(warp, h, w, row, x, y);                                           \
            for (int64_t i = 0; i < w && warp->bilinear; i++)                                    \
                ((corners_##name *)found)[i] = warp_corners_##name(x[i], y[i], h, w);            \
            for (int64_t i = 0; i < w && !warp->bilinear; i++)                                   \
                ((int64_t *)found)[i] = warp_nearest((double)x[i], (double)y[i], h, w);          \
            warp_row(warp, in, out, row, found);                                                 \
        }                                                                                        \
    }
DEFINE_RUN(f32, float)
DEFINE_RUN(f64, double)

/* ---- a picture ---- */

int ek_warp_check(const ek_transform *self, const ek_array *array, const ek_warp *warp)
{
    if (warp->bilinear)
        EK_TRY(ek_check_pixels(self, array,
                               "interpolated bilinearly, other elements by the "
                               "nearest"));
    return warp->fills ? ek_check_fill(self, array, warp->fill) : 0;
}

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
