/* window.c: windows as views, sums of windows, and unfold, fold and pixel_shuffle, which are made
 * of these. */
#include <string.h>

#include "ops/ops.h"

/* ---- windows along one dimension; the gradient sums the windows' elements at each place ---- */

typedef struct window_attributes {
    int dim;
    int64_t length; /* of the dimension before */
    int64_t size, step, dilation;
} window_attributes;

static ek_tensor *window_view(ek_tensor *x, const window_attributes *a);
static ek_tensor *window_sum(ek_tensor *x, const window_attributes *a);
EK_BACKWARD(window, window_attributes, window_sum(g, a))
EK_BACKWARD(window_sum, window_attributes, window_view(g, a))
EK_OPERATION(window, "unfold", window_backward);
EK_OPERATION(window_sum, "fold", window_sum_backward);

static int64_t window_count(const window_attributes *a)
{
    return (a->length - a->dilation * (a->size - 1) - 1) / a->step + 1;
}

/* Returns a view with the windows in place of the dimension, and a window's elements in a new last
 * dimension. */
static ek_tensor *window_view(ek_tensor *x, const window_attributes *a)
{
    ek_tensor part;
    if (!x)
        return NULL;
    int64_t stride = x->stride[a->dim];
    ek_borrow_slice(&part, x, a->dim, 0, window_count(a), a->step);
    part.shape[part.ndim] = a->size;
    part.stride[part.ndim] = stride * a->dilation;
    return EK_RECORD(ek_tensor_view(x, part.ndim + 1, part.shape, part.stride, part.offset),
                     &window_operation, EK_INPUTS(x), EK_ATTRIBUTES(*a));
}

/* Returns zeros to which windows are added, in the windows' order of memory. */
static ek_tensor *window_place(const ek_tensor *x, const window_attributes *a)
{
    ek_tensor like, *y;
    ek_borrow(&like, x);
    like.ndim--;
    like.shape[a->dim] = a->length;
    ek_shape shape = ek_tensor_shape(&like);
    y = ek_repeats(x) ? ek_tensor_new(ek_tensor_dev(x), x->dtype, &shape, EK_CONTIGUOUS)
                      : ek_tensor_like(&like);
    return EK_RUN(y, fill, 0);
}

/* Returns the sum of windows. Adds element j of all windows at once, for j = 0, 1, ... */
static ek_tensor *window_sum(ek_tensor *x, const window_attributes *a)
{
    if (!x)
        return NULL;
    if (ek_dtype_is_narrow(x->dtype)) /* 16 bits are too coarse to add up in */
        return ek_to_dtype(window_sum(ek_to_dtype(x, EK_F32), a), x->dtype);
    ek_dev *dev = ek_tensor_dev(x);
    ek_tensor from, to, *y = window_place(x, a);
    for (int64_t j = 0; y && ek_count(x) > 0 && j < a->size; j++) {
        ek_borrow_slice(&from, x, x->ndim - 1, j, 1, 1);
        from.ndim--;
        ek_borrow_slice(&to, y, a->dim, j * a->dilation, window_count(a), a->step);
        if (ek_kernels_of(y)->binary(dev, EK_BINARY_ADD, &to, &to, &from, 1) < 0)
            return NULL;
    }
    return EK_RECORD(y, &window_sum_operation, EK_INPUTS(x), EK_ATTRIBUTES(*a));
}

ek_tensor *ek_unfold(ek_tensor *x, int dim, int64_t size, int64_t step)
{
    if (ek_is_scalar_dim(x, dim)) /* the number of windows, 1, is no dimension */
        return ek_squeeze(ek_unfold(ek_row_of(x), 0, size, step), 0);
    if (!ek_given("unfold", "x", x) || (dim = ek_dimension("unfold", x, dim)) < 0)
        return NULL;
    int64_t length = x->shape[dim];
    if (size < 1 || size > length || step < 1 || x->ndim == EK_MAX_DIMS)
        return EK_REFUSE(EK_E_INVALID,
                         "unfold: windows of %lld elements, %lld apart, in dimension %d of %lld; "
                         "both must be at least 1, the size at most %lld, and the dimensions "
                         "fewer than %d",
                         (long long)size, (long long)step, dim, (long long)length,
                         (long long)length, EK_MAX_DIMS);
    return window_view(x, &(window_attributes){dim, length, size, step, 1});
}

