/* transform_chain.h: several transforms, one after the other, on arrays of one shape. */
#ifndef EK_DATA_TRANSFORM_CHAIN_H
#define EK_DATA_TRANSFORM_CHAIN_H

#include "core/error.h"
#include "evenkeel/transform.h"

/* steps[0] describes the input, and steps[i] the output of transform i - 1. Two buffers hold
 * intermediate results in turns. Each sample runs through the whole chain before the next, so that
 * the buffers stay cached. For one thread at a time. */
typedef struct ek_chain {
    ek_transform *const *transforms; /* borrowed */
    int count;
    ek_array *steps;
    void *scratch[2];
} ek_chain;

/* Describes all steps once, and makes the buffers. After an error there is nothing to close. */
int ek_chain_open(ek_chain *chain, ek_transform *const *transforms, int count, ek_dtype dtype,
                  const ek_shape *shape);
void ek_chain_close(ek_chain *chain);

/* Returns the description of the output, whose data is NULL. */
static inline const ek_array *ek_chain_result(const ek_chain *chain)
{
    return &chain->steps[chain->count];
}

/* Transforms the elements at `in` to those at `out`. Both are row-major, and must not overlap. */
int ek_chain_run(const ek_chain *chain, const void *in, void *out, ek_generator *generator);

/* EK_E_INVALID, or the pending error, if one of the transforms is NULL. */
int ek_transforms_check(const char *caller, ek_transform *const *transforms, int count);
/* Frees the transforms; NULL is ignored, also among them. */
void ek_transforms_free(ek_transform *const *transforms, int count);

/* Writes dtype and shape for messages, such as "u8[1, 28, 28]", and returns the text. */
char *ek_array_text(const ek_array *array, char text[200]);
/* Copies all elements unchanged. */
void ek_array_keep(const ek_array *in, ek_array *out);

#endif
