/* resnet.c: residual networks (He et al. 2016), with torchvision's names and order of construction,
 * on which initial values depend. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "evenkeel/init.h"
#include "evenkeel/models.h"
#include "nn/nn.h"

enum { RESNET_STAGES = 4, RESNET_MOST_BLOCKS = 36, RESNET_WIDTH = 64, RESNET_MOST = 1 << 20 };

typedef struct resnet_depth {
    const char *name;
    int blocks[RESNET_STAGES];
    bool bottlenecks;
} resnet_depth;

/* ---- blocks: basic ones have two convolutions, bottlenecks three ---- */

typedef struct resnet_block {
    ek_module module;
    ek_module *convs[3], *norms[3];
    ek_module *downsample; /* a 1 x 1 convolution and its norm if sizes change, else NULL */
    int count;
} resnet_block;

/* Applies a convolution and its norm, and a ReLU in the same pass if `relu`. */
static ek_tensor *resnet_apply(ek_module *conv, ek_module *norm, ek_tensor *x, bool relu)
{
    ek_scope scope = ek_scope_begin();
    ek_value y = ek_value_of_tensor(ek_apply(conv, x));
    const ek_args input = {&y, 1, ek_value_none()};
    ek_forward_function *fused = relu ? ek_batch_norm_with_relu(norm) : NULL;
    ek_tensor *z = ek_value_tensor(fused ? ek_module_call(norm, &input, fused)
                                         : ek_module_forward(norm, &input));
    return ek_scope_return(&scope, relu && !fused ? ek_f_relu(z) : z);
}

static ek_value resnet_block_forward(ek_module *module, const ek_args *args)
{
    resnet_block *self = (resnet_block *)module;
    ek_tensor *x = ek_only_input(module, args), *y = x;
    for (int i = 0; y && i < self->count; i++)
        y = resnet_apply(self->convs[i], self->norms[i], y, i + 1 < self->count);
    ek_tensor *shortcut = y && self->downsample ? ek_apply(self->downsample, x) : x;
    return ek_value_of_tensor(ek_f_relu(ek_add(y, shortcut)));
}

static const ek_module_type basic_block_type = {.name = "basic_block",
                                                .size = sizeof(resnet_block),
                                                .forward = resnet_block_forward};
static const ek_module_type bottleneck_type = {.name = "bottleneck",
                                               .size = sizeof(resnet_block),
                                               .forward = resnet_block_forward};

/* Makes a convolution without bias: the norm that follows subtracts the mean, and a bias with
 * it. */
static ek_module *resnet_conv(int64_t in, int64_t out, int kernel, int stride, int64_t groups)
{
    return ek_conv2d(in, out, kernel, .stride = stride, .padding = kernel / 2,
                     .groups = (int)groups, .bias = false);
}

/* A network under construction. */
typedef struct resnet_plan {
    const resnet_depth *depth;
    int64_t channels, classes, groups, width_per_group;
    int last_stride;
    bool zero_init_residual;
} resnet_plan;

/* Channels that a block of this width gives. */
static int64_t resnet_out(const resnet_plan *plan, int64_t width)
{
    return plan->depth->bottlenecks ? 4 * width : width;
}

/* Makes a block. `downsample` is made before the block, as in torchvision. */
static ek_module *resnet_block_new(const resnet_plan *plan, int64_t in, int64_t width, int stride,
                                   ek_module *downsample)
{
    static const char *const convs[] = {"conv1", "conv2", "conv3"};
    static const char *const norms[] = {"bn1", "bn2", "bn3"};
    bool bottleneck = plan->depth->bottlenecks;
    resnet_block *self =
        (resnet_block *)ek_module_new(bottleneck ? &bottleneck_type : &basic_block_type);
    if (!self) {
        ek_module_free(downsample);
        return NULL;
    }
    self->count = bottleneck ? 3 : 2;
    int64_t inner =
        bottleneck ? width * plan->width_per_group / RESNET_WIDTH * plan->groups : width;
    for (int i = 0; i < self->count; i++) {
        int64_t from = i == 0 ? in : inner;
        int64_t to = i + 1 < self->count ? inner : resnet_out(plan, width);
        bool wide = !bottleneck || i == 1; /* 3 x 3, and strided */
        ek_register_module(&self->module, convs[i], &self->convs[i],
                           resnet_conv(from, to, wide ? 3 : 1,
                                       (bottleneck ? i == 1 : i == 0) ? stride : 1,
                                       bottleneck && i == 1 ? plan->groups : 1));
        ek_register_module(&self->module, norms[i], &self->norms[i], ek_batch_norm2d(to));
    }
    if (downsample)
        ek_register_module(&self->module, "downsample", &self->downsample, downsample);
    return ek_module_finish(&self->module);
}

/* ---- the network ---- */

