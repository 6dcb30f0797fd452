/* nn.h: what the library's modules share. */
#ifndef EK_NN_NN_H
#define EK_NN_NN_H

#include "core/keywords.h"
#include "core/thread.h"
#include "evenkeel/nn.h"

/* The only input of a module that takes one tensor; NULL with EK_E_INVALID if the call has
 * others, or keyword arguments. */
ek_tensor *ek_only_input(const ek_module *module, const ek_args *args);

/* The same for a module that takes `count` tensors: 0, or EK_E_INVALID. */
int ek_check_inputs(const ek_module *module, const ek_args *args, int count);

/* A parameter or buffer to be: uninitialised, on cpu, counted as a parameter. */
ek_tensor *ek_new_parameter(ek_shape shape, ek_dtype dtype);

/* PyTorch's default for layers with weights: kaiming_uniform(a = sqrt 5), then, if there is one,
 * the bias between -1 / sqrt(fan in) and 1 / sqrt(fan in). */
int ek_init_default(ek_tensor *weight, ek_tensor *bias);

/* Calls a module with another forward than its type's. */
ek_value ek_module_call(ek_module *module, const ek_args *args,
                        ek_value (*forward)(ek_module *self, const ek_args *args));

/* One option of `layer`, whose windows move over `dims` directions, as ek_spatial_option reads it.
 * fallback: of each direction. */
int ek_window_option(const char *layer, const char *name, int dims, int all, const int each[3],
                     const int fallback[3], int least, int result[3]);
static const int ek_window_ones[3] = {1, 1, 1}, ek_window_zeros[3] = {0, 0, 0};

/* ---- what sequential fuses: batch norm, then ReLU, in one pass over the memory ---- */

bool ek_module_is_batch_norm(const ek_module *module);
bool ek_module_is_relu(const ek_module *module);
ek_value ek_batch_norm_relu_call(ek_module *batch_norm, const ek_args *args);

#endif
