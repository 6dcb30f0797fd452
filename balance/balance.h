/* balance.h: what the files of this folder ask of each other. */
#ifndef EK_BALANCE_BALANCE_H
#define EK_BALANCE_BALANCE_H

#include "core/ranks.h"
#include "evenkeel/gan.h"
#include "evenkeel/optim.h"
#include "nn/module_table.h"
#include "parallel/wrapper.h"

/* ---- data_parallel_model.c ---- */

/* `module` itself, as a wrapper, if its calls leave one output per device: an
 * ek_data_parallel_model of several devices, in training, not .plain. NULL, without an error, for
 * everything else. */
ek_wrapper *ek_data_parallel_model_apart(ek_module *module);

/* ---- loss_sum.c: sums and weights are f64 scalars in the caller's scope ---- */

/* A tensor of zero dimensions. */
bool ek_loss_is_scalar(ek_value loss);

/* Writes the mean `loss` times `weight` as a sum; if `weight` is NULL, `loss` itself is the sum. */
int ek_loss_sum_of(ek_tensor *loss, ek_tensor *weight, ek_loss_sum *part);

/* Calls the criterion for a part of a batch. A scalar loss is written to *part; for any other,
 * part->sum is NULL. `samples` is the weight of a mean that has no denominator. Returns the loss as
 * the criterion made it, a mean or a sum, or EK_VALUE_ERROR. */
ek_value ek_loss_sum_ask(ek_module *criterion, const ek_args *args, double samples,
                         ek_loss_sum *part);

/* True if the host knows that the part is empty, that is, its weight is 0; negative on error. */
int ek_loss_sum_is_empty(const ek_loss_sum *part);

/* Adds the sums and the weights of up to EK_MAX_DEVICES parts in order. The total's sum lies on
 * `root`; its weight too, or on cpu if the host knows all weights. An empty part adds nothing and
 * gets no gradient, unless the host knows that all are empty. If a part lacks a weight, so does the
 * total. */
int ek_loss_sums_add(const ek_loss_sum *parts, int count, ek_device root, ek_loss_sum *total);

/* The loss of all parts, on `root`: NaN only if all are empty. NULL on error. */
ek_tensor *ek_loss_sums_mean(const ek_loss_sum *parts, int count, ek_device root);

/* The loss of all ranks, on the device of this rank's part: the sum of their sums over the sum of
 * their weights, the same number on each. Its gradient is such that the mean over ranks of the
 * ranks' gradients is the loss's. Weights are constants: one small collective call in forward, none
 * in backward. A part of weight 0 counts as 0, and its sum should be of no other value. NULL with
 * an error, which is one on all ranks. */
ek_tensor *ek_loss_sum_over_ranks(const ek_loss_sum *part, ek_ranks *ranks);

/* Only the numbers: the loss, and what this rank's gradients of its sum are to be multiplied by. */
int ek_loss_sum_of_ranks(const ek_loss_sum *part, ek_ranks *ranks, double *value, double *factor);

/* 0, as a function of the call's tensors whose gradients are 0: the sum of a part that does not
 * count. So backward goes through the whole model on this rank too, and meets the others in it. */
ek_tensor *ek_loss_nothing(const ek_args *args, ek_device device);

/* ---- criterion.c ---- */

/* The positional inputs (first, rest...) of a call. A list as `first` gives one input per element,
 * unless it is per device. The caller frees the array; NULL if memory is short. */
ek_value *ek_spread(ek_value first, const ek_value *rest, int rest_count, int *count);

/* ---- step_gradients.c: the gradients that a training step makes, wherever they lie ---- */

/* Appends the model's parameters and the optimizer's, each once; both may be NULL. */
int ek_collect_trained(ek_module *model, const ek_optimizer *optimizer, ek_tensor_list *list);

/* Makes an array of references to the tensors that hold gradients, and returns how many there are:
 * the leaves, and the shards of sharded leaves. A later forward may shard a leaf, or make it whole
 * again. */
int ek_gradient_holders(ek_tensor *const *leaves, int count, ek_tensor ***holders);

/* The tensors that ek_collect_trained finds, and the gradients that they had before the step. */
typedef struct ek_step_gradients ek_step_gradients;
ek_step_gradients *ek_step_gradients_new(ek_module *model, ek_optimizer *optimizer);
void ek_step_gradients_free(ek_step_gradients *gradients);

/* Sets the gradients that exist aside, so that the step's own can be scaled without them. */
int ek_step_gradients_set_aside(ek_step_gradients *gradients);
/* Adds the gradients that were set aside to the step's own. */
int ek_step_gradients_add_earlier(ek_step_gradients *gradients);

/* Multiplies all gradients by `scalar`, a f64 tensor on any device, which the host does not read,
 * or by `number` if scalar is NULL. */
int ek_step_gradients_scale(const ek_step_gradients *gradients, double number, ek_tensor *scalar);

/* Removes all gradients. For a step that failed. */
void ek_step_gradients_remove(const ek_step_gradients *gradients);

/* ---- training_state.c ---- */

/* Copies of parameters, buffers, gradients, the optimizer's state and all generators. The copies
 * lie on cpu in their originals' layout, so that restoring allocates nothing but gradients that
 * have been removed. model and optimizer may be NULL. */
typedef struct ek_training_state ek_training_state;
ek_training_state *ek_training_state_save(ek_module *model, ek_optimizer *optimizer);
/* Restores everything, any number of times. Goes on after an error, and returns the first one. */
int ek_training_state_restore(ek_training_state *state);
void ek_training_state_free(ek_training_state *state);

/* ---- gradient_penalty.c ---- */

/* "wgan_gp", "r1", ... for sentences; NULL if `kind` is none of ek_penalty_kind. */
const char *ek_penalty_name(ek_penalty_kind kind);

#endif
