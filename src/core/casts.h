/* casts.h: parameters in another dtype.
 *
 * Handles, with their history, are remembered by the thread between the outermost ek_autocast_begin
 * and its end; elsewhere, as in jobs on workers, they are not. The numbers are kept by the storage
 * they were cast from, until something is written there: so replicas, what is computed again in
 * backward, and later forwards with the same weights find them, and a slab is cast at once. */
#ifndef EK_CORE_CASTS_H
#define EK_CORE_CASTS_H

#include "core/tensor.h"

/* The cast of `leaf` as it is now, in the scope; NULL where there is none, or with an error where
 * the scope has no room for it. `graph`: with history. */
ek_tensor *ek_cast_find(const ek_tensor *leaf, bool graph);

/* In place of what is remembered of the leaf under this `graph`. Without memory it fails: gradients
 * of uses of one cast are summed in its dtype, those of casts of their own in the leaf's, which
 * rounds differently. */
int ek_cast_remember(ek_tensor *leaf, bool graph, ek_tensor *cast);

/* Forgets all of the thread's. */
void ek_casts_forget(ek_thread *thread);

/* ---- numbers. Any thread ---- */

/* The elements of an f32 storage in bf16, in the same places, for a reader of `count` of them: one
 * reference. NULL where there are none; then *wastes says whether the last ones were read in so
 * small a part that casting all of them doesn't pay, and *writes is for ek_narrow_keep. */
ek_storage *ek_narrow_find(ek_storage *storage, int64_t count, bool *wastes, uint64_t *writes);

/* In place of those that are kept, unless the storage was written to since ek_narrow_find gave
 * `writes`; counts `count` as read. Takes one more reference. */
void ek_narrow_keep(ek_storage *storage, ek_storage *narrow, int64_t count, uint64_t writes);

/* The storage was written to. */
void ek_narrow_drop(ek_storage *storage);

#endif
