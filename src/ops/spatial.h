/* spatial.h: what the operations on images (N, C, H, W) share. */
#ifndef EK_OPS_SPATIAL_H
#define EK_OPS_SPATIAL_H

#include "core/tensor.h"

/* The order of x's memory, which results keep; channels-last where both would do. */
ek_memory_format ek_spatial_format(const ek_tensor *x);

/* x is floating and has four dimensions. */
int ek_spatial_check(const char *name, const ek_tensor *x);

/* Height's and width's option: pair[i] where given, else `both` where given, else `otherwise`;
 * EK_ZERO is 0. */
void ek_spatial_pair(int64_t result[2], const int pair[2], int both, int otherwise);

/* EK_E_INVALID unless both are at least `least`. */
int ek_spatial_least(const char *name, const char *option, const int64_t values[2], int64_t least);

#endif
