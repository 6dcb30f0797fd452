/* transform_affine.c: random_rotation, random_affine, random_perspective. */
#include <math.h>
#include <string.h>

#include "data/transform_operation.h"

/* ---- random_rotation and random_affine ----
 *
 * Drawn numbers: the angle, shift x and y, scale, shear x and y. */

/* Tells whether an option {low, high} is written. */
static bool affine_given(const double range[2])
{
    return range[0] != 0 || range[1] != 0;
}

static int affine_describe(const ek_transform *self, ek_array *array)
{
    const ek_affine_options *o = ek_options_of(self);
    const ek_warp warp = {.bilinear = o->bilinear, .fills = true, .fill = o->fill};
    return ek_warp_check(self, array, &warp);
}

/* Draws a whole number of pixels within +-share of `size`. */
static double affine_shift(ek_generator *locked, double share, int64_t size)
{
    double most = share * (double)size;
    return rint(ek_draw_between(locked, -most, most));
}

static int affine_draw(ek_application *a)
{
    const ek_affine_options *o = a->options;
    ek_picture picture = ek_picture_of(a->in);
    double *number = a->number;
    bool shears_y = affine_given(o->shear_y_range);
    number[0] = ek_draw_between(a->generator, o->degrees_range[0], o->degrees_range[1]);
    if (o->translate[0] != EK_UNSET) {
        number[1] = affine_shift(a->generator, o->translate[0], picture.width);
        number[2] = affine_shift(a->generator, o->translate[1], picture.height);
    }
    number[3] = o->scale[0] != 0 ? ek_draw_between(a->generator, o->scale[0], o->scale[1]) : 1;
    if (shears_y || affine_given(o->shear_range) || o->shear != EK_UNSET)
        number[4] = ek_draw_between(a->generator, o->shear_range[0], o->shear_range[1]);
    if (shears_y)
        number[5] = ek_draw_between(a->generator, o->shear_y_range[0], o->shear_y_range[1]);
    return 1;
}

static int affine_warp(const ek_affine_options *o, const double *number, const ek_array *in,
                       ek_array *out)
{
    ek_picture picture = ek_picture_of(in);
    ek_warp warp = {.bilinear = o->bilinear, .fills = true, .fill = o->fill};
    double center[2] = {0, 0};
    if (o->center[0] != EK_UNSET) {
        center[0] = o->center[0] - (double)picture.width * 0.5;
        center[1] = o->center[1] - (double)picture.height * 0.5;
    }
    ek_warp_affine(&warp, center, number[0], number + 1, number[3], number + 4);
    return ek_picture_warp(in, out, &warp);
}

static int affine_apply(ek_application *a)
{
    return affine_warp(a->options, a->number, a->in, a->out);
}

/* Rotates by the drawn angle, counter-clockwise. random_affine rotates clockwise. */
static int rotation_apply(ek_application *a)
{
    const double number[] = {-a->number[0], 0, 0, 1, 0, 0};
    return affine_warp(a->options, number, a->in, a->out);
}

static const ek_operation random_affine = {EK_OPERATION(random_affine, ek_affine_options,
                                                        EK_PICTURE, affine_describe, affine_draw,
                                                        affine_apply)};
static const ek_operation random_rotation = {EK_OPERATION(random_rotation, ek_affine_options,
                                                          EK_PICTURE, affine_describe, affine_draw,
                                                          rotation_apply)};

/* If a range of angles is not written, sets it to +-number. */
static int affine_angles(const char *name, const char *option, double number, double range[2])
{
    bool given = affine_given(range);
    if (given && number != 0)
        return EK_FAIL(EK_E_INVALID, "%s: %s and %s_range exclude each other", name, option,
                       option);
    if (!(number >= 0))
        return EK_FAIL(EK_E_INVALID, "%s: %s %g; a number that is not negative is needed", name,
                       option, number);
    range[0] = given ? range[0] : -number;
    range[1] = given ? range[1] : number;
    return ek_check_range(name, option, range, -INFINITY, INFINITY);
}

/* Checks the options, and completes the ranges of angles. */
static int affine_complete(const char *name, ek_affine_options *o)
{
    for (int i = 0; i < 2 && o->translate[0] != EK_UNSET; i++)
        if (!(o->translate[i] >= 0 && o->translate[i] <= 1))
            return EK_FAIL(EK_E_INVALID,
                           "%s: translate %g; shares of a side, from 0 to 1, are needed", name,
                           o->translate[i]);
    if (!isfinite(o->center[0]) || !isfinite(o->center[1]))
        return EK_FAIL(EK_E_INVALID, "%s: a center that is not finite", name);
    if (affine_given(o->scale))
        EK_TRY(ek_check_ratio(name, "scale", o->scale));
    EK_TRY(affine_angles(name, "degrees", o->degrees, o->degrees_range));
    EK_TRY(affine_angles(name, "shear", o->shear == EK_UNSET ? 0 : o->shear, o->shear_range));
    return affine_angles(name, "shear_y", 0, o->shear_y_range);
}

