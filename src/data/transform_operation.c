/* transform_operation.c: what the library's transforms have in common: rows of operations, checks
 * of options and arrays, draws as torchvision's, planes of pictures. */
#include "data/transform_operation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/locale.h"
#include "core/tensor.h"

/* ---- operations ---- */

static double operation_chance(const ek_operation *operation, const void *transform)
{
    double p = 0;
    if (operation->p)
        memcpy(&p, (const char *)transform + operation->p, sizeof p);
    return p;
}

ek_transform *ek_operation_new(const ek_operation *operation, const void *options, size_t extra)
{
    size_t size = operation->type.size;
    ek_transform *self = ek_calloc(1, EK_RETIRABLE(size + extra));
    if (!self)
        return NULL;
    self->type = &operation->type;
    memcpy(self + 1, options, size - sizeof *self);
    if (ek_check_chance(operation->type.name, operation_chance(operation, self)) == 0)
        return self;
    free(self);
    return NULL;
}

static int operation_check_picture(const ek_transform *self, const ek_array *array)
{
    char text[200];
    if (array->shape.ndim < 2)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: %s is no picture; at least two dimensions, (..., height, width), are",
                       self->type->name, ek_array_text(array, text));
    ek_picture picture = ek_picture_of(array);
    if (picture.height > EK_PICTURE_MOST || picture.width > EK_PICTURE_MOST)
        return EK_FAIL(EK_E_SHAPE, "%s: %s is larger than pictures are, 2^31 pixels a side",
                       self->type->name, ek_array_text(array, text));
    return 0;
}

static int operation_check_colors(const ek_transform *self, const ek_array *array)
{
    char text[200];
    int64_t channels = ek_picture_channels(array);
    if (array->dtype != EK_U8 && array->dtype != EK_F32 && array->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "%s: %s; colors are u8, f32 or f64", self->type->name,
                       ek_array_text(array, text));
    if (channels != 1 && channels != 3)
        return EK_FAIL(EK_E_SHAPE, "%s: %s; pictures have 1 or 3 channels, (..., C, H, W)",
                       self->type->name, ek_array_text(array, text));
    return 0;
}

int ek_operation_describe(const ek_transform *self, ek_array *array)
{
    const ek_operation *operation = (const ek_operation *)self->type;
    if (operation->takes != EK_ANY_ARRAY)
        EK_TRY(operation_check_picture(self, array));
    if (operation->takes == EK_COLORS)
        EK_TRY(operation_check_colors(self, array));
    return operation->describe ? operation->describe(self, array) : 0;
}

/* Draws torch.rand(1) < p, which compares in f32, and then the operation's numbers. */
static int operation_draw(const ek_operation *operation, double p, ek_application *a)
{
    if (operation->p && !(ek_generator_f32(a->generator) < (float)p))
        return 0;
    return operation->draw ? operation->draw(a) : 1;
}

int ek_operation_apply(const ek_transform *self, const ek_array *in, ek_array *out,
                       ek_generator *generator)
{
    const ek_operation *operation = (const ek_operation *)self->type;
    ek_application a = {ek_options_of(self), in, out, .normals = NULL};
    int rc = 1;
    if (operation->p || operation->draw) {
        a.generator = ek_generator_lock(generator);
        rc = operation_draw(operation, operation_chance(operation, self), &a);
        ek_generator_unlock(a.generator);
    }
    a.generator = generator;
    if (rc == 0 || (rc > 0 && operation->in_place))
        ek_array_keep(in, out);
    if (rc > 0)
        rc = operation->apply(&a);
    free(a.normals);
    return rc;
}

/* ---- checks ---- */

int ek_check_pixels(const ek_transform *self, const ek_array *array, const char *done)
{
    char text[200];
    if (array->dtype == EK_U8 || array->dtype == EK_F32 || array->dtype == EK_F64)
        return 0;
    return EK_FAIL(EK_E_DTYPE, "%s: %s; u8, f32 and f64 are %s", self->type->name,
                   ek_array_text(array, text), done);
}

int ek_check_filled(const ek_transform *self, const ek_array *array)
{
    char text[200];
    if (ek_picture_of(array).height >= 1 && ek_picture_of(array).width >= 1)
        return 0;
    return EK_FAIL(EK_E_SHAPE, "%s: %s has no pixels; at least one is needed", self->type->name,
                   ek_array_text(array, text));
}

int ek_check_fill(const ek_transform *self, const ek_array *array, double fill)
{
    char text[200];
    const ek_dtype_range *range = ek_dtype_range_of(array->dtype);
    char limits[64] = "";
    if (ek_dtype_holds(array->dtype, fill))
        return 0;
    if (array->dtype != EK_I64)
        ek_format(limits, sizeof limits, " in [%.0f, %.0f]", range->first, range->last);
    return EK_FAIL(EK_E_DTYPE, "%s: %s cannot be filled by %g; a whole number%s can be used",
                   self->type->name, ek_array_text(array, text), fill, limits);
}

