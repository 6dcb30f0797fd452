/* dropout.h: dropout and a sum in one pass. */
#ifndef EK_OPS_DROPOUT_H
#define EK_OPS_DROPOUT_H

#include "evenkeel/ops.h"

/* Returns a result equal to residual + ek_f_dropout(x, p, training) to the bit. If Philox draws the
 * numbers, that is one launch on a GPU, even if autocast adds a 16-bit x to an f32 residual.
 * Differentiable to any order. */
ek_tensor *ek_dropout_added(ek_tensor *residual, ek_tensor *x, double p, bool training);

#endif
