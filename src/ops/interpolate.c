/* interpolate.c: images of another size, a linear map and its adjoint; each is the other's
 * derivative. Results keep the input's memory order. One dimension is computed as two with a height
 * of 1. */
#include <math.h>

#include "ops/attributes.h"
#include "ops/ops.h"

static ek_tensor *interpolate_back(ek_tensor *g, const ek_interpolate_attributes *a);

EK_BACKWARD(interpolate, ek_interpolate_attributes, interpolate_back(g, a))
EK_OPERATION(interpolate, "interpolate", interpolate_backward);
EK_OPERATION(interpolate_gradient, "interpolate_gradient", interpolate_backward);

static ek_tensor *interpolate(ek_tensor *x, const ek_interpolate_attributes *a)
{
    ek_tensor *y = x ? ek_tensor_new(ek_tensor_dev(x), x->dtype, &a->to, a->format) : NULL;
    return EK_RECORD(EK_RUN(y, resample, x, &a->params),
                     a->params.adjoint ? &interpolate_gradient_operation : &interpolate_operation,
                     EK_INPUTS(x), EK_ATTRIBUTES(*a));
}

static ek_tensor *interpolate_back(ek_tensor *g, const ek_interpolate_attributes *a)
{
    ek_interpolate_attributes back = *a;
    back.params.adjoint = !a->params.adjoint;
    back.from = a->to;
    back.to = a->from;
    return interpolate(g, &back);
}

/* ---- options ---- */

/* Checks that neither the input nor the output is empty. */
static bool interpolate_check(const char *name, const ek_tensor *x, const int64_t *size)
{
    const int dims = x->ndim - 2;
    if (ek_spatial_least(name, "the output", dims, size, 1) < 0)
        return false;
    for (int i = 0; i < dims; i++)
        if (x->shape[2 + i] < 1)
            return EK_REFUSE(EK_E_SHAPE, "%s: x must have at least one pixel, got %s", name,
                             EK_TENSOR_TEXT(x));
    return true;
}

/* Returns how many dimensions after (N, C) a mode requires; 0 for modes that accept 1 to 3. */
static int interpolate_dims(ek_upsample_mode mode)
{
    return mode == EK_LINEAR                           ? 1
           : mode == EK_BILINEAR || mode == EK_BICUBIC ? 2
           : mode == EK_TRILINEAR                      ? 3
                                                       : 0;
}

static bool interpolate_check_mode(const char *name, const ek_tensor *x, ek_upsample_mode mode,
                                   bool align_corners, bool antialias)
{
    if (!ek_chosen(name, "mode", (int)mode, 7,
                   "EK_NEAREST, EK_BILINEAR, EK_NEAREST_EXACT, EK_LINEAR, EK_BICUBIC, "
                   "EK_TRILINEAR or EK_AREA"))
        return false;
    const int dims = interpolate_dims(mode), most = x->ndim < 3 ? 1 : x->ndim > 5 ? 3 : x->ndim - 2;
    if (ek_spatial_check(name, x, dims > 0 ? dims : most) < 0)
        return false;
    if (dims == 0 && align_corners)
        return EK_REFUSE(EK_E_INVALID,
                         "%s: align_corners is for EK_BILINEAR, EK_LINEAR, EK_TRILINEAR and "
                         "EK_BICUBIC, but mode is %s",
                         name,
                         mode == EK_AREA      ? "EK_AREA"
                         : mode == EK_NEAREST ? "EK_NEAREST"
                                              : "EK_NEAREST_EXACT");
    if (antialias && dims != 2)
        return EK_REFUSE(EK_E_INVALID, "%s: antialias is for EK_BILINEAR and EK_BICUBIC", name);
    return true;
}

static ek_resample_kind interpolate_kind(ek_upsample_mode mode, bool antialias)
{
    if (mode == EK_NEAREST)
        return EK_RESAMPLE_NEAREST;
    if (mode == EK_NEAREST_EXACT)
        return EK_RESAMPLE_NEAREST_EXACT;
    if (mode == EK_BICUBIC)
        return antialias ? EK_RESAMPLE_CUBIC_ANTIALIAS : EK_RESAMPLE_CUBIC;
    return antialias ? EK_RESAMPLE_LINEAR_ANTIALIAS : EK_RESAMPLE_LINEAR;
}

static ek_tensor *interpolate_area(ek_tensor *x, const int64_t *size)
{
    return x->ndim == 3   ? ek_f_adaptive_avg_pool1d(x, size[0])
           : x->ndim == 4 ? ek_f_adaptive_avg_pool2d(x, size[0], size[1])
                          : ek_f_adaptive_avg_pool3d(x, size[0], size[1], size[2]);
}

/* Interpolates x, whose sizes and mode are checked. factor[i] is 0 if positions are computed from
 * the sizes. */
