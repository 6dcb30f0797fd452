/* basic.h: the few differentiable operations that the engine itself needs; src/ops has the others. */
#ifndef EK_AUTOGRAD_BASIC_H
#define EK_AUTOGRAD_BASIC_H

#include "autograd/graph.h"

/* x + y of one shape, dtype and device, for folding gradients; recorded in gradient mode. */
ek_tensor *ek_fold_add(ek_tensor *x, ek_tensor *y);

#endif
