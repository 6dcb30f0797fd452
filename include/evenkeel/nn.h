/** @file
 * nn.h: the library's modules; losses are in criteria.h, convolution and pooling in
 * spatial_modules.h. Each constructor returns a module, owned by the caller or by the module that
 * it is given to, or NULL with an error. Initial values are PyTorch's to the bit: drawn in f32 on
 * the CPU from the default generator, in PyTorch's order. */
#ifndef EVENKEEL_NN_H
#define EVENKEEL_NN_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/criteria.h"
#include "evenkeel/init.h"
#include "evenkeel/module.h"
#include "evenkeel/ops.h"
#include "evenkeel/spatial_modules.h"

EK_BEGIN_DECLARATIONS

/** A module, named so that clang's message explains the mistake if a list of modules has ek_relu in
 * place of ek_relu(). The check below is 0; with gcc it is an error for such constructors. */
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
/** Calls its children in order, each with the output of the child before it. Takes ownership of all
 * children. If one is NULL (a constructor that failed), all are freed. */
#define ek_sequential(...)                                                       \
    ek_sequential_of(EK_ARE_CALLED(#__VA_ARGS__) +                               \
                         EK_ITEMS(ek_module_made_with_parentheses, __VA_ARGS__), \
                     EK_COUNT(ek_module *, __VA_ARGS__))

typedef struct ek_named_module {
    const char *name;
    ek_module *module;
} ek_named_module;
EK_API ek_module *ek_sequential_named_of(const ek_named_module *modules, int count);
/** ek_sequential with names for the children, as PyTorch's Sequential of an OrderedDict:
 * ek_sequential_named({"conv1", ek_conv2d(3, 64, 7)}, {"relu", ek_relu()}). For the name NULL, the
 * child's number is its name. */
#define ek_sequential_named(...)                                   \
    ek_sequential_named_of(EK_ITEMS(ek_named_module, __VA_ARGS__), \
                           EK_COUNT(ek_named_module, __VA_ARGS__))

EK_API ek_module *ek_module_list_of(ek_module *const *modules, int count);
/** Hold modules that a forward calls one by one, and have no forward themselves. They take
 * ownership as ek_sequential does. ek_module_list(a, b) names its children "0", "1", ...;
 * ek_module_list_append (also of a sequential) takes ownership as ek_register_module does.
 * ek_module_dict({"left", a}, {"right", b}) has names, and gets further children by
 * ek_register_module(dict, "top", NULL, c). ek_module_child and ek_module_at find the children. */
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
/** Modules that hold parameters and have no forward: ek_parameter_list(a, b) of tensors that aren't
 * results of operations, named "0", "1", ...; ek_parameter_dict({"left", a}, {"right", b}). They
 * keep references to the tensors, which ek_module_tensor finds. */
#define ek_parameter_list(...) \
    ek_parameter_list_of(EK_ITEMS(ek_tensor *, __VA_ARGS__), EK_COUNT(ek_tensor *, __VA_ARGS__))
EK_API int ek_parameter_list_append(ek_module *list, ek_tensor *parameter);
EK_API ek_module *ek_parameter_dict_of(const ek_named_parameter *parameters, int count);
#define ek_parameter_dict(...)                                      \
    ek_parameter_dict_of(EK_ITEMS(ek_named_parameter, __VA_ARGS__), \
                         EK_COUNT(ek_named_parameter, __VA_ARGS__))

typedef struct ek_linear_options {
    int begin; /**< no option, see base.h */
    int64_t in_features, out_features;
    bool bias EK_IS(true);
} ek_linear_options;
#define EK_DEFAULTS_ek_linear_options EK_DEFAULT(bias, true)
EK_API ek_module *ek_linear_with(ek_linear_options options);
/** x (..., in_features) to (..., out_features): ek_f_linear. */
#define ek_linear(...) \
    EK_CALL_2(ek_linear_with, ek_linear_options, in_features, out_features, __VA_ARGS__)

typedef struct ek_bilinear_options {
    int begin; /**< no option, see base.h */
    int64_t in1_features, in2_features, out_features;
    bool bias EK_IS(true);
} ek_bilinear_options;
#define EK_DEFAULTS_ek_bilinear_options EK_DEFAULT(bias, true)
EK_API ek_module *ek_bilinear_with(ek_bilinear_options options);
/** ek_f_bilinear of two inputs, (..., in1) and (..., in2). */
#define ek_bilinear(...)                                                                       \
    EK_CALL_3(ek_bilinear_with, ek_bilinear_options, in1_features, in2_features, out_features, \
              __VA_ARGS__)
typedef struct ek_cosine_similarity_module_options {
    int begin; /**< no option, see base.h */
    int dim EK_IS(1);
    double eps EK_IS(1e-8);
} ek_cosine_similarity_module_options;
#define EK_DEFAULTS_ek_cosine_similarity_module_options EK_DEFAULT(dim, 1), EK_DEFAULT(eps, 1e-8)
EK_API ek_module *ek_cosine_similarity_with(ek_cosine_similarity_module_options options);
/** Of two inputs: the functions of matrix.h. */
#define ek_cosine_similarity(...) \
    EK_CALL_2(ek_cosine_similarity_with, ek_cosine_similarity_module_options, dim, eps, __VA_ARGS__)
typedef struct ek_pairwise_distance_module_options {
    int begin; /**< no option, see base.h */
    double eps EK_IS(1e-6);
    bool keepdim;
    double p EK_IS(2);
} ek_pairwise_distance_module_options;
#define EK_DEFAULTS_ek_pairwise_distance_module_options EK_DEFAULT(eps, 1e-6), EK_DEFAULT(p, 2)
EK_API ek_module *ek_pairwise_distance_with(ek_pairwise_distance_module_options options);
#define ek_pairwise_distance(...)                                                           \
    EK_CALL_2(ek_pairwise_distance_with, ek_pairwise_distance_module_options, eps, keepdim, \
              __VA_ARGS__)

typedef struct ek_batch_norm_module_options {
    int begin;        /**< no option, see base.h */
    int64_t features; /**< channels */
    double eps EK_IS(1e-5);
    double momentum EK_IS(0.1); /**< EK_CUMULATIVE (norm.h): averages over all batches */
    bool affine EK_IS(true);
    bool track_running_stats EK_IS(true);
} ek_batch_norm_module_options;
#define EK_DEFAULTS_ek_batch_norm_module_options                                \
    EK_DEFAULT(eps, 1e-5), EK_DEFAULT(momentum, 0.1), EK_DEFAULT(affine, true), \
        EK_DEFAULT(track_running_stats, true)
EK_API ek_module *ek_batch_norm1d_with(ek_batch_norm_module_options options);
EK_API ek_module *ek_batch_norm2d_with(ek_batch_norm_module_options options);
EK_API ek_module *ek_batch_norm3d_with(ek_batch_norm_module_options options);
#define EK_BATCH_NORM_CALL(function, ...) \
    EK_CALL_1(function, ek_batch_norm_module_options, features, __VA_ARGS__)
/** Batch norm of (N, C) or (N, C, L); 2d: of (N, C, H, W); 3d: of (N, C, D, H, W). Parameters
 * weight, bias; buffers running_mean, running_var, num_batches_tracked (i64). */
#define ek_batch_norm1d(...) EK_BATCH_NORM_CALL(ek_batch_norm1d_with, __VA_ARGS__)
#define ek_batch_norm2d(...) EK_BATCH_NORM_CALL(ek_batch_norm2d_with, __VA_ARGS__)
#define ek_batch_norm3d(...) EK_BATCH_NORM_CALL(ek_batch_norm3d_with, __VA_ARGS__)

typedef struct ek_instance_norm_module_options {
    int begin;        /**< no option, see base.h */
    int64_t features; /**< channels */
    double eps EK_IS(1e-5);
    double momentum EK_IS(0.1);
    bool affine;
    bool track_running_stats;
} ek_instance_norm_module_options;
#define EK_DEFAULTS_ek_instance_norm_module_options EK_DEFAULT(eps, 1e-5), EK_DEFAULT(momentum, 0.1)
EK_API ek_module *ek_instance_norm1d_with(ek_instance_norm_module_options options);
EK_API ek_module *ek_instance_norm2d_with(ek_instance_norm_module_options options);
EK_API ek_module *ek_instance_norm3d_with(ek_instance_norm_module_options options);
#define EK_INSTANCE_NORM_CALL(function, ...) \
    EK_CALL_1(function, ek_instance_norm_module_options, features, __VA_ARGS__)
/** Instance norm of (N, C, L); 2d: of (N, C, H, W); 3d: of (N, C, D, H, W). A sample without N is a
 * batch of one. With running statistics it has the buffers of batch norm, and evaluation normalises
 * by them. Running statistics move towards averages over samples, and num_batches_tracked stays 0,
 * as in PyTorch. */
#define ek_instance_norm1d(...) EK_INSTANCE_NORM_CALL(ek_instance_norm1d_with, __VA_ARGS__)
#define ek_instance_norm2d(...) EK_INSTANCE_NORM_CALL(ek_instance_norm2d_with, __VA_ARGS__)
#define ek_instance_norm3d(...) EK_INSTANCE_NORM_CALL(ek_instance_norm3d_with, __VA_ARGS__)

typedef struct ek_layer_norm_options {
    int begin; /**< no option, see base.h */
    ek_shape normalized_shape;
    double eps EK_IS(1e-5);
    bool affine EK_IS(true); /**< weight and bias of normalized_shape */
} ek_layer_norm_options;
#define EK_DEFAULTS_ek_layer_norm_options EK_DEFAULT(eps, 1e-5), EK_DEFAULT(affine, true)
EK_API ek_module *ek_layer_norm_with(ek_layer_norm_options options);
/** ek_layer_norm(EK_SHAPE(8, 4, 4)): normalises over the last dimensions, which must have this
 * shape. */
#define ek_layer_norm(...) \
    EK_CALL_1(ek_layer_norm_with, ek_layer_norm_options, normalized_shape, __VA_ARGS__)

typedef struct ek_group_norm_options {
    int begin; /**< no option, see base.h */
    int64_t groups, channels;
    double eps EK_IS(1e-5);
    bool affine EK_IS(true); /**< weight and bias (C) */
} ek_group_norm_options;
#define EK_DEFAULTS_ek_group_norm_options EK_DEFAULT(eps, 1e-5), EK_DEFAULT(affine, true)
EK_API ek_module *ek_group_norm_with(ek_group_norm_options options);
/** ek_group_norm(groups, channels): takes (N, C, ...). */
#define ek_group_norm(...) \
    EK_CALL_2(ek_group_norm_with, ek_group_norm_options, groups, channels, __VA_ARGS__)

typedef struct ek_local_response_norm_options {
    int begin; /**< no option, see base.h */
    int64_t size;
    double alpha EK_IS(1e-4);
    double beta EK_IS(0.75);
    double k EK_IS(1);
} ek_local_response_norm_options;
#define EK_DEFAULTS_ek_local_response_norm_options \
    EK_DEFAULT(alpha, 1e-4), EK_DEFAULT(beta, 0.75), EK_DEFAULT(k, 1)
EK_API ek_module *ek_local_response_norm_with(ek_local_response_norm_options options);
/** ek_local_response_norm(5): ek_f_local_response_norm. */
#define ek_local_response_norm(...) \
    EK_CALL_1(ek_local_response_norm_with, ek_local_response_norm_options, size, __VA_ARGS__)

/** Modules of ek_f_relu, ek_f_sigmoid and others, element by element. */
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
    int begin; /**< no option, see base.h */
    double beta EK_IS(1);
    double threshold EK_IS(20);
} ek_softplus_module_options;
#define EK_DEFAULTS_ek_softplus_module_options EK_DEFAULT(beta, 1), EK_DEFAULT(threshold, 20)
EK_API ek_module *ek_softplus_with(ek_softplus_module_options options);
/** ek_softplus(.beta = 2): ek_f_softplus. */
#define ek_softplus(...) \
    EK_CALL_2(ek_softplus_with, ek_softplus_module_options, beta, threshold, __VA_ARGS__)

