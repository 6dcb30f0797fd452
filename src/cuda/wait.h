/* wait.h: the host waits for a device.
 *
 * A collective whose member is lost never ends, nor does what its other members issued after it:
 * only the host can see that, and abort it. It does so where it waits anyway. While communicators
 * of NCCL live, these calls ask again and again how far the device is instead of sleeping in the
 * driver, and look now and then after the collectives of all devices, since what this one waits for
 * may wait for another one's. A wait that goes well costs an event more, and no thread watches. */
#ifndef EK_CUDA_WAIT_H
#define EK_CUDA_WAIT_H

#include "cuda/runtime.h"

/* As cudaStreamSynchronize, of a stream of this device, and cudaEventSynchronize: a cudaError_t. An
 * event isn't recorded again while somebody waits for it. */
int ek_cuda_wait_stream(const ek_cuda_device *device, cudaStream_t stream);
int ek_cuda_wait_event(cudaEvent_t event);

#endif
