/* linear.h: the linear layer and an activation in one pass, and the gradients of its parameters. */
#ifndef EK_OPS_LINEAR_H
#define EK_OPS_LINEAR_H

#include "evenkeel/activation.h"
#include "evenkeel/ops.h"

/* Computes ek_f_linear; with `relu`, max(linear(x), 0) in one pass that keeps one activation less.
 * On GPUs it is one launch. Differentiable to any order. */
ek_tensor *ek_linear_activated(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, bool relu);

/* Returns ek_f_gelu(ek_f_linear(x, weight, bias), approximate), both in one pass on the host. They
 * are recorded as two operations. */
ek_tensor *ek_linear_gelu(ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                          ek_gelu_approximate approximate);
/* Records that y is ek_f_gelu(x, approximate), and returns y. */
ek_tensor *ek_gelu_recorded(ek_tensor *y, ek_tensor *x, ek_gelu_approximate approximate);

/* Writes dw = dy' x and db = the sum of dy's rows. Either may be NULL. Nothing is recorded. */
int ek_linear_run_gradients(ek_tensor *dw, ek_tensor *db, const ek_tensor *x, const ek_tensor *dy);

#endif
