/* batch_norm_module.h: batch normalisation as a module, for those that compute its statistics in
 * another way. */
#ifndef EK_NN_BATCH_NORM_MODULE_H
#define EK_NN_BATCH_NORM_MODULE_H

#include "nn/nn.h"

/* One struct for all types, so that a module can turn from one into another where it is. */
typedef struct ek_batch_norm_module {
    ek_module module;
    ek_tensor *weight, *bias;              /* (features), or absent: affine off */
    ek_tensor *running_mean, *running_var; /* (features), or absent: track_running_stats off */
    ek_tensor *num_batches_tracked;        /* i64 scalar, or absent */
    double eps, momentum;
    int ndim_least, ndim_most; /* of the input */
    uint64_t place;            /* synchronised: where its replicas meet, their own */
} ek_batch_norm_module;

/* A module of such a type, whose size is the struct's. */
ek_module *ek_batch_norm_module_new(const ek_module_type *type, const ek_norm_options *options,
                                    int ndim_least, int ndim_most);

/* Checks x's dimensions. */
int ek_batch_norm_module_check(const ek_batch_norm_module *self, const ek_tensor *x);

/* The operation with the module's tensors and options, x's own statistics when training. */
ek_batch_norm_options ek_batch_norm_module_options(const ek_batch_norm_module *self, ek_tensor *x);

#endif
