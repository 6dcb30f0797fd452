/* device.h: the registry of logical devices, and all that can be done with one of them. */
#ifndef EK_CORE_DEVICE_H
#define EK_CORE_DEVICE_H

#include <pthread.h>

#include "core/allocator.h"
#include "core/backend.h"
#include "core/stream.h"

/* The entry of a device; NULL with EK_E_DEVICE when there is none. Any thread. */
ek_dev *ek_dev_get(ek_device device);

/* Refuses what ek_devices and ek_device_list_of return when they fail; an empty list is well. */
int ek_device_list_check(const char *what, const ek_device_list *list);

/* How long it has worked: the wall time of parts on it, without their waiting (part.h), or by a
 * clock of its own the time of replicas' forwards that are over (from the first call on, and of few
 * between two calls). Doesn't wait. Any thread. */
uint64_t ek_dev_busy_ns(ek_dev *dev);

/* Fills with zero bytes, in order with the device's other work. */
int ek_dev_zero(ek_dev *dev, void *data, size_t nbytes);

#endif
