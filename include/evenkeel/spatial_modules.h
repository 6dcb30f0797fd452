/** @file
 * spatial_modules.h: convolution, pooling, padding and resampling as modules; spatial.h and shape.h
 * have them as functions. Ownership, errors and initial values are those of nn.h. */
#ifndef EVENKEEL_SPATIAL_MODULES_H
#define EVENKEEL_SPATIAL_MODULES_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/module.h"
#include "evenkeel/ops.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_conv_module_options {
    int begin; /**< no option, see base.h */
    int64_t in_channels, out_channels;
    int kernel;
    int stride EK_IS(1);
    ek_number_or_EK_SAME padding; /**< EK_SAME: see spatial.h */
    int dilation EK_IS(1);
    int groups EK_IS(1);
    bool bias EK_IS(true);
    int kernels[3], strides[3], paddings[3], dilations[3];
    ek_pad_mode padding_mode; /**< EK_PAD_CONSTANT: zeros; others: see shape.h */
    int kernel_size; /**< PyTorch's name of `kernel`: give one of the two; in C++ as the last */
} ek_conv_module_options;
#define EK_DEFAULTS_ek_conv_module_options \
    EK_DEFAULT(stride, 1), EK_DEFAULT(dilation, 1), EK_DEFAULT(groups, 1), EK_DEFAULT(bias, true)
EK_API ek_module *ek_conv1d_with(ek_conv_module_options options); /**< (N, C, L) */
EK_API ek_module *ek_conv2d_with(ek_conv_module_options options); /**< (N, C, H, W) */
EK_API ek_module *ek_conv3d_with(ek_conv_module_options options); /**< (N, C, D, H, W) */
#ifdef __cplusplus
#define EK_CONV_MODULE_CALL(function, ...) \
    EK_CALL_3(function, ek_conv_module_options, in_channels, out_channels, kernel, __VA_ARGS__)
#else
#define EK_CONV_MODULE_CALL(function, ...)                                     \
    EK_CALL_CHECKED(function(ek_options), ek_conv_module_options,              \
                    EK_ASSERTED(EK_LACKS(EK_TEXT_OF(__VA_ARGS__), "\"same\""), \
                                "\"same\" is written EK_SAME"),                \
                    __VA_ARGS__)
#endif
/** ek_conv2d(in, out, kernel, .stride = 2, .padding = 1). `kernel` and its like count for all
 * directions. `kernels` and its like give one number per direction, in the order of the input's
 * dimensions: .kernels = {3, 1}; an entry of 0 means the number for all directions. */
#define ek_conv1d(...) EK_CONV_MODULE_CALL(ek_conv1d_with, __VA_ARGS__)
#define ek_conv2d(...) EK_CONV_MODULE_CALL(ek_conv2d_with, __VA_ARGS__)
#define ek_conv3d(...) EK_CONV_MODULE_CALL(ek_conv3d_with, __VA_ARGS__)

typedef struct ek_conv_transpose_module_options {
    int begin; /**< no option, see base.h */
    int64_t in_channels, out_channels;
    int kernel;
    int stride EK_IS(1);
    int padding;
    int dilation EK_IS(1);
    int groups EK_IS(1);
    int output_padding;
    bool bias EK_IS(true);
    int kernels[3], strides[3], paddings[3], dilations[3], output_paddings[3];
    int kernel_size; /**< PyTorch's name of `kernel`: give one of the two; in C++ as the last */
} ek_conv_transpose_module_options;
#define EK_DEFAULTS_ek_conv_transpose_module_options \
    EK_DEFAULT(stride, 1), EK_DEFAULT(dilation, 1), EK_DEFAULT(groups, 1), EK_DEFAULT(bias, true)
EK_API ek_module *ek_conv_transpose1d_with(ek_conv_transpose_module_options options);
EK_API ek_module *ek_conv_transpose2d_with(ek_conv_transpose_module_options options);
EK_API ek_module *ek_conv_transpose3d_with(ek_conv_transpose_module_options options);
#define EK_CONV_TRANSPOSE_MODULE_CALL(function, ...)                                         \
    EK_CALL_3(function, ek_conv_transpose_module_options, in_channels, out_channels, kernel, \
              __VA_ARGS__)
