/* networks_stylegan.c: StyleGAN2's generator and discriminator (Karras et al. 2020) for pictures of
 * 32 x 32 with one channel.
 *
 * Learning rates are equalised: a weight is stored with deviation 1 and scaled whenever it is used,
 * so that Adam's steps are alike in all layers. The activation, a leaky ReLU times the root of 2,
 * is homogeneous; so that factor is part of the weights' and biases' scales, which are small
 * tensors. */
#include <math.h>

#include "networks.h"

enum { RESOLUTIONS = 4, CONVOLUTIONS = 2 * RESOLUTIONS - 1, MAPPING_LAYERS = 4, FILTER = 4 };
static const double slope = 0.2, root2 = 1.4142135623730951, tiny = 1e-8;

/* Returns the channels at a level, from 4 x 4 (level 0) to 32 x 32 (level 3). */
static int stylegan_channels(int width, int level)
{
    return level <= 1 ? 4 * width : level == 2 ? 2 * width : width;
}

static ek_tensor *stylegan_weight(int out, int in, int kernel)
{
    return ek_randn(EK_SHAPE(out, in, kernel, kernel), .format = EK_CHANNELS_LAST);
}

/* ---- resampling: zeros between pixels or leaving some out, with a binomial filter (1, 3, 3, 1) in
 * both directions ---- */

static ek_tensor *filter_new(double gain)
{
    static const double row[FILTER] = {1, 3, 3, 1};
    float values[FILTER * FILTER];
    for (int i = 0; i < FILTER * FILTER; i++)
        values[i] = (float)(gain * row[i / FILTER] * row[i % FILTER] / 64);
    return ek_from_data(values, EK_SHAPE(1, 1, FILTER, FILTER));
}

/* Convolves each channel of x (N, C, H, W) with the filter. */
static ek_tensor *filter_apply(ek_tensor *filter, ek_tensor *x, int stride, int padding)
{
    int64_t channels = x ? ek_tensor_size(x, 1) : 1;
    return ek_f_conv2d(x, ek_expand(filter, EK_SHAPE(channels, 1, FILTER, FILTER)),
                       .stride = stride, .padding = padding, .groups = (int)channels);
}

/* ---- a linear layer with equalised learning rate ---- */

/* A linear layer or a convolution. */
typedef struct equal_layer {
    ek_module module;
    ek_tensor *weight, *bias; /* the bias of a convolution is NULL without an activation */
    ek_tensor *filter;        /* NULL unless height and width are halved */
    double weight_gain, bias_gain;
    bool activated;
} equal_layer;

static ek_value linear_forward(ek_module *module, const ek_args *args)
{
    equal_layer *self = (equal_layer *)module;
    ek_tensor *y =
        ek_f_linear(ek_arg_tensor(args, 0), ek_mul_scalar(self->weight, self->weight_gain),
                    ek_mul_scalar(self->bias, self->bias_gain));
    return ek_value_of_tensor(self->activated ? ek_f_leaky_relu(y, slope) : y);
}

static const ek_module_type linear_type = {.name = "equal_linear",
                                           .size = sizeof(equal_layer),
                                           .forward = linear_forward};

/* `rate` is the learning rate of this layer, relative to other layers. */
static ek_module *linear_new(int64_t in, int64_t out, double bias, double rate, bool activated)
{
    equal_layer *self = (equal_layer *)ek_module_new(&linear_type);
    if (!self)
        return NULL;
    const double gain = activated ? root2 : 1;
    self->weight_gain = gain * rate / sqrt((double)in);
    self->bias_gain = gain * rate;
    self->activated = activated;
    ek_register_parameter(&self->module, "weight", &self->weight,
                          ek_mul_scalar(ek_randn(EK_SHAPE(out, in)), 1 / rate));
    ek_register_parameter(&self->module, "bias", &self->bias, ek_full(bias, EK_SHAPE(out)));
    return ek_module_finish(&self->module);
}

/* ---- a modulated convolution: weights are scaled per sample and input channel by a style, and
 * demodulated so that outputs keep their deviation.
 *
 * Scaling activations before and after a convolution whose weights all samples share gives the same
 * numbers as weights per sample, and is one convolution for the whole batch. ---- */

typedef struct style_conv {
    ek_module module;
    ek_module *affine; /* from w to styles */
    ek_tensor *weight, *bias;
    ek_tensor *noise_strength; /* NULL in layers to colours, whose outputs are not demodulated */
    ek_tensor *filter;         /* NULL unless height and width are doubled */
} style_conv;

