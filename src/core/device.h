/* device.h: the registry of logical devices. */
#ifndef EK_CORE_DEVICE_H
#define EK_CORE_DEVICE_H

#include <pthread.h>

#include "core/allocator.h"
#include "core/backend.h"
#include "core/stream.h"

/* The device, opened if need be (borrowed); NULL with EK_E_DEVICE if there is none. Any thread. */
ek_dev *ek_dev_get(ek_device device);

/* Fails for a list of negative count, which ek_devices and ek_device_list_of return on an error,
 * and for one that is too long. An empty list is fine. */
int ek_device_list_check(const char *what, const ek_device_list *list);

/* How long the device has worked: the wall time of threads' work for it (work.h), or, if the device
 * has a clock, the time of the replicas' forwards that it has finished. The device's clock counts
 * from the first call of this function on, and at most a few forwards between two calls. Doesn't
 * wait. Any thread. */
uint64_t ek_dev_busy_ns(ek_dev *dev);

/* Fills with zero bytes, in order with the device's work. */
int ek_dev_zero(ek_dev *dev, void *data, size_t nbytes);

#endif
