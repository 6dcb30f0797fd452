/* pool_composed.c: adaptive max pooling, the reverse of max pooling, and LP pooling as modules. */
#include "core/tensor.h"
#include "nn/nn.h"
#include "ops/spatial.h"

/* ---- adaptive maxima ---- */

typedef struct adaptive_max {
    ek_module module;
    int64_t size[3];
    bool return_indices;
} adaptive_max;

/* CALL is of x, size and indices. */
#define ADAPTIVE_MAX(NAME, CALL)                                                   \
    static ek_value NAME##_forward(ek_module *module, const ek_args *args)         \
    {                                                                              \
        const adaptive_max *self = (const adaptive_max *)module;                   \
        const int64_t *size = self->size;                                          \
        ek_tensor *index = NULL, **indices = self->return_indices ? &index : NULL; \
        ek_tensor *x = ek_only_input(module, args), *y = CALL;                     \
        return y && indices ? EK_LIST(y, index) : ek_value_of_tensor(y);           \
    }                                                                              \
    static const ek_module_type NAME##_type = {.name = #NAME,                      \
                                               .size = sizeof(adaptive_max),       \
                                               .forward = NAME##_forward};

ADAPTIVE_MAX(adaptive_max_pool1d, ek_f_adaptive_max_pool1d(x, size[0], indices))
ADAPTIVE_MAX(adaptive_max_pool2d, ek_f_adaptive_max_pool2d(x, size[0], size[1], indices))
ADAPTIVE_MAX(adaptive_max_pool3d, ek_f_adaptive_max_pool3d(x, size[0], size[1], size[2], indices))

static ek_module *adaptive_max_new(const ek_module_type *type, int dims, const int64_t *size,
                                   bool return_indices)
{
    if (ek_spatial_least(type->name, "the output", dims, size, 1) < 0)
        return NULL;
    adaptive_max *self = (adaptive_max *)ek_module_new(type);
    for (int i = 0; self && i < dims; i++)
        self->size[i] = size[i];
    if (self)
        self->return_indices = return_indices;
    return (ek_module *)self;
}

ek_module *ek_adaptive_max_pool1d(int64_t length, bool return_indices)
{
    return adaptive_max_new(&adaptive_max_pool1d_type, 1, &length, return_indices);
}

ek_module *ek_adaptive_max_pool2d(int64_t height, int64_t width, bool return_indices)
{
    return adaptive_max_new(&adaptive_max_pool2d_type, 2, (const int64_t[]){height, width},
                            return_indices);
}

ek_module *ek_adaptive_max_pool3d(int64_t depth, int64_t height, int64_t width, bool return_indices)
{
    return adaptive_max_new(&adaptive_max_pool3d_type, 3, (const int64_t[]){depth, height, width},
                            return_indices);
}

/* ---- the reverse of max pooling ---- */

typedef struct unpool_family {
    ek_module_type type;
    ek_tensor *(*function)(ek_unpool_options options);
    int dims;
} unpool_family;

typedef struct unpool {
    ek_module module;
    const unpool_family *family;
    ek_unpool_options options; /* all but the tensors and sizes */
} unpool;

/* Reads output_size: a list with an integer for each direction, or for each dimension of the
 * result. */
static int unpool_read_sizes(const unpool_family *family, ek_value size, int64_t sizes[3])
{
    const int given = size.kind == EK_VALUE_LIST ? ek_value_length(size) : 0;
    const int skipped = given - family->dims;
    bool good = skipped >= 0 && skipped <= 2;
    for (int i = 0; good && i < family->dims; i++) {
        ek_value item = ek_value_at(size, skipped + i);
        good = item.kind == EK_VALUE_INT && item.as.integer > 0;
        sizes[i] = good ? item.as.integer : 0;
    }
    return good ? 0
                : EK_FAIL(EK_E_INVALID,
                          "output_size must be a list of %d positive integers, or of one for each "
                          "dimension of the result",
                          family->dims);
}

