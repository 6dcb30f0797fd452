/* Every operation, a row each: values and gradients against PyTorch's in f64, f32 and bf16, in
 * memory of several orders and of views; i64; finite differences of first and second order; third
 * derivatives; no samples; threads. On GPUs too (devices.h). */
#include "ops/linear.h"
#include "table.h"

#include "ops/norm.h"

COST(15)

FIXTURE(two_devices, NULL)

/* ---- one golden of its own each ---- */

FROM(.file = "ops.golden", .inputs = {"x0", "x1", "x2", "x3"}, .dy = "g", .tolerance = 2e-6)

enum { PLAIN = BF16 | INTEGERS, AT_KINK = KINKED | BF16 };

ROW(add, PLAIN, ek_add(x[0], x[1]))
ROW(add_scalar_tensor, PLAIN, ek_add(x[0], x[1]))
ROW(sub, PLAIN, ek_sub(x[0], x[1]))
ROW(mul, PLAIN, ek_mul(x[0], x[1]))
ROW(mul_self, PLAIN, ek_mul(x[0], x[0]))
ROW(div, BF16, ek_div(x[0], x[1]))
ROW(maximum, PLAIN, ek_maximum(x[0], x[1]))
ROW(maximum_ties, AT_KINK | INTEGERS, ek_maximum(x[0], x[1]))
ROW(minimum, PLAIN, ek_minimum(x[0], x[1]))
ROW(minimum_ties, AT_KINK | INTEGERS, ek_minimum(x[0], x[1]))
ROW(add_scaled, BF16, ek_add_scaled(x[0], x[1], -2.5))
ROW(add_scalar, BF16, ek_add_scalar(x[0], 1.5))
ROW(mul_scalar, BF16, ek_mul_scalar(x[0], -1.5))
ROW(pow_3, BF16, ek_pow_scalar(x[0], 3))
ROW(pow_half, BF16, ek_pow_scalar(x[0], 0.5))
ROW(pow_2_at_0, BF16, ek_pow_scalar(x[0], 2))
ROW(pow_0, BF16, ek_pow_scalar(x[0], 0))
ROW(pow_minus_1, BF16, ek_pow_scalar(x[0], -1))
ROW(neg, PLAIN, ek_neg(x[0]))
ROW(abs, PLAIN, ek_abs(x[0]))
ROW(abs_at_0, AT_KINK | INTEGERS, ek_abs(x[0]))
ROW(sqrt, BF16, ek_sqrt(x[0]))
ROW(square, PLAIN, ek_square(x[0]))
ROW(reciprocal, BF16, ek_reciprocal(x[0]))
ROW(exp, BF16, ek_exp(x[0]))
ROW(log, BF16, ek_log(x[0]))
ROW(sign, AT_KINK | INTEGERS, ek_sign(x[0]))
ROW(clamp, BF16, ek_clamp(x[0], -0.7, 0.9))
ROW(clamp_at_ends, AT_KINK | INTEGERS, ek_clamp(x[0], -1, 2))
ROW(where, PLAIN, ek_where(x[0], x[1], x[2]))
ROW(relu, BF16, ek_f_relu(x[0]))
ROW(relu_at_0, AT_KINK, ek_f_relu(x[0]))
ROW(leaky_relu, BF16, ek_f_leaky_relu(x[0], 0.2))
ROW(leaky_relu_at_0, AT_KINK, ek_f_leaky_relu(x[0], 0.2))
ROW(sigmoid, BF16, ek_f_sigmoid(x[0]))
ROW(tanh, BF16, ek_f_tanh(x[0]))
ROW(softplus, BF16, ek_f_softplus(x[0]))
ROW(softplus_far, AT_KINK, ek_f_softplus(x[0]))
ROW(sum, PLAIN, ek_sum(x[0]))
ROW(sum_dims, PLAIN, ek_sum(x[0], EK_DIMS(0, 2)))
ROW(sum_keepdim, PLAIN, ek_sum(x[0], EK_DIMS(1), .keepdim = true))
ROW(mean, BF16, ek_mean(x[0]))
ROW(mean_dims, BF16, ek_mean(x[0], EK_DIMS(0, -1), .keepdim = true))
ROW(max_dim, PLAIN, ek_max_dim(x[0], 1, false))
ROW(max_dim_ties, AT_KINK | INTEGERS, ek_max_dim(x[0], 0, false))
ROW(min_dim, PLAIN, ek_min_dim(x[0], -1, true))
ROW(sum_to, PLAIN, ek_sum_to(x[0], EK_SHAPE(3, 1)))
ROW(reshape, PLAIN, ek_reshape(x[0], EK_SHAPE(3, -1)))
ROW(reshape_copy, PLAIN, ek_reshape(ek_permute(x[0], EK_SHAPE(2, 0, 1)), EK_SHAPE(4, 6)))
ROW(flatten, PLAIN, ek_f_flatten(x[0], 1, 2))
ROW(unsqueeze, PLAIN, ek_unsqueeze(x[0], 1))
ROW(squeeze, PLAIN, ek_squeeze(x[0], 1))
ROW(permute, PLAIN, ek_permute(x[0], EK_SHAPE(2, 0, 1)))
ROW(transpose, PLAIN, ek_transpose(x[0], 0, -1))
ROW(slice, PLAIN, ek_slice(x[0], 1, 1, 8, 3))
ROW(slice_negative, PLAIN, ek_slice(x[0], 0, -4, -1, 1))
ROW(slice_empty, AT_KINK | INTEGERS, ek_slice(x[0], 0, 4, 2, 1))
ROW(narrow, PLAIN, ek_narrow(x[0], 1, 2, 3))
ROW(select, PLAIN, ek_select(x[0], 1, -2))
ROW(expand, PLAIN, ek_expand(x[0], EK_SHAPE(2, 3, 4)))
ROW(contiguous, PLAIN, ek_contiguous(x[0], EK_CHANNELS_LAST))
ROW(clone, PLAIN, ek_clone(x[0]))
ROW(cat, PLAIN, ek_cat(x, count, 1))
ROW(cat_first, PLAIN, ek_cat(x, count, 0))
ROW(stack, PLAIN, ek_stack(x, count, -1))
ROW(index_select, BF16, ek_index_select(x[0], 1, x[1]))
ROW(gather_dim, BF16, ek_gather_dim(x[0], 0, x[1]))
ROW(scatter_add_dim, BF16, ek_scatter_add_dim(x[0], 0, x[1], EK_SHAPE(4, 3)))

