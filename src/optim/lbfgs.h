/* lbfgs.h: the state of L-BFGS, which belongs to all parameters together. */
#ifndef EK_OPTIM_LBFGS_H
#define EK_OPTIM_LBFGS_H

#include "optim/algorithm.h"

/* How far an iteration moved, and what that did to the gradient. Vectors, one reference each. */
typedef struct ek_lbfgs_pair {
    ek_tensor *y; /* the change of the gradient */
    ek_tensor *s; /* the step */
    double ro;    /* 1 / (y s) */
} ek_lbfgs_pair;

/* All zero before the first iteration. Tensors hold one reference each and are never written to. */
typedef struct ek_lbfgs {
    int64_t iterations, evaluations; /* all steps' */
    ek_tensor *direction;            /* the last iteration's */
    ek_tensor *gradient;             /* where the last iteration began */
    double loss;                     /* there */
    double t;                        /* the last iteration's step is t times its direction */
    double scale;                    /* the inverse Hessian before the history is applied */
    ek_lbfgs_pair *pairs;            /* the history, the oldest first */
    int count, room;
} ek_lbfgs;

void ek_lbfgs_clear(ek_lbfgs *self);

/* Puts a tensor of the scope in the place of another one. */
void ek_lbfgs_replace(ek_tensor **place, ek_tensor *tensor);

/* Brings the vectors to the device and dtype of this one. On an error some may have been. */
int ek_lbfgs_follow(ek_lbfgs *self, const ek_tensor *there);

/* How many elements all parameters have. */
int64_t ek_lbfgs_count(const ek_optimizer *optimizer);

/* The optimizer's state, made if there is none yet; NULL with an error. */
ek_lbfgs *ek_lbfgs_of(ek_optimizer *optimizer);

/* ---- members of ek_vector_algorithm ---- */

int ek_lbfgs_minimise(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss);
extern const char *const ek_lbfgs_state_names[];
ek_tensor *ek_lbfgs_state(const ek_optimizer *optimizer, const char *name);
int ek_lbfgs_set_state(ek_optimizer *optimizer, int64_t steps, const char *const *names,
                       ek_tensor *const *states, int count);
void ek_lbfgs_free(void *memory);

#endif
