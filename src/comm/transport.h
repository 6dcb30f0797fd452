/* transport.h: moving elements between devices, below the graph.
 *
 * Where a device's kernels reach the other's memory, elements go straight to where they belong.
 * Elsewhere lists of tensors are packed into one staging slab (EK_MEMORY_COMMUNICATION), so that a
 * list is one copy between two devices. */
#ifndef EK_COMM_TRANSPORT_H
#define EK_COMM_TRANSPORT_H

#include "core/slab.h"
#include "core/tensor.h"
#include "evenkeel/comm.h"

/* A new dense tensor on dev with the shape, dtype and order of memory of `like`; row-major where
 * strides are zero. `shape` NULL: like's own. In the scope. */
ek_tensor *ek_comm_like(const ek_tensor *like, const ek_shape *shape, ek_dev *dev);

/* The part [start, start + length) of `tensor` along dim, in the scope: the same memory and
 * version. */
ek_tensor *ek_comm_part(const ek_tensor *tensor, int dim, int64_t start, int64_t length);

/* The dimension of several elements that is slowest in memory: parts along it are dense where the
 * tensor is. -1: there is none. */
int ek_comm_slowest(const ek_tensor *tensor);

/* Makes room on dev for the tensors (no NULLs), in one slab where they are several: out[i], in the
 * scope. */
int ek_comm_room(ek_dev *dev, ek_tensor *const *tensors, int count, ek_tensor **out);

/* Copies elements between tensors of one shape and dtype on any devices. No version, no history.
 * What can't be written in place goes through blocks of EK_COMM_BUFFER_BYTES at the most. */
int ek_comm_copy(ek_tensor *to, const ek_tensor *from);

/* Copies from[i] to to[i], both lists on one device each, in few large copies where neighbours in
 * one list are neighbours in the other. What lies between neighbours of `to` is padding and may be
 * overwritten. */
int ek_comm_copy_list(ek_tensor *const *to, ek_tensor *const *from, int count);

/* How many of the tensors, from the first, one copy moves: those are a run, from[i] and to[i] dense
 * and of one layout, neighbours in both lists, with nothing but padding between. */
int ek_comm_run_length(ek_tensor *const *to, ek_tensor *const *from, int count);
/* From the first byte of a run to its last. */
size_t ek_comm_run_nbytes(ek_tensor *const *run, int count);

/* Copies of from[i] on the same device in one slab, laid out as `to` is. One reference. */
ek_slab *ek_comm_pack(ek_tensor *const *from, ek_tensor *const *to, int count);

/* The same, but packed first where that saves copies between the devices. */
int ek_comm_send(ek_tensor *const *to, ek_tensor *const *from, int count);

static inline size_t ek_comm_nbytes(const ek_tensor *tensor)
{
    return (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
}

#endif