/* The last piece three times and the first: the others get no gradient. */
static ek_tensor *pieces(ek_tensor *const *out, int count)
{
    if (count < 1)
        return NULL;
    return ek_cat((ek_tensor *const[]){ek_mul_scalar(out[count - 1], 3), out[0]}, 2, 0);
}

static const int64_t split_sizes[] = {1, 4, 2};
static ek_tensor *out[8];
ROW(split, PLAIN, pieces(out, ek_split(x[0], 3, 0, out, 8)))
ROW(chunk, PLAIN, pieces(out, ek_chunk(x[0], 4, 0, out, 8)))
ROW(split_sizes, PLAIN, ek_split_sizes(x[0], split_sizes, 3, 0, out) < 0 ? NULL : pieces(out, 3))

#define TWICE ek_mul_scalar(x[0], 2)
ROW(add_, BF16, ek_add_(TWICE, x[1]))
ROW(add_scaled_, BF16, ek_add_scaled_(TWICE, x[1], -2))
ROW(mul_, BF16, ek_mul_(TWICE, x[1]))
ROW(mul_scalar_, BF16, ek_mul_scalar_(TWICE, -3))
ROW(fill_, AT_KINK, ek_add_(ek_fill_(TWICE, 3), ek_scalar(1, ek_tensor_dtype(x[0]), test_home())))
ROW(copy_, BF16, ek_copy_(TWICE, x[1]))

/* ---- convolution and products ---- */

#define I(k) ((int)o[k])
#define B (count > 2 ? x[2] : NULL)
#define WEIGHTED .numbered = true, .inputs = {"x", "w", "b"}, .dy = "dy", .tolerance = 2e-5
enum { CONVOLUTION = BF16 | EMPTY | SLOTS | THIRD(2) };

FROM(.file = "nn_conv.golden", WEIGHTED)
ROW(conv, BF16 | EMPTY | SLOTS | THIRD(7) | THIRD(9),
    ek_f_conv2d(x[0], x[1], B, .strides = {I(0), I(1)}, .paddings = {I(2), I(3)},
                .dilations = {I(4), I(5)}, .groups = I(6)))

