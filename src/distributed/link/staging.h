/* staging.h: tensors of devices and memory of the host through which they travel.
 *
 * Note [Staging]
 *
 * The transport carries memory of the host. A tensor of a GPU is copied to pinned memory once the
 * device's work before the call is done, and back after the call. The thread that makes the call
 * allocates the memory (EK_MEMORY_COMMUNICATION) and issues the copies, and waits for neither. The
 * communication thread asks for the event that follows the first copy, and begins a call when it is
 * over. It never waits for a device. */
#ifndef EK_LINK_STAGING_H
#define EK_LINK_STAGING_H

#include "link/communication.h"

/* Memory for a tensor of this device, dtype and shape: row-major and pinned, or on cpu if the
 * device is of the host. In the scope. */
ek_tensor *ek_stage_memory(ek_dev *dev, ek_dtype dtype, const ek_shape *shape);

/* Sets one->memory to row-major memory of the host: `tensor` itself, or a copy, to which its
 * elements are on their way if `sends`. */
int ek_stage_open(ek_dist_work_tensor *one, ek_tensor *tensor, bool sends);

/* Starts to copy `tensor` to row-major memory of the host that somebody else has made. */
int ek_stage_fill(ek_dist_work_tensor *one, ek_tensor *tensor, ek_tensor *memory);

/* 1 if one->memory has its elements, 0 if they are on their way; negative if they never come. */
int ek_stage_ready(const ek_dist_work_tensor *one);

/* Copies the memory to `to`, a tensor of any device and layout, in order with its work. */
int ek_stage_deliver(ek_tensor *to, const ek_tensor *memory);

/* Releases all but one->tensor. Later work of the device comes after a copy that is under way. */
void ek_stage_close(ek_dist_work_tensor *one);

/* The same for all tensors of a work: ek_stage_ready. */
int ek_dist_work_staged(const ek_dist_work *work);

#endif
