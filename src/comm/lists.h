/* lists.h: broadcast and reduce over lists of tensors, as one graph node each. One is the other's
 * backward. Index d * count + i is tensor i on device d throughout. */
#ifndef EK_COMM_LISTS_H
#define EK_COMM_LISTS_H

#include "autograd/graph.h"

/* The devices of a list; EK_E_DEVICE for one that isn't there, EK_E_INVALID for an empty list.
 * `what` begins the sentence. */
int ek_comm_devices(const char *what, const ek_device_list *devices, ek_dev **devs);

/* inputs[d * count + i] are given, and tensor i is of one shape and dtype on all devices, each list
 * on one device: devs[d] (with count > 0). EK_E_INVALID, EK_E_DTYPE, EK_E_SHAPE or EK_E_DEVICE with
 * the first that isn't so. */
int ek_comm_check_lists(const char *what, ek_tensor *const *inputs, int devices, int count,
                        ek_dev **devs);

/* Writes tensors[i], on `source`, to out[d * count + i] on each device: an alias where the device
 * is the source. tensors may hold NULLs (zeros, which give NULLs), and `wanted` not NULL says which
 * outputs to make. */
int ek_comm_broadcast(ek_dev *source, ek_tensor *const *tensors, int count, ek_dev *const *devs,
                      int devices, const bool *wanted, ek_tensor **out);

/* Records outputs that hold the tensors' elements already as such a broadcast: replicas whose
 * memory persists. Does nothing where gradient mode is off. */
int ek_comm_record_broadcast(ek_dev *source, ek_tensor *const *tensors, int count,
                             ek_dev *const *devs, int devices, ek_tensor *const *out);

/* Writes to out[i] the sum of inputs[d * count + i] over d, on `destination`: the last that lies
 * there first, then the others in ascending order of device. NULLs count as zero; where all are
 * NULL so is the sum. `into` not NULL: memory for the sums, with NULLs where there is none. */
int ek_comm_reduce(ek_tensor *const *inputs, int devices, int count, ek_dev *const *devs,
                   ek_dev *destination, ek_tensor *const *into, ek_tensor **out);

#endif