FROM(.file = "conv_nd.golden", WEIGHTED)
ROW(conv1d, CONVOLUTION,
    ek_f_conv1d(x[0], x[1], B, .strides = {I(0)}, .paddings = {I(1)}, .dilations = {I(2)},
                .groups = I(4)))
ROW(conv3d, CONVOLUTION,
    ek_f_conv3d(x[0], x[1], B, .strides = {I(0), I(1), I(2)}, .paddings = {I(3), I(4), I(5)},
                .dilations = {I(6), I(7), I(8)}, .groups = I(12)))
ROW(conv_transpose1d, CONVOLUTION,
    ek_f_conv_transpose1d(x[0], x[1], B, .strides = {I(0)}, .paddings = {I(1)}, .dilations = {I(2)},
                          .output_paddings = {I(3)}, .groups = I(4)))
ROW(conv_transpose2d, CONVOLUTION,
    ek_f_conv_transpose2d(x[0], x[1], B, .strides = {I(0), I(1)}, .paddings = {I(2), I(3)},
                          .dilations = {I(4), I(5)}, .output_paddings = {I(6), I(7)},
                          .groups = I(8)))
ROW(conv_transpose3d, CONVOLUTION,
    ek_f_conv_transpose3d(x[0], x[1], B, .strides = {I(0), I(1), I(2)},
                          .paddings = {I(3), I(4), I(5)}, .dilations = {I(6), I(7), I(8)},
                          .output_paddings = {I(9), I(10), I(11)}, .groups = I(12)))

FROM(.file = "nn_matmul.golden", WEIGHTED)
ROW(matmul, BF16 | THIRD(6), ek_matmul(x[0], x[1]))
ROW(linear, BF16 | SLOTS | THIRD(0), ek_f_linear(x[0], x[1], B))

FROM(.shapes = {{EK_SHAPE(5, 4), EK_SHAPE(3, 4), EK_SHAPE(3)},
                {EK_SHAPE(2, 3, 4), EK_SHAPE(3, 4), EK_SHAPE(3)}})
ROW(linear_relu, 0, ek_linear_activated(x[0], x[1], x[2], true))
ROW(linear_gelu, 0, ek_linear_gelu(x[0], x[1], x[2], EK_GELU_NONE))
ROW(linear_gelu_tanh, 0, ek_linear_gelu(x[0], x[1], x[2], EK_GELU_TANH))

/* ---- pooling, upsampling, softmax, moments ---- */

#define ALONE_OF(golden_) \
    .file = golden_, .numbered = true, .inputs = {"x"}, .dy = "dy", .tolerance = 2e-5

FROM(ALONE_OF("nn_pool.golden"))
#define MAX_POOL                                                            \
    ek_f_max_pool2d(x[0], .kernels = {I(0), I(1)}, .strides = {I(2), I(3)}, \
                    .paddings = {I(4), I(5)}, .dilation = I(6), .ceil_mode = o[7] != 0)
ROW(max_pool, BF16 | EMPTY, MAX_POOL)
ROW(max_pool_ties, KINKED, MAX_POOL)
ROW(avg_pool, BF16 | EMPTY,
    ek_f_avg_pool2d(x[0], .kernels = {I(0), I(1)}, .strides = {I(2), I(3)},
                    .paddings = {I(4), I(5)}, .ceil_mode = o[6] != 0,
                    .count_include_pad = o[7] != 0))
ROW(adaptive_avg_pool, BF16 | EMPTY, ek_f_adaptive_avg_pool2d(x[0], I(0), I(1)))
ROW(upsample, BF16 | EMPTY,
    ek_f_upsample(x[0], I(0), I(1), o[2] != 0 ? EK_BILINEAR : EK_NEAREST, o[3] != 0))

FROM(ALONE_OF("conv_nd.golden"))
#define POOL_1D .kernels = {I(0)}, .strides = {I(1)}, .paddings = {I(2)}, .ceil_mode = o[4] != 0
#define POOL_3D                                                                                   \
    .kernels = {I(0), I(1), I(2)}, .strides = {I(3), I(4), I(5)}, .paddings = {I(6), I(7), I(8)}, \
    .ceil_mode = o[12] != 0
