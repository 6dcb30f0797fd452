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
#include "evenkeel/precision.h"

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

/* ---- parameters that are cast ----
 *
 * Handles, with their history, are remembered by the thread between the outermost ek_autocast_begin
 * and its end; elsewhere, as in jobs on workers, they are not. The numbers are kept by the storage
 * they were cast from, until something is written there: so replicas, what is computed again in
 * backward, and later forwards with the same weights find them, and a slab is cast at once. */

/* The cast of `leaf` as it is now, in the scope; NULL if there is none, or with an error if
 * the scope has no room for it. `graph`: with history. */
ek_tensor *ek_cast_find(const ek_tensor *leaf, bool graph);

/* In place of what is remembered of the leaf under this `graph`. Without memory it fails: gradients
 * of uses of one cast are summed in its dtype, those of casts of their own in the leaf's, which
 * rounds differently. */
int ek_cast_remember(ek_tensor *leaf, bool graph, ek_tensor *cast);

/* ---- numbers. Any thread ---- */

typedef struct ek_narrow_found {
    ek_storage
        *elements;   /* in the places of the f32 ones: a reference, or NULL if there are none */
    bool wastes;     /* so few of the last ones were read that casting all of them doesn't pay */
    uint64_t writes; /* for ek_narrow_keep */
} ek_narrow_found;

/* The bf16 elements of an f32 storage, for a reader of `count` of them. 0, or without memory an
 * error. */
int ek_narrow_find(ek_storage *storage, int64_t count, ek_narrow_found *found);

/* Keeps `elements` in place of the ones before, unless the storage was written to since
 * ek_narrow_find gave `writes`; counts `count` as read. Takes a reference of its own. */
void ek_narrow_keep(ek_storage *storage, ek_storage *elements, int64_t count, uint64_t writes);

#endif