/* Returns the factors of outputs (N, O, 1, 1): 1 over the norm of each sample's weights. */
static ek_tensor *style_demodulation(ek_tensor *weight, ek_tensor *style)
{
    ek_tensor *squares = ek_sum(ek_square(weight), EK_DIMS(2, 3));
    ek_tensor *norms = ek_f_linear(ek_square(style), squares, NULL);
    ek_tensor *scale = ek_mul_scalar(ek_rsqrt(ek_add_scalar(norms, tiny)), root2);
    return ek_unsqueeze(ek_unsqueeze(scale, -1), -1);
}

static ek_tensor *style_scale(ek_tensor *x, ek_tensor *style)
{
    return ek_mul(x, ek_unsqueeze(ek_unsqueeze(style, -1), -1));
}

static ek_tensor *style_bias(const style_conv *self, double gain)
{
    return ek_reshape(ek_mul_scalar(self->bias, gain), EK_SHAPE(1, -1, 1, 1));
}

/* Takes x (N, C, H, W), w (N, W'), and noise (N, 1, H', W') of the output's size. */
static ek_value style_forward(ek_module *module, const ek_args *args)
{
    style_conv *self = (style_conv *)module;
    ek_tensor *style = ek_apply(self->affine, ek_arg_tensor(args, 1));
    ek_tensor *x = style_scale(ek_arg_tensor(args, 0), style);
    if (self->filter) {
        x = ek_f_conv_transpose2d(x, ek_transpose(self->weight, 0, 1), .stride = 2);
        x = filter_apply(self->filter, x, 1, 1);
    } else {
        x = ek_f_conv2d(x, self->weight, .padding = 1);
    }
    ek_tensor *noise = ek_mul(ek_arg_tensor(args, 2), ek_mul_scalar(self->noise_strength, root2));
    x = ek_add(ek_mul(x, style_demodulation(self->weight, style)), noise);
    return ek_value_of_tensor(ek_f_leaky_relu(ek_add(x, style_bias(self, root2)), slope));
}

