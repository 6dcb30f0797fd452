/* upsample.c: nearest and bilinear interpolation of images, a linear map and its adjoint; each is
 * the other's derivative. Results keep the input's memory order. */
#include "ops/ops.h"

/* Maps images of `x` to images of `y`. */
typedef struct upsample_attributes {
    ek_shape x, y;
    ek_memory_format format;
    bool bilinear, align_corners;
} upsample_attributes;

static ek_tensor *upsample(ek_tensor *x, const upsample_attributes *attributes);
static ek_tensor *upsample_gradient(ek_tensor *dy, const upsample_attributes *attributes);

EK_BACKWARD(upsample, void, upsample_gradient(g, a))

EK_BACKWARD(upsample_gradient, void, upsample(g, a))
EK_OPERATION(upsample, "upsample", upsample_backward);
EK_OPERATION(upsample_gradient, "upsample_gradient", upsample_gradient_backward);

static ek_tensor *upsample(ek_tensor *x, const upsample_attributes *a)
{
    ek_tensor *y = x ? ek_tensor_new(ek_tensor_dev(x), x->dtype, &a->y, a->format) : NULL;
    return EK_RECORD(EK_RUN(y, upsample_forward, x, a->bilinear, a->align_corners),
                     &upsample_operation, EK_INPUTS(x), EK_ATTRIBUTES(*a));
}

static ek_tensor *upsample_gradient(ek_tensor *dy, const upsample_attributes *a)
{
    ek_tensor *dx = dy ? ek_tensor_new(ek_tensor_dev(dy), dy->dtype, &a->x, a->format) : NULL;
    return EK_RECORD(EK_RUN(dx, upsample_gradient, dy, a->bilinear, a->align_corners),
                     &upsample_gradient_operation, EK_INPUTS(dy), EK_ATTRIBUTES(*a));
}

ek_tensor *ek_f_upsample(ek_tensor *x, int64_t height, int64_t width, ek_upsample_mode mode,
                         bool align_corners)
{
    const char *name = "upsample";
    if (!ek_given(name, "x", x) || ek_spatial_check(name, x, 2) < 0 ||
        ek_spatial_least(name, "the output", 2, (const int64_t[]){height, width}, 1) < 0 ||
        !ek_chosen(name, "mode", (int)mode, 2, "EK_NEAREST or EK_BILINEAR"))
        return NULL;
    if (mode == EK_NEAREST && align_corners)
        return EK_REFUSE(EK_E_INVALID,
                         "upsample: align_corners is for EK_BILINEAR, but mode is EK_NEAREST");
    if (x->shape[2] < 1 || x->shape[3] < 1) {
        return EK_REFUSE(EK_E_SHAPE, "upsample: x must have at least one pixel, got %s",
                         EK_TENSOR_TEXT(x));
    }
    upsample_attributes attributes = {.x = ek_tensor_shape(x),
                                      .y = EK_SHAPE(x->shape[0], x->shape[1], height, width),
                                      .format = ek_spatial_format(x),
                                      .bilinear = mode == EK_BILINEAR,
                                      .align_corners = align_corners};
    return upsample(x, &attributes);
}
