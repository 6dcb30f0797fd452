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
    X(upsample_bilinear, "f1x2x2x2", ek_f_upsample(x[0], 3, 4, EK_BILINEAR, true))             \
    X(interpolate, "f1x2x2x2", ek_f_interpolate(x[0], .scale_factor = 2, .mode = EK_BICUBIC))  \
    X(grid_sample, "f1x1x2x2 f1x2x2x2", ek_f_grid_sample(x[0], x[1]))                          \
    X(affine_grid, "f1x2x3", ek_f_affine_grid(x[0], EK_SHAPE(1, 1, 2, 2), false))

ROWS_STAGE(ops_spatial, CONVOLUTIONS);

/* Two samples with one and two classes. */
static ek_tensor *read_as(ek_tensor *x)
{
    static const int64_t classes[] = {1, 2, 2, 1}, frames[] = {3, 4}, lengths[] = {1, 2};
    ek_tensor *targets = ek_from_data(classes, EK_SHAPE(2, 2), EK_I64);
    return ek_f_ctc_loss(ek_f_log_softmax(x, 2), targets, ek_from_data(frames, EK_SHAPE(2), EK_I64),
                         ek_from_data(lengths, EK_SHAPE(2), EK_I64));
}

#define NORMALISATIONS(X)                                                                  \
    X(batch_norm, "f3x2x2x2 f2 f2", batch_norm(x))                                         \
    X(batch_norm_plain, "f4x2", ek_f_batch_norm(x[0], .training = true))                   \
    X(layer_norm, "f2x3 f3 f3", ek_f_layer_norm(x[0], 1, x[1], x[2], 1e-5))                \
    X(group_norm, "f2x4x2 f4 f4", ek_f_group_norm(x[0], 2, x[1], x[2], 1e-5))              \
    X(instance_norm, "f2x2x3 f2 f2", ek_f_instance_norm(x[0], x[1], x[2], 1e-5))           \
    X(nll_loss, "f4x3 i4 c3", ek_f_nll_loss(ek_f_log_softmax(x[0], 1), x[1], x[2]))        \
    X(cross_entropy, "f4x3 i4", ek_f_cross_entropy(x[0], x[1], .label_smoothing = 0.1))    \
    X(cross_entropy_weighted, "f2x3x2 i2x2 c3",                                            \
      ek_f_cross_entropy(x[0], x[1], x[2], .ignore_index = 1))                             \
    X(cross_entropy_each, "f4x3 i4", ek_f_cross_entropy(x[0], x[1], .reduction = EK_NONE)) \
    X(token_cross_entropy, "f2x2x3 i2x2 c3",                                               \
      ek_f_token_cross_entropy(x[0], x[1], x[2], .ignore_index = 1))                       \
    X(token_cross_entropy_each, "f2x2x3 i2x2",                                             \
      ek_f_token_cross_entropy(x[0], x[1], .reduction = EK_NONE))                          \
    X(mse_loss, "f2x3 f2x3", ek_f_mse_loss(x[0], x[1]))                                    \
    X(l1_loss, "f2x3 f2x3", ek_f_l1_loss(x[0], x[1], .reduction = EK_SUM))                 \
    X(bce_with_logits, "f2x3 b2x3 c3",                                                     \
      ek_f_bce_with_logits(x[0], ek_to_dtype(x[1], EK_F32), .pos_weight = x[2]))           \
    X(target_weight, "i4 c3", ek_target_weight(x[0], x[1], -100, EK_F32))                  \
    X(cross_entropy_probabilities, "f2x3 f2x3 c3",                                         \
      ek_f_cross_entropy(x[0], x[1], x[2], .label_smoothing = 0.1))                        \
    X(smooth_l1_loss, "f2x3 f2x3", ek_f_smooth_l1_loss(x[0], x[1], .beta = 0.5))           \
    X(huber_loss, "f2x3 f2x3", ek_f_huber_loss(x[0], x[1]))                                \
    X(bce, "f2x3 p2x3", ek_f_bce(ek_f_sigmoid(x[0]), x[1]))                                \
    X(soft_margin_loss, "f2x3 c2x3", ek_f_soft_margin_loss(x[0], x[1]))                    \
    X(multilabel_soft_margin, "f2x3 c2x3", ek_f_multilabel_soft_margin_loss(x[0], x[1]))   \
    X(kl_div, "f2x3 p2x3", ek_f_kl_div(x[0], x[1], EK_BATCH_MEAN))                         \
    X(poisson_nll_loss, "f2x3 p2x3", ek_f_poisson_nll_loss(x[0], x[1], .full = true))      \
    X(gaussian_nll_loss, "f2x3 f2x3 p2", ek_f_gaussian_nll_loss(x[0], x[1], x[2]))         \
    X(margin_ranking_loss, "f4 f4 c4", ek_f_margin_ranking_loss(x[0], x[1], x[2]))         \
    X(hinge_embedding_loss, "f4 c4", ek_f_hinge_embedding_loss(x[0], ek_sign(x[1])))       \
    X(cosine_embedding_loss, "f2x3 f2x3 c2",                                               \
      ek_f_cosine_embedding_loss(x[0], x[1], ek_sign(x[2])))                               \
    X(triplet_margin_loss, "f2x3 f2x3 f2x3",                                               \
      ek_f_triplet_margin_loss(x[0], x[1], x[2], .margin = 9, .swap = true))               \
    X(multi_margin_loss, "f2x3 i2 c3", ek_f_multi_margin_loss(x[0], x[1], x[2], .p = 2))   \
    X(multilabel_margin_loss, "f2x3 i2x3", ek_f_multilabel_margin_loss(x[0], x[1]))        \
    X(ctc_loss, "f4x2x3", read_as(x[0]))

ROWS_STAGE(ops_losses, NORMALISATIONS);
