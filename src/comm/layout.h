/* layout.h: memory for copies of tensors, and parts of tensors. What is made belongs to the scope.
 */
#ifndef EK_COMM_LAYOUT_H
#define EK_COMM_LAYOUT_H

#include <stddef.h>

#include "core/tensor.h"

enum { EK_COMM_ALIGNMENT = 64 }; /* members of a slab start at multiples, in bytes */

/* A new dense tensor on dev with the shape, dtype and order of memory of `like`; row-major if
 * strides are zero. `shape` NULL: like's own. */
ek_tensor *ek_comm_like(const ek_tensor *like, const ek_shape *shape, ek_dev *dev);

/* Room on dev for each of the tensors (of one dtype, no NULLs), in one slab if they are several:
 * out[i]. */
int ek_comm_room(ek_dev *dev, ek_tensor *const *tensors, int count, ek_tensor **out);

/* The part [start, start + length) of `tensor` along dim: the same memory and version. */
ek_tensor *ek_comm_part(const ek_tensor *tensor, int dim, int64_t start, int64_t length);

/* Elements [begin, end) of a dense tensor in order of memory, flat, with a version of its own. */
ek_tensor *ek_comm_flat(const ek_tensor *dense, int64_t begin, int64_t end);

/* The dimension of several elements that is slowest in memory: parts along it are dense if the
 * tensor is. -1: there is none. */
int ek_comm_slowest(const ek_tensor *tensor);

/* True if both are dense, of one shape and of one order in memory. */
bool ek_comm_alike(const ek_tensor *a, const ek_tensor *b);

/* Bytes from a tensor to the next in the same storage, with nothing but a slab's padding between;
 * -1 if they are no neighbours. */
ptrdiff_t ek_comm_step(const ek_tensor *tensor, const ek_tensor *next);

static inline size_t ek_comm_nbytes(const ek_tensor *tensor)
{
    return (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
}

#endif
