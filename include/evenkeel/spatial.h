/** @file
 * spatial.h: convolution, pooling and resampling of x (N, C, L), (N, C, H, W) or (N, C, D, H, W).
 * The rules of ops.h hold. Convolution and pooling also take one sample without N.
 *
 * `stride` and its like count for all directions. `strides = {2, 1}` and its like give one
 * number per direction, in the order of x's dimensions; an entry of 0 means the number for all
 * directions. */
#ifndef EVENKEEL_SPATIAL_H
#define EVENKEEL_SPATIAL_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** A padding of (k - 1) * dilation in total, so that convolutions with stride 1 keep x's size. If
 * the total is odd, the larger half comes after the last element. */
#define EK_SAME (-2147483646)
/** An int, named so that compilers' messages explain the mistake of a padding such as "same". */
typedef int ek_number_or_EK_SAME;

typedef struct ek_conv_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    ek_tensor *weight; /**< (O, C / groups, k...) */
    ek_tensor *bias;   /**< (O) or NULL */
    int stride EK_IS(1);
    ek_number_or_EK_SAME padding;
    int dilation EK_IS(1);
    int groups EK_IS(1);
    int strides[3], paddings[3], dilations[3];
} ek_conv_options;
#define EK_DEFAULTS_ek_conv_options \
    EK_DEFAULT(stride, 1), EK_DEFAULT(dilation, 1), EK_DEFAULT(groups, 1)
#define EK_CONV_CALL(function, ...) \
    EK_CALL_3(function, ek_conv_options, x, weight, bias, __VA_ARGS__)
EK_API ek_tensor *ek_f_conv1d_with(ek_conv_options options);
EK_API ek_tensor *ek_f_conv2d_with(ek_conv_options options);
EK_API ek_tensor *ek_f_conv3d_with(ek_conv_options options);
/** Cross-correlation of x (N, C, ...) with the weight's windows, plus bias: (N, O, ...). */
#define ek_f_conv1d(...) EK_CONV_CALL(ek_f_conv1d_with, __VA_ARGS__)
#define ek_f_conv2d(...) EK_CONV_CALL(ek_f_conv2d_with, __VA_ARGS__)
#define ek_f_conv3d(...) EK_CONV_CALL(ek_f_conv3d_with, __VA_ARGS__)

typedef struct ek_conv_transpose_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    ek_tensor *weight; /**< (C, O / groups, k...) */
    ek_tensor *bias;   /**< (O) or NULL */
    int stride EK_IS(1);
    int padding;
    int dilation EK_IS(1);
    int groups EK_IS(1);
    int output_padding; /**< added at the end; less than stride or dilation */
    int strides[3], paddings[3], dilations[3], output_paddings[3];
} ek_conv_transpose_options;
#define EK_DEFAULTS_ek_conv_transpose_options \
    EK_DEFAULT(stride, 1), EK_DEFAULT(dilation, 1), EK_DEFAULT(groups, 1)
#define EK_CONV_TRANSPOSE_CALL(function, ...) \
    EK_CALL_3(function, ek_conv_transpose_options, x, weight, bias, __VA_ARGS__)
EK_API ek_tensor *ek_f_conv_transpose1d_with(ek_conv_transpose_options options);
EK_API ek_tensor *ek_f_conv_transpose2d_with(ek_conv_transpose_options options);
EK_API ek_tensor *ek_f_conv_transpose3d_with(ek_conv_transpose_options options);
/** Transposed convolution: the gradient of a convolution with respect to its input. The output size
 * is (size - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1. */
#define ek_f_conv_transpose1d(...) EK_CONV_TRANSPOSE_CALL(ek_f_conv_transpose1d_with, __VA_ARGS__)
#define ek_f_conv_transpose2d(...) EK_CONV_TRANSPOSE_CALL(ek_f_conv_transpose2d_with, __VA_ARGS__)
#define ek_f_conv_transpose3d(...) EK_CONV_TRANSPOSE_CALL(ek_f_conv_transpose3d_with, __VA_ARGS__)

typedef struct ek_max_pool_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    int padding;
    int dilation EK_IS(1);
    bool ceil_mode;
    int kernels[3], strides[3], paddings[3], dilations[3];
    /** If not NULL, *indices becomes the maxima's positions (i64), of the result's shape. A
     * position counts the L, H W or D H W elements of a channel in row-major order. */
    ek_tensor **indices;
} ek_max_pool_options;
#define EK_DEFAULTS_ek_max_pool_options EK_DEFAULT(stride, EK_UNSET), EK_DEFAULT(dilation, 1)
#define EK_MAX_POOL_CALL(function, ...) \
    EK_CALL_2(function, ek_max_pool_options, x, kernel, __VA_ARGS__)