/* ---- windows of pictures ---- */

typedef struct window_plane {
    window_attributes side[2]; /* height, width; of dimensions 2 and 3 of a padded picture */
    int64_t padding[2];
} window_plane;

static bool window_read(const char *name, const ek_fold_options *o, const int64_t *size,
                        window_plane *plane)
{
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    if (ek_spatial_option(name, "kernel", 2, o->kernels, o->kernel, 1, kernel) < 0 ||
        ek_spatial_option(name, "stride", 2, o->strides, o->stride, 1, stride) < 0 ||
        ek_spatial_option(name, "padding", 2, o->paddings, o->padding, 0, padding) < 0 ||
        ek_spatial_option(name, "dilation", 2, o->dilations, o->dilation, 1, dilation) < 0)
        return false;
    for (int i = 0; i < 2; i++) {
        int64_t length = size[i] + 2 * padding[i];
        if (size[i] < 1 || size[i] > INT32_MAX || dilation[i] * (kernel[i] - 1) >= length)
            return EK_REFUSE(EK_E_INVALID,
                             "%s: no window of %lld elements, %lld apart, fits %lld elements with "
                             "padding %lld",
                             name, (long long)kernel[i], (long long)dilation[i], (long long)size[i],
                             (long long)padding[i]);
        plane->side[i] = (window_attributes){2 + i, length, kernel[i], stride[i], dilation[i]};
        plane->padding[i] = padding[i];
    }
    return true;
}

ek_tensor *ek_f_unfold_with(ek_unfold_options options)
{
    ek_tensor *x = options.x;
    window_plane plane;
    if (!ek_given("unfold", "x", x))
        return NULL;
    if (x->ndim != 4)
        return EK_REFUSE(EK_E_SHAPE, "unfold: x has shape %s and must be (N, C, H, W)",
                         EK_SIZE_TEXT(x));
    ek_fold_options windows = {.kernel = options.kernel,
                               .stride = options.stride,
                               .padding = options.padding,
                               .dilation = options.dilation};
    memcpy(windows.kernels, options.kernels, sizeof windows.kernels);
    memcpy(windows.strides, options.strides, sizeof windows.strides);
    memcpy(windows.paddings, options.paddings, sizeof windows.paddings);
    memcpy(windows.dilations, options.dilations, sizeof windows.dilations);
    if (!window_read("unfold", &windows, x->shape + 2, &plane))
        return NULL;
    int64_t h = plane.padding[0], w = plane.padding[1], samples = x->shape[0],
            channels = x->shape[1];
    if (h > 0 || w > 0)
        x = ek_f_pad(x, (const int64_t[]){w, w, h, h}, 4, EK_PAD_CONSTANT, 0);
    x = window_view(window_view(x, &plane.side[0]), &plane.side[1]);
    x = ek_permute(x, EK_SHAPE(0, 1, 4, 5, 2, 3));
    return ek_reshape(x, EK_SHAPE(samples, channels * plane.side[0].size * plane.side[1].size,
                                  window_count(&plane.side[0]) * window_count(&plane.side[1])));
}