ROW(max_pool1d, BF16 | EMPTY, ek_f_max_pool1d(x[0], POOL_1D, .dilations = {I(3)}))
ROW(max_pool3d, BF16 | EMPTY, ek_f_max_pool3d(x[0], POOL_3D, .dilations = {I(9), I(10), I(11)}))
ROW(avg_pool1d, BF16 | EMPTY, ek_f_avg_pool1d(x[0], POOL_1D, .count_include_pad = o[5] != 0))
ROW(avg_pool3d, BF16 | EMPTY, ek_f_avg_pool3d(x[0], POOL_3D, .count_include_pad = o[13] != 0))
ROW(adaptive_avg_pool1d, BF16 | EMPTY, ek_f_adaptive_avg_pool1d(x[0], I(0)))
ROW(adaptive_avg_pool3d, BF16 | EMPTY, ek_f_adaptive_avg_pool3d(x[0], I(0), I(1), I(2)))

FROM(ALONE_OF("nn_norm.golden"))
ROW(softmax, BF16 | THIRD(0) | THIRD(1),
    o[1] != 0 ? ek_f_log_softmax(x[0], I(0)) : ek_f_softmax(x[0], I(0)))

/* options: keepdim, then the dimensions */
static ek_variance_options reduction(ek_tensor *x, const double *o)
{
    ek_variance_options options = EK_DEFAULTS(ek_variance_options);
    options.x = x;
    options.keepdim = o[0] != 0;
    options.dim_count = (int)o[OP_OPTIONS - 1] - 1;
    for (int i = 0; i < options.dim_count; i++)
        options.dims[i] = I(i + 1);
    return options;
}

static ek_tensor *norm(ek_tensor *x, const double *o)
{
    const ek_variance_options over = reduction(x, o);
    ek_p_norm_options options = EK_DEFAULTS(ek_p_norm_options);
    options.x = x;
    options.keepdim = over.keepdim;
    options.dim_count = over.dim_count;
    memcpy(options.dims, over.dims, sizeof over.dims);
    return ek_norm_with(options);
}

enum { MOMENT = THIRD(0) | THIRD(1) | THIRD(2) | THIRD(3) };
FROM(ALONE_OF("norms.golden"))
ROW(norm, SECOND | MOMENT, norm(x[0], o))
ROW(std, SECOND | MOMENT, ek_std_with(reduction(x[0], o)))
ROW(var, MOMENT, ek_var_with(reduction(x[0], o)))

/* ---- normalisation ---- */

#define W (count > 1 ? x[1] : NULL)
FROM(.file = "norms.golden", WEIGHTED, .constants = {"eps"})
enum { NORM = MOMENT | SECOND | SLOTS | ALONE };
ROW(group_norm, NORM | EMPTY, ek_f_group_norm(x[0], I(0), W, B, element(c[0], 0)))
ROW(instance_norm, NORM | EMPTY, ek_f_instance_norm(x[0], W, B, element(c[0], 0)))
ROW(layer_norm, NORM, ek_f_layer_norm(x[0], I(0), W, B, element(c[0], 0)))

/* options: training. No running statistics then: finite differences would move them. */
static ek_tensor *batch_norm(ek_tensor *const *x, int count, const double *o, ek_tensor *const *c,
                             bool relu)
{
    ek_batch_norm_options options =
        EK_OPTIONS(ek_batch_norm_options, .x = x[0], .weight = W, .bias = B,
                   .running_mean = o[0] != 0 ? NULL : c[0], .running_var = o[0] != 0 ? NULL : c[1],
                   .training = o[0] != 0, .momentum = element(c[2], 0), .eps = element(c[2], 1));
    return ek_batch_norm_tracked(options, relu, NULL);
}

FROM(.file = "nn_norm.golden", WEIGHTED, .constants = {"running_mean", "running_var", "numbers"})
enum { BATCH_NORM = SLOTS | EMPTY | MOMENT | THIRD(4) | THIRD(5) };
ROW(batch_norm, BATCH_NORM, batch_norm(x, count, o, c, false))
ROW(batch_norm_relu, BATCH_NORM, batch_norm(x, count, o, c, true))