EK_API ek_tensor *ek_f_max_pool1d_with(ek_max_pool_options options);
EK_API ek_tensor *ek_f_max_pool2d_with(ek_max_pool_options options);
EK_API ek_tensor *ek_f_max_pool3d_with(ek_max_pool_options options);
/** The largest element of each window. */
#define ek_f_max_pool1d(...) EK_MAX_POOL_CALL(ek_f_max_pool1d_with, __VA_ARGS__)
#define ek_f_max_pool2d(...) EK_MAX_POOL_CALL(ek_f_max_pool2d_with, __VA_ARGS__)
#define ek_f_max_pool3d(...) EK_MAX_POOL_CALL(ek_f_max_pool3d_with, __VA_ARGS__)

typedef struct ek_avg_pool_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    int padding;
    bool ceil_mode;
    bool count_include_pad EK_IS(true);
    int kernels[3], strides[3], paddings[3];
} ek_avg_pool_options;
#define EK_DEFAULTS_ek_avg_pool_options \
    EK_DEFAULT(stride, EK_UNSET), EK_DEFAULT(count_include_pad, true)
#define EK_AVG_POOL_CALL(function, ...) \
    EK_CALL_2(function, ek_avg_pool_options, x, kernel, __VA_ARGS__)
EK_API ek_tensor *ek_f_avg_pool1d_with(ek_avg_pool_options options);
EK_API ek_tensor *ek_f_avg_pool2d_with(ek_avg_pool_options options);
EK_API ek_tensor *ek_f_avg_pool3d_with(ek_avg_pool_options options);
/** The mean of each window. */
#define ek_f_avg_pool1d(...) EK_AVG_POOL_CALL(ek_f_avg_pool1d_with, __VA_ARGS__)
#define ek_f_avg_pool2d(...) EK_AVG_POOL_CALL(ek_f_avg_pool2d_with, __VA_ARGS__)
#define ek_f_avg_pool3d(...) EK_AVG_POOL_CALL(ek_f_avg_pool3d_with, __VA_ARGS__)
/** Means over windows that are chosen so that the result has this size. */
EK_API ek_tensor *ek_f_adaptive_avg_pool1d(ek_tensor *x, int64_t length);
EK_API ek_tensor *ek_f_adaptive_avg_pool2d(ek_tensor *x, int64_t height, int64_t width);
EK_API ek_tensor *ek_f_adaptive_avg_pool3d(ek_tensor *x, int64_t depth, int64_t height,
                                           int64_t width);

/** The largest element of each window of ek_f_adaptive_avg_pool. If `indices` is not NULL, *indices
 * becomes the maxima's positions, as in ek_f_max_pool. */
EK_API ek_tensor *ek_f_adaptive_max_pool1d(ek_tensor *x, int64_t length, ek_tensor **indices);
EK_API ek_tensor *ek_f_adaptive_max_pool2d(ek_tensor *x, int64_t height, int64_t width,
                                           ek_tensor **indices);
EK_API ek_tensor *ek_f_adaptive_max_pool3d(ek_tensor *x, int64_t depth, int64_t height,
                                           int64_t width, ek_tensor **indices);

typedef struct ek_unpool_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    ek_tensor *indices; /**< i64 or i32, of x's shape */
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    int padding;
    int kernels[3], strides[3], paddings[3];
    int64_t sizes[3];
} ek_unpool_options;
#define EK_DEFAULTS_ek_unpool_options EK_DEFAULT(stride, EK_UNSET)
#define EK_UNPOOL_CALL(function, ...) \
    EK_CALL_3(function, ek_unpool_options, x, indices, kernel, __VA_ARGS__)
EK_API ek_tensor *ek_f_max_unpool1d_with(ek_unpool_options options);
EK_API ek_tensor *ek_f_max_unpool2d_with(ek_unpool_options options);
EK_API ek_tensor *ek_f_max_unpool3d_with(ek_unpool_options options);
/** Max pooling reversed: zeros with x at the positions that max pooling with this kernel, stride
 * and padding has found. If several elements have one position, the last one wins (ek_scatter_dim).
 * `sizes` are the result's, one per direction. 0 means (size - 1) * stride - 2 * padding + kernel,
 * and other sizes must differ from this number by less than the stride. */
#define ek_f_max_unpool1d(...) EK_UNPOOL_CALL(ek_f_max_unpool1d_with, __VA_ARGS__)
#define ek_f_max_unpool2d(...) EK_UNPOOL_CALL(ek_f_max_unpool2d_with, __VA_ARGS__)
#define ek_f_max_unpool3d(...) EK_UNPOOL_CALL(ek_f_max_unpool3d_with, __VA_ARGS__)

typedef struct ek_lp_pool_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    double norm_type; /**< p */
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    bool ceil_mode;
    int kernels[3], strides[3];
} ek_lp_pool_options;
#define EK_DEFAULTS_ek_lp_pool_options EK_DEFAULT(stride, EK_UNSET)
#define EK_LP_POOL_CALL(function, ...) \
    EK_CALL_3(function, ek_lp_pool_options, x, norm_type, kernel, __VA_ARGS__)
