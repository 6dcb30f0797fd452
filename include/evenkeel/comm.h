/* comm.h: differentiable communication between the devices of this process.
 *
 * Semantics are torch.nn.parallel.comm's, on any list of devices, cpu included. Each call, and of
 * the coalesced ones each buffer, is one node in the graph with an input and an output per device;
 * gradients of gradients work. Sums add the root first, then the others in ascending order of
 * device, so that results are the same to the bit from run to run. Device 0's part is a view of the
 * source if the source lies there already.
 */
#ifndef EVENKEEL_COMM_H
#define EVENKEEL_COMM_H

#include "evenkeel/device.h"
#include "evenkeel/tensor.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

/* Buffer size of the coalesced forms if 0 is given: 10 MiB. */
enum { EK_COMM_BUFFER_BYTES = 10485760 };

/* A copy of `tensor` on each device; writes devices->count handles to `out`. Where the tensor lies
 * on a device of the list, that output is an alias of it. Backward: reduce_add onto its device. */
EK_API int ek_broadcast(ek_tensor *tensor, const ek_device_list *devices, ek_tensor **out);

/* The same for many tensors, sent in buffers: out[d * count + i] is tensor i on device d. All must
 * lie on devices[0] (EK_E_DEVICE names the first that does not). A buffer closes when its bytes
 * reach buffer_nbytes, one dtype each. */
EK_API int ek_broadcast_coalesced(ek_tensor *const *tensors, int count,
                                  const ek_device_list *devices, size_t buffer_nbytes,
                                  ek_tensor **out);

/* The sum of tensors of one shape and dtype, one per device, on `destination`, which must hold one
 * of them (the last such is the root). One input is returned unchanged. Backward: broadcast. */
EK_API ek_tensor *ek_reduce_add(ek_tensor *const *tensors, int count, ek_device destination);

/* Sums of lists: inputs[d * count + i] is tensor i of device d; writes `count` sums to `out`. A
 * buffer closes before it would exceed buffer_nbytes. */
EK_API int ek_reduce_add_coalesced(ek_tensor *const *inputs, int devices, int count,
                                   ek_device destination, size_t buffer_nbytes, ek_tensor **out);

/* Cuts `tensor` along `dim` and sends one chunk to each device: by chunk_sizes (devices->count of
 * them, each positive, adding up to the dimension) or, NULL, as torch.chunk. Writes the chunks to
 * `out` and returns how many there are (fewer than devices for small batches). Backward: gather. */
EK_API int ek_scatter(ek_tensor *tensor, const ek_device_list *devices, const int64_t *chunk_sizes,
                      int dim, ek_tensor **out);

/* Joins tensors along `dim` on `destination`, in order. Scalars become a vector. Other dimensions
 * must agree (EK_E_SHAPE names the index). Backward: scatter. */
EK_API ek_tensor *ek_gather(ek_tensor *const *tensors, int count, ek_device destination, int dim);

/* Sum of per-device tensors onto the first one's device; backward broadcasts. Alias of
 * ek_reduce_add with the first input's device as destination. */
EK_API ek_tensor *ek_reduce(ek_tensor *const *tensors, int count);

/* Sums over devices, to each of them: tensors[d * num_inputs + i] is tensor i of device d,
 * count / num_inputs devices in all, and out[d * num_inputs + i] gets the sum over d on device d
 * (count handles). reduce_add onto the first device, then broadcast; differentiable to any order.
 *
 * Inside the replicas of one forward, `tensors` are this replica's alone (count == num_inputs) and
 * the call waits for the same call of the others: a rendezvous. A replica whose chunk gave it
 * nothing to add brings zeros. Where a replica fails, the others get EK_E_ABORTED with its error;
 * EK_E_STATE if one ends without the call or they call something else, in backward, and inside
 * of ek_checkpoint. Without gradient mode a replica's sums and what it brings have no history. */
EK_API int ek_allreduce(int num_inputs, ek_tensor *const *tensors, int count, ek_tensor **out);

/* ---- over nests: tensors are cut or joined, everything else is repeated or must agree ---- */

/* Writes one value per chunk to `out` (room for devices->count) and returns how many. Tensors in
 * the nest whose batch sizes differ are EK_E_SHAPE; a nest without tensors gives one value per
 * device. chunk_sizes as above or NULL. A list marked per_device is taken apart as it is, its
 * elements moved to their devices; tensors beside it are cut to the batch sizes of its elements. */
EK_API int ek_scatter_value(ek_value value, const ek_device_list *devices,
                            const int64_t *chunk_sizes, int dim, ek_value *out);

/* Joins the outputs of replicas: tensors along `dim`, lists and dictionaries (by key) element by
 * element, none stays none, integers become an i64 and floats an f64 vector on `destination`,
 * pointers must be one. EK_VALUE_ERROR with the index of the first that does not fit. */
EK_API ek_value ek_gather_value(const ek_value *values, int count, ek_device destination, int dim);

/* The nest with its tensors on `device`; lists marked per_device, as a data-parallel model's output
 * is one, are joined there along `dim`, in batch order. Differentiable. The value itself if
 * nothing moves. EK_VALUE_ERROR with the first that does not fit. */
EK_API ek_value ek_value_to_device(ek_value value, ek_device device, int dim);

EK_END_DECLARATIONS
#endif
