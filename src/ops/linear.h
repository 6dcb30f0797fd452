/* linear.h: the linear layer and a ReLU in one pass, and the gradients of its parameters. */
#ifndef EK_OPS_LINEAR_H
#define EK_OPS_LINEAR_H

#include "evenkeel/ops.h"

/* Computes ek_f_linear; with `relu`, max(linear(x), 0) in one pass that keeps one activation less.
 * On GPUs it is one launch. Differentiable to any order. */
ek_tensor *ek_linear_activated(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, bool relu);

/* Writes dw = dy' x and db = the sum of dy's rows. Either may be NULL. Nothing is recorded. */
int ek_linear_run_gradients(ek_tensor *dw, ek_tensor *db, const ek_tensor *x, const ek_tensor *dy);

#endif
