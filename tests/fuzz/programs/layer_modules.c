/* layer_modules.c: placed layers as modules, and as text. */
#include <evenkeel/parallel.h>
#include <stdio.h>
#include <string.h>

#include "layers.h"
#include "modules.h"

/* Calls the constructor for the layer's number of directions. */
#define OF_RANK(name, ...)                              \
    (l->before.rank == 1   ? ek_##name##1d(__VA_ARGS__) \
     : l->before.rank == 2 ? ek_##name##2d(__VA_ARGS__) \
                           : ek_##name##3d(__VA_ARGS__))

static ek_module *make_conv(const placed_layer *l)
{
    return OF_RANK(conv, l->before.features, l->after.features, l->kernel, .stride = l->stride,
                   .padding = l->padding, .dilation = l->dilation, .groups = l->groups,
                   .bias = l->bias);
}

static ek_module *make_transpose(const placed_layer *l)
{
    return OF_RANK(conv_transpose, l->before.features, l->after.features, l->kernel,
                   .stride = l->stride, .padding = l->padding, .dilation = l->dilation,
                   .groups = l->groups, .output_padding = l->output_padding, .bias = l->bias);
}

static ek_module *make_norm(const placed_layer *l)
{
    const int64_t features = l->before.features;
    const bool affine = l->affine;
    if (l->kind == LAYER_GROUP_NORM)
        return ek_group_norm(l->groups, features, .affine = affine);
    if (l->kind == LAYER_INSTANCE_NORM)
        return OF_RANK(instance_norm, features, .affine = affine);
    const double momentum = l->variant % 7 == 0 ? EK_CUMULATIVE : l->variant % 5 == 0 ? 0.3 : 0.1;
    if (l->kind == LAYER_SYNC_NORM)
        return ek_sync_batch_norm(features, .momentum = momentum, .affine = affine);
    return l->before.rank == 0
               ? ek_batch_norm1d(features, .momentum = momentum, .affine = affine)
               : OF_RANK(batch_norm, features, .momentum = momentum, .affine = affine);
}

static ek_module *make_layer_norm(const placed_layer *l)
{
    ek_shape shape = batch_shape(&l->before, 1);
    shape.ndim--;
    memmove(shape.dims, shape.dims + 1, (size_t)shape.ndim * sizeof *shape.dims);
    return ek_layer_norm(shape, .affine = l->affine);
}

static ek_module *make_pool(const placed_layer *l)
{
    if (l->kind == LAYER_MAX_POOL)
        return OF_RANK(max_pool, l->kernel, .stride = l->stride, .padding = l->padding);
    return OF_RANK(avg_pool, l->kernel, .stride = l->stride, .padding = l->padding);
}

static ek_module *make_adaptive_pool(const placed_layer *l)
{
    int size = l->after.sizes[0];
    return l->before.rank == 1   ? ek_adaptive_avg_pool1d(size)
           : l->before.rank == 2 ? ek_adaptive_avg_pool2d(size, size)
                                 : ek_adaptive_avg_pool3d(size, size, size);
}

static ek_module *make_linear(const placed_layer *l)
{
    ek_module *linear = ek_linear(sample_count(&l->before), l->after.features, .bias = l->bias);
    return l->before.rank > 0 ? ek_sequential(ek_flatten(1, -1), linear) : linear;
}

static ek_module *make_upsample(const placed_layer *l)
{
    bool bilinear = l->variant % 2;
    return ek_upsample(.sizes = {l->after.sizes[0], l->after.sizes[1]},
                       .mode = bilinear ? EK_BILINEAR : EK_NEAREST,
                       .align_corners = bilinear && l->variant / 2 % 2);
}

static ek_module *make_bare(const placed_layer *l)
{
    switch (l->kind) {
        CASE_IS(LAYER_LINEAR, make_linear(l));
        CASE_IS(LAYER_CONV, make_conv(l));
        CASE_IS(LAYER_TRANSPOSE, make_transpose(l));
        CASE_IS(LAYER_BATCH_NORM, make_norm(l));
        CASE_IS(LAYER_SYNC_NORM, make_norm(l));
        CASE_IS(LAYER_GROUP_NORM, make_norm(l));
        CASE_IS(LAYER_INSTANCE_NORM, make_norm(l));
        CASE_IS(LAYER_LAYER_NORM, make_layer_norm(l));
        CASE_IS(LAYER_RELU, ek_relu());
        CASE_IS(LAYER_LEAKY_RELU, ek_leaky_relu(0.2));
        CASE_IS(LAYER_SIGMOID, ek_sigmoid());
        CASE_IS(LAYER_TANH, ek_tanh());
        CASE_IS(LAYER_DROPOUT, ek_dropout(l->variant % 2 ? 0.3 : 0));
        CASE_IS(LAYER_FLATTEN, ek_flatten(1, -1));
        CASE_IS(LAYER_MAX_POOL, make_pool(l));
        CASE_IS(LAYER_AVG_POOL, make_pool(l));
        CASE_IS(LAYER_ADAPTIVE_POOL, make_adaptive_pool(l));
        CASE_IS(LAYER_UPSAMPLE, make_upsample(l));
        CASE_IS(LAYER_GUARD, guard_new(l->variant));
        CASE_IS(LAYER_OPS, ops_new(l->variant));
        CASE_IS(LAYER_MIX, mix_new());
        CASE_IS(LAYER_SPARE, spare_new(l->before.features));
        CASE_IS(LAYER_WRONG, wrong_new());
    default:
        return ek_identity();
    }
}

ek_module *make_layer(const placed_layer *l)
{
    ek_module *module = make_bare(l);
    if (module && l->wrap == WRAP_CHECKPOINT)
        module = ek_checkpoint(module);
    else if (module && l->wrap == WRAP_RESIDUAL)
        module = residual_new(module);
    else if (module && l->wrap == WRAP_TIED)
        module = tied_new(module);
    if (module && l->frozen)
        ek_module_set_requires_grad(module, false);
    return module;
}

/* ---- text ---- */

static void write_bare(const placed_layer *l, char text[200])
{
    int in = l->before.features, out = l->after.features, rank = l->before.rank;
    const char *affine = l->affine ? "true" : "false";
    char extra[40] = "";
    switch (l->kind) {
    case LAYER_LINEAR:
        sprintf(text, "%sek_linear(%d, %d, .bias = %s)", rank > 0 ? "ek_flatten(1, -1), " : "",
                sample_count(&l->before), out, l->bias ? "true" : "false");
        break;
    case LAYER_CONV:
    case LAYER_TRANSPOSE:
        if (l->output_padding)
            sprintf(extra, ", .output_padding = %d", l->output_padding);
        sprintf(text,
                "ek_conv%s%dd(%d, %d, %d, .stride = %d, .padding = %d, .dilation = %d, "
                ".groups = %d%s, .bias = %s)",
                l->kind == LAYER_CONV ? "" : "_transpose", rank, in, out, l->kernel, l->stride,
                l->padding, l->dilation, l->groups, extra, l->bias ? "true" : "false");
        break;
    case LAYER_BATCH_NORM:
        sprintf(text, "ek_batch_norm%dd(%d, .affine = %s)", rank ? rank : 1, in, affine);
        break;
    case LAYER_SYNC_NORM:
    case LAYER_INSTANCE_NORM:
        sprintf(text, "ek_%s(%d, .affine = %s)",
                l->kind == LAYER_SYNC_NORM ? "sync_batch_norm" : "instance_norm", in, affine);
        break;
    case LAYER_GROUP_NORM:
        sprintf(text, "ek_group_norm(%d, %d, .affine = %s)", l->groups, in, affine);
        break;
    case LAYER_DROPOUT:
        sprintf(text, "ek_dropout(%g)", l->variant % 2 ? 0.3 : 0);
        break;
    case LAYER_MAX_POOL:
    case LAYER_AVG_POOL:
        sprintf(text, "ek_%s_pool%dd(%d, .stride = %d, .padding = %d)",
                l->kind == LAYER_MAX_POOL ? "max" : "avg", rank, l->kernel, l->stride, l->padding);
        break;
    case LAYER_OPS:
        sprintf(text, "ops_new(%d) /* %s in ops.c */", l->variant % OPS_VARIANTS,
                ops_name(l->variant));
        break;
    default:
        sprintf(text, "%s(%d)", layer_word(l->kind), l->after.sizes[0]);
    }
}

char *write_layer(const placed_layer *l, char text[200])
{
    static const char *const wraps[] = {"%s%s%s", "%sek_checkpoint(%s)%s", "%sresidual_new(%s)%s",
                                        "%stied_new(%s)%s"};
    char bare[200];
    write_bare(l, bare);
    snprintf(text, 200, wraps[l->wrap], "", bare, l->frozen ? " /* frozen */" : "");
    return text;
}
