/* shards.h: all_gather and reduce_scatter of divided tensors, each the other's backward, as one
 * graph node each.
 *
 * There are `count` tensors, each on `devices` devices: whole[d * count + i] is tensor i on device
 * d. Tensor i is also divided into pieces, flat tensors of its elements in the order of memory that
 * `like` describes: those of tensor 0 first. */
#ifndef EK_COMM_SHARDS_H
#define EK_COMM_SHARDS_H

#include "autograd/graph.h"
#include "autograd/shards.h"

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
 * persists. Does nothing where gradient mode is off. */
int ek_comm_record_all_gather(const ek_division *division, ek_tensor *const *pieces,
                              ek_tensor *const *whole);

/* The sum over devices of each piece's elements, on the piece's device, in the order of devs:
 * writes pieces[p], in the scope. NULLs count as zeros; where all are NULL so is the piece. `into`
 * not NULL: memory for the sums, with NULLs where there is none. Goes through buffers of
 * EK_COMM_BUFFER_BYTES at the most. */
int ek_comm_reduce_scatter(const ek_division *division, ek_tensor *const *whole,
                           ek_tensor *const *into, ek_tensor **pieces);

#endif
