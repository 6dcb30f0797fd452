/** @file
 * nn.h: the library's modules but losses, which are in criteria.h. Each constructor returns a
 * module, owned by the caller or by the module that it is given to, or NULL with an error. Initial
 * values are PyTorch's to the bit: drawn in f32 on the CPU from the default generator, in PyTorch's
 * order. */
#ifndef EVENKEEL_NN_H
#define EVENKEEL_NN_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/criteria.h"
#include "evenkeel/init.h"
#include "evenkeel/module.h"
#include "evenkeel/ops.h"

EK_BEGIN_DECLARATIONS

/** As clang names what a list of modules wants, where it finds a constructor, ek_relu; and 0, or
 * gcc's error for those without arguments. */
typedef ek_module *ek_module_made_with_parentheses;
#define EK_IS_CALLED(text, name) EK_LACKS(", " text ",", ", ek_" name ",")
#define EK_ARE_CALLED(text)                                                                \
    EK_ASSERTED(EK_IS_CALLED(text, "relu") && EK_IS_CALLED(text, "sigmoid") &&             \
                    EK_IS_CALLED(text, "tanh") && EK_IS_CALLED(text, "silu") &&            \
                    EK_IS_CALLED(text, "mish") && EK_IS_CALLED(text, "selu") &&            \
                    EK_IS_CALLED(text, "relu6") && EK_IS_CALLED(text, "hardsigmoid") &&    \
                    EK_IS_CALLED(text, "hardswish") && EK_IS_CALLED(text, "tanhshrink") && \
                    EK_IS_CALLED(text, "softsign") && EK_IS_CALLED(text, "log_sigmoid") && \
                    EK_IS_CALLED(text, "identity"),                                        \
                "a module is made with parentheses: write ek_relu()")

EK_API ek_module *ek_sequential_of(ek_module *const *modules, int count);
/** Calls its children in order; each takes the output of the one before. Takes ownership of all. If
 * one is NULL (a constructor that failed), all are freed. */