ek_tensor *ek_f_fold_with(ek_fold_options options)
{
    ek_tensor *x = options.x;
    window_plane plane;
    if (!ek_floating("fold", "x", x) ||
        !window_read("fold", &options, (const int64_t[]){options.height, options.width}, &plane))
        return NULL;
    int64_t area = plane.side[0].size * plane.side[1].size;
    int64_t rows = window_count(&plane.side[0]), columns = window_count(&plane.side[1]);
    if (x->ndim != 3 || x->shape[1] % area != 0 || x->shape[2] != rows * columns)
        return EK_REFUSE(EK_E_SHAPE,
                         "fold: x has shape %s and must be (N, C * %lld, %lld): elements of a "
                         "window, and windows in %lld x %lld",
                         EK_SIZE_TEXT(x), (long long)area, (long long)(rows * columns),
                         (long long)options.height, (long long)options.width);
    x = ek_reshape(x, EK_SHAPE(x->shape[0], x->shape[1] / area, plane.side[0].size,
                               plane.side[1].size, rows, columns));
    x = ek_permute(x, EK_SHAPE(0, 1, 4, 5, 2, 3));
    x = window_sum(window_sum(x, &plane.side[1]), &plane.side[0]);
    for (int i = 0; i < 2; i++)
        if (plane.padding[i] > 0)
            x = ek_narrow(x, 2 + i, plane.padding[i], i ? options.width : options.height);
    return x;
}

/* ---- between channels and space ---- */

ek_tensor *ek_f_pixel_shuffle(ek_tensor *x, int factor)
{
    int64_t r = factor;
    if (!ek_given("pixel_shuffle", "x", x))
        return NULL;
    if (x->ndim < 3 || r < 1 || x->shape[x->ndim - 3] % (r * r) != 0)
        return EK_REFUSE(EK_E_SHAPE,
                         "pixel_shuffle: x of shape %s must be (..., C r^2, H, W) for the factor "
                         "r = %d, at least 1",
                         EK_SIZE_TEXT(x), factor);
    ek_shape shape = ek_tensor_shape(x);
    int64_t *plane = shape.dims + x->ndim - 3, samples = 1;
    for (int d = 0; d < x->ndim - 3; d++)
        samples *= x->shape[d];
    x = ek_reshape(x, EK_SHAPE(samples, plane[0] / (r * r), r, r, plane[1], plane[2]));
    x = ek_permute(x, EK_SHAPE(0, 1, 4, 2, 5, 3));
    plane[0] /= r * r;
    plane[1] *= r;
    plane[2] *= r;
    return ek_reshape(x, shape);
}

ek_tensor *ek_f_pixel_unshuffle(ek_tensor *x, int factor)
{
    int64_t r = factor;
    if (!ek_given("pixel_unshuffle", "x", x))
        return NULL;
    if (x->ndim < 3 || r < 1 || x->shape[x->ndim - 2] % r != 0 || x->shape[x->ndim - 1] % r != 0)
        return EK_REFUSE(EK_E_SHAPE,
                         "pixel_unshuffle: x of shape %s must be (..., C, H r, W r) for the factor "
                         "r = %d, at least 1",
                         EK_SIZE_TEXT(x), factor);
    ek_shape shape = ek_tensor_shape(x);
    int64_t *plane = shape.dims + x->ndim - 3, samples = 1;
    for (int d = 0; d < x->ndim - 3; d++)
        samples *= x->shape[d];
    x = ek_reshape(x, EK_SHAPE(samples, plane[0], plane[1] / r, r, plane[2] / r, r));
    x = ek_permute(x, EK_SHAPE(0, 1, 3, 5, 2, 4));
    plane[0] *= r * r;
    plane[1] /= r;
    plane[2] /= r;
    return ek_reshape(x, shape);
}

ek_tensor *ek_f_channel_shuffle(ek_tensor *x, int groups)
{
    if (!ek_given("channel_shuffle", "x", x))
        return NULL;
    if (x->ndim < 3 || groups < 1 || x->shape[1] % groups != 0)
        return EK_REFUSE(EK_E_SHAPE,
                         "channel_shuffle: x of shape %s must be (N, C, ...), and C a multiple of "
                         "%d groups",
                         EK_SIZE_TEXT(x), groups);
    ek_shape shape = ek_tensor_shape(x);
    int64_t rest = 1;
    for (int d = 2; d < x->ndim; d++)
        rest *= x->shape[d];
    x = ek_reshape(x, EK_SHAPE(shape.dims[0], groups, shape.dims[1] / groups, rest));
    return ek_reshape(ek_transpose(x, 1, 2), shape);
}
