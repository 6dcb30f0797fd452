/* lbfgs.h: the state of L-BFGS, which belongs to all parameters together. */
#ifndef EK_OPTIM_LBFGS_H
#define EK_OPTIM_LBFGS_H

#include "nn/module_table.h"
#include "optim/algorithm.h"

/* All members are zero before the first iteration. The state has one reference to each vector.
 * Vectors are never written to, so that copies of the state share them. */
typedef struct ek_lbfgs {
    int64_t iterations;   /* count of all iterations */
    double evaluations;   /* count of all evaluations of closures */
    ek_tensor *direction; /* the last iteration's */
    ek_tensor *gradient;  /* the gradient where the last iteration began */
    double loss;          /* the loss where the last iteration began */
    double t;             /* the last iteration's step length, as a multiple of `direction` */
    double scale;         /* the inverse Hessian before the history is applied */

    /* The history: a pair (y, s) per iteration, the oldest first. */
    ek_tensor_list y; /* changes of the gradient */
    ek_tensor_list s; /* steps */
    double *ro;       /* 1 / (y s) of each pair */
    int ro_room;
} ek_lbfgs;

/* Copies the state to the device and dtype of `there`. After an error the copy must be cleared,
 * too. */
int ek_lbfgs_copy(const ek_lbfgs *self, const ek_tensor *there, ek_lbfgs *copy);

/* Puts a tensor of the scope in place of another one. If `tensor` is NULL, returns the pending
 * error. */
int ek_lbfgs_replace(ek_tensor **place, ek_tensor *tensor);

/* Appends two tensors of the scope to the history. If one is NULL, returns the pending error. */
int ek_lbfgs_append(ek_lbfgs *self, ek_tensor *y, ek_tensor *s, double ro);

/* Removes the oldest pair of the history. */
void ek_lbfgs_drop_oldest(ek_lbfgs *self);

/* Returns how many elements all parameters have. */
int64_t ek_lbfgs_count(const ek_optimizer *optimizer);

/* ---- members of ek_vector_algorithm ---- */

int ek_lbfgs_minimise(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss);
const char *ek_lbfgs_state_name(int index);
ek_tensor *ek_lbfgs_state(const ek_optimizer *optimizer, const char *name);
int ek_lbfgs_set_state(ek_optimizer *optimizer, int64_t steps, const char *const *names,
                       ek_tensor *const *states, int count);
void ek_lbfgs_clear(void *memory);

#endif
