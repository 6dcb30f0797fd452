/* pool.c: pooling, upsampling and flattening: modules of geometry, without parameters. */
#include "nn/nn.h"

/* ---- windows ---- */

typedef struct pool2d {
    ek_module module;
    ek_pool_module_options options;
} pool2d;

static ek_pool_options functional(const pool2d *self, ek_tensor *x)
{
    const ek_pool_module_options *o = &self->options;
    return (ek_pool_options){.x = x,
                             .kernel = o->kernel,
                             .stride = o->stride,
                             .padding = o->padding,
                             .dilation = o->dilation,
                             .ceil_mode = o->ceil_mode,
                             .count_include_pad = o->count_include_pad};
}

static ek_value max_pool2d_forward(ek_module *module, const ek_args *args)
{
    ek_pool_options options = functional((pool2d *)module, ek_only_input(module, args));
    return ek_value_of_tensor(ek_f_max_pool2d_with(options));
}

static ek_value avg_pool2d_forward(ek_module *module, const ek_args *args)
{
    ek_pool_options options = functional((pool2d *)module, ek_only_input(module, args));
    return ek_value_of_tensor(ek_f_avg_pool2d_with(options));
}

static const ek_module_type max_pool2d_type = {.name = "max_pool2d",
                                               .size = sizeof(pool2d),
                                               .forward = max_pool2d_forward};
static const ek_module_type avg_pool2d_type = {.name = "avg_pool2d",
                                               .size = sizeof(pool2d),
                                               .forward = avg_pool2d_forward};

static ek_module *pool2d_new(const ek_module_type *type, ek_pool_module_options options)
{
    options.padding = ek_option_int(options.padding, 0);
    if (options.kernel < 1 || options.stride < 0 || options.dilation < 0) {
        EK_FAIL(EK_E_INVALID, "%s: kernel %d, stride %d and dilation %d have to be at least 1",
                type->name, options.kernel, options.stride, options.dilation);
        return NULL;
    }
    if (options.padding < 0 || options.padding > options.kernel / 2) {
        EK_FAIL(EK_E_INVALID, "%s: padding %d has to be between 0 and half of the kernel, %d",
                type->name, options.padding, options.kernel / 2);
        return NULL;
    }
    pool2d *self = (pool2d *)ek_module_new(type);
    if (self)
        self->options = options;
    return (ek_module *)self;
}

ek_module *ek_max_pool2d_with(ek_pool_module_options options)
{
    if (options.count_include_pad != EK_DEFAULT) {
        EK_FAIL(EK_E_INVALID, "max_pool2d: count_include_pad is for avg_pool2d only");
        return NULL;
    }
    return pool2d_new(&max_pool2d_type, options);
}

ek_module *ek_avg_pool2d_with(ek_pool_module_options options)
{
    if (options.dilation > 1) {
        EK_FAIL(EK_E_INVALID, "avg_pool2d: dilation is for max_pool2d only");
        return NULL;
    }
    return pool2d_new(&avg_pool2d_type, options);
}

/* ---- to a given size ---- */

typedef struct resize {
    ek_module module;
    int64_t height, width;
    ek_upsample_mode mode;
    bool align_corners;
} resize;

static ek_value adaptive_avg_pool2d_forward(ek_module *module, const ek_args *args)
{
    const resize *self = (resize *)module;
    ek_tensor *x = ek_only_input(module, args);
    return ek_value_of_tensor(ek_f_adaptive_avg_pool2d(x, self->height, self->width));
}

static ek_value upsample_forward(ek_module *module, const ek_args *args)
{
    const resize *self = (resize *)module;
    ek_tensor *x = ek_only_input(module, args);
    return ek_value_of_tensor(
        ek_f_upsample(x, self->height, self->width, self->mode, self->align_corners));
}

static const ek_module_type adaptive_avg_pool2d_type = {.name = "adaptive_avg_pool2d",
                                                        .size = sizeof(resize),
                                                        .forward = adaptive_avg_pool2d_forward};
static const ek_module_type upsample_type = {.name = "upsample",
                                             .size = sizeof(resize),
                                             .forward = upsample_forward};

static ek_module *resize_new(const ek_module_type *type, int64_t height, int64_t width)
{
    if (height < 1 || width < 1) {
        EK_FAIL(EK_E_INVALID, "%s: height %lld and width %lld have to be at least 1", type->name,
                (long long)height, (long long)width);
        return NULL;
    }
    resize *self = (resize *)ek_module_new(type);
    if (self) {
        self->height = height;
        self->width = width;
    }
    return (ek_module *)self;
}

ek_module *ek_adaptive_avg_pool2d(int64_t height, int64_t width)
{
    return resize_new(&adaptive_avg_pool2d_type, height, width);
}

ek_module *ek_upsample(int64_t height, int64_t width, ek_upsample_mode mode, bool align_corners)
{
    if (mode != EK_NEAREST && mode != EK_BILINEAR) {
        EK_FAIL(EK_E_INVALID, "upsample: mode %d is neither EK_NEAREST nor EK_BILINEAR", (int)mode);
        return NULL;
    }
    if (mode == EK_NEAREST && align_corners) {
        EK_FAIL(EK_E_INVALID, "upsample: align_corners is for EK_BILINEAR only");
        return NULL;
    }
    resize *self = (resize *)resize_new(&upsample_type, height, width);
    if (self) {
        self->mode = mode;
        self->align_corners = align_corners;
    }
    return (ek_module *)self;
}

/* ---- flatten ---- */

typedef struct flatten {
    ek_module module;
    int start_dim, end_dim;
} flatten;

static ek_value flatten_forward(ek_module *module, const ek_args *args)
{
    const flatten *self = (flatten *)module;
    ek_tensor *x = ek_only_input(module, args);
    return ek_value_of_tensor(ek_flatten(x, self->start_dim, self->end_dim));
}

static const ek_module_type flatten_type = {.name = "flatten",
                                            .size = sizeof(flatten),
                                            .forward = flatten_forward};

ek_module *ek_flatten_module(int start_dim, int end_dim)
{
    flatten *self = (flatten *)ek_module_new(&flatten_type);
    if (self) {
        self->start_dim = start_dim;
        self->end_dim = end_dim;
    }
    return (ek_module *)self;
}
