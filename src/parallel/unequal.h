/* unequal.h: devices that equal shares don't suit. */
#ifndef EK_PARALLEL_UNEQUAL_H
#define EK_PARALLEL_UNEQUAL_H

#include "core/device.h"

/* One log line where the smallest device has less than three quarters of the largest's memory, or
 * else of its speed, with the plan that would suit them. `what` begins it. */
void ek_warn_of_unequal(const char *what, ek_dev *const *devs, int count);

#endif
