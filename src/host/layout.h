/* layout.h: the two orders of memory that the host's kernels are fast on. Dimensions of size 1
 * don't matter. */
#ifndef EK_HOST_LAYOUT_H
#define EK_HOST_LAYOUT_H

#include "core/tensor.h"

/* Dense with dimension 1 fastest and the others in order. */
bool ek_is_channels_last(const ek_tensor *tensor);
bool ek_is_row_major(const ek_tensor *tensor);

/* Sets the strides of such tensors. */
void ek_channels_last_strides(int ndim, const int64_t *shape, int64_t *stride);
void ek_row_major_strides(int ndim, const int64_t *shape, int64_t *stride);

#endif
