/** @file
 * criteria.h: losses as modules: ek_loss(criterion, input, target). Ownership and errors are those
 * of nn.h. loss.h explains the options. `weight` and `pos_weight` become buffers, which keep their
 * own references.
 *
 * ek_loss (module.h) says how lists of outputs or targets become arguments, and that targets are
 * moved to the input's device. So a network may return EK_LIST(anchor, positive, negative), and a
 * loader's target may be EK_LIST(targets, input_lengths, target_lengths). */
#ifndef EVENKEEL_CRITERIA_H
#define EVENKEEL_CRITERIA_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/loss.h"
#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
} ek_criterion_options;
#define EK_DEFAULTS_ek_criterion_options EK_NO_DEFAULTS
EK_API ek_module *ek_mse_loss_with(ek_criterion_options options);
EK_API ek_module *ek_l1_loss_with(ek_criterion_options options);
EK_API ek_module *ek_soft_margin_loss_with(ek_criterion_options options);
EK_API ek_module *ek_multilabel_margin_loss_with(ek_criterion_options options);
/** Called with (input, target). */
#define ek_mse_loss(...) EK_CALL(ek_mse_loss_with, ek_criterion_options, __VA_ARGS__)
#define ek_l1_loss(...) EK_CALL(ek_l1_loss_with, ek_criterion_options, __VA_ARGS__)
#define ek_soft_margin_loss(...) \
    EK_CALL(ek_soft_margin_loss_with, ek_criterion_options, __VA_ARGS__)
#define ek_multilabel_margin_loss(...) \
    EK_CALL(ek_multilabel_margin_loss_with, ek_criterion_options, __VA_ARGS__)

typedef struct ek_cross_entropy_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    int64_t ignore_index EK_IS(-100);
    ek_tensor *weight;
    double label_smoothing;
} ek_cross_entropy_criterion_options;
#define EK_DEFAULTS_ek_cross_entropy_criterion_options EK_DEFAULT(ignore_index, -100)
EK_API ek_module *ek_cross_entropy_loss_with(ek_cross_entropy_criterion_options options);
EK_API ek_module *ek_token_cross_entropy_loss_with(ek_cross_entropy_criterion_options options);
/** Called with (input, target). */
#define ek_cross_entropy_loss(...) \
    EK_CALL(ek_cross_entropy_loss_with, ek_cross_entropy_criterion_options, __VA_ARGS__)
#define ek_token_cross_entropy_loss(...) \
    EK_CALL(ek_token_cross_entropy_loss_with, ek_cross_entropy_criterion_options, __VA_ARGS__)

typedef struct ek_nll_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    int64_t ignore_index EK_IS(-100);
    ek_tensor *weight;
} ek_nll_criterion_options;
#define EK_DEFAULTS_ek_nll_criterion_options EK_DEFAULT(ignore_index, -100)
EK_API ek_module *ek_nll_loss_with(ek_nll_criterion_options options);
/** Called with (input, target). */
#define ek_nll_loss(...) EK_CALL(ek_nll_loss_with, ek_nll_criterion_options, __VA_ARGS__)

typedef struct ek_weighted_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    ek_tensor *weight;
} ek_weighted_criterion_options;
#define EK_DEFAULTS_ek_weighted_criterion_options EK_NO_DEFAULTS
EK_API ek_module *ek_bce_loss_with(ek_weighted_criterion_options options);
EK_API ek_module *ek_multilabel_soft_margin_loss_with(ek_weighted_criterion_options options);
/** Called with (input, target). */
#define ek_bce_loss(...) EK_CALL(ek_bce_loss_with, ek_weighted_criterion_options, __VA_ARGS__)
#define ek_multilabel_soft_margin_loss(...) \
    EK_CALL(ek_multilabel_soft_margin_loss_with, ek_weighted_criterion_options, __VA_ARGS__)

typedef struct ek_bce_with_logits_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    ek_tensor *weight;
    ek_tensor *pos_weight; /**< for positive targets */
} ek_bce_with_logits_criterion_options;
#define EK_DEFAULTS_ek_bce_with_logits_criterion_options EK_NO_DEFAULTS
EK_API ek_module *ek_bce_with_logits_loss_with(ek_bce_with_logits_criterion_options options);
/** Called with (input, target). */
#define ek_bce_with_logits_loss(...) \
    EK_CALL(ek_bce_with_logits_loss_with, ek_bce_with_logits_criterion_options, __VA_ARGS__)

typedef struct ek_smooth_l1_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    double beta EK_IS(1);
} ek_smooth_l1_criterion_options;
#define EK_DEFAULTS_ek_smooth_l1_criterion_options EK_DEFAULT(beta, 1)
EK_API ek_module *ek_smooth_l1_loss_with(ek_smooth_l1_criterion_options options);
/** Called with (input, target). */
#define ek_smooth_l1_loss(...) \
    EK_CALL(ek_smooth_l1_loss_with, ek_smooth_l1_criterion_options, __VA_ARGS__)

typedef struct ek_huber_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    double delta EK_IS(1);
} ek_huber_criterion_options;
#define EK_DEFAULTS_ek_huber_criterion_options EK_DEFAULT(delta, 1)
EK_API ek_module *ek_huber_loss_with(ek_huber_criterion_options options);
/** Called with (input, target). */
#define ek_huber_loss(...) EK_CALL(ek_huber_loss_with, ek_huber_criterion_options, __VA_ARGS__)