static ek_tensor *interpolate_run(ek_tensor *x, const int64_t *size, const double *factor,
                                  ek_upsample_mode mode, bool align_corners, bool antialias)
{
    const int dims = x->ndim - 2;
    if (mode == EK_AREA)
        return interpolate_area(x, size);
    ek_scope scope = ek_scope_begin();
    ek_tensor *images = dims == 1 ? ek_unsqueeze(x, 2) : x, *y = NULL;
    if (images) {
        const int first = dims == 1;
        ek_interpolate_attributes a = {.params = {.kind = interpolate_kind(mode, antialias),
                                                  .align_corners = align_corners},
                                       .from = ek_tensor_shape(images),
                                       .to = ek_tensor_shape(images),
                                       .format = ek_spatial_format(images)};
        for (int i = 0; i < dims; i++) {
            a.to.dims[2 + first + i] = size[i];
            a.params.factor[first + i] = factor[i];
        }
        y = interpolate(images, &a);
        y = dims == 1 ? ek_squeeze(y, 2) : y;
    }
    return ek_scope_return(&scope, y);
}

/* Reads the factors, and the sizes that they make. */
static bool interpolate_read_factors(const ek_interpolate_options *o, int64_t size[3],
                                     double factor[3])
{
    const ek_tensor *x = o->x;
    for (int i = 0; i < x->ndim - 2; i++) {
        factor[i] = o->scale_factors[i] != 0 ? o->scale_factors[i] : o->scale_factor;
        const double scaled = floor((double)x->shape[2 + i] * factor[i]);
        if (!(factor[i] > 0) || !(scaled < 9e18))
            return EK_REFUSE(EK_E_INVALID,
                             "interpolate: scale_factor must be a number above 0, got %g for the "
                             "%s of %lld",
                             factor[i], ek_spatial_direction(x->ndim - 2, i),
                             (long long)x->shape[2 + i]);
        size[i] = (int64_t)scaled;
        if (size[i] < 1)
            return EK_REFUSE(EK_E_SHAPE,
                             "interpolate: scale_factor %g leaves nothing of the %s %lld",
                             factor[i], ek_spatial_direction(x->ndim - 2, i),
                             (long long)x->shape[2 + i]);
        if (o->recompute_scale_factor || o->mode == EK_AREA)
            factor[i] = 0;
    }
    return true;
}

static bool interpolate_read(const ek_interpolate_options *o, int64_t size[3], double factor[3])
{
    const int dims = o->x->ndim - 2;
    bool sized = o->size != 0, scaled = o->scale_factor != 0;
    for (int i = 0; i < 3; i++) {
        sized = sized || o->sizes[i] != 0;
        scaled = scaled || o->scale_factors[i] != 0;
        if (i >= dims && (o->sizes[i] != 0 || o->scale_factors[i] != 0))
            return EK_REFUSE(EK_E_INVALID,
                             "interpolate: there is an entry %d of sizes or scale_factors, but x "
                             "has %d direction%s",
                             i + 1, dims, dims == 1 ? "" : "s");
    }
    if (sized == scaled)
        return EK_REFUSE(EK_E_INVALID, "interpolate: %s; one of them must be given",
                         sized ? "a size and a scale_factor are given"
                               : "neither a size nor a scale_factor is given");
    if (scaled)
        return interpolate_read_factors(o, size, factor);
    if (o->recompute_scale_factor)
        return EK_REFUSE(EK_E_INVALID,
                         "interpolate: recompute_scale_factor is for a scale_factor, but a size is "
                         "given");
    for (int i = 0; i < dims; i++) {
        size[i] = o->sizes[i] != 0 ? o->sizes[i] : o->size;
        factor[i] = 0;
    }
    return true;
}

/* ---- the public operations ---- */

ek_tensor *ek_f_interpolate_with(ek_interpolate_options o)
{
    int64_t size[3] = {0};
    double factor[3] = {0};
    if (!ek_given("interpolate", "x", o.x) ||
        !interpolate_check_mode("interpolate", o.x, o.mode, o.align_corners, o.antialias) ||
        !interpolate_read(&o, size, factor) || !interpolate_check("interpolate", o.x, size))
        return NULL;
    return interpolate_run(o.x, size, factor, o.mode, o.align_corners, o.antialias);
}

ek_tensor *ek_f_upsample(ek_tensor *x, int64_t height, int64_t width, ek_upsample_mode mode,
                         bool align_corners)
{
    const int64_t size[] = {height, width};
    if (!ek_given("upsample", "x", x) || ek_spatial_check("upsample", x, 2) < 0 ||
        !interpolate_check_mode("upsample", x, mode, align_corners, false) ||
        !interpolate_check("upsample", x, size))
        return NULL;
    return interpolate_run(x, size, (const double[]){0, 0}, mode, align_corners, false);
}
