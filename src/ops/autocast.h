/* autocast.h: casts of operands while autocast is on (evenkeel/precision.h).
 *
 * PyTorch's lists for CUDA, as far as there are such operations here:
 *
 *     narrow    convolutions, transposed ones, matmul, linear, and so bmm and einsum, attention
 *     f32       softmax, log_softmax, softmin, softplus, exp, expm1, log, log1p, log2, log10,
 *               reciprocal, rsqrt, pow, square, tan, asin, acos, sinh, cosh, sum, prod, cumsum,
 *               cumprod, norm, layer, RMS and group norm, cdist, cosine_similarity, the losses
 *     promote   elementwise operations of two tensors, where, cat, stack, index_put: operands of
 *               several dtypes give f32
 *
 * Narrow is the region's dtype, bf16 or f16. All others compute in the dtype they get: relu,
 * pooling, mean, var, batch and instance norm, views. Operations in place keep x's dtype. f64 is
 * never cast. Backward runs without autocast, on the dtypes that the forward left.
 *
 * All functions give NULL for NULL, and results in the scope. If a cast fails, the result is NULL
 * with an error pending. If autocast is off, nothing is cast. Casts are differentiable. */
#ifndef EK_OPS_AUTOCAST_H
#define EK_OPS_AUTOCAST_H

#include "core/tensor.h"
#include "core/thread.h"
#include "evenkeel/ops.h"
#include "evenkeel/precision.h"

/* Casts to the narrow dtype. A parameter is cast with all of its slab, once after each write. */
ek_tensor *ek_autocast_narrow(ek_tensor *x);

/* Casts to the narrow dtype. An image that isn't a parameter becomes channels-last by this copy. */
ek_tensor *ek_autocast_image(ek_tensor *x);

/* Casts bf16 and f16 to f32. */
ek_tensor *ek_autocast_wide(ek_tensor *x);

/* Returns true if ek_autocast_wide would cast x. */
static inline bool ek_autocast_widens(const ek_tensor *x)
{
    return x && ek_dtype_is_narrow(x->dtype) && ek_thread_self()->modes.flags & EK_MODE_AUTOCAST;
}

/* Casts both operands to f32 if they have two different dtypes of f32, bf16 and f16. */
void ek_autocast_promote(ek_tensor **x, ek_tensor **y);

/* Returns true if autocast is on and the tensors have at least two dtypes of f32, bf16 and f16.
 * NULLs are skipped. */
bool ek_autocast_mixes(ek_tensor *const *tensors, int count);

/* Casts y to x's dtype if x and y have two different dtypes of f32, bf16 and f16. */
ek_tensor *ek_autocast_like(ek_tensor *y, const ek_tensor *x);

/* ---- parameters that are cast ----
 *
 * A thread remembers cast tensors, with their history, between the outermost ek_autocast_begin and
 * its end; jobs on workers remember none. A storage keeps the narrow elements that were cast from
 * it until it is written. So replicas, recomputation in backward and later forwards with unchanged
 * weights find them, and a slab is cast by one launch. */

/* Returns the remembered cast of `leaf` at its present version, in the scope. NULL if there is
 * none, or with an error if the scope has no memory. `graph`: a cast with history. */
ek_tensor *ek_cast_find(const ek_tensor *leaf, bool graph);

/* Remembers a cast of `leaf`, in place of the earlier cast with this `graph`. Fails if memory is
 * short: to continue without remembering would change numbers, because the gradients of one cast's
 * uses are summed in 16 bits, those of separate casts in the leaf's dtype. */
int ek_cast_remember(ek_tensor *leaf, bool graph, ek_tensor *cast);

/* ---- narrow elements of a storage; any thread ---- */

typedef struct ek_narrow_found {
    ek_storage *elements; /* in the f32 elements' order; owned, or NULL */
    bool wastes;          /* the last cast didn't pay: few of its elements were read */
    uint64_t writes;      /* the count of writes, for ek_narrow_keep */
} ek_narrow_found;

/* Finds the elements of an f32 storage in `dtype` for a caller that reads `count` of them. Returns
 * 0, or an error without memory. */
int ek_narrow_find(ek_storage *storage, ek_dtype dtype, int64_t count, ek_narrow_found *found);

/* Keeps `elements` of `dtype` (one more reference) in place of the earlier ones, and counts `count`
 * as read. Keeps nothing if the storage was written to since ek_narrow_find returned `writes`. */
void ek_narrow_keep(ek_storage *storage, ek_storage *elements, ek_dtype dtype, int64_t count,
                    uint64_t writes);

#endif
