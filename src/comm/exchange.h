/* exchange.h: what happens between devices, below the graph: no versions, no history.
 *
 * All that travels is a list of moves, and all that is added is a list of additions. How they
 * travel is decided here: by the backend's broadcast or exchange (NCCL) if the devices have one,
 * else by copies between two devices at a time, on the receivers' workers if there is enough to
 * copy. */
#ifndef EK_COMM_EXCHANGE_H
#define EK_COMM_EXCHANGE_H

#include <stddef.h>

#include "core/tensor.h"
#include "evenkeel/comm.h"

/* Two tensors of one shape and dtype, on any devices. */
typedef struct ek_move {
    ek_tensor *to, *from;
} ek_move;

/* Copies each move's elements. The caller puts moves between the same two devices one after
 * another, in the order of memory: neighbours that are neighbours on both sides are one copy, and
 * what lies between neighbours of `to` is padding and may be overwritten. Neighbours of `to` alone
 * are packed first (EK_MEMORY_COMMUNICATION, EK_COMM_BUFFER_BYTES at a time at the most) if the
 * devices don't reach each other's memory. Lists that are the same for several receivers, one list
 * after another, are a broadcast.
 *
 * Takes no memory of the process as long as nothing has to be packed. `what` names the span. After
 * an error any of the moves may have been done. */
int ek_exchange(const char *what, const ek_move *moves, int count);

/* One move on the calling thread, without a span. What can't be written in place goes through
 * blocks of EK_COMM_BUFFER_BYTES at the most. */
int ek_comm_copy(ek_tensor *to, const ek_tensor *from);

/* out = terms[0] + terms[1] + ..., all of one shape and dtype, `out` dense. One term: a copy. The
 * terms lie on any devices, at least one is given, and `out` may be the first of them. */
typedef struct ek_addition {
    ek_tensor *out;
    ek_tensor *const *terms;
    int count;
} ek_addition;

/* Makes the sums, each on its device. Every element is the sum of its terms in their order,
 * whatever travels how: numbers don't depend on buffers, collectives or threads. (The one exception
 * is asked for: EVENKEEL_COMM=nccl-sum.) Terms that the device can't read where they are, or that
 * are laid out otherwise, come in batches for which no device needs more than EK_COMM_BUFFER_BYTES
 * (EK_MEMORY_COMMUNICATION). Sums for one device are added in slices by all that have terms, if the
 * backend has collectives for them. `what` names the spans. After an error any of the sums may have
 * been made, whole or in part. */
int ek_add_all(const char *what, const ek_addition *sums, int count);

/* The part [begin, begin + length) of a sum along dim, which is handles in the scope; or, dim < 0,
 * of its elements, if its tensors are alike. `terms` is room for the part's. */
int ek_addition_part(const ek_addition *sum, int dim, int64_t begin, int64_t length,
                     ek_tensor **terms, ek_addition *part);

/* ---- memory for copies of tensors, and parts of tensors; what is made belongs to the scope ----
 */

enum { EK_COMM_ALIGNMENT = 64 }; /* members of a slab start at multiples, in bytes */

/* A new dense tensor on dev with the shape, dtype and order of memory of `like`; row-major if
 * elements repeat. */
ek_tensor *ek_comm_like(const ek_tensor *like, ek_dev *dev);

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

/* ---- devices that take part ---- */

enum { EK_COMM_MOST_DEVICES = 2 * EK_MAX_DEVICES + 1 }; /* those of both kinds, and cpu */

/* A set, in the order in which the devices were added. Starts as {0}. */
typedef struct ek_dev_set {
    int count;
    ek_dev *devs[EK_COMM_MOST_DEVICES];
} ek_dev_set;

/* The device's index in the set, where it is from now on. */
int ek_dev_set_add(ek_dev_set *set, ek_dev *dev);

#endif
