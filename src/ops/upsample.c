/* upsample.c: nearest and bilinear interpolation of images, a linear map and its adjoint; each is
 * the other's derivative. Results keep the input's memory order. */
#include "ops/ops.h"
#include "ops/spatial.h"

/* Maps images of `x` to images of `y`. */
typedef struct upsample_attributes {
    ek_shape x, y;
    ek_memory_format format;
    bool bilinear, align_corners;
} upsample_attributes;

static ek_tensor *upsample(ek_tensor *x, const upsample_attributes *attributes);
static ek_tensor *upsample_gradient(ek_tensor *dy, const upsample_attributes *attributes);

static int upsample_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = upsample_gradient(gradients[0], ek_node_attributes(node));
    return 0;
}

static int upsample_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                      ek_tensor **results)
{
    results[0] = upsample(gradients[0], ek_node_attributes(node));
    return 0;
}

static const ek_operation upsample_operation = {.name = "upsample", .backward = upsample_backward};
static const ek_operation upsample_gradient_operation = {.name = "upsample_gradient",
                                                         .backward = upsample_gradient_backward};

static ek_tensor *upsample(ek_tensor *x, const upsample_attributes *attributes)
{
    if (!x)
        return NULL;
    ek_dev *dev = ek_tensor_dev(x);
    ek_tensor *y = ek_tensor_new(dev, x->dtype, &attributes->y, attributes->format);
    if (!y ||
        (ek_count(y) > 0 && ek_kernels_of(x)->upsample_forward(dev, y, x, attributes->bilinear,
                                                               attributes->align_corners) < 0))
        return NULL;
    return EK_RECORD(y, &upsample_operation, EK_INPUTS(x), EK_ATTRIBUTES(*attributes));
}

static ek_tensor *upsample_gradient(ek_tensor *dy, const upsample_attributes *attributes)
{
    if (!dy)
        return NULL;
    ek_dev *dev = ek_tensor_dev(dy);
    ek_tensor *dx = ek_tensor_new(dev, dy->dtype, &attributes->x, attributes->format);
    if (!dx ||
        (ek_count(dx) > 0 && ek_kernels_of(dy)->upsample_gradient(dev, dx, dy, attributes->bilinear,
                                                                  attributes->align_corners) < 0))
        return NULL;
    return EK_RECORD(dx, &upsample_gradient_operation, EK_INPUTS(dy), EK_ATTRIBUTES(*attributes));
}

ek_tensor *ek_f_upsample(ek_tensor *x, int64_t height, int64_t width, ek_upsample_mode mode,
                         bool align_corners)
{
    const char *name = "upsample";
    if (!ek_given(name, "x", x) || ek_spatial_check(name, x, 2) < 0 ||
        ek_spatial_least(name, "the output", 2, (const int64_t[]){height, width}, 1) < 0)
        return NULL;
    if (mode != EK_NEAREST && mode != EK_BILINEAR) {
        EK_FAIL(EK_E_INVALID, "upsample: mode must be EK_NEAREST or EK_BILINEAR, got %d",
                (int)mode);
        return NULL;
    }
    if (mode == EK_NEAREST && align_corners) {
        EK_FAIL(EK_E_INVALID, "upsample: align_corners is for EK_BILINEAR, but mode is EK_NEAREST");
        return NULL;
    }
    if (x->shape[2] < 1 || x->shape[3] < 1) {
        char text[200];
        EK_FAIL(EK_E_SHAPE, "upsample: x must have at least one pixel, got %s",
                ek_tensor_text(x, text));
        return NULL;
    }
    upsample_attributes attributes = {.x = ek_tensor_shape(x),
                                      .y = EK_SHAPE(x->shape[0], x->shape[1], height, width),
                                      .format = ek_spatial_format(x),
                                      .bilinear = mode == EK_BILINEAR,
                                      .align_corners = align_corners};
    return upsample(x, &attributes);
}
