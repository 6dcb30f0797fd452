/* collectives.h: lists of tensors that lie on several devices, as graph nodes.
 *
 * There are two operations, of which each is the other's backward. `count` tensors lie whole on
 * each of `devices` devices: whole[d * count + i] is tensor i on device d. Slices hold every
 * element once; a slice is a whole tensor or a range of a tensor's elements:
 *
 *     slices                                  to all devices   sums of all devices
 *     one for each tensor, whole, on a root   broadcast        reduce_add
 *     ranges of tensors on several devices    all_gather       reduce_scatter
 *
 * Note [Order of terms]. Term 0 of a sum is the root's. Then come the other devices' terms, ordered
 * by kind and index of the device. They are added by Note [Order of a sum] (core/sum_order.h). */
#ifndef EK_COMM_COLLECTIVES_H
#define EK_COMM_COLLECTIVES_H

#include "autograd/graph.h"

/* Looks up the devices of a list. Fails with EK_E_DEVICE if a device doesn't exist, and with
 * EK_E_INVALID if the list is empty. `what` begins the error's sentence. */
int ek_comm_devices(const char *what, const ek_device_list *devices, ek_dev **devs);

/* Writes the order of addition (Note [Order of terms]) to order[0 .. count), as indices into devs.
 * The root is the first entry of devs that equals `first`. */
void ek_comm_sum_order(ek_dev *const *devs, int count, const ek_dev *first, int *order);

/* ---- placements ---- */

/* A flat tensor with a range of a tensor's elements, in their order of memory. */
typedef struct ek_comm_slice {
    int tensor;         /* index of the tensor */
    int64_t begin, end; /* range of the tensor's elements */
    ek_dev *dev;        /* device of the slice */
    ek_dev *adder;      /* device that adds the slice's terms; NULL: `dev` */
} ek_comm_slice;

typedef struct ek_placement {
    ek_dev *const *devs;
    int devices;
    /* Dense tensors with the shape, order of memory and dtype of each tensor. Not read if `slices`
     * is NULL. */
    ek_tensor *const *like;
    int count;
    /* The slices, tensor by tensor. NULL: the slices are whole, and slice i is tensor i on the
     * root. */
    const ek_comm_slice *slices;
    int slice_count;
    ek_dev *root; /* the device whose terms are added first */
} ek_placement;

/* Returns the placement of `count` tensors that lie whole on `root`. */
ek_placement ek_placement_whole(ek_dev *root, ek_dev *const *devs, int devices, int count);

/* Joins the slices, all of one dtype, on every device: writes whole[d * count + i], in the scope. A
 * NULL slice counts as zeros; a tensor whose slices are all NULL becomes NULL. `wanted`, indexed
 * like `whole`, tells which tensors to make; NULL: all. If the slices are whole, the root gets
 * aliases of the slices. */
int ek_comm_all_gather(const ek_placement *placement, ek_tensor *const *slices, const bool *wanted,
                       ek_tensor **whole);

/* Records an all_gather whose results exist in `whole` already, for replicas whose memory persists.
 * Its backward runs on the thread of the device that adds the first slice's terms.
 * Does nothing if gradient mode is off or no slice requires a gradient. */
int ek_comm_record_all_gather(const ek_placement *placement, ek_tensor *const *slices,
                              ek_tensor *const *whole);

/* Sums each slice's elements over all devices, on the slice's device: writes slices[p], in the
 * scope. A NULL term is absent; a slice whose terms are all NULL becomes NULL. `wanted` tells
 * which slices to make; NULL: all. into[p] is memory for slice p's sum; `into` and each into[p] may
 * be NULL. */
int ek_comm_reduce_scatter(const ek_placement *placement, ek_tensor *const *whole,
                           const bool *wanted, ek_tensor *const *into, ek_tensor **slices);

/* ---- callers' lists, and the buckets in which their tensors are sent ---- */

/* Checks that no inputs[d * count + i] is NULL, that tensor i has one shape and dtype on all
 * devices, and that each list lies on one device. Writes the devices to devs if count > 0. If a
 * check fails, returns EK_E_INVALID, EK_E_DTYPE, EK_E_SHAPE or EK_E_DEVICE with a sentence that
 * names the first wrong tensor. */
int ek_comm_check_lists(const char *what, ek_tensor *const *inputs, int devices, int count,
                        ek_dev **devs);

/* When the open bucket of a dtype is closed, as in PyTorch. */
typedef enum ek_bucket_rule {
    /* A bucket is closed once it holds `limit` bytes. Buckets that are open at the end follow,
     * ordered by dtype. */
    EK_BUCKETS_OF_BROADCAST,
    /* A bucket is closed before it exceeds `limit`. Buckets that are open at the end follow in the
     * order in which their dtypes first occurred. */
    EK_BUCKETS_OF_REDUCE
} ek_bucket_rule;

/* Puts the tensors' positions into buckets of one dtype each: bucket b is order[ends[b - 1] ..
 * ends[b]). Both arrays have room for `count`. Returns how many buckets there are. */
int ek_buckets(ek_bucket_rule rule, ek_tensor *const *tensors, int count, size_t limit, int *order,
               int *ends);

#endif