typedef struct ek_rrelu_options {
    int begin; /**< no option, see base.h */
    double lower EK_IS(1. / 8);
    double upper EK_IS(1. / 3);
} ek_rrelu_options;
#define EK_DEFAULTS_ek_rrelu_options EK_DEFAULT(lower, 1. / 8), EK_DEFAULT(upper, 1. / 3)
EK_API ek_module *ek_rrelu_with(ek_rrelu_options options);
/** ek_f_rrelu: slopes below 0 lie between lower and upper; in training they are random. */
#define ek_rrelu(...) EK_CALL_2(ek_rrelu_with, ek_rrelu_options, lower, upper, __VA_ARGS__)

typedef struct ek_prelu_options {
    int begin; /**< no option, see base.h */
    int64_t num_parameters EK_IS(1);
    double init EK_IS(0.25);
} ek_prelu_options;
#define EK_DEFAULTS_ek_prelu_options EK_DEFAULT(num_parameters, 1), EK_DEFAULT(init, 0.25)
EK_API ek_module *ek_prelu_with(ek_prelu_options options);
/** ek_f_prelu. The parameter `weight` has one element, or one per channel. */
#define ek_prelu(...) EK_CALL_2(ek_prelu_with, ek_prelu_options, num_parameters, init, __VA_ARGS__)