/* ---- losses ---- */

/* options: reduction, ignored index or -1, smoothing in percent */
#define CLASSES x[0], c[0], c[1], (ek_reduction)o[0], o[1] == -1 ? -100 : (int64_t)o[1]
#define REDUCTION .reduction = (ek_reduction)o[0]

FROM(.file = "nn_loss.golden", .numbered = true, .inputs = {"x", "t"}, .dy = "dy",
     .constants = {"target", "weight", "pos_weight"}, .tolerance = 2e-5)
ROW(cross_entropy, THIRD(0) | THIRD(3) | THIRD(6) | THIRD(9),
    ek_f_cross_entropy(CLASSES, .label_smoothing = o[2] / 100))
ROW(nll, 0, ek_f_nll_loss(CLASSES))
ROW(mse, 0, ek_f_mse_loss(x[0], x[1], REDUCTION))
ROW(l1, 0, ek_f_l1_loss(x[0], x[1], REDUCTION))
ROW(bce, THIRD(2), ek_f_bce_with_logits(x[0], x[1], c[1], REDUCTION, .pos_weight = c[2]))

FROM(.file = "functions.golden", .inputs = {"x0"}, .dy = "g", .tolerance = 2e-6)
ROW(gelu, BF16 | EMPTY | THIRD(0), ek_f_gelu(x[0], EK_GELU_NONE))
ROW(gelu_tails, BF16, ek_f_gelu(x[0], EK_GELU_NONE))
ROW(gelu_tanh, BF16 | EMPTY | THIRD(0), ek_f_gelu(x[0], EK_GELU_TANH))
ROW(gelu_tanh_tails, BF16, ek_f_gelu(x[0], EK_GELU_TANH))
ROW(ndtr, BF16 | EMPTY | THIRD(0), ek_ndtr(x[0]))
ROW(ndtr_tails, BF16, ek_ndtr(x[0]))
ROW(logsumexp, THIRD(0), ek_logsumexp(x[0]))
ROW(logsumexp_dims, THIRD(0), ek_logsumexp(x[0], EK_DIMS(1)))
ROW(logsumexp_keepdim, 0, ek_logsumexp(x[0], EK_DIMS(0, -1), .keepdim = true))
ROW(logsumexp_far, KINKED, ek_logsumexp(x[0], EK_DIMS(1)))

/* ---- no golden: broadcasting, in place, repeated positions, crossed devices and dtypes ---- */

static ek_tensor *greater(ek_tensor *x, ek_tensor *y)
{
    return ek_gt(ek_detach(x), ek_detach(y));
}

FROM(.shapes = {{EK_SHAPE(3, 1), EK_SHAPE(4)}, {EK_SHAPE(3, 4), EK_SHAPE(4)}})
ROW(broadcast_add, 0, ek_square(ek_add(x[0], x[1])))
ROW(broadcast_sub, 0, ek_square(ek_sub(x[0], x[1])))
ROW(broadcast_mul, 0, ek_mul(x[0], x[1]))
ROW(broadcast_div, 0, ek_div(x[0], x[1]))
ROW(broadcast_maximum, 0, ek_square(ek_maximum(x[0], x[1])))
ROW(broadcast_minimum, 0, ek_square(ek_minimum(x[0], x[1])))
ROW(broadcast_add_scaled, 0, ek_square(ek_add_scaled(x[0], x[1], -1.5)))
ROW(broadcast_where, 0, ek_square(ek_where(greater(x[0], x[1]), x[0], x[1])))
ROW(broadcast_expand, 0, ek_square(ek_expand(x[0], EK_SHAPE(2, 3, 4))))
ROW(broadcast_sum_to, 0, ek_square(ek_sum_to(ek_mul(x[0], x[1]), EK_SHAPE(1, 4))))

/* A number on cpu meets a tensor elsewhere. */
#define FAR ek_to_device(x[0], test_device(0))
FROM(.shapes = {{EK_SHAPE(2, 4), EK_SHAPE(1)}})
#define NUMBER ek_reshape(x[1], ek_scalar_shape())
ROW(number_add, 0, ek_square(ek_add(FAR, NUMBER)))
ROW(number_sub, 0, ek_square(ek_sub(FAR, NUMBER)))
ROW(number_mul, 0, ek_mul(FAR, NUMBER))
ROW(number_div, 0, ek_div(FAR, NUMBER))
ROW(number_maximum, 0, ek_square(ek_maximum(FAR, NUMBER)))
ROW(number_add_scaled, 0, ek_square(ek_add_scaled(FAR, NUMBER, -1.5)))