int ek_check_size(const char *name, int64_t height, int64_t width)
{
    if (height >= 1 && height <= EK_PICTURE_MOST && width >= 1 && width <= EK_PICTURE_MOST)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: a size of %lld x %lld; both have to lie in [1, %lld]", name,
                   (long long)height, (long long)width, (long long)EK_PICTURE_MOST);
}

int ek_check_chance(const char *name, double p)
{
    if (p >= 0 && p <= 1)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: the probability has to be between 0 and 1, not %g", name, p);
}

int ek_check_range(const char *name, const char *option, const double range[2], double least,
                   double most)
{
    char limit[64] = "finite";
    if (range[0] >= least && range[0] <= range[1] && range[1] <= most && isfinite(range[0]) &&
        isfinite(range[1]))
        return 0;
    if (isfinite(least) && isfinite(most))
        ek_format(limit, sizeof limit, "in [%g, %g]", least, most);
    else if (isfinite(least))
        ek_format(limit, sizeof limit, "finite and at least %g", least);
    return EK_FAIL(EK_E_INVALID,
                   "%s: %s from %g to %g; both have to be %s, the first not above the second", name,
                   option, range[0], range[1], limit);
}

int ek_check_ratio(const char *name, const char *option, const double range[2])
{
    EK_TRY(ek_check_range(name, option, range, 0, INFINITY));
    if (range[0] == 0)
        return EK_FAIL(EK_E_INVALID, "%s: a %s of 0; it has to be above 0", name, option);
    return 0;
}

void ek_range_default(double range[2], double low, double high)
{
    if (range[0] == 0 && range[1] == 0) {
        range[0] = low;
        range[1] = high;
    }
}

/* ---- draws ---- */

double ek_draw_between(ek_generator *locked, double low, double high)
{
    float first = (float)low, length = (float)high - first;
    return (double)fmaf(ek_generator_f32(locked), length, first);
}

/* Rounds the root to whole pixels: at most 2^40, which is larger than any picture. */
static int64_t draw_side(double square)
{
    return (int64_t)fmin(rint(sqrt(square)), 0x1p40);
}

bool ek_draw_part(ek_application *a, const double scale[2], const double ratio[2], bool is_wide,
                  int64_t least)
{
    const ek_picture picture = ek_picture_of(a->in);
    const double area = (double)(picture.height * picture.width);
    const double low = (double)logf((float)ratio[0]), high = (double)logf((float)ratio[1]);
    int64_t *h = &a->window.height, *w = &a->window.width;
    for (int attempt = 0; attempt < 10; attempt++) {
        double share = area * ek_draw_between(a->generator, scale[0], scale[1]);
        double aspect = (double)expf((float)ek_draw_between(a->generator, low, high));
        *(is_wide ? w : h) = draw_side(share * aspect);
        *(is_wide ? h : w) = draw_side(share / aspect);
        if (*h >= least && *h - least < picture.height && *w >= least && *w - least < picture.width)
            return true;
    }
    return false;
}

void ek_draw_place(ek_application *a)
{
    const ek_picture picture = ek_picture_of(a->in);
    a->window.top = ek_generator_below(a->generator, picture.height - a->window.height + 1);
    a->window.left = ek_generator_below(a->generator, picture.width - a->window.width + 1);
}

/* ---- pictures ---- */

ek_picture ek_picture_of(const ek_array *array)
{
    const ek_shape *shape = &array->shape;
    ek_picture picture = {.planes = 1,
                          .height = shape->dims[shape->ndim - 2],
                          .width = shape->dims[shape->ndim - 1],
                          .size = ek_dtype_size(array->dtype)};
    for (int i = 0; i < shape->ndim - 2; i++)
        picture.planes *= shape->dims[i];
    return picture;
}

void *ek_picture_row(const ek_array *array, int64_t plane, int64_t row)
{
    const int64_t *sides = array->shape.dims + array->shape.ndim - 2;
    size_t at = (size_t)((plane * sides[0] + row) * sides[1]);
    return (char *)array->data + at * ek_dtype_size(array->dtype);
}

void ek_picture_set_size(ek_array *array, int64_t height, int64_t width)
{
    array->shape.dims[array->shape.ndim - 2] = height;
    array->shape.dims[array->shape.ndim - 1] = width;
}

int64_t ek_picture_channels(const ek_array *array)
{
    return array->shape.ndim < 3 ? 1 : array->shape.dims[array->shape.ndim - 3];
}