static ek_module *resnet_stage(const resnet_plan *plan, int stage)
{
    ek_module *blocks[RESNET_MOST_BLOCKS];
    const int64_t width = (int64_t)RESNET_WIDTH << stage, out = resnet_out(plan, width);
    int64_t in = stage == 0 ? RESNET_WIDTH : resnet_out(plan, width / 2);
    int stride = stage == 0 ? 1 : stage + 1 == RESNET_STAGES ? plan->last_stride : 2;
    for (int i = 0; i < plan->depth->blocks[stage]; i++, in = out, stride = 1) {
        ek_module *downsample = NULL;
        bool changes = in != out || stride > 1;
        if (changes) {
            downsample = ek_sequential(resnet_conv(in, out, 1, stride, 1), ek_batch_norm2d(out));
        }
        blocks[i] =
            changes && !downsample ? NULL : resnet_block_new(plan, in, width, stride, downsample);
    }
    return ek_sequential_of(blocks, plan->depth->blocks[stage]);
}

/* Gives convolutions torchvision's initial values: normal, by fan out. */
static int resnet_init(const char *path, ek_tensor *tensor, void *user)
{
    (void)path;
    (void)user;
    const ek_shape s = ek_tensor_shape(tensor);
    if (s.ndim != 4)
        return 0;
    return ek_init_normal(tensor, 0, sqrt(2.0) / sqrt((double)(s.dims[0] * s.dims[2] * s.dims[3])));
}

/* Sets the weight of each block's last norm to 0, so that blocks begin as the identity. */
static int resnet_init_residual(const char *path, ek_tensor *tensor, void *last)
{
    size_t length = strlen(path), end = strlen(last);
    return length >= end && strcmp(path + length - end, last) == 0 ? ek_init_constant(tensor, 0)
                                                                   : 0;
}

static ek_module *resnet_new(const resnet_plan *plan)
{
    ek_named_module parts[] = {
        {"conv1",
         ek_conv2d(plan->channels, RESNET_WIDTH, 7, .stride = 2, .padding = 3, .bias = false)},
        {"bn1", ek_batch_norm2d(RESNET_WIDTH)},
        {"relu", ek_relu()},
        {"maxpool", ek_max_pool2d(3, .stride = 2, .padding = 1)},
        {"layer1", resnet_stage(plan, 0)},
        {"layer2", resnet_stage(plan, 1)},
        {"layer3", resnet_stage(plan, 2)},
        {"layer4", resnet_stage(plan, 3)},
        {"avgpool", ek_adaptive_avg_pool2d(1, 1)},
        {"flatten", ek_flatten(1, -1)},
        {"fc",
         plan->classes > 0 ? ek_linear(resnet_out(plan, RESNET_WIDTH << 3), plan->classes) : NULL},
    };
    enum { PARTS = sizeof parts / sizeof *parts };
    ek_module *self = ek_sequential_named_of(parts, plan->classes > 0 ? PARTS : PARTS - 1);
    char last[] = "bn2.weight";
    last[2] = plan->depth->bottlenecks ? '3' : '2';
    if (self && (ek_module_parameters(self, resnet_init, NULL) < 0 ||
                 (plan->zero_init_residual &&
                  ek_module_parameters(self, resnet_init_residual, last) < 0))) {
        ek_module_free(self);
        return NULL;
    }
    return self;
}

static ek_module *resnet(const resnet_plan *plan)
{
    if (plan->classes < 0 || plan->channels < 1 || plan->groups < 1 || plan->groups > RESNET_MOST ||
        plan->width_per_group < 1 || plan->width_per_group > RESNET_MOST || plan->last_stride < 1 ||
        plan->last_stride > 2)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "%s: %lld classes, %lld channels, %lld groups of width %lld, last "
                            "stride %d; at least 0 and 1, 1 to %d and 1 to %d, and 1 or 2 are "
                            "possible",
                            plan->depth->name, (long long)plan->classes, (long long)plan->channels,
                            (long long)plan->groups, (long long)plan->width_per_group,
                            plan->last_stride, RESNET_MOST, RESNET_MOST);
    return resnet_new(plan);
}

/* The depth of a network and its constructor; the last arguments are the blocks of its stages. */
#define RESNET(LAYERS, OPTIONS, BOTTLENECKS, GROUPS, WIDTH, ...)                     \
    ek_module *ek_resnet##LAYERS##_with(OPTIONS options)                             \
    {                                                                                \
        static const resnet_depth depth = {.name = "resnet" #LAYERS,                 \
                                           .blocks = {__VA_ARGS__},                  \
                                           .bottlenecks = BOTTLENECKS};              \
        const resnet_plan plan = {.depth = &depth,                                   \
                                  .channels = options.channels,                      \
                                  .classes = options.classes,                        \
                                  .groups = GROUPS,                                  \
                                  .width_per_group = WIDTH,                          \
                                  .last_stride = options.last_stride,                \
                                  .zero_init_residual = options.zero_init_residual}; \
        return resnet(&plan);                                                        \
    }
#define SHALLOW_RESNET(LAYERS, ...) \
    RESNET(LAYERS, ek_resnet_options, false, 1, RESNET_WIDTH, __VA_ARGS__)
#define DEEP_RESNET(LAYERS, ...)                                                                \
    RESNET(LAYERS, ek_bottleneck_resnet_options, true, options.groups, options.width_per_group, \
           __VA_ARGS__)

SHALLOW_RESNET(18, 2, 2, 2, 2)
SHALLOW_RESNET(34, 3, 4, 6, 3)
DEEP_RESNET(50, 3, 4, 6, 3)
DEEP_RESNET(101, 3, 4, 23, 3)
DEEP_RESNET(152, 3, 8, 36, 3)
