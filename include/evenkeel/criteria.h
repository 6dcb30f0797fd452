/* criteria.h: losses as modules: ek_loss(criterion, input, target). Ownership and errors are those
 * of nn.h. */
#ifndef EVENKEEL_CRITERIA_H
#define EVENKEEL_CRITERIA_H

#include "evenkeel/loss.h"
#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_criterion_options {
    const char *keywords;
    ek_reduction reduction;
    int64_t ignore_index;   /* default -100 */
    ek_tensor *weight;      /* becomes a buffer, with a reference of its own */
    double label_smoothing; /* cross entropy only */
    ek_tensor *pos_weight;  /* bce with logits only, for positive targets; becomes a buffer */
} ek_criterion_options;
EK_API ek_module *ek_cross_entropy_loss_with(ek_criterion_options options);
EK_API ek_module *ek_nll_loss_with(ek_criterion_options options);
EK_API ek_module *ek_mse_loss_with(ek_criterion_options options);
EK_API ek_module *ek_l1_loss_with(ek_criterion_options options);
EK_API ek_module *ek_bce_with_logits_loss_with(ek_criterion_options options);
#define EK_CRITERION_OPTIONS(...) EK_OPTIONS(ek_criterion_options, __VA_ARGS__)
#define ek_cross_entropy_loss(...) ek_cross_entropy_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_nll_loss(...) ek_nll_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_mse_loss(...) ek_mse_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_l1_loss(...) ek_l1_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))
#define ek_bce_with_logits_loss(...) ek_bce_with_logits_loss_with(EK_CRITERION_OPTIONS(__VA_ARGS__))

EK_END_DECLARATIONS
#endif
