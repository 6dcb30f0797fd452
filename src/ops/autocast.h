/* autocast.h: what operations do to their operands while autocast is on (evenkeel/precision.h).
 *
 * PyTorch's lists for CUDA, as far as there are such operations here:
 *
 *     bf16      convolutions, transposed ones, matmul, linear
 *     f32       softmax, log_softmax, softplus, exp, log, reciprocal, pow, square, sum, norm, layer
 *               and group norm, the losses
 *     promote   elementwise operations of two tensors, where, cat, stack: bf16 and f32 give f32
 *
 * All others take and give what comes: relu, pooling, mean, var, batch and instance norm, views.
 * Operations in place keep x's dtype. f64 is never cast. Backward runs without autocast, on the
 * dtypes that the forward left.
 *
 * All functions take NULL for NULL, give results in the scope, and NULL with an error pending where
 * a cast fails; if autocast is off they do nothing. Casts are differentiable. */
#ifndef EK_OPS_AUTOCAST_H
#define EK_OPS_AUTOCAST_H

#include "core/tensor.h"
#include "core/thread.h"
#include "evenkeel/ops.h"

/* f32 becomes bf16. Parameters are cast once until they are written, all of a slab at once. */
ek_tensor *ek_autocast_narrow(ek_tensor *x);

/* The same, with images in the order of memory that convolutions read, in one pass. */
ek_tensor *ek_autocast_image(ek_tensor *x);

/* bf16 becomes f32. */
ek_tensor *ek_autocast_wide(ek_tensor *x);

/* Would it? */
static inline bool ek_autocast_widens(const ek_tensor *x)
{
    return x && x->dtype == EK_BF16 && ek_thread_self()->modes.flags & EK_MODE_AUTOCAST;
}

/* bf16 with f32: the bf16 one becomes f32. */
void ek_autocast_promote(ek_tensor **x, ek_tensor **y);

/* Some are bf16 and some f32: they are to become f32. NULLs are skipped. */
bool ek_autocast_mixes(ek_tensor *const *tensors, int count);

/* y becomes x's dtype, if they are bf16 and f32. */
ek_tensor *ek_autocast_like(ek_tensor *y, const ek_tensor *x);

/* The tensors of a loss become f32, but for classes. */
void ek_autocast_loss(ek_loss_options *options);

#endif
