/* networks_segmentation.c: networks that label every pixel, and their criteria, against the public
 * headers alone. */
#include "networks.h"

/* ---- a strided encoder ---- */

static ek_module *segmentation_stage(int in, int out, int stride)
{
    return ek_sequential(ek_conv2d(in, out, 3, .stride = stride, .padding = 1),
                         ek_batch_norm2d(out), ek_relu());
}

ek_module *segmentation_network(int width)
{
    return ek_sequential(segmentation_stage(1, width, 2), segmentation_stage(width, 2 * width, 2),
                         segmentation_stage(2 * width, 2 * width, 1),
                         segmentation_stage(2 * width, 4 * width, 2),
                         segmentation_stage(4 * width, 4 * width, 1),
                         segmentation_stage(4 * width, 6 * width, 1),
                         ek_conv2d(6 * width, SCENE_CLASSES, 1));
}

/* The criterion of segmentation_network: a user's own module. */

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    (void)module;
    ek_tensor *target = ek_to_dtype(ek_arg_tensor(args, 1), EK_I64);
    if (!target)
        return ek_value_error();
    if (ek_tensor_ndim(target) != 3) {
        ek_error(EK_E_SHAPE, "segmentation: the target has %d dimensions; (N, H, W) is wanted",
                 ek_tensor_ndim(target));
        return ek_value_error();
    }
    ek_tensor *logits = ek_f_upsample(ek_arg_tensor(args, 0), ek_tensor_size(target, 1),
                                      ek_tensor_size(target, 2), EK_BILINEAR, true);
    return ek_value_of_tensor(ek_f_cross_entropy(logits, target, .ignore_index = SCENE_IGNORED));
}

/* The mean is over pixels that are not ignored. Means over uneven devices are exact with this
 * number. */
static ek_tensor *criterion_denominator(ek_module *module, const ek_args *args)
{
    (void)module;
    ek_tensor *logits = ek_arg_tensor(args, 0);
    return logits ? ek_target_weight(ek_to_dtype(ek_arg_tensor(args, 1), EK_I64), NULL,
                                     SCENE_IGNORED, ek_tensor_dtype(logits))
                  : NULL;
}

static const ek_module_type criterion_type = {
    .name = "segmentation",
    .size = sizeof(ek_module),
    .forward = criterion_forward,
    .denominator = criterion_denominator,
};

ek_module *segmentation_criterion(void)
{
    return ek_module_new(&criterion_type);
}

/* ---- a U-Net (Ronneberger et al. 2015) ---- */

typedef struct unet_level {
    ek_module module;
    ek_module *before, *after;
    ek_module *inner; /* pooling, and the next level */
    ek_module *up;    /* halves the channels and, if it is transposed, doubles height and width */
} unet_level;

/* A level's output has its input's height and width. */
static ek_value unet_forward(ek_module *module, const ek_args *args)
{
    unet_level *self = (unet_level *)module;
    ek_tensor *skipped = ek_apply(self->before, ek_arg_tensor(args, 0));
    ek_tensor *up = ek_apply(self->up, ek_apply(self->inner, skipped));
    if (!up)
        return ek_value_error();
    const int64_t height = ek_tensor_size(skipped, 2), width = ek_tensor_size(skipped, 3);
    if (ek_tensor_size(up, 2) != height || ek_tensor_size(up, 3) != width)
        up = ek_f_upsample(up, height, width, EK_BILINEAR, true);
    ek_tensor *both[] = {skipped, up};
    return ek_value_of_tensor(ek_apply(self->after, ek_cat(both, 2, 1)));
}

static const ek_module_type unet_type = {.name = "unet_level",
                                         .size = sizeof(unet_level),
                                         .forward = unet_forward};

static ek_module *unet_convolutions(int in, int out)
{
    return ek_sequential(ek_conv2d(in, out, 3, .padding = 1, .bias = false), ek_batch_norm2d(out),
                         ek_relu(), ek_conv2d(out, out, 3, .padding = 1, .bias = false),
                         ek_batch_norm2d(out), ek_relu());
}

