/* gradient_list.h: measures and scales the gradients of an optimizer, a module or some tensors, for
 * clip.c and scaler.c. */
#ifndef EK_OPTIM_GRADIENT_LIST_H
#define EK_OPTIM_GRADIENT_LIST_H

#include "kernels/params.h"
#include "nn/module_table.h"
#include "optim/optimizer.h"

/* Parameters, and their gradients, sorted by device, dtype and shards, then by parameter. Empty
 * gradients are left out. A sharded parameter has a gradient per shard of this process. */
typedef struct ek_gradient_list {
    const char *name; /* the caller's, for error messages */
    ek_tensor_list parameters;
    ek_tensor **gradients;
    int count, room;
    ek_shards **shards; /* of each gradient; NULL: not sharded over ranks; borrowed */
    int shards_room;
} ek_gradient_list;

/* Lists the parameters of the optimizer or of the module, or the tensors: two of the three must be
 * NULL. `list` is zero but for its name. ek_gradients_free frees the list, also after an error. */
int ek_gradients_open(ek_gradient_list *list, const ek_optimizer *optimizer, ek_module *module,
                      ek_tensor *const *tensors, int count);
/* Lists the gradients of the parameters. */
int ek_gradients_collect(ek_gradient_list *list);
void ek_gradients_free(ek_gradient_list *list);

/* Returns a tensor of ek_norm_list_kernel in the scope: element 1 is the joint norm of all
 * gradients, those of other processes included, and element 2 the factor that limits the norm to
 * max_norm. The host waits for devices only if parameters are sharded over ranks. `status` is this
 * process's outcome so far, which other processes learn. NULL with an error. */
ek_tensor *ek_gradients_norm(const ek_gradient_list *list, int status, double p, double max_norm);

/* Multiplies all gradients by the scalar `factor` (f64, on any device; NULL: an error is pending).
 * Doesn't wait for devices. */
int ek_gradients_scale(const ek_gradient_list *list, ek_tensor *factor);
/* Writes f(x; a, b) to every gradient x. */
int ek_gradients_apply(const ek_gradient_list *list, ek_unary op, double a, double b);

#endif