/** Transposed convolution with options as those of ek_conv2d: ek_f_conv_transpose1d, 2d and 3d. */
#define ek_conv_transpose1d(...) \
    EK_CONV_TRANSPOSE_MODULE_CALL(ek_conv_transpose1d_with, __VA_ARGS__)
#define ek_conv_transpose2d(...) \
    EK_CONV_TRANSPOSE_MODULE_CALL(ek_conv_transpose2d_with, __VA_ARGS__)
#define ek_conv_transpose3d(...) \
    EK_CONV_TRANSPOSE_MODULE_CALL(ek_conv_transpose3d_with, __VA_ARGS__)

typedef struct ek_max_pool_module_options {
    int begin; /**< no option, see base.h */
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    int padding;
    int dilation EK_IS(1);
    bool ceil_mode;
    int kernels[3], strides[3], paddings[3], dilations[3];
    bool return_indices; /**< the output is a list of maxima and positions */
    int kernel_size;     /**< PyTorch's name of `kernel`: give one of the two; in C++ as the last */
} ek_max_pool_module_options;
#define EK_DEFAULTS_ek_max_pool_module_options EK_DEFAULT(stride, EK_UNSET), EK_DEFAULT(dilation, 1)
EK_API ek_module *ek_max_pool1d_with(ek_max_pool_module_options options);
EK_API ek_module *ek_max_pool2d_with(ek_max_pool_module_options options);
EK_API ek_module *ek_max_pool3d_with(ek_max_pool_module_options options);
#define EK_MAX_POOL_MODULE_CALL(function, ...) \
    EK_CALL_1(function, ek_max_pool_module_options, kernel, __VA_ARGS__)
/** ek_max_pool2d(2): modules of ek_f_max_pool1d, 2d and 3d. */
#define ek_max_pool1d(...) EK_MAX_POOL_MODULE_CALL(ek_max_pool1d_with, __VA_ARGS__)
#define ek_max_pool2d(...) EK_MAX_POOL_MODULE_CALL(ek_max_pool2d_with, __VA_ARGS__)
#define ek_max_pool3d(...) EK_MAX_POOL_MODULE_CALL(ek_max_pool3d_with, __VA_ARGS__)

typedef struct ek_avg_pool_module_options {
    int begin; /**< no option, see base.h */
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    int padding;
    bool ceil_mode;
    bool count_include_pad EK_IS(true);
    int kernels[3], strides[3], paddings[3];
    int kernel_size; /**< PyTorch's name of `kernel`: give one of the two; in C++ as the last */
} ek_avg_pool_module_options;
#define EK_DEFAULTS_ek_avg_pool_module_options \
    EK_DEFAULT(stride, EK_UNSET), EK_DEFAULT(count_include_pad, true)
EK_API ek_module *ek_avg_pool1d_with(ek_avg_pool_module_options options);
EK_API ek_module *ek_avg_pool2d_with(ek_avg_pool_module_options options);
EK_API ek_module *ek_avg_pool3d_with(ek_avg_pool_module_options options);
#define EK_AVG_POOL_MODULE_CALL(function, ...) \
    EK_CALL_1(function, ek_avg_pool_module_options, kernel, __VA_ARGS__)
/** ek_avg_pool2d(3, .stride = 2, .padding = 1): modules of ek_f_avg_pool1d, 2d and 3d. */
#define ek_avg_pool1d(...) EK_AVG_POOL_MODULE_CALL(ek_avg_pool1d_with, __VA_ARGS__)
#define ek_avg_pool2d(...) EK_AVG_POOL_MODULE_CALL(ek_avg_pool2d_with, __VA_ARGS__)
#define ek_avg_pool3d(...) EK_AVG_POOL_MODULE_CALL(ek_avg_pool3d_with, __VA_ARGS__)
/** Means over windows that are chosen so that the output has this size. */
EK_API ek_module *ek_adaptive_avg_pool1d(int64_t length);
EK_API ek_module *ek_adaptive_avg_pool2d(int64_t height, int64_t width);
EK_API ek_module *ek_adaptive_avg_pool3d(int64_t depth, int64_t height, int64_t width);
/** ek_f_adaptive_max_pool. With return_indices the output is a list of maxima and positions. */
EK_API ek_module *ek_adaptive_max_pool1d(int64_t length, bool return_indices);
EK_API ek_module *ek_adaptive_max_pool2d(int64_t height, int64_t width, bool return_indices);
EK_API ek_module *ek_adaptive_max_pool3d(int64_t depth, int64_t height, int64_t width,
                                         bool return_indices);

