/* spatial.h: functions for operations on signals (N, C, L), images (N, C, H, W) and volumes (N, C,
 * D, H, W). `dims` is 1, 2 or 3. */
#ifndef EK_OPS_SPATIAL_H
#define EK_OPS_SPATIAL_H

#include "core/tensor.h"

/* Returns the memory order of x, which results keep; channels-last if x has both orders. */
ek_memory_format ek_spatial_format(const ek_tensor *x);

/* Checks that x is floating and has `dims` dimensions after (N, C). */
int ek_spatial_check(const char *name, const ek_tensor *x, int dims);

/* Returns x with a batch dimension. If x is a single sample (C, ...), with `dims` dimensions after
 * C, *single becomes true and a dimension of size 1 is added, which results lose again. NULL for
 * NULL. */
ek_tensor *ek_spatial_batched(ek_tensor *x, int dims, bool *single);

/* Returns the name of direction i of `dims`: "length", "height", ... */
const char *ek_spatial_direction(int dims, int i);

/* Reads an option that is given for all directions or for each. result[i] is each[i], or `all` if
 * each[i] is 0. EK_E_INVALID if a direction that x lacks has an entry, or if a result is less than
 * `least`. */
int ek_spatial_option(const char *name, const char *option, int dims, const int each[3], int all,
                      int64_t least, int64_t result[3]);
/* Reads a stride as ek_spatial_option does. If `all` is EK_UNSET, it is the kernel's size. */
int ek_spatial_stride(const char *name, int dims, const int each[3], int all,
                      const int64_t kernel[3], int64_t result[3]);

/* Checks that all values are at least `least`: EK_E_INVALID otherwise. */
int ek_spatial_least(const char *name, const char *option, int dims, const int64_t *values,
                     int64_t least);

/* Puts `first` before the only value. One dimension is computed as two with a height of 1, so that
 * kernels need to support only two and three. */
void ek_spatial_lift(int64_t values[3], int64_t first);

/* Calls one of ek_f_conv1d to ek_f_conv_transpose3d, chosen by `dims` and `transposed`. A
 * convolution that isn't transposed has no output_padding. */
ek_tensor *ek_convolve(int dims, bool transposed, ek_conv_transpose_options options);

#endif
