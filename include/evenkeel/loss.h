/** @file
 * loss.h: losses as functions; criteria.h has them as modules. The rules of ops.h hold. */
#ifndef EVENKEEL_LOSS_H
#define EVENKEEL_LOSS_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** EK_BATCH_MEAN, for kl_div only, divides the sum by the size of dimension 0. */
typedef enum ek_reduction { EK_MEAN = 0, EK_SUM = 1, EK_NONE = 2, EK_BATCH_MEAN = 3 } ek_reduction;

/* Input and target are floating, of one shape, unless a comment below says otherwise. Broadcasting
 * is that of ops.h. */

/* ---- classes ---- */

typedef struct ek_nll_loss_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_tensor *weight; /**< per class, or NULL */
    ek_reduction reduction;
    int64_t ignore_index EK_IS(-100);
} ek_nll_loss_options;
#define EK_DEFAULTS_ek_nll_loss_options EK_DEFAULT(ignore_index, -100)
EK_API ek_tensor *ek_f_nll_loss_with(ek_nll_loss_options options);
/** -weight[target] input[target], where input, (N, C) or (N, C, d1, ...), holds logarithms of
 * probabilities; target i64 or i32, (N) or (N, d1, ...). A target outside [0, C) that is not
 * ignore_index is EK_E_INVALID. The mean divides by the sum of the weights of all targets that are
 * not ignored. */
#define ek_f_nll_loss(...) \
    EK_CALL_2(ek_f_nll_loss_with, ek_nll_loss_options, input, target, __VA_ARGS__)

typedef struct ek_cross_entropy_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_tensor *weight; /**< per class, or NULL */
    ek_reduction reduction;
    int64_t ignore_index EK_IS(-100);
    double label_smoothing;
} ek_cross_entropy_options;
#define EK_DEFAULTS_ek_cross_entropy_options EK_DEFAULT(ignore_index, -100)
EK_API ek_tensor *ek_f_cross_entropy_with(ek_cross_entropy_options options);
EK_API ek_tensor *ek_f_token_cross_entropy_with(ek_cross_entropy_options options);
/** nll_loss of log_softmax(input). Cross entropy also takes the classes' probabilities as target:
 * floating, of the input's shape. The mean then divides by the number of predictions, whatever the
 * weights, and ignore_index has no effect. */
#define ek_f_cross_entropy(...) \
    EK_CALL_2(ek_f_cross_entropy_with, ek_cross_entropy_options, input, target, __VA_ARGS__)
/** Cross entropy with the classes in the last dimension, as language models have them: logits
 * (N, ..., C) and tokens (N, ...). */
#define ek_f_token_cross_entropy(...) \
    EK_CALL_2(ek_f_token_cross_entropy_with, ek_cross_entropy_options, input, target, __VA_ARGS__)

/** The divisor of the mean of nll_loss and cross_entropy: the sum of the weights (NULL: 1 each) of
 * all targets that are not ignored, as a scalar of `dtype` on the target's device. */
EK_API ek_tensor *ek_target_weight(ek_tensor *target, ek_tensor *weight, int64_t ignore_index,
                                   ek_dtype dtype);

/* ---- errors, element by element ---- */

typedef struct ek_loss_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_reduction reduction;
} ek_loss_options;
#define EK_DEFAULTS_ek_loss_options EK_NO_DEFAULTS
#define EK_LOSS_CALL(function, ...) EK_CALL_2(function, ek_loss_options, input, target, __VA_ARGS__)

EK_API ek_tensor *ek_f_mse_loss_with(ek_loss_options options);
EK_API ek_tensor *ek_f_l1_loss_with(ek_loss_options options);
/** (input - target)^2, and |input - target|. */
#define ek_f_mse_loss(...) EK_LOSS_CALL(ek_f_mse_loss_with, __VA_ARGS__)
#define ek_f_l1_loss(...) EK_LOSS_CALL(ek_f_l1_loss_with, __VA_ARGS__)

