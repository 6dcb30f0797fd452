/* combine.h: sums, products, extrema and bitwise operations over the ranks' terms, in their order.
 */
#ifndef EK_LINK_COMBINE_H
#define EK_LINK_COMBINE_H

#include <stdint.h>

#include "evenkeel/dist.h"

/* out[i] = terms[0][i] op terms[1][i] op ..., for `count` terms of n elements. `out` may be one of
 * the terms. Integers wrap. bf16 and f16 are combined in f32 and rounded once. Sums of bool are
 * "or", products "and". EK_DIST_AVG divides the sum by the number of terms. The operation suits the
 * dtype (ek_combine_check). */
void ek_combine(ek_dist_op op, ek_dtype dtype, const void *const *terms, int count, void *out,
                int64_t n);

/* The same in place: all terms become the result. */
void ek_combine_in_place(ek_dist_op op, ek_dtype dtype, void *const *terms, int count, int64_t n);

/* EK_E_INVALID or EK_E_DTYPE, for the call `what`, if the operation is unknown or not defined for
 * the dtype. */
int ek_combine_check(const char *what, ek_dist_op op, ek_dtype dtype);

/* "SUM". */
const char *ek_combine_name(ek_dist_op op);

#endif
