/* softmax.h: softmax's gradient, for the operations that contain a softmax. */
#ifndef EK_OPS_SOFTMAX_H
#define EK_OPS_SOFTMAX_H

#include "core/tensor.h"

/* y (dy - sum(dy y)) along dim, y = softmax(x): x's gradient from y's. Differentiable in both. */
ek_tensor *ek_softmax_gradient(ek_tensor *dy, ek_tensor *y, int dim);

#endif
