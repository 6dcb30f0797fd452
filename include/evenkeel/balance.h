/* balance.h: the balanced way: outputs stay where they are, the loss is computed on every device,
 * and only scalars meet. */
#ifndef EVENKEEL_BALANCE_H
#define EVENKEEL_BALANCE_H

#include "evenkeel/parallel.h"

EK_BEGIN_DECLARATIONS

/* Like ek_data_parallel without the gather: the output is a list marked per_device, one element per
 * replica, in the order of device_ids; devices without samples have none. With one device or none,
 * in evaluation mode, and with .plain, it is the bare output of the plain module. Inputs that are
 * scattered already (a list marked per_device, see EK_SCATTERED) are taken as they are. */
EK_API ek_module *ek_data_parallel_model_with(ek_data_parallel_options options);
#define ek_data_parallel_model(...) \
    ek_data_parallel_model_with(EK_OPTIONS_1(ek_data_parallel_options, module, __VA_ARGS__))

typedef enum ek_loss_reduction {
    /* The sum over all devices over the weight of all: equal to one device's value and
     * gradient for any chunks and any ignored targets. */
    EK_EXACT = 0,
    /* The mean of the devices' means, as in the literature. */
    EK_MEAN_OF_MEANS = 1
} ek_loss_reduction;

typedef struct ek_data_parallel_criterion_options {
    const char *keywords;
    ek_module *module; /* the criterion; ownership passes to the wrapper */
    ek_device_list device_ids;
    ek_loss_reduction reduction;
    int dim;
    bool is_target_scattered; /* targets are lists with one element per device */
    /* Of whole targets if outputs have no batch that says how they were cut (a number per
     * device): EK_SPLIT_CHUNK or EK_SPLIT_EVEN, over the devices that outputs came from. */
    ek_split_policy split;
} ek_data_parallel_criterion_options;

/* Called as ek_loss(criterion, outputs, target, ...): outputs as ek_data_parallel_model gives them,
 * then any number of targets and keyword arguments, scattered here with the outputs' chunk sizes or
 * scattered already. The criterion gets (output, target, ...); an output that is a list is spread:
 * (output[0], output[1], ..., target, ...). A bare output (evaluation, one device) is a plain call
 * on device 0.
 *
 * The criterion is replicated and applied on each device that an output lies on: the same devices
 * as the model's, in the same order. Scalars are reduced onto device 0; losses that are not scalars
 * (reduction none) stay on their devices as a list marked per_device, which ek_value_to_device
 * joins in batch order. A device whose weight (its denominator) is zero contributes zero, and no
 * gradient flows there; if all are zero the loss is NaN, as on one device. On GPUs nobody waits for
 * weights: there the gradient 0 goes into such a device's backward, and a criterion of one's own
 * must not make NaN of it, as 0 / 0 does; one that tells its sum (ek_module_type.loss_sum) makes
 * none. */
EK_API ek_module *ek_data_parallel_criterion_with(ek_data_parallel_criterion_options options);
#define ek_data_parallel_criterion(...) \
    ek_data_parallel_criterion_with(    \
        EK_OPTIONS_1(ek_data_parallel_criterion_options, module, __VA_ARGS__))

EK_END_DECLARATIONS
#endif
