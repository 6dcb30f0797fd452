/* casts.h: parameters in another dtype.
 *
 * Handles, with their history, are remembered by the thread between the outermost ek_autocast_begin
 * and its end; elsewhere, as in jobs on workers, they are not. The numbers are kept by the storage
 * they were cast from, until something is written there: so replicas, what is computed again in
 * backward, and later forwards with the same weights find them, and a slab is cast at once. */
#ifndef EK_OPS_CASTS_H
#define EK_OPS_CASTS_H

#include "core/tensor.h"
#include "evenkeel/precision.h"

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
