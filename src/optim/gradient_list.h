/* gradient_list.h: gradients of an optimizer, a module or of some tensors, to be measured and
 * scaled (clip.c, scaler.c). */
#ifndef EK_OPTIM_GRADIENT_LIST_H
#define EK_OPTIM_GRADIENT_LIST_H

#include "kernels/params.h"
#include "nn/module_table.h"
#include "optim/optimizer.h"

/* Parameters, and their gradients in the same order, but for empty ones; for a sharded parameter
 * those of its shards. Of one that is sharded over ranks these are this rank's. */
typedef struct ek_gradient_list {
    const char *name; /* of the caller, for error messages */
    ek_tensor_list parameters;
    ek_tensor **gradients;
    int count, room;
    ek_shards **shards; /* per gradient: those that are sharded over ranks, or NULL; borrowed */
    int shards_room;
} ek_gradient_list;

/* Lists the parameters: those of the optimizer, the module, or the tensors given. `list` is zero
 * but for its name. ek_gradients_free frees it, also after a failure. */
int ek_gradients_open(ek_gradient_list *list, const ek_optimizer *optimizer, ek_module *module,
                      ek_tensor *const *tensors, int count);
/* Lists their gradients. */
int ek_gradients_collect(ek_gradient_list *list);
void ek_gradients_free(ek_gradient_list *list);

/* Combines with *total the term of each gradient of the device and dtype of gradients[first], which
 * comes first, and marks these gradients as done. */
typedef int ek_gradient_measure(ek_tensor *const *gradients, bool *done, int count, int first,
                                double p, double *total);
/* Terms are added up, or if p is infinite, the largest is taken; a NaN stays. */
void ek_gradients_combine(double *total, double term, double p);
/* Measures all gradients, those of other processes included. *total is 0 before. `status`: the
 * outcome so far, which other processes are told. */
int ek_gradients_total(const ek_gradient_list *list, int status, ek_gradient_measure *measure,
                       double p, double *total);

/* Writes f(x; a, b) to every gradient x. */
int ek_gradients_apply(const ek_gradient_list *list, ek_unary op, double a, double b);

/* Element `index` of a vector as a view with like->ndim dimensions of size 1, into which a kernel
 * reduces all of `like`. */
ek_tensor *ek_gradient_cell(const ek_tensor *vector, int64_t index, const ek_tensor *like);

#endif
