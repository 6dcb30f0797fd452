/* collectives.h: lists of tensors that lie on several devices, as graph nodes.
 *
 * There is one pair of operations, and each is the other's backward. `count` tensors lie whole on
 * each of `devices` devices: whole[d * count + i] is tensor i on device d. Their elements also lie
 * once, as pieces:
 *
 *     pieces                                  to all devices   sums of all devices
 *     one for each tensor, whole, on a root   broadcast        reduce_add
 *     ranges of tensors on several devices    all_gather       reduce_scatter
 *
 * Sums add the root's term first, then the others ascending by kind and index of the device. */
#ifndef EK_COMM_COLLECTIVES_H
#define EK_COMM_COLLECTIVES_H

#include "autograd/graph.h"

/* The devices of a list; EK_E_DEVICE for one that isn't there, EK_E_INVALID for an empty list.
 * `what` begins the sentence. */
int ek_comm_devices(const char *what, const ek_device_list *devices, ek_dev **devs);

/* The order of addition: the last of devs that is `first`, then the others. Writes indices of devs
 * to order[0 .. count). */
void ek_comm_sum_order(ek_dev *const *devs, int count, const ek_dev *first, int *order);

/* ---- divisions ---- */

/* A flat tensor of elements in the order of memory. */
typedef struct ek_piece {
    int tensor;         /* whose */
    int64_t begin, end; /* its elements in order of memory */
    ek_dev *dev;        /* where it lies */
} ek_piece;

typedef struct ek_division {
    ek_dev *const *devs;
    int devices;
    ek_tensor *const *like; /* shape, order of memory and dtype of each tensor; dense. Not read if
                               pieces are whole */
    int count;
    const ek_piece *pieces; /* those of tensor 0 first; NULL: piece i is tensor i, on the root */
    int piece_count;
    ek_dev *root; /* whose terms are added first */
} ek_division;

/* The division of `count` tensors that lie whole on `root`. */
ek_division ek_division_whole(ek_dev *root, ek_dev *const *devs, int devices, int count);

/* Joins the pieces, all of one dtype, on every device: writes whole[d * count + i], in the scope.
 * NULLs among the pieces count as zeros; a tensor without any piece that isn't NULL gives NULLs.
 * `wanted`, by the index of whole, says which to make; NULL: all. A device that has a tensor whole
 * as its piece gets an alias. */
int ek_comm_all_gather(const ek_division *division, ek_tensor *const *pieces, const bool *wanted,
                       ek_tensor **whole);

/* Records tensors that hold the pieces' elements already as such a gather: replicas whose memory
 * persists. Does nothing if gradient mode is off. */
int ek_comm_record_all_gather(const ek_division *division, ek_tensor *const *pieces,
                              ek_tensor *const *whole);

/* The sum over devices of each piece's elements, where the piece lies: writes pieces[p], in the
 * scope. NULLs count as zeros; if all are NULL so is the piece. `wanted` not NULL says which pieces
 * to make, `into` not NULL is memory for them, with NULLs if there is none. */
int ek_comm_reduce_scatter(const ek_division *division, ek_tensor *const *whole, const bool *wanted,
                           ek_tensor *const *into, ek_tensor **pieces);

/* ---- lists from callers, and which of their tensors travel together ---- */

/* inputs[d * count + i] are given, and tensor i is of one shape and dtype on all devices, each list
 * on one device: devs[d] (with count > 0). EK_E_INVALID, EK_E_DTYPE, EK_E_SHAPE or EK_E_DEVICE with
 * the first that isn't so. */
int ek_comm_check_lists(const char *what, ek_tensor *const *inputs, int devices, int count,
                        ek_dev **devs);

/* As PyTorch closes buckets, dtype by dtype. */
typedef enum ek_bucket_rule {
    EK_BUCKETS_OF_BROADCAST, /* once one holds `limit` bytes; the rest in the order of dtypes */
    EK_BUCKETS_OF_REDUCE     /* before one exceeds `limit`; the rest as the dtypes were seen */
} ek_bucket_rule;

/* Puts the tensors' positions into buckets of one dtype each: bucket b is order[ends[b - 1] ..
 * ends[b]). Both arrays have room for `count`. Returns how many buckets there are. */
int ek_buckets(ek_bucket_rule rule, ek_tensor *const *tensors, int count, size_t limit, int *order,
               int *ends);

#endif