/** In training, zeroes elements with probability p and scales the others: ek_f_dropout. */
EK_API ek_module *ek_dropout(double p);
EK_API ek_module *ek_dropout1d(double p); /**< whole channels of (N, C, L) */
EK_API ek_module *ek_dropout2d(double p); /**< whole channels of (N, C, H, W) */
EK_API ek_module *ek_dropout3d(double p); /**< whole channels of (N, C, D, H, W) */
/** Dropout that keeps mean 0 and standard deviation 1 of its inputs, as after SELU. */
EK_API ek_module *ek_alpha_dropout(double p);
/** The input as it is, or in another shape. */
EK_API ek_module *ek_identity(void);
EK_API ek_module *ek_flatten(int start_dim, int end_dim); /**< usually 1, -1 */
EK_API ek_module *ek_unflatten(int dim, ek_shape sizes);  /**< one size may be -1 */
/** Computes the running statistics of all batch norms anew, as torch.optim.swa_utils.update_bn; for
 * a module whose parameters were averaged (ema.h). `run` calls the module with the data, and all
 * batches have equal weights. `run` is called once, in training mode and without gradients; modes
 * and momenta are restored after it. Returns what `run` returns, or an error. */
typedef int ek_module_run(ek_module *module, void *user);
EK_API int ek_update_batch_norm(ek_module *module, ek_module_run *run, void *user);