typedef struct ek_kl_div_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    bool log_target;
} ek_kl_div_criterion_options;
#define EK_DEFAULTS_ek_kl_div_criterion_options EK_NO_DEFAULTS
EK_API ek_module *ek_kl_div_loss_with(ek_kl_div_criterion_options options);
/** Called with (input, target). */
#define ek_kl_div_loss(...) EK_CALL(ek_kl_div_loss_with, ek_kl_div_criterion_options, __VA_ARGS__)

typedef struct ek_poisson_nll_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    double eps EK_IS(1e-8);
    bool log_input EK_IS(true);
    bool full;
} ek_poisson_nll_criterion_options;
#define EK_DEFAULTS_ek_poisson_nll_criterion_options \
    EK_DEFAULT(eps, 1e-8), EK_DEFAULT(log_input, true)
EK_API ek_module *ek_poisson_nll_loss_with(ek_poisson_nll_criterion_options options);
/** Called with (input, target). */
#define ek_poisson_nll_loss(...) \
    EK_CALL(ek_poisson_nll_loss_with, ek_poisson_nll_criterion_options, __VA_ARGS__)

typedef struct ek_hinge_embedding_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    double margin EK_IS(1);
} ek_hinge_embedding_criterion_options;
#define EK_DEFAULTS_ek_hinge_embedding_criterion_options EK_DEFAULT(margin, 1)
EK_API ek_module *ek_hinge_embedding_loss_with(ek_hinge_embedding_criterion_options options);
/** Called with (input, target). */
#define ek_hinge_embedding_loss(...) \
    EK_CALL(ek_hinge_embedding_loss_with, ek_hinge_embedding_criterion_options, __VA_ARGS__)

typedef struct ek_multi_margin_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    ek_tensor *weight;
    double margin EK_IS(1);
    double p EK_IS(1);
} ek_multi_margin_criterion_options;
#define EK_DEFAULTS_ek_multi_margin_criterion_options EK_DEFAULT(margin, 1), EK_DEFAULT(p, 1)
EK_API ek_module *ek_multi_margin_loss_with(ek_multi_margin_criterion_options options);
/** Called with (input, target). */
#define ek_multi_margin_loss(...) \
    EK_CALL(ek_multi_margin_loss_with, ek_multi_margin_criterion_options, __VA_ARGS__)

typedef struct ek_gaussian_nll_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    double eps EK_IS(1e-6);
    bool full;
} ek_gaussian_nll_criterion_options;
#define EK_DEFAULTS_ek_gaussian_nll_criterion_options EK_DEFAULT(eps, 1e-6)
EK_API ek_module *ek_gaussian_nll_loss_with(ek_gaussian_nll_criterion_options options);
/** Called with (input, target, var), or with a network's two outputs as one argument,
 * (EK_LIST(input, var), target). */
#define ek_gaussian_nll_loss(...) \
    EK_CALL(ek_gaussian_nll_loss_with, ek_gaussian_nll_criterion_options, __VA_ARGS__)

typedef struct ek_margin_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    double margin;
} ek_margin_criterion_options;
#define EK_DEFAULTS_ek_margin_criterion_options EK_NO_DEFAULTS
EK_API ek_module *ek_margin_ranking_loss_with(ek_margin_criterion_options options);
EK_API ek_module *ek_cosine_embedding_loss_with(ek_margin_criterion_options options);
/** Called with (input1, input2, target). */
#define ek_margin_ranking_loss(...) \
    EK_CALL(ek_margin_ranking_loss_with, ek_margin_criterion_options, __VA_ARGS__)
#define ek_cosine_embedding_loss(...) \
    EK_CALL(ek_cosine_embedding_loss_with, ek_margin_criterion_options, __VA_ARGS__)

typedef struct ek_triplet_margin_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    double margin EK_IS(1);
    double p EK_IS(2);
    double eps EK_IS(1e-6);
    bool swap;
} ek_triplet_margin_criterion_options;
#define EK_DEFAULTS_ek_triplet_margin_criterion_options \
    EK_DEFAULT(margin, 1), EK_DEFAULT(p, 2), EK_DEFAULT(eps, 1e-6)
EK_API ek_module *ek_triplet_margin_loss_with(ek_triplet_margin_criterion_options options);
/** Called with (anchor, positive, negative). */
#define ek_triplet_margin_loss(...) \
    EK_CALL(ek_triplet_margin_loss_with, ek_triplet_margin_criterion_options, __VA_ARGS__)

typedef struct ek_ctc_criterion_options {
    int begin; /**< no option, see base.h */
    ek_reduction reduction;
    int64_t blank;
    bool zero_infinity;
    bool batch_first;
} ek_ctc_criterion_options;
#define EK_DEFAULTS_ek_ctc_criterion_options EK_NO_DEFAULTS
EK_API ek_module *ek_ctc_loss_with(ek_ctc_criterion_options options);
/** Called with (log_probs, targets, input_lengths, target_lengths). If the batch is cut, for
 * devices or into micro-batches, targets are (N, S), and log_probs (T, N, C) are marked by the
 * network that returns them: ek_value_batched(EK_VALUE(log_probs), 1). */
#define ek_ctc_loss(...) EK_CALL(ek_ctc_loss_with, ek_ctc_criterion_options, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
