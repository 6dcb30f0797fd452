/* stage_ops_nn.c: ops.h: convolution, pooling, normalisation, losses. */
#include "rows.h"

static ek_tensor *narrow_conv(ek_tensor *x, ek_tensor *weight)
{
    ek_autocast autocast = ek_autocast_begin(EK_BF16);
    ek_tensor *y = ek_f_conv2d(x, weight, .padding = 1);
    ek_autocast_end(&autocast);
    return y;
}

/* Also what it writes to the running statistics. */
static ek_tensor *batch_norm(ek_tensor *const *x)
{
    ek_tensor *mean = ek_zeros(EK_SHAPE(2), .device = ek_host(0));
    ek_tensor *var = ek_ones(EK_SHAPE(2), .device = ek_host(0));
    ek_tensor *y = ek_f_batch_norm(x[0], x[1], x[2], mean, var, .training = true);
    return y ? ek_add(y, ek_sum(ek_add(mean, var))) : NULL;
}

static ek_tensor *to_f64(ek_tensor *x)
{
    return ek_to_dtype(x, EK_F64);
}

#define CONVOLUTIONS(X)                                                                        \
    X(conv1d, "f1x2x4 f2x2x3 f2", ek_f_conv1d(x[0], x[1], x[2], .padding = 1))                 \
    X(conv2d, "f1x2x4x4 f2x2x3x3 f2", ek_f_conv2d(x[0], x[1], x[2], .padding = 1))             \
    X(conv2d_groups, "f1x2x4x4 f2x1x3x3", ek_f_conv2d(x[0], x[1], .groups = 2, .dilation = 1)) \
    X(conv2d_f64, "f1x2x4x4 f2x2x3x3", ek_f_conv2d(to_f64(x[0]), to_f64(x[1])))                \
    X(conv2d_narrow, "f1x2x4x4 f2x2x3x3", narrow_conv(x[0], x[1]))                             \
    X(conv3d, "f1x1x2x3x3 f1x1x2x2x2 f1", ek_f_conv3d(x[0], x[1], x[2]))                       \
    X(conv_transpose1d, "f1x2x3 f2x1x3", ek_f_conv_transpose1d(x[0], x[1], .stride = 2))       \
    X(conv_transpose2d, "f1x2x2x2 f2x1x3x3 f1",                                                \
      ek_f_conv_transpose2d(x[0], x[1], x[2], .stride = 2, .padding = 1, .output_padding = 1)) \
    X(conv_transpose3d, "f1x1x2x2x2 f1x1x2x2x2", ek_f_conv_transpose3d(x[0], x[1]))            \
    X(max_pool1d, "f1x2x4", ek_f_max_pool1d(x[0], 2))                                          \
    X(max_pool2d, "f1x2x4x4", ek_f_max_pool2d(x[0], 3, .stride = 2, .padding = 1))             \
    X(max_pool3d, "f1x1x2x2x2", ek_f_max_pool3d(x[0], 2))                                      \
    X(avg_pool1d, "f1x2x4", ek_f_avg_pool1d(x[0], 2))                                          \
    X(avg_pool2d, "f1x2x4x4", ek_f_avg_pool2d(x[0], 2, .ceil_mode = true))                     \
    X(avg_pool3d, "f1x1x2x2x2", ek_f_avg_pool3d(x[0], 2))                                      \
    X(adaptive_avg_pool1d, "f1x2x5", ek_f_adaptive_avg_pool1d(x[0], 2))                        \
    X(adaptive_avg_pool2d, "f1x2x5x3", ek_f_adaptive_avg_pool2d(x[0], 2, 2))                   \
    X(adaptive_avg_pool3d, "f1x1x3x2x2", ek_f_adaptive_avg_pool3d(x[0], 2, 1, 1))              \
    X(upsample_nearest, "f1x2x2x2", ek_f_upsample(x[0], 4, 3, EK_NEAREST, false))              \
    X(upsample_bilinear, "f1x2x2x2", ek_f_upsample(x[0], 3, 4, EK_BILINEAR, true))

ROWS_STAGE(ops_spatial, CONVOLUTIONS);

#define NORMALISATIONS(X)                                                                  \
    X(batch_norm, "f3x2x2x2 f2 f2", batch_norm(x))                                         \
    X(batch_norm_plain, "f4x2", ek_f_batch_norm(x[0], .training = true))                   \
    X(layer_norm, "f2x3 f3 f3", ek_f_layer_norm(x[0], 1, x[1], x[2], 0))                   \
    X(group_norm, "f2x4x2 f4 f4", ek_f_group_norm(x[0], 2, x[1], x[2], 0))                 \
    X(instance_norm, "f2x2x3 f2 f2", ek_f_instance_norm(x[0], x[1], x[2], 0))              \
    X(nll_loss, "f4x3 i4 c3", ek_f_nll_loss(ek_f_log_softmax(x[0], 1), x[1], x[2]))        \
    X(cross_entropy, "f4x3 i4", ek_f_cross_entropy(x[0], x[1], .label_smoothing = 0.1))    \
    X(cross_entropy_weighted, "f2x3x2 i2x2 c3",                                            \
      ek_f_cross_entropy(x[0], x[1], x[2], .ignore_index = 1))                             \
    X(cross_entropy_each, "f4x3 i4", ek_f_cross_entropy(x[0], x[1], .reduction = EK_NONE)) \
    X(mse_loss, "f2x3 f2x3", ek_f_mse_loss(x[0], x[1]))                                    \
    X(l1_loss, "f2x3 f2x3", ek_f_l1_loss(x[0], x[1], .reduction = EK_SUM))                 \
    X(bce_with_logits, "f2x3 b2x3 c3",                                                     \
      ek_f_bce_with_logits(x[0], ek_to_dtype(x[1], EK_F32), .pos_weight = x[2]))           \
    X(target_weight, "i4 c3", ek_target_weight(x[0], x[1], -100, EK_F32))

ROWS_STAGE(ops_losses, NORMALISATIONS);
