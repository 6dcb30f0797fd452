/* combined.h: combinations of terms by plain recursion, which ranks' and devices' results must
 * equal to the bit. */
#ifndef EK_TESTS_COMBINED_H
#define EK_TESTS_COMBINED_H

#include "evenkeel/evenkeel.h"

/* Returns element i of a term, a number that any rank can compute for every term. The number is not
 * rounded to the dtype. */
double combined_number(ek_dtype dtype, int term, int64_t i);

/* Writes a number to data[i]. */
void combined_write(ek_dtype dtype, void *data, int64_t i, double x);

/* Writes element i of the combination of `terms` terms, with the roundings of the dtype, to `out`.
 * absent[t]: term t is absent. NULL: no term is. */
void combined(ek_dist_op op, ek_dtype dtype, int terms, const bool *absent, int64_t i, void *out);

/* Returns the sum of `count` terms. */
float combined_f32(const float *terms, int count);

#endif
