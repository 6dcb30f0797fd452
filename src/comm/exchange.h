/* exchange.h: copies and sums between devices, below the graph: they count no versions and record
 * no history.
 *
 * A copy is a list of moves, and a sum is a list of additions. exchange.c decides how elements
 * travel: by the backend's broadcast or exchange (NCCL) if the devices have these, else by copies
 * between two devices at a time. If there are enough bytes to copy, the receivers' workers make the
 * copies. */
#ifndef EK_COMM_EXCHANGE_H
#define EK_COMM_EXCHANGE_H

#include <stddef.h>

#include "core/tensor.h"
#include "evenkeel/comm.h"

enum { EK_COMM_WORKER_BYTES = 1 << 18 }; /* waking workers saves time from this many bytes on */

/* Two tensors of one shape and dtype, on any devices. */
typedef struct ek_move {
    ek_tensor *to, *from;
} ek_move;

/* Copies each move's elements. The caller lists moves between two devices one after another, in the
 * order of memory. Moves become one copy if both their sources and their targets are neighbours in
 * memory. Bytes between neighbouring targets are padding and may be overwritten. If only the
 * targets are neighbours, and the devices use collectives or the receiver doesn't reach the
 * sender's memory, the moves are packed first, at most EK_COMM_BUFFER_BYTES at a time
 * (EK_MEMORY_COMMUNICATION). Equal lists for several receivers, one list after another, are a
 * broadcast.
 *
 * Needs host memory only to pack. `what` names the span. After an error any of the moves may have
 * been done. */
int ek_exchange(const char *what, const ek_move *moves, int count);

/* Does what ek_exchange does, but if the moves are a broadcast by collectives, their devices don't
 * wait for all blocks: work that uses a tensor of the moves waits for the tensor's block (Note
 * [Broadcast ahead] in parallel/replica_copies.h). `arrivals` are zeros, with room for 2 * count.
 * Later the caller joins the devices' lanes, removes the arrivals of the tensors' versions, and
 * frees the arrivals' events. */
int ek_exchange_ahead(const char *what, const ek_move *moves, int count, ek_arrival *arrivals);

/* Does one move on the calling thread, without a span. Elements that can't be written in place are
 * copied through blocks of at most EK_COMM_BUFFER_BYTES. */
int ek_comm_copy(ek_tensor *to, const ek_tensor *from);

/* The sum `out` of terms of one shape and dtype; `out` is dense. A NULL term is absent; at least
 * one is present. The term of a sum of count 1 is copied. Terms lie on any devices, and `out` may
 * be terms[0]. */
typedef struct ek_addition {
    ek_tensor *out;
    ek_tensor *const *terms;
    int count;
    ek_dev *dev; /* the device that adds; NULL: that of `out` */
} ek_addition;

/* Computes the sums, each on its device, and copies them to their `out`. Terms are added by
 * Note [Order of a sum] (core/sum_order.h), so that numbers don't depend on buffers, collectives or
 * threads (EVENKEEL_COMM=nccl-sum permits another order). Terms that the device can't read in
 * place, and terms with another layout, are copied in batches. No device needs more than
 * EK_COMM_BUFFER_BYTES for a batch (EK_MEMORY_COMMUNICATION). With collectives, if every device has
 * a term of every sum, each device adds a slice of the sums (slices.h). `what` names the spans.
 * After an error any sum may have been written, whole or in part. */
int ek_add_all(const char *what, const ek_addition *sums, int count);

/* Makes the part [begin, begin + length) of a sum along dim, as handles in the scope. If dim < 0,
 * the range counts elements, and the sum's tensors must have one layout. `terms` has room for the
 * part's terms. */
int ek_addition_part(const ek_addition *sum, int dim, int64_t begin, int64_t length,
                     ek_tensor **terms, ek_addition *part);

/* ---- memory for copies of tensors, and parts of tensors; results are in the scope ---- */

enum { EK_COMM_ALIGNMENT = 64 }; /* bytes; a slab's members start at multiples of this */

/* Makes a dense tensor on dev with the shape, dtype and order of memory of `like`; if elements of
 * `like` repeat, the tensor is row-major. */
ek_tensor *ek_comm_like(const ek_tensor *like, ek_dev *dev);

/* Writes to out[i] a new tensor on dev of the shape of tensors[i]; all have one dtype. Several
 * tensors share one slab. */
int ek_comm_room(ek_dev *dev, ek_tensor *const *tensors, int count, ek_tensor **out);

/* Returns the part [start, start + length) of `tensor` along dim, which shares the tensor's memory
 * and version. */
ek_tensor *ek_comm_part(const ek_tensor *tensor, int dim, int64_t start, int64_t length);

/* Returns elements [begin, end) of a dense tensor in order of memory, as a flat tensor with a
 * separate version. */
ek_tensor *ek_comm_flat(const ek_tensor *dense, int64_t begin, int64_t end);

/* Returns the slowest dimension in memory, among those of size 2 or more; -1 if there is none.
 * Parts of a dense tensor along this dimension are dense. */
int ek_comm_slowest(const ek_tensor *tensor);

/* Returns true if both tensors are dense, of one shape and of one order in memory. */
bool ek_comm_alike(const ek_tensor *a, const ek_tensor *b);

/* Returns the number of bytes from the start of `tensor` to the start of `next` if both are in one
 * storage with at most a slab's padding between them, else -1. */
ptrdiff_t ek_comm_step(const ek_tensor *tensor, const ek_tensor *next);

static inline size_t ek_comm_nbytes(const ek_tensor *tensor)
{
    return (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
}

#endif
