/* spatial.h: what the operations on signals (N, C, L), images (N, C, H, W) and volumes (N, C, D, H,
 * W) share. `dims` is 1, 2 or 3. */
#ifndef EK_OPS_SPATIAL_H
#define EK_OPS_SPATIAL_H

#include "core/tensor.h"

/* The order of x's memory, which results keep; channels-last if both would do. */
ek_memory_format ek_spatial_format(const ek_tensor *x);

/* x is floating and has `dims` dimensions behind (N, C). */
int ek_spatial_check(const char *name, const ek_tensor *x, int dims);

/* "length", "height", ...: direction i of `dims`. */
const char *ek_spatial_direction(int dims, int i);

/* An option for all directions or for each. result[i] is each[i] where given, else `all` where
 * given, else otherwise[i]; EK_ZERO is 0. EK_E_INVALID for entries of directions that x lacks, and
 * unless all results are at least `least`. */
int ek_spatial_option(const char *name, const char *option, int dims, const int each[3], int all,
                      const int64_t otherwise[3], int64_t least, int64_t result[3]);
extern const int64_t ek_spatial_zeros[3], ek_spatial_ones[3];

/* EK_E_INVALID unless all are at least `least`. */
int ek_spatial_least(const char *name, const char *option, int dims, const int64_t *values,
                     int64_t least);

/* One dimension is computed as two with a height of 1, so that kernels know two and three: puts
 * `first` before the only value. */
void ek_spatial_lift(int64_t values[3], int64_t first);

#endif
