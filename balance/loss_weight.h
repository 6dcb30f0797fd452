/* loss_weight.h: what a loss divides by, so that losses of parts of a batch become that of all. */
#ifndef EK_BALANCE_LOSS_WEIGHT_H
#define EK_BALANCE_LOSS_WEIGHT_H

#include "evenkeel/module.h"

typedef struct ek_loss_weight {
    bool is_sum;        /* nothing divides it; the rest doesn't matter */
    double number;      /* the denominator, or */
    ek_tensor *counted; /* where it lies in memory that the host doesn't read: a f64 scalar, a
                           reference (it outlives the call that told it) */
} ek_loss_weight;

/* What `criterion` says about this call of it; `samples` where it says nothing. */
int ek_loss_weight_ask(ek_module *criterion, const ek_args *args, double samples,
                       ek_loss_weight *weight);

/* From now on (until NULL) calls of this ek_data_parallel_criterion write *weight, of all devices
 * together. False where the module is none. */
bool ek_data_parallel_criterion_watch(ek_module *criterion, ek_loss_weight *weight);

#endif
