/* staging.h: tensors of devices and memory of the host through which they travel.
 *
 * Note [Staging]
 *
 * The transport carries memory of the host. A tensor of a GPU is copied to pinned memory once the
 * device's work before the call is done, and back after the call. The thread that makes the call
 * allocates the memory (EK_MEMORY_COMMUNICATION) and issues the copies, but waits for neither copy.
 * The communication thread tests the event that follows the first copy, and begins the call once
 * the event has happened. The communication thread never waits for a device. */
#ifndef EK_LINK_STAGING_H
#define EK_LINK_STAGING_H

#include "link/communication.h"

/* Makes row-major memory for a tensor of this device, dtype and shape: pinned memory, or memory of
 * cpu if the device is of the host. In the scope. */
ek_tensor *ek_stage_memory(ek_dev *dev, ek_dtype dtype, const ek_shape *shape);

/* Sets one->memory to row-major memory of the host: `tensor` itself, or a copy. If `sends`, starts
 * to copy the elements. */
int ek_stage_open(ek_dist_work_tensor *one, ek_tensor *tensor, bool sends);

/* Sets one->memory to the caller's `memory`, which is row-major and the host's, and starts to copy
 * `tensor` there. */
int ek_stage_fill(ek_dist_work_tensor *one, ek_tensor *tensor, ek_tensor *memory);

/* Returns 1 if one->memory has its elements, 0 if they are on their way, or a negative status if
 * they never come. */
int ek_stage_ready(const ek_dist_work_tensor *one);

/* Copies the memory to `to`, a tensor of any device and layout, in the order of the device's
 * work. */
int ek_stage_deliver(ek_tensor *to, const ek_tensor *memory);

/* Releases all but one->tensor. Later work of the device waits for a copy that is under way. */
void ek_stage_close(ek_dist_work_tensor *one);

/* Returns 1 if all tensors of the work are ready, else what ek_stage_ready returns for the first
 * tensor that isn't. */
int ek_dist_work_staged(const ek_dist_work *work);

#endif
