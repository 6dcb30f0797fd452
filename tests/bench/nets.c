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

/* A body that makes `out` channels of `in`, and its shortcut. */
static ek_module *residual_of(ek_module *body, int in, int out, int stride)
{
    residual_block *self = (residual_block *)ek_module_new(&residual_type);
    if (!self) {
        ek_module_free(body);
        return NULL;
    }
    ek_register_module(&self->module, "body", &self->body, body);
    ek_register_module(&self->module, "shortcut", &self->shortcut,
                       stride == 1 && in == out
                           ? ek_identity()
                           : ek_sequential(ek_conv2d(in, out, 1, .stride = stride, .bias = false),
                                           ek_batch_norm2d(out)));
    return ek_module_finish(&self->module);
}

static ek_module *residual(int in, int out, int stride)
{
    ek_module *body =
        ek_sequential(ek_conv2d(in, out, 3, .stride = stride, .padding = 1, .bias = false),
                      ek_batch_norm2d(out), ek_relu(),
                      ek_conv2d(out, out, 3, .padding = 1, .bias = false), ek_batch_norm2d(out));
    return residual_of(body, in, out, stride);
}

/* Ends in four times `width` channels. */
static ek_module *bottleneck(int in, int width, int stride)
{
    ek_module *body =
        ek_sequential(ek_conv2d(in, width, 1, .bias = false), ek_batch_norm2d(width), ek_relu(),
                      ek_conv2d(width, width, 3, .stride = stride, .padding = 1, .bias = false),
                      ek_batch_norm2d(width), ek_relu(),
                      ek_conv2d(width, 4 * width, 1, .bias = false), ek_batch_norm2d(4 * width));
    return residual_of(body, in, 4 * width, stride);
}

/* ---- StyleGAN2, whose batches have groups ---- */

typedef struct grouped {
    ek_module module;
    ek_module *body;
} grouped;

static ek_tensor *grouped_cut(ek_tensor *x)
{
    return ek_f_unflatten(x, 0, EK_SHAPE(-1, STYLEGAN_GROUP));
}

/* Pictures (N, 1, H, W) to scores (N). */
static ek_value grouped_critic_forward(ek_module *module, const ek_args *args)
{
    grouped *self = (grouped *)module;
    ek_tensor *scores = ek_apply(self->body, grouped_cut(ek_arg_tensor(args, 0)));
    return ek_value_of_tensor(ek_f_flatten(scores, 0, 1));
}

enum { STYLE_LATENT = 64, STYLE_CUT = 4, STYLE_NUMBERS = 2 * STYLE_LATENT + STYLEGAN_NOISE };

/* Latents and noise in one row (N, STYLE_NUMBERS) to pictures; with directions to path lengths. */
static ek_value grouped_generator_forward(ek_module *module, const ek_args *args)
{
    grouped *self = (grouped *)module;
    ek_tensor *x = grouped_cut(ek_arg_tensor(args, 0));
    ek_tensor *z =
        ek_f_unflatten(ek_narrow(x, 2, 0, (int64_t)2 * STYLE_LATENT), 2, EK_SHAPE(2, STYLE_LATENT));
    ek_tensor *noise = ek_narrow(x, 2, (int64_t)2 * STYLE_LATENT, STYLEGAN_NOISE);
    if (!z || !noise)
        return ek_value_error();
    ek_tensor *cut = ek_full(STYLE_CUT, EK_SHAPE(ek_tensor_size(x, 0), STYLEGAN_GROUP), EK_I64,
                             .device = ek_tensor_device(x));
    ek_value y = args->count > 1
                     ? ek_forward(self->body, z, cut, noise, grouped_cut(ek_arg_tensor(args, 1)))
                     : ek_forward(self->body, z, cut, noise);
    return ek_value_of_tensor(ek_f_flatten(ek_value_tensor(y), 0, 1));
}

static const ek_module_type grouped_critic = {.name = "grouped_critic",
                                              .size = sizeof(grouped),
                                              .forward = grouped_critic_forward},
                            grouped_generator = {.name = "grouped_generator",
                                                 .size = sizeof(grouped),
                                                 .forward = grouped_generator_forward};

