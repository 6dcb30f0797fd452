/* conv_public.c: convolution and transposed convolution over one, two and three dimensions:
 * options, shape rules, and what calls the operations of conv.c. */
#include "core/keywords.h"
#include "ops/autocast.h"
#include "ops/conv.h"
#include "ops/ops.h"
#include "ops/spatial.h"

#define CONV(DIMS)                                                                   \
    {                                                                                \
        .name = "conv" #DIMS "d", .dims = DIMS,                                      \
        .forward = {.name = "conv" #DIMS "d", .backward = ek_conv_forward_backward}, \
        .input_gradient = {.name = "conv" #DIMS "d_input_gradient",                  \
                           .backward = ek_conv_input_gradient_backward},             \
        .weight_gradient =                                                           \
        {.name = "conv" #DIMS "d_weight_gradient",                                   \
         .backward = ek_conv_weight_gradient_backward }                              \
    }

/* Its forward is an input gradient, and the other way round. */
#define CONV_TRANSPOSE(DIMS)                                                  \
    {                                                                         \
        .name = "conv_transpose" #DIMS "d", .dims = DIMS, .transposed = true, \
        .forward = {.name = "conv_transpose" #DIMS "d_input_gradient",        \
                    .backward = ek_conv_forward_backward},                    \
        .input_gradient = {.name = "conv_transpose" #DIMS "d",                \
                           .backward = ek_conv_input_gradient_backward},      \
        .weight_gradient =                                                    \
        {.name = "conv_transpose" #DIMS "d_weight_gradient",                  \
         .backward = ek_conv_weight_gradient_backward }                       \
    }

static const ek_conv_family conv1d = CONV(1), conv2d = CONV(2), conv3d = CONV(3);
static const ek_conv_family conv_transpose1d = CONV_TRANSPOSE(1);
static const ek_conv_family conv_transpose2d = CONV_TRANSPOSE(2);
static const ek_conv_family conv_transpose3d = CONV_TRANSPOSE(3);

/* ---- options ---- */

static int read_params(const ek_conv_family *family, ek_conv_params *params,
                       const ek_conv_options *o, int64_t output_padding[3])
{
    const char *name = family->name;
    params->dims = family->dims;
    EK_TRY(ek_spatial_option(name, "stride", params->dims, o->strides, EK_GIVEN(o, stride, 3),
                             ek_spatial_ones, 1, params->stride));
    EK_TRY(ek_spatial_option(name, "padding", params->dims, o->paddings, o->padding,
                             ek_spatial_zeros, 0, params->padding));
    EK_TRY(ek_spatial_option(name, "dilation", params->dims, o->dilations, EK_GIVEN(o, dilation, 5),
                             ek_spatial_ones, 1, params->dilation));
    EK_TRY(ek_spatial_option(name, "output_padding", params->dims, o->output_paddings,
                             o->output_padding, ek_spatial_zeros, 0, output_padding));
    params->groups = ek_integer_or(EK_GIVEN(o, groups, 6), 1);
    if (params->groups < 1)
        return EK_FAIL(EK_E_INVALID, "%s: groups must be at least 1, got %lld", name,
                       (long long)params->groups);
    for (int i = 0; i < params->dims; i++) {
        if (output_padding[i] == 0)
            continue;
        if (!family->transposed)
            return EK_FAIL(EK_E_INVALID,
                           "%s: output_padding is for transposed convolution only, got %lld", name,
                           (long long)output_padding[i]);
        if (output_padding[i] >= params->stride[i] && output_padding[i] >= params->dilation[i])
            return EK_FAIL(
                EK_E_INVALID,
                "%s: output_padding must be smaller than the stride or the dilation, got "
                "output_padding %lld, stride %lld and dilation %lld",
                name, (long long)output_padding[i], (long long)params->stride[i],
                (long long)params->dilation[i]);
    }
    return 0;
}

/* ---- shapes ---- */

static int check_weight(const ek_conv_family *family, const ek_tensor *w)
{
    static const char *const windows[] = {"", "k", "kh, kw", "kd, kh, kw"};
    char text[200];
    if (w->ndim != family->dims + 2)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: expected a weight of %d dimensions (%s / groups, %s), got %s",
                       family->name, family->dims + 2, family->transposed ? "C, O" : "O, C",
                       windows[family->dims], ek_tensor_text(w, text));
    for (int i = 1; i < w->ndim; i++)
        if (w->shape[i] < 1)
            return EK_FAIL(EK_E_SHAPE, "%s: the weight must have no dimension of size 0, got %s",
                           family->name, ek_tensor_text(w, text));
    return 0;
}

