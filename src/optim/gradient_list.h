/* gradient_list.h: measures and scales the gradients of an optimizer, a module or some tensors, for
 * clip.c and scaler.c. */
#ifndef EK_OPTIM_GRADIENT_LIST_H
#define EK_OPTIM_GRADIENT_LIST_H

#include "kernels/params.h"
#include "nn/module_table.h"
#include "optim/optimizer.h"

/* Parameters, and their gradients in the order of the parameters. Empty gradients are left out. A
 * sharded parameter has a gradient per shard of this process. */
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

/* How to measure gradients. Each gradient is reduced to `terms` numbers, one for each of `kinds`.
 * All numbers are added up. If p is infinite, the total is the largest number instead, or NaN if a
 * number is NaN. */
typedef struct ek_gradient_measure {
    int terms; /* count of kinds, at most 2 */
    ek_reduce_kind kinds[2];
    /* Returns what is reduced in place of the gradient x. NULL: x itself is reduced. */
    ek_tensor *(*prepare)(ek_tensor *x, double p);
    bool counts_nonfinite; /* a term is replaced by 1 if it isn't finite, else by 0 */
    double p;
} ek_gradient_measure;

/* Measures all gradients, those of other processes included. *total must be 0 before the call.
 * `status` is this process's outcome so far, which other processes learn. */
int ek_gradients_total(const ek_gradient_list *list, int status, const ek_gradient_measure *measure,
                       double *total);

/* Writes f(x; a, b) to every gradient x. */
int ek_gradients_apply(const ek_gradient_list *list, ek_unary op, double a, double b);

#endif