static ek_module *grouped_of(const ek_module_type *type, ek_module *body)
{
    grouped *self = (grouped *)ek_module_new(type);
    if (!self) {
        ek_module_free(body);
        return NULL;
    }
    ek_register_module(&self->module, "body", &self->body, body);
    return ek_module_finish(&self->module);
}

/* ---- diffusion: one step of noising and one class for all ---- */

enum { NOISED = 500, NOISED_CLASS = 3, PICTURE_CLASSES = 10 };

/* Noisy pictures (N, 1, H, W) to their noise. */
static ek_value noised_forward(ek_module *module, const ek_args *args)
{
    grouped *self = (grouped *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    if (!x)
        return ek_value_error();
    const ek_shape count = EK_SHAPE(ek_tensor_size(x, 0));
    ek_tensor *t = ek_full(NOISED, count, EK_I64, .device = ek_tensor_device(x));
    ek_tensor *c = ek_full(NOISED_CLASS, count, EK_I64, .device = ek_tensor_device(x));
    return ek_forward(self->body, x, t, c);
}

static const ek_module_type noised = {.name = "noised",
                                      .size = sizeof(grouped),
                                      .forward = noised_forward};

/* ---- networks ---- */

enum { LETTERS = 27, LANGUAGES = 5, TOKENS = 50000 };

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
    return ek_sequential(ek_conv2d(3, 64, 3, .padding = 1, .bias = false), ek_batch_norm2d(64),
                         ek_relu(), residual(64, 64, 1), residual(64, 64, 1), residual(64, 128, 2),
                         residual(128, 128, 1), residual(128, 256, 2), residual(256, 256, 1),
                         residual(256, 512, 2), residual(512, 512, 1), ek_adaptive_avg_pool2d(1, 1),
                         ek_flatten(1, -1), ek_linear(512, 10));
}

static ek_module *resnet50(void)
{
    static const int blocks[] = {3, 4, 6, 3};
    ek_module *layers[24];
    int count = 0, in = 64;
    layers[count++] = ek_conv2d(3, 64, 7, .stride = 2, .padding = 3, .bias = false);
    layers[count++] = ek_batch_norm2d(64);
    layers[count++] = ek_relu();
    layers[count++] = ek_max_pool2d(3, .stride = 2, .padding = 1);
    for (int stage = 0; stage < 4; stage++) {
        for (int i = 0; i < blocks[stage]; i++) {
            layers[count++] = bottleneck(in, 64 << stage, stage > 0 && i == 0 ? 2 : 1);
            in = 256 << stage;
        }
    }
    layers[count++] = ek_adaptive_avg_pool2d(1, 1);
    layers[count++] = ek_flatten(1, -1);
    layers[count++] = ek_linear(2048, 1000);
    return ek_sequential_of(layers, count);
}

/* Without dropout, so that losses can be compared. */
static ek_module *vgg11(void)
{
    static const int widths[] = {64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0};
    ek_module *layers[40];
    int count = 0, in = 3;
    for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++) {
        if (widths[i] == 0) {
            layers[count++] = ek_max_pool2d(2);
            continue;
        }
        layers[count++] = ek_conv2d(in, widths[i], 3, .padding = 1);
        layers[count++] = ek_batch_norm2d(widths[i]);
        layers[count++] = ek_relu();
        in = widths[i];
    }
    layers[count++] = ek_adaptive_avg_pool2d(7, 7);
    layers[count++] = ek_flatten(1, -1);
    layers[count++] = ek_linear(512 * 7 * 7, 4096);
    layers[count++] = ek_relu();
    layers[count++] = ek_linear(4096, 4096);
    layers[count++] = ek_relu();
    layers[count++] = ek_linear(4096, 1000);
    return ek_sequential_of(layers, count);
}

static ek_module *unet_of_colours(void)
{
    return unet(3, 32, 4, UNET_TRANSPOSED, true, SCENE_CLASSES);
}

static ek_module *unet_of_scenes(void)
{
    return unet(1, 16, 3, UNET_TRANSPOSED, true, SCENE_CLASSES);
}

static ek_module *dcgan_up(int in, int out, int stride, int padding)
{
    return ek_sequential(ek_conv_transpose2d(in, out, 4, .stride = stride, .padding = padding,
                                             .bias = false),
                         ek_batch_norm2d(out), ek_relu());
}

