/* collectives.h: operations between devices on lists of tensors, as one graph node each: broadcast
 * and reduce, all_gather and reduce_scatter. One of each pair is the other's backward. Index
 * d * count + i is tensor i on device d throughout. */
#ifndef EK_COMM_COLLECTIVES_H
#define EK_COMM_COLLECTIVES_H

#include "autograd/graph.h"

/* The devices of a list; EK_E_DEVICE for one that isn't there, EK_E_INVALID for an empty list.
 * `what` begins the sentence. */
int ek_comm_devices(const char *what, const ek_device_list *devices, ek_dev **devs);

/* The order of addition: the last of devs that is `first`, then the others ascending by kind and
 * index. Writes places in devs to order[0 .. count). */
void ek_comm_sum_order(ek_dev *const *devs, int count, const ek_dev *first, int *order);

/* True for the inputs of a node whose gradient somebody wants; freed with free(). NULL with an
 * error. */
bool *ek_comm_needed_inputs(const ek_node *node);

/* ---- broadcast and reduce ---- */

/* Writes tensors[i], on `source`, to out[d * count + i] on each device: an alias on the source.
 * tensors may hold NULLs (zeros, which give NULLs), and `wanted` not NULL says which outputs to
 * make. All of one dtype. */
int ek_comm_broadcast(ek_dev *source, ek_tensor *const *tensors, int count, ek_dev *const *devs,
                      int devices, const bool *wanted, ek_tensor **out);

/* Records outputs that hold the tensors' elements already as such a broadcast: replicas whose
 * memory persists. Does nothing if gradient mode is off. */
int ek_comm_record_broadcast(ek_dev *source, ek_tensor *const *tensors, int count,
                             ek_dev *const *devs, int devices, ek_tensor *const *out);

/* Writes to out[i] the sum of inputs[d * count + i] over d, on `destination`: the last that lies
 * there first, then the others in ascending order of device. NULLs count as zero; if all are NULL
 * so is the sum. `into` not NULL: memory for the sums, with NULLs if there is none. */
int ek_comm_reduce(ek_tensor *const *inputs, int devices, int count, ek_dev *const *devs,
                   ek_dev *destination, ek_tensor *const *into, ek_tensor **out);

/* ---- all_gather and reduce_scatter ----
 *
 * There are `count` tensors, each on `devices` devices: whole[d * count + i] is tensor i on device
 * d. Tensor i is also divided into pieces, flat tensors of its elements in the order of memory that
 * `like` describes: those of tensor 0 first. */

/* Which piece is which. */
typedef struct ek_piece {
    int tensor;         /* whose */
    int64_t begin, end; /* its elements in order of memory */
    ek_dev *dev;        /* where it lies */
} ek_piece;

typedef struct ek_division {
    ek_dev *const *devs;
    int devices;
    ek_tensor *const *like; /* shape, order of memory and dtype of each tensor; dense */
    int count;
    const ek_piece *pieces;
    int piece_count;
} ek_division;

/* Joins the pieces (NULLs count as zeros) on every device: writes whole[d * count + i], in the
 * scope. `wanted`, by the same index, says which; NULL: all. A tensor without any piece that isn't
 * NULL gives NULLs. */
int ek_comm_all_gather(const ek_division *division, ek_tensor *const *pieces, const bool *wanted,
                       ek_tensor **whole);

/* Records tensors that hold the pieces' elements already as such a gather: replicas whose memory
 * persists. Does nothing if gradient mode is off. */
int ek_comm_record_all_gather(const ek_division *division, ek_tensor *const *pieces,
                              ek_tensor *const *whole);

/* The sum over devices of each piece's elements, on the piece's device, in the order of devs:
 * writes pieces[p], in the scope. NULLs count as zeros; if all are NULL so is the piece. `into` not
 * NULL: memory for the sums, with NULLs if there is none. */
int ek_comm_reduce_scatter(const ek_division *division, ek_tensor *const *whole,
                           ek_tensor *const *into, ek_tensor **pieces);

#endif
