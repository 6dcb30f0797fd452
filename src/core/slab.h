/* slab.h: one contiguous storage for many tensors of one dtype on one device.
 *
 * Every member has a separate shape, strides and version counter, and starts at a multiple of 64
 * bytes. Broadcasting a slab takes one copy, reducing it one pass, and an optimizer step one
 * kernel. */
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

/* Returns the distance in elements from the start of a member of `count` elements to the next
 * member. */
static inline int64_t ek_slab_pitch(ek_dtype dtype, int64_t count)
{
    int64_t unit = EK_SLAB_ALIGNMENT / (int64_t)ek_dtype_size(dtype);
    return (count + unit - 1) / unit * unit;
}

/* Returns where range `index` begins if `count` elements are cut into `ranges` ranges at multiples
 * of `unit`. With index = ranges, returns the end of the last range. No range is longer than the
 * first. */
static inline int64_t ek_slab_cut(int64_t count, int64_t unit, int ranges, int index)
{
    int64_t units = (count + unit - 1) / unit, rest = units % ranges;
    int64_t begin = (units / ranges * index + (index < rest ? index : rest)) * unit;
    return begin < count ? begin : count;
}

/* Makes a slab on dev with a member for each of `tensors`, which have one dtype. Each member has
 * the shape and order of memory of its tensor, without gaps. All bytes are zero, because padding
 * must be finite. The memory counts under the calling thread's category. If `reader` isn't NULL,
 * `dev` is cpu, and the memory is pinned if the reader's backend pins memory. Returns one
 * reference. */
ek_slab *ek_slab_new_for(ek_dev *dev, ek_dev *reader, ek_tensor *const *tensors, int count);
static inline ek_slab *ek_slab_new(ek_dev *dev, ek_tensor *const *tensors, int count)
{
    return ek_slab_new_for(dev, NULL, tensors, count);
}

/* Returns elements [begin, end) as a flat tensor in the scope; its version is separate from the
 * members'. */
ek_tensor *ek_slab_range(const ek_slab *slab, int64_t begin, int64_t end);

#endif
