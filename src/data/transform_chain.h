/* transform_chain.h: several transforms, one after the other, on arrays of one shape. */
#ifndef EK_DATA_TRANSFORM_CHAIN_H
#define EK_DATA_TRANSFORM_CHAIN_H

#include "core/error.h"
#include "core/heap.h"
#include "core/multiversion.h"
#include "evenkeel/transform.h"

/* steps[0] is what goes in, steps[i] what comes out of transform i - 1. Two buffers hold what is
 * between them in turns: one sample after the other goes through the whole chain, so that they stay
 * in the cache. One thread at a time. */
typedef struct ek_chain {
    ek_transform *const *transforms; /* not owned */
    int count;
    ek_array *steps;
    void *scratch[2];
} ek_chain;

/* Describes all steps, once, and makes the buffers. On an error nothing is left to close. */
int ek_chain_open(ek_chain *chain, ek_transform *const *transforms, int count, ek_dtype dtype,
                  const ek_shape *shape);
void ek_chain_close(ek_chain *chain);

/* What comes out: its data is NULL. */
static inline const ek_array *ek_chain_result(const ek_chain *chain)
{
    return &chain->steps[chain->count];
}

/* Elements at `in` to elements at `out`, row-major, which don't overlap. */
int ek_chain_run(const ek_chain *chain, const void *in, void *out, ek_generator *generator);

/* EK_E_INVALID, or the pending error, for NULL among the transforms. */
int ek_transforms_check(const char *caller, ek_transform *const *transforms, int count);

/* ---- for the transforms themselves ---- */

/* "u8[1, 28, 28]" for sentences; returns text. */
char *ek_array_text(const ek_array *array, char text[200]);

/* Height and width, paddings too: products and sums of a few don't overflow. */
#define EK_PICTURE_MOST (INT64_C(1) << 31)

/* Pictures have at least two dimensions, of which the last two are not beyond reason: EK_E_SHAPE in
 * the name of `transform`. */
int ek_picture_check(const ek_transform *transform, const ek_array *array);
/* Planes of height x width. */
typedef struct ek_picture {
    int64_t planes, height, width;
    size_t size; /* bytes of an element */
} ek_picture;
ek_picture ek_picture_of(const ek_array *array);

/* All elements as they are. */
void ek_array_keep(const ek_array *in, ek_array *out);

#endif
