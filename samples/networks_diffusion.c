/* networks_diffusion.c: the U-Net of a diffusion model, against the public headers alone. */
#include <math.h>

#include "networks.h"

enum {
    HEADS = 4,   /* heads of attention */
    EMBEDDED = 4 /* a time becomes EMBEDDED * width features */
};

/* ---- one residual block ---- */

/* Norm, SiLU and convolution, twice; between them a time's features are added to all pixels. */
typedef struct residual_block {
    ek_module module;
    ek_module *norm1, *conv1, *time, *norm2, *conv2;
    ek_module *shortcut; /* a projection if channels change, else the identity */
} residual_block;

/* Takes x (N, in, H, W) and features (N, F). */
static ek_value residual_forward(ek_module *module, const ek_args *args)
{
    residual_block *self = (residual_block *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *y = ek_apply(self->conv1, ek_f_silu(ek_apply(self->norm1, x)));
    ek_tensor *added = ek_apply(self->time, ek_arg_tensor(args, 1));
    y = ek_add(y, ek_unsqueeze(ek_unsqueeze(added, 2), 3));
    y = ek_apply(self->conv2, ek_f_silu(ek_apply(self->norm2, y)));
    return ek_value_of_tensor(ek_add(y, ek_apply(self->shortcut, x)));
}

static const ek_module_type residual_type = {.name = "diffusion_residual",
                                             .size = sizeof(residual_block),
                                             .forward = residual_forward};

static ek_module *residual_new(int in, int out, int features)
{
    residual_block *self = (residual_block *)ek_module_new(&residual_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "norm1", &self->norm1, ek_group_norm(DIFFUSION_GROUPS, in));
    ek_register_module(m, "conv1", &self->conv1, ek_conv2d(in, out, 3, .padding = 1));
    ek_register_module(m, "time", &self->time, ek_linear(features, out));
    ek_register_module(m, "norm2", &self->norm2, ek_group_norm(DIFFUSION_GROUPS, out));
    ek_register_module(m, "conv2", &self->conv2, ek_conv2d(out, out, 3, .padding = 1));
    ek_register_module(m, "shortcut", &self->shortcut,
                       in == out ? ek_identity() : ek_conv2d(in, out, 1));
    return ek_module_finish(m);
}

/* ---- self-attention of all pixels ---- */

typedef struct attention_block {
    ek_module module;
    ek_module *norm, *in, *out;
} attention_block;

static ek_value attention_forward(ek_module *module, const ek_args *args)
{
    attention_block *self = (attention_block *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *all = ek_apply(self->in, ek_apply(self->norm, x)), *qkv[3];
    if (!all)
        return ek_value_error();
    const int64_t count = ek_tensor_size(all, 0), size = ek_tensor_size(all, 1) / 3 / HEADS,
                  pixels = ek_tensor_size(all, 2) * ek_tensor_size(all, 3);
    all = ek_reshape(all, EK_SHAPE(count, (int64_t)3 * HEADS, size, pixels));
    if (ek_chunk(ek_transpose(all, 2, 3), 3, 1, qkv, 3) < 0)
        return ek_value_error();
    ek_tensor *y = ek_f_scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
    y = ek_reshape(ek_transpose(y, 2, 3), ek_tensor_shape(x));
    return ek_value_of_tensor(ek_add(x, ek_apply(self->out, y)));
}

static const ek_module_type attention_type = {.name = "diffusion_attention",
                                              .size = sizeof(attention_block),
                                              .forward = attention_forward};

static ek_module *attention_new(int channels)
{
    attention_block *self = (attention_block *)ek_module_new(&attention_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "norm", &self->norm, ek_group_norm(DIFFUSION_GROUPS, channels));
    ek_register_module(m, "in", &self->in, ek_conv2d(channels, 3 * channels, 1));
    ek_register_module(m, "out", &self->out, ek_conv2d(channels, channels, 1));
    return ek_module_finish(m);
}

/* ---- levels, each of half the height and width of the one around it ---- */

/* The innermost level has attention between its blocks. Every other level has the next level there,
 * whose output is joined with its input. */
typedef struct level_module {
    ek_module module;
    ek_module *before, *attention, *down, *inner, *up, *after;
} level_module;

static ek_value level_forward(ek_module *module, const ek_args *args)
{
    level_module *self = (level_module *)module;
    ek_tensor *time = ek_arg_tensor(args, 1);
    ek_tensor *x = ek_value_tensor(ek_forward(self->before, ek_arg_tensor(args, 0), time));
    if (self->attention)
        return ek_forward(self->after, ek_apply(self->attention, x), time);
    ek_tensor *y = ek_value_tensor(ek_forward(self->inner, ek_apply(self->down, x), time));
    ek_tensor *both[] = {x, ek_apply(self->up, y)};
    return ek_forward(self->after, ek_cat(both, 2, 1), time);
}

static const ek_module_type level_type = {.name = "diffusion_level",
                                          .size = sizeof(level_module),
                                          .forward = level_forward};

static ek_module *level_new(int in, int width, int depth, int features)
{
    level_module *self = (level_module *)ek_module_new(&level_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "before", &self->before, residual_new(in, width, features));
    if (depth == 0) {
        ek_register_module(m, "attention", &self->attention, attention_new(width));
    } else {
        ek_register_module(m, "down", &self->down,
                           ek_conv2d(width, width, 3, .stride = 2, .padding = 1));
        ek_register_module(m, "inner", &self->inner,
                           level_new(width, 2 * width, depth - 1, features));
        ek_register_module(m, "up", &self->up,
                           ek_sequential(ek_upsample(.scale_factor = 2),
                                         ek_conv2d(2 * width, width, 3, .padding = 1)));
    }
    ek_register_module(m, "after", &self->after,
                       residual_new(depth > 0 ? 2 * width : width, width, features));
    return ek_module_finish(m);
}

/* ---- the network ---- */

typedef struct diffusion_module {
    ek_module module;
    ek_module *time, *classes, *in, *levels, *norm, *out;
    int width;
} diffusion_module;

/* Returns sines and cosines of times (N) in `dtype`, at frequencies from 1 down to nearly 1 /
 * 10000: (N, width), like positions in transformers (Vaswani et al. 2017). */
static ek_tensor *diffusion_waves(ek_tensor *times, int width, ek_dtype dtype)
{
    const int half = width / 2;
    if (!times)
        return NULL;
    ek_tensor *numbers = ek_arange(half, dtype, ek_tensor_device(times));
    ek_tensor *angles = ek_mul(ek_unsqueeze(ek_to_dtype(times, dtype), 1),
                               ek_exp(ek_mul_scalar(numbers, -log(10000) / half)));
    ek_tensor *both[] = {ek_sin(angles), ek_cos(angles)};
    return ek_cat(both, 2, 1);
}

static ek_value diffusion_forward(ek_module *module, const ek_args *args)
{
    diffusion_module *self = (diffusion_module *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    if (!x)
        return ek_value_error();
    ek_tensor *time = diffusion_waves(ek_arg_tensor(args, 1), self->width, ek_tensor_dtype(x));
    time = ek_add(ek_apply(self->time, time), ek_apply(self->classes, ek_arg_tensor(args, 2)));
    x = ek_value_tensor(ek_forward(self->levels, ek_apply(self->in, x), ek_f_silu(time)));
    x = ek_apply(self->out, ek_f_silu(ek_apply(self->norm, x)));
    return ek_value_of_tensor(x);
}

static const ek_module_type diffusion_type = {.name = "diffusion_unet",
                                              .size = sizeof(diffusion_module),
                                              .forward = diffusion_forward};

ek_module *diffusion_unet(int channels, int width, int depth, int classes)
{
    const int features = EMBEDDED * width;
    diffusion_module *self = (diffusion_module *)ek_module_new(&diffusion_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    self->width = width;
    ek_register_module(m, "time", &self->time,
                       ek_sequential(ek_linear(width, features), ek_silu(),
                                     ek_linear(features, features)));
    ek_register_module(m, "classes", &self->classes, ek_embedding(classes + 1, features));
    ek_register_module(m, "in", &self->in, ek_conv2d(channels, width, 3, .padding = 1));
    ek_register_module(m, "levels", &self->levels, level_new(width, width, depth, features));
    ek_register_module(m, "norm", &self->norm, ek_group_norm(DIFFUSION_GROUPS, width));
    ek_register_module(m, "out", &self->out, ek_conv2d(width, channels, 3, .padding = 1));
    return ek_module_finish(m);
}