EK_API ek_tensor *ek_f_lp_pool1d_with(ek_lp_pool_options options);
EK_API ek_tensor *ek_f_lp_pool2d_with(ek_lp_pool_options options);
EK_API ek_tensor *ek_f_lp_pool3d_with(ek_lp_pool_options options);
/** (sum of x^p over the window)^(1 / p), with gradient 0 if the sum is 0. p isn't 0. */
#define ek_f_lp_pool1d(...) EK_LP_POOL_CALL(ek_f_lp_pool1d_with, __VA_ARGS__)
#define ek_f_lp_pool2d(...) EK_LP_POOL_CALL(ek_f_lp_pool2d_with, __VA_ARGS__)
#define ek_f_lp_pool3d(...) EK_LP_POOL_CALL(ek_f_lp_pool3d_with, __VA_ARGS__)

/** How values between pixels are computed. EK_LINEAR is for (N, C, L), EK_BILINEAR and EK_BICUBIC
 * for (N, C, H, W), EK_TRILINEAR for (N, C, D, H, W), the others for all three. EK_NEAREST rounds
 * positions down, as PyTorch always did; EK_NEAREST_EXACT takes the nearest pixel. EK_AREA is
 * adaptive average pooling. */
typedef enum ek_upsample_mode {
    EK_NEAREST = 0,
    EK_BILINEAR = 1,
    EK_NEAREST_EXACT = 2,
    EK_LINEAR = 3,
    EK_BICUBIC = 4,
    EK_TRILINEAR = 5,
    EK_AREA = 6
} ek_upsample_mode;

typedef struct ek_interpolate_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int64_t size;
    double scale_factor; /**< the size becomes floor(size * factor) */
    ek_upsample_mode mode;
    /** For linear modes and EK_BICUBIC. True: the first and last pixels' centers keep their places.
     * False: the outer edges of the image keep theirs. */
    bool align_corners;
    /** True: positions are computed from the sizes. False: from a given factor; the two differ if
     * sizes were rounded. EK_AREA always computes from sizes. */
    bool recompute_scale_factor;
    bool antialias; /**< EK_BILINEAR, EK_BICUBIC: averages over more pixels if the image shrinks */
    int64_t sizes[3];
    double scale_factors[3];
} ek_interpolate_options;
#define EK_DEFAULTS_ek_interpolate_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_interpolate_with(ek_interpolate_options options);
/** x in another size: PyTorch's interpolate. Either the size is given or the factor, for all
 * directions or for each. */
#define ek_f_interpolate(...) \
    EK_CALL_2(ek_f_interpolate_with, ek_interpolate_options, x, size, __VA_ARGS__)
/** ek_f_interpolate of (N, C, H, W) to (N, C, height, width). */
EK_API ek_tensor *ek_f_upsample(ek_tensor *x, int64_t height, int64_t width, ek_upsample_mode mode,
                                bool align_corners);

/** How grid_sample reads between pixels, and beyond the edges: zeros, the pixels at the edge, or
 * the image reflected by its edges. */
typedef enum ek_grid_mode {
    EK_GRID_BILINEAR = 0, /**< trilinear for volumes */
    EK_GRID_NEAREST = 1,
    EK_GRID_BICUBIC = 2 /**< (N, C, H, W) only */
} ek_grid_mode;
typedef enum ek_grid_padding {
    EK_GRID_ZEROS = 0,
    EK_GRID_BORDER = 1,
    EK_GRID_REFLECTION = 2
} ek_grid_padding;

typedef struct ek_grid_sample_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    ek_tensor *grid; /**< has x's dtype */
    ek_grid_mode mode;
    ek_grid_padding padding_mode;
    bool align_corners;
} ek_grid_sample_options;
#define EK_DEFAULTS_ek_grid_sample_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_grid_sample_with(ek_grid_sample_options options);
/** x (N, C, H, W) at the places of grid (N, H', W', 2), as (N, C, H', W'); or x (N, C, D, H, W) at
 * those of grid (N, D', H', W', 3). The grid's last dimension is (x, y) or (x, y, z): along the
 * width, the height, the depth. -1 is the outer edge of the first pixel and 1 that of the last;
 * with align_corners these are the pixels' centers. A place that isn't finite gives 0 with
 * EK_GRID_ZEROS and with EK_GRID_BICUBIC. Otherwise, as in PyTorch 1.13, an infinity reads the
 * pixel at its edge with EK_GRID_BORDER; NaN, and an infinity that is reflected, reads the first
 * pixel. Gradients go to x and to the grid (0 for EK_GRID_NEAREST), to any order. */
#define ek_f_grid_sample(...) \
    EK_CALL_2(ek_f_grid_sample_with, ek_grid_sample_options, x, grid, __VA_ARGS__)

/** The grid (N, H, W, 2) on which grid_sample moves images by theta (N, 2, 3): the place theta (x,
 * y, 1) for each pixel (x, y) of an image of `size` (N, C, H, W). Volumes: (N, D, H, W, 3) by theta
 * (N, 3, 4). */
EK_API ek_tensor *ek_f_affine_grid(ek_tensor *theta, ek_shape size, bool align_corners);

EK_END_DECLARATIONS
#endif
