/** @file
 * balance.h: balanced data parallelism: outputs stay on their devices, the loss is computed on
 * every device, and only scalars are sent. */
#ifndef EVENKEEL_BALANCE_H
#define EVENKEEL_BALANCE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/parallel.h"

EK_BEGIN_DECLARATIONS

EK_API ek_module *ek_data_parallel_model_with(ek_data_parallel_options options);
/** ek_data_parallel without the gather. The output is a list marked per_device, with one element
 * per replica in the order of device_ids; a device without samples has no element. With at most one
 * device, in evaluation mode, or with .plain, the output is the wrapped module's, not a list.
 * Inputs may be scattered already: a list marked per_device (EK_SCATTERED). */
#define ek_data_parallel_model(...) \
    EK_CALL_1(ek_data_parallel_model_with, ek_data_parallel_options, module, __VA_ARGS__)

typedef enum ek_loss_reduction {
    /** The devices' sums of losses, added up and divided by the sum of their weights (ek_loss_sum).
     * Loss and gradient equal those of one device, for any chunks and any ignored targets. */
    EK_EXACT = 0,
    /** The mean of the devices' means, as in the literature. */
    EK_MEAN_OF_MEANS = 1
} ek_loss_reduction;

typedef struct ek_data_parallel_criterion_options {
    int begin;         /**< no option, see base.h */
    ek_module *module; /**< the criterion; ownership passes to the wrapper */
    ek_device_list device_ids;
    ek_loss_reduction reduction;
    int dim;
    bool is_target_scattered; /**< targets are lists with one element per device */
    /** How to cut whole targets over the outputs' devices if the outputs have no batch dimension
     * (one number per device): EK_SPLIT_CHUNK or EK_SPLIT_EVEN. */
    ek_split_policy split;
} ek_data_parallel_criterion_options;
#define EK_DEFAULTS_ek_data_parallel_criterion_options EK_NO_DEFAULTS

EK_API ek_module *ek_data_parallel_criterion_with(ek_data_parallel_criterion_options options);
/** Called as ek_loss(criterion, outputs, target, ...), with the outputs of ek_data_parallel_model
 * and any number of targets; ek_forward_kw adds keyword arguments. Targets are cut to the outputs'
 * chunk sizes, unless they are scattered already. On each device the criterion is called as ek_loss
 * calls it, with the output and the targets of this device. For an output that is not marked
 * per_device (evaluation, one device, .plain) the criterion is called once, on device 0.
 *
 * The criterion is replicated to the outputs' devices, which must be the model's, in the same
 * order. Scalar losses are reduced onto device 0. Losses that are no scalars (reduction none) stay
 * on their devices, in a list marked per_device that ek_value_to_device joins in batch order. A
 * device whose weight (the denominator of its loss) is 0 contributes 0, and gets no gradient; on
 * GPUs it gets the gradient 0, because waiting for weights would cost time. If all weights are 0,
 * the loss is NaN, as on one device. The backward of a criterion that the user wrote must not make
 * NaN of the gradient 0, as 0 / 0 does; criteria with ek_module_type.loss_sum never do. */
#define ek_data_parallel_criterion(...)                                                    \
    EK_CALL_1(ek_data_parallel_criterion_with, ek_data_parallel_criterion_options, module, \
              __VA_ARGS__)

EK_END_DECLARATIONS
#endif
