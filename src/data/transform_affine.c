/* transform_affine.c: random_rotation, random_affine, random_perspective. */
#include <math.h>
#include <string.h>

#include "core/generator.h"
#include "data/transform_picture.h"

typedef struct affine {
    ek_transform transform;
    ek_warp warp; /* bilinear and fill */
    double degrees[2], translate[2], scale[2], shear_x[2], shear_y[2];
    bool rotates_only, translates, scales, shears, shears_y;
    bool off_center;
    double center[2]; /* x, y in pixels from the top left corner */
} affine;

/* Writes the center, measured from the middle of the picture. */
static void affine_center(const affine *self, ek_picture picture, double center[2])
{
    center[0] = self->off_center ? self->center[0] - (double)picture.width * 0.5 : 0;
    center[1] = self->off_center ? self->center[1] - (double)picture.height * 0.5 : 0;
}

/* Draws a whole number of pixels within +-share of `size`. */
static double affine_shift(ek_generator *locked, double share, int64_t size)
{
    double most = share * (double)size;
    return rint((double)ek_draw_between(locked, -most, most));
}

static int affine_describe(const ek_transform *transform, ek_array *array)
{
    return ek_warp_check(transform, array, &((const affine *)transform)->warp);
}

static int affine_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                        ek_generator *generator)
{
    const affine *self = (const affine *)transform;
    ek_picture picture = ek_picture_of(in);
    double center[2], shift[2] = {0, 0}, scale = 1, shear[2] = {0, 0};
    ek_warp warp = self->warp;
    generator = ek_generator_lock(generator);
    double angle = (double)ek_draw_between(generator, self->degrees[0], self->degrees[1]);
    if (self->translates) {
        shift[0] = affine_shift(generator, self->translate[0], picture.width);
        shift[1] = affine_shift(generator, self->translate[1], picture.height);
    }
    if (self->scales)
        scale = (double)ek_draw_between(generator, self->scale[0], self->scale[1]);
    if (self->shears)
        shear[0] = (double)ek_draw_between(generator, self->shear_x[0], self->shear_x[1]);
    if (self->shears_y)
        shear[1] = (double)ek_draw_between(generator, self->shear_y[0], self->shear_y[1]);
    ek_generator_unlock(generator);
    affine_center(self, picture, center);
    ek_warp_affine(&warp, center, self->rotates_only ? -angle : angle, shift, scale, shear);
    return ek_picture_warp(in, out, &warp);
}

static const ek_transform_type rotation_type = {.name = "random_rotation",
                                                .size = sizeof(affine),
                                                .describe = affine_describe,
                                                .apply = affine_apply};
static const ek_transform_type affine_type = {.name = "random_affine",
                                              .size = sizeof(affine),
                                              .describe = affine_describe,
                                              .apply = affine_apply};

/* Sets a range of angles: {low, high} if one is given, else +-number. */
static int affine_angles(const char *name, const char *option, double number, const double given[2],
                         double range[2])
{
    bool written = given[0] != 0 || given[1] != 0;
    if (written && number != 0)
        return EK_FAIL(EK_E_INVALID, "%s: %s and %s_range exclude each other", name, option,
                       option);
    if (!(number >= 0))
        return EK_FAIL(EK_E_INVALID, "%s: %s %g; a number that is not negative is needed", name,
                       option, number);
    range[0] = written ? given[0] : -number;
    range[1] = written ? given[1] : number;
    return ek_check_range(name, option, range, -INFINITY, INFINITY);
}

static int affine_check(const ek_affine_options *options, const char *name)
{
    const double *move = options->translate;
    for (int i = 0; i < 2 && move[0] != EK_UNSET; i++)
        if (!(move[i] >= 0 && move[i] <= 1))
            return EK_FAIL(EK_E_INVALID,
                           "%s: translate %g; shares of a side, from 0 to 1, are needed", name,
                           move[i]);
    if (!isfinite(options->center[0]) || !isfinite(options->center[1]))
        return EK_FAIL(EK_E_INVALID, "%s: a center that is not finite", name);
    if (options->scale[0] == 0 && options->scale[1] == 0)
        return 0;
    EK_TRY(ek_check_range(name, "scale", options->scale, 0, INFINITY));
    if (options->scale[0] == 0)
        return EK_FAIL(EK_E_INVALID, "%s: a scale of 0; it has to be above 0", name);
    return 0;
}

static int affine_fill(affine *self, const ek_affine_options *options)
{
    const char *name = self->transform.type->name;
    const double shear = options->shear == EK_UNSET ? 0 : options->shear;
    EK_TRY(affine_check(options, name));
    EK_TRY(affine_angles(name, "degrees", options->degrees, options->degrees_range, self->degrees));
    EK_TRY(affine_angles(name, "shear", shear, options->shear_range, self->shear_x));
    EK_TRY(affine_angles(name, "shear_y", 0, options->shear_y_range, self->shear_y));
    memcpy(self->translate, options->translate, sizeof self->translate);
    memcpy(self->scale, options->scale, sizeof self->scale);
    memcpy(self->center, options->center, sizeof self->center);
    self->translates = options->translate[0] != EK_UNSET;
    self->scales = options->scale[0] != 0;
    self->shears_y = options->shear_y_range[0] != 0 || options->shear_y_range[1] != 0;
    self->shears = self->shears_y || self->shear_x[0] != 0 || self->shear_x[1] != 0 ||
                   options->shear != EK_UNSET;
    self->off_center = options->center[0] != EK_UNSET;
    self->warp.bilinear = options->bilinear;
    self->warp.fills = true;
    self->warp.fill = options->fill;
    return 0;
}