/* Takes x (N, C, H, W) and w (N, W'), and returns brightness (N, 1, H, W). */
static ek_value colour_forward(ek_module *module, const ek_args *args)
{
    style_conv *self = (style_conv *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    double gain = x ? 1 / sqrt((double)ek_tensor_size(x, 1)) : 1;
    ek_tensor *style = ek_mul_scalar(ek_apply(self->affine, ek_arg_tensor(args, 1)), gain);
    ek_tensor *y = ek_f_conv2d(style_scale(x, style), self->weight);
    return ek_value_of_tensor(ek_add(y, style_bias(self, 1)));
}

static const ek_module_type style_type = {.name = "style_conv",
                                          .size = sizeof(style_conv),
                                          .forward = style_forward},
                            colour_type = {.name = "style_colour",
                                           .size = sizeof(style_conv),
                                           .forward = colour_forward};

static ek_module *style_new(const ek_module_type *type, int in, int out, int kernel, int latent,
                            bool doubled)
{
    style_conv *self = (style_conv *)ek_module_new(type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "affine", &self->affine, linear_new(latent, in, 1, 1, false));
    ek_register_parameter(m, "weight", &self->weight, stylegan_weight(out, in, kernel));
    ek_register_parameter(m, "bias", &self->bias, ek_zeros(EK_SHAPE(out)));
    if (type == &style_type)
        ek_register_parameter(m, "noise_strength", &self->noise_strength, ek_zeros(EK_SHAPE(1)));
    if (doubled)
        ek_register_buffer(m, "filter", &self->filter, filter_new(4));
    return ek_module_finish(m);
}

/* ---- from w to pictures ---- */

typedef struct synthesis_module {
    ek_module module;
    ek_tensor *start; /* (1, C, 4, 4), learned */
    ek_tensor *filter;
    ek_module *convolutions[CONVOLUTIONS]; /* one at 4 x 4, then two at each size */
    ek_module *colours[RESOLUTIONS];
} synthesis_module;

/* Returns the map (N, 1, side, side) of noise (N, STYLEGAN_NOISE) that begins at *first, and moves
 * *first behind it. */
static ek_tensor *synthesis_noise(ek_tensor *noise, int64_t *first, int side)
{
    ek_tensor *map = ek_narrow(noise, 1, *first, (int64_t)side * side);
    *first += (int64_t)side * side;
    return ek_reshape(map, EK_SHAPE(-1, 1, side, side));
}

/* Takes w (N, STYLEGAN_LAYERS, W') and noise (N, STYLEGAN_NOISE). */
static ek_value synthesis_forward(ek_module *module, const ek_args *args)
{
    synthesis_module *self = (synthesis_module *)module;
    ek_tensor *w = ek_arg_tensor(args, 0), *noise = ek_arg_tensor(args, 1), *picture = NULL;
    if (!w)
        return ek_value_error();
    const ek_shape start = ek_tensor_shape(self->start);
    ek_tensor *x = ek_expand(self->start, EK_SHAPE(ek_tensor_size(w, 0), start.dims[1], 4, 4));
    int64_t first = 0;
    for (int i = 0; i < CONVOLUTIONS; i++) {
        const int level = (i + 1) / 2;
        x = ek_value_tensor(ek_forward(self->convolutions[i], x, ek_select(w, 1, i),
                                       synthesis_noise(noise, &first, 4 << level)));
        if (i % 2 == 1) /* the first of two at this size */
            continue;
        ek_tensor *own =
            ek_value_tensor(ek_forward(self->colours[level], x, ek_select(w, 1, i + 1)));
        if (picture) /* doubled: zeros between pixels, and the filter */
            picture = ek_f_conv_transpose2d(picture, self->filter, .stride = 2, .padding = 1);
        picture = picture ? ek_add(picture, own) : own;
        if (!picture)
            return ek_value_error();
    }
    return ek_value_of_tensor(picture);
}

static const ek_module_type synthesis_type = {.name = "stylegan_synthesis",
                                              .size = sizeof(synthesis_module),
                                              .forward = synthesis_forward};

static ek_module *synthesis_new(int width, int latent)
{
    static const char *const names[2][CONVOLUTIONS] = {{"conv4", "up8", "conv8", "up16", "conv16",
                                                        "up32", "conv32"},
                                                       {"colour4", "colour8", "colour16",
                                                        "colour32"}};
    synthesis_module *self = (synthesis_module *)ek_module_new(&synthesis_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_parameter(m, "start", &self->start,
                          ek_randn(EK_SHAPE(1, stylegan_channels(width, 0), 4, 4),
                                   .format = EK_CHANNELS_LAST));
    ek_register_buffer(m, "filter", &self->filter, filter_new(4));
    for (int i = 0; i < CONVOLUTIONS; i++) {
        const int level = (i + 1) / 2;
        const bool doubles = i % 2 == 1;
        const int out = stylegan_channels(width, level);
        const int in = doubles ? stylegan_channels(width, level - 1) : out;
        ek_register_module(m, names[0][i], &self->convolutions[i],
                           style_new(&style_type, in, out, 3, latent, doubles));
        if (!doubles)
            ek_register_module(m, names[1][level], &self->colours[level],
                               style_new(&colour_type, out, 1, 1, latent, false));
    }
    return ek_module_finish(m);
}

/* ---- from z to w ---- */

/* Divides z (N, Z) by the root of the mean of its squares. */
static ek_value normal_forward(ek_module *module, const ek_args *args)
{
    (void)module;
    ek_tensor *z = ek_arg_tensor(args, 0);
    ek_tensor *square = ek_mean(ek_square(z), EK_DIMS(1), .keepdim = true);
    return ek_value_of_tensor(ek_mul(z, ek_rsqrt(ek_add_scalar(square, tiny))));
}

static const ek_module_type normal_type = {.name = "stylegan_normal",
                                           .size = sizeof(ek_module),
                                           .forward = normal_forward};

/* The mapping's learning rate is a hundredth of the other layers'. */
static ek_module *mapping_new(int latent)
{
    ek_module *layers[MAPPING_LAYERS];
    for (int i = 0; i < MAPPING_LAYERS; i++)
        layers[i] = linear_new(latent, latent, 0, 0.01, true);
    return ek_sequential_named({"normal", ek_module_new(&normal_type)},
                               {"layers", ek_sequential_of(layers, MAPPING_LAYERS)});
}

/* ---- the generator ---- */

typedef struct stylegan_module {
    ek_module module;
    ek_module *mapping, *synthesis;
} stylegan_module;

/* Returns x (groups * STYLEGAN_GROUP, ...) as (groups, STYLEGAN_GROUP, ...). */
static ek_tensor *stylegan_group(ek_tensor *x)
{
    return ek_f_unflatten(x, 0, EK_SHAPE(-1, STYLEGAN_GROUP));
}

/* Returns w of all layers, (N, STYLEGAN_LAYERS, Z): layers below `cut` (N) get the first of two
 * latents z (N, 2, Z), the other layers the second (style mixing). */
static ek_tensor *stylegan_mix(ek_module *mapping, ek_tensor *z, ek_tensor *cut)
{
    ek_tensor *w = ek_apply(mapping, ek_f_flatten(z, 0, 1));
    w = ek_f_unflatten(w, 0, EK_SHAPE(-1, 2));
    if (!w || !cut)
        return NULL;
    ek_tensor *layers = ek_reshape(ek_arange(STYLEGAN_LAYERS, EK_I64, ek_tensor_device(cut)),
                                   EK_SHAPE(1, STYLEGAN_LAYERS, 1));
    return ek_where(ek_lt(layers, ek_reshape(cut, EK_SHAPE(-1, 1, 1))), ek_narrow(w, 1, 0, 1),
                    ek_narrow(w, 1, 1, 1));
}

/* Returns the path length of each sample (N): the root of the mean over layers of the squared norm
 * of the gradient of (picture * direction) with respect to w. Samples do not meet in a generator,
 * so that a device's own pictures have the whole gradient. */
static ek_tensor *stylegan_path_lengths(ek_tensor *pictures, ek_tensor *direction, ek_tensor *w)
{
    ek_tensor *sum = ek_sum(ek_mul(pictures, direction)), *gradient;
    if (!sum || ek_grad(.outputs = &sum, .output_count = 1, .inputs = &w, .input_count = 1,
                        .gradients = &gradient, .create_graph = true) < 0)
        return NULL;
    ek_tensor *squares = ek_mean(ek_sum(ek_square(gradient), EK_DIMS(2)), EK_DIMS(1));
    return ek_sqrt(ek_add_scalar(squares, tiny));
}

static ek_value stylegan_forward(ek_module *module, const ek_args *args)
{
    stylegan_module *self = (stylegan_module *)module;
    ek_tensor *w = stylegan_mix(self->mapping, ek_f_flatten(ek_arg_tensor(args, 0), 0, 1),
                                ek_f_flatten(ek_arg_tensor(args, 1), 0, 1));
    ek_tensor *pictures =
        ek_value_tensor(ek_forward(self->synthesis, w, ek_f_flatten(ek_arg_tensor(args, 2), 0, 1)));
    if (args->count > 3)
        pictures = stylegan_path_lengths(pictures, ek_f_flatten(ek_arg_tensor(args, 3), 0, 1), w);
    return ek_value_of_tensor(stylegan_group(pictures));
}

static const ek_module_type stylegan_type = {.name = "stylegan_generator",
                                             .size = sizeof(stylegan_module),
                                             .forward = stylegan_forward};

ek_module *stylegan_generator(int width, int latent)
{
    stylegan_module *self = (stylegan_module *)ek_module_new(&stylegan_type);
    if (!self)
        return NULL;
    ek_register_module(&self->module, "mapping", &self->mapping, mapping_new(latent));
    ek_register_module(&self->module, "synthesis", &self->synthesis, synthesis_new(width, latent));
    return ek_module_finish(&self->module);
}

/* ---- the discriminator ---- */

/* If height and width are halved, a convolution of one tap sees only the pixels that the filter
 * keeps. Larger convolutions slide over all pixels of the filter's output. */
static ek_value conv_forward(ek_module *module, const ek_args *args)
{
    equal_layer *self = (equal_layer *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    const int kernel = (int)ek_tensor_size(self->weight, 2),
              stride = self->filter && kernel > 1 ? 2 : 1;
    if (self->filter)
        x = filter_apply(self->filter, x, kernel > 1 ? 1 : 2, kernel > 1 ? 2 : 1);
    x = ek_f_conv2d(x, ek_mul_scalar(self->weight, self->weight_gain),
                    self->bias ? ek_mul_scalar(self->bias, self->bias_gain) : NULL,
                    .stride = stride, .padding = self->filter ? 0 : kernel / 2);
    return ek_value_of_tensor(self->activated ? ek_f_leaky_relu(x, slope) : x);
}

static const ek_module_type conv_type = {.name = "equal_conv",
                                         .size = sizeof(equal_layer),
                                         .forward = conv_forward};

static ek_module *conv_new(int in, int out, int kernel, bool halved, bool activated, double gain)
{
    equal_layer *self = (equal_layer *)ek_module_new(&conv_type);
    if (!self)
        return NULL;
    self->weight_gain = gain / sqrt((double)in * kernel * kernel);
    self->bias_gain = gain;
    self->activated = activated;
    ek_register_parameter(&self->module, "weight", &self->weight, stylegan_weight(out, in, kernel));
    if (activated)
        ek_register_parameter(&self->module, "bias", &self->bias, ek_zeros(EK_SHAPE(out)));
    if (halved)
        ek_register_buffer(&self->module, "filter", &self->filter, filter_new(1));
    return ek_module_finish(&self->module);
}

/* Halves height and width. Both branches are multiplied by the root of a half, so that their sum
 * keeps its deviation. */
typedef struct critic_block {
    ek_module module;
    ek_module *conv1, *conv2, *shortcut;
} critic_block;

static ek_value critic_block_forward(ek_module *module, const ek_args *args)
{
    critic_block *self = (critic_block *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *y = ek_apply(self->conv2, ek_apply(self->conv1, x));
    return ek_value_of_tensor(ek_add(y, ek_apply(self->shortcut, x)));
}

static const ek_module_type critic_block_type = {.name = "stylegan_critic_block",
                                                 .size = sizeof(critic_block),
                                                 .forward = critic_block_forward};

static ek_module *critic_block_new(int in, int out)
{
    critic_block *self = (critic_block *)ek_module_new(&critic_block_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "conv1", &self->conv1, conv_new(in, in, 3, false, true, root2));
    ek_register_module(m, "conv2", &self->conv2, conv_new(in, out, 3, true, true, 1));
    ek_register_module(m, "shortcut", &self->shortcut,
                       conv_new(in, out, 1, true, false, 1 / root2));
    return ek_module_finish(m);
}

/* Adds a channel to x (N, C, 4, 4): the deviation over a group, averaged over channels and pixels
 * (Karras et al. 2018). A group is STYLEGAN_GROUP samples in a row. */
static ek_value deviation_forward(ek_module *module, const ek_args *args)
{
    (void)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *groups = stylegan_group(ek_f_flatten(x, 1, -1));
    ek_tensor *apart = ek_sub(groups, ek_mean(groups, EK_DIMS(1), .keepdim = true));
    ek_tensor *variance = ek_mean(ek_square(apart), EK_DIMS(1), .keepdim = true);
    ek_tensor *deviation =
        ek_mean(ek_sqrt(ek_add_scalar(variance, tiny)), EK_DIMS(2), .keepdim = true);
    if (!deviation)
        return ek_value_error();
    int64_t count = ek_tensor_size(x, 0);
    deviation = ek_expand(deviation, EK_SHAPE(count / STYLEGAN_GROUP, STYLEGAN_GROUP, 16));
    ek_tensor *both[] = {x, ek_reshape(deviation, EK_SHAPE(count, 1, 4, 4))};
    return ek_value_of_tensor(ek_cat(both, 2, 1));
}

static const ek_module_type deviation_type = {.name = "stylegan_deviation",
                                              .size = sizeof(ek_module),
                                              .forward = deviation_forward};

ek_module *stylegan_critic(int width)
{
    const int most = stylegan_channels(width, 0);
    ek_module *body[RESOLUTIONS] = {conv_new(1, width, 1, false, true, root2)};
    for (int level = RESOLUTIONS - 1; level > 0; level--)
        body[RESOLUTIONS - level] =
            critic_block_new(stylegan_channels(width, level), stylegan_channels(width, level - 1));
    return ek_sequential_named(
        {"join", ek_flatten(0, 1)}, {"body", ek_sequential_of(body, RESOLUTIONS)},
        {"deviation", ek_module_new(&deviation_type)},
        {"conv", conv_new(most + 1, most, 3, false, true, root2)}, {"flatten", ek_flatten(1, -1)},
        {"head", ek_sequential(linear_new(16 * (int64_t)most, most, 0, 1, true),
                               linear_new(most, 1, 0, 1, false))},
        {"group", ek_unflatten(0, EK_SHAPE(-1, STYLEGAN_GROUP))}, {"scores", ek_flatten(1, -1)});
}