static ek_module *dcgan(void)
{
    return ek_sequential(dcgan_up(100, 512, 1, 0), dcgan_up(512, 256, 2, 1),
                         dcgan_up(256, 128, 2, 1), dcgan_up(128, 64, 2, 1),
                         ek_conv_transpose2d(64, 3, 4, .stride = 2, .padding = 1, .bias = false),
                         ek_tanh());
}

static ek_module *segmentation(void)
{
    return segmentation_network(32);
}

/* That of samples/gpt.c; without dropout, so that losses can be compared. */
enum { GPT_CONTEXT = 128, GPT2_CONTEXT = 1024, GPT2_TOKENS = 50257 };
static ek_module *gpt(void)
{
    return ek_gpt2(256, .context = GPT_CONTEXT, .width = 128, .layers = 4, .heads = 4,
                   .dropout = 0);
}

/* The smallest published GPT-2. */
static ek_module *gpt2(void)
{
    return ek_gpt2(GPT2_TOKENS, .context = GPT2_CONTEXT, .dropout = 0);
}

/* That of samples/reid.c. */
static ek_module *reid(void)
{
    return reid_network(16, 1, 64, 2000);
}

static ek_module *smoothed_cross_entropy(void)
{
    return ek_cross_entropy_loss(.label_smoothing = 0.1);
}

static ek_module *cross_entropy(void)
{
    return ek_cross_entropy_loss();
}

static ek_module *token_cross_entropy(void)
{
    return ek_token_cross_entropy_loss();
}

/* All pixels count, so that both are means over samples. */
static ek_value entropy_and_dice_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *logits = ek_arg_tensor(args, 0), *target = ek_arg_tensor(args, 1);
    (void)module;
    return ek_value_of_tensor(
        ek_add(ek_f_cross_entropy(logits, target), f_dice_loss(logits, target)));
}

static ek_module *entropy_and_dice(void)
{
    static const ek_module_type type = {.name = "entropy_and_dice",
                                        .size = sizeof(ek_module),
                                        .forward = entropy_and_dice_forward};
    return ek_module_new(&type);
}

static ek_module *mean_square(void)
{
    return ek_mse_loss();
}

static ek_module *critic(void)
{
    return gan_critic(64, NORM_NONE);
}

static ek_module *critic_with_layer_norm(void)
{
    return gan_critic(64, NORM_LAYER);
}

static ek_module *style_critic(void)
{
    return grouped_of(&grouped_critic, stylegan_critic(16));
}

static ek_module *style_generator(void)
{
    return grouped_of(&grouped_generator, stylegan_generator(16, STYLE_LATENT));
}

static ek_module *diffusion(void)
{
    return grouped_of(&noised, diffusion_unet(1, 16, 2, PICTURE_CLASSES));
}

static ek_module *logistic(void)
{
    return ek_bce_with_logits_loss();
}

static ek_module *score_of_fakes(void)
{
    return ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_FAKE);
}

/* As samples/lstm.c has it, without dropout. */
static ek_module *words(int cell, int64_t hidden, int64_t layers)
{
    return letter_network((letter_options){.cell = cell,
                                           .letters = LETTERS,
                                           .embedded = 32,
                                           .hidden = hidden,
                                           .classes = LANGUAGES,
                                           .layers = layers});
}

static ek_module *lstm(void)
{
    return words(CELL_LSTM, 192, 1);
}

static ek_module *lstm512(void)
{
    return words(CELL_LSTM, 512, 2);
}

static ek_module *gru(void)
{
    return words(CELL_GRU, 192, 1);
}

/* A layer of a transformer's encoder: attention of 8 heads, and two linear layers. */
static ek_module *attention(void)
{
    return ek_transformer_encoder_layer(256, 8, .dim_feedforward = 1024, .dropout = 0,
                                        .batch_first = true);
}

/* A large table, of which a batch reads few rows. */
static ek_module *embedding(void)
{
    return ek_sequential(ek_embedding(TOKENS, 128), ek_flatten(1, -1), ek_linear(64 * 128, 10));
}

/* ---- losses and optimizers ---- */

