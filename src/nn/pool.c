/* pool.c: pooling and flattening: modules without parameters. */
#include "nn/nn.h"

#include <string.h>

/* ---- windows ---- */

/* The differences between the constructors of pooling modules. */
typedef struct pool_family {
    ek_module_type type;
    ek_tensor *(*maximum)(ek_max_pool_options options); /* NULL for averages */
    ek_tensor *(*average)(ek_avg_pool_options options);
    int dims;
} pool_family;

typedef struct pool {
    ek_module module;
    const pool_family *family;
    ek_max_pool_options options; /* all options but x */
    bool count_include_pad, return_indices;
} pool;

static ek_tensor *pool_average(const pool *self, const ek_max_pool_options *o)
{
    ek_avg_pool_options options = {.x = o->x,
                                   .ceil_mode = o->ceil_mode,
                                   .count_include_pad = self->count_include_pad};
    memcpy(options.kernels, o->kernels, sizeof options.kernels);
    memcpy(options.strides, o->strides, sizeof options.strides);
    memcpy(options.paddings, o->paddings, sizeof options.paddings);
    return self->family->average(options);
}

static ek_value pool_forward(ek_module *module, const ek_args *args)
{
    const pool *self = (pool *)module;
    ek_max_pool_options options = self->options;
    ek_tensor *indices = NULL;
    options.x = ek_only_input(module, args);
    options.indices = self->return_indices ? &indices : NULL;
    ek_tensor *y =
        self->family->maximum ? self->family->maximum(options) : pool_average(self, &options);
    return y && self->return_indices ? EK_LIST(y, indices) : ek_value_of_tensor(y);
}

bool ek_module_takes_maxima(const ek_module *module)
{
    const pool *self = (const pool *)module;
    return module->type->forward == pool_forward && self->family->maximum && !self->return_indices;
}

static int pool_read_options(const pool_family *family, const ek_max_pool_module_options *from,
                             ek_max_pool_options *to)
{
    const char *name = family->type.name;
    const int dims = family->dims;
    int kernel;
    EK_TRY(kernel = ek_kernel_option(name, from->kernel, from->kernel_size));
    EK_TRY(ek_window_option(name, "kernel", dims, kernel, from->kernels, NULL, 1, to->kernels));
    EK_TRY(ek_window_option(name, "stride", dims, from->stride, from->strides, to->kernels, 1,
                            to->strides));
    EK_TRY(ek_window_option(name, "padding", dims, from->padding, from->paddings, NULL, 0,
                            to->paddings));
    EK_TRY(ek_window_option(name, "dilation", dims, from->dilation, from->dilations, NULL, 1,
                            to->dilations));
    for (int i = 0; i < dims; i++)
        if (to->paddings[i] > to->kernels[i] / 2)
            return EK_FAIL(EK_E_INVALID, "%s: padding %d has to be at most half of the kernel, %d",
                           name, to->paddings[i], to->kernels[i]);
    to->ceil_mode = from->ceil_mode;
    return 0;
}

static ek_module *pool_new(const pool_family *family, const ek_max_pool_module_options *options,
                           bool count_include_pad)
{
    ek_max_pool_options settings = {.kernel = 0};
    if (pool_read_options(family, options, &settings) < 0)
        return NULL;
    pool *self = (pool *)ek_module_new(&family->type);
    if (self) {
        self->family = family;
        self->options = settings;
        self->count_include_pad = count_include_pad;
        self->return_indices = options->return_indices;
    }
    return (ek_module *)self;
}

/* Returns the options of average pooling as those of max pooling. */
static ek_max_pool_module_options pool_of_windows(const ek_avg_pool_module_options *o)
{
    ek_max_pool_module_options windows = {.kernel = o->kernel,
                                          .stride = o->stride,
                                          .padding = o->padding,
                                          .dilation = 1,
                                          .ceil_mode = o->ceil_mode,
                                          .kernel_size = o->kernel_size};
    memcpy(windows.kernels, o->kernels, sizeof windows.kernels);
    memcpy(windows.strides, o->strides, sizeof windows.strides);
    memcpy(windows.paddings, o->paddings, sizeof windows.paddings);
    return windows;
}

/* The families and constructors. */
#define POOL_FAMILY(NAME, DIMS, FUNCTION)                                 \
    static const pool_family family = {.type = {.name = #NAME,            \
                                                .size = sizeof(pool),     \
                                                .forward = pool_forward}, \
                                       .FUNCTION = ek_f_##NAME##_with,    \
                                       .dims = DIMS}
