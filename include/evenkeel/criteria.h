/** @file
 * criteria.h: losses as modules: ek_loss(criterion, input, target). Ownership and errors are those
 * of nn.h. */
#ifndef EVENKEEL_CRITERIA_H
#define EVENKEEL_CRITERIA_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/loss.h"
#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

/** The options of all criteria; loss.h says which function has which, and the defaults. One that a
 * criterion doesn't take is EK_E_INVALID. */
typedef struct ek_criterion_options {
    const char *keywords;
    ek_reduction reduction;
    int64_t ignore_index;   /**< cross entropies, nll; default -100 */
    ek_tensor *weight;      /**< becomes a buffer, with a reference of its own */
    double label_smoothing; /**< cross entropies */
    ek_tensor *pos_weight;  /**< bce with logits, for positive targets; becomes a buffer */
    double beta;            /**< smooth l1 */
    double delta;           /**< huber */
    double margin;   /**< margin ranking, hinge and cosine embedding, triplet and multi margin */
    double p;        /**< triplet and multi margin */
    double eps;      /**< triplet margin, poisson and gaussian nll */
    bool log_target; /**< kl div */
    ek_switch log_input; /**< poisson nll; default on */
    bool full;           /**< poisson and gaussian nll */
    bool swap;           /**< triplet margin */
    int64_t blank;       /**< ctc, as the next two */
    bool zero_infinity;
    bool batch_first;
} ek_criterion_options;
#define EK_CRITERION_OPTIONS(...) EK_OPTIONS(ek_criterion_options, __VA_ARGS__)

EK_API ek_module *ek_cross_entropy_loss_with(ek_criterion_options options);
EK_API ek_module *ek_token_cross_entropy_loss_with(ek_criterion_options options);
EK_API ek_module *ek_nll_loss_with(ek_criterion_options options);
EK_API ek_module *ek_mse_loss_with(ek_criterion_options options);
EK_API ek_module *ek_l1_loss_with(ek_criterion_options options);
EK_API ek_module *ek_bce_with_logits_loss_with(ek_criterion_options options);
EK_API ek_module *ek_smooth_l1_loss_with(ek_criterion_options options);
EK_API ek_module *ek_huber_loss_with(ek_criterion_options options);
EK_API ek_module *ek_bce_loss_with(ek_criterion_options options);
EK_API ek_module *ek_soft_margin_loss_with(ek_criterion_options options);
EK_API ek_module *ek_multilabel_soft_margin_loss_with(ek_criterion_options options);
EK_API ek_module *ek_kl_div_loss_with(ek_criterion_options options);
EK_API ek_module *ek_poisson_nll_loss_with(ek_criterion_options options);
EK_API ek_module *ek_hinge_embedding_loss_with(ek_criterion_options options);
EK_API ek_module *ek_multi_margin_loss_with(ek_criterion_options options);
EK_API ek_module *ek_multilabel_margin_loss_with(ek_criterion_options options);
/** Called with (input, target). */
#define ek_cross_entropy_loss(...) ek_cross_entropy_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_token_cross_entropy_loss(...) \
    ek_token_cross_entropy_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_nll_loss(...) ek_nll_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_mse_loss(...) ek_mse_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_l1_loss(...) ek_l1_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_bce_with_logits_loss(...) ek_bce_with_logits_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_smooth_l1_loss(...) ek_smooth_l1_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_huber_loss(...) ek_huber_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_bce_loss(...) ek_bce_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_soft_margin_loss(...) ek_soft_margin_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_multilabel_soft_margin_loss(...) \
    ek_multilabel_soft_margin_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_kl_div_loss(...) ek_kl_div_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_poisson_nll_loss(...) ek_poisson_nll_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_hinge_embedding_loss(...) ek_hinge_embedding_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_multi_margin_loss(...) ek_multi_margin_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_multilabel_margin_loss(...) \
    ek_multilabel_margin_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))

EK_API ek_module *ek_gaussian_nll_loss_with(ek_criterion_options options);
EK_API ek_module *ek_margin_ranking_loss_with(ek_criterion_options options);
EK_API ek_module *ek_cosine_embedding_loss_with(ek_criterion_options options);
EK_API ek_module *ek_triplet_margin_loss_with(ek_criterion_options options);
EK_API ek_module *ek_ctc_loss_with(ek_criterion_options options);
/** Called with (input, target, var); with (input1, input2, target), twice; with (anchor, positive,
 * negative); with (log_probs, targets, input_lengths, target_lengths). Under a data-parallel
 * criterion sequences are batch_first, and their targets (N, S). */
#define ek_gaussian_nll_loss(...) ek_gaussian_nll_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_margin_ranking_loss(...) ek_margin_ranking_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_cosine_embedding_loss(...) \
    ek_cosine_embedding_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_triplet_margin_loss(...) ek_triplet_margin_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_ctc_loss(...) ek_ctc_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))

EK_END_DECLARATIONS
#endif