static ek_tensor *supervised(const training *job)
{
    return ek_loss(job->criterion, ek_forward(job->model, job->input), job->target);
}

/* Cross entropy and triplets over the whole batch. */
static ek_tensor *reid_losses(const training *job)
{
    ek_value outputs = ek_forward(job->model, job->input);
    outputs = ek_value_to_device(outputs, ek_tensor_device(job->target), 0);
    ek_tensor *features = ek_to_dtype(ek_value_tensor(ek_value_at(outputs, 0)), EK_F32);
    return ek_add(ek_loss(job->criterion, ek_value_at(outputs, 1), job->target),
                  f_batch_hard_triplet_loss(features, job->target, 0.3));
}

/* A WGAN-GP critic's: the inputs are real samples, the targets are fakes. */
static ek_tensor *wgan_gp(const training *job)
{
    ek_tensor *fake = ek_loss(job->criterion, ek_forward(job->model, job->target));
    ek_tensor *real = ek_loss(job->criterion, ek_forward(job->model, job->input));
    ek_tensor *penalty = ek_gradient_penalty(job->model, job->input, job->target);
    return ek_add(ek_sub(fake, real), penalty);
}

/* One number for each sample, as a target. */
static ek_tensor *all_of(double value, ek_tensor *samples)
{
    return ek_full(value, EK_SHAPE(ek_tensor_size(samples, 0)),
                   .device = ek_tensor_device(samples));
}

/* A StyleGAN2 critic's, logistic: the inputs are real samples, the targets are fakes. */
static ek_tensor *style_scores(const training *job)
{
    ek_tensor *fake =
        ek_loss(job->criterion, ek_forward(job->model, job->target), all_of(0, job->target));
    ek_tensor *real =
        ek_loss(job->criterion, ek_forward(job->model, job->input), all_of(1, job->input));
    return ek_add(fake, real);
}

/* The same with R1, which StyleGAN2 adds in one step of sixteen. */
static ek_tensor *style_r1(const training *job)
{
    ek_tensor *penalty =
        ek_gradient_penalty(job->model, job->input, .kind = EK_PENALTY_R1, .weight = 0.05);
    return ek_add(style_scores(job), penalty);
}

/* A StyleGAN2 generator's path lengths: the targets are directions. */
static ek_tensor *style_path(const training *job)
{
    return ek_loss(job->criterion, ek_forward(job->model, job->input, job->target),
                   all_of(0, job->input));
}

static ek_optimizer *momentum(ek_module *model)
{
    return ek_sgd(model, .lr = 0.01, .momentum = 0.9);
}

/* For nets whose first gradients are so steep that steps of 0.01 would make rounding errors grow:
 * losses could not be compared with the twin's. */
static ek_optimizer *gentle_momentum(ek_module *model)
{
    return ek_sgd(model, .lr = 1e-6, .momentum = 0.9);
}

static ek_optimizer *adam(ek_module *model)
{
    return ek_adam(model, .lr = 2e-4, .beta1 = 0.5, .beta2 = 0.9);
}

static ek_optimizer *adamw(ek_module *model)
{
    return ek_adamw(model, .lr = 1e-4);
}

