/* slab.h: one contiguous storage for many tensors of one dtype on one device.
 *
 * Members keep their own shape, strides and version counter, and start at multiples of 64 bytes. So
 * a broadcast is few large copies, a reduction is one pass, and an optimizer step one kernel. */
#ifndef EK_CORE_SLAB_H
#define EK_CORE_SLAB_H

#include "core/tensor.h"

enum { EK_SLAB_ALIGNMENT = 64 }; /* members' alignment in bytes */

typedef struct ek_slab {
    ek_object object;
    ek_storage *storage;
    ek_dtype dtype;
    int count;
    int64_t elements;    /* elements of the whole slab, padding included */
    ek_tensor **members; /* one reference each */
} ek_slab;

/* The distance, in elements, from the start of a member of `count` elements to the next member. */
static inline int64_t ek_slab_pitch(ek_dtype dtype, int64_t count)
{
    int64_t unit = EK_SLAB_ALIGNMENT / (int64_t)ek_dtype_size(dtype);
    return (count + unit - 1) / unit * unit;
}

/* Where range `index` begins, if `count` elements are cut into `ranges` at multiples of `unit`;
 * with `ranges` itself, the end. No range is longer than the first. */
static inline int64_t ek_slab_cut(int64_t count, int64_t unit, int ranges, int index)
{
    int64_t units = (count + unit - 1) / unit, rest = units % ranges;
    int64_t begin = (units / ranges * index + (index < rest ? index : rest)) * unit;
    return begin < count ? begin : count;
}

/* A slab on dev with a member for each of `tensors`, which are of one dtype. A member has its
 * tensor's shape and order of memory, without gaps. All bytes are zero, because padding must be
 * finite, and count under the calling thread's category. One reference. */
ek_slab *ek_slab_new(ek_dev *dev, ek_tensor *const *tensors, int count);

/* Elements [begin, end) as a flat handle, in the scope, with a version that no member shares. */
ek_tensor *ek_slab_range(const ek_slab *slab, int64_t begin, int64_t end);

#endif
