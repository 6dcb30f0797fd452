/* bounds.h: values that are positions. */
#ifndef EK_HOST_BOUNDS_H
#define EK_HOST_BOUNDS_H

#include "core/tensor.h"

/* The first value of `index` (i64, any strides) outside of [0, size), and where it stands in
 * row-major order. False if there is none. */
bool ek_find_outside(const ek_tensor *index, int64_t size, int64_t *position, int64_t *value);

#endif
