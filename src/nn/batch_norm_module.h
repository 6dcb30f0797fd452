/* batch_norm_module.h: the batch norm module, for module types that compute other statistics. */
#ifndef EK_NN_BATCH_NORM_MODULE_H
#define EK_NN_BATCH_NORM_MODULE_H

#include "nn/nn.h"

/* The struct that all batch norm types share, so that a module can change its type in place. */
typedef struct ek_batch_norm_module {
    ek_module module;
    ek_tensor *weight, *bias;              /* (features); NULL if affine is off */
    ek_tensor *running_mean, *running_var; /* (features); NULL if track_running_stats is off */
    ek_tensor *num_batches_tracked;        /* i64 scalar; NULL if track_running_stats is off */
    int64_t features;
    double eps, momentum;
    int ndim_least, ndim_most; /* bounds of the input's dimensions */
    /* Of the synchronised type: */
    uint64_t place;         /* where replicas meet (rendezvous.h) */
    struct ek_ranks *ranks; /* other processes (core/ranks.h), or NULL; one reference */
    bool ranks_are_given;   /* true: by options or a conversion; false: by the module's wrapper */
} ek_batch_norm_module;

/* Makes a module of `type`, with this struct; owned by the caller, NULL with an error. */
ek_module *ek_batch_norm_module_new(const ek_module_type *type,
                                    const ek_batch_norm_module_options *options, int ndim_least,
                                    int ndim_most);

/* The family of all its types. */
extern const char ek_batch_norm_family[];

/* Writes the options, as `describe` does. */
void ek_batch_norm_module_describe(const ek_module *module, char *text, size_t size);

/* Checks how many dimensions x has. */
int ek_batch_norm_module_check(const ek_batch_norm_module *self, const ek_tensor *x);

/* Returns the options of ek_f_batch_norm for x, with the module's tensors, mode, momentum and eps.
 */
ek_batch_norm_options ek_batch_norm_module_operation(const ek_batch_norm_module *self,
                                                     ek_tensor *x);

#endif
