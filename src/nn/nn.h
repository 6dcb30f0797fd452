/* nn.h: what the library's modules share. */
#ifndef EK_NN_NN_H
#define EK_NN_NN_H

#include "core/thread.h"
#include "evenkeel/nn.h"

/* The only input of a module that takes one tensor. NULL with EK_E_INVALID if there are other
 * inputs or keyword arguments. */
ek_tensor *ek_only_input(const ek_module *module, const ek_args *args);

/* The same check for a module that takes `count` inputs: 0, or EK_E_INVALID. */
int ek_check_inputs(const ek_module *module, const ek_args *args, int count);

/* EK_E_SHAPE if the value is marked with another batch than dimension `dim` (ek_value_batched), as
 * is what a wrapper cut along another dimension. If dim < 0 it has no batch. `name` is for the
 * sentence. */
int ek_check_batch(const char *name, ek_value value, int dim);

/* An uninitialised tensor on cpu, in the scope, counted as EK_MEMORY_PARAMETER. */
ek_tensor *ek_new_parameter(ek_shape shape, ek_dtype dtype);

/* Makes and registers "weight" and "bias", which has one dimension, or is NULL if its size is 0,
 * with PyTorch's initial values of layers: kaiming_uniform with a = sqrt(5) for the weight, then
 * uniform in +-1 / sqrt(fan in) for the bias. The module's scope is open. */
void ek_register_layer(ek_module *module, ek_tensor **weight, ek_shape shape, ek_tensor **bias,
                       int64_t bias_size);

/* Calls a module with `forward` in place of its type's. */
typedef ek_value ek_forward_function(ek_module *self, const ek_args *args);
ek_value ek_module_call(ek_module *module, const ek_args *args, ek_forward_function *forward);

/* The kernel's size, which is given by `kernel` or by PyTorch's name, kernel_size; 0: by neither.
 * EK_E_INVALID if both were given and differ. */
int ek_kernel_option(const char *layer, int kernel, int kernel_size);

/* Reads an option of `layer`, whose windows move over `dims` directions, as ek_spatial_option does.
 * If `all` is EK_UNSET, direction i has fallback[i]; `fallback` may be NULL for options that are
 * never EK_UNSET. */
int ek_window_option(const char *layer, const char *name, int dims, int all, const int each[3],
                     const int fallback[3], int least, int result[3]);

/* True for transposed convolutions, whose weight begins with the input's channels. */
bool ek_module_is_transposed(const ek_module *module);

/* ---- ek_sequential runs a layer and a ReLU after it as one operation, if the layer has it ---- */

bool ek_module_is_batch_norm(const ek_module *module);
bool ek_module_is_relu(const ek_module *module);
/* The layer's forward and a ReLU; NULL if it isn't such a layer. */
ek_forward_function *ek_batch_norm_with_relu(const ek_module *layer);
ek_forward_function *ek_linear_with_relu(const ek_module *layer);

/* residual + what the module, a dropout, makes of x, as one operation if nobody looks at the
 * module. NULL for NULL. */
ek_tensor *ek_dropout_module_added(ek_module *dropout, ek_tensor *residual, ek_tensor *x);

#endif
