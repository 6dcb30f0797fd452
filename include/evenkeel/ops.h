/* ops.h: differentiable operations on tensors. Those that also exist as modules (relu, conv2d, ...)
 * begin with `ek_f_` here, as in torch.nn.functional.
 *
 * Operands of one operation lie on one device (else EK_E_DEVICE), but tensors of zero dimensions on
 * cpu go with any device. They have one dtype (else EK_E_DTYPE); under autocast bf16 and f32 may
 * mix (precision.h). A NULL operand gives NULL. Results are in the scope. Every result that can
 * carry a gradient does. Operations whose names end in `_` write in place and bump the version. A
 * negative `dim` counts from the end.
 *
 * A number that is combined with an integer tensor must be whole and in the dtype's range, else
 * EK_E_DTYPE; convert with ek_to_dtype first. Numbers are doubles and count exactly, but beyond
 * 2^53 not every i64 is a double. */
#ifndef EVENKEEL_OPS_H
#define EVENKEEL_OPS_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/* ---- arithmetic, with NumPy's broadcasting ---- */

EK_API ek_tensor *ek_add(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_sub(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_mul(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_div(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_maximum(ek_tensor *x, ek_tensor *y); /* equal elements share the gradient */
EK_API ek_tensor *ek_minimum(ek_tensor *x, ek_tensor *y);
/* x + alpha * y */
EK_API ek_tensor *ek_add_scaled(ek_tensor *x, ek_tensor *y, double alpha);
EK_API ek_tensor *ek_add_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_mul_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_pow_scalar(ek_tensor *x, double exponent);
EK_API ek_tensor *ek_neg(ek_tensor *x);
EK_API ek_tensor *ek_abs(ek_tensor *x); /* gradient 0 at 0 */
EK_API ek_tensor *ek_sqrt(ek_tensor *x);
EK_API ek_tensor *ek_square(ek_tensor *x);
EK_API ek_tensor *ek_reciprocal(ek_tensor *x);
EK_API ek_tensor *ek_exp(ek_tensor *x);
EK_API ek_tensor *ek_log(ek_tensor *x);
EK_API ek_tensor *ek_sign(ek_tensor *x); /* gradient 0 */
/* Clamps to [low, high]; gradient 1 there, bounds included. Bounds may exceed an integer dtype. */
EK_API ek_tensor *ek_clamp(ek_tensor *x, double low, double high);

/* Comparisons give u8 tensors of 0 and 1, without a gradient. */
EK_API ek_tensor *ek_eq(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_ne(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_lt(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_le(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_gt(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_ge(ek_tensor *x, ek_tensor *y);
/* condition (u8) ? x : y, all three broadcast together. */
EK_API ek_tensor *ek_where(ek_tensor *condition, ek_tensor *x, ek_tensor *y);

/* These write to x in place; y is broadcast to x. EK_E_AUTOGRAD if gradient mode is on and x is a
 * leaf that requires a gradient, or a view of one. */
EK_API ek_tensor *ek_add_(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_add_scaled_(ek_tensor *x, ek_tensor *y, double alpha);
EK_API ek_tensor *ek_mul_(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_mul_scalar_(ek_tensor *x, double c);
EK_API ek_tensor *ek_fill_(ek_tensor *x, double value);
/* Copies y into x, across dtypes and devices. */
EK_API ek_tensor *ek_copy_(ek_tensor *x, ek_tensor *y);

/* ---- activations ---- */

EK_API ek_tensor *ek_f_relu(ek_tensor *x);
EK_API ek_tensor *ek_f_leaky_relu(ek_tensor *x, double negative_slope);
typedef enum ek_gelu_approximate { EK_GELU_NONE = 0, EK_GELU_TANH = 1 } ek_gelu_approximate;
EK_API ek_tensor *ek_f_gelu(ek_tensor *x, ek_gelu_approximate approximate); /* x Phi(x) */
EK_API ek_tensor *ek_f_sigmoid(ek_tensor *x);
EK_API ek_tensor *ek_f_tanh(ek_tensor *x);
EK_API ek_tensor *ek_f_softplus(ek_tensor *x); /* log(1 + exp(x)), stable */
EK_API ek_tensor *ek_ndtr(ek_tensor *x);       /* Phi(x), the normal distribution function */
EK_API ek_tensor *ek_f_softmax(ek_tensor *x, int dim);
EK_API ek_tensor *ek_f_log_softmax(ek_tensor *x, int dim);
/* If training, zeroes elements with probability p and scales the others by 1 / (1 - p); else
 * returns x itself. The mask comes in row-major order from the default generator. A Mersenne
 * Twister draws it on the CPU: an element of any dtype is kept if its f64 uniform is below 1 - p,
 * as in PyTorch (on the CPU; builds with MKL draw from a generator of MKL's instead). With Philox
 * (random.h) the device makes it, again in backward, and the graph keeps neither mask nor x. */
EK_API ek_tensor *ek_f_dropout(ek_tensor *x, double p, bool training);

/* ---- reductions ---- */

typedef struct ek_reduce_options {
    const char *keywords;
    ek_tensor *x;
    int dims[EK_MAX_DIMS]; /* the dimensions, if dim_count > 0; else all */
    int dim_count;
    bool keepdim;
} ek_reduce_options;

/* Which dimensions: EK_DIMS(0, 2). */
#define EK_DIMS(...) .dims = {__VA_ARGS__}, .dim_count = EK_COUNT(int, __VA_ARGS__)

/* ek_sum(x) sums all elements; ek_sum(x, EK_DIMS(0, 2), .keepdim = true) sums over two dimensions.
 * The order of additions follows from shape, strides and device, not from the number of
 * threads. */
EK_API ek_tensor *ek_sum_with(ek_reduce_options options);
EK_API ek_tensor *ek_mean_with(ek_reduce_options options);
#define EK_REDUCE_OPTIONS(...) EK_OPTIONS_1(ek_reduce_options, x, __VA_ARGS__)
#define ek_sum(...) ek_sum_with(EK_REDUCE_OPTIONS(__VA_ARGS__))
#define ek_mean(...) ek_mean_with(EK_REDUCE_OPTIONS(__VA_ARGS__))
/* The 2-norm. If it is 0, its gradients of every order are 0, never NaN. */
EK_API ek_tensor *ek_norm_with(ek_reduce_options options);
#define ek_norm(...) ek_norm_with(EK_REDUCE_OPTIONS(__VA_ARGS__))
/* Unbiased (n - 1) variance and standard deviation; NaN for fewer than two elements. */
EK_API ek_tensor *ek_var_with(ek_reduce_options options);
EK_API ek_tensor *ek_std_with(ek_reduce_options options);
#define ek_var(...) ek_var_with(EK_REDUCE_OPTIONS(__VA_ARGS__))
#define ek_std(...) ek_std_with(EK_REDUCE_OPTIONS(__VA_ARGS__))
/* log(sum(exp(x))), stable: -inf if all x are -inf, inf if one is inf. The gradient is softmax. */
EK_API ek_tensor *ek_logsumexp_with(ek_reduce_options options);
#define ek_logsumexp(...) ek_logsumexp_with(EK_REDUCE_OPTIONS(__VA_ARGS__))
/* Largest and smallest element along `dim`. The gradient goes to the first of equal ones. */
EK_API ek_tensor *ek_max_dim(ek_tensor *x, int dim, bool keepdim);
EK_API ek_tensor *ek_min_dim(ek_tensor *x, int dim, bool keepdim);
/* The i64 index of the largest element along `dim`, the first of equal ones. */
EK_API ek_tensor *ek_argmax(ek_tensor *x, int dim, bool keepdim);
/* Sums x to `shape`, the reverse of broadcasting `shape` to that of x. */
EK_API ek_tensor *ek_sum_to(ek_tensor *x, ek_shape shape);

/* ---- shape ---- */

/* Another shape, as a view if strides allow that, else as a copy. One size may be -1. */
EK_API ek_tensor *ek_reshape(ek_tensor *x, ek_shape shape);
EK_API ek_tensor *ek_f_flatten(ek_tensor *x, int start_dim, int end_dim);
EK_API ek_tensor *ek_unsqueeze(ek_tensor *x, int dim);
EK_API ek_tensor *ek_squeeze(ek_tensor *x, int dim);
/* Dimension i of the result is dimension order.dims[i] of x. A view. */
EK_API ek_tensor *ek_permute(ek_tensor *x, ek_shape order);
EK_API ek_tensor *ek_transpose(ek_tensor *x, int dim0, int dim1);
/* Elements start, start + step, ... below `end` along `dim`, as a view. Negative start and end
 * count from the end of the dimension; step > 0. */
EK_API ek_tensor *ek_slice(ek_tensor *x, int dim, int64_t start, int64_t end, int64_t step);
EK_API ek_tensor *ek_narrow(ek_tensor *x, int dim, int64_t start, int64_t length);
/* Element `index` along `dim`, as a view without that dimension. */
EK_API ek_tensor *ek_select(ek_tensor *x, int dim, int64_t index);
EK_API ek_tensor *ek_expand(ek_tensor *x, ek_shape shape); /* a view with zero strides */
EK_API ek_tensor *ek_contiguous(ek_tensor *x, ek_memory_format format);
EK_API ek_tensor *ek_clone(ek_tensor *x);
EK_API ek_tensor *ek_to_dtype(ek_tensor *x, ek_dtype dtype);
/* A copy on another device, differentiable; x itself if it is there already. */
EK_API ek_tensor *ek_to_device(ek_tensor *x, ek_device device);

EK_API ek_tensor *ek_cat(ek_tensor *const *tensors, int count, int dim);
EK_API ek_tensor *ek_stack(ek_tensor *const *tensors, int count, int dim);
/* Write views to `out`. ek_split: pieces of `size`, of which the last may be smaller. ek_chunk: as
 * torch.chunk. Both return how many pieces there are, at most `capacity` (else EK_E_INVALID).
 * ek_split_sizes: pieces of the given sizes, which add up to the dimension; returns 0. */
EK_API int ek_split(ek_tensor *x, int64_t size, int dim, ek_tensor **out, int capacity);
EK_API int ek_chunk(ek_tensor *x, int chunks, int dim, ek_tensor **out, int capacity);
EK_API int ek_split_sizes(ek_tensor *x, const int64_t *sizes, int count, int dim, ek_tensor **out);
/* Writes the sizes of torch.chunk for n elements in k chunks; returns how many there are. */
EK_API int ek_chunk_sizes(int64_t n, int k, int64_t *sizes);

/* ---- indexing: `index` is i64, out of bounds is EK_E_INVALID ---- */

EK_API ek_tensor *ek_index_select(ek_tensor *x, int dim, ek_tensor *index);
/* As torch.gather: out[i][j] = x[index[i][j]][j] for dim 0. ek_scatter_add_dim is its adjoint:
 * torch.scatter_add into zeros of `shape`. */
EK_API ek_tensor *ek_gather_dim(ek_tensor *x, int dim, ek_tensor *index);
EK_API ek_tensor *ek_scatter_add_dim(ek_tensor *x, int dim, ek_tensor *index, ek_shape shape);

/* ---- matrices ---- */

/* Products of matrices, or of batches (..., n, k) and (..., k, m), with batches broadcast. Operands
 * of one dimension as in torch. */
EK_API ek_tensor *ek_matmul(ek_tensor *x, ek_tensor *y);
/* x (..., in) times weight (out, in) transposed, plus bias (out) or NULL. */
EK_API ek_tensor *ek_f_linear(ek_tensor *x, ek_tensor *weight, ek_tensor *bias);

/* ---- convolution and pooling: x is (N, C, L), (N, C, H, W) or (N, C, D, H, W) ----
 *
 * `stride` and its like count for all directions. `strides = {2, 1}` and its like give one
 * number per direction, in the order of x's dimensions; an entry of 0 means the number for all
 * directions. */

typedef struct ek_conv_options {
    const char *keywords;
    ek_tensor *x;
    ek_tensor *weight;  /* (O, C / groups, k...); transposed: (C, O / groups, k...) */
    ek_tensor *bias;    /* (O) or NULL */
    int stride;         /* default 1 */
    int padding;        /* default 0 */
    int dilation;       /* default 1 */
    int groups;         /* default 1 */
    int output_padding; /* transposed only: added at the end; less than stride or less than dilation
                         */
    int strides[3], paddings[3], dilations[3], output_paddings[3];
} ek_conv_options;
EK_API ek_tensor *ek_f_conv1d_with(ek_conv_options options);
EK_API ek_tensor *ek_f_conv2d_with(ek_conv_options options);
EK_API ek_tensor *ek_f_conv3d_with(ek_conv_options options);
#define EK_CONV_OPTIONS(...) EK_OPTIONS_3(ek_conv_options, x, weight, bias, __VA_ARGS__)
#define ek_f_conv1d(...) ek_f_conv1d_with(EK_CONV_OPTIONS(__VA_ARGS__))
#define ek_f_conv2d(...) ek_f_conv2d_with(EK_CONV_OPTIONS(__VA_ARGS__))
#define ek_f_conv3d(...) ek_f_conv3d_with(EK_CONV_OPTIONS(__VA_ARGS__))
/* Transposed convolution: the gradient of a convolution with respect to its input. The output size
 * is (size - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1. */
EK_API ek_tensor *ek_f_conv_transpose1d_with(ek_conv_options options);
EK_API ek_tensor *ek_f_conv_transpose2d_with(ek_conv_options options);
EK_API ek_tensor *ek_f_conv_transpose3d_with(ek_conv_options options);
#define ek_f_conv_transpose1d(...) ek_f_conv_transpose1d_with(EK_CONV_OPTIONS(__VA_ARGS__))
#define ek_f_conv_transpose2d(...) ek_f_conv_transpose2d_with(EK_CONV_OPTIONS(__VA_ARGS__))
#define ek_f_conv_transpose3d(...) ek_f_conv_transpose3d_with(EK_CONV_OPTIONS(__VA_ARGS__))

typedef struct ek_pool_options {
    const char *keywords;
    ek_tensor *x;
    int kernel;
    int stride; /* default: kernel */
    int padding;
    int dilation; /* max pooling only; default 1 */
    bool ceil_mode;
    ek_switch count_include_pad; /* average pooling only; default on */
    int kernels[3], strides[3], paddings[3], dilations[3];
} ek_pool_options;
EK_API ek_tensor *ek_f_max_pool1d_with(ek_pool_options options);
EK_API ek_tensor *ek_f_max_pool2d_with(ek_pool_options options);
EK_API ek_tensor *ek_f_max_pool3d_with(ek_pool_options options);
EK_API ek_tensor *ek_f_avg_pool1d_with(ek_pool_options options);
EK_API ek_tensor *ek_f_avg_pool2d_with(ek_pool_options options);
EK_API ek_tensor *ek_f_avg_pool3d_with(ek_pool_options options);
#define EK_POOL_OPTIONS(...) EK_OPTIONS_2(ek_pool_options, x, kernel, __VA_ARGS__)
#define ek_f_max_pool1d(...) ek_f_max_pool1d_with(EK_POOL_OPTIONS(__VA_ARGS__))
#define ek_f_max_pool2d(...) ek_f_max_pool2d_with(EK_POOL_OPTIONS(__VA_ARGS__))
#define ek_f_max_pool3d(...) ek_f_max_pool3d_with(EK_POOL_OPTIONS(__VA_ARGS__))
#define ek_f_avg_pool1d(...) ek_f_avg_pool1d_with(EK_POOL_OPTIONS(__VA_ARGS__))
#define ek_f_avg_pool2d(...) ek_f_avg_pool2d_with(EK_POOL_OPTIONS(__VA_ARGS__))
#define ek_f_avg_pool3d(...) ek_f_avg_pool3d_with(EK_POOL_OPTIONS(__VA_ARGS__))
EK_API ek_tensor *ek_f_adaptive_avg_pool1d(ek_tensor *x, int64_t length);
EK_API ek_tensor *ek_f_adaptive_avg_pool2d(ek_tensor *x, int64_t height, int64_t width);
EK_API ek_tensor *ek_f_adaptive_avg_pool3d(ek_tensor *x, int64_t depth, int64_t height,
                                           int64_t width);

typedef enum ek_upsample_mode { EK_NEAREST = 0, EK_BILINEAR = 1 } ek_upsample_mode;
/* (N, C, H, W) to (N, C, height, width). align_corners is for EK_BILINEAR only. */
EK_API ek_tensor *ek_f_upsample(ek_tensor *x, int64_t height, int64_t width, ek_upsample_mode mode,
                                bool align_corners);

/* ---- normalisation ---- */

/* A momentum for batch norm modules: running statistics are plain averages over all batches. */
#define EK_CUMULATIVE (-1)

typedef struct ek_batch_norm_options {
    const char *keywords;
    ek_tensor *x;                          /* (N, C) or (N, C, ...) */
    ek_tensor *weight, *bias;              /* (C) or NULL */
    ek_tensor *running_mean, *running_var; /* (C) or NULL; updated if training */
    bool training;                         /* counts as true without running statistics */
    double momentum;                       /* default 0.1 */
    double eps;                            /* default 1e-5 */
} ek_batch_norm_options;
/* If training, normalises by the biased variance and updates running_var with the unbiased one. A
 * single value per channel is then EK_E_SHAPE ("Expected more than 1 value per channel"). */
EK_API ek_tensor *ek_f_batch_norm_with(ek_batch_norm_options options);
#define ek_f_batch_norm(...) \
    ek_f_batch_norm_with(EK_OPTIONS_3(ek_batch_norm_options, x, weight, bias, __VA_ARGS__))

/* ---- normalisation with statistics per sample: biased variance, no running statistics ---- */

/* Normalises over the last `normalized_ndim` dimensions, at most EK_MAX_DIMS - 1. Weight and bias
 * have the shape of these, or are NULL. Here and below eps 0 means 1e-5, EK_ZERO means 0. */
EK_API ek_tensor *ek_f_layer_norm(ek_tensor *x, int normalized_ndim, ek_tensor *weight,
                                  ek_tensor *bias, double eps);
/* Takes x (N, C, ...) and normalises over each of `groups` groups of channels and over space.
 * Weight and bias are (C) or NULL. If a group has one value, the result is the bias, but in a batch
 * of one sample EK_E_SHAPE. */
EK_API ek_tensor *ek_f_group_norm(ek_tensor *x, int64_t groups, ek_tensor *weight, ek_tensor *bias,
                                  double eps);
/* Group norm with one channel per group. One value per channel is EK_E_SHAPE. */
EK_API ek_tensor *ek_f_instance_norm(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, double eps);

/* ---- losses ---- */

typedef enum ek_reduction { EK_MEAN = 0, EK_SUM = 1, EK_NONE = 2 } ek_reduction;

typedef struct ek_loss_options {
    const char *keywords;
    ek_tensor *input;
    ek_tensor *target;
    ek_tensor *weight; /* per class (nll, cross entropy), per element (bce), or NULL */
    ek_reduction reduction;
    int64_t ignore_index;   /* nll, cross entropy; default -100 */
    double label_smoothing; /* cross entropy only */
    ek_tensor *pos_weight;  /* bce with logits only */
} ek_loss_options;

/* nll and cross entropy: input (N, C) or (N, C, d1, ...), target i64 (N) or (N, d1, ...). A target
 * outside [0, C) that is not ignore_index is EK_E_INVALID. The mean divides by the sum of the
 * weights of all targets but the ignored. */
EK_API ek_tensor *ek_f_nll_loss_with(ek_loss_options options);
EK_API ek_tensor *ek_f_cross_entropy_with(ek_loss_options options);
EK_API ek_tensor *ek_f_mse_loss_with(ek_loss_options options);
EK_API ek_tensor *ek_f_l1_loss_with(ek_loss_options options);
EK_API ek_tensor *ek_f_bce_with_logits_with(ek_loss_options options);
#define EK_LOSS_OPTIONS(...) EK_OPTIONS_2(ek_loss_options, input, target, __VA_ARGS__)
#define ek_f_nll_loss(...) ek_f_nll_loss_with(EK_LOSS_OPTIONS(__VA_ARGS__))
#define ek_f_cross_entropy(...) ek_f_cross_entropy_with(EK_LOSS_OPTIONS(__VA_ARGS__))
#define ek_f_mse_loss(...) ek_f_mse_loss_with(EK_LOSS_OPTIONS(__VA_ARGS__))
#define ek_f_l1_loss(...) ek_f_l1_loss_with(EK_LOSS_OPTIONS(__VA_ARGS__))
#define ek_f_bce_with_logits(...) ek_f_bce_with_logits_with(EK_LOSS_OPTIONS(__VA_ARGS__))

/* The divisor of the mean of nll_loss and cross_entropy: the sum of the weights (NULL: 1 each) of
 * all targets but the ignored, as a scalar of `dtype` on the target's device. */
EK_API ek_tensor *ek_target_weight(ek_tensor *target, ek_tensor *weight, int64_t ignore_index,
                                   ek_dtype dtype);

EK_END_DECLARATIONS
#endif