typedef struct ek_smooth_l1_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_reduction reduction;
    double beta EK_IS(1);
} ek_smooth_l1_options;
#define EK_DEFAULTS_ek_smooth_l1_options EK_DEFAULT(beta, 1)
EK_API ek_tensor *ek_f_smooth_l1_loss_with(ek_smooth_l1_options options);
/** With d = |input - target|: d^2 / (2 beta) if d < beta, else d - beta / 2. */
#define ek_f_smooth_l1_loss(...) \
    EK_CALL_2(ek_f_smooth_l1_loss_with, ek_smooth_l1_options, input, target, __VA_ARGS__)

typedef struct ek_huber_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_reduction reduction;
    double delta EK_IS(1); /**< above 0 */
} ek_huber_options;
#define EK_DEFAULTS_ek_huber_options EK_DEFAULT(delta, 1)
EK_API ek_tensor *ek_f_huber_loss_with(ek_huber_options options);
/** With d = |input - target|: d^2 / 2 if d < delta, else delta (d - delta / 2). */
#define ek_f_huber_loss(...) \
    EK_CALL_2(ek_f_huber_loss_with, ek_huber_options, input, target, __VA_ARGS__)

/* ---- yes or no ---- */

typedef struct ek_bce_with_logits_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_tensor *weight; /**< broadcasts to the input's shape, or NULL */
    ek_reduction reduction;
    ek_tensor *pos_weight; /**< of positive targets; broadcasts as weight, or NULL */
} ek_bce_with_logits_options;
#define EK_DEFAULTS_ek_bce_with_logits_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_bce_with_logits_with(ek_bce_with_logits_options options);
/** Binary cross entropy of logits. */
#define ek_f_bce_with_logits(...) \
    EK_CALL_2(ek_f_bce_with_logits_with, ek_bce_with_logits_options, input, target, __VA_ARGS__)

typedef struct ek_bce_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_tensor *weight; /**< broadcasts to the input's shape, or NULL */
    ek_reduction reduction;
} ek_bce_options;
#define EK_DEFAULTS_ek_bce_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_bce_with(ek_bce_options options);
EK_API ek_tensor *ek_f_multilabel_soft_margin_loss_with(ek_bce_options options);
/** Binary cross entropy of probabilities. Logarithms are at least -100, as in PyTorch. Inputs
 * outside [0, 1] give NaN. */
#define ek_f_bce(...) EK_CALL_2(ek_f_bce_with, ek_bce_options, input, target, __VA_ARGS__)
/** The mean of bce_with_logits over C labels, for input (C) or (..., C): one loss per sample. */
#define ek_f_multilabel_soft_margin_loss(...) \
    EK_CALL_2(ek_f_multilabel_soft_margin_loss_with, ek_bce_options, input, target, __VA_ARGS__)

EK_API ek_tensor *ek_f_soft_margin_loss_with(ek_loss_options options);
/** log(1 + exp(-target input)), targets -1 or 1. */
#define ek_f_soft_margin_loss(...) EK_LOSS_CALL(ek_f_soft_margin_loss_with, __VA_ARGS__)

/* ---- divergences and likelihoods ---- */

typedef struct ek_kl_div_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_reduction reduction; /**< EK_BATCH_MEAN: the divergence, averaged over samples */
    bool log_target;
} ek_kl_div_options;
#define EK_DEFAULTS_ek_kl_div_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_kl_div_with(ek_kl_div_options options);
/** target (log(target) - input), where input holds logarithms of probabilities. With log_target,
 * `target` holds logarithms, too. */
#define ek_f_kl_div(...) EK_CALL_2(ek_f_kl_div_with, ek_kl_div_options, input, target, __VA_ARGS__)