#define ek_sequential(...)                                                       \
    ek_sequential_of(EK_ARE_CALLED(#__VA_ARGS__) +                               \
                         EK_ITEMS(ek_module_made_with_parentheses, __VA_ARGS__), \
                     EK_COUNT(ek_module *, __VA_ARGS__))

typedef struct ek_named_module {
    const char *name;
    ek_module *module;
} ek_named_module;
EK_API ek_module *ek_sequential_named_of(const ek_named_module *modules, int count);
/** The same with names for the children, as PyTorch's Sequential of an OrderedDict:
 * ek_sequential_named({"conv1", ek_conv2d(3, 64, 7)}, {"relu", ek_relu()}). A name of NULL is the
 * child's number. */
#define ek_sequential_named(...)                                   \
    ek_sequential_named_of(EK_ITEMS(ek_named_module, __VA_ARGS__), \
                           EK_COUNT(ek_named_module, __VA_ARGS__))

EK_API ek_module *ek_module_list_of(ek_module *const *modules, int count);
/** Hold modules that a forward calls one by one, and have no forward themselves. They take
 * ownership as ek_sequential does. ek_module_list(a, b) names its children "0", "1", ...;
 * ek_module_list_append (also of a sequential) takes ownership as ek_register_module does.
 * ek_module_dict({"left", a}, {"right", b}) has names, and gets further children by
 * ek_register_module(dict, "top", NULL, c). They are found by ek_module_child and ek_module_at. */
#define ek_module_list(...)                                                       \
    ek_module_list_of(EK_ARE_CALLED(#__VA_ARGS__) +                               \
                          EK_ITEMS(ek_module_made_with_parentheses, __VA_ARGS__), \
                      EK_COUNT(ek_module *, __VA_ARGS__))
EK_API int ek_module_list_append(ek_module *list, ek_module *module);
EK_API ek_module *ek_module_dict_of(const ek_named_module *modules, int count);
#define ek_module_dict(...)                                   \
    ek_module_dict_of(EK_ITEMS(ek_named_module, __VA_ARGS__), \
                      EK_COUNT(ek_named_module, __VA_ARGS__))

typedef struct ek_named_parameter {
    const char *name;
    ek_tensor *parameter;
} ek_named_parameter;
EK_API ek_module *ek_parameter_list_of(ek_tensor *const *parameters, int count);
/** Hold parameters in the same way: ek_parameter_list(a, b) of tensors that aren't results of
 * operations, named "0", "1", ...; ek_parameter_dict({"left", a}, {"right", b}). Each keeps a
 * reference. They are found by ek_module_tensor. */
#define ek_parameter_list(...) \
    ek_parameter_list_of(EK_ITEMS(ek_tensor *, __VA_ARGS__), EK_COUNT(ek_tensor *, __VA_ARGS__))
EK_API int ek_parameter_list_append(ek_module *list, ek_tensor *parameter);
EK_API ek_module *ek_parameter_dict_of(const ek_named_parameter *parameters, int count);
#define ek_parameter_dict(...)                                      \
    ek_parameter_dict_of(EK_ITEMS(ek_named_parameter, __VA_ARGS__), \
                         EK_COUNT(ek_named_parameter, __VA_ARGS__))

typedef struct ek_linear_options {
    const char *keywords;
    int64_t in_features, out_features;
    ek_switch bias; /**< default on */
} ek_linear_options;
EK_API ek_module *ek_linear_with(ek_linear_options options);
/** x (..., in_features) to (..., out_features): ek_f_linear. */
#define ek_linear(...) \
    ek_linear_with(EK_OPTIONS_2(ek_linear_options, in_features, out_features, __VA_ARGS__))

typedef struct ek_bilinear_options {
    const char *keywords;
    int64_t in1_features, in2_features, out_features;
    ek_switch bias; /**< default on */
} ek_bilinear_options;
EK_API ek_module *ek_bilinear_with(ek_bilinear_options options);
/** Of two inputs (..., in1) and (..., in2): ek_f_bilinear. */
#define ek_bilinear(...) \
    ek_bilinear_with(    \
        EK_OPTIONS_3(ek_bilinear_options, in1_features, in2_features, out_features, __VA_ARGS__))
typedef struct ek_cosine_similarity_module_options {
    const char *keywords;
    int dim;    /**< default 1 */
    double eps; /**< default 1e-8 */
} ek_cosine_similarity_module_options;
EK_API ek_module *ek_cosine_similarity_with(ek_cosine_similarity_module_options options);
/** Of two inputs: the functions of matrix.h. */
#define ek_cosine_similarity(...) \
    ek_cosine_similarity_with(    \
        EK_OPTIONS_2(ek_cosine_similarity_module_options, dim, eps, __VA_ARGS__))
typedef struct ek_pairwise_distance_module_options {
    const char *keywords;
    double eps; /**< default 1e-6 */
    bool keepdim;
    double p; /**< default 2 */
} ek_pairwise_distance_module_options;
EK_API ek_module *ek_pairwise_distance_with(ek_pairwise_distance_module_options options);
#define ek_pairwise_distance(...) \
    ek_pairwise_distance_with(    \
        EK_OPTIONS_2(ek_pairwise_distance_module_options, eps, keepdim, __VA_ARGS__))

typedef struct ek_conv_module_options {
    const char *keywords;
    int64_t in_channels, out_channels;
    int kernel;
    int stride;                   /**< default 1 */
    ek_number_or_EK_SAME padding; /**< EK_SAME (spatial.h): if not transposed */
    int dilation;                 /**< default 1 */
    int groups;                   /**< default 1 */
    int output_padding;           /**< transposed only */
    ek_switch bias;               /**< default on */
    int kernels[3], strides[3], paddings[3], dilations[3], output_paddings[3];
    ek_pad_mode padding_mode; /**< default EK_PAD_CONSTANT: zeros; not transposed: any (shape.h) */
    int kernel_size; /**< PyTorch's name of `kernel`: give one of the two; in C++ as the last */
} ek_conv_module_options;
EK_API ek_module *ek_conv1d_with(ek_conv_module_options options); /**< (N, C, L) */
EK_API ek_module *ek_conv2d_with(ek_conv_module_options options); /**< (N, C, H, W) */
EK_API ek_module *ek_conv3d_with(ek_conv_module_options options); /**< (N, C, D, H, W) */
EK_API ek_module *ek_conv_transpose1d_with(ek_conv_module_options options);
EK_API ek_module *ek_conv_transpose2d_with(ek_conv_module_options options);
EK_API ek_module *ek_conv_transpose3d_with(ek_conv_module_options options);
#define EK_CONV_MODULE_OPTIONS(...)                                   \
    ((void)EK_ASSERTED(EK_LACKS(EK_TEXT_OF(__VA_ARGS__), "\"same\""), \
                       "\"same\" is written EK_SAME"),                \
     EK_OPTIONS_3(ek_conv_module_options, in_channels, out_channels, kernel, __VA_ARGS__))
/** ek_conv2d(in, out, kernel, .stride = 2, .padding = 1). `kernel` and its like count for all
 * directions. `kernels` and its like give one number per direction, in the order of the input's
 * dimensions: .kernels = {3, 1}; an entry of 0 means the number for all directions. */
#define ek_conv1d(...) ek_conv1d_with(EK_CONV_MODULE_OPTIONS(__VA_ARGS__))
#define ek_conv2d(...) ek_conv2d_with(EK_CONV_MODULE_OPTIONS(__VA_ARGS__))
#define ek_conv3d(...) ek_conv3d_with(EK_CONV_MODULE_OPTIONS(__VA_ARGS__))
#define ek_conv_transpose1d(...) ek_conv_transpose1d_with(EK_CONV_MODULE_OPTIONS(__VA_ARGS__))
#define ek_conv_transpose2d(...) ek_conv_transpose2d_with(EK_CONV_MODULE_OPTIONS(__VA_ARGS__))
#define ek_conv_transpose3d(...) ek_conv_transpose3d_with(EK_CONV_MODULE_OPTIONS(__VA_ARGS__))

typedef struct ek_norm_options {
    const char *keywords;
    int64_t features;              /**< channels */
    double eps;                    /**< default 1e-5 */
    double momentum;               /**< default 0.1; or EK_CUMULATIVE (ops.h) */
    ek_switch affine;              /**< default on; instance norm: default off */
    ek_switch track_running_stats; /**< default on; instance norm: default off */
    /** ek_sync_batch_norm alone: the processes whose chunks share statistics. NULL: those of the
     * ek_distributed_data_parallel around it, if there is one. */
    ek_process_group *process_group;
} ek_norm_options;
EK_API ek_module *ek_batch_norm1d_with(ek_norm_options options); /**< (N, C) or (N, C, L) */
EK_API ek_module *ek_batch_norm2d_with(ek_norm_options options); /**< (N, C, H, W) */
EK_API ek_module *ek_batch_norm3d_with(ek_norm_options options); /**< (N, C, D, H, W) */
#define EK_NORM_OPTIONS(...) EK_OPTIONS_1(ek_norm_options, features, __VA_ARGS__)
/** Parameters weight, bias; buffers running_mean, running_var, num_batches_tracked (i64). */
#define ek_batch_norm1d(...) ek_batch_norm1d_with(EK_NORM_OPTIONS(__VA_ARGS__))
#define ek_batch_norm2d(...) ek_batch_norm2d_with(EK_NORM_OPTIONS(__VA_ARGS__))
#define ek_batch_norm3d(...) ek_batch_norm3d_with(EK_NORM_OPTIONS(__VA_ARGS__))
EK_API ek_module *ek_instance_norm1d_with(ek_norm_options options); /**< (N, C, L) */
EK_API ek_module *ek_instance_norm2d_with(ek_norm_options options); /**< (N, C, H, W) */
EK_API ek_module *ek_instance_norm3d_with(ek_norm_options options); /**< (N, C, D, H, W) */
/** With running statistics, the same buffers; evaluation then normalises by them. They move towards
 * averages over samples, and num_batches_tracked stays 0, as in PyTorch. A sample without N is a
 * batch of one. */
#define ek_instance_norm1d(...) ek_instance_norm1d_with(EK_NORM_OPTIONS(__VA_ARGS__))
#define ek_instance_norm2d(...) ek_instance_norm2d_with(EK_NORM_OPTIONS(__VA_ARGS__))
#define ek_instance_norm3d(...) ek_instance_norm3d_with(EK_NORM_OPTIONS(__VA_ARGS__))

typedef struct ek_layer_norm_options {
    const char *keywords;
    ek_shape normalized_shape;
    double eps;       /**< default 1e-5 */
    ek_switch affine; /**< default on: weight and bias of normalized_shape */
} ek_layer_norm_options;
EK_API ek_module *ek_layer_norm_with(ek_layer_norm_options options);
/** ek_layer_norm(EK_SHAPE(8, 4, 4)): over the last dimensions, which must have this shape. */
#define ek_layer_norm(...) \
    ek_layer_norm_with(EK_OPTIONS_1(ek_layer_norm_options, normalized_shape, __VA_ARGS__))

typedef struct ek_group_norm_options {
    const char *keywords;
    int64_t groups, channels;
    double eps;       /**< default 1e-5 */
    ek_switch affine; /**< default on: weight and bias (C) */
} ek_group_norm_options;
EK_API ek_module *ek_group_norm_with(ek_group_norm_options options);
/** ek_group_norm(groups, channels): takes (N, C, ...). */
#define ek_group_norm(...) \
    ek_group_norm_with(EK_OPTIONS_2(ek_group_norm_options, groups, channels, __VA_ARGS__))

typedef struct ek_local_response_norm_options {
    const char *keywords;
    int64_t size;
    double alpha; /**< default 1e-4 */
    double beta;  /**< default 0.75 */
    double k;     /**< default 1 */
} ek_local_response_norm_options;
EK_API ek_module *ek_local_response_norm_with(ek_local_response_norm_options options);
/** ek_local_response_norm(5): ek_f_local_response_norm. */
#define ek_local_response_norm(...) \
    ek_local_response_norm_with(EK_OPTIONS_1(ek_local_response_norm_options, size, __VA_ARGS__))

/** ek_f_relu and its like, element by element. */
EK_API ek_module *ek_relu(void);
EK_API ek_module *ek_leaky_relu(double negative_slope);
EK_API ek_module *ek_sigmoid(void);
EK_API ek_module *ek_tanh(void);
/** The other functions of activation.h. PyTorch's defaults are in brackets. */
EK_API ek_module *ek_gelu(ek_gelu_approximate approximate); /**< (EK_GELU_NONE) */
EK_API ek_module *ek_silu(void);
EK_API ek_module *ek_mish(void);
EK_API ek_module *ek_elu(double alpha);  /**< (1) */
EK_API ek_module *ek_celu(double alpha); /**< (1) */
EK_API ek_module *ek_selu(void);
EK_API ek_module *ek_relu6(void);
EK_API ek_module *ek_hardtanh(double low, double high); /**< (-1, 1) */
EK_API ek_module *ek_hardsigmoid(void);
EK_API ek_module *ek_hardswish(void);
EK_API ek_module *ek_hardshrink(double lambda); /**< (0.5) */
EK_API ek_module *ek_softshrink(double lambda); /**< (0.5) */
EK_API ek_module *ek_tanhshrink(void);
EK_API ek_module *ek_softsign(void);
EK_API ek_module *ek_log_sigmoid(void);
EK_API ek_module *ek_threshold(double threshold, double value);
EK_API ek_module *ek_glu(int dim); /**< (-1) */
EK_API ek_module *ek_softmax(int dim);
EK_API ek_module *ek_log_softmax(int dim);
EK_API ek_module *ek_softmin(int dim);

typedef struct ek_softplus_module_options {
    const char *keywords;
    double beta;      /**< default 1 */
    double threshold; /**< default 20 */
} ek_softplus_module_options;
EK_API ek_module *ek_softplus_with(ek_softplus_module_options options);
/** ek_softplus(.beta = 2): ek_f_softplus. */
#define ek_softplus(...) \
    ek_softplus_with(EK_OPTIONS_2(ek_softplus_module_options, beta, threshold, __VA_ARGS__))

typedef struct ek_rrelu_options {
    const char *keywords;
    double lower; /**< default 1/8 */
    double upper; /**< default 1/3 */
} ek_rrelu_options;
EK_API ek_module *ek_rrelu_with(ek_rrelu_options options);
/** Below 0 slopes from lower to upper, random while it trains (ek_f_rrelu). */
#define ek_rrelu(...) ek_rrelu_with(EK_OPTIONS_2(ek_rrelu_options, lower, upper, __VA_ARGS__))

typedef struct ek_prelu_options {
    const char *keywords;
    int64_t num_parameters; /**< default 1 */
    double init;            /**< default 0.25 */
} ek_prelu_options;
EK_API ek_module *ek_prelu_with(ek_prelu_options options);
/** Parameter weight: one, or one for each channel. */
#define ek_prelu(...) \
    ek_prelu_with(EK_OPTIONS_2(ek_prelu_options, num_parameters, init, __VA_ARGS__))

/** In training, zeroes elements with probability p and scales the others: ek_f_dropout. */
EK_API ek_module *ek_dropout(double p);
EK_API ek_module *ek_dropout1d(double p); /**< whole channels of (N, C, L) */
EK_API ek_module *ek_dropout2d(double p); /**< whole channels of (N, C, H, W) */
EK_API ek_module *ek_dropout3d(double p); /**< whole channels of (N, C, D, H, W) */
/** Keeps mean and deviation of inputs of mean 0 and deviation 1, as after SELU. */
EK_API ek_module *ek_alpha_dropout(double p);
/** The input as it is, or in another shape. */
EK_API ek_module *ek_identity(void);
EK_API ek_module *ek_flatten(int start_dim, int end_dim); /**< usually 1, -1 */
EK_API ek_module *ek_unflatten(int dim, ek_shape sizes);  /**< one size may be -1 */
/** Sets the running statistics of all batch norms of the module to those of the data that `run`
 * calls it with, all batches counting alike, as torch.optim.swa_utils.update_bn; for a module whose
 * parameters were averaged (ema.h). `run` is called once, in training mode and without gradients;
 * modes and momenta come back after it. Returns what `run` returns, or an error. */
typedef int ek_module_run(ek_module *module, void *user);
EK_API int ek_update_batch_norm(ek_module *module, ek_module_run *run, void *user);

typedef struct ek_pool_module_options {
    const char *keywords;
    int kernel;
    int stride; /**< default: kernel */
    int padding;
    int dilation; /**< max pooling only */
    bool ceil_mode;
    ek_switch count_include_pad; /**< average pooling only; default on */
    int kernels[3], strides[3], paddings[3], dilations[3];
    bool return_indices; /**< max pooling only: the output is a list of maxima and positions */
    int kernel_size;     /**< PyTorch's name of `kernel`: give one of the two; in C++ as the last */
} ek_pool_module_options;
EK_API ek_module *ek_max_pool1d_with(ek_pool_module_options options);
EK_API ek_module *ek_max_pool2d_with(ek_pool_module_options options);
EK_API ek_module *ek_max_pool3d_with(ek_pool_module_options options);
EK_API ek_module *ek_avg_pool1d_with(ek_pool_module_options options);
EK_API ek_module *ek_avg_pool2d_with(ek_pool_module_options options);
EK_API ek_module *ek_avg_pool3d_with(ek_pool_module_options options);
#define EK_POOL_MODULE_OPTIONS(...) EK_OPTIONS_1(ek_pool_module_options, kernel, __VA_ARGS__)
/** ek_max_pool2d(2), ek_avg_pool2d(3, .stride = 2, .padding = 1): ek_f_max_pool2d and its like. */
#define ek_max_pool1d(...) ek_max_pool1d_with(EK_POOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_max_pool2d(...) ek_max_pool2d_with(EK_POOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_max_pool3d(...) ek_max_pool3d_with(EK_POOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_avg_pool1d(...) ek_avg_pool1d_with(EK_POOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_avg_pool2d(...) ek_avg_pool2d_with(EK_POOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_avg_pool3d(...) ek_avg_pool3d_with(EK_POOL_MODULE_OPTIONS(__VA_ARGS__))
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
    const char *keywords;
    int kernel;
    int stride; /**< default: kernel */
    int padding;
    int kernels[3], strides[3], paddings[3];
} ek_unpool_module_options;
EK_API ek_module *ek_max_unpool1d_with(ek_unpool_module_options options);
EK_API ek_module *ek_max_unpool2d_with(ek_unpool_module_options options);
EK_API ek_module *ek_max_unpool3d_with(ek_unpool_module_options options);
#define EK_UNPOOL_MODULE_OPTIONS(...) EK_OPTIONS_1(ek_unpool_module_options, kernel, __VA_ARGS__)
/** Of maxima and their positions: ek_f_max_unpool. A list of the result's sizes, in its directions
 * or in all its dimensions, may follow as a third input or as the keyword argument output_size. */
#define ek_max_unpool1d(...) ek_max_unpool1d_with(EK_UNPOOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_max_unpool2d(...) ek_max_unpool2d_with(EK_UNPOOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_max_unpool3d(...) ek_max_unpool3d_with(EK_UNPOOL_MODULE_OPTIONS(__VA_ARGS__))

typedef struct ek_lp_pool_module_options {
    const char *keywords;
    double norm_type;
    int kernel;
    int stride; /**< default: kernel */
    bool ceil_mode;
    int kernels[3], strides[3];
} ek_lp_pool_module_options;
EK_API ek_module *ek_lp_pool1d_with(ek_lp_pool_module_options options);
EK_API ek_module *ek_lp_pool2d_with(ek_lp_pool_module_options options);
EK_API ek_module *ek_lp_pool3d_with(ek_lp_pool_module_options options);
#define EK_LP_POOL_MODULE_OPTIONS(...) \
    EK_OPTIONS_2(ek_lp_pool_module_options, norm_type, kernel, __VA_ARGS__)
/** ek_lp_pool2d(2, 3, .stride = 2): ek_f_lp_pool. */
#define ek_lp_pool1d(...) ek_lp_pool1d_with(EK_LP_POOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_lp_pool2d(...) ek_lp_pool2d_with(EK_LP_POOL_MODULE_OPTIONS(__VA_ARGS__))
#define ek_lp_pool3d(...) ek_lp_pool3d_with(EK_LP_POOL_MODULE_OPTIONS(__VA_ARGS__))

typedef struct ek_pad_module_options {
    const char *keywords;
    int64_t padding;
    double value;        /**< constant padding only */
    int64_t paddings[6]; /**< if any isn't 0, all count in place of `padding` */
} ek_pad_module_options;
EK_API ek_module *ek_zero_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_zero_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_zero_pad3d_with(ek_pad_module_options options);
EK_API ek_module *ek_constant_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_constant_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_constant_pad3d_with(ek_pad_module_options options);
EK_API ek_module *ek_reflection_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_reflection_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_reflection_pad3d_with(ek_pad_module_options options);
EK_API ek_module *ek_replication_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_replication_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_replication_pad3d_with(ek_pad_module_options options);
EK_API ek_module *ek_circular_pad1d_with(ek_pad_module_options options);
EK_API ek_module *ek_circular_pad2d_with(ek_pad_module_options options);
EK_API ek_module *ek_circular_pad3d_with(ek_pad_module_options options);
#define EK_PAD_MODULE_OPTIONS(...) EK_OPTIONS_2(ek_pad_module_options, padding, value, __VA_ARGS__)
/** ek_reflection_pad2d(1), or for each side: ek_reflection_pad2d(.paddings = {1, 1, 2, 0}), before
 * and after the last dimension, then the one before it, as ek_f_pad. Of (N, C, L), (N, C, H, W) or
 * (N, C, D, H, W), or without N. */
#define ek_zero_pad1d(...) ek_zero_pad1d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_zero_pad2d(...) ek_zero_pad2d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_zero_pad3d(...) ek_zero_pad3d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_constant_pad1d(...) ek_constant_pad1d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_constant_pad2d(...) ek_constant_pad2d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_constant_pad3d(...) ek_constant_pad3d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_reflection_pad1d(...) ek_reflection_pad1d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_reflection_pad2d(...) ek_reflection_pad2d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_reflection_pad3d(...) ek_reflection_pad3d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_replication_pad1d(...) ek_replication_pad1d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_replication_pad2d(...) ek_replication_pad2d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_replication_pad3d(...) ek_replication_pad3d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_circular_pad1d(...) ek_circular_pad1d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_circular_pad2d(...) ek_circular_pad2d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))
#define ek_circular_pad3d(...) ek_circular_pad3d_with(EK_PAD_MODULE_OPTIONS(__VA_ARGS__))

/** The functions of shape.h between channels and space. */
EK_API ek_module *ek_pixel_shuffle(int upscale_factor);
EK_API ek_module *ek_pixel_unshuffle(int downscale_factor);
EK_API ek_module *ek_channel_shuffle(int groups);

typedef struct ek_upsample_options {
    const char *keywords;
    int64_t size;
    double scale_factor;
    ek_upsample_mode mode;
    bool align_corners, recompute_scale_factor, antialias;
    int64_t sizes[3];
    double scale_factors[3];
} ek_upsample_options;
EK_API ek_module *ek_upsample_with(ek_upsample_options options);
/** PyTorch's nn.Upsample: ek_f_interpolate with these options. Either the size or the factor is
 * given, for all directions or for each: ek_upsample(.sizes = {9, 8}, .mode = EK_BILINEAR). */
#define ek_upsample(...) ek_upsample_with(EK_OPTIONS_1(ek_upsample_options, size, __VA_ARGS__))

/* ---- modules with a weight that is computed in each forward ----
 *
 * Both take ownership of `module`, also on an error, and call it with the computed weight in place
 * of its parameter `name` (NULL: "weight"). The parameter itself is found under another name. Two
 * parameters of one module are two wrappers, one around the other. A forward sees a copy of the
 * module's struct: what it writes to plain members is lost. */

typedef struct ek_spectral_norm_options {
    const char *keywords;
    ek_module *module;
    const char *name;
    int n_power_iterations; /**< default 1 */
    int dim;                /**< default 0; 1 for transposed convolutions */
    double eps;             /**< default 1e-12; the least norm that vectors are divided by */
} ek_spectral_norm_options;
EK_API ek_module *ek_spectral_norm_with(ek_spectral_norm_options options);
/** ek_spectral_norm(ek_conv2d(3, 8, 3)): the weight divided by its largest singular value, as
 * torch.nn.utils.parametrizations.spectral_norm. Parameter weight_orig; buffers weight_u and
 * weight_v, singular vectors of the weight as a matrix with rows along `dim`. In training each
 * forward first improves them by power iteration. Constructed, they are random unit vectors after
 * 15 iterations, and as many again as a forward has. A weight of one dimension has no vectors, and
 * is divided by its 2-norm. */
#define ek_spectral_norm(...) \
    ek_spectral_norm_with(EK_OPTIONS_2(ek_spectral_norm_options, module, name, __VA_ARGS__))

typedef struct ek_weight_norm_options {
    const char *keywords;
    ek_module *module;
    const char *name;
    int dim; /**< default 0 */
} ek_weight_norm_options;
EK_API ek_module *ek_weight_norm_with(ek_weight_norm_options options);
/** ek_weight_norm(ek_linear(4, 3)): g v / |v|, as torch.nn.utils.weight_norm. Parameters weight_g
 * and weight_v. Norms are over all dimensions but `dim`; with dim -1 there is one norm of all
 * elements, and weight_g is a scalar. */
#define ek_weight_norm(...) \
    ek_weight_norm_with(EK_OPTIONS_2(ek_weight_norm_options, module, name, __VA_ARGS__))

/** Calls `body` without keeping its inner activations for backward. They are computed again in
 * backward, from the inputs, the parameters, and what the forward found: buffers, generator, modes,
 * plain members. That takes the memory of one forward.
 *
 * The output and gradients of any order are those of `body`. Gradients go to the inputs and to
 * registered parameters. Inputs and parameters must not be modified by the forward (EK_E_AUTOGRAD),
 * nor later before the backward (EK_E_MODIFIED). Buffers are updated once, by the forward. The
 * module owns `body`; paths are those of `body`.
 *
 * Operations that wait for other replicas (ek_sync_batch_norm, ek_allreduce) are refused in `body`,
 * because backwards of replicas don't wait for each other. So are data-parallel wrappers: put the
 * checkpoint inside the wrapper. Operations that meet other ranks are not, outside of replicas: the
 * checkpoint's backward takes its turn among theirs (ek_function.meets). */
EK_API ek_module *ek_checkpoint(ek_module *body);

EK_END_DECLARATIONS
#endif
