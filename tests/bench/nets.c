#include "nets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "networks.h"

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
                         ek_max_pool2d(2), ek_flatten(1, -1), ek_linear(9216, 128), ek_relu(),
                         ek_linear(128, 10));
}

static ek_module *resnet18(void)
{
    return ek_sequential(ek_conv2d(3, 64, 3, .padding = 1, .bias = EK_OFF), ek_batch_norm2d(64),
                         ek_relu(), residual(64, 64, 1), residual(64, 64, 1), residual(64, 128, 2),
                         residual(128, 128, 1), residual(128, 256, 2), residual(256, 256, 1),
                         residual(256, 512, 2), residual(512, 512, 1), ek_adaptive_avg_pool2d(1, 1),
                         ek_flatten(1, -1), ek_linear(512, 10));
}

static ek_module *segmentation(void)
{
    return segmentation_network(32);
}

static ek_module *cross_entropy(void)
{
    return ek_cross_entropy_loss();
}

static ek_module *critic(void)
{
    return gan_critic(64, NORM_NONE);
}

static ek_module *critic_with_layer_norm(void)
{
    return gan_critic(64, NORM_LAYER);
}

static ek_module *score_of_fakes(void)
{
    return ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_FAKE);
}

/* ---- losses and optimizers ---- */

static ek_tensor *supervised(const training *job)
{
    return ek_loss(job->criterion, ek_forward(job->model, job->input), job->target);
}

/* A WGAN-GP critic's: the inputs are real samples, the targets are fakes. */
static ek_tensor *wgan_gp(const training *job)
{
    ek_tensor *fake = ek_loss(job->criterion, ek_forward(job->model, job->target));
    ek_tensor *real = ek_loss(job->criterion, ek_forward(job->model, job->input));
    ek_tensor *penalty = ek_gradient_penalty(job->model, job->input, job->target);
    return ek_add(ek_sub(fake, real), penalty);
}

static ek_optimizer *momentum(ek_module *model)
{
    return ek_sgd(model, .lr = 0.01, .momentum = 0.9);
}

static ek_optimizer *adam(ek_module *model)
{
    return ek_adam(model, .lr = 2e-4, .beta1 = 0.5, .beta2 = 0.9);
}

#define IMAGES(side) {1, side, side}, 3
static const workload workloads[] = {
    {"mlp", 256, {784}, 1, {0}, 0, 10, mlp, cross_entropy, supervised, .optimizer = momentum},
    {"mnist", 64, IMAGES(28), {0}, 0, 10, mnist, cross_entropy, supervised, .optimizer = momentum},
    {"resnet18",
     32,
     {3, 32, 32},
     3,
     {0},
     0,
     10,
     resnet18,
     cross_entropy,
     supervised,
     .optimizer = momentum},
    {"segmentation",
     8,
     IMAGES(128),
     {128, 128},
     2,
     SCENE_CLASSES,
     segmentation,
     segmentation_criterion,
     supervised,
     .optimizer = momentum},
    {"critic", 32, IMAGES(32), IMAGES(32), 0, critic, score_of_fakes, wgan_gp, .optimizer = adam},
    {"critic-layer", 32, IMAGES(32), IMAGES(32), 0, critic_with_layer_norm, score_of_fakes, wgan_gp,
     .optimizer = adam},
};
enum { WORKLOADS = sizeof(workloads) / sizeof(workloads[0]) };

/* Whether `name` ends in `suffix`, which it loses then. */
static bool loses(const char *name, size_t *length, const char *suffix)
{
    size_t tail = strlen(suffix);
    bool has = *length > tail && memcmp(name + *length - tail, suffix, tail) == 0;
    *length -= has ? tail : 0;
    return has;
}

bool workload_named(const char *spelling, workload *load)
{
    const char *at = strchr(spelling, '@');
    size_t length = at ? (size_t)(at - spelling) : strlen(spelling);
    bool bf16 = loses(spelling, &length, "-bf16"), tf32 = loses(spelling, &length, "-tf32");
    for (int i = 0; i < WORKLOADS; i++) {
        if (strlen(workloads[i].name) != length || memcmp(workloads[i].name, spelling, length) != 0)
            continue;
        *load = workloads[i];
        load->bf16 = bf16;
        load->tf32 = tf32;
        if (at)
            load->batch = atoll(at + 1);
        return load->batch > 0;
    }
    return false;
}

void workload_names(char *text, size_t nbytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < WORKLOADS && used < nbytes; i++)
        used +=
            (size_t)snprintf(text + used, nbytes - used, "%s%s", i ? "|" : "", workloads[i].name);
}
