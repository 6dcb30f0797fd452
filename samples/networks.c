/* networks.c: the networks that the samples train, against the public headers alone. */
#include "networks.h"

/* ---- a DCGAN (Radford et al. 2016) ----
 *
 * Initial values are those of the layers (uniform, by fan-in), not DCGAN's normal ones of deviation
 * 0.02: with the defaults, 100 steps bring the Wasserstein estimate down to 4 with these and to 12
 * with those. */

/* NORM_NONE is the identity, so that parameters have the same paths with any norm. */
static ek_module *gan_norm(int norm, int channels)
{
    switch (norm) {
    case NORM_LAYER:
        return ek_group_norm(1, channels);
    case NORM_INSTANCE:
        return ek_instance_norm2d(channels, .affine = true);
    case NORM_BATCH:
        return ek_batch_norm2d(channels);
    case NORM_SYNC_BATCH:
        return ek_sync_batch_norm(channels);
    default:
        return ek_identity();
    }
}

/* Halves height and width. */
static ek_module *gan_down(int in, int out, int norm)
{
    return ek_sequential(ek_conv2d(in, out, 4, .stride = 2, .padding = 1), gan_norm(norm, out),
                         ek_leaky_relu(0.2));
}

ek_module *gan_critic(int width, int norm)
{
    return ek_sequential(gan_down(1, width, NORM_NONE), gan_down(width, 2 * width, norm),
                         gan_down(2 * width, 4 * width, norm), ek_conv2d(4 * width, 1, 4));
}

static ek_module *gan_up(int in, int out, int stride, int padding)
{
    return ek_sequential(ek_conv_transpose2d(in, out, 4, .stride = stride, .padding = padding),
                         ek_sync_batch_norm(out), ek_relu());
}

ek_module *gan_generator(int width)
{
    return ek_sequential(gan_up(GAN_NOISE, 4 * width, 1, 0), gan_up(4 * width, 2 * width, 2, 1),
                         gan_up(2 * width, width, 2, 1),
                         ek_conv_transpose2d(width, 1, 4, .stride = 2, .padding = 1), ek_tanh());
}

/* ---- a residual network (He et al. 2016): a user's own modules ---- */

typedef struct basic_block {
    ek_module module;
    ek_module *conv1, *norm1, *conv2, *norm2;
    ek_module *shortcut; /* a projection if sizes change, else the identity */
} basic_block;

static ek_value resnet_block_forward(ek_module *module, const ek_args *args)
{
    basic_block *self = (basic_block *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *y = ek_f_relu(ek_apply(self->norm1, ek_apply(self->conv1, x)));
    y = ek_apply(self->norm2, ek_apply(self->conv2, y));
    return ek_value_of_tensor(ek_f_relu(ek_add(y, ek_apply(self->shortcut, x))));
}

static const ek_module_type resnet_block_type = {.name = "basic_block",
                                                 .size = sizeof(basic_block),
                                                 .forward = resnet_block_forward};

/* The layer that follows normalises, which would subtract a bias again. */
static ek_module *resnet_conv(int in, int out, int kernel, int stride)
{
    return ek_conv2d(in, out, kernel, .stride = stride, .padding = kernel / 2, .bias = false);
}

/* Pixels are averaged before the 1 x 1 convolution, so that all of them count (He et al. 2019). */
static ek_module *resnet_projection(int in, int out, int stride)
{
    return ek_sequential(stride > 1 ? ek_avg_pool2d(stride) : ek_identity(),
                         resnet_conv(in, out, 1, 1), ek_batch_norm2d(out));
}

static ek_module *resnet_block(int in, int out, int stride)
{
    basic_block *self = (basic_block *)ek_module_new(&resnet_block_type);
    bool same = in == out && stride == 1;
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "conv1", &self->conv1, resnet_conv(in, out, 3, stride));
    ek_register_module(m, "norm1", &self->norm1, ek_batch_norm2d(out));
    ek_register_module(m, "conv2", &self->conv2, resnet_conv(out, out, 3, 1));
    ek_register_module(m, "norm2", &self->norm2, ek_batch_norm2d(out));
    ek_register_module(m, "shortcut", &self->shortcut,
                       same ? ek_identity() : resnet_projection(in, out, stride));
    return ek_module_finish(m);
}

static ek_module *resnet_stage(int in, int out, int stride, int blocks)
{
    ek_module *list[RESNET_MOST_BLOCKS];
    for (int i = 0; i < blocks; i++)
        list[i] = resnet_block(i == 0 ? in : out, out, i == 0 ? stride : 1);
    return ek_sequential_of(list, blocks);
}

ek_module *resnet(int channels, int width, int blocks, bool apart, int classes)
{
    ek_module *m =
        ek_sequential_named({"stem", resnet_conv(channels, width, 3, 1)},
                            {"norm", ek_batch_norm2d(width)}, {"relu", ek_relu()},
                            {"stage1", resnet_stage(width, width, 1, blocks)},
                            {"stage2", resnet_stage(width, 2 * width, 2, blocks)},
                            {"stage3", resnet_stage(2 * width, 4 * width, 2, blocks)},
                            {"pool", ek_adaptive_avg_pool2d(1, 1)}, {"flatten", ek_flatten(1, -1)},
                            {"head", ek_linear(4 * width, classes)});
    return m && !apart ? ek_convert_sync_batch_norm(m) : m;
}
