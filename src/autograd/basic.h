/* basic.h: the few differentiable operations that the engine itself needs; src/ops has the others.
 */
#ifndef EK_AUTOGRAD_BASIC_H
#define EK_AUTOGRAD_BASIC_H

#include "autograd/graph.h"

/* x + y of one shape, dtype and device, for folding gradients; recorded in gradient mode. */
ek_tensor *ek_fold_add(ek_tensor *x, ek_tensor *y);

/* x copied into new memory with the layout of `like` (same shape, dtype and device); recorded in
 * gradient mode. */
ek_tensor *ek_fold_copy(ek_tensor *x, const ek_tensor *like);

/* x in another floating dtype, x itself if it has that; recorded in gradient mode. */
ek_tensor *ek_fold_cast(ek_tensor *x, ek_dtype dtype);

/* x itself under another handle: what a saved leaf becomes whose memory has been moved since. */
ek_tensor *ek_fold_alias(const ek_tensor *storage, ek_tensor *leaf);

#endif
