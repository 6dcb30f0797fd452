#include "nets.h"

#include <string.h>

#include "imbalance/network.h"

/* ---- a residual block, as a user writes it ---- */

typedef struct residual_block {
    ek_module module;
    ek_module *body;     /* conv, norm, ReLU, conv, norm */
    ek_module *shortcut; /* the identity, or a strided 1 x 1 convolution and its norm */
} residual_block;

static ek_value residual_forward(ek_module *module, const ek_args *args)
{
    residual_block *self = (residual_block *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *y = ek_apply(self->body, x);

    return ek_value_of_tensor(ek_f_relu(ek_add(y, ek_apply(self->shortcut, x))));
}

static const ek_module_type residual_type = {.name = "residual_block",
                                             .size = sizeof(residual_block),
                                             .forward = residual_forward};

static ek_module *residual(int in, int out, int stride)
{
    residual_block *self = (residual_block *)ek_module_new(&residual_type);

    if (!self)
        return NULL;
    ek_register_module(
        &self->module, "body", &self->body,
        ek_sequential(ek_conv2d(in, out, 3, .stride = stride, .padding = 1, .bias = EK_OFF),
                      ek_batch_norm2d(out), ek_relu(),
                      ek_conv2d(out, out, 3, .padding = 1, .bias = EK_OFF), ek_batch_norm2d(out)));
    ek_register_module(&self->module, "shortcut", &self->shortcut,
                       stride == 1 && in == out
                           ? ek_identity()
                           : ek_sequential(ek_conv2d(in, out, 1, .stride = stride, .bias = EK_OFF),
                                           ek_batch_norm2d(out)));
    return ek_module_finish(&self->module);
}

/* ---- networks ---- */

static ek_module *mlp(void)
{
    return ek_sequential(ek_linear(784, 2048), ek_relu(), ek_linear(2048, 2048), ek_relu(),
                         ek_linear(2048, 10));
}

static ek_module *mnist(void)
{
    return ek_sequential(ek_conv2d(1, 32, 3), ek_relu(), ek_conv2d(32, 64, 3), ek_relu(),
                         ek_max_pool2d(2), ek_flatten_module(1, -1), ek_linear(9216, 128),
                         ek_relu(), ek_linear(128, 10));
}

static ek_module *resnet18(void)
{
    return ek_sequential(ek_conv2d(3, 64, 3, .padding = 1, .bias = EK_OFF), ek_batch_norm2d(64),
                         ek_relu(), residual(64, 64, 1), residual(64, 64, 1), residual(64, 128, 2),
                         residual(128, 128, 1), residual(128, 256, 2), residual(256, 256, 1),
                         residual(256, 512, 2), residual(512, 512, 1), ek_adaptive_avg_pool2d(1, 1),
                         ek_flatten_module(1, -1), ek_linear(512, 10));
}

static ek_module *segmentation(void)
{
    return segmentation_network(32);
}

static ek_module *cross_entropy(void)
{
    return ek_cross_entropy_loss();
}

static ek_module *segmentation_criterion(void)
{
    return criterion_ce(.ignore_index = IGNORED);
}

static const workload workloads[] = {
    {"mlp", 256, {784}, 1, {0}, 0, 10, mlp, cross_entropy},
    {"mnist", 64, {1, 28, 28}, 3, {0}, 0, 10, mnist, cross_entropy},
    {"resnet18", 32, {3, 32, 32}, 3, {0}, 0, 10, resnet18, cross_entropy},
    {"segmentation",
     8,
     {1, 128, 128},
     3,
     {128, 128},
     2,
     CLASSES,
     segmentation,
     segmentation_criterion},
};

const workload *workload_named(const char *name)
{
    for (size_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++)
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    return NULL;
}
