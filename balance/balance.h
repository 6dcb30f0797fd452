/* balance.h: functions that the files of this folder share. */
#ifndef EK_BALANCE_BALANCE_H
#define EK_BALANCE_BALANCE_H

#include "core/ranks.h"
#include "evenkeel/gan.h"
#include "evenkeel/optim.h"
#include "nn/module_table.h"
#include "nn/nn.h"
#include "parallel/wrapper.h"

/* ---- data_parallel_model.c ---- */

/* Returns the module as a wrapper if its calls leave an output on each device. Only an
 * ek_data_parallel_model of several devices, in training mode, without .plain does that. Returns
 * NULL without an error for other modules. */
ek_wrapper *ek_data_parallel_model_apart(ek_module *module);

/* ---- loss_sum.c: sums and weights are f64 scalars in the caller's scope ---- */

/* A tensor of zero dimensions. */
bool ek_loss_is_scalar(ek_value loss);

/* *part becomes the mean `loss` times `weight`, with this weight. If `weight` is NULL, `loss` is
 * the sum. */
int ek_loss_sum_of(ek_tensor *loss, ek_tensor *weight, ek_loss_sum *part);

/* Calls the criterion for a part of a batch. Writes a scalar loss to *part. If the loss isn't a
 * scalar, part->sum is NULL. `samples` is the weight of a mean without `denominator`. Returns the
 * loss that the criterion computed, a mean or a sum; EK_VALUE_ERROR after an error. */
ek_value ek_loss_sum_ask(ek_module *criterion, const ek_args *args, double samples,
                         ek_loss_sum *part);

/* Returns 1 if the host knows that the part is empty, that is, its weight is 0; negative on error.
 */
int ek_loss_sum_is_empty(const ek_loss_sum *part);

/* Adds the sums and the weights of up to EK_MAX_DEVICES parts in order. The total's sum lies on
 * `root`; its weight lies on cpu if the host knows all weights, else on `root`. A part that the
 * host knows to be empty is left out and gets no gradient. If the host knows that all parts are
 * empty, all sums are added. An empty part whose weight lies on a GPU adds the sum 0. If any part
 * has no weight, the total has no weight. */
int ek_loss_sums_add(const ek_loss_sum *parts, int count, ek_device root, ek_loss_sum *total);

/* Returns the loss of all parts, on `root`. It is NaN if all parts are empty. NULL on error. */
ek_tensor *ek_loss_sums_mean(const ek_loss_sum *parts, int count, ek_device root);

/* Returns the loss of all ranks, on the device of this rank's part: the sum of the ranks' sums over
 * the sum of their weights, a number that is equal on all ranks. Its gradient is such that the mean
 * of the ranks' gradients is the gradient of the loss of all ranks. Weights are constants: there is
 * one small collective call in forward, none in backward. A part of weight 0 must have the sum 0.
 * NULL with an error, on all ranks. */
ek_tensor *ek_loss_sum_over_ranks(const ek_loss_sum *part, ek_ranks *ranks);

/* Computes the numbers of ek_loss_sum_over_ranks without a graph: the loss, and the factor for this
 * rank's gradients of its sum. */
int ek_loss_sum_of_ranks(const ek_loss_sum *part, ek_ranks *ranks, double *value, double *factor);

/* Returns 0 as a function of the call's tensors, with gradients 0. As the sum of an empty part, it
 * makes backward run through the whole model, where this rank may have to meet other ranks. */
ek_tensor *ek_loss_nothing(const ek_args *args, ek_device device);

/* ---- step_gradients.c: the gradients of a training step, of leaves and of shards ---- */

/* Appends the parameters of the model and of the optimizer, each once. Both may be NULL. */
int ek_collect_trained(ek_module *model, const ek_optimizer *optimizer, ek_tensor_list *list);

/* Makes an array of references to the tensors that hold gradients: the leaves, and the shards of
 * sharded leaves. Returns their number. A later forward may shard a leaf or make it whole again. */
int ek_gradient_holders(ek_tensor *const *leaves, int count, ek_tensor ***holders);

/* The tensors that ek_collect_trained finds, and the gradients that they had before the step. */
typedef struct ek_step_gradients ek_step_gradients;
ek_step_gradients *ek_step_gradients_new(ek_module *model, ek_optimizer *optimizer);
void ek_step_gradients_free(ek_step_gradients *gradients);

/* Moves existing gradients aside, so that the step's gradients can be scaled without them. */
int ek_step_gradients_set_aside(ek_step_gradients *gradients);
/* Adds the gradients that were moved aside to the step's gradients. */
int ek_step_gradients_add_earlier(ek_step_gradients *gradients);

/* Multiplies all gradients by `scalar`, an f64 tensor on any device, which the host doesn't read.
 * If `scalar` is NULL, multiplies them by `number`. */
int ek_step_gradients_scale(const ek_step_gradients *gradients, double number, ek_tensor *scalar);

/* Removes all gradients, after a failed step. */
void ek_step_gradients_remove(const ek_step_gradients *gradients);

/* ---- training_state.c ---- */

/* Copies of parameters, buffers, gradients, the optimizer's state and all generators. The copies
 * lie on cpu in their originals' layout, so that restoring allocates nothing but gradients that
 * have been removed. model and optimizer may be NULL. */
typedef struct ek_training_state ek_training_state;
ek_training_state *ek_training_state_save(ek_module *model, ek_optimizer *optimizer);
/* Restores everything. May be called several times. Continues after an error, and returns the first
 * error. */
int ek_training_state_restore(ek_training_state *state);
void ek_training_state_free(ek_training_state *state);

/* ---- find_batch.c ---- */

/* Returns the common outcome of a run on several ranks. If memory has run out on a rank, and no
 * rank has failed for another reason, all ranks return EK_E_OUT_OF_MEMORY. Otherwise, after a
 * failure, each failed rank returns its own error, and the other ranks return EK_E_ABORTED. `what`
 * begins sentences. */
int ek_agree_on_memory(const char *what, ek_ranks *ranks, int rc);

/* ---- gradient_penalty.c ---- */

/* Returns "wgan_gp", "r1", ... for messages; NULL if `kind` is none of ek_penalty_kind. */
const char *ek_penalty_name(ek_penalty_kind kind);

#endif
