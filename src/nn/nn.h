/* nn.h: what the library's modules share. */
#ifndef EK_NN_NN_H
#define EK_NN_NN_H

#include "core/thread.h"
#include "evenkeel/nn.h"

/* Returns the input of a module that takes one tensor. NULL with EK_E_INVALID if there are other
 * inputs or keyword arguments. */
ek_tensor *ek_only_input(const ek_module *module, const ek_args *args);

/* Checks that a module gets `count` inputs and no keyword arguments: 0, or EK_E_INVALID. */
int ek_check_inputs(const ek_module *module, const ek_args *args, int count);

/* Checks the batch mark of a value (ek_value_batched): EK_E_SHAPE if a wrapper has cut it along a
 * dimension other than `dim`. dim < 0: the module's input has no batch. `name` begins the
 * sentence. */
int ek_check_batch(const char *name, ek_value value, int dim);

/* Returns a list of the values, in the scope, with the elements of lists that aren't per_device in
 * place of these lists. */
ek_value ek_spread(const ek_value *values, int count);

/* Writes the arguments with which a criterion is called, in the scope: those of `args`, with lists
 * spread and targets moved (ek_loss). A wrapper, whose child has no name, gets `args`. */
int ek_criterion_args(const ek_module *criterion, const ek_args *args, ek_args *own);
/* Calls a criterion with these arguments. The result is in the scope. */
ek_value ek_criterion_forward(ek_module *criterion, const ek_args *args);

/* Makes an uninitialised tensor on cpu, in the scope, counted as EK_MEMORY_PARAMETER. */
ek_tensor *ek_new_parameter(ek_shape shape, ek_dtype dtype);

/* Makes and registers "weight" and "bias" with PyTorch's initial values for layers: kaiming_uniform
 * with a = sqrt(5) for the weight, then uniform in +-1 / sqrt(fan in) for the bias. The bias has
 * one dimension; it is NULL if its size is 0. The module's scope is open. */
void ek_register_layer(ek_module *module, ek_tensor **weight, ek_shape shape, ek_tensor **bias,
                       int64_t bias_size);

/* A function that replaces the forward of a module's type. */
typedef ek_value ek_forward_function(ek_module *self, const ek_args *args);
ek_value ek_module_call(ek_module *module, const ek_args *args, ek_forward_function *forward);

/* Returns the kernel's size, given as `kernel` or by PyTorch's name kernel_size; 0 if neither is
 * given. EK_E_INVALID if both are given and differ. */
int ek_kernel_option(const char *layer, int kernel, int kernel_size);

/* Reads an option of `layer`, whose windows move over `dims` directions, as ek_spatial_option does.
 * If `all` is EK_UNSET, direction i has fallback[i]; `fallback` may be NULL for options that are
 * never EK_UNSET. */
int ek_window_option(const char *layer, const char *name, int dims, int all, const int each[3],
                     const int fallback[3], int least, int result[3]);

/* Returns true for transposed convolutions, whose weight begins with the input's channels. */
bool ek_module_is_transposed(const ek_module *module);

/* ---- fusions: ek_sequential runs a layer and an activation after it as one operation if it can
 * ---- */

bool ek_module_is_batch_norm(const ek_module *module);
bool ek_module_is_relu(const ek_module *module);
/* Returns true for a GELU, and writes which one. */
bool ek_module_is_gelu(const ek_module *module, ek_gelu_approximate *approximate);
/* Returns true for maxima over windows, unless their positions are returned, too. */
bool ek_module_takes_maxima(const ek_module *module);
/* Return a forward that includes the activation; NULL if the layer has no such forward. */
ek_forward_function *ek_batch_norm_with_relu(const ek_module *layer);
ek_forward_function *ek_linear_with_relu(const ek_module *layer);
ek_forward_function *ek_linear_with_gelu(const ek_module *layer, ek_gelu_approximate approximate);

/* Returns residual + dropout(x), as one operation if the dropout module has no hooks. If an operand
 * is NULL, returns NULL. */
ek_tensor *ek_dropout_module_added(ek_module *dropout, ek_tensor *residual, ek_tensor *x);
/* Returns true if a call of the dropout module returns its input and does nothing else. */
bool ek_dropout_module_is_idle(const ek_module *dropout);
/* Sets *total to x + residual, and returns norm(*total): as one operation if the module is a layer
 * norm with a weight and without hooks. If an operand is NULL, returns NULL. */
ek_tensor *ek_layer_norm_module_added(ek_module *norm, ek_tensor **total, ek_tensor *x,
                                      ek_tensor *residual);

#endif