/* Makes `depth` levels of skips around the innermost level. A 1 x 1 convolution gives the same
 * before bilinear upsampling as after it, at a quarter of the pixels. */
static ek_module *unet_levels(int in, int width, int depth, unet_up up)
{
    if (depth == 0)
        return unet_convolutions(in, width);
    unet_level *self = (unet_level *)ek_module_new(&unet_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "before", &self->before, unet_convolutions(in, width));
    ek_register_module(m, "inner", &self->inner,
                       ek_sequential(ek_max_pool2d(2),
                                     unet_levels(width, 2 * width, depth - 1, up)));
    ek_register_module(m, "up", &self->up,
                       up == UNET_BILINEAR ? ek_conv2d(2 * width, width, 1)
                                           : ek_conv_transpose2d(2 * width, width, 2, .stride = 2));
    ek_register_module(m, "after", &self->after, unet_convolutions(2 * width, width));
    return ek_module_finish(m);
}

ek_module *unet(int channels, int width, int depth, unet_up up, bool apart, int classes)
{
    ek_module *m =
        ek_sequential(unet_levels(channels, width, depth, up), ek_conv2d(width, classes, 1));
    return m && !apart ? ek_convert_sync_batch_norm(m) : m;
}

/* The second criterion of the U-Net beside cross entropy. */

/* Returns (N): the mean of the coefficients of the classes that the sample has. SCENE_IGNORED is no
 * class, so that ignored pixels are in no sum of labels. */
static ek_tensor *dice_of_samples(ek_tensor *logits, ek_tensor *target)
{
    const int64_t classes = ek_tensor_size(logits, 1);
    const ek_dtype dtype = ek_tensor_dtype(logits);
    const ek_device device = ek_tensor_device(logits);
    ek_tensor *labels = ek_unsqueeze(target, 1);
    ek_tensor *all = ek_reshape(ek_arange(classes, EK_I64, device), EK_SHAPE(1, classes, 1, 1));
    ek_tensor *right = ek_to_dtype(ek_eq(labels, all), dtype);
    ek_tensor *counted = ek_ne(labels, ek_scalar(SCENE_IGNORED, EK_I64, device));
    ek_tensor *found = ek_mul(ek_f_softmax(logits, 1), ek_to_dtype(counted, dtype));
    ek_tensor *both = ek_sum(ek_mul(found, right), EK_DIMS(2, 3));
    ek_tensor *of_labels = ek_sum(right, EK_DIMS(2, 3));
    ek_tensor *either = ek_add(ek_sum(found, EK_DIMS(2, 3)), of_labels);
    ek_tensor *dice = ek_div(ek_add_scalar(ek_mul_scalar(both, 2), 1), ek_add_scalar(either, 1));
    ek_tensor *has = ek_clamp(of_labels, 0, 1);
    return ek_div(ek_sum(ek_mul(dice, has), EK_DIMS(1)),
                  ek_clamp(ek_sum(has, EK_DIMS(1)), 1, (double)classes));
}

ek_tensor *f_dice_loss(ek_tensor *logits, ek_tensor *target)
{
    if (!logits || !target)
        return NULL;
    const ek_dtype dtype = ek_tensor_dtype(logits) == EK_F64 ? EK_F64 : EK_F32;
    ek_tensor *dice = dice_of_samples(ek_to_dtype(logits, dtype), target);
    return ek_add_scalar(ek_neg(ek_mean(dice)), 1);
}

static ek_value dice_forward(ek_module *module, const ek_args *args)
{
    (void)module;
    return ek_value_of_tensor(f_dice_loss(ek_arg_tensor(args, 0), ek_arg_tensor(args, 1)));
}

/* Without a denominator a criterion counts as a mean over samples. */
static const ek_module_type dice_type = {.name = "dice",
                                         .size = sizeof(ek_module),
                                         .forward = dice_forward};

ek_module *dice_loss(void)
{
    return ek_module_new(&dice_type);
}
