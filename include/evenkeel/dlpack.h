/** @file
 * dlpack.h: tensors whose memory is shared with NumPy, PyTorch and other libraries, without copies.
 *
 *     struct DLManagedTensorVersioned *lent = ek_to_dlpack(x, NULL);
 *     ...                               (another library takes `lent`, and calls its deleter)
 *     ek_tensor *y = ek_from_dlpack(theirs, ek_cpu(), NULL);
 *
 * The structs are those of DLPack (https://dmlc.github.io/dlpack), whose dlpack.h may be included
 * beside this header. Python's libraries pass them in capsules: samples/python/evenkeel.py does so,
 * too. Libraries from before DLPack 1.0, such as NumPy 1 and PyTorch 1.13, take the unversioned
 * struct.
 *
 * Both sides read and write the same memory. After a write by the other side call ek_tensor_touch,
 * as after a write to ek_tensor_data: the library cannot see such a write.
 *
 * Streams. The host's memory is ready when a call returns, and the argument `stream` is ignored.
 * For memory of a GPU it is the stream in which the other side works, a cudaStream_t of that GPU.
 * NULL is CUDA's default stream. With EK_NO_STREAM the other side itself sees to the order of its
 * work. These handles are the numbers of Python's __dlpack__(stream=...). */
#ifndef EVENKEEL_DLPACK_H
#define EVENKEEL_DLPACK_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

struct DLManagedTensor;
struct DLManagedTensorVersioned;

#define EK_NO_STREAM ((void *)-1)

/** Lends a tensor's memory. The result belongs to the caller until its deleter is called, from any
 * thread, and keeps the memory until then; scopes do not matter to it. Later work of `stream` waits
 * for the tensor's elements. The deleter makes later work of the tensor's device wait for the work
 * of `stream`, if that is a default stream. Another stream may be destroyed by then, so the deleter
 * waits for all work of the GPU instead. cpu and host devices are kDLCPU, number 0; cuda devices
 * are kDLCUDA with the GPU's number in the CUDA runtime. Errors: EK_E_INVALID for a tensor that
 * requires a gradient (ek_detach it), and for a sharded parameter (ek_clone it), which has its
 * memory only while it is used. */
EK_API struct DLManagedTensorVersioned *ek_to_dlpack(const ek_tensor *tensor, void *stream);
/** Does what ek_to_dlpack does, for libraries from before DLPack 1.0. */
EK_API struct DLManagedTensor *ek_to_dlpack_unversioned(const ek_tensor *tensor, void *stream);

/** Makes a tensor over borrowed memory, in the scope. Takes `lent` over, also on an error: its
 * deleter is called when the memory's last handle is released, from whatever thread does this. The
 * tensor lies on `device`, a device that has this memory. ek_cpu() stands for any: cpu for the
 * host's memory, for a GPU's memory the first logical device on that GPU. Later work of the device
 * waits for earlier work of `stream`. Before the deleter is called, later work of a default stream
 * is made to wait for the work of the tensor's device; for another stream, and for EK_NO_STREAM,
 * the host waits for all work of the GPU.
 *
 * The memory counts as in use on the device, also beyond its capacity. Memory that is marked as
 * read-only is copied, row-major. Errors: EK_E_DTYPE for element
 * types other than those of ek_dtype; EK_E_SHAPE for more than EK_MAX_DIMS dimensions and for
 * negative strides; EK_E_DEVICE for memory that the device does not have; EK_E_INVALID for elements
 * at addresses that are no multiples of their size, and for another major version of DLPack. */
EK_API ek_tensor *ek_from_dlpack(struct DLManagedTensorVersioned *lent, ek_device device,
                                 void *stream);
/** Does what ek_from_dlpack does, for libraries from before DLPack 1.0. */
EK_API ek_tensor *ek_from_dlpack_unversioned(struct DLManagedTensor *lent, ek_device device,
                                             void *stream);

EK_END_DECLARATIONS
#endif