typedef struct ek_unpool_module_options {
    int begin; /**< no option, see base.h */
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    int padding;
    int kernels[3], strides[3], paddings[3];
} ek_unpool_module_options;
#define EK_DEFAULTS_ek_unpool_module_options EK_DEFAULT(stride, EK_UNSET)
EK_API ek_module *ek_max_unpool1d_with(ek_unpool_module_options options);
EK_API ek_module *ek_max_unpool2d_with(ek_unpool_module_options options);
EK_API ek_module *ek_max_unpool3d_with(ek_unpool_module_options options);
#define EK_MAX_UNPOOL_MODULE_CALL(function, ...) \
    EK_CALL_1(function, ek_unpool_module_options, kernel, __VA_ARGS__)
/** ek_f_max_unpool of two inputs, the maxima and their positions. A third input, or the keyword
 * argument output_size, may be a list of the result's sizes, for its directions or all dimensions.
 */
#define ek_max_unpool1d(...) EK_MAX_UNPOOL_MODULE_CALL(ek_max_unpool1d_with, __VA_ARGS__)
#define ek_max_unpool2d(...) EK_MAX_UNPOOL_MODULE_CALL(ek_max_unpool2d_with, __VA_ARGS__)
#define ek_max_unpool3d(...) EK_MAX_UNPOOL_MODULE_CALL(ek_max_unpool3d_with, __VA_ARGS__)

typedef struct ek_lp_pool_module_options {
    int begin; /**< no option, see base.h */
    double norm_type;
    int kernel;
    int stride EK_IS(EK_UNSET); /**< EK_UNSET: the kernel's */
    bool ceil_mode;
    int kernels[3], strides[3];
} ek_lp_pool_module_options;
#define EK_DEFAULTS_ek_lp_pool_module_options EK_DEFAULT(stride, EK_UNSET)
EK_API ek_module *ek_lp_pool1d_with(ek_lp_pool_module_options options);
EK_API ek_module *ek_lp_pool2d_with(ek_lp_pool_module_options options);
EK_API ek_module *ek_lp_pool3d_with(ek_lp_pool_module_options options);
#define EK_LP_POOL_MODULE_CALL(function, ...) \
    EK_CALL_2(function, ek_lp_pool_module_options, norm_type, kernel, __VA_ARGS__)
/** ek_lp_pool2d(2, 3, .stride = 2): ek_f_lp_pool. */
#define ek_lp_pool1d(...) EK_LP_POOL_MODULE_CALL(ek_lp_pool1d_with, __VA_ARGS__)
#define ek_lp_pool2d(...) EK_LP_POOL_MODULE_CALL(ek_lp_pool2d_with, __VA_ARGS__)
#define ek_lp_pool3d(...) EK_LP_POOL_MODULE_CALL(ek_lp_pool3d_with, __VA_ARGS__)

typedef struct ek_pad_module_options {
    int begin; /**< no option, see base.h */
    int64_t padding;
    int64_t paddings[6]; /**< for each side; in place of `padding` */
} ek_pad_module_options;
#define EK_DEFAULTS_ek_pad_module_options EK_NO_DEFAULTS
EK_API ek_module *ek_zero_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_zero_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_zero_pad3d_with(ek_pad_module_options options);
EK_API ek_module *ek_reflection_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_reflection_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_reflection_pad3d_with(ek_pad_module_options options);
EK_API ek_module *ek_replication_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_replication_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_replication_pad3d_with(ek_pad_module_options options);
EK_API ek_module *ek_circular_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_circular_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_circular_pad3d_with(ek_pad_module_options options);
#define EK_PAD_MODULE_CALL(function, ...) \
    EK_CALL_1(function, ek_pad_module_options, padding, __VA_ARGS__)