typedef struct ek_poisson_nll_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_reduction reduction;
    bool log_input EK_IS(true);
    double eps EK_IS(1e-8);
    bool full;
} ek_poisson_nll_options;
#define EK_DEFAULTS_ek_poisson_nll_options EK_DEFAULT(log_input, true), EK_DEFAULT(eps, 1e-8)
EK_API ek_tensor *ek_f_poisson_nll_loss_with(ek_poisson_nll_options options);
/** For counts (target) with the rate exp(input): exp(input) - target input. Without log_input the
 * rate is input: input - target log(input + eps). `full` adds Stirling's approximation of
 * log(target!) for targets above 1. */
#define ek_f_poisson_nll_loss(...) \
    EK_CALL_2(ek_f_poisson_nll_loss_with, ek_poisson_nll_options, input, target, __VA_ARGS__)

typedef struct ek_gaussian_nll_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_tensor *var;
    ek_reduction reduction;
    double eps EK_IS(1e-6); /**< above 0 */
    bool full;
} ek_gaussian_nll_options;
#define EK_DEFAULTS_ek_gaussian_nll_options EK_DEFAULT(eps, 1e-6)
EK_API ek_tensor *ek_f_gaussian_nll_loss_with(ek_gaussian_nll_options options);
/** (log(var) + (input - target)^2 / var) / 2, `full` adds log(2 pi) / 2. var has the input's shape,
 * or this shape with 1 in place of its last size, or without its last size. Variances below eps
 * count as eps, and gradients are computed as if they were eps. */
#define ek_f_gaussian_nll_loss(...) \
    EK_CALL_3(ek_f_gaussian_nll_loss_with, ek_gaussian_nll_options, input, target, var, __VA_ARGS__)

/* ---- margins ---- */

typedef struct ek_margin_ranking_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input1;
    ek_tensor *input2;
    ek_tensor *target;
    ek_reduction reduction;
    double margin;
} ek_margin_ranking_options;
#define EK_DEFAULTS_ek_margin_ranking_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_margin_ranking_loss_with(ek_margin_ranking_options options);
/** max(0, margin - target (input1 - input2)), targets -1 or 1; the three broadcast. */
#define ek_f_margin_ranking_loss(...)                                                           \
    EK_CALL_3(ek_f_margin_ranking_loss_with, ek_margin_ranking_options, input1, input2, target, \
              __VA_ARGS__)

typedef struct ek_cosine_embedding_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input1;
    ek_tensor *input2;
    ek_tensor *target;
    ek_reduction reduction;
    double margin;
} ek_cosine_embedding_options;
#define EK_DEFAULTS_ek_cosine_embedding_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_cosine_embedding_loss_with(ek_cosine_embedding_options options);
/** With the cosine of input1 and input2, (N, D) or (D), both of one shape: 1 - cosine if the
 * target, (N) or a scalar, is 1; max(0, cosine - margin) if it is -1. The target is floating. */
#define ek_f_cosine_embedding_loss(...)                                                     \
    EK_CALL_3(ek_f_cosine_embedding_loss_with, ek_cosine_embedding_options, input1, input2, \
              target, __VA_ARGS__)

typedef struct ek_hinge_embedding_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_reduction reduction;
    double margin EK_IS(1);
} ek_hinge_embedding_options;
#define EK_DEFAULTS_ek_hinge_embedding_options EK_DEFAULT(margin, 1)
EK_API ek_tensor *ek_f_hinge_embedding_loss_with(ek_hinge_embedding_options options);
/** input if the target is 1, max(0, margin - input) if it is -1. */
#define ek_f_hinge_embedding_loss(...)                                                   \
    EK_CALL_2(ek_f_hinge_embedding_loss_with, ek_hinge_embedding_options, input, target, \
              __VA_ARGS__)

typedef struct ek_triplet_margin_options {
    int begin; /**< no option, see base.h */
    ek_tensor *anchor;
    ek_tensor *positive;
    ek_tensor *negative;
    ek_reduction reduction;
    double margin EK_IS(1);
    double p EK_IS(2);
    double eps EK_IS(1e-6);
    bool swap;
} ek_triplet_margin_options;
#define EK_DEFAULTS_ek_triplet_margin_options \
    EK_DEFAULT(margin, 1), EK_DEFAULT(p, 2), EK_DEFAULT(eps, 1e-6)