/* ---- modules with a weight that is computed in each forward ----
 *
 * Both take ownership of `module`, also on an error, and call it with the computed weight in place
 * of its parameter `name` (NULL: "weight"). The parameter itself gets another name (see below). For
 * two parameters of one module, put one wrapper around the other. A forward sees a copy of the
 * module's struct: what it writes to members that are not registered is lost. */

typedef struct ek_spectral_norm_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    const char *name;
    int n_power_iterations EK_IS(1);
    int dim EK_IS(EK_UNSET); /**< EK_UNSET: 0, for transposed convolutions 1 */
    double eps EK_IS(1e-12); /**< the least norm that vectors are divided by */
} ek_spectral_norm_options;
#define EK_DEFAULTS_ek_spectral_norm_options \
    EK_DEFAULT(n_power_iterations, 1), EK_DEFAULT(dim, EK_UNSET), EK_DEFAULT(eps, 1e-12)
EK_API ek_module *ek_spectral_norm_with(ek_spectral_norm_options options);
/** ek_spectral_norm(ek_conv2d(3, 8, 3)): the weight divided by its largest singular value, as
 * torch.nn.utils.parametrizations.spectral_norm. Parameter weight_orig; buffers weight_u and
 * weight_v, singular vectors of the weight as a matrix with rows along `dim`. In training each
 * forward first improves them by power iteration. The constructor begins with random unit vectors
 * and does 15 iterations, and then as many as a forward does. A weight of one dimension has no
 * vectors, and is divided by its 2-norm. */
#define ek_spectral_norm(...) \
    EK_CALL_2(ek_spectral_norm_with, ek_spectral_norm_options, module, name, __VA_ARGS__)

typedef struct ek_weight_norm_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    const char *name;
    int dim;
} ek_weight_norm_options;
#define EK_DEFAULTS_ek_weight_norm_options EK_NO_DEFAULTS
EK_API ek_module *ek_weight_norm_with(ek_weight_norm_options options);
/** ek_weight_norm(ek_linear(4, 3)): g v / |v|, as torch.nn.utils.weight_norm. Parameters weight_g
 * and weight_v. Norms are over all dimensions but `dim`; with dim -1 there is one norm of all
 * elements, and weight_g is a scalar. */
#define ek_weight_norm(...) \
    EK_CALL_2(ek_weight_norm_with, ek_weight_norm_options, module, name, __VA_ARGS__)

/** Calls `body` without keeping its inner activations for backward. Backward computes them again,
 * from the inputs, the parameters, and the state that the forward began with: buffers, generator,
 * modes, members that are not registered. The recomputation needs the memory of one forward.
 *
 * The output and gradients of any order are those of `body`. Gradients go to the inputs and to
 * registered parameters. Inputs and parameters must not be modified by the forward (EK_E_AUTOGRAD),
 * nor later before the backward (EK_E_MODIFIED). Buffers are updated once, by the forward. The
 * module owns `body`; paths are those of `body`.
 *
 * Operations that wait for other replicas (ek_sync_batch_norm, ek_allreduce) are refused in `body`,
 * because backwards of replicas don't wait for each other. Data-parallel wrappers are refused, too:
 * put the checkpoint inside the wrapper. Operations that communicate with other ranks are allowed
 * outside of replicas: their backwards and the checkpoint's run one after another, in one order on
 * all ranks (ek_function.meets). */
EK_API ek_module *ek_checkpoint(ek_module *body);
/** Makes every later call of the module a call as by ek_checkpoint, or with false an ordinary call
 * again. The tree of modules stays. Replicas and copies that are made later do the same. */
EK_API int ek_module_checkpoint(ek_module *module, bool on);

EK_END_DECLARATIONS
#endif