static int check_channels(const ek_conv_family *family, const ek_tensor *x, const ek_tensor *w,
                          int64_t groups)
{
    char x_text[200], w_text[200];
    int64_t channels = family->transposed ? w->shape[0] : w->shape[1] * groups;
    if (x->shape[1] != channels)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: with groups %lld, weight %s expects x to have %lld channels, got %s",
                       family->name, (long long)groups, ek_tensor_text(w, w_text),
                       (long long)channels, ek_tensor_text(x, x_text));
    if (w->shape[0] < 1 || w->shape[0] % groups != 0)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: the weight's %s channels must be a positive multiple of groups %lld, "
                       "got %s",
                       family->name, family->transposed ? "input" : "output", (long long)groups,
                       ek_tensor_text(w, w_text));
    return 0;
}

/* Sizes that products of sizes and options can't overflow with. */
static int check_sizes(const ek_conv_family *family, const ek_tensor *x, const ek_tensor *w)
{
    if (w->shape[0] > INT32_MAX || w->shape[1] > INT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "%s: a weight of %lld x %lld channels is too large",
                       family->name, (long long)w->shape[0], (long long)w->shape[1]);
    for (int i = 2; i < x->ndim; i++)
        if (x->shape[i] > INT32_MAX || w->shape[i] > INT32_MAX)
            return EK_FAIL(EK_E_SHAPE, "%s: a %s of %lld is too large", family->name,
                           ek_spatial_direction(family->dims, i - 2),
                           (long long)(x->shape[i] > INT32_MAX ? x->shape[i] : w->shape[i]));
    return 0;
}

/* y's size from x's. */
static int output_size(const ek_conv_attributes *a, int i, int64_t size, int64_t kernel,
                       int64_t *result)
{
    const ek_conv_params *params = &a->params;
    int64_t padded = size + 2 * params->padding[i];
    int64_t extent = params->dilation[i] * (kernel - 1) + 1;
    if (padded < extent)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: a kernel of size %lld with dilation %lld does not fit a padded %s of "
                       "%lld",
                       a->family->name, (long long)kernel, (long long)params->dilation[i],
                       ek_spatial_direction(params->dims, i), (long long)padded);
    *result = (padded - extent) / params->stride[i] + 1;
    return 0;
}

/* The other way round. */
static int transposed_size(const ek_conv_attributes *a, int i, int64_t size, int64_t kernel,
                           int64_t output_padding, int64_t *result)
{
    const ek_conv_params *params = &a->params;
    const char *direction = ek_spatial_direction(params->dims, i);
    if (size < 1)
        return EK_FAIL(EK_E_SHAPE, "%s: x has a %s of 0", a->family->name, direction);
    int64_t full =
        (size - 1) * params->stride[i] + params->dilation[i] * (kernel - 1) + output_padding + 1;
    *result = full - 2 * params->padding[i];
    if (*result < 1)
        return EK_FAIL(EK_E_SHAPE, "%s: padding %lld on both sides leaves nothing of a %s of %lld",
                       a->family->name, (long long)params->padding[i], direction, (long long)full);
    return 0;
}