EK_API ek_tensor *ek_f_triplet_margin_loss_with(ek_triplet_margin_options options);
/** max(0, margin + d(anchor, positive) - d(anchor, negative)), where d is the p-norm of the
 * difference plus eps along the last dimension. With swap, d(anchor, negative) is replaced by
 * d(positive, negative) if this is smaller. The three tensors have equally many dimensions, at
 * least 1, and broadcast. */
#define ek_f_triplet_margin_loss(...)                                                     \
    EK_CALL_3(ek_f_triplet_margin_loss_with, ek_triplet_margin_options, anchor, positive, \
              negative, __VA_ARGS__)

typedef struct ek_multi_margin_options {
    int begin; /**< no option, see base.h */
    ek_tensor *input;
    ek_tensor *target;
    ek_tensor *weight; /**< (C), or NULL */
    ek_reduction reduction;
    double p EK_IS(1); /**< 1 or 2 */
    double margin EK_IS(1);
} ek_multi_margin_options;
#define EK_DEFAULTS_ek_multi_margin_options EK_DEFAULT(p, 1), EK_DEFAULT(margin, 1)
EK_API ek_tensor *ek_f_multi_margin_loss_with(ek_multi_margin_options options);
/** The sum of weight[target] max(0, margin - input[target] + input[c])^p / C over the other classes
 * c. Input (N, C) or (C), target i64 or i32, (N) or a scalar. */
#define ek_f_multi_margin_loss(...) \
    EK_CALL_2(ek_f_multi_margin_loss_with, ek_multi_margin_options, input, target, __VA_ARGS__)

EK_API ek_tensor *ek_f_multilabel_margin_loss_with(ek_loss_options options);
/** The sum of max(0, 1 - input[t] + input[c]) / C over a sample's classes t and the classes c that
 * aren't among them. Input (N, C) or (C); target i64 or i32 of this shape: the sample's classes up
 * to the first -1. Takes memory for N C^2 elements. */
#define ek_f_multilabel_margin_loss(...) EK_LOSS_CALL(ek_f_multilabel_margin_loss_with, __VA_ARGS__)

/* ---- sequences ---- */

typedef struct ek_ctc_options {
    int begin; /**< no option, see base.h */
    ek_tensor *log_probs;
    ek_tensor *targets;
    ek_tensor *input_lengths;
    ek_tensor *target_lengths;
    ek_reduction reduction;
    int64_t blank;
    bool zero_infinity;
    bool batch_first;
} ek_ctc_options;
#define EK_DEFAULTS_ek_ctc_options EK_NO_DEFAULTS
EK_API ek_tensor *ek_f_ctc_loss_with(ek_ctc_options options);
/** Connectionist temporal classification (Graves et al. 2006): -log of the probability of the
 * target as the sequence of the frames' classes, with repeated classes merged and then blanks left
 * out.
 *
 * log_probs (T, N, C), with batch_first (N, T, C): logarithms of probabilities. targets i64 or i32,
 * (N, S), or all in one dimension, one after the other. input_lengths and target_lengths i64 or
 * i32, (N): how many frames and classes of each sample count, within [0, T] and [0, S]. The host
 * reads targets and lengths. The mean is over losses divided by max(the target's length, 1).
 *
 * If a sample has too few frames for its target, the loss is infinity (with zero_infinity 0) and
 * the gradient is 0. The gradient is that of the formula; PyTorch's differs by exp(log_probs), a
 * term that vanishes in the backward of log_softmax. bf16 and f16 are computed in f32. */
#define ek_f_ctc_loss(...) \
    EK_CALL_3(ek_f_ctc_loss_with, ek_ctc_options, log_probs, targets, input_lengths, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
