/* loss.h: losses as functions; nn.h has them as modules. The rules of ops.h hold. */
#ifndef EVENKEEL_LOSS_H
#define EVENKEEL_LOSS_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

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

/* nll and cross entropy: input (N, C) or (N, C, d1, ...), target i64 or i32, (N) or (N, d1, ...). A
 * target outside [0, C) that is not ignore_index is EK_E_INVALID. The mean divides by the sum of
 * the weights of all targets but the ignored. */
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