/* On a result of its own, with what is written broadcast, twice. */
FROM(.shapes = {{EK_SHAPE(3, 4), EK_SHAPE(4)}, {EK_SHAPE(3, 4), EK_SHAPE(3, 4)}})
#define OWN ek_mul(x[0], x[0])
ROW(in_place_add, 0, ek_square(ek_add_(ek_add_(OWN, x[1]), x[1])))
ROW(in_place_add_scaled, 0, ek_square(ek_add_scaled_(OWN, x[1], -2)))
ROW(in_place_mul, 0, ek_mul_(ek_mul_(OWN, x[1]), x[1]))
ROW(in_place_mul_scalar, 0, ek_square(ek_mul_scalar_(ek_mul_scalar_(OWN, 3), -0.5)))
ROW(in_place_fill, 0, ek_mul(ek_add_(ek_fill_(OWN, 3), x[1]), x[0]))
ROW(in_place_copy, 0, ek_mul(ek_copy_(OWN, x[1]), x[0]))

#define POSITIONS(shape, ...) ek_from_data(((const int64_t[]){__VA_ARGS__}), shape, EK_I64)
#define TWO_ROWS ek_slice(x[0], 0, 0, 2, 1)
#define TABLE EK_SHAPE(2, 3)
FROM(.shapes = {{EK_SHAPE(3, 3)}})
ROW(repeated_select_0, 0, ek_square(ek_index_select(x[0], 0, POSITIONS(EK_SHAPE(4), 2, 0, 2, 2))))
ROW(repeated_select_1, 0, ek_square(ek_index_select(x[0], 1, POSITIONS(EK_SHAPE(4), 2, 0, 2, 2))))
ROW(repeated_gather_0, 0, ek_square(ek_gather_dim(x[0], 0, POSITIONS(TABLE, 2, 0, 1, 2, 2, 0))))
ROW(repeated_gather_1, 0, ek_square(ek_gather_dim(x[0], 1, POSITIONS(TABLE, 2, 0, 1, 2, 2, 0))))
ROW(repeated_scatter_0, 0,
    ek_square(ek_scatter_add_dim(TWO_ROWS, 0, POSITIONS(TABLE, 1, 0, 1, 1, 1, 0), TABLE)))
ROW(repeated_scatter_1, 0,
    ek_square(ek_scatter_add_dim(TWO_ROWS, 1, POSITIONS(TABLE, 1, 0, 1, 1, 1, 0), TABLE)))

#define AWAY(x) ek_to_device(x, test_device(1))
FROM(.shapes = {{EK_SHAPE(2, 3), EK_SHAPE(2, 3)}})
ROW(there_and_back, 0, ek_mul(ek_to_device(ek_square(AWAY(x[0])), test_home()), x[0]))
ROW(copied_there, 0, ek_mul(ek_copy_(AWAY(ek_square(x[1])), x[0]), AWAY(x[1])))
ROW(through_f32, NARROW,
    ek_to_dtype(ek_mul(ek_to_dtype(x[0], EK_F32), ek_to_dtype(x[1], EK_F32)), EK_F64))
ROW(copied_through_f32, NARROW,
    ek_square(ek_copy_(ek_mul_scalar(x[0], 2), ek_square(ek_to_dtype(x[1], EK_F32)))))
ROW(mse_none, 0, ek_f_mse_loss(x[0], x[1], .reduction = EK_NONE))
ROW(mse_sum, 0, ek_f_mse_loss(x[0], x[1], .reduction = EK_SUM))
ROW(mse_mean, 0, ek_f_mse_loss(x[0], x[1]))
ROW(l1_none, 0, ek_square(ek_f_l1_loss(x[0], x[1], .reduction = EK_NONE)))
ROW(l1_sum, 0, ek_square(ek_f_l1_loss(x[0], x[1], .reduction = EK_SUM)))
ROW(l1_mean, 0, ek_square(ek_f_l1_loss(x[0], x[1])))