#define POOLS(DIMS)                                                           \
    ek_module *ek_max_pool##DIMS##d_with(ek_max_pool_module_options options)  \
    {                                                                         \
        POOL_FAMILY(max_pool##DIMS##d, DIMS, maximum);                        \
        return pool_new(&family, &options, false);                            \
    }                                                                         \
    ek_module *ek_avg_pool##DIMS##d_with(ek_avg_pool_module_options options)  \
    {                                                                         \
        POOL_FAMILY(avg_pool##DIMS##d, DIMS, average);                        \
        const ek_max_pool_module_options windows = pool_of_windows(&options); \
        return pool_new(&family, &windows, options.count_include_pad);        \
    }

POOLS(1)
POOLS(2)
POOLS(3)

/* ---- to a given size ---- */

typedef struct resize {
    ek_module module;
    int dims;
    int64_t size[3];
} resize;

static ek_value adaptive_forward(ek_module *module, const ek_args *args)
{
    const resize *self = (resize *)module;
    const int64_t *size = self->size;
    ek_tensor *x = ek_only_input(module, args);
    return ek_value_of_tensor(self->dims == 1 ? ek_f_adaptive_avg_pool1d(x, size[0])
                              : self->dims == 2
                                  ? ek_f_adaptive_avg_pool2d(x, size[0], size[1])
                                  : ek_f_adaptive_avg_pool3d(x, size[0], size[1], size[2]));
}

#define RESIZE(NAME, FORWARD)                                          \
    static const ek_module_type NAME##_type = {.name = #NAME,          \
                                               .size = sizeof(resize), \
                                               .forward = FORWARD}

RESIZE(adaptive_avg_pool1d, adaptive_forward);
RESIZE(adaptive_avg_pool2d, adaptive_forward);
RESIZE(adaptive_avg_pool3d, adaptive_forward);

static ek_module *resize_new(const ek_module_type *type, int dims, const int64_t *size)
{
    static const char *const directions[] = {"depth", "height", "width"};
    for (int i = 0; i < dims; i++)
        if (size[i] < 1) {
            EK_FAIL(EK_E_INVALID, "%s: %s %lld has to be at least 1", type->name,
                    dims == 1 ? "length" : directions[3 - dims + i], (long long)size[i]);
            return NULL;
        }
    resize *self = (resize *)ek_module_new(type);
    if (self) {
        self->dims = dims;
        memcpy(self->size, size, (size_t)dims * sizeof *size);
    }
    return (ek_module *)self;
}

ek_module *ek_adaptive_avg_pool1d(int64_t length)
{
    return resize_new(&adaptive_avg_pool1d_type, 1, &length);
}

ek_module *ek_adaptive_avg_pool2d(int64_t height, int64_t width)
{
    return resize_new(&adaptive_avg_pool2d_type, 2, (const int64_t[]){height, width});
}

ek_module *ek_adaptive_avg_pool3d(int64_t depth, int64_t height, int64_t width)
{
    return resize_new(&adaptive_avg_pool3d_type, 3, (const int64_t[]){depth, height, width});
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
    return ek_value_of_tensor(ek_f_flatten(x, self->start_dim, self->end_dim));
}

static const ek_module_type flatten_type = {.name = "flatten",
                                            .size = sizeof(flatten),
                                            .forward = flatten_forward};

ek_module *ek_flatten(int start_dim, int end_dim)
{
    flatten *self = (flatten *)ek_module_new(&flatten_type);
    if (self) {
        self->start_dim = start_dim;
        self->end_dim = end_dim;
    }
    return (ek_module *)self;
}

typedef struct unflatten {
    ek_module module;
    int dim;
    ek_shape sizes;
} unflatten;

static ek_value unflatten_forward(ek_module *module, const ek_args *args)
{
    const unflatten *self = (unflatten *)module;
    ek_tensor *x = ek_only_input(module, args);
    return x ? ek_value_of_tensor(ek_f_unflatten(x, self->dim, self->sizes)) : ek_value_error();
}

static const ek_module_type unflatten_type = {.name = "unflatten",
                                              .size = sizeof(unflatten),
                                              .forward = unflatten_forward};

ek_module *ek_unflatten(int dim, ek_shape sizes)
{
    int open = 0;
    bool good = sizes.ndim >= 1 && sizes.ndim <= EK_MAX_DIMS;
    for (int i = 0; good && i < sizes.ndim; i++) {
        open += sizes.dims[i] == -1;
        good = sizes.dims[i] >= -1;
    }
    if (!good || open > 1) {
        EK_FAIL(EK_E_INVALID,
                "unflatten: sizes need 1 to %d dimensions, each 0 or more, and one at "
                "most may be -1",
                EK_MAX_DIMS);
        return NULL;
    }
    unflatten *self = (unflatten *)ek_module_new(&unflatten_type);
    if (self) {
        self->dim = dim;
        self->sizes = sizes;
    }
    return (ek_module *)self;
}
