/** @file
 * comm.h: differentiable communication between the devices of this process.
 *
 * Semantics are those of torch.nn.parallel.comm, on any list of devices, cpu included. Each call is
 * one graph node for all devices; a coalesced call is one node per buffer. Gradients of gradients
 * work. Sums add the root's term first, then the other devices' terms by kind and index, so that
 * results are the same to the bit in every run. On the source's own device the output is a view. */
#ifndef EVENKEEL_COMM_H
#define EVENKEEL_COMM_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/device.h"
#include "evenkeel/tensor.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

/** The buffer size of coalesced calls if 0 is given: 10 MiB. */
enum { EK_COMM_BUFFER_BYTES = 10485760 };

/** Copies `tensor` to each device; writes devices->count handles to `out`. On the tensor's own
 * device the output is an alias. Backward: reduce_add onto that device. */
EK_API int ek_broadcast(ek_tensor *tensor, const ek_device_list *devices, ek_tensor **out);

/** Broadcasts many tensors, sent in buffers: out[d * count + i] is tensor i on device d. All
 * tensors must lie on devices[0] (EK_E_DEVICE names the first that does not). A buffer holds one
 * dtype and is sent when it has buffer_nbytes or more. */
EK_API int ek_broadcast_coalesced(ek_tensor *const *tensors, int count,
                                  const ek_device_list *devices, size_t buffer_nbytes,
                                  ek_tensor **out);

/** The sum, on `destination`, of tensors of one shape and dtype. One of them, the root, must lie on
 * `destination`; if several do, the first of them is the root. The root's term comes first, then
 * those of the other devices by kind and index; they are added in the order of dist.h. A single
 * input is returned itself. Backward: broadcast. */
EK_API ek_tensor *ek_reduce_add(ek_tensor *const *tensors, int count, ek_device destination);

/** Sums lists of tensors: inputs[d * count + i] is tensor i of device d. Writes `count` sums to
 * `out`. A buffer is sent before it would exceed buffer_nbytes. */
EK_API int ek_reduce_add_coalesced(ek_tensor *const *inputs, int devices, int count,
                                   ek_device destination, size_t buffer_nbytes, ek_tensor **out);

/** Cuts `tensor` along `dim` and sends one chunk to each device. chunk_sizes has devices->count
 * positive sizes that add up to the dimension; NULL cuts as torch.chunk. Writes the chunks to `out`
 * and returns how many there are: fewer than devices for small batches. Backward: gather. */
EK_API int ek_scatter(ek_tensor *tensor, const ek_device_list *devices, const int64_t *chunk_sizes,
                      int dim, ek_tensor **out);

/** Joins tensors along `dim` on `destination`, in order. Scalars become a vector. Other dimensions
 * must agree (EK_E_SHAPE names the tensor). Backward: scatter. */
EK_API ek_tensor *ek_gather(ek_tensor *const *tensors, int count, ek_device destination, int dim);

/** Sums over devices and gives every device the result. tensors[d * num_inputs + i] is tensor i of
 * device d, and count / num_inputs is the number of devices. out[d * num_inputs + i] gets the sum
 * of tensors i, on device d. The call is a reduce_add onto the first device and a broadcast,
 * differentiable to any order.
 *
 * In a replica's forward, `tensors` are those of this replica alone (count == num_inputs), and the
 * call waits for the same call of all other replicas. A replica that has nothing to add passes
 * zeros. If a replica fails, the others get EK_E_ABORTED with its error. EK_E_STATE if a replica
 * ends without this call or makes a different one, and for a call in backward or inside
 * ek_checkpoint. With gradient mode off, a replica's sums have no history, and its tensors get no
 * gradient. */
EK_API int ek_allreduce(ek_tensor *const *tensors, int num_inputs, int count, ek_tensor **out);

/* ---- trees of values: tensors are cut or joined, other leaves repeated or compared ----
 *
 * A tensor whose batch is marked (ek_value_batched) is cut and joined along the marked dimension,
 * others along `dim`. Every cut tensor is marked; a joined tensor is marked if its parts were. */

/** Cuts a tree into chunks: writes one value per chunk to `out` (room for devices->count) and
 * returns how many there are. chunk_sizes as in ek_scatter. Tensors of different batch sizes are
 * EK_E_SHAPE. A tree without tensors gives one value per device. A list marked per_device is not
 * cut: its elements are moved to their devices, and tensors beside the list are cut to the batch
 * sizes of its elements. */
EK_API int ek_scatter_value(ek_value value, const ek_device_list *devices,
                            const int64_t *chunk_sizes, int dim, ek_value *out);

/** Joins trees, one per replica. Tensors are joined along `dim` on `destination`; lists and
 * dictionaries (by key) element by element. Integers become an i64 vector on `destination`, floats
 * an f64 vector. None stays none. Pointers and marks must be equal in all trees. On error
 * EK_VALUE_ERROR, with the index of the first tree that does not fit. */
EK_API ek_value ek_gather_value(const ek_value *values, int count, ek_device destination, int dim);

/** Returns the tree with its tensors on `device`. Lists marked per_device (outputs of a
 * data-parallel model) are joined there along `dim`, in batch order. Differentiable. Returns the
 * value itself if nothing moves; EK_VALUE_ERROR, with the first element that does not fit, on
 * error. */
EK_API ek_value ek_value_to_device(ek_value value, ek_device device, int dim);

EK_END_DECLARATIONS
#endif