static ek_transform *affine_new(const ek_operation *operation, ek_affine_options *o)
{
    return affine_complete(operation->type.name, o) < 0 ? NULL : ek_operation_new(operation, o, 0);
}

ek_transform *ek_random_affine_with(ek_affine_options options)
{
    return affine_new(&random_affine, &options);
}

ek_transform *ek_random_rotation_with(ek_rotation_options options)
{
    ek_affine_options of = EK_DEFAULTS(ek_affine_options);
    of.degrees = options.degrees;
    of.bilinear = options.bilinear;
    of.fill = options.fill;
    memcpy(of.degrees_range, options.degrees_range, sizeof of.degrees_range);
    memcpy(of.center, options.center, sizeof of.center);
    return affine_new(&random_rotation, &of);
}

/* ---- random_perspective ---- */

static ek_warp perspective_warp(const ek_perspective_options *o)
{
    return (ek_warp){.perspective = true, .bilinear = !o->nearest, .fills = true, .fill = o->fill};
}

static int perspective_describe(const ek_transform *self, ek_array *array)
{
    const ek_warp warp = perspective_warp(ek_options_of(self));
    return ek_warp_check(self, array, &warp);
}

/* Draws where the corners go (top left, top right, bottom right, bottom left; x, y), each into the
 * quarter of the picture that it lies in. */
static int perspective_draw(ek_application *a)
{
    double distortion = ((const ek_perspective_options *)a->options)->distortion_scale;
    int64_t w = ek_picture_of(a->in).width, h = ek_picture_of(a->in).height;
    int64_t x = (int64_t)(distortion * (double)(w / 2)) + 1;
    int64_t y = (int64_t)(distortion * (double)(h / 2)) + 1;
    for (int corner = 0; corner < 4; corner++) {
        bool right = corner == 1 || corner == 2, bottom = corner >= 2;
        double *to = a->number + 2 * corner;
        to[0] = (double)(ek_generator_below(a->generator, x) + (right ? w - x : 0));
        to[1] = (double)(ek_generator_below(a->generator, y) + (bottom ? h - y : 0));
    }
    return 1;
}

/* Solves the 8 equations by elimination with pivots. Returns false if corners lie on one line. */
static bool perspective_solve(double rows[8][9], double c[8])
{
    for (int k = 0; k < 8; k++) {
        int best = k;
        for (int i = k + 1; i < 8; i++)
            best = fabs(rows[i][k]) > fabs(rows[best][k]) ? i : best;
        if (fabs(rows[best][k]) < 1e-9)
            return false;
        for (int j = 0; j < 9; j++) {
            double kept = rows[k][j];
            rows[k][j] = rows[best][j];
            rows[best][j] = kept;
        }
        for (int i = k + 1; i < 8; i++)
            for (int j = 8; j >= k; j--)
                rows[i][j] -= rows[k][j] * (rows[i][k] / rows[k][k]);
    }
    for (int k = 8; k-- > 0;) {
        c[k] = rows[k][8];
        for (int j = k + 1; j < 8; j++)
            c[k] -= rows[k][j] * c[j];
        c[k] /= rows[k][k];
    }
    return true;
}

/* Finds the map from the corners' new places to the picture's corners. */
static bool perspective_find(ek_picture picture, const double *to, double c[8])
{
    double right = (double)(picture.width - 1), bottom = (double)(picture.height - 1);
    const double from[8] = {0, 0, right, 0, right, bottom, 0, bottom};
    double rows[8][9] = {{0}};
    for (int i = 0; i < 8; i++) {
        const double *p = to + i / 2 * 2;
        double *row = rows[i] + (i % 2 ? 3 : 0);
        row[0] = p[0];
        row[1] = p[1];
        row[2] = 1;
        rows[i][6] = -from[i] * p[0];
        rows[i][7] = -from[i] * p[1];
        rows[i][8] = from[i];
    }
    return perspective_solve(rows, c);
}

static int perspective_apply(ek_application *a)
{
    ek_warp warp = perspective_warp(a->options);
    if (perspective_find(ek_picture_of(a->in), a->number, warp.c))
        return ek_picture_warp(a->in, a->out, &warp);
    ek_array_keep(a->in, a->out);
    return 0;
}

static const ek_operation random_perspective = {EK_OPERATION(random_perspective,
                                                             ek_perspective_options, EK_PICTURE,
                                                             perspective_describe, perspective_draw,
                                                             perspective_apply),
                                                EK_CHANCE(ek_perspective_options)};

ek_transform *ek_random_perspective_with(ek_perspective_options options)
{
    const double distortion = options.distortion_scale;
    if (!(distortion >= 0 && distortion <= 1))
        return EK_FAIL_NULL(EK_E_INVALID,
                            "random_perspective: distortion_scale %g; it has to lie in [0, 1]",
                            distortion);
    return ek_operation_new(&random_perspective, &options, 0);
}