/* Fills x, w and y; x and y change places for a transposed convolution. */
static int read_shapes(ek_conv_attributes *a, const ek_tensor *x, const ek_tensor *w,
                       const int64_t output_padding[3])
{
    EK_TRY(ek_spatial_check(a->family->name, x, a->family->dims));
    EK_TRY(check_weight(a->family, w));
    EK_TRY(check_sizes(a->family, x, w));
    EK_TRY(check_channels(a->family, x, w, a->params.groups));
    a->w = ek_tensor_shape(w);
    a->x = a->y = ek_tensor_shape(x);
    bool transposed = a->family->transposed;
    ek_shape *from = transposed ? &a->y : &a->x, *to = transposed ? &a->x : &a->y;
    to->dims[1] = transposed ? w->shape[1] * a->params.groups : w->shape[0];
    for (int i = 0; i < a->params.dims; i++) {
        int64_t size = from->dims[2 + i], kernel = a->w.dims[2 + i], *result = &to->dims[2 + i];
        EK_TRY(transposed ? transposed_size(a, i, size, kernel, output_padding[i], result)
                          : output_size(a, i, size, kernel, result));
    }
    return 0;
}

/* ---- calls ---- */

/* From one dimension to two. */
static void lift(ek_conv_attributes *a)
{
    ek_spatial_lift(a->params.stride, 1);
    ek_spatial_lift(a->params.padding, 0);
    ek_spatial_lift(a->params.dilation, 1);
    a->params.dims = 2;
    ek_shape *const shapes[] = {&a->x, &a->w, &a->y};
    for (int i = 0; i < 3; i++) {
        ek_spatial_lift(shapes[i]->dims + 2, 1);
        shapes[i]->ndim = 4;
    }
}

static ek_tensor *run(ek_conv_attributes *a, ek_tensor *x, ek_tensor *w, ek_tensor *bias)
{
    ek_scope scope = ek_scope_begin();
    bool lifted = a->params.dims == 1;
    if (lifted) {
        lift(a);
        x = ek_unsqueeze(x, 2);
        w = ek_unsqueeze(w, 2);
    }
    ek_tensor *y = a->family->transposed ? ek_conv_input_gradient(x, w, bias, a)
                                         : ek_conv_forward(x, w, bias, a);
    return ek_scope_return(&scope, lifted ? ek_squeeze(y, 2) : y);
}

static ek_tensor *checked(const ek_conv_family *family, const ek_conv_options *options)
{
    const char *name = family->name;
    ek_tensor *x = options->x, *w = options->weight, *bias = options->bias;
    if (!ek_given(name, "x", x) || !ek_given(name, "weight", w) || !ek_optional(bias) ||
        !ek_alike(name, x, w) || (bias && !ek_alike(name, x, bias)))
        return NULL;
    ek_conv_attributes attributes = {.family = family};
    int64_t output_padding[3];
    if (read_params(family, &attributes.params, options, output_padding) < 0 ||
        read_shapes(&attributes, x, w, output_padding) < 0)
        return NULL;
    int64_t outputs = family->transposed ? attributes.x.dims[1] : attributes.y.dims[1];
    if (bias && !ek_of_shape(name, "bias", bias, &EK_SHAPE(outputs)))
        return NULL;
    return run(&attributes, x, w, bias);
}

static ek_tensor *convolve(const ek_conv_family *family, ek_conv_options *options)
{
    ek_scope scope = ek_scope_begin();
    options->x = ek_autocast_image(options->x);
    options->weight = ek_autocast_narrow(options->weight);
    options->bias = ek_autocast_narrow(options->bias);
    return ek_scope_return(&scope, checked(family, options));
}

ek_tensor *ek_f_conv1d_with(ek_conv_options options)
{
    return convolve(&conv1d, &options);
}

ek_tensor *ek_f_conv2d_with(ek_conv_options options)
{
    return convolve(&conv2d, &options);
}

ek_tensor *ek_f_conv3d_with(ek_conv_options options)
{
    return convolve(&conv3d, &options);
}

ek_tensor *ek_f_conv_transpose1d_with(ek_conv_options options)
{
    return convolve(&conv_transpose1d, &options);
}

ek_tensor *ek_f_conv_transpose2d_with(ek_conv_options options)
{
    return convolve(&conv_transpose2d, &options);
}

ek_tensor *ek_f_conv_transpose3d_with(ek_conv_options options)
{
    return convolve(&conv_transpose3d, &options);
}
