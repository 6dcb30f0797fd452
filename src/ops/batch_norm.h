/* batch_norm.h: batch normalisation with a ReLU behind it in one pass, for sequences that contain
 * both. */
#ifndef EK_OPS_BATCH_NORM_H
#define EK_OPS_BATCH_NORM_H

#include "evenkeel/ops.h"

/* max(batch_norm(x), 0): one pass over memory instead of two, in forward and in backward, and one
 * activation less to keep. Differentiable to any order. */
ek_tensor *ek_batch_norm_relu(ek_batch_norm_options options);

#endif
