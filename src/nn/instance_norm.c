/* instance_norm.c: instance normalisation, with or without running statistics. With running
 * statistics, which are averages over samples, evaluation normalises by them, as in batch norm. */
#include "core/tensor.h"
#include "nn/batch_norm_module.h"
#include "ops/norm.h"
#include "ops/spatial.h"

/* The input with a batch dimension. */
static ek_tensor *instance_norm_input(const ek_batch_norm_module *self, const ek_args *args,
                                      bool *single)
{
    char text[200];
    *single = false;
    ek_tensor *x = ek_only_input(&self->module, args);
    ek_tensor *batch = ek_spatial_batched(x, self->ndim_most - 2, single);
    if (!batch || (batch->ndim == self->ndim_most && batch->shape[1] == self->features))
        return batch;
    return EK_FAIL_NULL(EK_E_SHAPE, "expected an input of %d dimensions with %lld channels, got %s",
                        self->ndim_most, (long long)self->features, ek_tensor_text(x, text));
}

static ek_value instance_norm_forward(ek_module *module, const ek_args *args)
{
    const ek_batch_norm_module *self = (ek_batch_norm_module *)module;
    bool single;
    ek_tensor *x = instance_norm_input(self, args, &single);
    if (!x)
        return ek_value_of_tensor(NULL);
    ek_tensor *y = ek_instance_norm_tracked(ek_batch_norm_module_operation(self, x));
    return ek_value_of_tensor(single ? ek_squeeze(y, 0) : y);
}

#define INSTANCE_NORM(dims)                                                                     \
    static const ek_module_type instance_norm##dims##_type = {.name = "instance_norm" #dims,    \
                                                              .size =                           \
                                                                  sizeof(ek_batch_norm_module), \
                                                              .forward = instance_norm_forward, \
                                                              .describe =                       \
                                                                  ek_batch_norm_module_describe}
INSTANCE_NORM(1d);
INSTANCE_NORM(2d);
INSTANCE_NORM(3d);

static ek_module *instance_norm_new(const ek_module_type *type,
                                    const ek_instance_norm_module_options *options, int ndim)
{
    if (options->momentum == EK_CUMULATIVE) {
        EK_FAIL(EK_E_INVALID,
                "%s: momentum must be between 0 and 1; EK_CUMULATIVE is for batch norm",
                type->name);
        return NULL;
    }
    const ek_batch_norm_module_options same = {.features = options->features,
                                               .eps = options->eps,
                                               .momentum = options->momentum,
                                               .affine = options->affine,
                                               .track_running_stats = options->track_running_stats};
    return ek_batch_norm_module_new(type, &same, ndim, ndim);
}

ek_module *ek_instance_norm1d_with(ek_instance_norm_module_options options)
{
    return instance_norm_new(&instance_norm1d_type, &options, 3);
}

ek_module *ek_instance_norm2d_with(ek_instance_norm_module_options options)
{
    return instance_norm_new(&instance_norm2d_type, &options, 4);
}

ek_module *ek_instance_norm3d_with(ek_instance_norm_module_options options)
{
    return instance_norm_new(&instance_norm3d_type, &options, 5);
}
