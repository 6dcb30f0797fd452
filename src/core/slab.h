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

/* Elements [begin, end). */
typedef struct ek_interval {
    int64_t begin, end;
} ek_interval;

static inline ek_interval ek_interval_meet(ek_interval a, ek_interval b)
{
    ek_interval both = {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
    return both.begin < both.end ? both : (ek_interval){a.begin, a.begin};
}

/* Returns where range `index` begins if `count` elements are cut into `ranges` ranges at multiples
 * of `unit`. With index = ranges, returns the end of the last range. No range is longer than the
 * first. Range i of n ranges has the elements of ranges 2 i and 2 i + 1 of 2 n ranges. */
static inline int64_t ek_slab_cut(int64_t count, int64_t unit, int ranges, int index)
{
    int64_t units = (count + unit - 1) / unit;
    int64_t begin = (units * index + ranges - 1) / ranges * unit;
    return begin < count ? begin : count;
}

/* Note [Owners of slices]
 *
 * Ranks that share elements own one range each, which is the rank's slice. The slices lie in an
 * order in which sums can halve them with near ranks first (group/sum_schedule.h). Ranks are the
 * fixed binary tree of a sum, in which a node of m ranks is the largest power of two below m
 * followed by the rest. The order of a node merges the orders of its two sides by the centres of
 * their slices, the left side first. So if m is a power of two, the order of slices is that of the
 * bit-reversed ranks, and the slice of a rank halves from each node to the next larger one. Rank 0
 * owns the first range. */

/* Returns the range that a rank owns, counted from 0 in the order of elements. */
int ek_slab_place(int ranks, int rank);

/* Returns the elements that a rank owns. No slice is longer than that of rank 0. */
static inline ek_interval ek_slab_slice(int64_t count, int64_t unit, int ranks, int rank)
{
    int place = ek_slab_place(ranks, rank);
    return (ek_interval){ek_slab_cut(count, unit, ranks, place),
                         ek_slab_cut(count, unit, ranks, place + 1)};
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