static ek_transform *affine_new(const ek_transform_type *type, const ek_affine_options *options)
{
    affine *self = (affine *)ek_transform_new(type);
    if (self && affine_fill(self, options) < 0) {
        ek_transform_free(&self->transform);
        return NULL;
    }
    return (ek_transform *)self;
}

ek_transform *ek_random_affine_with(ek_affine_options options)
{
    return affine_new(&affine_type, &options);
}

ek_transform *ek_random_rotation_with(ek_rotation_options options)
{
    ek_affine_options of = EK_DEFAULTS(ek_affine_options);
    of.degrees = options.degrees;
    of.bilinear = options.bilinear;
    of.fill = options.fill;
    memcpy(of.degrees_range, options.degrees_range, sizeof of.degrees_range);
    memcpy(of.center, options.center, sizeof of.center);
    affine *self = (affine *)affine_new(&rotation_type, &of);
    if (self)
        self->rotates_only = true;
    return (ek_transform *)self;
}

/* ---- random_perspective ---- */

typedef struct perspective {
    ek_transform transform;
    ek_warp warp;
    double p, distortion;
} perspective;

static int perspective_describe(const ek_transform *transform, ek_array *array)
{
    return ek_warp_check(transform, array, &((const perspective *)transform)->warp);
}

/* Draws where the corners go (top left, top right, bottom right, bottom left; x, y), each into the
 * quarter of the picture that it lies in. */
static void perspective_draw(ek_generator *locked, ek_picture picture, double distortion,
                             double to[4][2])
{
    int64_t w = picture.width, h = picture.height;
    int64_t x = (int64_t)(distortion * (double)(w / 2)) + 1;
    int64_t y = (int64_t)(distortion * (double)(h / 2)) + 1;
    for (int corner = 0; corner < 4; corner++) {
        bool right = corner == 1 || corner == 2, bottom = corner >= 2;
        to[corner][0] = (double)(ek_generator_below(locked, x) + (right ? w - x : 0));
        to[corner][1] = (double)(ek_generator_below(locked, y) + (bottom ? h - y : 0));
    }
}

/* Solves the 8 equations by elimination with pivots. False if corners lie on one line. */
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
static bool perspective_find(ek_picture picture, double to[4][2], double c[8])
{
    double right = (double)(picture.width - 1), bottom = (double)(picture.height - 1);
    const double from[4][2] = {{0, 0}, {right, 0}, {right, bottom}, {0, bottom}};
    double rows[8][9] = {{0}};
    for (int i = 0; i < 8; i++) {
        const double *p = to[i / 2];
        double at = from[i / 2][i % 2], *row = rows[i] + (i % 2 ? 3 : 0);
        row[0] = p[0];
        row[1] = p[1];
        row[2] = 1;
        rows[i][6] = -at * p[0];
        rows[i][7] = -at * p[1];
        rows[i][8] = at;
    }
    return perspective_solve(rows, c);
}

static int perspective_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                             ek_generator *generator)
{
    const perspective *self = (const perspective *)transform;
    ek_picture picture = ek_picture_of(in);
    double to[4][2] = {{0}};
    ek_warp warp = self->warp;
    generator = ek_generator_lock(generator);
    bool yes = ek_generator_f32(generator) < (float)self->p;
    if (yes)
        perspective_draw(generator, picture, self->distortion, to);
    ek_generator_unlock(generator);
    if (yes && perspective_find(picture, to, warp.c))
        return ek_picture_warp(in, out, &warp);
    ek_array_keep(in, out);
    return 0;
}

static const ek_transform_type perspective_type = {.name = "random_perspective",
                                                   .size = sizeof(perspective),
                                                   .describe = perspective_describe,
                                                   .apply = perspective_apply};

ek_transform *ek_random_perspective_with(ek_perspective_options options)
{
    const double distortion = options.distortion_scale, p = options.p;
    if (ek_check_chance("random_perspective", p) < 0)
        return NULL;
    if (!(distortion >= 0 && distortion <= 1))
        return EK_FAIL_NULL(EK_E_INVALID,
                            "random_perspective: distortion_scale %g; it has to lie in [0, 1]",
                            distortion);
    perspective *self = (perspective *)ek_transform_new(&perspective_type);
    if (!self)
        return NULL;
    self->p = p;
    self->distortion = distortion;
    self->warp = (ek_warp){.perspective = true,
                           .bilinear = !options.nearest,
                           .fills = true,
                           .fill = options.fill};
    return &self->transform;
}
