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
    /* For norms; tensors are in the scope. */
    ek_tensor **dense;   /* the gradients, of which those with gaps are copied */
    ek_tensor **numbers; /* The norm of each device, dtype and shards, at their first gradient. */
    ek_dev *lead;        /* where norms are joined */
    ek_tensor *sums, *joined;
    bool joins; /* there are norms to join */
} ek_gradient_list;

/* Lists the parameters of the optimizer or of the module, or the tensors, each once: two of the
 * three must be NULL. `list` is zero but for its name. ek_gradients_free frees the list, also after
 * an error. */
int ek_gradients_open(ek_gradient_list *list, const ek_optimizer *optimizer, ek_module *module,
                      ek_tensor *const *tensors, int count);
/* Lists the gradients of the parameters. */
int ek_gradients_collect(ek_gradient_list *list);
void ek_gradients_free(ek_gradient_list *list);

/* Returns the outputs of ek_norm_list_kernel for all gradients, those of other processes included,
 * in the scope. The host waits for devices only if gradients lie on the host, too, or if parameters
 * are sharded over ranks. `status` is this process's outcome so far, which other processes learn.
 * NULL with an error. */
ek_tensor *ek_gradients_norm(ek_gradient_list *list, int status, double p, double max_norm);
/* Multiplies all gradients by the factor in `numbers`, which ek_gradients_norm has returned, or by
 * `factor` if that is NULL. Follows ek_gradients_norm, and allocates nothing. The host waits for
 * devices only with `numbers`, and if gradients lie on the host, too. */
int ek_gradients_scale(const ek_gradient_list *list, const ek_tensor *numbers, double factor);
/* Writes f(x; a, b) to every gradient x. */
int ek_gradients_apply(const ek_gradient_list *list, ek_unary op, double a, double b);

#endif