/** ek_reflection_pad2d(1), or for each side: ek_reflection_pad2d(.paddings = {1, 1, 2, 0}): before
 * and after the last dimension, then before and after the dimension before it, as ek_f_pad. Inputs
 * are (N, C, L), (N, C, H, W) or (N, C, D, H, W), or without N. */
#define ek_zero_pad1d(...) EK_PAD_MODULE_CALL(ek_zero_pad1d_with, __VA_ARGS__)
#define ek_zero_pad2d(...) EK_PAD_MODULE_CALL(ek_zero_pad2d_with, __VA_ARGS__)
#define ek_zero_pad3d(...) EK_PAD_MODULE_CALL(ek_zero_pad3d_with, __VA_ARGS__)
#define ek_reflection_pad1d(...) EK_PAD_MODULE_CALL(ek_reflection_pad1d_with, __VA_ARGS__)
#define ek_reflection_pad2d(...) EK_PAD_MODULE_CALL(ek_reflection_pad2d_with, __VA_ARGS__)
#define ek_reflection_pad3d(...) EK_PAD_MODULE_CALL(ek_reflection_pad3d_with, __VA_ARGS__)
#define ek_replication_pad1d(...) EK_PAD_MODULE_CALL(ek_replication_pad1d_with, __VA_ARGS__)
#define ek_replication_pad2d(...) EK_PAD_MODULE_CALL(ek_replication_pad2d_with, __VA_ARGS__)
#define ek_replication_pad3d(...) EK_PAD_MODULE_CALL(ek_replication_pad3d_with, __VA_ARGS__)
#define ek_circular_pad1d(...) EK_PAD_MODULE_CALL(ek_circular_pad1d_with, __VA_ARGS__)
#define ek_circular_pad2d(...) EK_PAD_MODULE_CALL(ek_circular_pad2d_with, __VA_ARGS__)
#define ek_circular_pad3d(...) EK_PAD_MODULE_CALL(ek_circular_pad3d_with, __VA_ARGS__)

typedef struct ek_constant_pad_module_options {
    int begin; /**< no option, see base.h */
    int64_t padding;
    double value;
    int64_t paddings[6]; /**< for each side; in place of `padding` */
} ek_constant_pad_module_options;
#define EK_DEFAULTS_ek_constant_pad_module_options EK_NO_DEFAULTS
EK_API ek_module *ek_constant_pad1d_with(ek_constant_pad_module_options options);
EK_API ek_module *ek_constant_pad2d_with(ek_constant_pad_module_options options);
EK_API ek_module *ek_constant_pad3d_with(ek_constant_pad_module_options options);
#define EK_CONSTANT_PAD_MODULE_CALL(function, ...) \
    EK_CALL_2(function, ek_constant_pad_module_options, padding, value, __VA_ARGS__)
/** ek_constant_pad2d(1, 0.5): padding by a number. */
#define ek_constant_pad1d(...) EK_CONSTANT_PAD_MODULE_CALL(ek_constant_pad1d_with, __VA_ARGS__)
#define ek_constant_pad2d(...) EK_CONSTANT_PAD_MODULE_CALL(ek_constant_pad2d_with, __VA_ARGS__)
#define ek_constant_pad3d(...) EK_CONSTANT_PAD_MODULE_CALL(ek_constant_pad3d_with, __VA_ARGS__)

/** The functions of shape.h between channels and space. */
EK_API ek_module *ek_pixel_shuffle(int upscale_factor);
EK_API ek_module *ek_pixel_unshuffle(int downscale_factor);
EK_API ek_module *ek_channel_shuffle(int groups);

typedef struct ek_upsample_options {
    int begin; /**< no option, see base.h */
    int64_t size;
    double scale_factor;
    ek_upsample_mode mode;
    bool align_corners, recompute_scale_factor, antialias;
    int64_t sizes[3];
    double scale_factors[3];
} ek_upsample_options;
#define EK_DEFAULTS_ek_upsample_options EK_NO_DEFAULTS
EK_API ek_module *ek_upsample_with(ek_upsample_options options);
/** PyTorch's nn.Upsample: ek_f_interpolate with these options. Either the size or the factor is
 * given, for all directions or for each: ek_upsample(.sizes = {9, 8}, .mode = EK_BILINEAR). */
#define ek_upsample(...) EK_CALL_1(ek_upsample_with, ek_upsample_options, size, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