/* The inputs are x and indices, and output_size as a third input or a keyword. */
static ek_value unpool_forward(ek_module *module, const ek_args *args)
{
    const unpool *self = (const unpool *)module;
    ek_unpool_options options = self->options;
    ek_value size = ek_value_get(args->keywords, "output_size");
    const bool named = size.kind != EK_VALUE_NONE;
    const ek_args positional = {args->inputs, args->count < 3 || named ? args->count : 2,
                                ek_value_none()};
    if (ek_value_length(args->keywords) > named) {
        EK_FAIL(EK_E_INVALID, "%s takes no keyword argument but output_size", module->type->name);
        return ek_value_error();
    }
    if (ek_check_inputs(module, &positional, 2) < 0)
        return ek_value_error();
    if (args->count == 3)
        size = args->inputs[2];
    if (size.kind != EK_VALUE_NONE && unpool_read_sizes(self->family, size, options.sizes) < 0)
        return ek_value_error();
    options.x = ek_arg_tensor(args, 0);
    options.indices = ek_arg_tensor(args, 1);
    return options.x && options.indices ? ek_value_of_tensor(self->family->function(options))
                                        : ek_value_error();
}

static ek_module *unpool_new(const unpool_family *family, const ek_unpool_module_options *from)
{
    const char *name = family->type.name;
    ek_unpool_options to = {.kernel = 0};
    if (ek_window_option(name, "kernel", family->dims, from->kernel, from->kernels, NULL, 1,
                         to.kernels) < 0 ||
        ek_window_option(name, "stride", family->dims, from->stride, from->strides, to.kernels, 1,
                         to.strides) < 0 ||
        ek_window_option(name, "padding", family->dims, from->padding, from->paddings, NULL, 0,
                         to.paddings) < 0)
        return NULL;
    unpool *self = (unpool *)ek_module_new(&family->type);
    if (self) {
        self->family = family;
        self->options = to;
    }
    return (ek_module *)self;
}

/* ---- powers ---- */

typedef struct lp_family {
    ek_module_type type;
    ek_tensor *(*function)(ek_lp_pool_options options);
    int dims;
} lp_family;

typedef struct lp_pool {
    ek_module module;
    const lp_family *family;
    ek_lp_pool_options options; /* all but x */
} lp_pool;

static ek_value lp_forward(ek_module *module, const ek_args *args)
{
    const lp_pool *self = (const lp_pool *)module;
    ek_lp_pool_options options = self->options;
    options.x = ek_only_input(module, args);
    return ek_value_of_tensor(options.x ? self->family->function(options) : NULL);
}

static ek_module *lp_new(const lp_family *family, const ek_lp_pool_module_options *from)
{
    const char *name = family->type.name;
    ek_lp_pool_options to = {.norm_type = from->norm_type, .ceil_mode = from->ceil_mode};
    if (ek_window_option(name, "kernel", family->dims, from->kernel, from->kernels, NULL, 1,
                         to.kernels) < 0 ||
        ek_window_option(name, "stride", family->dims, from->stride, from->strides, to.kernels, 1,
                         to.strides) < 0)
        return NULL;
    if (!(from->norm_type - from->norm_type == 0) || from->norm_type == 0) {
        EK_FAIL(EK_E_INVALID, "%s: norm_type is %g; it must be a number other than 0", name,
                from->norm_type);
        return NULL;
    }
    lp_pool *self = (lp_pool *)ek_module_new(&family->type);
    if (self) {
        self->family = family;
        self->options = to;
    }
    return (ek_module *)self;
}

/* The families and constructors. */
#define UNPOOLS(DIMS)                                                                   \
    ek_module *ek_max_unpool##DIMS##d_with(ek_unpool_module_options options)            \
    {                                                                                   \
        static const unpool_family family = {.type = {.name = "max_unpool" #DIMS "d",   \
                                                      .size = sizeof(unpool),           \
                                                      .forward = unpool_forward},       \
                                             .function = ek_f_max_unpool##DIMS##d_with, \
                                             .dims = DIMS};                             \
        return unpool_new(&family, &options);                                           \
    }                                                                                   \
    ek_module *ek_lp_pool##DIMS##d_with(ek_lp_pool_module_options options)              \
    {                                                                                   \
        static const lp_family family = {.type = {.name = "lp_pool" #DIMS "d",          \
                                                  .size = sizeof(lp_pool),              \
                                                  .forward = lp_forward},               \
                                         .function = ek_f_lp_pool##DIMS##d_with,        \
                                         .dims = DIMS};                                 \
        return lp_new(&family, &options);                                               \
    }

UNPOOLS(1)
UNPOOLS(2)
UNPOOLS(3)
