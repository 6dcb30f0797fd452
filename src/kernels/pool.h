/* pool.h: the windows of adaptive pooling, in the common subset of C11 and C++17 that gcc, clang
 * and nvcc compile. */
#ifndef EK_KERNELS_POOL_H
#define EK_KERNELS_POOL_H

#include <stdint.h>

#include "core/bits.h"

/* Returns where window i of `count` begins in a dimension of `size`: at floor(i size / count). */
EK_FORMULA int64_t ek_adaptive_first(int64_t i, int64_t size, int64_t count)
{
    return i * size / count;
}

/* Returns the length of window i, which ends before ceil((i + 1) size / count). */
EK_FORMULA int64_t ek_adaptive_length(int64_t i, int64_t size, int64_t count)
{
    return ((i + 1) * size + count - 1) / count - ek_adaptive_first(i, size, count);
}

#endif
