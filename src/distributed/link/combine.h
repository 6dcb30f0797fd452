/* combine.h: sums, products, extrema and bitwise operations over the ranks' terms, in the order of
 * Note [Order of a sum] (core/sum_order.h). */
#ifndef EK_LINK_COMBINE_H
#define EK_LINK_COMBINE_H

#include <stdint.h>

#include "evenkeel/dist.h"

/* Combines `count` terms of n elements and writes the result to each of outs[0 .. out_count), which
 * may be terms. A NULL term is absent; at least one is present. Integers wrap. bf16 and f16 are
 * combined in f32 and rounded once. Sums of bool are "or", and products are "and". EK_DIST_AVG
 * divides the sum by `count`. The caller has checked that the operation suits the dtype
 * (ek_combine_check). */
void ek_combine(ek_dist_op op, ek_dtype dtype, const void *const *terms, int count,
                void *const *outs, int out_count, int64_t n);

/* Returns EK_E_INVALID or EK_E_DTYPE, for the call `what`, if the operation is unknown or not
 * defined for the dtype. */
int ek_combine_check(const char *what, ek_dist_op op, ek_dtype dtype);

/* Returns the operation's name, such as "SUM". */
const char *ek_combine_name(ek_dist_op op);

#endif
