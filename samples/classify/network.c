/* network.c: the residual network, against the public headers alone. */
#include "classify/network.h"

/* ---- a basic block ---- */

typedef struct basic_block {
    ek_module module;
    ek_module *conv1, *norm1, *conv2, *norm2;
    ek_module *shortcut; /* a projection where sizes change, else the identity */
} basic_block;

static ek_value block_forward(ek_module *module, const ek_args *args)
{
    basic_block *self = (basic_block *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *y = ek_f_relu(ek_apply(self->norm1, ek_apply(self->conv1, x)));

    y = ek_apply(self->norm2, ek_apply(self->conv2, y));
    return ek_value_of_tensor(ek_f_relu(ek_add(y, ek_apply(self->shortcut, x))));
}

static const ek_module_type block_type = {.name = "basic_block",
                                          .size = sizeof(basic_block),
                                          .forward = block_forward};

/* What follows normalises: a bias would be subtracted again. */
static ek_module *conv(int in, int out, int kernel, int stride)
{
    return ek_conv2d(in, out, kernel, .stride = stride, .padding = kernel / 2, .bias = EK_OFF);
}

/* Pixels are averaged before the 1 x 1 convolution, so that all of them count (He et al. 2019). */
static ek_module *projection(int in, int out, int stride)
{
    return ek_sequential(stride > 1 ? ek_avg_pool2d(stride) : ek_identity(), conv(in, out, 1, 1),
                         ek_batch_norm2d(out));
}

static ek_module *block(int in, int out, int stride)
{
    basic_block *self = (basic_block *)ek_module_new(&block_type);
    bool same = in == out && stride == 1;

    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "conv1", &self->conv1, conv(in, out, 3, stride));
    ek_register_module(m, "norm1", &self->norm1, ek_batch_norm2d(out));
    ek_register_module(m, "conv2", &self->conv2, conv(out, out, 3, 1));
    ek_register_module(m, "norm2", &self->norm2, ek_batch_norm2d(out));
    ek_register_module(m, "shortcut", &self->shortcut,
                       same ? ek_identity() : projection(in, out, stride));
    return ek_module_finish(m);
}

/* ---- the network ---- */

enum { STAGES = 3, MOST_BLOCKS = 64 };

typedef struct residual_network {
    ek_module module;
    ek_module *stem, *norm, *stages[STAGES], *head;
} residual_network;

static ek_value network_forward(ek_module *module, const ek_args *args)
{
    residual_network *self = (residual_network *)module;
    ek_tensor *x = ek_f_relu(ek_apply(self->norm, ek_apply(self->stem, ek_arg_tensor(args, 0))));

    for (int i = 0; i < STAGES; i++)
        x = ek_apply(self->stages[i], x);
    x = ek_flatten(ek_f_adaptive_avg_pool2d(x, 1, 1), 1, -1);
    return ek_value_of_tensor(ek_apply(self->head, x));
}

static const ek_module_type network_type = {.name = "resnet",
                                            .size = sizeof(residual_network),
                                            .forward = network_forward};

static ek_module *stage(int in, int out, int stride, int blocks)
{
    ek_module *list[MOST_BLOCKS];

    for (int i = 0; i < blocks; i++)
        list[i] = block(i == 0 ? in : out, out, i == 0 ? stride : 1);
    return ek_sequential_of(list, blocks);
}

ek_module *resnet_with(resnet_options options)
{
    static const char *const names[STAGES] = {"stage1", "stage2", "stage3"};
    int width = options.width;

    if (options.blocks < 1 || options.blocks > MOST_BLOCKS) {
        ek_error(EK_E_INVALID, "resnet: %d blocks; 1 to %d are known", options.blocks, MOST_BLOCKS);
        return NULL;
    }
    residual_network *self = (residual_network *)ek_module_new(&network_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "stem", &self->stem, conv(options.channels, width, 3, 1));
    ek_register_module(m, "norm", &self->norm, ek_batch_norm2d(width));
    for (int i = 0; i < STAGES; i++) {
        int out = width << i, in = i == 0 ? width : out / 2;
        ek_register_module(m, names[i], &self->stages[i],
                           stage(in, out, i == 0 ? 1 : 2, options.blocks));
    }
    ek_register_module(m, "head", &self->head, ek_linear(4 * width, options.classes));
    m = ek_module_finish(m);
    return m && !options.apart ? ek_convert_sync_batch_norm(m) : m;
}
