/* balance.h: what the files of this folder ask of each other. */
#ifndef EK_BALANCE_BALANCE_H
#define EK_BALANCE_BALANCE_H

#include "parallel/wrapper.h"

/* ---- data_parallel_model.c ---- */

/* The wrapper in `module` if its calls leave one output per device: an ek_data_parallel_model of
 * several devices in training and not .plain. NULL, without an error, for everything else. */
ek_wrapper *ek_data_parallel_model_apart(ek_module *module);

/* ---- criterion.c: sums and weights are f64 scalars in the caller's scope ---- */

/* A tensor of zero dimensions. */
bool ek_loss_is_scalar(ek_value loss);

/* `loss` as a sum and a weight: a mean times its weight, or a sum if `weight` is NULL. */
int ek_loss_sum_of(ek_tensor *loss, ek_tensor *weight, ek_loss_sum *part);

/* Calls the criterion for a part of a batch. A scalar loss is written to *part; of any other,
 * part->sum is NULL. `samples` is the weight of a mean that has no denominator. Returns the loss as
 * the criterion made it, a mean or a sum, or EK_VALUE_ERROR. */
ek_value ek_loss_sum_ask(ek_module *criterion, const ek_args *args, double samples,
                         ek_loss_sum *part);

/* True if the host knows that the part is empty, that is, its weight is 0; negative on error. */
int ek_loss_sum_is_empty(const ek_loss_sum *part);

/* Adds the parts' sums in order, and so their weights, up to EK_MAX_DEVICES: the sum on `root`, the
 * weight there or, if the host knows all of them, on cpu. An empty part adds nothing and gets no
 * gradient, unless the host knows that all are empty. */
int ek_loss_sums_add(const ek_loss_sum *parts, int count, ek_device root, ek_loss_sum *total);

/* The loss of all parts, on `root`: NaN only if all are empty. NULL on error. */
ek_tensor *ek_loss_sums_mean(const ek_loss_sum *parts, int count, ek_device root);

#endif