/* clang-format off */
#define IMAGES(channels, side) {channels, side, side}, 3
#define NOTHING {0}, 0
static const workload workloads[] = {
    {"mlp", 256, {784}, 1, NOTHING, 10, mlp, cross_entropy, supervised, .optimizer = momentum},
    {"mnist", 64, IMAGES(1, 28), NOTHING, 10, mnist, cross_entropy, supervised,
     .optimizer = momentum},
    {"resnet18", 32, IMAGES(3, 32), NOTHING, 10, resnet18, cross_entropy, supervised,
     .optimizer = momentum},
    {"segmentation", 8, IMAGES(1, 128), {128, 128}, 2, SCENE_CLASSES, segmentation,
     segmentation_criterion, supervised, .optimizer = momentum},
    {"critic", 32, IMAGES(1, 32), IMAGES(1, 32), 0, critic, score_of_fakes, wgan_gp,
     .optimizer = adam},
    {"critic-layer", 32, IMAGES(1, 32), IMAGES(1, 32), 0, critic_with_layer_norm, score_of_fakes,
     wgan_gp, .optimizer = adam},
    {"resnet50", 8, IMAGES(3, 224), NOTHING, 1000, resnet50, cross_entropy, supervised,
     .optimizer = gentle_momentum},
    {"vgg11", 8, IMAGES(3, 224), NOTHING, 1000, vgg11, cross_entropy, supervised,
     .optimizer = gentle_momentum},
    {"unet", 8, IMAGES(3, 128), {128, 128}, 2, SCENE_CLASSES, unet_of_colours, cross_entropy,
     supervised, .optimizer = momentum},
    {"unet-dice", 16, IMAGES(1, 48), {48, 48}, 2, SCENE_CLASSES, unet_of_scenes, entropy_and_dice,
     supervised, .optimizer = adamw},
    {"style-critic", 32, IMAGES(1, 32), IMAGES(1, 32), 0, style_critic, logistic, style_scores,
     .optimizer = adam},
    {"style-r1", 32, IMAGES(1, 32), IMAGES(1, 32), 0, style_critic, logistic, style_r1,
     .optimizer = adam},
    {"style-generator", 32, {STYLE_NUMBERS}, 1, IMAGES(1, 32), 0, style_generator, mean_square,
     supervised, .optimizer = adam},
    {"style-path", 16, {STYLE_NUMBERS}, 1, IMAGES(1, 32), 0, style_generator, mean_square,
     style_path, .optimizer = adam},
    {"dcgan", 64, IMAGES(100, 1), IMAGES(3, 64), 0, dcgan, mean_square, supervised,
     .optimizer = adam},
    {"reid", 64, IMAGES(1, 28), NOTHING, 16, reid, smoothed_cross_entropy, reid_losses,
     .optimizer = adamw},
    {"diffusion", 64, IMAGES(1, 32), IMAGES(1, 32), 0, diffusion, mean_square, supervised,
     .optimizer = adamw},
    {"gpt", 16, {GPT_CONTEXT}, 1, {GPT_CONTEXT}, 1, 256, gpt, token_cross_entropy, supervised,
     .optimizer = adamw, .tokens = 256},
    {"gpt2", 8, {GPT2_CONTEXT}, 1, {GPT2_CONTEXT}, 1, GPT2_TOKENS, gpt2, token_cross_entropy,
     supervised, .optimizer = adamw, .tokens = GPT2_TOKENS},
    {"lstm", 256, {16}, 1, {16}, 1, LANGUAGES, lstm, cross_entropy, supervised, .tokens = LETTERS,
     .optimizer = adam},
    {"lstm512", 64, {100}, 1, {100}, 1, LANGUAGES, lstm512, cross_entropy, supervised,
     .tokens = LETTERS, .optimizer = adam},
    {"gru", 256, {16}, 1, {16}, 1, LANGUAGES, gru, cross_entropy, supervised, .tokens = LETTERS,
     .optimizer = adam},
    {"attention", 8, {128, 256}, 2, {128, 256}, 2, 0, attention, mean_square, supervised,
     .optimizer = momentum},
    {"embedding", 32, {64}, 1, NOTHING, 10, embedding, cross_entropy, supervised, .tokens = TOKENS,
     .optimizer = momentum},
};
/* clang-format on */
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
    bool clips = loses(spelling, &length, "-clip");
    bool has_adam = loses(spelling, &length, "-adam");
    bool bf16 = loses(spelling, &length, "-bf16"), tf32 = loses(spelling, &length, "-tf32"),
         fast = loses(spelling, &length, "-fast"), defaults = loses(spelling, &length, "-default");
    for (int i = 0; i < WORKLOADS; i++) {
        if (strlen(workloads[i].name) != length || memcmp(workloads[i].name, spelling, length) != 0)
            continue;
        *load = workloads[i];
        load->bf16 = bf16;
        load->tf32 = tf32;
        load->fast = fast;
        load->defaults = defaults;
        load->clips = clips;
        load->optimizer = has_adam ? adam : load->optimizer;
        const char *by = at ? strchr(at, 'x') : NULL;
        if (at)
            load->batch = atoll(at + 1);
        if (by)
            load->input[0] = load->target[0] = atoll(by + 1);
        return load->batch > 0 && load->input[0] > 0 && (!by || load->target_dims == 1);
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
